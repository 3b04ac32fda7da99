"""`headrace.DataLoader` beside torch's, torchdata's and LanceDB's: CPU a sample, start, and resumes far into an epoch.

    python benchmarks/dataloader.py [--quick] [--rounds 3] [--samples 40000]

Samples are dicts of two tensors, and take about 20 us to make: a loop in Python, calibrated for this machine, so that
each engine does the same work. All use torch's ``default_collate``. ``cpu_us`` are CPU seconds of the process and of
its workers, by the number of samples. Without workers all engines run in one process and take turns every 1,024
samples, first to last and back, since the speed of a machine changes from second to second; the ratio is the median of
those of all turns but the first. With workers each round is a process for each engine, one after another; the workers
stay for a second epoch, which is measured, and end it idle; the ratio is the median of those of the rounds.
``unseeded`` is ours with ``seeded=False``: it leaves the random generators alone, as torch does in the process itself.

``start`` is the time from the constructor to the first batch, shuffled, of a data set that only has a length.
``resume`` is the time from ``load_state_dict`` to the next batch, and how many samples were read for it.
A state of ours, and of LanceDB's ``StreamingDataset``, is some numbers, of which the position is set. That of
torchdata's ``StatefulDataLoader`` is taken after so many batches, so that its epoch is shorter. LanceDB reads a table
of its own, whose rows it permutes when it begins. Where it is not installed (``pip install lancedb --target F``,
and ``PYTHONPATH=F``) it is left out, and that is said.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
import timeit
from itertools import islice
from typing import Any

import common
import numpy as np
import pyarrow as pa
import torch

from headrace import DataLoader

REASONS = {
    "CPU of headrace by that of torch's": (
        "Ours sets the random generators for each batch, so that a sample does not depend on what was read before it;"
        " the line `unseeded` is without."
    ),
}
DEPENDS = (
    "The ratios depend on what a sample costs, here 20 us: with samples that take longer, all loaders come near each"
    " other."
)
ENGINES = TORCH, OURS, UNSEEDED = "torch", "headrace", "headrace, unseeded"
US = 20.0
TURN = 1024
"""Samples that an engine makes before it is the turn of the next; a multiple of the batches."""


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples that take some time to make, and count how many were made."""

    def __init__(self, num_samples: int, loops: int) -> None:
        self.num_samples = num_samples
        self.loops = loops
        self.num_read = 0

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        self.num_read += 1
        sum(range(self.loops))
        return {"input_ids": torch.full((64,), number), "label": torch.tensor(number)}


def calibrated() -> int:
    """Return with how many loops a sample takes `US`."""

    def us(loops: int) -> float:
        data = Samples(1, loops)
        return min(timeit.repeat(lambda: data[0], number=500, repeat=20)) / 500 * 1e6

    empty, some = us(0), us(1000)
    return max(0, round(1000 * (US - empty) / (some - empty)))


def loader_of(engine: str, data: Any, batch: int, num_workers: int = 0, **options: Any) -> Any:
    if engine == TORCH:
        kind: Any = torch.utils.data.DataLoader
    elif engine == "torchdata":
        kind = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    else:
        kind, options["seeded"] = DataLoader, "batch" if engine == OURS else False
    return kind(
        data, batch_size=batch, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0, **options
    )


def cpu(engine: str, batch: int, num_workers: int, num_samples: int, loops: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    loader = loader_of(engine, Samples(num_samples, loops), batch, num_workers)
    for _ in loader:
        pass
    before, begin = common.cpu_s(), time.perf_counter()
    for _ in loader:
        pass
    seconds, wall = common.cpu_s() - before, time.perf_counter() - begin
    return {
        "engine": engine,
        "batch": batch,
        "workers": num_workers,
        "cpu_us": 1e6 * seconds / num_samples,
        "wall_us": 1e6 * wall / num_samples,
    }


def turns(batch: int, num_samples: int, loops: int) -> dict[str, Any]:
    """Return a row for each engine, which take turns in this process."""
    torch.set_num_threads(1)
    loaders = [loader_of(engine, Samples(num_samples, loops), batch) for engine in ENGINES]
    epochs = [iter(loader) for loader in loaders]
    found = []
    for turn in range(num_samples // TURN):
        seconds, wall = [0.0] * len(epochs), [0.0] * len(epochs)
        for number in range(len(epochs))[:: 1 if turn % 2 else -1]:
            before, begin = time.process_time(), time.perf_counter()
            for _ in islice(epochs[number], TURN // batch):
                pass
            seconds[number], wall[number] = time.process_time() - before, time.perf_counter() - begin
        found.append((seconds, wall))
    rows = []
    for number, engine in enumerate(ENGINES):
        row = {"engine": engine, "batch": batch, "workers": 0}
        row["cpu_us"] = 1e6 * statistics.median(seconds[number] for seconds, _ in found[1:]) / TURN
        row["wall_us"] = 1e6 * statistics.median(wall[number] for _, wall in found[1:]) / TURN
        row["ratio"] = statistics.median(seconds[number] / seconds[0] for seconds, _ in found[1:])
        rows.append(row)
    return {"rows": rows}


def start(engine: str, num_samples: int) -> dict[str, Any]:
    data = Samples(num_samples, 0)
    begin = time.perf_counter()
    next(iter(loader_of(engine, data, 32)))
    return {"engine": engine, "samples": num_samples, "first_batch_ms": 1000 * (time.perf_counter() - begin)}


def resume(engine: str, num_samples: int, position: int) -> dict[str, Any]:
    """Ours has a state of a few numbers, whose position is set; torchdata's is taken after so many batches."""
    data, batch = Samples(num_samples, 0), 100
    first = loader_of(engine, data, batch)
    batches = iter(first)
    next(batches)
    if engine == OURS:
        state = first.state_dict()
        state["place"]["position"] = position
    else:
        for _ in range(position // batch - 1):
            next(batches)
        state = first.state_dict()
    data.num_read = 0
    later = loader_of(engine, data, batch)
    begin = time.perf_counter()
    later.load_state_dict(json.loads(json.dumps(state)) if engine == OURS else state)
    next(iter(later))
    return {
        "engine": engine,
        "samples": num_samples,
        "position": position,
        "resume_ms": 1000 * (time.perf_counter() - begin),
        "read": data.num_read,
        "state_bytes": len(str(state)),
    }


def resume_lance(num_samples: int, position: int) -> dict[str, Any]:
    """LanceDB's state is a few numbers, too; it reads a table of its own, of one column of integers."""
    lancedb, streaming = importlib.import_module("lancedb"), importlib.import_module("lancedb.streaming")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        table = lancedb.connect(folder).create_table("numbers", pa.table({"number": np.arange(num_samples)}))
        first = streaming.StreamingDataset(table, shuffle_seed=1)
        next(iter(first))
        taken = {"samples_consumed_per_split": [position], "positions_consumed_per_split": [position]}
        state = {**first.state_dict(), **taken}
        later = streaming.StreamingDataset(table, shuffle_seed=1)
        begin = time.perf_counter()
        later.load_state_dict(state)
        rows = iter(later)
        for _ in range(100):
            next(rows)
        seconds = time.perf_counter() - begin
        read = num_samples - position - later.unscanned_rows
    return {
        "engine": "lancedb",
        "samples": num_samples,
        "position": position,
        "resume_ms": 1000 * seconds,
        "read": read,
        "state_bytes": len(str(state)),
    }


def has_lance() -> bool:
    """Whether LanceDB is installed, and has the class."""
    try:
        return hasattr(importlib.import_module("lancedb.streaming"), "StreamingDataset")
    except ImportError:
        return False


MEASURES = {"cpu": cpu, "turns": turns, "start": start, "resume": resume, "resume_lance": resume_lance}


def measured(what: str, *arguments: Any) -> dict[str, Any]:
    return common.run_apart(__file__, json.dumps([what, *arguments]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round: whether it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, *arguments = json.loads(options.one)
        print(json.dumps(MEASURES[what](*arguments)))
        return
    if options.quick:
        options.rounds, options.samples = 1, 4 * TURN
    loops = calibrated()
    rows, claims = [], []
    for batch in (32, 256):
        found = [measured("turns", batch, options.samples, loops)["rows"] for _ in range(options.rounds)]
        rows += [common.medians(list(one)) for one in zip(*found, strict=True)]
    for batch in (32, 256):
        rounds = [
            [measured("cpu", engine, batch, 2, options.samples, loops) for engine in ENGINES]
            for _ in range(options.rounds)
        ]
        for number in range(len(ENGINES)):
            ratio = statistics.median(one[number]["cpu_us"] / one[0]["cpu_us"] for one in rounds)
            rows.append({**common.medians([one[number] for one in rounds]), "ratio": ratio})
    for row in rows:
        if row["engine"] != TORCH:
            what = f"CPU of {row['engine']} by that of torch's, batches of {row['batch']}, {row['workers']} workers"
            claims.append(common.verdict(what, row["ratio"], 1.05, at_most=True))
    print(common.table(rows), flush=True)
    few = range(min(3, options.rounds))
    starts = [
        common.medians([measured("start", *case) for _ in few])
        for case in ((OURS, 10**9), (OURS, 10**5), (TORCH, 10**7))
    ]
    print(common.table(starts), flush=True)
    claims.append(common.verdict("first batch over 10^9 samples, ms", starts[0]["first_batch_ms"], 100, at_most=True))
    resumes = [
        common.medians([measured("resume", *case) for _ in few])
        for case in ((OURS, 10**9, 10**8), (OURS, 10**6, 10**5), ("torchdata", 10**6, 10**5))
    ]
    if has_lance():
        resumes.append(common.medians([measured("resume_lance", 10**6, 10**5) for _ in few]))
    else:
        claims.append("not installed, and left out: lancedb")
    print(common.table(resumes), flush=True)
    claims.append(common.verdict("resume at position 10^8, ms", resumes[0]["resume_ms"], 100, at_most=True))
    claims.append(common.verdict("samples read for it", resumes[0]["read"], 100, at_most=True))
    print("\n".join(claims))
    common.save(
        "dataloader",
        {"options": vars(options), "rows": rows, "starts": starts, "resumes": resumes, "claims": claims},
    )


if __name__ == "__main__":
    main()
