"""The local executor's update, captured once for every shape of a batch and replayed from then on.

A replay launches the whole update at once: forward, backward, unscaling, clipping, optimizer, schedule, scale and
average. Whatever differs between two updates therefore lies on the device: the batch, the number of its targets, the
learning rate, the counters, the scale, and the state of the random numbers.

Capturing wants kernels that are chosen, compiled and warm, and an optimizer that has its state. The first updates of a
shape are made uncaptured for that; they are updates like any other, so warming up leaves no trace.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import torch

from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.base import Forward, StepOutput
from trainer4090.executors.local import LocalExecutor
from trainer4090.executors.places import Place
from trainer4090.executors.tensors import shape_of
from trainer4090.records import Batch

WARM_UP = 3
"""Updates of a shape before it is captured: the first compiles and makes the optimizer's state, the next meet both."""
MOST_SHAPES = 8
"""Shapes of a whole batch that are captured; each costs a capture, and memory for its own inputs."""

Replay = Callable[[], StepOutput]


class Capture(Protocol):
    """How a function over fixed tensors becomes something that is run again and again."""

    def aside(self) -> AbstractContextManager[None]:
        """Where updates run that are not recorded."""
        ...

    def record(self, function: Replay) -> Replay:
        """What computes `function` anew at each call, into the same tensors or new ones. Recording computes nothing.

        Raises:
            RuntimeError: the function does something that cannot be recorded.
        """
        ...


@final
class CudaCapture:
    """CUDA graphs. They share one pool of memory, since no two of them run side by side."""

    def __init__(self, device: torch.device) -> None:
        """All are captured on one stream."""
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream that is captured later: what autograd and the libraries keep for a stream is there then."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def record(self, function: Replay) -> Replay:
        """A captured graph; its results are the same tensors at every call.

        Raises:
            RuntimeError: the function waits for the device, or does something else that no graph can hold.
        """
        graph = torch.cuda.CUDAGraph()
        # Only this thread is watched: the loader's own may allocate pinned memory at any time.
        capturing = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with without_collection(), capturing:
            output = function()

        def replay() -> StepOutput:
            graph.replay()
            return output

        return replay


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage is collected inside the block, and none is there when it begins.

    A graph that an earlier run of this process has left in a cycle gives its memory back when it is collected, which
    waits for the device: inside a capture that is an error, and in a destructor the end of the process.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@final
class Uncaptured:
    """The function itself: the same update over the same fixed tensors, where there are no CUDA graphs."""

    def aside(self) -> AbstractContextManager[None]:
        """Nothing to keep apart."""
        return nullcontext()

    def record(self, function: Replay) -> Replay:
        """The function."""
        return function


@final
class _Fixed:
    """What the captured updates of one shape read, and these updates."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        """Made for the shape of `batch`."""
        self.place = Place(batch, device)
        self.divisor = torch.zeros((), dtype=torch.float32, device=device)
        self.replays: dict[bool, Replay] = {}
        """Without and with what only a log point needs."""
        self._num_targets = 0

    def load(self, inputs: Any, targets: torch.Tensor, num_targets: int) -> None:
        """Copy a batch in, behind the update before."""
        self.place.fill(inputs, targets)
        if num_targets != self._num_targets:
            self._num_targets = num_targets
            self.divisor.fill_(num_targets)


@dataclass
class _Met:
    """How often a shape of a batch was met, and its tensors once it is captured."""

    num_updates: int = 0
    fixed: _Fixed | None = None


@final
class GraphExecutor:
    """Replays the update of a `LocalExecutor`; an epoch's smaller last batch is made by that executor itself."""

    def __init__(self, local: LocalExecutor, batch_size: int, capture: Capture) -> None:
        """`local` counts on the device."""
        self.local = local
        self._batch_size = batch_size
        self._capture = capture
        self._met: dict[Any, _Met] = {}

    @property
    def forward(self) -> Forward:
        """The local executor's."""
        return self.local.forward

    def evaluating(self) -> AbstractContextManager[None]:
        """As the local executor does."""
        return self.local.evaluating()

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update; the tensors of what it returns hold until the next.

        Raises:
            ConfigError: the update cannot be captured, or there is no end of new shapes.
        """
        if len(batch.targets) < self._batch_size:
            return self._uncaptured(batch, observe)
        met = self._met.setdefault(shape_of(batch), _Met())
        if met.fixed is None:
            met.num_updates += 1
            if met.num_updates <= WARM_UP:
                return self._uncaptured(batch, observe)
            met.fixed = self._fix(batch)
        fixed, num_targets = met.fixed, max(batch.num_targets, 1)
        staging = self.forward.staging  # without one the batch is copied when it is due, and once only
        moved = (batch.inputs, batch.targets) if staging is None else staging(batch)
        fixed.load(*moved, num_targets)
        replay = fixed.replays.get(observe) or self._record(fixed, observe)
        return replace(replay(), num_targets=num_targets)

    def _uncaptured(self, batch: Batch, observe: bool) -> StepOutput:
        with self._capture.aside():
            return self.local.step(batch, observe)

    def _fix(self, batch: Batch) -> _Fixed:
        if sum(met.fixed is not None for met in self._met.values()) == MOST_SHAPES:
            given = f"graph met more than {MOST_SHAPES} shapes of a batch, the last {tuple(batch.targets.shape)}"
            raise ConfigError(Problem("kernels", given, "pad or bucket the items to fewer lengths, or drop graph"))
        return _Fixed(batch, self.forward.device)

    def _record(self, fixed: _Fixed, observe: bool) -> Replay:
        def update() -> StepOutput:
            return self.local.update(fixed.place.inputs, fixed.place.targets, 1, fixed.divisor, observe)

        self.local.release_gradients()
        try:
            fixed.replays[observe] = self._capture.record(update)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = " ".join(str(error).split("\n")[0].split())
            given = f"graph cannot capture the update of this model ({reason})"
            raise ConfigError(Problem("kernels", given, "drop graph: kernels=eager or kernels=fused")) from error
        return fixed.replays[observe]

    def state_dict(self) -> dict[str, Any]:
        """As the local executor's."""
        return self.local.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Its tensors are new ones, so everything is captured again."""
        self.local.load_state_dict(state)
        self._met.clear()


def capturable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, told that its steps will be captured; those that have no such switch need none, or refuse then."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    # torch warns of such an optimizer outside a capture, where the first updates and an epoch's last are made.
    optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
    return optimizer
