"""Texts and images in one mix, killed anywhere, resumed on any topology: every step in the bytes that it has alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mixes_made
import slots
from counts import cases
from headrace import Loader, Order, Run
from headrace.datasets import Limit
from headrace.loader import Ranks, Reading
from loader.jobs import Job as AllRanks
from mixes_made import Drawn, Opened, expected, mixes, name_of, nodes_of, trimmed

MAX_POSITIONS = 300
DRAWN = st.randoms(use_true_random=True)
"""One number decides a case: drawn choice by choice, most cases are small variations of a few."""

Row = tuple[str, str, str]
"""Key, caption and the pixels in hex, of one sample as it was delivered."""


@dataclass(frozen=True)
class Leg:
    """One life of the job: how it is cut and reads, how often it saves, and when it ends."""

    world_size: int
    micro_batch_size: int
    reading: Reading
    micro_steps: int
    every: int = 1
    pause_s: float = 0.0

    def fitting(self, run: Run, position: int) -> Leg:
        """The same, with micro-batches of one source each where a mix promises that."""
        block = run.block_samples
        if block is None:
            return self
        _, begin, size, _ = run.schedule.locate(position)
        sizes = [size for _, size in run.schedule.pieces] + [begin + size - position]
        if run.length is not None:
            sizes.append(run.length - run.schedule.begin(run.schedule.step_of(run.length)))
        cuts = [(world, micro) for world in (self.world_size, 2, 1) for micro in (self.micro_batch_size, 4, 2, 1)]
        world, micro = next(
            (w, m) for w, m in cuts if block % m == 0 and all(one % (w * m) == 0 for one in sizes)
        )  # fmt: skip
        return Leg(world, micro, self.reading, self.micro_steps, self.every, self.pause_s)


def legs(rng: Random, *, most: int = 5) -> list[Leg]:
    found = []
    for _ in range(rng.randint(1, most)):
        # Worker processes take long to start, so they are tried on few ranks and not in every case.
        workers = rng.choice([0] * 24 + [1, 2])
        reading = Reading(num_workers=workers, num_threads=rng.randint(0, 3), prefetch=rng.randint(1, 3))
        found.append(
            Leg(
                world_size=rng.randint(1, 2 if workers else 7),
                micro_batch_size=rng.randint(1, 6),
                reading=reading,
                micro_steps=rng.choice([0, *range(1, 12)]),
                every=rng.randint(1, 4),
                pause_s=rng.choice([0.0, 0.0005, 0.003]),
            )
        )
    return found


@dataclass(frozen=True)
class Job:
    """All that a process needs to know to make the run again."""

    drawn: Drawn
    order: Order
    samples: int | None

    def run(self, opened: Opened) -> Run:
        return Run(
            self.drawn.data(opened), global_batch_size=self.drawn.batches, order=self.order, samples=self.samples
        )


def jobs(rng: Random) -> Job:
    order = Order(
        kind=rng.choice(["shards", "full", "blocks", "none"]),
        seed=rng.randint(0, 5),
        block_samples=rng.choice([1, 3, 50]),
        max_samples_per_sequence=rng.choice([2, 5, 100]),
        parallel_shard_iters=rng.randint(1, 4),
    )
    return Job(mixes(rng), order, rng.choice([None, None, None, 23, 24, 176]))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(mixes_made.write_sources(tmp_path_factory.mktemp("mixes")))


def rows(batch: dict[str, Any]) -> Iterator[tuple[int, Row]]:
    """The samples of a micro-batch with their positions; what pads an image is zeros, and is taken off."""
    for row, position in enumerate(batch["sample_positions"].tolist()):
        image = batch["image"][row].numpy()
        pixels = trimmed(image)
        assert image.sum(dtype=np.int64) == pixels.sum(dtype=np.int64)
        shown = f"{pixels.shape[0]}x{pixels.shape[1]} {pixels.tobytes().hex()}"
        yield position, (batch["__key__"][row], batch["caption"][row], shown)


def delivered(
    run: Run, leg: Leg, state: dict[str, Any] | None
) -> Iterator[tuple[list[tuple[int, Row]], dict[str, Any] | None]]:
    """What all ranks deliver, batch after batch; with that of the last rank the state that any of them would save."""
    leg = leg.fitting(run, 0 if state is None else state["position"])
    ranks = AllRanks(run, leg.world_size, leg.micro_batch_size, state, reading=leg.reading)
    try:
        for batches in ranks.micro_steps():
            steps = {run.schedule.step_of(p) for batch in batches for p in batch["sample_positions"].tolist()}
            assert len(steps) == 1, "a micro-step is of one step"
            for number, batch in enumerate(batches):
                found = list(rows(batch))
                if run.block_samples is not None and found:
                    sources = run.lookup(np.array([position for position, _ in found])).sources
                    assert (sources == sources[0]).all(), "a micro-batch is of one source"
                yield found, ranks.state() if number + 1 == len(batches) else None
    finally:
        ranks.close()


def check(run: Run, opened: Opened, seen: dict[int, Row]) -> None:
    """Nothing lost, nothing twice, in the bytes of a run that reads one by one; each sample the one that was meant."""
    assert sorted(seen) == slots.first_positions(run, len(seen))
    if not seen:
        return
    alone = Loader(run, micro_batch_size=1, ranks=Ranks(), reading=Reading(num_threads=0))
    plain: dict[int, Row] = {}
    for batch, _ in zip(alone, range(len(seen)), strict=False):
        plain.update(rows(batch))
    assert seen == plain
    positions = sorted(seen)
    found = run.lookup(np.array(positions))
    # Of whole steps the samples are those of the blend's first positions, of the step that was begun some.
    whole = len(seen) if len(seen) == run.length else run.schedule.begin(run.schedule.step_of(len(seen)))
    times: Counter[tuple[int, int, str]] = Counter()
    counted: Counter[tuple[int, int]] = Counter()
    for row, position in enumerate(positions):
        key, caption, shown = seen[position]
        source, number, epoch = int(found.sources[row]), int(found.indices[row]), int(found.epochs[row])
        leaf = run.plan.leaves[source]
        assert leaf.first_sample <= number < leaf.first_sample + leaf.num_samples, "of the part that was asked for"
        words, pixels = expected(name_of(run.datasets[source]), number)
        assert caption == words
        assert shown == f"{pixels.shape[0]}x{pixels.shape[1]} {pixels.tobytes().hex()}"
        times[source, epoch, key] += 1
        counted[source, epoch] += position < whole
    assert max(times.values()) == 1, "no sample twice in an epoch"
    if not any(isinstance(node, Limit) for node in nodes_of(run.data)):
        counts = run.plan.counts(whole)
        for number, (leaf, count) in enumerate(zip(run.plan.leaves, counts, strict=True)):
            assert sum(some for (source, _), some in counted.items() if source == number) == count
            assert all(counted[number, epoch] == leaf.num_samples for epoch in range(count // leaf.num_samples))


@settings(max_examples=cases(6, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(DRAWN)
def test_chains_of_lives_equal_the_uninterrupted_run(opened: Opened, rng: Random) -> None:
    job, lives = jobs(rng), legs(rng)
    run = job.run(opened)
    seen: dict[int, Row] = {}
    state = None
    for leg in lives:
        steps = 0
        for found, saved in delivered(run, leg, state):
            for position, row in found:
                assert position not in seen, "no sample twice"
                seen[position] = row
            if saved is not None:
                state, steps = saved, steps + 1
                assert state["position"] == len(seen)
                if steps >= leg.micro_steps or len(seen) > MAX_POSITIONS:
                    break
    check(run, opened, seen)


def lived(job: Job, leg: Leg, root: Path, checkpoint: Path) -> list[tuple[int, Row]]:
    """A life in a process of its own, which opens everything anew and goes on from the checkpoint, until kill -9."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.close(reading)
            work(job, leg, root, checkpoint, writing)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    got = b""
    try:
        while got.count(b"\n") < leg.micro_steps * leg.world_size and (more := os.read(reading, 1 << 16)):
            got += more
        time.sleep(leg.pause_s)
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), "the process failed, see its report"
        with contextlib.suppress(ProcessLookupError):
            # Workers of a process that is gone notice it after some seconds; they hold the other end of the pipe.
            os.killpg(child, signal.SIGKILL)
        os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            while more := os.read(reading, 1 << 16):
                got += more
    finally:
        os.close(reading)
    # The last line may be cut; what it tells was not delivered, and not saved.
    return [(position, tuple(row)) for line in got.split(b"\n")[:-1] for position, row in json.loads(line)]


def work(job: Job, leg: Leg, root: Path, checkpoint: Path, writing: int) -> None:
    run = job.run(Opened(root))
    state = json.loads(checkpoint.read_bytes()) if checkpoint.exists() else None
    steps = 0
    for found, saved in delivered(run, leg, state):
        line = json.dumps(found).encode() + b"\n"
        while line:
            line = line[os.write(writing, line) :]
        if saved is None:
            continue
        steps += 1
        if steps % leg.every == 0:
            checkpoint.with_suffix(".new").write_text(json.dumps(saved))
            checkpoint.with_suffix(".new").rename(checkpoint)
        if steps == 60 or saved["position"] > MAX_POSITIONS:
            return


@settings(max_examples=cases(3, 200), deadline=None, suppress_health_check=list(HealthCheck))
@given(DRAWN)
def test_killed_at_any_moment(opened: Opened, tmp_path_factory: pytest.TempPathFactory, rng: Random) -> None:
    job, lives = jobs(rng), legs(rng, most=4)
    checkpoint = tmp_path_factory.mktemp("job") / "state.json"
    run = job.run(opened)
    seen: dict[int, Row] = {}
    for leg in lives:
        begin = json.loads(checkpoint.read_bytes())["position"] if checkpoint.exists() else 0
        life = lived(job, leg, opened.root, checkpoint)
        # Of the micro-step in which it was killed not every rank may have got its part.
        fitted = leg.fitting(run, begin)
        whole = [position for position, _ in life]
        assert len(set(whole)) == len(whole), "no sample twice in a life"
        taken = set(slots.slots_of(run, np.array(whole, dtype=np.int64)).tolist())
        missing = set(range(begin, max(taken, default=begin - 1) + 1)) - taken
        assert len(missing) < fitted.world_size * fitted.micro_batch_size
        for position, row in life:
            assert seen.setdefault(position, row) == row, "what was undone comes again in the same bytes"
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_bytes())["position"]
            assert saved >= begin
            assert seen.keys() >= set(slots.first_positions(run, saved)), "all that a state says was delivered"
    most = len(seen) if run.length is None else min(len(seen), run.length)
    in_turn = slots.positions_of(run, np.arange(most)).tolist()
    whole_until = next((slot for slot, position in enumerate(in_turn) if position not in seen), most)
    check(run, opened, {position: seen[position] for position in in_turn[:whole_until]})
