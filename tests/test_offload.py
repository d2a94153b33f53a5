"""`memory=offload` is the same training as `memory=none`, bit for bit, whenever its copies happen to be made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import plan_of, run_of, train_updates
from equal_runs import AOT, CPU, WITH_DROPOUT, assert_same, state_of, tiny
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from trainer4090.errors import ConfigError
from trainer4090.memory.host import link as links
from trainer4090.memory.host.link import HostLink, Mark, Pool
from trainer4090.memory.host.saved import Choice, SavedTensors, owned_by

SLOW = pytest.mark.full
ALL = ("memory.offload.min_mib=0", "memory.offload.in_flight_mib=0.01")
"""Every tensor, and a window that holds few."""
VARIANTS = {
    "bf16": ("precision=bf16",),
    "amp": ("precision=amp",),
    "accumulation": ("train.micro_batch=2",),
    "some": ("memory.offload.fraction=0.4",),
    "compiled": AOT,
    "frozen": ("model.freeze=[blocks.0]",),
}


class LateLink:
    """A link on which every copy is made at the last moment: when the device waits for it, and not before."""

    def __init__(self) -> None:
        self.pool = Pool(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))
        self.give = self.pool.give
        self.queue: list[Callable[[], None]] = []
        self.num_out = self.num_back = self.done = 0

    def out(self, data: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        buffer, source = self.pool.take(data.numel()), StorageWeakRef(data.untyped_storage())
        room = weak_view(buffer[: data.numel()].fill_(255))
        kept = weak_view(data)
        self.num_out += 1

        def copy() -> None:
            if not source.expired():  # else nobody needs what would be read
                room().copy_(kept())

        return buffer, self.queued(copy)

    def back(self, buffer: torch.Tensor, num_bytes: int) -> tuple[torch.Tensor, Mark]:
        data = torch.full((num_bytes,), 255, dtype=torch.uint8)
        self.num_back += 1
        mark = self.queued(lambda: data.copy_(buffer[:num_bytes]))
        self.pool.give(buffer)
        return data, mark

    def queued(self, copy: Callable[[], Any]) -> int:
        self.queue.append(copy)
        return len(self.queue)

    def wait(self, mark: Mark) -> None:
        while self.done < mark:
            self.queue[self.done]()
            self.done += 1


def weak_view(data: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A tensor on the same memory that does not keep it, as a pointer in a queued kernel does not."""
    reference = StorageWeakRef(data.untyped_storage())
    size, offset = data.size(), data.storage_offset()

    def view() -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        assert storage is not None
        return torch.empty(0, dtype=torch.uint8).set_(storage, offset, size, (1,))

    return view


def trained(model: str, *words: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of three updates, and the state after them."""
    torch._dynamo.reset()
    run = run_of(*tiny(model, *WITH_DROPOUT[model], *words))
    torch.manual_seed(1)
    return train_updates(run, 3), state_of(run)


ordinary = functools.cache(trained)


def assert_exact(model: str, words: tuple[str, ...], memory: str = "offload") -> None:
    plain = [word for word in words if not word.startswith("memory")]
    losses, state = ordinary(model, *plain)
    offloaded = trained(model, *plain, f"memory={memory}", *ALL, *[word for word in words if word.startswith("memory")])
    assert offloaded[0] == losses
    assert_same(offloaded[1], state)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateLink]:
    """The links that runs of this test make, all of them late."""
    made: list[LateLink] = []

    def make() -> LateLink:
        made.append(LateLink())
        return made[-1]

    monkeypatch.setattr(links, "HostLink", make)
    return made


@pytest.mark.parametrize("model", ["cnn", "gpt", "char_lstm", pytest.param("resnet", marks=SLOW)])
def test_equals_none_exactly(model: str, late: list[LateLink]) -> None:
    assert_exact(model, ())
    assert late[0].num_out > 10 and late[0].num_back > 10


def test_equals_none_exactly_when_copies_are_made_at_once() -> None:
    assert_exact("gpt", ())


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS)
def test_equals_none_exactly_beside(words: tuple[str, ...], late: list[LateLink]) -> None:
    assert_exact("gpt", words)


@pytest.mark.parametrize("kernels", [(), AOT], ids=["eager", "compiled"])
def test_equals_none_exactly_with_checkpoint(kernels: tuple[str, ...], late: list[LateLink]) -> None:
    assert_exact("cnn", kernels, memory="[checkpoint,offload]")


def saved_of(link: Any, module: nn.Module, **choice: Any) -> SavedTensors:
    values = {"min_bytes": 0, "fraction": 1.0, "in_flight_bytes": 0, **choice}
    return SavedTensors(link, Choice(**values), CPU, owned_by(module))


def deep(num_layers: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(num_layers) for layer in (nn.Linear(16, 16), nn.Tanh())))


def test_a_storage_goes_once_and_parameters_stay() -> None:
    """The output of a tanh is saved by it and by the next layer; every weight but the first is saved transposed."""
    module, link = deep(), LateLink()
    with saved_of(link, module).saving():
        output = module(torch.randn(4, 16))
    assert link.num_out == 1 + 6  # the input and six outputs
    output.sum().backward()
    assert link.num_back == 6  # the last one had not left yet


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_calls_back_ahead_within_the_window(copies: int) -> None:
    module, link = deep(), LateLink()
    size = 4 * 16 * 4
    held: list[int] = []
    forward = saved_of(link, module, in_flight_bytes=copies * size)
    for layer in module[1::2]:
        layer.register_full_backward_pre_hook(lambda *_: held.append(forward.coming_bytes // size))
    with forward.saving():
        output = module(torch.randn(4, 16))
    output.sum().backward()
    assert max(held) == copies and link.num_back == 7 - copies


def test_less_is_held_for_backward() -> None:
    module, batch = deep(), torch.randn(64, 16)
    forward = saved_of(HostLink(), module)
    with forward.saving():
        output = module(batch)
    entries = [reference() for reference in forward._order]
    held = [entry.index for entry in entries if entry is not None and entry.data is not None]
    assert held == [6] and len(entries) == 7  # the newest
    del entries
    output.sum().backward()
    assert forward.coming_bytes == 0 and all(reference() is None for reference in forward._order)


def test_memory_that_is_written_to_is_freed_after_that() -> None:
    """A tensor that was called ahead, and whose node never asked for it."""
    link = LateLink()
    forward = saved_of(link, nn.Identity(), in_flight_bytes=8)
    with forward.saving():
        saved = [forward._pack(torch.full((8,), float(number))) for number in range(3)]
    forward._unpack(saved.pop())
    assert link.num_back == 1 and link.done < len(link.queue)
    saved.clear()
    assert link.done == len(link.queue) and forward.coming_bytes == 0


def test_buffers_of_the_host_are_used_again() -> None:
    sizes: list[int] = []
    pool = Pool(lambda num_bytes: sizes.append(num_bytes) or torch.empty(num_bytes, dtype=torch.uint8))
    first, second = pool.take(100), pool.take(50)
    pool.give(first)
    pool.give(second)
    assert pool.take(40) is second and pool.take(40) is first and pool.take(40).numel() == 40
    assert sizes == [100, 50, 40]


def test_a_storage_that_is_written_between_two_saves_goes_twice() -> None:
    value, weight = torch.ones(8), torch.ones(8, requires_grad=True)
    with saved_of(LateLink(), nn.Identity()).saving():
        (weight * value).sum()  # never differentiated
        (weight * torch.zeros(8)).sum()  # the first content leaves the device
        value.add_(1)
        output = (weight * value).sum()
    output.backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 8


def test_views_keep_their_place() -> None:
    base, weight = torch.randn(6, 4), torch.randn(4, requires_grad=True)
    rows, columns = base[2:5], base.t()[1:3]
    module = nn.Identity()
    with saved_of(LateLink(), module).saving():
        total = (rows * weight).sum() + (columns * columns.shape[1] * weight[:2, None]).sum()
    total.backward()
    given = weight.grad
    weight.grad = None
    ((rows * weight).sum() + (columns * columns.shape[1] * weight[:2, None]).sum()).backward()
    assert torch.equal(given, weight.grad)


def test_other_tensors_stay() -> None:
    """Subclasses, small tensors and those of a fraction that stays are handed through."""
    packed: list[Any] = []
    module = deep(2)
    forward = saved_of(HostLink(), module, min_bytes=10**6)
    pack = forward._pack
    with saved_tensors_hooks(lambda tensor: packed.append(pack(tensor)) or packed[-1], forward._unpack):
        module(torch.randn(4, 16)).sum().backward()
    assert packed and all(isinstance(each, torch.Tensor) for each in packed)


@pytest.mark.parametrize(("fraction", "num_out"), [(1.0, 7), (0.5, 3), (0.29, 2)])
def test_a_fraction_of_the_bytes_goes(fraction: float, num_out: int) -> None:
    module, link = deep(), LateLink()
    with saved_of(link, module, fraction=fraction).saving():
        module(torch.randn(4, 16))
    assert link.num_out == num_out


def test_the_plan_says_what_it_is() -> None:
    described = plan_of("memory=offload", "memory.offload.fraction=0.5").describe()
    assert "FORWARD: 50% of saved tensors of at least 1 MiB wait in host memory" in described
    assert "notice        memory.offload: asked activations elsewhere, got copies that save nothing" in described


@pytest.mark.parametrize("word", ["fraction=1.5", "fraction=0", "min_mib=-1", "in_flight_mib=0"])
def test_a_value_out_of_range_is_an_error(word: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of("memory=offload", f"memory.offload.{word}")
    assert error.value.exit_code == 2
