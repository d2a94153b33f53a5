"""A sound plugin for tests, and the means to take it back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer4090 import paths, plugin_modules
from trainer4090.parse import REGISTRIES
from trainer4090.plugins import loading

SOUND = '''\
from dataclasses import dataclass

import torch
from torch import nn

from trainer4090.extend import *


class Net(nn.Module):
    def __init__(self, num_inputs, width, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(num_inputs, width), nn.Sequential(nn.Linear(width, width), nn.ReLU()))
        self.head = nn.Linear(width, num_outputs)

    def forward(self, inputs):
        return self.head(self.body(inputs.flatten(1)))


@dataclass(frozen=True)
class Config:
    width: int = 8
    drop: Probability = 0.0


@MODELS.register("net", Config)
def net(config, data):
    """My network."""
    return Model(Net(torch.Size(data.item_shape).numel(), config.width, data.num_classes), ("body.0", "body.1"))


@dataclass(frozen=True)
class MarginConfig:
    margin: float = 1.0


@LOSSES.register("margin", MarginConfig)
def margin(config, data):
    """My loss."""

    def losses(outputs, targets):
        true = outputs.gather(-1, targets[..., None])
        return (outputs - true + config.margin).relu().mean(-1)

    return per_target(losses)


@dataclass(frozen=True)
class RingsConfig:
    size: int = 96
    num_workers: int = 0


class Rings:
    """A source of this file: worker processes must find its class."""

    def __init__(self, size, seed):
        self.points = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.points)

    def fetch(self, indices, epoch):
        return self.points[indices], self.targets(indices, epoch)

    def targets(self, indices, epoch):
        return (self.points[indices].norm(dim=-1) > 1).long()

    def resident(self, device):
        return self


@DATA.register("rings", RingsConfig)
def rings(config, seed):
    """Points in two rings."""
    return Data(Rings(config.size, seed), Rings(32, seed + 1))


@dataclass(frozen=True)
class NadamConfig:
    lr: PositiveFloat = 0.01


@OPTIMIZERS.register("nadam", NadamConfig)
def nadam(config):
    """Adam with Nesterov momentum."""
    return Optimizer(config.lr, 0.0, lambda groups, fused: torch.optim.NAdam(groups))


@dataclass(frozen=True)
class StraightConfig:
    end: Fraction = 0.0


@SCHEDULES.register("straight", StraightConfig)
def straight(config):
    """Straight down."""
    return Schedule(lambda update, horizon: 1 - (1 - config.end) * update / horizon.total, needs_total=True)
'''
WORDS = ("plugin=./mine.py", "data=rings", "model=net", "loss=margin", "optimizer=nadam", "schedule=straight")
RUN = (*WORDS, "device=cpu", "run.dir=run", "train.batch_size=16", "train.epochs=null", "train.steps=20")


def line_of(text: str, source: str = SOUND) -> str:
    """`./mine.py:N` of the first line of a source that holds a text."""
    number = next(number for number, line in enumerate(source.splitlines(), 1) if text in line)
    return f"./mine.py:{number}"


@contextmanager
def isolated() -> Iterator[None]:
    """Take back every plugin that is loaded inside the block."""
    entries = {group: registry.entries() for group, registry in REGISTRIES.items()}
    modules, options, offered, path = set(sys.modules), dict(loading._options), paths.of_plugins(), list(sys.path)
    known = [plugin.module for plugin in plugin_modules.loaded()]
    try:
        yield
    finally:
        for group, registry in REGISTRIES.items():
            registry.put(entries[group])
        for plugin in plugin_modules.loaded():
            if plugin.module not in known:
                plugin_modules.drop(plugin.module)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).is_relative_to(Path.cwd()):
                del sys.modules[name]
        loading._options.clear()
        loading._options.update(options)
        paths.put_of_plugins(offered)
        sys.path[:] = path
