"""The cache of a node: hit rates of a loader beside those of Belady's policy, LRU and FIFO, and what dealing saves.

    python benchmarks/cache.py [--quick]

Windows of 2 KiB over a file of blocks of 16 KiB are read for three epochs, through caches of 10, 25 and 50 % of it.
``loader`` is what a loader with `headrace.Cache` found in the cache, step by step; the others are simulated on the same
reads. These come one after another in the simulation and all at once in the loader, so that the two differ a little
where a cache has room for few more blocks than a step reads. ``fetched`` is the bytes that left the store over those
that the samples use. Nothing here depends on time; the caches are in memory, where there is room.

The second table is a simulation of nodes with 64 samples of a step each: the part of the samples that is read by
another node than the home of its block, with dealing and without.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np

import headrace
from headrace.datasets.block_uses import BlockUses
from headrace.loader import spans
from headrace.plan.caching import POLICIES, Accesses, simulate
from headrace.plan.caching.dealing import dealt, home_nodes, nodes_of
from headrace.stores import IndexedWriter

BLOCK, STEP, WINDOW = 16 << 10, 16, 1024


def hit_rates(folder: Path, kind: str, part: float) -> dict[str, Any]:
    order = headrace.Order(kind=kind, seed=1, block_samples=64, window_blocks=8, parallel_shard_iters=8)  # type: ignore[arg-type]

    def run_over(store: headrace.stores.Store) -> headrace.Run:
        dataset = headrace.WindowDataset(store, seq_len=WINDOW)
        return headrace.Run(dataset, global_batch_size=STEP, order=order, epochs=3)

    plain = run_over(headrace.open(folder / "web"))
    uses = BlockUses.of_run(plain, block_bytes=BLOCK)
    reads = uses.reads(np.arange(plain.length))
    steps = reads.rows // STEP
    seen = Accesses.of(steps, np.zeros_like(steps), reads.blocks, reads.used_bytes, reads.epochs, table=uses.table)
    capacity = int(part * uses.table.num_blocks)
    cache = headrace.Cache(folder / f"cache-{kind}-{part}", limit=capacity * BLOCK, block=BLOCK)
    run = run_over(headrace.open(folder / "web", reader=cache.reader("pread")))
    before = cache.stats.fetched_blocks + cache.stats.bypassed_blocks
    reading = headrace.loader.Reading(num_threads=0)
    for _ in headrace.Loader(run, micro_batch_size=STEP, reading=reading):
        pass
    missed = cache.stats.fetched_blocks + cache.stats.bypassed_blocks - before
    row = {"order": kind, "cache": f"{part:.0%}", "reads": len(seen.blocks), "loader": 1 - missed / len(seen.blocks)}
    row |= {policy: float(simulate(seen.blocks, capacity, policy).is_hit.mean()) for policy in POLICIES}
    return row | {"fetched": cache.stats.fetched_bytes / int(seen.used_bytes.sum())}


def foreign(num_nodes: int) -> dict[str, Any]:
    rng = np.random.default_rng(num_nodes)
    size = 64 * num_nodes
    nodes = nodes_of(size, world_size=8 * num_nodes, micro_batch_size=2, per_node=8)
    homes = [home_nodes(rng.integers(0, 1 << 40, size), num_nodes) for _ in range(50)]
    rates = [float((dealt(one, nodes, num_nodes) != one).mean()) for one in homes]
    undealt = [float((nodes != one).mean()) for one in homes]
    means = float(np.mean(rates)), float(np.mean(undealt))
    return {"nodes": num_nodes, "samples": size, "foreign": means[0], "without": means[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 MiB of tokens, in place of 4")
    options = parser.parse_args()
    spans.SPAN_ROWS = STEP  # each step is a read of its own, as in the simulation
    rows = []
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=memory) as name:
        folder = Path(name)
        with IndexedWriter(str(folder / "web"), dtype=np.dtype(np.uint16)) as writer:
            tokens = np.zeros((1 if options.quick else 2) << 20, dtype=np.uint16)
            writer.add_documents(tokens, np.full(len(tokens) >> 12, 1 << 12, dtype=np.int64))
            writer.finish()
        rows = [hit_rates(folder, kind, part) for kind in ("full", "blocks", "shards") for part in (0.1, 0.25, 0.5)]
    deals = [foreign(num_nodes) for num_nodes in (8, 32, 256)]
    lost = max(row["plan"] - row["loader"] for row in rows)
    lines = [
        common.verdict("hit rate that Belady's policy has and the loader has not", lost, 0.01, at_most=True),
        common.verdict("samples read by another node, 512 over 8 nodes", deals[0]["foreign"], 0.08, at_most=True),
    ]
    print(common.table(rows), common.table(deals), *lines, sep="\n")
    common.save("cache", {"options": vars(options), "rows": rows, "deals": deals, "claims": lines})


if __name__ == "__main__":
    main()
