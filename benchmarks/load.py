"""Shuffled token windows into training batches: Headrace compared with its peers and the limit, in CPU seconds.

    python benchmarks/load.py [--tokens 256_000_000] [--window 2048] [--batch 8] [--rounds 5] [--engines a,b]

Every engine reads the same Megatron .bin/.idx from the page cache in a separate process, and engines take turns.
`limit` casts slices of the memory map into fresh [batch, window + 1] int64 arrays, which is the cost of a loop that
does nothing else. `memmap` is a
map-style Dataset over np.memmap in torch's DataLoader(num_workers=0), with one tensor a sample. `megatron` is
megatron-core's GPTDataset in the same DataLoader. Headrace returns input_ids, labels and position_ids, each in its own
memory, and the position of every sample.

What metrics cost is measured end to end: the CPU seconds of a loader with `headrace.Metrics`, which appends a line a
second, over those of the same loader without, in one process. Pairs of fresh loaders take turns in who is first, since
the speed of two that do the same differs by some percent, from where their memory happens to lie. The line gives the
median of the pairs and its 95 % interval, which needs no assumption about the noise: from one pair to another by rank.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import headrace
from headrace.stores import IndexedWriter

Batches = Callable[[Path, int, int], Iterator[Any]]
DTYPE = np.dtype(np.uint16)
METRICS_GOAL = 1.0


def write_tokens(prefix: Path, num_tokens: int) -> None:
    """Write random tokens in documents of lognormal lengths, the same every time."""
    rng = np.random.default_rng(0)
    with IndexedWriter(str(prefix), dtype=DTYPE) as writer:
        left = num_tokens
        while left > 0:
            lengths = np.maximum(1, rng.lognormal(6, 1.2, 10_000).astype(np.int64))
            lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), left)) + 1]
            lengths[-1] -= max(0, int(lengths.sum()) - left)
            writer.add_documents(rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16), lengths)
            left -= int(lengths.sum())
        writer.finish()


def limit(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    tokens = np.asarray(np.memmap(f"{prefix}.bin", dtype=DTYPE, mode="r"))
    begins = np.random.default_rng(1).permutation((len(tokens) - 1) // window) * window
    for first in range(0, len(begins) - batch + 1, batch):
        out = np.empty((batch, window + 1), dtype=np.int64)
        for row, begin in enumerate(begins[first : first + batch].tolist()):
            out[row] = tokens[begin : begin + window + 1]
        yield out


def ours(reading: headrace.loader.Reading, *, measured: bool = False) -> Batches:
    def batches(prefix: Path, window: int, batch: int) -> Iterator[Any]:
        dataset = headrace.WindowDataset(headrace.open(str(prefix)), seq_len=window)
        run = headrace.Run(dataset, global_batch_size=batch)
        metrics = headrace.Metrics(jsonl=prefix.with_suffix(".metrics.jsonl")) if measured else None
        ranks = headrace.loader.Ranks()
        return iter(headrace.Loader(run, micro_batch_size=batch, ranks=ranks, reading=reading, metrics=metrics))

    return batches


class MemmapDataset(torch.utils.data.Dataset[torch.Tensor]):
    """The common map-style dataset over a memory map."""

    def __init__(self, prefix: Path, window: int) -> None:
        self.tokens = np.memmap(f"{prefix}.bin", dtype=DTYPE, mode="r")
        self.window = window

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self.window
        return torch.from_numpy(self.tokens[begin : begin + self.window + 1].astype(np.int64))


def memmap(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    dataset = MemmapDataset(prefix, window)
    return iter(torch.utils.data.DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=0, drop_last=True))


def megatron(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=window, blend=([str(prefix)], None), split="1,0,0", tokenizer=_Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
    )  # fmt: skip
    indexed = IndexedDataset(str(prefix))
    indices = np.arange(indexed.sequence_lengths.shape[0], dtype=np.int32)
    dataset = GPTDataset(indexed, str(prefix), indices, None, Split.train, config)
    return iter(torch.utils.data.DataLoader(dataset, batch_size=batch, num_workers=0, drop_last=True))


class _Tokenizer:
    unique_identifiers = {"class": "none"}  # noqa: RUF012 - what GPTDatasetConfig asks for
    eod = 0
    pad = 50_001
    vocab_size = 50_002


ENGINES: dict[str, Batches] = {
    "limit": limit,
    "headrace, when asked": ours(headrace.loader.Reading(num_threads=0)),
    "headrace, read ahead": ours(headrace.loader.Reading(num_threads=1)),
    "memmap": memmap,
    "megatron": megatron,
    "headrace, 2 workers": ours(headrace.loader.Reading(num_workers=2)),
}


def measure(engine: str, prefix: Path, window: int, batch: int, seconds: float) -> dict[str, Any]:
    np.fromfile(f"{prefix}.bin", dtype=np.uint8)  # into the page cache
    # Epochs follow one another. The first batches, which include the start-up, are not measured.
    batches = chain.from_iterable(ENGINES[engine](prefix, window, batch) for _ in count())
    deque(islice(batches, 50), maxlen=0)
    num_samples, begin, cpu = 0, time.perf_counter(), common.cpu_s()
    while time.perf_counter() - begin < seconds:
        deque(islice(batches, 256), maxlen=0)
        num_samples += 256 * batch
    wall, cpu = time.perf_counter() - begin, common.cpu_s() - cpu
    return {
        "engine": engine,
        "samples_per_cpu_s": num_samples / cpu,
        "samples_per_s": num_samples / wall,
        "samples": num_samples,
    }


def metrics_cost(prefix: Path, window: int, batch: int, pairs: int, num_batches: int) -> dict[str, float]:
    """Percent of the CPU time of reading ahead that metrics add: the median of interleaved pairs, and its interval."""
    reading = headrace.loader.Reading(num_threads=1)
    found = []
    for pair in range(pairs):
        seconds = {}
        for measured in (False, True) if pair % 2 else (True, False):
            batches = ours(reading, measured=measured)(prefix, window, batch)
            deque(islice(batches, 256), maxlen=0)
            begin = time.process_time()
            deque(islice(batches, num_batches), maxlen=0)
            seconds[measured] = time.process_time() - begin
            # A loop that is left says a verdict, which belongs to a run and not to the tables here.
            with contextlib.redirect_stderr(io.StringIO()):
                del batches
        found.append(100 * (seconds[True] / seconds[False] - 1))
    found.sort()
    low = binomial_rank(pairs)
    return {"median_%": statistics.median(found), "from_%": found[low], "to_%": found[-1 - low]}


def binomial_rank(count: int) -> int:
    """Return the rank, from 0, of the value at which the 95 % interval of the median of ``count`` values begins.

    For 20 values it is 5: the interval is from the sixth to the fifteenth.
    """
    below = [sum(math.comb(count, k) for k in range(rank + 1)) / 2**count for rank in range(count)]
    return max(0, sum(share <= 0.025 for share in below) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256_000_000)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=60, help="of loaders with and without metrics")
    parser.add_argument("--pair-batches", type=int, default=8_192)
    parser.add_argument("--engines", default=",".join(ENGINES).replace(", ", "; "))
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "PREFIX"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        engine, prefix = options.one
        print(json.dumps(measure(engine, Path(prefix), options.window, options.batch, options.seconds)))
        return
    engines = [engine.strip().replace("; ", ", ") for engine in options.engines.split(",")]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        prefix = Path(folder) / "tokens"
        write_tokens(prefix, options.tokens)
        rows: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        sizes = ["--window", str(options.window), "--batch", str(options.batch), "--seconds", str(options.seconds)]
        for _ in range(options.rounds):
            for engine in engines:
                rows[engine].append(common.run_apart(__file__, engine, str(prefix), *sizes))
        cost = metrics_cost(prefix, options.window, options.batch, options.pairs, options.pair_batches)
    result = [common.medians(rows[engine]) for engine in engines]
    rate = {row["engine"]: row["samples_per_cpu_s"] for row in result}
    for row in result:
        row["of_limit"] = row["samples_per_cpu_s"] / rate["limit"] if "limit" in rate else float("nan")
    print(common.table(result))
    claims = [
        ("when asked, share of the limit", "headrace, when asked", "limit", 0.75),
        ("read ahead, share of the limit", "headrace, read ahead", "limit", 0.60),
        ("read ahead, times megatron-core", "headrace, read ahead", "megatron", 10),
        ("read ahead, times memmap under DataLoader", "headrace, read ahead", "memmap", 1.5),
    ]
    lines = [
        common.verdict(what, rate[mine] / rate[theirs], bar)
        for what, mine, theirs, bar in claims
        if mine in rate and theirs in rate
    ]
    word = "holds" if cost["to_%"] < METRICS_GOAL else "open" if cost["from_%"] < METRICS_GOAL else "FAILS"
    lines.append(
        f"{word}  what metrics add to the CPU time of read ahead: {cost['median_%']:.2f} % (from {cost['from_%']:.2f} %"
        f" to {cost['to_%']:.2f} %; at most {METRICS_GOAL:g} %)"
    )
    print("\n".join(lines))
    common.save("load", {"options": vars(options), "rows": result, "metrics": cost, "claims": lines})


if __name__ == "__main__":
    main()
