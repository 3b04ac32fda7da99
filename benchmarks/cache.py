"""The cache of a node: hit rates of a loader, what it fetches, and what dealing saves.

    python benchmarks/cache.py [--quick]

Windows of 2 KiB over a file of blocks of 16 KiB are read for three epochs, through caches of 10, 25 and 50 % of it.
Windows of the orders ``blocks`` and ``shards`` are at most a sixteenth of it, so that the caches hold one, as real ones
do. ``hit_rate`` is the part of the blocks that a loader with `headrace.Cache` found in the cache, step by step.
``fetched`` is the bytes that left the store over those that the samples use: of the orders by blocks, those at the
borders are fetched twice. Nothing here depends on time; the caches
are in memory, where there is room.

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
from headrace.plan.dealing import dealt, home_nodes, nodes_of
from headrace.stores import IndexedWriter

BLOCK, STEP, WINDOW = 16 << 10, 16, 1024


def hit_rates(folder: Path, kind: str, part: float) -> dict[str, Any]:
    order = headrace.Order(
        kind=kind,  # type: ignore[arg-type]
        seed=1,
        block_samples=32,
        window_blocks=2,
        max_samples_per_sequence=32,
        parallel_shard_iters=2,
    )

    def run_over(store: headrace.stores.Store) -> headrace.Run:
        dataset = headrace.WindowDataset(store, seq_len=WINDOW)
        return headrace.Run(dataset, global_batch_size=STEP, order=order, epochs=3)

    plain = run_over(headrace.open(folder / "web"))
    uses = BlockUses.of_run(plain, block_bytes=BLOCK)
    reads = uses.reads(np.arange(plain.length))
    steps = reads.rows // STEP
    num_reads = len(np.unique(steps * uses.table.num_blocks + reads.blocks))
    capacity = int(part * uses.table.num_blocks)
    cache = headrace.Cache(folder / f"cache-{kind}-{part}", limit=capacity * BLOCK, block=BLOCK)
    run = run_over(headrace.open(folder / "web", reader=cache.reader("pread")))
    before = cache.stats.fetched_blocks + cache.stats.bypassed_blocks
    reading = headrace.loader.Reading(num_threads=0)
    for _ in headrace.Loader(run, micro_batch_size=STEP, reading=reading):
        pass
    missed = cache.stats.fetched_blocks + cache.stats.bypassed_blocks - before
    row = {"order": kind, "cache": f"{part:.0%}", "reads": num_reads, "hit_rate": 1 - missed / num_reads}
    return row | {"fetched": cache.stats.fetched_bytes / int(reads.used_bytes.sum())}


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
    spans.SPAN_ROWS = STEP  # each step is a read of its own
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
    lines = [
        *(
            common.verdict(
                f"bytes fetched over bytes used, order {kind}",
                max(row["fetched"] for row in rows if row["order"] == kind),
                most,
                at_most=True,
            )
            for kind, most in (("full", 1.0), ("blocks", 1.25), ("shards", 1.25))
        ),
        common.verdict("samples read by another node, 512 over 8 nodes", deals[0]["foreign"], 0.08, at_most=True),
    ]
    print(common.table(rows), common.table(deals), *lines, sep="\n")
    common.save("cache", {"options": vars(options), "rows": rows, "deals": deals, "claims": lines})


if __name__ == "__main__":
    main()
