"""Data sets by name. An entry returns samples addressed by index; `pipeline/loader.py` decides their order."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Data:
    """A built data set."""

    train: Source
    evaluation: Source
    prepare: Prepare
    format: ItemFormat | None = None
    """How an item from outside is read as one of these samples, None when nothing can be said."""


DATA: Registry[Data] = Registry("data", __name__)
"""Builders take `(config, seed)`; traits take `(config)` and return `DataTraits` without importing torch."""
