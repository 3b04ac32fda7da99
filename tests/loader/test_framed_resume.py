"""Framed runs killed anywhere and resumed on any topology, in chains: every unit is that of an uninterrupted run.

Runs that are edited at a state in between are the edited run as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import framed_made
import media_texts
from counts import cases
from framed_made import Unit, Whole, rows_of
from headrace import ConfigError, Exclude, Loader, MediaDataset, Order
from headrace.datasets.encoded.framed import Framed
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.datasets.mix import named_datasets
from headrace.encoders import ErrorPolicy
from headrace.errors import StateError
from headrace.loader import Ranks, Reading, merge_state_dicts
from headrace.loader.framed import feed
from headrace.plan import Cursor
from headrace.tracing import framed_history, save_run
from waiting import workers_now

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
NO_THREADS = Reading(num_threads=0, pin_memory=False)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    root = tmp_path_factory.mktemp("framed")
    return tuple(media_texts.shards(root / name, sizes) for name, sizes in (("a", (20, 17)), ("b", (9,)), ("c", (13,))))


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
        if micro_step == leg.lost and (children := sorted(workers_now(), key=lambda worker: worker.pid)):
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
        # The ranks are in one process here: that they agree on the end is shown in test_framed.
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


def edited_run(places: tuple[Path, ...], form: str = "packs", **options: Any) -> FramedRun:
    return framed_made.framed_run(form, list(places[:2]), **options)


def lived(
    run: FramedRun, states: list[dict[str, Any]], world_size: int, micro_steps: int, seen: dict[int, Any]
) -> list[dict[str, Any]]:
    """One life of all ranks without workers, which adds its units to ``seen``; the states at its end."""
    leg = Leg(world_size, 1, NO_THREADS, micro_steps, None)
    return life(run, leg, loaders_of(run, leg, states, own=False), seen)


def changed(run: FramedRun, state: dict[str, Any], kind: str, places: tuple[Path, ...], seed: int) -> FramedRun:
    """The run with an edit at a state; without one if it was edited there already, or has no such source."""
    names = list(named_datasets(run.stream.data))
    reached = run.lanes.reached(run.lane_states(Cursor.from_dict(state)))
    if run.edits and reached <= run.edits[-1].at_step:
        return run
    match kind:
        case "weights":
            return run.edit(state, weights={name: 1 + (seed + number) % 5 for number, name in enumerate(names)})
        case "add" if "d2" not in names:
            more = MediaDataset.open(places[2], **media_texts.TEXT)
            return run.edit(state, weights={**dict.fromkeys(names, 1), "d2": 1 + seed % 3}, add={"d2": more})
        case "remove" if len(names) > 1:
            return run.edit(state, weights=dict.fromkeys(names[1:], 1), remove=names[:1])
        case "exclude":
            return run.edit(state, exclude={names[0]: Exclude(samples=[seed % 9, 5])})
        case "order":
            return run.edit(state, order=Order(seed=seed))
    return run


@settings(max_examples=cases(15, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    form=st.sampled_from(sorted(framed_made.KINDS)),
    lives=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4]),
            st.integers(0, 30),
            st.sampled_from(["weights", "add", "remove", "exclude", "order"]),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 1000),
    staged=st.booleans(),
)
def test_lives_with_edits_are_the_edited_run(
    places: tuple[Path, ...], form: str, lives: list[tuple[int, int, str]], seed: int, staged: bool
) -> None:
    run = edited_run(places, form, staged=staged)
    seen: dict[int, Any] = {}
    states: list[dict[str, Any]] = []
    for world_size, num_batches, kind in lives:
        states = lived(run, states, world_size, num_batches // world_size, seen)
        run = changed(run, merge_state_dicts(states), kind, places, seed)
    wanted = Whole(run).up_to(states[0]["position"])
    assert seen.keys() == wanted.keys()
    for number, unit in seen.items():
        # What is drawn for a batch is there for the first unit of each.
        assert unit == {name: value for name, value in wanted[number].items() if name in unit}


def trained(run: FramedRun, num_batches: int) -> dict[str, Any]:
    """The state after some batches on one rank."""
    return lived(run, [], 1, num_batches, {})[0]


@pytest.mark.parametrize("form", ["packs", "best fit", "singles"])
def test_the_first_new_step(places: tuple[Path, ...], form: str) -> None:
    """From there on, and not before, all outputs are those of the source that is left."""
    run = edited_run(places, form)
    state = trained(run, 20)
    edited = run.edit(state, remove=["d0"])
    first = edited.first_new_step(state)
    reader = edited.reader()
    holding = []
    for number in range(4 * first + 80):
        unit = reader.look(number)
        assert unit is not None
        if int(unit.items.positions.min()) < edited.edits[0].at_step:
            holding.append(number)
    assert first == holding[-1] // 4 + 1 > 5
    with pytest.raises(ConfigError, match="edited"):
        run.first_new_step(state)


def test_states_load_until_their_lanes_have_come_to_the_edit(places: tuple[Path, ...]) -> None:
    run = edited_run(places)
    early, late = trained(run, 12), trained(run, 60)
    edited = run.edit(early, weights={"d0": 1, "d1": 1})
    loader = Loader(edited, micro_batch_size=1, reading=NO_THREADS)
    loader.load_state_dict(trained(run, 5))
    loader.load_state_dict(early)
    with pytest.raises(StateError, match="position"):
        loader.load_state_dict(late)
    with pytest.raises(StateError, match="another"):
        edited_run(places, "singles").edit(early, weights={"d0": 1, "d1": 1})
    with pytest.raises(StateError, match="another"):
        Loader(run, micro_batch_size=1, reading=NO_THREADS).load_state_dict(trained(edited, 12))


def test_the_policy_is_changed_at_any_state(places: tuple[Path, ...], tmp_path: Path) -> None:
    """A run that stops at a sample that breaks goes on with a substitute, and with its journal."""
    dataset = MediaDataset.open(places[0], **media_texts.TEXT)
    found: dict[int, Any] = {}
    state, journal = None, tmp_path / "journal"
    for on_error in ("raise", "substitute"):
        policy = ErrorPolicy(on_error=on_error)  # type: ignore[arg-type]
        data = Framed(dataset, framed_made.Packs(), frame_positions=1, errors=policy)
        run = FramedRun(data, global_batch_size=4, order=Order(seed=6))
        loader = Loader(run, micro_batch_size=1, reading=NO_THREADS, journal=journal)
        if state is not None:
            assert len(found) == 9, "the tenth unit needs a sample that breaks"
            loader.load_state_dict(state)
        with contextlib.suppress(ValueError):
            for _, batch in zip(range(60 - len(found)), loader, strict=False):
                found |= rows_of(batch, is_group=False)
                state = loader.state_dict()
    whole = Whole(run).up_to(60)
    assert found.keys() == whole.keys()
    assert all(unit["numbers"] == whole[number]["numbers"] for number, unit in found.items())
    assert len(framed_history(run, [journal]).step(3)) == 4


def test_bad_edits_change_nothing(places: tuple[Path, ...], tmp_path: Path) -> None:
    run = edited_run(places, samples=200)
    state, late = trained(run, 8), trained(run, 110)
    of_one_rank = lived(run, [], 2, 1, {})[0]
    for act, kind, named in [
        (lambda: run.edit(state, weights={"d7": 1, "d0": 1}), ConfigError, "d7"),
        (lambda: run.edit(state), ConfigError, "something"),
        (lambda: run.edit(of_one_rank, weights={"d0": 1, "d1": 1}), StateError, "2.*4.*lanes"),
        (lambda: run.edit(late, weights={"d0": 1, "d1": 1}), ConfigError, "frame"),
        (lambda: save_run(run.edit(state, samples=300), tmp_path / "run.json"), ConfigError, "framed"),
    ]:
        with pytest.raises(kind, match=named):
            act()  # type: ignore[no-untyped-call]
    assert not list(tmp_path.iterdir())
    assert run.edits == ()
    longer = run.edit(state, samples=260)
    assert (run.stream.length, longer.stream.length) == (200, 260)
    assert len(Whole(longer).up_to(1 << 30)) > len(Whole(run).up_to(1 << 30))


def test_the_journal_goes_on_through_edits(places: tuple[Path, ...], tmp_path: Path) -> None:
    run, journal = edited_run(places), tmp_path / "journal"
    loader = Loader(run, micro_batch_size=1, reading=NO_THREADS, journal=journal)
    for _ in zip(range(20), loader, strict=False):
        pass
    edited = run.edit(loader.state_dict(), weights={"d0": 4, "d1": 1})
    later = Loader(edited, micro_batch_size=1, reading=NO_THREADS, journal=journal)
    later.load_state_dict(loader.state_dict())
    for _ in zip(range(60), later, strict=False):
        pass
    history = framed_history(edited, [journal])
    units = Whole(edited).up_to(80)
    for step in (0, 4, 12, 18):
        for slot, unit in enumerate(history.step(step)):
            told = [sample.index for sample in unit.samples]
            fed = [number for number, _ in units[4 * step + slot]["numbers"]]
            assert len(told) == len(fed)
            assert all(index in (number, 4) for index, number in zip(told, fed, strict=True)), "4 and 13 are broken"
