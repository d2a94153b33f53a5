"""Other frameworks' own loops over the MLP, each in a process of its own: one line of JSON.

python -m benchmarks.gpu.frameworks NAME
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.gpu.loops import DEVICE, mlp_module

NUM_UPDATES, WARM_UP, BATCH_SIZE = 1500, 200, 256


class Batches(IterableDataset[Any]):
    """One batch that lies on the card, again and again."""

    def __init__(self) -> None:
        self._batch = (
            torch.randn(BATCH_SIZE, 784, device=DEVICE),
            torch.randint(0, 10, (BATCH_SIZE,), device=DEVICE),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([self._batch] * NUM_UPDATES)


def mlp_lightning() -> float:
    """Seconds of the updates after warm-up, with progress bar and logger as by default."""
    import lightning  # pyright: ignore[reportMissingImports]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.begin = mlp_module(), 0.0

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == WARM_UP:
                torch.cuda.synchronize()
                self.begin = time.perf_counter()
            loss = functional.cross_entropy(self.module(batch[0]), batch[1])
            self.log("train/loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3, fused=True)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, enable_checkpointing=False,
        default_root_dir=tempfile.mkdtemp(),
    )  # fmt: skip
    trainer.fit(module, DataLoader(Batches(), batch_size=None))
    torch.cuda.synchronize()
    return time.perf_counter() - module.begin


def mlp_accelerate() -> float:
    """Seconds of the updates after warm-up."""
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator, begin = Accelerator(mixed_precision="bf16"), 0.0
    module = mlp_module()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, fused=True)
    module, optimizer, loader = accelerator.prepare(module, optimizer, DataLoader(Batches(), batch_size=None))
    for index, (inputs, targets) in enumerate(loader):
        if index == WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = functional.cross_entropy(module(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


FRAMEWORKS = {"mlp_lightning": mlp_lightning, "mlp_accelerate": mlp_accelerate}

if __name__ == "__main__":
    seconds = FRAMEWORKS[sys.argv[1]]()
    num_updates = NUM_UPDATES - WARM_UP
    print()
    print(json.dumps({"items_per_s": num_updates * BATCH_SIZE / seconds, "step_time_ms": seconds / num_updates * 1000}))
