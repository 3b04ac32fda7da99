"""Data-parallel training: torchrun --standalone --nproc-per-node 2 examples/torchrun_ddp.py

Each rank gets its part of every global batch. Neither the number of ranks nor the micro-batch size is part of the run,
so another number of ranks trains on the same samples in the same steps.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import corpus
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import headrace

STEPS = 10


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    ranks = headrace.loader.Ranks.from_mesh(mesh, "dp")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()) / f"headrace-{dist.get_world_size()}"
    if ranks.rank == 0 and not folder.exists():
        corpus.make(folder)
    dist.barrier()

    dataset = headrace.WindowDataset(headrace.open(folder / "small"), seq_len=64)
    run = headrace.Run(dataset, global_batch_size=12, samples=12 * STEPS)
    loader = headrace.Loader(run, micro_batch_size=2, ranks=ranks, uneven="refuse")

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 1000)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    micro_batches = len(loader) // STEPS
    step = loader.step
    for batch in loader:
        logits = model(batch["input_ids"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) / micro_batches
        loss.backward()
        if loader.step == step:
            continue  # more micro-batches of this step are to come
        optimizer.step()
        optimizer.zero_grad()
        step = loader.step
    print(f"rank {ranks.rank} of {ranks.world_size}: {len(loader)} micro-batches in {step} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # torch's threads have been seen to abort a rank while the interpreter shuts down
