"""What ended a run, in our words: torch's many ways to say that memory is exhausted are one error with a cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainer4090.errors import ConfigError, MemoryExhaustedError, Problem
from trainer4090.memory_cap import KEY
from trainer4090.plan import Plan
from trainer4090.plugin_modules import blamed

_EXHAUSTED = (
    "can't allocate memory",  # torch's CPU allocator
    "not enough memory",  # the same on Windows
    "out of memory",  # torch.OutOfMemoryError, and the CUDA driver
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN
)


_NO_KERNEL = "No available kernel"
"""What torch says when the only backend of attention that it may use cannot compute this one."""


def translated(error: BaseException, plan: Plan, training: bool) -> BaseException:
    """`error`, or the error of ours that says the same. `training`: whether the run was built already."""
    if isinstance(error, RuntimeError) and _NO_KERNEL in str(error) and plan.kernels.contexts:
        given = f"{plan.kernels.attention} cannot compute the attention of model={plan.spec.model.name}"
        return ConfigError(Problem("kernels.sdpa.backend", given, "use kernels.sdpa.backend=auto, or math"))
    return _exhausted(plan, training) if says_exhausted(error) else blamed(error)


def says_exhausted(error: BaseException) -> bool:
    """Whether an error is Python's, or one of torch's, for memory that is exhausted."""
    said_by_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in _EXHAUSTED)
    return said_by_torch or isinstance(error, MemoryError)


@contextmanager
def exhaustion(cap_gib: float | None, remedy: str) -> Iterator[None]:
    """Memory that is exhausted inside the block is an error of ours, which says `remedy`.

    Raises:
        MemoryExhaustedError: it is.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not says_exhausted(error):
            raise
        within, other = _capped(cap_gib)
        raise MemoryExhaustedError(Problem("memory", f"exhausted{within}", f"{remedy}{other}")) from error


def _capped(cap_gib: float | None) -> tuple[str, str]:
    return ("", "") if cap_gib is None else (f" within {KEY}={cap_gib:g}", f", or a larger {KEY}")


def _exhausted(plan: Plan, training: bool) -> MemoryExhaustedError:
    within, other = _capped(plan.memory_cap.gib)
    if not training:
        given = f"exhausted while model={plan.spec.model.name} and the data were being built{within}"
        return MemoryExhaustedError(Problem("memory", given, f"the cheapest cure: a smaller model{other}"))
    given = f"exhausted with train.micro_batch={plan.batching.micro_batch}{within}"
    return MemoryExhaustedError(Problem("memory", given, f"the cheapest cure: {cure(plan)}{other}"))


def cure(plan: Plan) -> str:
    """What costs least speed: half the bytes first, then no captured update, smaller micro-batches, recomputation."""
    if plan.card.device == "cuda" and plan.precision.arithmetic in ("float32", "tf32"):
        return "precision=bf16"
    if plan.card.device == "cuda" and plan.kernels.graph:
        # It keeps its memory, so that an epoch's tail or an evaluation has only what is left beside it.
        others = [choice.name for choice in plan.spec.kernels if choice.name != "graph"] or ["eager"]
        return f"kernels={others[0]}" if len(others) == 1 else f"kernels=[{','.join(others)}]"
    batching = plan.batching
    smallest = 2 if plan.evidence.model.batch_norm else 1  # BatchNorm cannot normalise one sample
    smaller = [size for size in range(smallest, batching.micro_batch) if batching.batch_size % size == 0]
    if smaller:
        return f"train.micro_batch={smaller[-1]}"
    checkpoints = plan.memory.needs_blocks or not plan.evidence.model.blocks
    return "a smaller model" if checkpoints else "memory=checkpoint"
