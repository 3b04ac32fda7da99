"""Shuffled token windows into training batches: Headrace compared with its peers and the limit, in CPU seconds.

    python benchmarks/load.py [--tokens 128_000_000] [--window 2048] [--batch 8] [--rounds 3] [--engines a;b]

Every engine reads the same Megatron .bin/.idx from the page cache in a separate process, and engines take turns. The
limit is C: a compiled loop, built by numba, that writes ids and labels, each (batch, window) int64, straight from the
memory map, and nothing else; `C, int32` writes the same in int32. It writes to the same memory again and again, which
stays in the nearest cache; `C, 8 MiB in turn` writes to about as much memory as Headrace reads at a time. `numpy` casts
slices of the map into fresh (batch, window + 1) int64 arrays, from which ids and labels would be views. Headrace
returns input_ids, labels and position_ids, each in its own memory, and the position of every sample; `int32` is
`Loader(ids="int32")`.

`memmap` is a map-style Dataset over np.memmap in torch's DataLoader(num_workers=0), with one tensor a sample.
`megatron` is megatron-core's GPTDataset in the same DataLoader. `litdata` is its StreamingDataset of tokens, shuffled,
in its StreamingDataLoader. `lancedb` is LanceDB's StreamingDataset over a table with a window in each row, in torch's
DataLoader. Both read files of their own, without workers, and give windows of window + 1 tokens.

What metrics cost is measured end to end: the CPU seconds of a loader with `headrace.Metrics`, which appends a line a
second, over those of the same loader without, in one process. Pairs of fresh loaders take turns in who is first, since
the speed of two that do the same differs by some percent, from where their memory happens to lie. The line gives the
median of the pairs and its 95 % interval, which needs no assumption about the noise: from one pair to another by rank.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import headrace
from headrace.stores import IndexedWriter

REASONS = {
    "int32": "As above: 9 MiB at a time, and batches made in Python; read ahead, a thread hands each of them over.",
    "read ahead, share": "A thread hands each batch over, which takes the interpreter's lock from it at every call.",
    "when asked, share": (
        "Headrace reads 9 MiB at a time, since each read is planned in Python, and these do not stay in the nearest"
        " cache, which slows C itself (`C, 8 MiB in turn`); NumPy's casts take longer than C's, and a batch is a dict"
        " of tensors, made in Python."
    ),
    "what metrics add": "Each step notes its waits, which is some microseconds beside a batch that takes thirty.",
}
DEPENDS = (
    "The ratios hold for windows of 2,048 tokens of two bytes in the page cache: the longer the windows, the nearer all"
    " engines come to the copy that they share."
)
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


@functools.cache
def kernel() -> Any:
    """The loop in C, through numba."""
    import numba

    @numba.njit(nogil=True)
    def fill(tokens: Any, begins: Any, ids: Any, labels: Any) -> None:
        for row in range(len(begins)):
            # A place that may be negative would count from the end, and the loop would take one token at a time.
            begin = np.uint64(begins[row])
            for place in range(np.uint64(ids.shape[1])):
                ids[row, place] = tokens[begin + place]
            for place in range(np.uint64(ids.shape[1])):
                labels[row, place] = tokens[begin + place + np.uint64(1)]

    return fill


def compiled(dtype: type[np.integer[Any]], num_bytes: int = 0) -> Batches:
    """One call of the loop for each batch, into the same arrays, or in turn into arrays of so many bytes together."""

    def batches(prefix: Path, window: int, batch: int) -> Iterator[Any]:
        fill, (tokens, begins) = kernel(), mapped(prefix, window)
        num_pairs = max(1, num_bytes // (2 * batch * window * np.dtype(dtype).itemsize))
        pairs = cycle([np.zeros((2, batch, window), dtype) for _ in range(num_pairs)])
        for first, (ids, labels) in zip(range(0, len(begins) - batch + 1, batch), pairs, strict=False):
            fill(tokens, begins[first : first + batch], ids, labels)
            yield ids, labels

    return batches


def mapped(prefix: Path, window: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The tokens, and where shuffled windows begin."""
    tokens = np.asarray(np.memmap(f"{prefix}.bin", dtype=DTYPE, mode="r"))
    return tokens, np.random.default_rng(1).permutation((len(tokens) - 1) // window) * window


def cast(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    tokens, begins = mapped(prefix, window)
    for first in range(0, len(begins) - batch + 1, batch):
        out = np.empty((batch, window + 1), dtype=np.int64)
        for row, begin in enumerate(begins[first : first + batch].tolist()):
            out[row] = tokens[begin : begin + window + 1]
        yield out


def ours(reading: headrace.loader.Reading, *, measured: bool = False, ids: Any = "int64") -> Batches:
    def batches(prefix: Path, window: int, batch: int) -> Iterator[Any]:
        dataset = headrace.WindowDataset(headrace.open(str(prefix)), seq_len=window)
        run = headrace.Run(dataset, global_batch_size=batch)
        metrics = headrace.Metrics(jsonl=prefix.with_suffix(".metrics.jsonl")) if measured else None
        ranks = headrace.loader.Ranks()
        loader = headrace.Loader(run, micro_batch_size=batch, ranks=ranks, reading=reading, metrics=metrics, ids=ids)
        return iter(loader)

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


def token_slices(place: tuple[str, int, int]) -> Iterator[Any]:
    """Tokens for litdata, which calls this in processes of its own."""
    prefix, begin, end = place
    yield torch.from_numpy(np.memmap(f"{prefix}.bin", dtype=DTYPE, mode="r")[begin:end].astype(np.int64))


def write_litdata(prefix: Path, window: int) -> Path:
    """Write the tokens as litdata keeps them, in windows that overlap by a token, as those of the others do."""
    from litdata import TokensLoader, optimize

    folder = prefix.with_suffix(".litdata")
    if not folder.exists():
        size = (prefix.with_suffix(".bin").stat().st_size // 2 - 1) // window * window
        places = [(str(prefix), begin, begin + window + 1) for begin in range(0, size, window)]
        tokens = TokensLoader(block_size=window + 1)
        optimize(
            token_slices, places, str(folder), chunk_bytes="64MB", num_workers=1, item_loader=tokens, verbose=False
        )
    return folder


def litdata(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    tokens = TokensLoader(block_size=window + 1)
    folder = str(write_litdata(prefix, window))
    dataset = StreamingDataset(folder, item_loader=tokens, shuffle=True, drop_last=True)
    return iter(StreamingDataLoader(dataset, batch_size=batch, num_workers=0))


def lancedb(prefix: Path, window: int, batch: int) -> Iterator[Any]:
    import lancedb as lance
    from lancedb.streaming import StreamingDataset

    folder = prefix.with_suffix(".lance")
    is_new, tables = not folder.exists(), lance.connect(str(folder))
    if is_new:
        tables.create_table("windows", pyarrow_windows(prefix, window))

    def tensors(rows: Any) -> list[torch.Tensor]:
        tokens = rows["tokens"].flatten().to_numpy().astype(np.int64)
        return list(torch.from_numpy(tokens.reshape(-1, window + 1)))

    dataset = StreamingDataset(tables.open_table("windows"), shuffle_seed=1, transform=tensors)
    return iter(torch.utils.data.DataLoader(dataset, batch_size=batch, num_workers=0, drop_last=True))


def pyarrow_windows(prefix: Path, window: int) -> Any:
    """A table with the tokens of a window, and the one after it, in each row."""
    import pyarrow as pa

    tokens = np.memmap(f"{prefix}.bin", dtype=DTYPE, mode="r")
    rows = np.lib.stride_tricks.sliding_window_view(tokens, window + 1)[::window]
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), window + 1)})


ENGINES: dict[str, Batches] = {
    "C": compiled(np.int64),
    "C, 8 MiB in turn": compiled(np.int64, 8 << 20),
    "C, int32": compiled(np.int32),
    "numpy": cast,
    "headrace, when asked": ours(headrace.loader.Reading(num_threads=0)),
    "headrace, read ahead": ours(headrace.loader.Reading(num_threads=1)),
    "headrace, int32, when asked": ours(headrace.loader.Reading(num_threads=0), ids="int32"),
    "headrace, int32, read ahead": ours(headrace.loader.Reading(num_threads=1), ids="int32"),
    "headrace, 2 workers": ours(headrace.loader.Reading(num_workers=2)),
    "memmap": memmap,
    "megatron": megatron,
    "litdata": litdata,
    "lancedb": lancedb,
}
PACKAGES = {
    **dict.fromkeys(("C", "C, 8 MiB in turn", "C, int32"), "numba"),
    "megatron": "megatron.core",
    "litdata": "litdata",
    "lancedb": "lancedb",
}
"""The packages that engines need; without them they are left out, and named."""
CLAIMS = [
    ("when asked, share of C", "headrace, when asked", "C", 0.75),
    ("read ahead, share of C", "headrace, read ahead", "C", 0.65),
    ("int32, when asked, share of C's int64", "headrace, int32, when asked", "C", 1.0),
    ("int32, read ahead, share of C's int64", "headrace, int32, read ahead", "C", 1.0),
    ("read ahead, times megatron-core", "headrace, read ahead", "megatron", 10),
    ("read ahead, times memmap under DataLoader", "headrace, read ahead", "memmap", 1.5),
    ("read ahead, times litdata", "headrace, read ahead", "litdata", None),
    ("read ahead, times LanceDB", "headrace, read ahead", "lancedb", None),
]
"""What is claimed, of which engine, beside which, and the bar, if there is one."""


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
    parser.add_argument("--quick", action="store_true", help="few tokens, one round: whether it runs")
    parser.add_argument("--tokens", type=int, default=128_000_000)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=60, help="of loaders with and without metrics")
    parser.add_argument("--pair-batches", type=int, default=8_192)
    parser.add_argument("--engines", default=";".join(ENGINES), help="separated by ;")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "PREFIX"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        engine, prefix = options.one
        print(json.dumps(measure(engine, Path(prefix), options.window, options.batch, options.seconds)), flush=True)
        os._exit(0)  # peers' threads may be in a call that does not end
    if options.quick:
        options.tokens, options.rounds, options.seconds, options.pairs = 8_000_000, 1, 0.2, 4
    wanted = [engine.strip() for engine in options.engines.split(";")]
    engines = [engine for engine in wanted if common.is_there(PACKAGES.get(engine, "headrace"))]
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
        row["of_limit"] = row["samples_per_cpu_s"] / rate["C"] if "C" in rate else float("nan")
    print(common.table(result))
    lines = [
        common.verdict(what, ratio, bar) if bar else f"       {what}: {ratio:,.3g}"
        for what, mine, theirs, bar in CLAIMS
        if mine in rate and theirs in rate and (ratio := rate[mine] / rate[theirs])
    ]
    word = "holds" if cost["to_%"] < METRICS_GOAL else "open" if cost["from_%"] < METRICS_GOAL else "FAILS"
    lines.append(
        f"{word}  what metrics add to the CPU time of read ahead: {cost['median_%']:.2f} % (from {cost['from_%']:.2f} %"
        f" to {cost['to_%']:.2f} %; at most {METRICS_GOAL:g} %)"
    )
    if missing := [engine for engine in wanted if engine not in engines]:
        lines.append(f"not installed, and left out: {', '.join(missing)}")
    print("\n".join(lines))
    common.save("load", {"options": vars(options), "rows": result, "metrics": cost, "claims": lines})


if __name__ == "__main__":
    main()
