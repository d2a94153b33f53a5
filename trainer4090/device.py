"""Which device a run gets, and the card that describes it. Imports no torch, so that a wrong wish fails at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from trainer4090 import card as cards
from trainer4090 import paths
from trainer4090.card import Card, Present
from trainer4090.errors import ConfigError, MachineError, Problem


@dataclass(frozen=True)
class Choice:
    """A device of this machine and its card."""

    card: Card
    uuid: str | None
    """Of the GPU, None for the CPU."""
    reason: str


def count(device: str) -> int:
    """Cards that `cards=auto` takes where each has a rank: all GPUs, one for a device that is named."""
    return max(1, len(visible(cards.present_gpus()))) if device in ("auto", "cuda") else 1


def choose_one_of(device: str, wanted: Card | None, num_cards: int, local_rank: int) -> Choice:
    """The device of one of several ranks: GPUs in the driver's order, or the CPU for all of them.

    Raises:
        MachineError: there are fewer GPUs.
        ConfigError: `card=` names other hardware than is there, or `device=` one GPU.
    """
    gpus = [] if device == "cpu" else visible(cards.present_gpus())
    if num_cards == 1 or not (gpus or device.startswith("cuda")):
        return choose(device, wanted)
    if ":" in device:
        raise ConfigError(Problem("device", f"{device} beside cards={num_cards}", "use device=cuda, or cards=1"))
    if len(gpus) < num_cards:
        remedy = f"use cards={max(1, len(gpus))}, or device=cpu for {num_cards} processes on the CPU"
        raise MachineError(Problem("cards", f"{num_cards}, but there are {len(gpus)} GPUs", remedy))
    return choose(f"cuda:{local_rank}", wanted)


def choose(device: str, wanted: Card | None) -> Choice:
    """The device that `device=` asks for; `auto` takes the GPU with most free memory, or the CPU without one.

    `wanted`: the record of `card=`; it must describe the device that is there.

    Raises:
        MachineError: there is no such GPU.
        ConfigError: `card=` names other hardware than is there.
    """
    gpus = [] if device == "cpu" else visible(cards.present_gpus())
    if device == "cpu" or (device == "auto" and not gpus):
        choice = Choice(cards.CPU, None, "device=cpu" if device == "cpu" else "device=auto, and no GPU answers")
    else:
        gpu, reason = _pick(device, gpus)
        choice = Choice(cards.identify(gpu, known_cards()), gpu.uuid, reason)
    if wanted is None:
        return choice
    if (wanted.device, wanted.device_name) != (choice.card.device, choice.card.device_name):
        given = f"{wanted.name} is {wanted.device_name}, but this machine trains on {choice.card.device_name}"
        raise ConfigError(Problem("card", given, "use card=auto, or the verb plan for a card that is elsewhere"))
    return Choice(wanted, choice.uuid, choice.reason)


def word_of(choice: Choice) -> str:
    """What `device=` has to say for exactly this device, where `auto` may take another one by now."""
    if choice.uuid is None:
        return "cpu"
    in_order = sorted(visible(cards.present_gpus()), key=lambda gpu: gpu.index)
    return f"cuda:{[gpu.uuid for gpu in in_order].index(choice.uuid)}"


def known_cards() -> list[Card]:
    """All cards that the group `card` describes."""
    return [cards.load(path) for name, path in paths.options("card").items() if name != "auto"]


def visible(gpus: Sequence[Present]) -> list[Present]:
    """Those GPUs that CUDA_VISIBLE_DEVICES leaves to this process, by UUID or by number.

    Numbers are taken in the driver's order. CUDA counts faster cards first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; for
    equal cards both orders are the same.
    """
    wish = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wish is None:
        return list(gpus)
    words = [word.strip() for word in wish.split(",") if word.strip()]
    return [gpu for gpu in gpus if any(gpu.uuid.startswith(word) or word == str(gpu.index) for word in words)]


def _pick(device: str, gpus: list[Present]) -> tuple[Present, str]:
    if not gpus:
        remedy = "install the NVIDIA driver, or use device=cpu"
        raise MachineError(Problem("device", f"{device}, but no GPU answers", remedy))
    _, _, index = device.partition(":")
    if not index:
        return gpus[0], f"device={device}: most free memory ({gpus[0].free_mib:,} MiB) of {len(gpus)}"
    in_order = sorted(gpus, key=lambda gpu: gpu.index)
    if int(index) >= len(gpus):
        remedy = f"allowed is cuda:0 to cuda:{len(gpus) - 1}"
        raise MachineError(Problem("device", f"{device}, but there are {len(gpus)} GPUs", remedy))
    return in_order[int(index)], f"device={device}"
