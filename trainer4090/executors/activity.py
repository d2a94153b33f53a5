"""What one update really ran, seen by torch's own profiler: evidence that an option was active, not what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

MIB = 2**20
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::convolution")
"""Matrix products of forward, and of backward but for convolutions; compiled code calls these kernels too."""
RECOMPUTABLE = ("aten::linear", "aten::convolution", "aten::scaled_dot_product_attention")
"""Operators that a forward calls by these names and a backward by others."""
_DTYPES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_COMPILED, _BACKWARD, _FUSED_OPTIMIZER = "Torch-Compiled Region", "autograd::engine", "aten::_fused_"


@final
class Activity:
    """Watches one update. Its profiler needs no CUPTI: kernels are told by the operators that launch them."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        """`parameters`: what is held anyway, so that it does not count as held for backward."""
        self._known = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._held: dict[int, int] = {}
        self._graph_replays = 0
        self._profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is run inside the block."""
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self._graph_replays += 1
            replay(graph)

        torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]
        try:
            with self._profiler, saved_tensors_hooks(self._hold, lambda tensor: tensor):
                yield
        finally:
            torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]

    def facts(self) -> dict[str, Any]:
        """What was seen; a kind of thing that was not seen at all is absent."""
        events = list(self._profiler.events() or ())
        counts = {
            "products": products(self._profiler),
            "recomputed": sum(event.name in RECOMPUTABLE and _in_backward(event) for event in events),
            "compiled_calls": sum(event.name.startswith(_COMPILED) for event in events),
            "fused_optimizer_calls": sum(event.name.startswith(_FUSED_OPTIMIZER) for event in events),
            "graph_replays": self._graph_replays,
            "held_mib": sum(self._held.values()) / MIB,
        }
        return {name: value for name, value in counts.items() if value}

    def _hold(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._held[storage.data_ptr()] = storage.nbytes()
        return tensor


def products(profiler: profile) -> Mapping[str, int]:
    """Dtype -> number of matrix products whose operands have it."""
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    found: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        if event.name() in PRODUCTS:
            # Of `addmm` the first operand is the bias.
            dtypes = [dtype for dtype in event.dtypes()[:2] if dtype]
            found[_DTYPES.get(dtypes[-1], dtypes[-1].removeprefix("c10::").lower())] += 1
    return dict(found)


def _in_backward(event: Any) -> bool:
    """Whether an event lies inside a node of the backward graph: what a forward runs there is run again."""
    parent = event.cpu_parent
    while parent is not None and not parent.name.startswith(_BACKWARD):
        parent = parent.cpu_parent
    return parent is not None
