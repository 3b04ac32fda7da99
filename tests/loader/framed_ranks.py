"""One process of test_framed: joins a gloo group, and takes a framed run to its end as a training loop would."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import framed_made
import headrace


def main(place: str, meeting: str, rank: str, world_size: str, samples: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world_size))
    run = framed_made.framed_run("singles", [Path(place)], samples=int(samples))
    loader = headrace.Loader(run, micro_batch_size=1, ranks=headrace.loader.Ranks(int(rank), int(world_size)))
    taken, state = [], None
    for micro_step, batch in enumerate(loader):
        # The gradients of a step; a collective of the loader in another order than on the other rank would stop both.
        total = torch.tensor([len(batch["unit_numbers"])])
        dist.all_reduce(total)
        taken.append((batch["unit_numbers"].tolist(), int(total)))
        if micro_step == 4:
            state = loader.gather_state_dict()
    print(json.dumps({"taken": taken, "state": state}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
# Libraries' threads have been seen to abort a process while the interpreter takes itself down.
os._exit(0)
