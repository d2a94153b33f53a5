"""Cards: what the hardware can do, from a file of the group `card` or from the machine itself. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from trainer4090.errors import ConfigError, Problem
from trainer4090.schema import PositiveFloat, PositiveInt, read

Rate = PositiveFloat | None
Dtype = Literal["float32", "tf32", "float16", "bfloat16", "float8"]
"""Arithmetic that matrix products run in; `tf32` is float32 storage with 10 mantissa bits inside the tensor cores."""
Accumulation = Literal["float32", "float16"]
"""What the sums inside a matrix product of float16 are kept in."""


@dataclass(frozen=True)
class Card:
    """One device. A rate that is not known is None and everything computed from it is absent."""

    name: str
    device: Literal["cuda", "cpu"]
    device_name: str
    """Exactly as the driver reports it: `... 4090`, `... 4090 D` and `... 4090 Laptop GPU` are three cards."""
    compute_capability: str | None
    memory_mib: PositiveInt | None
    fp32_tflops: Rate
    tf32_tflops: Rate
    fp16_tflops: Rate
    """Dense tensor rate with fp32 accumulation."""
    fp16_accumulate_tflops: Rate
    """The same with fp16 accumulation: twice as much on GeForce cards, no more on those of data centres."""
    bf16_tflops: Rate
    fp8_tflops: Rate
    """Dense tensor rate with fp32 accumulation, None where there is no such arithmetic."""
    bandwidth_gb_s: Rate
    link_gb_s: Rate
    peer_access: bool
    source: str
    """Where the figures come from; printed by every plan."""

    def peak_tflops(self, dtype: Dtype, accumulation: Accumulation = "float32") -> float | None:
        """Dense peak in TFLOP/s for matrix products in `dtype`, or None when unknown."""
        if (dtype, accumulation) == ("float16", "float16"):
            return self.fp16_accumulate_tflops
        rates = {
            "float32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "float16": self.fp16_tflops,
            "bfloat16": self.bf16_tflops,
            "float8": self.fp8_tflops,
        }
        return rates[dtype]


def load(path: Path) -> Card:
    """The card described by a YAML file.

    Raises:
        ConfigError: the file is no YAML, or not a complete card.
    """
    problems: list[Problem] = []
    try:
        tree: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        given = f"cannot be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
        raise ConfigError(Problem(str(path), given, "write a card as in conf/card/rtx4090.yaml")) from error
    card = read(Card, tree, str(path), problems)
    if card is None:
        raise ConfigError(*problems)
    return card


@dataclass(frozen=True)
class Present:
    """A GPU of this machine as the driver sees it."""

    index: int
    """Position on the PCI bus, the driver's order."""
    uuid: str
    device_name: str
    compute_capability: str
    memory_mib: int
    free_mib: int


def present_gpus() -> list[Present]:
    """GPUs that the NVIDIA driver reports, most free memory first; empty without driver or card."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []  # no driver, or one that does not answer: there is no card to train on
    try:
        gpus = [_present(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    return sorted(gpus, key=lambda gpu: -gpu.free_mib)


def _present(pynvml: Any, index: int) -> Present:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Present(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        device_name=pynvml.nvmlDeviceGetName(handle),
        compute_capability=f"{major}.{minor}",
        memory_mib=memory.total // 2**20,
        free_mib=memory.free // 2**20,
    )


def identify(gpu: Present, known: Iterable[Card]) -> Card:
    """The known card with exactly this device name, or a record without rates: a wrong peak is worse than none."""
    for card in known:
        if card.device == "cuda" and card.device_name == gpu.device_name:
            return card
    return Card(
        name="unknown",
        device="cuda",
        device_name=gpu.device_name,
        compute_capability=gpu.compute_capability,
        memory_mib=gpu.memory_mib,
        fp32_tflops=None,
        tf32_tflops=None,
        fp16_tflops=None,
        fp16_accumulate_tflops=None,
        bf16_tflops=None,
        fp8_tflops=None,
        bandwidth_gb_s=None,
        link_gb_s=None,
        peer_access=False,
        source="the driver; no rates known for this name",
    )


CPU = Card(
    name="cpu",
    device="cpu",
    device_name="cpu",
    compute_capability=None,
    memory_mib=None,
    fp32_tflops=None,
    tf32_tflops=None,
    fp16_tflops=None,
    fp16_accumulate_tflops=None,
    bf16_tflops=None,
    fp8_tflops=None,
    bandwidth_gb_s=None,
    link_gb_s=None,
    peer_access=False,
    source="no rates known",
)
