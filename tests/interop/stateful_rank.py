"""One process of test_stateful: a trainer that uses its loader as verl's SFT trainer does, with a tiny model."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import headrace
from headrace.integrations.stateful import StatefulLoader

EPOCHS = 2


def main(store: str, folder: str, meeting: str, killed_at: str) -> None:
    torch.set_num_threads(1)
    rank, world_size, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    data = headrace.WindowDataset.open(store, seq_len=8)
    run = headrace.Run(data, global_batch_size=8, order=headrace.Order(seed=1), samples=80)
    accumulated = 2
    loader = StatefulLoader(run, micro_batch_size=8 // accumulated // world_size, epochs=EPOCHS)
    table = torch.zeros(2**16, requires_grad=True)
    checkpoint, micro_step = place / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        micro_step, table = saved["micro_step"], saved["table"].requires_grad_()
        loader.load_state_dict(saved["loader"])
    said = (place / f"said-{rank}.{len(list(place.glob('said-*')))}").open("w")
    left = int(killed_at)
    for epoch in range(micro_step // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            step, micro_step = micro_step // accumulated, micro_step + 1
            loss = ((table[batch["input_ids"]] - batch["labels"] / 2**16) ** 2).sum()
            loss.backward()
            print(json.dumps([step, epoch, batch["sample_positions"].tolist(), loss.item()]), file=said, flush=True)
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            if micro_step % accumulated:
                continue
            dist.all_reduce(table.grad)
            table = (table.detach() - 0.1 * table.grad).requires_grad_()
            if rank == 0:
                kept = {"micro_step": micro_step, "table": table.detach(), "loader": loader.state_dict()}
                torch.save(kept, place / "next")
                (place / "next").replace(checkpoint)
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
