"""`headrace.DataLoader` in a plain loop and in Lightning's Trainer: killed at random micro-steps, resumed elsewhere."""

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

from counts import FULL, PATIENCE_S
from headrace.loader import Ranks
from interop import data_loader_rank as rank_script

pytestmark = pytest.mark.interop
datasets = pytest.importorskip("datasets", reason="needs the extra interop: pip install -e '.[interop]'")

SCRIPT = Path(__file__).with_name("data_loader_rank.py")
Steps = dict[tuple[int, int], set[tuple[Any, ...]]]
"""(epoch, step) -> the samples, with their random numbers."""


def undisturbed(kind: str, folder: Path) -> Steps:
    loader = rank_script.loader_of(kind, folder, 0, ranks=Ranks())
    steps: Steps = defaultdict(set)
    for epoch in range(rank_script.EPOCHS):
        for at, batch in enumerate(loader):
            steps[epoch, at * rank_script.BATCH // rank_script.STEP] |= set(map(tuple, rank_script.words(batch)))
    return steps


def train(folder: Path, world_size: int, how: str, kind: str, num_workers: int, killed_at: int) -> Steps:
    """Train with some processes until one is killed, or to the end, and return what they said."""
    before = set(folder.glob("said-*"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"TORCHELASTIC_RUN_ID": "headrace", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    victim = random.Random(killed_at).randrange(world_size)
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, how, kind, folder, str(num_workers), str(killed_at if rank == victim else 0)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    codes = {rank.returncode for rank in ranks}
    assert codes <= ({-signal.SIGKILL, 1} if killed_at else {0}), outputs
    assert not killed_at or -signal.SIGKILL in codes
    steps: Steps = defaultdict(set)
    for file in set(folder.glob("said-*")) - before:
        for line in file.read_text().splitlines():
            epoch, step, samples = json.loads(line)
            steps[epoch, step] |= set(map(tuple, samples))
    return steps


CASES = [(kind, workers) for kind in ("torch", "datasets") for workers in (0, 2)]


@pytest.mark.parametrize(("kind", "num_workers"), CASES if FULL else CASES[::3])
@pytest.mark.parametrize("how", ["loop", "trainer"])
def test_killed_and_resumed_on_2_1_and_3_ranks(how: str, kind: str, num_workers: int, tmp_path: Path) -> None:
    rows = {"number": list(range(rank_script.SAMPLES)), "x": [[float(n)] * 4 for n in range(rank_script.SAMPLES)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "rows"))
    whole = undisturbed(kind, tmp_path)
    assert len(whole) == 4 * rank_script.EPOCHS
    draw = random.Random(f"{how} {kind}")
    found: Steps = {}
    # A step takes 3, 6 and 2 micro-steps of 2, 1 and 3 ranks, and an epoch 4 steps, of which the last one is short.
    for world_size, killed_at in ((2, draw.randint(5, 18)), (1, draw.randint(4, 20)), (3, 0)):
        part = train(tmp_path, world_size, how, kind, num_workers, killed_at)
        last = max(part)
        assert all(part[key] <= whole[key] for key in part), "the step of the kill is not whole"
        assert all(part[key] == whole[key] for key in part if key != last)
        # What was trained after the last checkpoint comes again.
        found |= part
    assert found == whole
