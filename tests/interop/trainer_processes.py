"""A trainer in processes of a gloo group, one of which may be killed, and what they said of their steps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from counts import PATIENCE_S
from headrace.stores import IndexedWriter
from ports import free_port


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
    paths = os.pathsep.join([str(Path(headrace.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": paths}
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


def said_by(
    script: str, arguments: list[Any], folder: Path, world_size: int, killed_at: int, **variables: str
) -> list[Any]:
    """Run a script of this room in so many processes until they kill themselves, or to the end; what they said.

    Args:
        script: takes ``arguments``, and the micro-step at which it kills itself, or 0; writes FOLDER/said-*.
        arguments: what else it is called with.
        folder: where it writes; it is made.
        world_size: how many processes.
        killed_at: that micro-step.
        **variables: of the environment.
    """
    folder.mkdir(exist_ok=True)
    before = set(folder.glob("said-*"))
    environment = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", **variables}
    environment["MASTER_PORT"] = str(free_port())
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, [*arguments, killed_at])]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    assert -signal.SIGKILL in codes if killed_at else codes == [0] * world_size, outputs
    files = sorted(set(folder.glob("said-*")) - before)
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def digest(tokens: Any) -> str:
    """What a program says of a sample."""
    return hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest()[:12]


def check_lives(
    told: list[tuple[dict[int, list[str]], dict[int, float]]], run: headrace.Run, *, first_step: int = 0
) -> None:
    """The first training, which nobody disturbed, has the samples of the run, and the lives of the other one its own.

    ``told`` are the `samples_and_losses` of each; trainers may count their steps from 1.
    """
    samples, losses = told[0]
    for step, rows in samples.items():
        assert rows == sorted(map(digest, run.step(step - first_step)["input_ids"]))
    for fed, lost in told[1:]:
        assert lost == pytest.approx({step: losses[step] for step in lost}, rel=1e-5)
        assert all(fed[step] == samples[step] for step in lost)


def samples_and_losses(said: list[dict[str, Any]]) -> tuple[dict[int, list[str]], dict[int, float]]:
    """Step -> its samples, sorted; step -> its loss, of the steps that came to their end."""
    fed: dict[int, list[str]] = defaultdict(list)
    for one in said:
        if "fed" in one:
            fed[one["step"]] += one["fed"]
    losses = {one["step"]: one["loss"] for one in said if "loss" in one}
    return {step: sorted(rows) for step, rows in fed.items()}, losses
