"""A trained model out of a checkpoint file alone: no training data, no run folder. Imports torch inside functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer4090 import checkpoint_file, device, memory_cap, parse, plugin_modules, run_folder
from trainer4090.errors import CheckpointFileError, ConfigError, Problem, TrainerError
from trainer4090.item_format import ItemFormat, from_plain
from trainer4090.models import MODELS
from trainer4090.process import torch_device
from trainer4090.records import Model
from trainer4090.spec import RunSpec
from trainer4090.traits import DataTraits

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Trained:
    """A model as it was evaluated: fp32, averaged parameters where the run had them, in eval mode on `device`."""

    model: Model
    spec: RunSpec
    data: DataTraits
    """What the file says of the training data; its sizes are 0."""
    format: ItemFormat | None
    """How an item from outside becomes an input, None when the data set could not say."""
    step: int
    """Updates that it was trained for."""
    device: torch.device


def find(run: str, checkpoint: str, notice: Callable[[str], None]) -> Path:
    """The file that `checkpoint=last|best|PATH` names; `run=` counts for the first two only.

    Raises:
        ConfigError: there is no such run.
        CheckpointFileError: there is no such file.
    """
    folder = run_folder.find(run) if checkpoint in ("last", "best") else Path()
    return checkpoint_file.named(folder, checkpoint, notice)


def load(path: Path, device_word: str, cap_gib: float | None, notice: Callable[[str], None]) -> Trained:
    """The model in the checkpoint file `path`, on the device that `device_word` names, within `cap_gib` of its memory.

    `notice`: told of a plugin that has changed since, and of a cap on a CPU.

    Raises:
        ConfigError: a plugin that it was made with is not loaded, or the cap is above the card's memory.
        CheckpointFileError: the file is damaged, or of another version.
        MachineError: there is no such device.
    """
    chosen = device.choose(device_word, None)
    cap = memory_cap.memory_cap(cap_gib, chosen.card)
    problems = list(memory_cap.problems(cap, chosen.card))
    if problems:
        raise ConfigError(*problems)
    for told in cap.notices:
        notice(str(told))
    state = checkpoint_file.load(path)
    place = torch_device(chosen, cap.gib)
    try:
        plugin_modules.require(state["spec"]["plugin"], path, notice)
        return _rebuilt(state, place)
    except TrainerError:
        raise
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        remedy = "use the version of trainer4090 that it was trained with"
        raise CheckpointFileError(Problem(str(path), f"cannot be rebuilt ({text})", remedy)) from error


def _rebuilt(state: dict[str, Any], place: torch.device) -> Trained:
    import torch

    from trainer4090.loop import STATE_FORMAT

    if state["format"] != STATE_FORMAT:
        raise ValueError(f"format {state['format']}, this version reads {STATE_FORMAT}")
    spec, data = parse.parse(state["spec"]), _traits(state["data"])
    model = MODELS.get(spec.model.name).build(spec.model.config, data)
    model.module.load_state_dict(state["executor"]["model"])
    averages = state["executor"]["average"]
    if averages is not None:
        # Not merged into the state before: it names a tied parameter twice, and only one of the names is averaged.
        with torch.no_grad():
            for name, parameter in model.module.named_parameters():
                parameter.copy_(averages[name])
    model.module.to(place).eval().requires_grad_(False)
    stored = state["data"]["format"]
    return Trained(model, spec, data, None if stored is None else from_plain(stored), state["step"], place)


def _traits(stored: dict[str, Any]) -> DataTraits:
    return DataTraits(
        kind=stored["kind"],
        item_shape=tuple(stored["item_shape"]),
        num_classes=stored["num_classes"],
        num_train=0,
        num_evaluation=0,
        items_per_sample=stored["items_per_sample"],
        in_memory=True,
        class_names=tuple(stored["class_names"]),
    )
