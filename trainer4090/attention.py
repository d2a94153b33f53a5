"""Backends of torch's scaled_dot_product_attention by our names: those allowed now, and a context for some."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

_TORCH_NAMES = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}


def allowed_backends() -> tuple[str, ...]:
    """Those that attention may use at present; torch allows all unless it is told otherwise."""
    from torch.backends import cuda

    allowed = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return tuple(name for name in _TORCH_NAMES if allowed[name])


def only(backends: Iterable[str]) -> AbstractContextManager[Any]:
    """Attention by these backends or an error. Backward is the counterpart of what forward ran, outside of it too."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, _TORCH_NAMES[name]) for name in backends])
