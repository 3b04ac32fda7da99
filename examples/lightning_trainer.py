"""Train with Lightning's Trainer, stop, and go on from its checkpoint with other micro-batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import corpus
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import cross_entropy

import headrace
from headrace.integrations.lightning import HeadraceDataModule


class Bigrams(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000))
        self.losses: list[float] = []
        self.fed: list[int] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = cross_entropy(self.layers(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        self.losses.append(loss.item())
        self.fed += batch["sample_positions"].tolist()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    corpus.make(folder)
    run = headrace.Run(headrace.WindowDataset.open(folder / "small", seq_len=64), global_batch_size=8, samples=320)
    options = {"accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 2, "enable_progress_bar": False}

    first = Bigrams()
    trainer = Trainer(accumulate_grad_batches=2, max_steps=15, enable_checkpointing=False, **options)
    trainer.fit(first, datamodule=HeadraceDataModule(run, micro_batch_size=4))
    trainer.save_checkpoint(folder / "step-15.ckpt")

    # The micro-batch size, and the number of processes, may be others.
    second = Bigrams()
    trainer = Trainer(accumulate_grad_batches=4, enable_checkpointing=False, **options)
    trainer.fit(second, datamodule=HeadraceDataModule(run, micro_batch_size=2), ckpt_path=folder / "step-15.ckpt")

    print(f"the first fed {len(first.fed)} samples, the second went on at {second.fed[0]}, to {second.fed[-1]}")
    assert first.fed + second.fed == list(range(320))
    print(f"loss at first {first.losses[0]:.3f}, at last {second.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
