"""Trainings that are edited, killed and resumed on other ranks: each step holds what its run says, and every epoch of
every source is fed exactly once but for what the edits pass over."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
import records_made
from counts import cases
from headrace import (
    Blend,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    SFTDataset,
    WindowDataset,
)
from headrace.datasets import Dataset
from headrace.loader import Ranks, Reading
from loader.jobs import Job

PLAIN = Reading(num_threads=0)
NAMES = ("web", "code", "math", "forum", "books")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Dataset]]:
    """For each kind of data five datasets of different lengths."""
    folder = tmp_path_factory.mktemp("edited")
    stores = [corpora.make(folder / f"t{number}", number, 8 + 7 * number).store for number in range(5)]
    made = [records_made.sft(number, 9 + 4 * number) for number in range(5)]
    records = [records_made.store(folder / f"r{number}", rows) for number, rows in enumerate(made)]
    return {
        "windows": [WindowDataset(store, seq_len=8) for store in stores],
        "moving windows": [WindowDataset(store, seq_len=8, phase=True) for store in stores],
        "packs": [PackedSequenceDataset(store, Packing(seq_len=32, over_long="split")) for store in stores],
        "records": [SFTDataset(store) for store in records],
    }


class Life:
    """A training that goes through runs, and what it was fed at each step."""

    def __init__(self, rng: random.Random, run: Run) -> None:
        self.rng = rng
        self.run = run
        self.state: dict[str, Any] | None = None
        self.fed: dict[int, list[int]] = defaultdict(list)
        self.position = 0

    def go_on(self, num_samples: int) -> None:
        """Train on some ranks up to a position or beyond it, stop after any micro-step, and keep the state."""
        world_size, micro = self.rng.choice([1, 1, 2, 3]), self.rng.choice([1, 2, 4])
        job = Job(self.run, world_size, micro, self.state)
        micro_steps = job.micro_steps()
        while self.position < num_samples:
            step = job.loaders[0].step
            if (batches := next(micro_steps, None)) is None:
                break
            for batch in batches:
                self.fed[step] += batch["sample_positions"].tolist()
            self.state = job.state()
            self.position = self.state["position"]

    @property
    def step(self) -> int:
        """The first step that nothing was fed of."""
        found = self.run.schedule.step_of(self.position)
        return found + (self.run.schedule.begin(found) < self.position)


def edited(rng: random.Random, life: Life, datasets: dict[str, Dataset]) -> Run:
    """Return the run of a life with an edit that takes effect from its present step on, or some steps later."""
    run = life.run
    at = life.step + rng.choice([0, 0, 1, 2, 5])
    if any(edit.at_step >= at for edit in run.edits):
        at = max(edit.at_step for edit in run.edits) + 1
    what = rng.choice(["weights", "weights", "nested", "order", "batch", "skip", "defer"])
    if what == "weights":
        names = rng.sample(sorted(datasets), rng.randrange(1, len(datasets) + 1))
        return run.edit(at, data=blend(rng, {name: datasets[name] for name in names}))
    if what == "nested":
        names = sorted(datasets)
        inner = blend(rng, {name: datasets[name] for name in names[:2]})
        outer = {"pair": inner, **{name: datasets[name] for name in names[2:]}}
        return run.edit(at, data=Blend(outer, weights={name: rng.choice([1, 2, 3]) for name in outer}))
    if what == "order":
        return run.edit(at, order=Order(kind=rng.choice(["full", "blocks"]), seed=rng.randrange(5), block_samples=4))
    if what == "batch":
        return run.edit(at, global_batch_size=rng.choice([4, 6, [(0, 2), (3, 5)]]))
    return run.skip(range(at, at + rng.choice([1, 2, 7])), then="drop" if what == "skip" else "defer")


def blend(rng: random.Random, children: dict[str, Dataset]) -> Blend:
    return Blend(children, weights={name: rng.choice([1, 1, 2, 3, 7]) for name in children})


@pytest.mark.parametrize("kind", ["windows", "moving windows", "packs", "records"])
@pytest.mark.parametrize("seed", range(cases(6, 1_250)))
def test_lives(kinds: dict[str, list[Dataset]], kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    datasets = dict(zip(NAMES, rng.sample(kinds[kind], rng.randrange(2, 6)), strict=False))
    run = Run(blend(rng, datasets), global_batch_size=rng.choice([4, 5, 8]), order=Order(seed=seed))
    life = Life(rng, run)
    for _ in range(rng.randrange(1, 6)):
        life.go_on(life.position + rng.randrange(0, 60))
        before = life.run
        life.run = edited(rng, life, datasets)
        # What was fed is the past of the new run, too.
        assert life.run.past(life.position).hashes() == before.past(life.position).hashes()
    life.go_on(life.position + 150)
    check_steps(life)
    check_epochs(life)


def check_steps(life: Life) -> None:
    """Each step was fed the positions that the last run has there, whatever ranks there were and however it came."""
    last = max(life.fed)
    for step, positions in life.fed.items():
        wanted = life.run.positions(step).tolist()
        if step == last:
            wanted = wanted[: len(positions)] if life.run.draw is None else wanted
            assert set(positions) <= set(wanted)
        else:
            assert sorted(positions) == wanted
    flat = [position for positions in life.fed.values() for position in positions]
    assert len(flat) == len(set(flat)) == life.position


def check_epochs(life: Life) -> None:
    """Within an epoch no sample comes twice; all of a past epoch came, but for those that were dropped."""
    run = life.run
    plan = run.plan
    found = plan.lookup(np.arange(life.position, dtype=np.int64))
    times: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for series, epoch, index in zip(found.sources.tolist(), found.epochs.tolist(), found.indices.tolist(), strict=True):
        times[plan.source_of[series], epoch][index] += 1
    assert all(count == 1 for counter in times.values() for count in counter.values())
    if any(edit.skip_steps for edit in run.edits):
        return
    newest: dict[int, int] = {}
    for source, epoch in times:
        newest[source] = max(newest.get(source, 0), epoch)
    for (source, epoch), counter in times.items():
        if epoch < newest[source]:
            assert len(counter) == len(run.datasets[plan.source_of.index(source)])


def test_lengths_around_powers_of_two(tmp_path: Path) -> None:
    """Sources of 2^k - 1, 2^k and 2^k + 1 samples, edited at step 0, at borders of epochs and at the end."""
    datasets: dict[str, Dataset] = {}
    for name, count in zip(NAMES, (15, 16, 17), strict=False):
        corpora.write(tmp_path / name / "text_document", [np.arange(count * 8 + 1)])
        datasets[name] = WindowDataset(headrace.open(tmp_path / name), seq_len=8)
    run = Run(Blend(datasets, weights=dict.fromkeys(datasets, 1)), global_batch_size=8, samples=144)
    for step in (0, 1, 2, 3, 6, 17, 18):
        changed = run.edit(step, data=Blend(datasets, weights={"web": 2, "code": 1, "math": 1}), samples=160)
        loader = Loader(changed, micro_batch_size=8, ranks=Ranks(), reading=PLAIN)
        flat = [position for batch in loader for position in batch["sample_positions"].tolist()]
        assert sorted(flat) == list(range(160))
        found = changed.lookup(np.arange(160, dtype=np.int64))
        for source, dataset in enumerate(datasets.values()):
            rows = found.sources == source
            counts = Counter(zip(found.epochs[rows].tolist(), found.indices[rows].tolist(), strict=True))
            assert set(counts.values()) == {1}
            assert set(found.epochs[rows].tolist()) == set(range((int(rows.sum()) - 1) // len(dataset) + 1))
