"""Give a trainer that was written for torchdata's StatefulDataLoader its batches: two epochs, stopped and resumed."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import corpus
import torch

import headrace
from headrace.integrations.stateful import StatefulLoader

EPOCHS = 2


class Trainer:
    """It counts its epochs by steps, and keeps the state of its loader after each step, as verl's trainers do."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.steps, self.saved, self.seen = loader, 0, io.BytesIO(), list[str]()

    def resume(self, saved: io.BytesIO) -> None:
        state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
        self.steps = state["steps"]
        self.loader.load_state_dict(state["loader"])

    def fit(self, last: int) -> None:
        for epoch in range(self.steps // len(self.loader), EPOCHS):
            for prompts in self.loader:
                self.seen.append(f"epoch {epoch}: {prompts}")
                self.steps += 1
                self.saved = io.BytesIO()
                torch.save({"steps": self.steps, "loader": self.loader.state_dict()}, self.saved)
                if self.steps == last:
                    return


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    corpus.make(folder)
    run = headrace.Run(headrace.WindowDataset.open(folder / "small", seq_len=64), global_batch_size=4, samples=24)
    options: dict[str, Any] = {"micro_batch_size": 4, "epochs": EPOCHS}
    options["collate_fn"] = lambda batch: batch["sample_positions"].tolist()  # what this trainer takes
    first = Trainer(StatefulLoader(run, **options))
    first.fit(last=3)  # all of its first epoch
    second = Trainer(StatefulLoader(run, **options))
    second.resume(first.saved)
    second.fit(last=100)
    print(f"{len(first.loader)} batches in each of {EPOCHS} epochs; then, after a restart at the end of the first:")
    print("\n".join(second.seen))


if __name__ == "__main__":
    main()
