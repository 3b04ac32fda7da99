"""Preparation on many machines: what the engine costs a task, and large plans, on one machine.

    python benchmarks/scale.py [--tasks 2000] [--files 100000] [--receipts 100000] [--shards 3000] [--seconds 20]
                               [--rounds 3] [--quick]

Each measurement runs in a process of its own. Bytes that have to be on the disk are brought there, so wall times depend
on the disk. Nothing here was measured on a file system that several hosts share.

- Tasks: a job of tasks that do nothing, in one worker. The parts are measured apart; a heartbeat is due every five
  seconds.
- Plan: `headrace job plan prepare` over files of one record, in folders of a thousand. "open" is what each process does
  that takes part.
- Status: read from receipts that lie there, and again after 1,000 more.
- Finish: as many records as tasks, and as many shards in the output. "do" is the tasks in two workers.
- Executors: about ``--seconds`` of work for two processes, byte-level BPE by `tokenizers`, the library that datatrove
  uses too. Whole commands are measured, from start to end. The Ray cluster, with two CPUs and no dashboard, runs
  before; what all of its processes use meanwhile is counted, in samples taken 20 times a second.

The bars of the first reading of the status, and of Ray, were set before anything was measured. The others were set
after a first measurement, with room above it: they show when something becomes worse.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import corpus
import psutil
from watch import Usage, watch

REASONS = {
    "Ray": "The processes of the cluster count, some seconds for any job; the bar was set for a job of a minute.",
    "times datatrove": "Both encode by the same library, which takes most of the time; ours also hashes.",
}
DEPENDS = "The executors' CPU seconds are mostly those of `tokenizers`, which all use: they show that nothing is lost."
TASKS = str(Path(__file__).parent / "scale_tasks.py")
PEERS = str(Path(__file__).parent / "prepare_peers.py")
PROCESSES = 2
RAY = {**os.environ, "RAY_AUTH_MODE": "disabled"}
"""Ray asks for a token if it finds one in the home of the user; this cluster is for this host alone."""

TRIAL_MB = 12.0
"""Text of the run that tells how much text makes ``--seconds`` of work."""


class Cluster:
    """A Ray cluster of one node, and the CPU seconds of its processes."""

    def __init__(self, process: int, address: str) -> None:
        self.address = address
        self._root = psutil.Process(process)
        self._used: dict[psutil.Process, float] = {}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()

    @property
    def cpu_s(self) -> float:
        """What its processes have used so far, those that have ended among them."""
        return sum(self._used.values())

    def settle(self) -> None:
        """Wait until its processes, which import much when they begin, have nothing more to do; a minute at most."""
        calm, until = 0, time.monotonic() + 60
        while calm < 5 and time.monotonic() < until:
            before = self.cpu_s
            time.sleep(2)
            calm = calm + 1 if self.cpu_s - before < 0.1 else 0

    def stop(self) -> None:
        """Take no more samples."""
        self._ended.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.05):
            for process in self._root.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self._used[process] = times.user + times.system


@contextlib.contextmanager
def ray_cluster() -> Iterator[Cluster]:
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ray = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts"]
        command = [*ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}",
                   f"--num-cpus={PROCESSES}", "--include-dashboard=false", "--disable-usage-stats",
                   "--object-store-memory=100000000", f"--temp-dir={folder}"]  # fmt: skip
        process = subprocess.Popen(command, env=RAY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = f"127.0.0.1:{port}"
        try:
            status = [*ray, "status", "--address", address]
            until = time.monotonic() + 120
            while (told := subprocess.run(status, env=RAY, capture_output=True, text=True, check=False)).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the Ray cluster did not start: {told.stderr[-2000:]}")
            cluster = Cluster(process.pid, address)
            try:
                cluster.settle()
                yield cluster
            finally:
                cluster.stop()
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


class Executors:
    """Runs the same text with each executor."""

    def __init__(self, root: Path, seconds: float) -> None:
        self._root = root
        self._tokenizer = root / "tokenizer.json"
        trial = corpus.gather(TRIAL_MB)
        corpus.train_tokenizer(self._tokenizer, trial)
        self._write("trial", trial)
        usages = [self._run("local", "trial", *self._local("trial")) for _ in range(2)]
        # By CPU seconds, since other processes of the machine would make it little text.
        rate = corpus.text_bytes(trial) / 1e6 / min(usage.cpu_s for usage in usages)
        documents = corpus.gather(rate * seconds * PROCESSES)
        self._megabytes = corpus.text_bytes(documents) / 1e6
        self._write("whole", documents)

    def _write(self, name: str, documents: list[str]) -> None:
        (self._root / name).mkdir()
        for number in range(PROCESSES):
            share = slice(number * len(documents) // PROCESSES, (number + 1) * len(documents) // PROCESSES)
            corpus.write_jsonl(self._root / name / f"{number:03d}.jsonl", documents[share])

    def _prepare(self, name: str) -> list[str]:
        return ["-m", "headrace", "prepare", str(self._root / name), "--tokenizer", str(self._tokenizer),
                "--append-eod", "--backend", "tokenizers", "--quiet"]  # fmt: skip

    def _local(self, name: str) -> list[str]:
        return [*self._prepare(name), "--workers", str(PROCESSES)]

    def _run(self, engine: str, name: str, *command: str) -> Usage:
        folder = self._root / f"run-{engine}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        where = [] if engine == "datatrove" else ["--output", str(folder / "out")]
        environment = {
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "RAY_AUTH_MODE": RAY["RAY_AUTH_MODE"],
            "HEADRACE_CACHE": str(self._root / "cache"),
        }
        return watch([sys.executable, "-W", "ignore", *command, *where], folder, environment)

    def measure(self, engine: str, cluster: Cluster | None) -> dict[str, Any]:
        """One run."""
        if engine == "local":
            usage = self._run(engine, "whole", *self._local("whole"))
        elif engine == "datatrove":
            output = str(self._root / f"run-{engine}" / "out")
            source = str(self._root / "whole")
            usage = self._run(
                engine, "whole", PEERS, "--one", engine, source, str(self._tokenizer), output, str(PROCESSES)
            )
        else:
            assert cluster is not None
            before = cluster.cpu_s
            usage = self._run(engine, "whole", *self._prepare("whole"), "--executor", f"ray,address={cluster.address}")
            usage.cpu_s += cluster.cpu_s - before
        tokens = sum(
            file.stat().st_size // 2
            for file in (self._root / f"run-{engine}").rglob("*")
            if file.suffix in (".bin", ".ds")
        )
        return {
            "executor": engine,
            "cpu_s": usage.cpu_s,
            "wall_s": usage.wall_s,
            "text_mb": self._megabytes,
            "tokens": tokens,
        }


def executors(root: Path, seconds: float, rounds: int) -> list[dict[str, Any]]:
    runs = Executors(root, seconds)
    found: dict[str, list[dict[str, Any]]] = {"local": [], "ray": [], "datatrove": []}
    for _ in range(rounds):
        found["local"].append(runs.measure("local", None))
        with ray_cluster() as cluster:
            found["ray"].append(runs.measure("ray", cluster))
        found["datatrove"].append(runs.measure("datatrove", None))
    return [common.medians(rows) for rows in found.values()]


def engine(root: Path, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What needs no text of any size."""
    folders = (root / f"engine-{number}" for number in range(1000))

    def apart(name: str, *arguments: object, folder: Path | None = None) -> dict[str, Any]:
        if folder is None:
            folder = next(folders)
            folder.mkdir()
        return common.run_apart(TASKS, name, str(folder), *map(str, arguments))

    def repeated(name: str, *arguments: object) -> dict[str, Any]:
        return common.medians([apart(name, *arguments) for _ in range(options.rounds)])

    whole = repeated("tasks", options.tasks)
    rows = [{"part": name, "cpu_ms": value} for name, value in repeated("parts", options.tasks).items()]
    rows.append({"part": "a whole task", "cpu_ms": whole["cpu_s"], "wall_ms": whole["s"]})
    tokenizer = root / "small.json"
    corpus.train_tokenizer(tokenizer, ["a text of a few words"])
    plans = [{"files": options.files, **repeated("plan", options.files, tokenizer)}]
    states = []
    folder = next(folders)
    folder.mkdir()
    apart("receipts", options.receipts, folder=folder)
    states.append({"tasks": options.receipts, **apart("status", options.receipts, folder=folder)})
    ends = []
    for number in (options.shards // 10, options.shards):
        folder = next(folders)
        folder.mkdir()
        done = apart("do", number, tokenizer, folder=folder)
        ends.append({"tasks": done["tasks"], "do_s": done["s"], **apart("finish", folder=folder)})
    return {"tasks": rows, "plan": plans, "status": states, "finish": ends}


def claims(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    whole, plan, state = found["tasks"][-1], found["plan"][0], found["status"][0]
    few, many = found["finish"]
    local, ray, theirs = found["executors"]
    lines = [
        ("engine, CPU milliseconds a task", whole["cpu_ms"], 5),
        (f"plan of {plan['files']:,} files, s", plan["plan_s"], 30),
        (f"status of {state['tasks']:,} tasks, s", state["first_s"], 10),
        ("status after 1,000 more, s", state["again_s"], 1),
        (f"memory of the status of {state['tasks']:,} tasks, MB", state["peak_mb"], 200),
        (f"finish of {many['shards']:,} shards, s", many["s"], 120),
        ("CPU of finishing a task, times that with a tenth of them", _each(many) / _each(few), 1.5),
        ("memory that finish needs for more tasks, KB each", _growth_kb(few, many), 20),
        ("Ray, CPU seconds, times local", ray["cpu_s"] / local["cpu_s"], 1.1),
        ("local, CPU seconds, times datatrove", local["cpu_s"] / theirs["cpu_s"], 1),
    ]
    found_lines = [common.verdict(what, value, bar, at_most=True) for what, value, bar in lines]
    counts = {row["tokens"] for row in found["executors"]}
    return [*found_lines, common.verdict("different numbers of tokens among executors", len(counts), 1, at_most=True)]


def _each(row: dict[str, Any]) -> float:
    return row["cpu_s"] / row["tasks"]


def _growth_kb(few: dict[str, Any], many: dict[str, Any]) -> float:
    return 1000 * (many["peak_mb"] - few["peak_mb"]) / (many["tasks"] - few["tasks"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--receipts", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, once")
    options = parser.parse_args()
    if options.quick:
        for name in ("tasks", "files", "receipts", "shards"):
            setattr(options, name, getattr(options, name) // 10)
        options.seconds, options.rounds = options.seconds / 10, 1
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        found = engine(Path(folder), options)
        found["executors"] = executors(Path(folder), options.seconds, options.rounds)
    for name, rows in found.items():
        print(name, *(common.table([row]) for row in rows), sep="\n")
    lines = claims(found)
    print("\n".join(lines))
    common.save("scale", {"options": vars(options), **found, "claims": lines})


if __name__ == "__main__":
    main()
