"""One process of test_data_loader_kills: trains with `headrace.DataLoader` in Lightning's Trainer.

It says what each micro-step was fed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace import DataLoader

STEP, BATCH, EPOCHS, SAMPLES = 12, 2, 2, 38


class Augmented(torch.utils.data.Dataset[dict[str, Any]]):
    """A data set of torch's, with a random number in each sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"number": number, "x": torch.full((4,), random.random())}


def loader_of(kind: str, folder: Path, num_workers: int, **options: Any) -> DataLoader:
    """The loader of a rank; the test iterates one of its own. Random numbers are those of the sample, on any rank."""
    if kind == "torch":
        data: Any = Augmented()
    else:
        import datasets

        data = datasets.load_from_disk(str(folder / "rows")).with_format("torch")
    return DataLoader(
        data,
        BATCH,
        shuffle=True,
        num_workers=num_workers,
        global_batch_size=STEP,
        seeded="sample" if kind == "torch" else "batch",
        seed=5,
        **options,
    )


def words(batch: dict[str, Any]) -> list[Any]:
    return [[number, row[0]] for number, row in zip(batch["number"].tolist(), batch["x"].tolist(), strict=True)]


class Said:
    """What this process tells the test; after so many micro-steps it kills itself."""

    def __init__(self, folder: Path, killed_at: int) -> None:
        rank = os.environ["RANK"]
        self.file = (folder / f"said-{rank}.{len(list(folder.glob('said-*')))}").open("w")
        self.left = killed_at

    def say(self, epoch: int, step: int, batch: dict[str, Any]) -> None:
        print(json.dumps([epoch, step, words(batch)]), file=self.file, flush=True)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer(loader: DataLoader, folder: Path, said: Said, *, is_exact: bool) -> None:
    """Lightning takes the loader as it is: it is none of torch's, so no sampler is put into it."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
            assert self.trainer.train_dataloader is loader
            said.say(self.current_epoch, self.global_step - 4 * self.current_epoch, batch)
            found: torch.Tensor = self.layer(batch["x"]).sum()
            return found

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saved = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    world_size = loader.ranks.world_size
    trained = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=EPOCHS,
        accumulate_grad_batches=loader.accumulation_steps,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    if is_exact:
        headrace.exact(trained)
    trained.fit(Model(), loader, ckpt_path=str(saved[-1]) if saved else None)
    assert loader.account().given == EPOCHS * SAMPLES


def main(how: str, kind: str, folder: str, num_workers: str, killed_at: str, **variables: str) -> None:
    os.environ.update(variables)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place = Path(folder)
    loader = loader_of(kind, place, int(num_workers))
    trainer(loader, place, Said(place, int(killed_at)), is_exact=how == "exact")


if __name__ == "__main__":
    main(*sys.argv[1:6], **json.loads(sys.argv[6]))
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
