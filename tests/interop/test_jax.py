"""A `NumpyLoader` feeds JAX in several processes: killed at random micro-steps, resumed on other numbers of them."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import corpora
from interop import trainer_processes

pytestmark = pytest.mark.interop
pytest.importorskip("jax", reason="needs the extra interop: pip install -e '.[interop]'")


def train(folder: Path, world_size: int, store: Path, killed_at: int = 0) -> dict[int, list[Any]]:
    """Train with some processes; return for each step the positions that it was fed, and the sum of its losses."""
    fed: dict[int, list[Any]] = defaultdict(lambda: [set(), {}])
    for step, positions, loss in trainer_processes.said_by(
        "jax_rank.py", [store, folder], folder, world_size, killed_at, JAX_PLATFORMS="cpu"
    ):
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
