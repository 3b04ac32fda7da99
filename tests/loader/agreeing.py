"""One process of test_ranks: joins a gloo group and loads a run that may differ from its peers'."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import headrace
from headrace.integrations.stateful import StatefulLoader


def main(store: str, meeting: str, rank: str, world_size: str, case: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world_size))
    seed = int(rank) if case == "recipe" else 0
    data = headrace.WindowDataset(headrace.open(store), seq_len=8)
    other = rank == "1"
    length = {
        "samples": {"samples": 160 if other else 240},
        "drop_last": {"samples": 245, "drop_last": other},
        "trainer's epochs": {"samples": 320},
    }.get(case, {})
    schedule = [(0, 8), (20, 16 if other and case == "schedule" else 8)]
    run = headrace.Run(data, global_batch_size=schedule, order=headrace.Order(seed=seed), **length)
    if case == "edit" and other:
        run = run.skip(range(20, 22))
    if case == "generation":
        run.generation = 4 + int(rank)
    ranks = headrace.loader.Ranks(int(rank), int(world_size))
    said: dict[str, object] = {}
    if case == "mesh":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        ranks = headrace.loader.Ranks.from_mesh(mesh, "dp")
        group = headrace.loader.Ranks.from_group(mesh.get_group("dp"))
        flat = headrace.loader.Ranks.from_mesh(mesh, "dp", "tp")
        said = {"mesh": [ranks.rank, ranks.world_size], "group": [group.rank, group.world_size]}
        said["flat"] = [flat.rank, flat.world_size]
        assert headrace.loader.Ranks.from_mesh(mesh) == ranks
        for name, dims, other in (("unknown", ("cp",), mesh), ("unnamed", (), init_device_mesh("cpu", (2, 2)))):
            try:
                headrace.loader.Ranks.from_mesh(other, *dims)
            except headrace.ConfigError as error:
                said[name] = str(error)
    if case == "detect":
        ranks = headrace.loader.Ranks.detect()
        said["detected"] = [ranks.rank, ranks.world_size]
        os.environ.update(RANK="1", WORLD_SIZE="3")
        try:
            headrace.loader.Ranks.detect()
        except headrace.ConfigError as error:
            said["contradiction"] = str(error)
    if case == "same rank":
        ranks = headrace.loader.Ranks(0, 2)
    if case == "world size":
        ranks = headrace.loader.Ranks(int(rank), 2 + int(rank))
    micro_batch_size = 2 + int(rank) if case == "micro-batch" else 2
    options: dict[str, Any] = {"metrics": headrace.Metrics()} if case == "verdict" else {}
    if case == "lengths":
        lengths = np.arange(len(data), dtype=np.int32 if other else np.int64) % 7
        lengths[run.lookup(np.array([90])).indices] = 9 if other else 8  # of a sample that the first step does not have
        options["balance"] = headrace.loader.Balance(lengths={"": lengths})
    if case == "cost":
        costs = (lambda lengths: lengths + 1) if other else (lambda lengths: lengths)
        options["balance"] = headrace.loader.Balance(cost=costs, lengths={"": np.arange(len(data)) % 7})
    if case == "dealing":
        options["dealing"] = headrace.Dealing(block="8KiB" if other else "4KiB")
    if case == "reading":
        options["reading"] = headrace.loader.Reading(num_threads=2 * other, prefetch=3 + other)
    if case == "restart":
        options["restart"] = other
    kind: Any = headrace.Loader
    if case == "trainer's epochs":
        kind, options["epochs"] = StatefulLoader, 2 if other else 4
    loader = kind(run, micro_batch_size=micro_batch_size, ranks=ranks, **options)
    if case == "position" and rank == "1":
        loader.start_at(8)
    said["rows"] = [batch["input_ids"].tolist() for batch in itertools.islice(loader, 3)]
    if case == "verdict":
        said["verdict"] = loader.gather_verdict()
    print(json.dumps(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
# Libraries' threads have been seen to abort a process while the interpreter takes itself down.
os._exit(0)
