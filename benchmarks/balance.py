"""Balanced steps: how equal the micro-batches of 8 ranks are, with and without balance, and the cost of planning them.

    python benchmarks/balance.py [--quick] [--documents 20_000]

Documents with the lengths of benchmarks/packing.py, cut to ``--room`` tokens, are fed in steps of 512 to 8 ranks with
micro-batches of 8. They are fed as records, whose cost is their number of tokens, and as packs, whose cost is that of a
layer of width 4,096 with causal attention over their documents. ``micro-step`` is the cost of the costliest rank
divided by the mean of all ranks, in the worst micro-step; ``rank`` is the same for whole steps. ``waiting`` is the
average share of the time that a rank waits if all ranks meet after each micro-step. ``us a sample`` is the CPU time of
the plan on each rank, including the look-up of lengths, divided by the samples of all ranks; ``without`` is that of the
plan without balance. ``reading`` is the CPU time of planning and reading without balance, divided by the samples of the
one rank.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import common
import numpy as np
from numpy.typing import NDArray
from packing import FILL, draw

import headrace
from headrace.loader.balancing import StepAssignment
from headrace.loader.spans import spans
from headrace.plan import Share
from headrace.stores import IndexedWriter

RANKS, MICRO_BATCH, STEP = 8, 8, 512
WIDTH = 4_096


def attention(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """A cost in proportion to the operations of a layer: 24 n h^2 in its matrices, and 2 n^2 h in causal attention."""
    return lengths * (12 * WIDTH + lengths)


def write_store(folder: Path, lengths: NDArray[np.int64]) -> headrace.stores.Store:
    with IndexedWriter(str(folder / "documents"), dtype=np.dtype(np.uint16)) as writer:
        writer.add_documents(np.ones(int(lengths.sum()), dtype=np.uint16), lengths)
        writer.finish()
    return headrace.open(folder / "documents")


def seconds(spans: Callable[[], Iterable[Any]]) -> float:
    """CPU seconds to iterate over the spans, the least of five times."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        deque(spans(), maxlen=0)
        found.append(time.thread_time() - began)
    return min(found)


def measured(kind: str, name: str, dataset: Any, balance: headrace.loader.Balance) -> dict[str, Any]:
    run = headrace.Run(dataset, global_batch_size=STEP, order=headrace.Order(seed=1), epochs=1, drop_last=True)
    ranks = headrace.loader.Ranks(0, RANKS)
    reading = headrace.loader.Reading(num_threads=0)
    balanced, plain = (
        headrace.Loader(
            run, micro_batch_size=MICRO_BATCH, ranks=ranks, reading=reading, balance=one, restart=one is None
        )
        for one in (balance, None)
    )
    figures = balanced.balance_figures(run.num_steps or 0)
    row: dict[str, Any] = {"samples": kind, "lengths": name, "steps": len(figures)}
    for what, deals in (("", [one.balanced for one in figures]), ("plain ", [one.unbalanced for one in figures])):
        row[f"{what}micro-step"] = max(assignment.micro_step_imbalance for assignment in deals)
        row[f"{what}rank"] = max(assignment.rank_imbalance for assignment in deals)
        row[f"{what}waiting"] = float(np.mean([assignment.waiting for assignment in deals]))
    share = Share(0, RANKS, MICRO_BATCH)
    assignment = StepAssignment(run, share, balance=balance)
    num_samples = len(figures) * STEP
    row["us a sample"] = seconds(lambda: spans(run, share, 0, assignment)) / num_samples * 1e6
    row["without"] = seconds(lambda: spans(run, share, 0)) / num_samples * 1e6
    row["reading"] = seconds(lambda: plain) / (num_samples / RANKS) * 1e6
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4,000 documents")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--room", type=int, default=4_096, help="tokens of the longest document, and of a pack")
    options = parser.parse_args()
    rows = []
    for name in FILL:
        lengths = np.clip(draw(name, 4_000 if options.quick else options.documents), 1, options.room).astype(np.int64)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            store = write_store(Path(folder), lengths)
            records = headrace.SFTDataset(store, loss_mask_key=None)
            rows.append(measured("records", name, records, headrace.loader.Balance()))
            packs = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=options.room))
            if len(packs) >= STEP:
                rows.append(measured("packs", name, packs, headrace.loader.Balance(cost=attention)))
    lines = []
    for kind in ("records", "packs"):
        mine = [row for row in rows if row["samples"] == kind]
        worst = max((row["micro-step"] for row in mine), default=1.0)
        lines.append(common.verdict(f"{kind}: costliest of a micro-step over the mean", worst, 1.05, at_most=True))
    print(common.table(rows), *lines, sep="\n")
    common.save("balance", {"options": vars(options), "rows": rows, "claims": lines})


if __name__ == "__main__":
    main()
