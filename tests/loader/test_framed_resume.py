"""Framed runs killed anywhere and resumed on any topology, in chains: every unit is that of an uninterrupted run."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import framed_made
import media_texts
from counts import cases
from framed_made import Unit, Whole, rows_of
from headrace import Loader, Order
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.loader import Ranks, Reading, merge_state_dicts
from headrace.loader.framed import feed

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    root = tmp_path_factory.mktemp("framed")
    return media_texts.shards(root / "a", (20, 17)), media_texts.shards(root / "b", (9,))


@dataclass(frozen=True)
class Leg:
    """One life of the job: topology, readers, its micro-steps; a worker is killed before number ``lost``."""

    world_size: int
    micro_batch_size: int
    reading: Reading
    micro_steps: int
    lost: int | None


@dataclass(frozen=True)
class Kind:
    """What decides the units."""

    form: str
    frame_positions: int
    pieces: tuple[tuple[int, int], ...]
    num_lanes: int | None
    num_sources: int
    samples: int | None
    steps: int | None

    def run(self, places: tuple[Path, ...]) -> FramedRun:
        data = framed_made.framed(
            self.form, list(places[: self.num_sources]), frame_positions=self.frame_positions, seed=3
        )
        return FramedRun(
            data,
            global_batch_size=self.pieces,
            num_lanes=self.num_lanes,
            order=Order(seed=2),
            samples=self.samples,
            steps=self.steps,
        )


@cache
def whole(kind: Kind, places: tuple[Path, ...]) -> Whole:
    return Whole(kind.run(places))


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    sizes = draw(st.sampled_from([(4,), (6,), (5,), (4, 8), (6, 12, 6), (8, 4)]))
    pieces = tuple((3 * number, size) for number, size in enumerate(sizes))
    num_samples = draw(st.sampled_from([None, None, 40, 90]))
    return Kind(
        form=draw(st.sampled_from(sorted(framed_made.KINDS))),
        frame_positions=draw(st.sampled_from([1, 7])),
        pieces=pieces,
        num_lanes=draw(st.sampled_from([None, None, 2])) if all(size % 2 == 0 for size in sizes) else None,
        num_sources=draw(st.sampled_from([1, 2])),
        samples=num_samples,
        steps=draw(st.sampled_from([None, None, 5])),
    )


@st.composite
def legs(draw: st.DrawFn) -> list[Leg]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        workers = draw(st.sampled_from([0] * 6 + [1, 2, 3]))
        reading = Reading(
            num_workers=workers,
            num_threads=0,
            prefetch=draw(st.integers(1, 2)),
            pin_memory=False,
            start_method="fork" if workers else None,
        )
        found.append(
            Leg(
                world_size=draw(st.integers(1, 2 if workers else 4)),
                micro_batch_size=draw(st.integers(1, 3)),
                reading=reading,
                micro_steps=draw(st.integers(0, 8)),
                lost=draw(st.sampled_from([None, 0, 1, 3])) if workers else None,
            )
        )
    return found


def loaders_of(run: FramedRun, leg: Leg, states: list[dict[str, Any]], *, own: bool) -> list[Loader]:
    micro = 1 if run.is_group_batches else leg.micro_batch_size
    loaders = [
        Loader(run, micro_batch_size=micro, ranks=Ranks(rank, leg.world_size), reading=leg.reading)
        for rank in range(leg.world_size)
    ]
    if states:
        merged = merge_state_dicts(states)
        for rank, loader in enumerate(loaders):
            loader.load_state_dict(json.loads(json.dumps(states[rank] if own else merged)))
    return loaders


def life(run: FramedRun, leg: Leg, loaders: list[Loader], seen: dict[int, Unit]) -> list[dict[str, Any]]:
    """One life of all ranks; adds to ``seen`` what each unit was, and returns the states at the kill."""
    iterators = [iter(loader) for loader in loaders]
    for micro_step in range(leg.micro_steps):
        if micro_step == leg.lost and (children := active_children()):
            os.kill(children[micro_step % len(children)].pid or 0, signal.SIGKILL)
        batches = [next(iterator, None) for iterator in iterators]
        if None in batches:
            assert batches == [None] * len(batches), "all ranks end together"
            break
        for batch in batches:
            for number, unit in rows_of(batch or {}, is_group=run.is_group_batches).items():
                assert number not in seen, "no unit twice"
                seen[number] = unit
    states = [loader.state_dict() for loader in loaders]
    assert len({loader.position for loader in loaders}) == 1
    for iterator, loader in zip(iterators, loaders, strict=True):
        iterator.close()  # type: ignore[attr-defined]
        loader.close()
    return states


@settings(max_examples=cases(5, 2_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(kinds(), legs(), st.booleans())
def test_chains_of_kills_equal_the_uninterrupted_run(
    places: tuple[Path, ...], kind: Kind, lives: list[Leg], own: bool
) -> None:
    run = kind.run(places)
    uninterrupted = whole(kind, places)
    seen: dict[int, Unit] = {}
    states: list[dict[str, Any]] = []
    before: Leg | None = None
    with pytest.MonkeyPatch.context() as patch:
        # The ranks are in one process here: that they agree on the end is shown in test_framed_ranks.
        if kind.samples is not None:
            last = uninterrupted.last_step()
            patch.setattr(feed, "largest", lambda step: max(step, last))
        for leg in lives:
            same = before is not None and (before.world_size, before.micro_batch_size) == (
                leg.world_size,
                leg.micro_batch_size,
            )
            states = life(run, leg, loaders_of(run, leg, states, own=own and same), seen)
            before = leg
    position = states[0]["position"]
    wanted = uninterrupted.up_to(position)
    for number, unit in seen.items():
        # What is drawn for a batch is there for the first unit of each.
        expected = (
            wanted[number] if "batch_draw" in unit else {k: v for k, v in wanted[number].items() if k != "batch_draw"}
        )
        assert unit == expected
    assert seen.keys() == wanted.keys(), "nothing lost"
