"""Edited runs: how long they take to start and to look a step up, and what an account costs at 10^10 samples.

    python benchmarks/edits.py [--rounds 3]

The data are windows of 64 tokens over a sparse file, 10^10 samples, in a blend of ten sources. Edits change the
weights every hundred steps, and every tenth one skips ten steps. Each measurement runs in a process of its own;
imports are not counted. "load" is `Run.load`, which reads the run and its edits from ``run.json`` and opens the
stores. "first batch" is that of a loader that takes up a state in the middle of the edits. "lookup" is one call for
the positions of a step there. "account" says what became of every sample of the sources, after 2 x 10^10 samples were
fed. No peer has edits of a run, so there is none beside ours.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import common
from start import sparse_store

import headrace
from headrace.loader import Ranks

REASONS = {"start with": "Each edit is applied again and checked by sums, which takes about half a millisecond."}
SAMPLES, WINDOW, SOURCES = 10**10, 64, 10
EVERY = 100
EDITS = (0, 10, 1000)
BATCH = 512


def made_run(folder: Path, num_edits: int) -> headrace.Run:
    """The run, with its edits."""
    dataset = headrace.WindowDataset(headrace.open(folder / "store"), seq_len=WINDOW)
    data = {f"source-{number}": dataset for number in range(SOURCES)}
    blend = headrace.Blend(data, weights={name: 1 + number for number, name in enumerate(data)})
    run = headrace.Run(blend, global_batch_size=BATCH, order=headrace.Order(seed=1))
    for number in range(num_edits):
        step = (number + 1) * EVERY
        if number % 10 == 9:
            run = run.skip(range(step, step + 10))
        else:
            run = run.edit(step, weights={name: 1 + (number + i) % 7 for i, name in enumerate(data)})
    return run


def measure(folder: Path, num_edits: int) -> dict[str, Any]:
    begin = time.process_time()
    run = headrace.Run.load(folder / f"{num_edits}.json")
    load_s = time.process_time() - begin
    step = num_edits * EVERY // 2
    state = json.loads((folder / f"{num_edits}.state").read_text())
    begin = time.process_time()
    loader = headrace.Loader(run, micro_batch_size=8, ranks=Ranks())
    loader.load_state_dict(state)
    next(iter(loader))
    first_batch_s = time.process_time() - begin
    positions = run.positions(step)
    lookups = []
    for _ in range(200):
        begin = time.perf_counter()
        run.lookup(positions)
        lookups.append(time.perf_counter() - begin)
    begin = time.process_time()
    told = run.account(num_edits * EVERY + 2 * SAMPLES // BATCH)
    account_s = time.process_time() - begin
    return {
        "edits": num_edits,
        "load_s": load_s,
        "first_batch_s": first_batch_s,
        "lookup_us": 1e6 * sorted(lookups)[100],
        "account_s": account_s,
        "account_samples": told.fed.samples,
        "state_bytes": (folder / f"{num_edits}.state").stat().st_size,
        "run_file_kb": (folder / f"{num_edits}.json").stat().st_size / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "EDITS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, num_edits = options.one
        print(json.dumps(measure(Path(folder), int(num_edits))))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root:
        folder = Path(root)
        (folder / "store").mkdir()
        sparse_store(folder / "store" / "shard-000", SAMPLES * WINDOW + 1)
        for num_edits in EDITS:
            run = made_run(folder, num_edits)
            headrace.tracing.save_run(run, folder / f"{num_edits}.json")
            loader = headrace.Loader(run, micro_batch_size=8, ranks=Ranks(), position=num_edits * EVERY // 2 * BATCH)
            (folder / f"{num_edits}.state").write_text(json.dumps(loader.state_dict()))
        for num_edits in EDITS:
            found = [common.run_apart(__file__, root, str(num_edits)) for _ in range(options.rounds)]
            rows.append(common.medians(found))
    print(common.table(rows))
    most = rows[-1]
    claims = [
        common.verdict("start with 1,000 edits, s", most["load_s"] + most["first_batch_s"], 1, at_most=True),
        common.verdict("account at 10^10 samples, without edits, s", rows[0]["account_s"], 1, at_most=True),
        common.verdict("account at 10^10 samples, with 1,000 edits, s", most["account_s"], 1, at_most=True),
        common.verdict(
            "lookup with 1,000 edits, times that with none", most["lookup_us"] / rows[0]["lookup_us"], 2, at_most=True
        ),
    ]
    print("\n".join(claims))
    common.save("edits", {"options": vars(options), "rows": rows, "claims": claims})


if __name__ == "__main__":
    main()
