"""One process of test_lightning: trains a tiny model with Lightning's Trainer, and says what each step was fed.

With TENSOR_PARALLEL, its `ModelParallelStrategy` makes groups of so many tensor-parallel peers, and of these the
data-parallel ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

import headrace
from headrace.integrations.lightning import HeadraceDataModule

SEQ_LEN = 8


class Model(LightningModule):
    """Bigrams."""

    def __init__(self, data: HeadraceDataModule, said: Any, killed_at: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Embedding(2**16, 4), torch.nn.Linear(4, 2**16))
        self.data, self.said, self.left = data, said, killed_at

    def configure_model(self) -> None:
        mesh = getattr(self, "device_mesh", None)
        if mesh is None:
            return
        if mesh["tensor_parallel"].size() > 1:
            plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(output_layouts=Replicate())}
            parallelize_module(self.layers, mesh["tensor_parallel"], plan)
        if mesh["data_parallel"].size() > 1:
            fully_shard(self.layers, mesh=mesh["data_parallel"])
            # All that gloo can do is to add.
            self.layers.set_force_sum_reduction_for_comms(True)

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.layers(batch["input_ids"])
        return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        run, positions = self.data.run, batch["sample_positions"].tolist()
        # The last micro-batch of an uneven step may be empty on this rank.
        step = self.global_step
        loss = self.loss(batch)
        self.say("train", self.current_epoch, step, positions, loss.item())
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = len(run.positions(step)) * SEQ_LEN
        return loss / tokens * self.data.loss_scale

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.say("validation", self.current_epoch, 0, batch["sample_positions"].tolist(), self.loss(batch).item())

    def say(self, *values: Any) -> None:
        mesh = getattr(self, "device_mesh", None)
        if mesh is None or mesh["tensor_parallel"].get_local_rank() == 0:
            print(json.dumps(values), file=self.said, flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=5.0)


def main(store: str, folder: str, samples: str, epochs: str, accumulate: str, killed_at: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place, world_size = Path(folder), int(os.environ["WORLD_SIZE"])
    dataset = headrace.WindowDataset.open(store, seq_len=SEQ_LEN)
    run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=int(samples))
    held_out = headrace.Run(dataset, global_batch_size=4, order=headrace.Order(kind="none"), samples=5)
    data = HeadraceDataModule(run, micro_batch_size=2, validation=held_out)
    strategy: Any = "ddp" if world_size > 1 else "auto"
    if peers := int(os.environ.get("TENSOR_PARALLEL", "0")):
        strategy = ModelParallelStrategy(data_parallel_size=world_size // peers, tensor_parallel_size=peers)
    saved = sorted(place.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    with (place / f"said-{os.environ['RANK']}.{len(list(place.glob('said-*')))}").open("w") as said:
        trainer = Trainer(
            accelerator="cpu",
            devices=world_size,
            strategy=strategy,
            max_epochs=int(epochs),
            accumulate_grad_batches=int(accumulate),
            callbacks=[ModelCheckpoint(place, every_n_train_steps=2, save_top_k=-1)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(Model(data, said, int(killed_at)), datamodule=data, ckpt_path=str(saved[-1]) if saved else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
