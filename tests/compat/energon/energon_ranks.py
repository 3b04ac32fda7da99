"""One process of test_energon_face_framed: joins a gloo group, and hands the state of a run from rank to rank."""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import framed_encoders
from columned import get_loader
from headrace.compat.energon import EnergonLoader, WorkerConfig, get_train_dataset


def loader_of(root: str, rank: int, batch_size: int) -> EnergonLoader:
    config = WorkerConfig(rank, 2, 0, dist.group.WORLD, agree=True)
    given: Any = {"task_encoder": framed_encoders.Packed(), "packing_buffer_size": 6, "num_lanes": 12}
    return get_loader(get_train_dataset(root, worker_config=config, batch_size=batch_size, **given))


def main(root: str, meeting: str, rank: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    loader = loader_of(root, int(rank), 2)
    before = [batch["unit_numbers"].tolist() for batch in islice(loader, 5)]
    state = loader.save_state_global(1)
    assert (state is None) == (rank == "0")
    other = loader_of(root, int(rank), 3)
    other.restore_state_global(state, src_rank=1)
    after = [(batch["unit_numbers"].tolist(), batch["n"]) for batch in islice(other, 4)]
    assert other.save_state_global(0) is None or rank == "0"
    print(json.dumps({"before": before, "after": after}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
# Libraries' threads have been seen to abort a process while the interpreter takes itself down.
os._exit(0)
