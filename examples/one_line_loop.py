"""One line of a plain torch loop is changed. It is killed within an epoch, and goes on as if nothing had happened."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch

from headrace import DataLoader  # before: from torch.utils.data import DataLoader

EPOCHS = 2


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset as people have it; its augmentation draws from Python's global generator."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random()])


def train(checkpoint: Path, *, stop_after: int | None = None) -> list[str]:
    """Train, and return what each batch was; stop after some batches, as a job that is killed."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True, num_workers=2)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if checkpoint.exists():
        for name, state in torch.load(checkpoint, weights_only=True).items():
            parts[name].load_state_dict(state)
    seen = []
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            loss = (model(batch[:, :1]) - batch[:, 1:]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(f"epoch {epoch}, samples {batch[:, 0].int().tolist()}, loss {loss.item():.4f}")
            torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
            if len(seen) == stop_after:
                return seen
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as folder:
        whole = train(Path(folder) / "whole.pt")
        first = train(Path(folder) / "killed.pt", stop_after=3)
        second = train(Path(folder) / "killed.pt")
        print("\n".join(second))
        print("the same as without the stop:", first + second == whole)
