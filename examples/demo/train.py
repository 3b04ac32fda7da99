"""One rank of the training: torch.distributed over gloo, gradients summed by hand, a checkpoint every few steps.

    RANK=0 WORLD_SIZE=2 python examples/demo/train.py demo first

Continues from the last checkpoint, if there is one. ``first`` is the name of the log. The log has one line for each
micro-batch, written before the gradients are computed, with the position and a hash of the token bytes of each sample.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import TinyModel, flat_gradients, set_flat_gradients
from proof import sample_hashes
from settings import Settings, make_run

import headrace

CHECKPOINT = "checkpoint.pt"
RECIPE = "recipe.json"


def main(folder: Path, life: str) -> None:
    parent = os.getppid()
    settings = Settings.load(folder)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=(folder / f"meeting-{life}").absolute().as_uri(), **env_ranks())
    model = TinyModel(settings.vocab_size, settings.seq_len, settings.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loader = headrace.Loader(make_run(folder, settings), micro_batch_size=settings.micro_batch_size)
    if (folder / CHECKPOINT).exists():
        saved = torch.load(folder / CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"], recipe=folder / RECIPE)
    elif dist.get_rank() == 0:
        loader.save_recipe(folder / RECIPE)

    num_labels = settings.global_batch_size * settings.seq_len
    step, loss = loader.step, torch.zeros(())
    with (folder / "logs" / f"{life}-rank-{dist.get_rank()}.jsonl").open("a", buffering=1) as log:
        for batch in loader:
            positions = batch.pop("sample_positions").tolist()
            hashes = sample_hashes(batch["input_ids"].numpy(), batch["labels"].numpy())
            log.write(json.dumps({"step": step, "positions": positions, "hashes": hashes}) + "\n")
            part = model(**batch) / num_labels
            part.backward()
            loss += part.detach()
            if loader.step == step:
                continue  # more micro-batches of this step are to come
            mean = take_step(model, optimizer, loss)
            if dist.get_rank() == 0:
                log.write(json.dumps({"step": step, "loss": mean}) + "\n")
            step, loss = loader.step, torch.zeros(())
            if dist.get_rank() == 0 and step % settings.checkpoint_every_steps == 0:
                save(folder / CHECKPOINT, model=model, optimizer=optimizer, loader=loader)
            if os.getppid() != parent:
                sys.exit("the demo has ended")
    dist.barrier()  # no rank leaves while another still needs it
    dist.destroy_process_group()


def env_ranks() -> dict[str, int]:
    return {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def take_step(model: TinyModel, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """Sum gradients and loss over the ranks, update the model, and return the loss of the whole step."""
    flat = torch.cat([flat_gradients(model), loss.view(1)])
    dist.all_reduce(flat)
    set_flat_gradients(model, flat[:-1])
    optimizer.step()
    optimizer.zero_grad()
    return float(flat[-1])


def save(path: Path, **parts: Any) -> None:
    """Write the checkpoint under another name first, so that the file is always a complete checkpoint."""
    temporary = path.with_suffix(".tmp")
    torch.save({name: part.state_dict() for name, part in parts.items()}, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    # Everything is written. Threads of libraries have been seen to abort a process while the interpreter shuts down.
    os._exit(0)
