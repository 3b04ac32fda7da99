"""One process of test_lightning: a loop of its own with Fabric, as docs/integrations/lightning.md shows it."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

import headrace

SEQ_LEN = 8


def main(store: str, folder: str, samples: str, _epochs: str, accumulate: str, killed_at: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place, world_size = Path(folder), int(os.environ["WORLD_SIZE"])
    dataset = headrace.WindowDataset.open(store, seq_len=SEQ_LEN)
    run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=int(samples))
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy="ddp" if world_size > 1 else "auto")
    fabric.launch()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(2**16, 4), torch.nn.Linear(4, 2**16))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=5.0))
    loader = headrace.Loader(
        run, micro_batch_size=2, ranks=headrace.loader.Ranks(fabric.global_rank, fabric.world_size)
    )
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if (place / "checkpoint.ckpt").exists():
        fabric.load(place / "checkpoint.ckpt", state)
    left = int(killed_at)
    with (place / f"said-{fabric.global_rank}.{len(list(place.glob('said-*')))}").open("w") as said:
        micro_steps = 0
        for batch in loader:
            step = run.schedule.step_of(loader.position - 1)
            batch = fabric.to_device(batch)
            logits = model(batch["input_ids"])
            loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
            print(
                json.dumps(["train", 0, step, batch["sample_positions"].tolist(), loss.item()]), file=said, flush=True
            )
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            fabric.backward(loss / (len(run.positions(step)) * SEQ_LEN) * fabric.world_size)
            micro_steps += 1
            if micro_steps % int(accumulate) and loader.position != run.length:
                continue
            optimizer.step()
            optimizer.zero_grad()
            fabric.save(place / "next.ckpt", state)
            fabric.barrier()
            if fabric.global_rank == 0:
                (place / "next.ckpt").replace(place / "checkpoint.ckpt")
            fabric.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
