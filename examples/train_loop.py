"""Runs a training loop with checkpoints, stops in the middle, and resumes.

The loader's state is a position of some hundred bytes. It goes into the checkpoint with the model and the optimiser.
The next samples do not depend on how far the loader had read ahead.
"""

from __future__ import annotations

from pathlib import Path

import corpus
import torch

import headrace

STEPS, CHECKPOINT_EVERY = 30, 10


def train(folder: Path, *, stop_at: int) -> list[float]:
    """Train from the last checkpoint up to step ``stop_at``, and return the losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dataset = headrace.WindowDataset(headrace.open(folder / "small"), seq_len=64)
    run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=STEPS * 8)
    loader = headrace.Loader(run, micro_batch_size=8)

    checkpoint, recipe = folder / "checkpoint.pt", folder / "recipe.json"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"], recipe=recipe)
    else:
        loader.save_recipe(recipe)

    losses = []
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if loader.step % CHECKPOINT_EVERY == 0:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "checkpoint.tmp")
            (folder / "checkpoint.tmp").replace(checkpoint)  # the checkpoint is complete, or the previous one
        if loader.step == stop_at:
            break
    return losses


if __name__ == "__main__":
    place = corpus.make()
    first = train(place, stop_at=17)  # the checkpoint is of step 10
    second = train(place, stop_at=STEPS)
    print(f"steps 10 to 16 before the stop: {[round(loss, 4) for loss in first[10:]]}")
    print(f"steps 10 to 16 resumed:         {[round(loss, 4) for loss in second[:7]]}")
    print(f"loss at first {first[0]:.3f}, at last {second[-1]:.3f}")
