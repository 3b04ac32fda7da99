"""A `NumpyLoader` feeds JAX in several processes: killed at random micro-steps, resumed on other numbers of them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import corpora
from counts import PATIENCE_S

pytestmark = pytest.mark.interop
pytest.importorskip("jax", reason="needs the extra interop: pip install -e '.[interop]'")

SCRIPT = Path(__file__).with_name("jax_rank.py")


def train(folder: Path, world_size: int, store: Path, killed_at: int = 0) -> dict[int, list[Any]]:
    """Train with some processes; return for each step the positions that it was fed, and the sum of its losses."""
    folder.mkdir(exist_ok=True)
    before = set(folder.glob("said-*"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": str(world_size), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), str(store), str(folder), str(port), str(killed_at)]
    ranks = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(world_size)
    ]
    errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    assert -signal.SIGKILL in codes if killed_at else codes == [0] * world_size, errors
    fed: dict[int, list[Any]] = defaultdict(lambda: [set(), {}])
    for file in sorted(set(folder.glob("said-*")) - before):
        for line in file.read_text().splitlines():
            step, positions, loss = json.loads(line)
            fed[step][0] |= set(positions)
            # Each process says the loss of the whole micro-step.
            fed[step][1][min(positions) // 4] = loss
    return {
        step: [positions, pytest.approx(sum(losses.values()), rel=1e-4)] for step, (positions, losses) in fed.items()
    }


def test_killed_and_resumed_on_other_processes(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    store = Path(corpus[0].store.path)
    whole = train(tmp_path / "whole", 1, store)
    assert [sorted(positions) for positions, _ in whole.values()] == [list(range(8 * i, 8 * i + 8)) for i in range(10)]
    draw = random.Random(5)
    found: dict[int, list[Any]] = {}
    # Two micro-steps a step, a checkpoint every two steps.
    for world_size, killed_at in ((1, draw.randint(5, 8)), (2, draw.randint(5, 8)), (1, 0)):
        part = train(tmp_path / "killed", world_size, store, killed_at)
        assert killed_at == 0 or part.keys() < whole.keys()
        found |= part
    assert found == whole
