"""Metrics of the library torchmetrics, by the names of their classes there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

from trainer4090.errors import ConfigError, MachineError, Problem
from trainer4090.metrics import METRICS, Metric
from trainer4090.schema import suggestion
from trainer4090.traits import DataTraits, LossTraits

if TYPE_CHECKING:
    import torch

KEY = "metrics.torchmetrics.names"
_FAMILIES = ("torchmetrics.classification", "torchmetrics.regression")
"""The others compare pictures, sounds or texts, or need more than outputs and targets."""
_TRIED_SAMPLES = 16


@dataclass(frozen=True)
class Config:
    """Fields of `metrics=torchmetrics`."""

    names: tuple[str, ...] = ("F1Score",)
    average: Literal["macro", "micro", "weighted"] | None = None


@dataclass(frozen=True)
class _Question:
    """What is asked of a class of torchmetrics: it decides the arguments, and the form of what is compared."""

    kind: Literal["labels", "classes", "numbers"]
    logits: bool
    ignore_index: int | None
    average: str | None

    def arguments(self, num_outputs: int) -> dict[str, Any]:
        """Everything that can be said; a class is given what it takes."""
        many = "multilabel" if self.kind == "labels" else "multiclass"
        given = {
            "task": "binary" if self.kind == "labels" and num_outputs == 1 else many,
            "num_classes": num_outputs,
            "num_labels": num_outputs,
            "num_outputs": num_outputs if self.kind == "numbers" else None,
            "average": self.average,
            "ignore_index": self.ignore_index if self.kind == "classes" else None,
        }
        # Its checks read the values back from the device, and the targets have been checked before training.
        return {name: value for name, value in given.items() if value is not None} | {"validate_args": False}


@METRICS.register("torchmetrics", Config)
def torchmetrics(config: Config, data: DataTraits, loss: LossTraits) -> tuple[Metric, ...]:
    """Classification and regression metrics of the library torchmetrics, by class name (metrics.torchmetrics.names).

    A name that nobody but the library knows can be judged by asking it, so this option's plan imports torch.
    """
    known = _classes()
    question = _Question(
        kind="labels" if data.multi_label else "classes" if data.num_classes > 1 else "numbers",
        logits=loss.outputs != "numbers",
        ignore_index=loss.ignore_index,
        average=config.average,
    )
    problems, metrics = [], []
    if not config.names:
        problems.append(Problem(KEY, "[] measures nothing", "give class names: [F1Score]"))
    for name in config.names:
        if name not in known:
            problems.append(Problem(KEY, f"unknown name {name!r}", suggestion(name, known, "classes", _listed_by())))
            continue
        start = partial(_Library, known[name], question)
        try:
            better = _tried(start, data)
        except Exception as error:  # whatever a class of another project raises, it says that it does not fit
            text = " ".join(str(error).split()) or type(error).__name__
            problems.append(Problem(KEY, f"{name} does not fit this data ({text})", "choose another metric"))
            continue
        metrics.append(Metric(name, better, start))
    if problems:
        raise ConfigError(*problems)
    return tuple(metrics)


def _classes() -> dict[str, type]:
    """Name -> class.

    Raises:
        MachineError: the library is not installed.
    """
    if importlib.util.find_spec("torchmetrics") is None:
        problem = Problem("metrics", "torchmetrics is not installed", "pip install 'trainer4090[torchmetrics]'")
        raise MachineError(problem)
    modules = [importlib.import_module(family) for family in _FAMILIES]
    return {name: getattr(module, name) for module in modules for name in module.__all__}


def _listed_by() -> str:
    return "https://lightning.ai/docs/torchmetrics, classification and regression"


def _made(wanted: type, question: _Question, num_outputs: int) -> Any:
    """An instance of a class of torchmetrics, given the arguments that it takes.

    Raises:
        ValueError: it cannot leave out the targets that the loss ignores.
    """
    # F1Score and its like choose among three classes in `__new__`; those have no `__init__` of interest.
    names = set(inspect.signature(wanted.__new__).parameters)
    names = names if "task" in names else set(inspect.signature(wanted.__init__).parameters)
    offered = question.arguments(num_outputs)
    if "ignore_index" in offered and "ignore_index" not in names:
        raise ValueError("it cannot leave out the targets that the loss ignores")
    return wanted(**{name: value for name, value in offered.items() if name in names})


def _tried(start: Callable[[], _Library], data: DataTraits) -> bool | None:
    """Whether higher is better, once the metric has given one number for made-up outputs.

    Raises:
        Exception: it has not.
    """
    import torch

    num_outputs = max(data.num_classes, 1)
    outputs = torch.linspace(-1, 1, _TRIED_SAMPLES * num_outputs).reshape(-1, num_outputs).sin()
    targets = torch.arange(_TRIED_SAMPLES) % num_outputs
    if data.multi_label:
        targets = (outputs.roll(1, 0) > 0).float()
    elif data.num_classes < 2:
        targets = outputs.roll(1, 0)
    tried = start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of made-up data it may complain
        tried.update(outputs, targets)
        tried.result()
    return tried.higher_is_better


@final
class _Library:
    """An accumulator around an instance of torchmetrics, which is made when the number of outputs is known."""

    def __init__(self, wanted: type, question: _Question) -> None:
        self._wanted = wanted
        self._question = question
        self._metric: Any = None

    @property
    def higher_is_better(self) -> bool | None:
        """What the instance says, once there is one."""
        return None if self._metric is None else self._metric.higher_is_better

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take in a batch; some classes of the library read something back from the device here."""
        scores, wanted = self._compared(outputs.detach(), targets)
        if self._metric is None:
            num_outputs = scores.shape[-1] if scores.ndim > 1 else 1
            self._metric = _made(self._wanted, self._question, num_outputs).to(scores.device)
            # It would ask the other ranks, which neither answer nor need to: it sees every output already.
            self._metric.distributed_available_fn = lambda: False
        self._metric.update(scores, wanted)

    def result(self) -> float:
        """The library's number.

        Raises:
            ValueError: it gives several.
        """
        if self._metric is None:
            return math.nan
        value = self._metric.compute()
        if isinstance(value, (tuple, list, dict)) or value.numel() != 1:
            raise ValueError("it gives several numbers, not one")
        return float(value)

    def _compared(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities and integers, or numbers and numbers.

        The library itself takes the outputs of a batch for logits only if one lies outside [0, 1].
        """
        import torch

        values = outputs if outputs.dtype == torch.float64 else outputs.float()
        if self._question.kind == "classes":
            return values.flatten(0, -2).softmax(-1), targets.flatten()
        wanted = targets.reshape(values.shape)
        if self._question.kind == "labels":
            values = values.sigmoid() if self._question.logits else values.clamp(0, 1)
            wanted = (wanted > 0.5).long()
        single = values.ndim > 1 and values.shape[-1] == 1
        return (values.flatten(), wanted.flatten()) if single else (values, wanted)
