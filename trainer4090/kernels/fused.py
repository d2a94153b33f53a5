"""Fewer and larger kernels: compiled forward and backward, a fused optimizer, channels_last convolutions."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trainer4090.attention import allowed_backends
from trainer4090.errors import MachineError, Problem
from trainer4090.kernels import KERNELS, Kernels, Measure
from trainer4090.records import Notice, Parts, Settings, Site, Stage, Transform
from trainer4090.schema import Auto
from trainer4090.traits import Facts

Mode = Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]
WITHOUT_GRAPHS: dict[Mode, Mode] = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""A mode that captures CUDA graphs of its own -> what is left of it without them."""
CUPTI = (("DISABLE_CUPTI_LAZY_REINIT", "1"), ("TEARDOWN_CUPTI", "0"))
"""As torch.compile sets them for its CUDA graphs, which crash when a profiler's library is loaded a second time."""


@dataclass(frozen=True)
class Config:
    """Which of the fusions to use."""

    compile: bool = True
    backend: Literal["inductor", "aot_eager"] = "inductor"
    mode: Mode | Measure = "default"
    optimizer: bool = True
    channels_last: Auto | Measure | bool = "auto"
    cudnn_benchmark: Auto | Measure | bool = "auto"


def candidates(config: Config, facts: Facts) -> dict[str, tuple[Any, ...]]:
    """Values to time for each field, what it is without a measurement first; one alone where it changes nothing."""
    images, on_gpu = facts.data.kind == "images", facts.card.device == "cuda"
    stated = facts.model.channels_last and images
    graphs: tuple[Mode, ...] = ("reduce-overhead",) if on_gpu else ()
    modes: tuple[Mode, ...] = ("default", *graphs, "max-autotune-no-cudagraphs")
    return {
        "mode": modes if config.compile and config.backend == "inductor" else ("default",),
        "channels_last": (stated, not stated) if images else (False,),
        "cudnn_benchmark": (True, False) if images and on_gpu else (images,),
    }


@KERNELS.register("fused", Config, candidates=candidates)
def fused(config: Config, facts: Facts) -> Kernels:
    """Compile the model, fuse the optimizer, and lay images out channels_last where the model gains from it."""
    channels_last = config.channels_last if isinstance(config.channels_last, bool) else facts.model.channels_last
    mode, notices = _mode(config, facts)
    if channels_last and facts.data.kind != "images":
        channels_last = False
        why = "the layout exists for images (batch, channels, height, width) only"
        notices += (Notice("kernels.fused.channels_last", "true", "false", why),)
    transforms: list[Transform] = []
    if channels_last:
        transforms.append(Transform(Stage.REPLACE, "4-D weights in channels_last", weights_channels_last))
    if config.compile:
        compiled = partial(compile_parts, backend=config.backend, mode=mode)
        label = f"compile with {config.backend}" + ("" if mode == "default" else f", mode {mode}")
        transforms.append(Transform(Stage.COMPILE, label, compiled))
    graphs = config.compile and mode in WITHOUT_GRAPHS
    benchmark = config.cudnn_benchmark if isinstance(config.cudnn_benchmark, bool) else facts.data.kind == "images"
    return Kernels(
        compile_backend=config.backend if config.compile else None,
        compile_function=partial(compile_function, backend=config.backend, mode=mode) if config.compile else None,
        cuda_graphs_inside=graphs,
        fused_optimizer=config.optimizer,
        channels_last=channels_last,
        transforms=tuple(transforms),
        settings=Settings(CUPTI if graphs else (), (("backends.cudnn.benchmark", benchmark),)),
        notices=notices,
    )


def _mode(config: Config, facts: Facts) -> tuple[Mode, tuple[Notice, ...]]:
    """The mode that can be had here, and a notice where it is another than was asked for."""
    mode: Mode = "default" if config.mode == "measure" else config.mode
    if mode == "default" or not config.compile:
        return mode, ()
    key = "kernels.fused.mode"
    if config.backend != "inductor":
        return "default", (Notice(key, mode, "default", f"modes are Inductor's, and {config.backend} has none"),)
    if facts.card.device == "cpu" and mode in WITHOUT_GRAPHS:
        return WITHOUT_GRAPHS[mode], (Notice(key, mode, WITHOUT_GRAPHS[mode], "a CPU has no CUDA graphs"),)
    return mode, ()


def weights_channels_last(parts: Parts, site: Site) -> Parts:
    """Lay out all 4-D parameters and buffers in channels_last; names, shapes and values stay."""
    import torch

    for part in parts:
        part.module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return parts


def compile_parts(parts: Parts, site: Site, backend: str, mode: Mode = "default") -> Parts:
    """Compile in place, which keeps state-dict names; a model that names compile units has these compiled alone.

    Raises:
        MachineError: the compiler that the backend calls is missing.
    """
    if backend == "inductor":
        require_compiler(site.device.type)
    # torch 2.11 warns at the first graph in fp32. TF32 is off because `precision` says so, and `tf32` turns it on.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    compiler = partial(inductor, mode=mode) if backend == "inductor" else backend
    for part in parts:
        units = [part.module.get_submodule(name) for name in part.compile_units] or [part.module]
        for unit in units:
            unit.compile(backend=compiler)
    return parts


def compile_function(function: Callable[..., Any], backend: str, mode: Mode = "default") -> Callable[..., Any]:
    """The function compiled as a unit of its own."""
    import torch

    # Without graphs of its own: their results would be overwritten while backward still reads them.
    without = WITHOUT_GRAPHS.get(mode, mode)
    compiler: Any = partial(inductor, mode=without) if backend == "inductor" else backend
    return torch.compile(function, backend=compiler)


def inductor(graph: Any, inputs: Any, mode: Mode) -> Any:
    """Inductor's code for `graph`, an fx.GraphModule that is traced under the present contexts of forward.

    torch 2.11 keys its cache on disk by whether autocast is on, not by its dtype, so that `precision=amp` would run in
    the bf16 of an earlier `precision=bf16`, in silence. No torch so far keys it by the backend of attention. The tag
    tells them apart.

    Source: https://github.com/pytorch/pytorch/pull/181564
    """
    import torch

    dtypes = [str(torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    tag = " ".join([torch.compiler.config.cache_key_tag, *dtypes, *allowed_backends()])
    with torch.compiler.config.patch(cache_key_tag=tag):  # pyright: ignore[reportAttributeAccessIssue]
        patches = torch._inductor.list_mode_options(mode)
        compile_graph: Any = torch._dynamo.lookup_backend("inductor")
        return compile_graph(graph, inputs, config_patches=patches)


def require_compiler(device_type: str) -> None:
    """Raise unless there is the compiler that Inductor (C++, for the CPU) or Triton (C, for CUDA) calls.

    Raises:
        MachineError: the compiler or the headers of Python are missing; the message names the package of Debian.
    """
    variable, known = ("CXX", ("g++",)) if device_type == "cpu" else ("CC", ("gcc", "clang"))
    candidates = (os.environ[variable],) if os.environ.get(variable) else known
    if not any(map(shutil.which, candidates)):
        raise _cannot_compile(f"the compiler {' or '.join(candidates)} is not installed", known[0])
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise _cannot_compile(f"Python.h is not in {headers}", f"python{sysconfig.get_python_version()}-dev")


def _cannot_compile(given: str, package: str) -> MachineError:
    remedy = f"install it (Debian: apt-get install {package}), or use kernels.fused.compile=false"
    return MachineError(Problem("kernels.fused", f"torch.compile cannot run, {given}", remedy))
