"""The loops that one would write by hand, at their best: one process each, one line of JSON.

python -m benchmarks.gpu.loops NAME
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda")
WARM_UP = 11
Update = Callable[[], torch.Tensor]
"""Makes one update and returns its loss."""


def captured(update: Update, optimizer: torch.optim.Optimizer) -> Update:
    """The update as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = update()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def mlp_module() -> nn.Module:
    """The network of the row `mlp`."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    )


def mlp_captured() -> tuple[Update, int]:
    """Eager kernels, captured; the batch is copied to where the graph reads it."""
    module = mlp_module().to(DEVICE)
    inputs, given = (torch.randn(256, 784, device=DEVICE) for _ in range(2))
    targets = torch.randint(0, 10, (256,), device=DEVICE)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, fused=True, capturable=True)

    def update() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    replay = captured(update, optimizer)

    def fed() -> torch.Tensor:
        inputs.copy_(given)
        return replay()

    return fed, 256


class LSTM(nn.Module):
    """Embedding, one recurrent layer, head."""

    def __init__(self, width: int = 256, vocab_size: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.enter = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width, bias=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        projected = self.enter(self.embedding(tokens).transpose(0, 1))
        hidden = memory = projected.new_zeros(len(tokens), self.recurrent.in_features)
        outputs = []
        for step in projected.unbind(0):
            enter, keep, candidate, leave = (step + self.recurrent(hidden)).chunk(4, dim=-1)
            memory = keep.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * memory.tanh()
            outputs.append(hidden)
        return self.head(torch.stack(outputs, dim=1))


def lstm_captured() -> tuple[Update, int]:
    """Eager kernels, captured."""
    module = LSTM().to(DEVICE)
    tokens = torch.randint(0, 128, (64, 128), device=DEVICE)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, fused=True, capturable=True)

    def update() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return captured(update, optimizer), tokens.numel()


def resnet50_update(batch_size: int, compiled: bool, cache_casts: bool) -> tuple[Update, torch.optim.Optimizer]:
    """fp16 with torch's scaler, channels_last, fused SGD; `cache_casts`: which a captured update cannot have."""
    torch.backends.cudnn.benchmark = True
    module = torchvision.models.resnet50().to(DEVICE)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = torch.randn(batch_size, 3, 224, 224, device=DEVICE).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(0, 1000, (batch_size,), device=DEVICE)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    for parameter in module.parameters():
        # The first update overflows at the scaler's first scale and is skipped; torch then goes on with the momentum
        # that it has not initialised, and trains NaN: 586 W instead of 690 W on an H200, and 4 % faster for it.
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    scaler = torch.amp.GradScaler("cuda")
    forward = torch.compile(module) if compiled else module

    def update() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=cache_casts):
            loss = functional.cross_entropy(forward(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return update, optimizer


def resnet50(batch_size: int, best: bool) -> tuple[Update, int]:
    """`best`: compiled and captured, eager otherwise."""
    update, optimizer = resnet50_update(batch_size, compiled=best, cache_casts=not best)
    return (captured(update, optimizer) if best else update), batch_size


def gpt2_captured(batch_size: int) -> tuple[Update, int]:
    """bf16, model and loss compiled together, captured."""
    from trainer4090.models.networks.gpt import GPT, Shape  # a network is no loop; attention is torch's own

    shape = Shape(12, 12, 768, 1024, 50304, 0.0, bias=True, tie=True)
    module = GPT(shape).to(DEVICE)
    tokens, targets = (torch.randint(0, 50257, (batch_size, 1024), device=DEVICE) for _ in range(2))
    rate = torch.tensor(6e-4, device=DEVICE)
    optimizer = torch.optim.AdamW(module.parameters(), rate, fused=True, capturable=True)

    @torch.compile
    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())

    def update() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return captured(update, optimizer), tokens.numel()


LOOPS: dict[str, Callable[[], tuple[Update, int]]] = {
    "mlp_captured": mlp_captured,
    "lstm_captured": lstm_captured,
    "resnet50_eager_32": partial(resnet50, 32, False),
    **{f"resnet50_captured_{size}": partial(resnet50, size, True) for size in (32, 256, 512)},
    **{f"gpt2_captured_{size}": partial(gpt2_captured, size) for size in (16, 64)},
}


def measured(update: Update, num_items: int, window_s: float = 1.5, num_windows: int = 5) -> dict[str, float]:
    """Items a second, the median of windows by the clock; the time of a whole window, so nothing hides between updates.

    Raises:
        RuntimeError: the loop has trained NaN, whose speed says nothing.
    """
    for _ in range(WARM_UP):
        update()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(WARM_UP):
        update()
    torch.cuda.synchronize()
    num_updates = max(5, int(window_s * WARM_UP / (time.perf_counter() - begin)))
    rates = []
    for _ in range(num_windows):
        begin = time.perf_counter()
        for _ in range(num_updates):
            loss = update()
        torch.cuda.synchronize()
        rates.append(num_items * num_updates / (time.perf_counter() - begin))
    if not loss.isfinite():
        raise RuntimeError(f"the loop has trained to a loss of {float(loss)}: its speed says nothing")
    rate = statistics.median(rates)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return {"items_per_s": rate, "step_time_ms": num_items / rate * 1000, "peak_gib": peak, "loss": float(loss)}


if __name__ == "__main__":
    print(json.dumps(measured(*LOOPS[sys.argv[1]]())))
