"""A trainer in processes of a gloo group, one of which may be killed, and what they said of their steps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from counts import PATIENCE_S
from headrace.stores import IndexedWriter


def write_store(folder: Path) -> str:
    """60 documents of 50 ids below 2,000."""
    lengths = np.full(60, 50)
    with IndexedWriter(folder / "text_document", dtype="uint16") as writer:
        writer.add_documents(np.random.default_rng(0).integers(0, 2000, lengths.sum()).astype(np.uint16), lengths)
        writer.finish()
    return str(folder)


def train(
    program: Path, arguments: list[Any], report: Path, world_size: int, kill: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """Run a program in so many processes, and return the lines of JSON that they wrote.

    Args:
        program: takes ``arguments``, and the micro-step at which it kills itself, or -1; writes REPORT-RANK.jsonl.
        arguments: what else it is called with; the report is one of them.
        report: where it writes.
        world_size: how many processes.
        kill: a rank, and the micro-step before which it is killed. The others are killed after it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(Path(headrace.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": paths}
    processes = []
    for rank in range(world_size):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        kill_at = kill[1] if kill is not None and kill[0] == rank else -1
        with Path(f"{report}-{rank}.log").open("wb") as log:
            command = [sys.executable, program, *map(str, arguments), str(kill_at)]
            processes.append(subprocess.Popen(command, env=environment | ranks, stdout=log, stderr=log))
    try:
        for process in [processes[kill[0]]] if kill else processes:
            code = process.wait(PATIENCE_S)
            said = "".join(Path(f"{report}-{rank}.log").read_text()[-4000:] for rank in range(world_size))
            assert code == (-signal.SIGKILL if kill else 0), said
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    texts = [Path(f"{report}-{rank}.jsonl").read_text() for rank in range(world_size)]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def samples_and_losses(said: list[dict[str, Any]]) -> tuple[dict[int, list[str]], dict[int, float]]:
    """Step -> its samples, sorted; step -> its loss, of the steps that came to their end."""
    fed: dict[int, list[str]] = defaultdict(list)
    for one in said:
        if "fed" in one:
            fed[one["step"]] += one["fed"]
    losses = {one["step"]: one["loss"] for one in said if "loss" in one}
    return {step: sorted(rows) for step, rows in fed.items()}, losses
