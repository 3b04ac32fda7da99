"""`headrace.DataLoader` in Lightning's Trainer: killed at random micro-steps, resumed elsewhere."""

from __future__ import annotations

import json
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import warm
from counts import FULL, PATIENCE_S
from headrace.loader import Ranks
from interop import data_loader_rank as rank_script
from ports import free_port

pytestmark = pytest.mark.interop
datasets = pytest.importorskip("datasets", reason="needs the extra interop: pip install -e '.[interop]'")


@pytest.fixture(scope="module")
def process() -> Iterator[warm.Warm]:
    """What has imported the trainer."""
    pytest.importorskip("lightning.pytorch")
    started = warm.Warm(["headrace.loader.data_loader", "datasets", "lightning.pytorch"], ("-W", "ignore"))
    yield started
    started.close()


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


class Job(NamedTuple):
    """A training in a folder."""

    process: warm.Warm
    folder: Path
    how: str
    kind: str
    num_workers: int

    def live(self, world_size: int, killed_at: int) -> Steps:
        """Train with some processes until one is killed, or to the end, and return what they said."""
        before = set(self.folder.glob("said-*"))
        port = free_port()
        victim = random.Random(killed_at).randrange(world_size)
        programs = []
        for rank in range(world_size):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
            variables |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "headrace"}
            said = json.dumps({name: str(value) for name, value in variables.items()})
            killed = killed_at if rank == victim else 0
            arguments = [self.how, self.kind, self.folder, self.num_workers, killed, said]
            programs.append([str(SCRIPT), *map(str, arguments)])
        ended = warm.together(self.process, programs, self.folder, PATIENCE_S)
        codes = {one.code for one in ended}
        assert codes <= ({-signal.SIGKILL, 1} if killed_at else {0}), ended
        assert not killed_at or -signal.SIGKILL in codes
        return said_in(set(self.folder.glob("said-*")) - before)


def said_in(files: set[Path]) -> Steps:
    steps: Steps = defaultdict(set)
    for file in files:
        for line in file.read_text().splitlines():
            epoch, step, samples = json.loads(line)
            steps[epoch, step] |= set(map(tuple, samples))
    return steps


CASES = [(kind, workers) for kind in ("torch", "datasets") for workers in (0, 2)]


def killed(job: Job, lives: list[tuple[int, int]]) -> None:
    """Compare what the lives of a job were fed with a training that nobody disturbs."""
    rows = {"number": list(range(rank_script.SAMPLES)), "x": [[float(n)] * 4 for n in range(rank_script.SAMPLES)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(job.folder / "rows"))
    whole = undisturbed(job.kind, job.folder)
    assert len(whole) == 4 * rank_script.EPOCHS
    found: Steps = {}
    for world_size, killed_at in lives:
        part = job.live(world_size, killed_at)
        last = max(part)
        assert all(part[key] == whole[key] for key in part if key != last)
        assert part[last] <= whole[last], "the step of the kill is not whole"
        # What was trained after the last checkpoint comes again.
        found |= part
    assert found == whole


@pytest.mark.parametrize(("kind", "num_workers"), CASES if FULL else CASES[3:])
def test_lightning_on_2_1_and_3_ranks(kind: str, num_workers: int, process: warm.Warm, tmp_path: Path) -> None:
    draw = random.Random(kind)
    # A step takes 3, 6 and 2 micro-steps of 2, 1 and 3 ranks, and an epoch 4 steps, of which the last one is short.
    lives = [(2, draw.randint(5, 9)), (1, draw.randint(4, 20)), (3, 0)]
    killed(Job(process, tmp_path, "exact", kind, num_workers), lives)


@pytest.mark.parametrize(("kind", "num_workers"), CASES if FULL else CASES[1:2])
def test_lightning_takes_the_loader_as_it_is(kind: str, num_workers: int, process: warm.Warm, tmp_path: Path) -> None:
    """On as many ranks: its own count of batches is that of the ranks that it had."""
    # An epoch takes 10 micro-steps. The second life is killed in the first one after an epoch.
    first = random.Random(kind).randint(4, 9)
    killed(Job(process, tmp_path, "trainer", kind, num_workers), [(2, first), (2, 11 - (first - 1) // 3 * 3), (2, 0)])
