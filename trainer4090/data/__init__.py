"""Data sets by name. An entry returns samples addressed by index; `pipeline/loader.py` decides their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from trainer4090.item_format import ItemFormat
from trainer4090.registry import Registry

if TYPE_CHECKING:
    import torch


class Source(Protocol):
    """Samples of one split, addressed by index. It is pickled when worker processes read from it."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def fetch(self, indices: torch.Tensor, epoch: int) -> tuple[Any, torch.Tensor]:
        """`(inputs, targets)` of the samples `indices` (int64, host), each (len(indices), ...).

        Augmentation is a function of (seed, epoch, sample index) alone, so that worker processes, a resume and the
        order of calls leave it as it is. Evaluation passes epoch -1 for none.
        """
        ...

    def targets(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        """The targets that `fetch` returns, alone and on the host."""
        ...

    def resident(self, device: torch.device) -> Source:
        """The same samples kept on `device` and fetched there, or itself when this source cannot hold them there."""
        ...


class Prepare(Protocol):
    """Last step on the device, without randomness: uint8 pixels to normalised floats, for example."""

    def __call__(self, inputs: Any) -> Any:
        """`inputs` as the model takes them."""
        ...


Split = Literal["evaluation", "train"]
"""The samples that a field of `Data` holds."""
SPLITS: tuple[Split, ...] = get_args(Split)


def unchanged(inputs: Any) -> Any:
    """`inputs` themselves, for a model that takes samples as they are."""
    return inputs


@dataclass(frozen=True)
class Data:
    """A built data set."""

    train: Source
    evaluation: Source
    prepare: Prepare = unchanged
    format: ItemFormat | None = None
    """How an item from outside is read as one of these samples, None when nothing can be said."""
    notices: Callable[[], list[str]] = list
    """() -> what reading has met since the last call that the user should know."""


def tensor_source(inputs: Any, targets: torch.Tensor) -> Source:
    """Samples held in memory: `inputs` (samples, ...), a pytree of tensors, and `targets` (samples, ...)."""
    from trainer4090.data.pipeline.sources import TensorSource

    return TensorSource(inputs, targets)


def dataset_source(dataset: Any, targets: Any, seed: int) -> Source:
    """Samples of a map-style dataset, `dataset[i]` being `(input, target)`; decoded in workers under data.num_workers.

    `targets`: the targets of all samples, a tensor or a list. Random transforms are redrawn every epoch as a function
    of (seed, epoch, sample), for Python's, NumPy's and torch's generators, so that a resume repeats them exactly.
    """
    import torch

    from trainer4090.data.pipeline.dataset import DatasetSource

    return DatasetSource(dataset, torch.as_tensor(targets), seed)


DATA: Registry[Data] = Registry("data", __name__)
"""Builders take `(config, seed)`; traits take `(config)` and return `DataTraits` without importing torch."""
