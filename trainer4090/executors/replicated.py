"""A share of every update: this rank's micro-batches, and gradients averaged over all ranks.

The batch is cut into micro-batches before it is cut into shares, so an update is the same on one rank that makes all of
them and on several that make some each, dropout included: what a micro-batch draws is a function of its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch.nn.parallel import DistributedDataParallel

from trainer4090.beats import COMPUTES, EXCHANGES
from trainer4090.data.pipeline.hashing import key
from trainer4090.errors import ConfigError, Problem
from trainer4090.executors.base import StepOutput
from trainer4090.executors.buffers import SharedBuffers
from trainer4090.executors.local import LocalExecutor, micro_batches
from trainer4090.executors.update import Update
from trainer4090.ranks import Ranks
from trainer4090.records import Batch, Batching, Loss, Whole

_DROPOUT_STREAM = 11
_UNUSED = "did not receive grad for rank"


@final
class ReplicatedExecutor:
    """Runs updates of which other ranks make the other parts; all but the exchange is the local executor's."""

    def __init__(
        self,
        local: LocalExecutor,
        loss: Loss,
        update: Update,
        entry: torch.nn.Module | None,
        ranks: Ranks,
        batching: Batching,
        seed: int,
    ) -> None:
        """`loss` and `update` are those that `local` was made with. `entry`: wrapper of its module, None alone."""
        self.forward = local.forward
        self.average = local.average
        self._local = local
        self._loss = loss
        self._update = update
        self._entry = entry
        self._ranks = ranks
        self._batching = batching
        self._seed = seed
        self._buffers = SharedBuffers(local.forward.module, ranks)
        self._parameters = [each for each in local.forward.module.parameters() if each.requires_grad]
        self._sizes: set[int] = set()
        self._exchanged = False

    def step(self, batch: Batch, observe: bool) -> StepOutput:
        """Make one update from the samples of `batch`, this rank's share, and those of the other ranks.

        Raises:
            ConfigError: a trained parameter gets no gradient.
        """
        assert batch.whole is not None
        slow = batch.whole.num_samples not in self._sizes  # compiled, or its kernels chosen, for this size
        self._sizes.add(batch.whole.num_samples)
        self._local.release_gradients()
        self._buffers.remember()
        divisor = max(batch.num_targets, 1)
        loss_sums = self._gradients_of(batch, batch.whole, divisor, slow)
        self._buffers.exchange()
        if observe:
            loss_sums = (self._total(loss_sums),)
        return self._local.finish(loss_sums, divisor, observe)

    def _gradients_of(self, batch: Batch, whole: Whole, divisor: int, slow: bool) -> tuple[torch.Tensor, ...]:
        """Leave the mean over ranks of all gradients in the parameters; sums of losses of this rank's micro-batches."""
        batching, rank = self._batching, self._ranks.rank
        some_idle = whole.num_samples <= (self._ranks.size - 1) * batching.micro_batch * batching.accumulation
        parts = list(self._micro_batches(batch))
        loss_sums = []
        for number, (inputs, targets) in enumerate(parts):
            reduces = number == len(parts) - 1 and not some_idle
            self._ranks.mark(COMPUTES + number, slow)
            _draw(key(self._seed, _DROPOUT_STREAM, whole.epoch, whole.begin, rank * batching.accumulation + number))
            with self._no_exchange() if not reduces else nullcontext():
                # Even without an exchange DDP's forward may talk to the other ranks, and one of them makes none.
                outputs = self.forward(inputs) if some_idle else self._outputs(inputs)
                total = self._loss.total(outputs, targets)
                if reduces:
                    self._ranks.mark(EXCHANGES, slow)
                # The average over ranks divides by their number.
                total.backward(self._update.seed(total, divisor) * self._ranks.size)
            self._exchanged |= not some_idle
            loss_sums.append(total.detach())
        if some_idle:
            self._ranks.mark(EXCHANGES, slow)
            average(self._parameters, self._ranks)
        return tuple(loss_sums)

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Any, torch.Tensor]]:
        if not len(batch.targets):
            return
        inputs, targets = self.forward.staged(batch)
        yield from micro_batches(self.forward.prepare(inputs), targets, self._batching.micro_batch)

    def _outputs(self, inputs: Any) -> torch.Tensor:
        if self._entry is None:
            return self.forward(inputs)
        try:
            with self.forward.context():
                return self._entry(inputs)
        except RuntimeError as error:
            if _UNUSED not in str(error):
                raise
            raise without_gradient(self.forward.module, self._ranks.rank, str(error)) from error

    def _no_exchange(self) -> AbstractContextManager[None]:
        entry = self._entry
        if not isinstance(entry, DistributedDataParallel) or (entry.static_graph and not self._exchanged):
            return nullcontext()  # a static graph is learnt in the first backward, which has to be exchanged
        return entry.no_sync()

    def _total(self, loss_sums: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """0-dim; the sum of losses over all ranks."""
        dtype = next(self.forward.module.parameters()).dtype
        zero = torch.zeros((), dtype=dtype, device=self.forward.device)
        total = torch.stack(loss_sums).sum() if loss_sums else zero
        self._ranks.add_up(total)
        return total

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, averaged parameters where there are some, and no gradients inside the block."""
        return self._local.evaluating()

    def state_dict(self) -> dict[str, Any]:
        """As the local executor's, and the same on every rank."""
        return self._local.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; tensors are copied to where the model is."""
        self._local.load_state_dict(state)


def without_gradient(module: torch.nn.Module, rank: int, text: str) -> ConfigError:
    """The error of parameters that the update before has left without a gradient; torch's `text` numbers them."""
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    numbers = re.findall(r"\d+", text.partition(f"{_UNUSED} {rank}: ")[2].partition("\n")[0])
    names = ", ".join(trained[int(number)] for number in numbers) or "some parameters"
    given = f"the loss of rank {rank} did not depend on {names} in the update before"
    return ConfigError(Problem("model", given, "use these parameters in every forward, or remove them"))


def average(parameters: Sequence[torch.Tensor], ranks: Ranks) -> None:
    """Average gradients as DDP does, in an update in which a rank has no samples: DDP waits for every backward."""
    for parameter in parameters if ranks.size > 1 else ():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        ranks.add_up(gradient)
        parameter.grad = gradient.div_(ranks.size)


def _draw(seed: int) -> None:
    """Let what is drawn from now on, dropout for one, follow from `seed`."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
