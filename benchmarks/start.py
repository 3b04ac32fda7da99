"""Start-up: the first batch of a run of 10^5 and of 10^10 samples, in a fresh process, imports excluded.

    python benchmarks/start.py [--rounds 7]

The stores are sparse files, which have their real size but no blocks on disk. There are two shapes: windows of 64
tokens in one file of 1.3 TB (10^10 samples), and windows of 2,048 tokens over 64 shards. Documents have 2^24 tokens.
The benchmark measures the wall time from opening the store to the first batch, the growth of resident memory until
then, and the growth of the process's own (anonymous) memory 100 batches later. Resident memory includes the pages of
the files that were read. The rows with 1,000 sources are a blend of 1,000 datasets over the same store.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
import psutil

from headrace import Blend, Loader, Run, WindowDataset, open as open_store
from headrace.loader import Ranks

REASONS = {
    "slowest first batch": "64 files are opened before the first batch of windows of 2,048, and 64 indices read.",
    "windows of 2,048: resident_mb": (
        "The pages of 64 indices that were read count as resident; the system can take them back, and the next line has"
        " the growth of the process's own memory."
    ),
}
DOCUMENT_TOKENS = 1 << 24
CASES = [(samples, window, shards) for window, shards in ((64, 1), (2048, 64)) for samples in (10**5, 10**10)]


def sparse_store(prefix: Path, num_tokens: int) -> None:
    """Write a sparse .bin of zeros, and its .idx."""
    sizes = np.full(-(-num_tokens // DOCUMENT_TOKENS), DOCUMENT_TOKENS, dtype=np.int32)
    sizes[-1] = num_tokens - (len(sizes) - 1) * DOCUMENT_TOKENS
    pointers = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)]) * 2
    with Path(f"{prefix}.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        for column in (sizes, pointers.astype(np.int64), np.arange(len(sizes) + 1, dtype=np.int64)):
            index.write(column.tobytes())
    with Path(f"{prefix}.bin").open("wb") as data:
        data.truncate(2 * num_tokens)


def measure(folder: str, window: int, num_sources: int) -> dict[str, Any]:
    process = psutil.Process()
    before, begin = process.memory_full_info(), time.perf_counter()
    dataset = WindowDataset(open_store(folder + "/"), seq_len=window)
    names = [f"source-{i}" for i in range(num_sources)]
    data: WindowDataset | Blend = dataset
    if num_sources > 1:
        data = Blend(dict.fromkeys(names, dataset), weights={name: 1 + i % 7 for i, name in enumerate(names)})
    loader = Loader(Run(data, global_batch_size=8), micro_batch_size=8, ranks=Ranks())
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    first = process.memory_full_info()
    for _ in range(100):
        next(batches)
    later = process.memory_full_info()
    return {
        "samples": len(dataset),
        "window": window,
        "sources": num_sources,
        "first_batch_ms": 1000 * seconds,
        "resident_mb": (first.rss - before.rss) / 1e6,
        "own_mb_100_batches_later": (later.rss - later.shared - before.rss + before.shared) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("FOLDER", "WINDOW", "SOURCES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, window, num_sources = options.one
        print(json.dumps(measure(folder, int(window), int(num_sources))))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root:
        folders = []
        for samples, window, shards in CASES:
            folder = Path(root) / f"{samples}-{window}"
            folder.mkdir()
            for shard in range(shards):
                sparse_store(folder / f"shard-{shard:03d}", samples * window // shards + (shard == shards - 1))
            folders.append((str(folder), window))
        used = sum(file.stat().st_blocks for file in Path(root).rglob("*")) * 512
        size = sum(file.stat().st_size for file in Path(root).rglob("*.bin"))
        print(f"files of {size / 1e12:,.1f} TB, {used / 1e6:,.0f} MB on disk")
        for num_sources in (1, 1000):
            for folder, window in folders:
                found = [
                    common.run_apart(__file__, folder, str(window), str(num_sources)) for _ in range(options.rounds)
                ]
                rows.append(common.medians(found))
    print(common.table(rows))
    single = [row for row in rows if row["sources"] == 1]
    slowest = max(row["first_batch_ms"] for row in single)
    largest = max(row["resident_mb"] for row in single)
    claims = [
        common.verdict("slowest first batch of one source, ms", slowest, 100, at_most=True),
        common.verdict("largest growth of resident memory to the first batch, MB", largest, 100, at_most=True),
    ]
    for small, large in zip(single[0::2], single[1::2], strict=True):
        for name in ("resident_mb", "own_mb_100_batches_later"):
            what = f"windows of {small['window']:,}: {name} at 10^10 samples less that at 10^5"
            claims.append(common.verdict(what, large[name] - small[name], 5, at_most=True))
    print("\n".join(claims))
    common.save("start", {"options": vars(options), "rows": rows, "claims": claims})


if __name__ == "__main__":
    main()
