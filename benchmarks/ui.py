"""Pages of `headrace ui`: how long they take to open on 10^9 documents in 1,000 shards and a run of 10^10 samples.

    python benchmarks/ui.py [--rounds 3]

The store has 10^9 documents of 64 tokens. All of its shards are hard links to the same two files, and that of the
tokens is a hole. The run takes 10^10 windows of 64 tokens from another file that is a hole, and its batch is edited
once. 64 ranks have written 2,000 reports each. Each page is asked for by HTTP, from the command as users start it.
"first" is the time of the first request of a fresh server, which loads libraries and opens files; "again" is the median
of the three requests after that. "CPU" is what the server spent on the first request. How long the server takes until
it answers at all is in the first row. The browser's own time is left out. No peer has such pages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import common
import numpy as np
import psutil
from start import sparse_store

import headrace
from headrace.io import FileSum
from headrace.stores import DocumentLedger, KeyInfo, Ledger, Manifest, OutputShard, TokenLedger, save_manifest
from headrace.tracing import save_run

REASONS = {
    "live": "The reports of 64 ranks, 128,000 lines, are read for each request.",
    "s until": "Opening the 1,000 shards takes most of it.",
}
SHARDS, DOCUMENTS, TOKENS, SAMPLES, RANKS, REPORTS = 1000, 10**6, 64, 10**10, 64, 2000
PAGES = {
    "what is here": "",
    "a store": "store?path=store",
    "its documents": "documents?path=store&first=500000000",
    "one document": "documents?path=store&number=999999999",
    "search": "search?path=store",
    "a run": "run?path=run.json&step=1500000",
    "a step, 512 ranks": "step?path=run.json&step=900000&ranks=512&micro=8",
    "a sample": "fed?path=run.json&position=9000000000",
    "compare": "diff?one=run.json&other=other.json",
    "live, 64 ranks": f"live?path={quote('metrics-{rank}.jsonl')}",
}


def make(folder: Path) -> None:
    """Write the store, the runs and the reports: some 70 MB."""
    store = folder / "store"
    store.mkdir()
    first = store / "text_document_00000"
    with Path(f"{first}.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, DOCUMENTS, DOCUMENTS + 1))
        index.write(np.full(DOCUMENTS, TOKENS, np.int32).tobytes())
        index.write((np.arange(DOCUMENTS, dtype=np.int64) * 2 * TOKENS).tobytes())
        index.write(np.arange(DOCUMENTS + 1, dtype=np.int64).tobytes())
    with Path(f"{first}.bin").open("wb") as data:
        data.truncate(2 * TOKENS * DOCUMENTS)
    outputs = []
    for number in range(SHARDS):
        prefix, files = f"text_document_{number:05d}", []
        for suffix in (".bin", ".idx"):
            if number:
                os.link(f"{first}{suffix}", store / f"{prefix}{suffix}")
            size = Path(f"{first}{suffix}").stat().st_size
            files.append(
                FileSum(name=prefix + suffix, size=size, xxh3_128="0" * 32, block_bytes=1 << 40, xxh3_64=("0" * 16,))
            )
        keys = {"text": KeyInfo(dtype="uint16", tokens=TOKENS * DOCUMENTS)}
        shard = OutputShard(prefix=prefix, documents=DOCUMENTS, keys=keys, contiguous=True, files=tuple(files))
        outputs.append(shard)
    num, tokens = SHARDS * DOCUMENTS, SHARDS * DOCUMENTS * TOKENS
    ledger = Ledger(documents=DocumentLedger(read=num, kept=num), tokens=TokenLedger(made=tokens, kept=tokens))
    save_manifest(store, Manifest(outputs=tuple(outputs), ledger=ledger))
    (folder / "windows").mkdir()
    sparse_store(folder / "windows" / "shard-000", SAMPLES * TOKENS + 1)
    windows = headrace.WindowDataset(headrace.open(folder / "windows"), seq_len=TOKENS)
    run = headrace.Run(windows, global_batch_size=4096, order=headrace.Order(seed=1), samples=SAMPLES)
    save_run(run, folder / "other.json")
    save_run(run.edit(10**6, global_batch_size=8192, reason="larger"), folder / "run.json")
    for rank in range(RANKS):
        lines = []
        for step in range(REPORTS):
            waits = {f"wait_{stage}_s": 0.001 for stage in ("read", "decode", "encode", "pack", "collate", "hand_over")}
            report = {"step": step, "position": 4096 * (step + 1), "rank": rank, "seconds": 1.0, "samples": 64, **waits}
            lines.append(json.dumps(report) + "\n")
        (folder / f"metrics-{rank}.jsonl").write_text("".join(lines))


class Server:
    """The command, and how long it took until it answered."""

    def __init__(self, folder: Path) -> None:
        begin = time.perf_counter()
        program = [sys.executable, "-m", "headrace", "ui", ".", "--port", "0"]
        self.process = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = urlsplit(self.process.stdout.readline().strip())
        self.get("static/icon.svg")
        self.start_s = time.perf_counter() - begin
        self.start_cpu_s = self.cpu_s()

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def get(self, place: str) -> float:
        """Seconds until a whole page is there."""
        begin = time.perf_counter()
        connection = HTTPConnection(self.url.hostname or "", self.url.port, timeout=600)
        connection.request("GET", self.url.path + place)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{place}: {answer.status} {text.decode()[:2000]}")
        return time.perf_counter() - begin

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate(timeout=60)


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Each page of fresh servers, one server a page and round."""
    rows = []
    starts: list[tuple[float, float]] = []
    for name, place in PAGES.items():
        firsts, cpus, agains = [], [], []
        for _ in range(rounds):
            server = Server(folder)
            starts.append((server.start_s, server.start_cpu_s))
            firsts.append(server.get(place))
            cpus.append(server.cpu_s() - server.start_cpu_s)
            agains += [server.get(place) for _ in range(3)]
            server.stop()
        row = {"page": name, "first, s": statistics.median(firsts), "CPU, s": statistics.median(cpus)}
        rows.append({**row, "again, s": statistics.median(agains)})
    wall, cpu = (statistics.median(one) for one in zip(*starts, strict=True))
    return [{"page": "the server starts", "first, s": wall, "CPU, s": cpu, "again, s": wall}, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root:
        make(Path(root))
        rows = measure(Path(root), options.rounds)
    print(common.table(rows))
    claims = [common.verdict(f"{row['page']}, s until it is there", row["first, s"], 1, at_most=True) for row in rows]
    print("\n".join(claims))
    common.save("ui", {"options": vars(options), "rows": rows, "claims": claims})


if __name__ == "__main__":
    main()
