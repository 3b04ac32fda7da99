"""Packing: plans over lengths, and packs into batches, Headrace compared with its peers, in CPU seconds.

    python benchmarks/packing.py [--quick] [--documents 100_000,1_000_000] [--rounds 3] [--batch 32]

Plans are made from lengths in memory, (documents,) int32, and measured until the arrays of the plan are complete;
Headrace uses ``best_fit``. Every plan is read back, to check that all documents are packed and no pack is too full.
``peak`` is the resident high-water mark while planning, minus the memory that was resident before (including the
lengths), in bytes a document. So it covers the computation and the plan itself. The claim adds 8 for lengths that are
kept as int64. ``stored`` is the size of the plan's arrays.

Samples are made from the tokens of 100,000 documents in memory; for Headrace, these are a Megatron store in the page
cache. Rates count tokens without pads. The rates of the peers cover the whole way from tokens to samples. Headrace has
two rows, ``packs`` and ``windows`` (plain contiguous windows, the limit), through the same loader, with all fields, in
steady state. ``an epoch`` is the time from opening the store to the last batch, including the plan. Each measurement is
a separate process, and engines take turns. The peers make samples once, since that takes them up to a minute.

The lengths are those of the reference table that the fill is compared with; long documents are cut to a pack. The table
does not describe its bimodal lengths. Here four fifths are lognormal(4.5, 0.5) and one fifth lognormal(7, 0.5), which
next-fit packs as well as the table says.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import deque
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import common
import numpy as np
from numpy.typing import NDArray
from packing_peers import VOCAB_SIZE, checked_fill

import headrace
from headrace.plan.packing import Packing, plan_packs
from headrace.stores import IndexedWriter

REASONS = {
    "documents planned": "The bar was set on a faster machine.",
    "times torchtune": "With a dozen short documents in each pack, borders and positions cost more than tokens.",
    "share of windows": "A pack is a dozen reads in place of one, and has the borders and positions of its documents.",
}
DEPENDS = (
    "The ratios depend on how many documents a pack holds: `sft` has some twelve, `web` six and `long` three in 4,096"
    " tokens. Start-up is not in them, since all are calls within a process."
)
PEERS = str(Path(__file__).parent / "packing_peers.py")
MAX_SEQ_LEN = 4096
SIZES = (2_048, 4_096, 8_192, 131_072)
FEW = 100_000
FILL = {
    "sft": {2_048: 0.9999, 4_096: 0.9999, 8_192: 0.9999},
    "web": {2_048: 1.0, 4_096: 0.9999, 8_192: 1.0},
    "bimodal": {2_048: 0.9997, 4_096: 0.9999, 8_192: 0.9999},
    "long": {2_048: 0.9975, 4_096: 0.9993, 8_192: 0.9997},
}
"""The fill in the table: global best-fit decreasing, 100,000 documents."""
ASSEMBLED = ("sft", "web", "long")
CONSTRUCTORS = ("torchtune", "trl bfd", "trl bfd_split")
PLANNERS = ("first-fit", "lpfhp")


def draw(name: str, num_documents: int) -> NDArray[np.int32]:
    """(num_documents,) lengths before they are cut, the same every time. They are drawn in parts, to save memory."""
    rng = np.random.default_rng(0)
    lengths = np.empty(num_documents, dtype=np.int32)
    for begin in range(0, num_documents, 1 << 20):
        part = lengths[begin : begin + (1 << 20)]
        if name == "bimodal":
            short = rng.random(len(part)) < 0.8
            part[:] = np.where(short, rng.lognormal(4.5, 0.5, len(part)), rng.lognormal(7, 0.5, len(part)))
        else:
            part[:] = rng.lognormal(*{"sft": (5.5, 1), "web": (6, 1.2), "long": (7, 0.8)}[name], len(part))
    return lengths


def write_store(prefix: Path, lengths: NDArray[np.int32]) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(lengths, 1, MAX_SEQ_LEN).astype(np.int64)
    with IndexedWriter(str(prefix), dtype=np.dtype(np.uint16)) as writer:
        for begin in range(0, len(lengths), 10_000):
            part = lengths[begin : begin + 10_000]
            writer.add_documents(rng.integers(0, VOCAB_SIZE, int(part.sum()), dtype=np.uint16), part)
        writer.finish()


def measure_plan(path: str, seq_len: int, seconds: float = 0.5) -> dict[str, Any]:
    lengths = np.load(path)
    np.clip(lengths, 1, seq_len, out=lengths)
    packing = Packing(seq_len=seq_len)
    # Memory that the first plan in a process loads and allocates once does not count for this plan.
    plan_packs(lengths[:1000], packing)
    before, cpu = common.memory_bytes("VmRSS"), time.process_time()
    plan = plan_packs(lengths, packing)
    peak = common.memory_bytes("VmHWM") - before
    times = 1
    while (spent := time.process_time() - cpu) < seconds:
        plan_packs(lengths, packing)
        times += 1
    documents, bounds = plan.arrays["pieces"], plan.arrays["bounds"]
    return {
        "docs_per_cpu_s": times * len(lengths) / spent,
        "cpu_s": spent / times,
        "fill": checked_fill(lengths, lengths[documents], bounds, seq_len),
        "peak_bytes_a_doc": peak / len(lengths),
        "stored_bytes_a_doc": plan.num_bytes / len(lengths),
    }


def measure_batches(engine: str, prefix: str, batch: int, seconds: float) -> dict[str, Any]:
    np.fromfile(f"{prefix}.bin", dtype=np.uint8)  # into the page cache
    reading = headrace.loader.Reading(num_threads=0)
    cpu = time.process_time()
    store = headrace.open(prefix)
    dataset: headrace.Dataset = (
        headrace.WindowDataset(store, seq_len=MAX_SEQ_LEN)
        if engine == "windows"
        else headrace.PackedSequenceDataset(store, Packing(seq_len=MAX_SEQ_LEN))
    )

    def loader(**options: Any) -> headrace.Loader:
        run = headrace.Run(dataset, global_batch_size=batch, **options)
        return headrace.Loader(run, micro_batch_size=batch, ranks=headrace.loader.Ranks(), reading=reading)

    if engine == "an epoch":
        deque(loader(epochs=1), maxlen=0)
        num_samples, spent = len(dataset), time.process_time() - cpu
    else:
        # The first batches, which include the start-up, are not measured.
        batches = chain.from_iterable(iter(loader()) for _ in count())
        deque(islice(batches, 50), maxlen=0)
        num_samples, cpu = 0, time.process_time()
        while (spent := time.process_time() - cpu) < seconds:
            deque(islice(batches, 32), maxlen=0)
            num_samples += 32 * batch
    return {
        "tokens_per_cpu_s": num_samples * dataset.num_tokens_per_sample / spent,
        "cpu_s": spent,
        "fill": dataset.num_tokens_per_sample / MAX_SEQ_LEN,
    }


class Bench:
    """Runs engines in separate processes, over lengths and stores that are made once."""

    def __init__(self, root: Path, rounds: int, names: tuple[str, ...]) -> None:
        self._root = root
        self._rounds = rounds
        self._names = names

    def lengths(self, name: str, num_documents: int) -> str:
        """The file with these lengths, which is written on the first call."""
        path = self._root / f"{name}-{num_documents}.npy"
        if not path.exists():
            np.save(path, draw(name, num_documents))
        return str(path)

    def plans(self, num_documents: int) -> list[dict[str, Any]]:
        """Measure Headrace's plans of so many documents, and of 100,000 documents the peers' plans at one size."""
        jobs = []
        for name in self._names:
            path = self.lengths(name, num_documents)
            # The table that the fill is compared with has only few documents.
            sizes = SIZES if num_documents <= FEW else SIZES[1:]
            jobs += [(name, size, "headrace", __file__, ("plan", path, str(size))) for size in sizes]
            if num_documents <= FEW:
                peers = [(engine, path, str(MAX_SEQ_LEN)) for engine in PLANNERS]
                jobs += [(name, MAX_SEQ_LEN, arguments[0], PEERS, arguments) for arguments in peers]
        rounds = self._rounds if num_documents <= 1_000_000 else 1
        found: list[list[dict[str, Any]]] = [[] for _ in jobs]
        for _ in range(rounds):
            for (_, _, _, script, arguments), rows in zip(jobs, found, strict=True):
                rows.append(common.run_apart(script, *arguments))
        for name in self._names:
            Path(self.lengths(name, num_documents)).unlink()
        return [
            {"plan": engine, "lengths": name, "seq_len": size, "documents": num_documents} | common.medians(rows)
            for (name, size, engine, _, _), rows in zip(jobs, found, strict=True)
        ]

    def samples(self, batch: int) -> list[dict[str, Any]]:
        """Measure the way from tokens to samples, of Headrace and of the peers."""
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for name in (name for name in ASSEMBLED if name in self._names):
            lengths, prefix = self.lengths(name, FEW), str(self._root / name)
            write_store(Path(prefix), np.load(lengths))
            for number in range(self._rounds):
                for engine in ("windows", "packs", "an epoch"):
                    found = common.run_apart(__file__, engine, prefix, str(batch))
                    rows.setdefault((name, f"headrace, {engine}"), []).append(found)
                for engine in CONSTRUCTORS if number == 0 else ():
                    found = common.run_apart(PEERS, engine, lengths, str(MAX_SEQ_LEN))
                    rows.setdefault((name, engine), []).append(found)
            Path(f"{prefix}.bin").unlink()
        return [{"samples": engine, "lengths": name} | common.medians(found) for (name, engine), found in rows.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """Format an aligned table with four decimals of the fill."""
    names = dict.fromkeys(name for row in rows for name in row)
    return common.table([{name: row.get(name, "") for name in names} | {"fill": f"{row['fill']:.4f}"} for row in rows])


def plan_claims(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    ours = [row for row in rows if row["plan"] == "headrace"]
    fills = [
        row["fill"] - FILL[row["lengths"]][row["seq_len"]]
        for row in ours
        if row["documents"] == FEW and row["seq_len"] in FILL[row["lengths"]]
    ]
    if fills:
        lines.append(common.verdict("fill of 100,000 documents less the table's, the worst", min(fills), -0.0005))
    for size, bar in ((4_096, 10e6), (8_192, 10e6), (131_072, 1.5e6)):
        rates = [row["docs_per_cpu_s"] for row in ours if row["seq_len"] == size and row["documents"] >= 1_000_000]
        if rates:
            what = f"documents planned a CPU second at {size:,}, the slowest from a million on"
            lines.append(common.verdict(what, min(rates), bar))
    for documents in sorted({row["documents"] for row in ours}):
        some = [row for row in ours if row["documents"] == documents]
        if documents >= 1_000_000:
            peak = max(row["peak_bytes_a_doc"] for row in some) + 8
            what = f"peak bytes a document of {documents:,}, lengths as int64 included"
            lines.append(common.verdict(what, peak, 24, at_most=True))
        stored = max(row["stored_bytes_a_doc"] for row in some)
        lines.append(common.verdict(f"stored bytes a document of {documents:,}", stored, 8, at_most=True))
    return lines


def sample_claims(rows: list[dict[str, Any]]) -> list[str]:
    rate = {(row["lengths"], row["samples"]): row["tokens_per_cpu_s"] for row in rows}
    lines = []
    for name in dict.fromkeys(name for name, _ in rate):
        packs = rate[name, "headrace, packs"]
        lines.append(common.verdict(f"{name}: packs, times torchtune", packs / rate[name, "torchtune"], 40))
        lines.append(common.verdict(f"{name}: packs, share of windows", packs / rate[name, "headrace, windows"], 0.25))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="100,000 documents of one kind, one round: whether it runs"
    )
    parser.add_argument("--documents", help="numbers of documents to plan, separated by commas")
    parser.add_argument("--rounds", type=int, help="measurements of each, of which the median is taken")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "PATH", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        engine, path, size = options.one
        found = (
            measure_plan(path, int(size))
            if engine == "plan"
            else measure_batches(engine, path, int(size), options.seconds)
        )
        print(json.dumps(found))
        return
    default = "100_000" if options.quick else "100_000,1_000_000"
    documents = [int(number) for number in (options.documents or default).split(",")]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        names = ("sft",) if options.quick else tuple(FILL)
        bench = Bench(Path(folder), options.rounds or (1 if options.quick else 3), names)
        plans = [row for number in documents for row in bench.plans(number)]
        print(table(plans), end="\n\n", flush=True)
        samples = bench.samples(options.batch)
    lines = plan_claims(plans) + sample_claims(samples)
    print(table(samples), *lines, sep="\n")
    common.save("packing", {"options": vars(options), "plans": plans, "samples": samples, "claims": lines})


if __name__ == "__main__":
    main()
