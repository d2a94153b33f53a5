"""An optimizer for tests in which one rank comes to harm. Loaded as a plugin."""

import operator
import os
import signal
import time
from dataclasses import dataclass

import torch

from trainer4090.extend import OPTIMIZERS, Optimizer


@dataclass(frozen=True)
class Config:
    fault: str = "none"
    at_rank: int = 1
    at_update: int = 5


def harm(fault: str, parameter: torch.Tensor) -> None:
    if fault == "raise":  # in the next backward, outside of this plugin: what a plugin raises has a code of its own
        parameter.register_hook(operator.index)
        return
    if fault == "exit":
        os._exit(0)
    if fault == "hang":
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)


@OPTIMIZERS.register("faulty", Config)
def faulty(config: Config) -> Optimizer:
    """SGD until a rank comes to harm."""
    return Optimizer(0.1, 0.0, build=lambda groups, fused: Faulty(groups, config))


class Faulty(torch.optim.SGD):
    def __init__(self, groups: list, config: Config) -> None:
        super().__init__(groups, lr=0.1)
        self.config, self.num_steps = config, 0

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        self.num_steps += 1
        here = int(os.environ.get("RANK", 0)) == self.config.at_rank
        if here and self.num_steps == self.config.at_update and self.config.fault != "none":
            harm(self.config.fault, self.param_groups[0]["params"][0])
        return super().step(closure)
