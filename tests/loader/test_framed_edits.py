"""Framed runs that are edited at a state, resumed on other ranks and edited again, and the edited run as a whole."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import framed_made
import media_texts
from counts import cases
from framed_made import Whole, rows_of
from headrace import ConfigError, Exclude, Loader, MediaDataset, Order
from headrace.datasets.encoded.framed import Framed
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.datasets.mix import named_datasets
from headrace.encoders import ErrorPolicy
from headrace.errors import StateError
from headrace.loader import Ranks, Reading, merge_state_dicts
from headrace.plan import Cursor
from headrace.tracing import framed_history, save_run

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
NO_THREADS = Reading(num_threads=0, pin_memory=False)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("framed")
    return [media_texts.shards(root / name, sizes) for name, sizes in (("a", (20, 17)), ("b", (9,)), ("c", (13,)))]


def run_of(places: list[Path], form: str = "packs", **options: Any) -> FramedRun:
    return framed_made.framed_run(form, places[:2], **options)


def lived(
    run: FramedRun, states: list[dict[str, Any]], world_size: int, micro_steps: int, seen: dict[int, Any]
) -> list[dict[str, Any]]:
    """One life of all ranks, which adds its units to ``seen``; the states at its end."""
    loaders = [
        Loader(run, micro_batch_size=1, ranks=Ranks(rank, world_size), reading=NO_THREADS) for rank in range(world_size)
    ]
    for loader in loaders if states else []:
        loader.load_state_dict(json.loads(json.dumps(merge_state_dicts(states))))
    iterators = [iter(loader) for loader in loaders]
    for _ in range(micro_steps):
        for iterator in iterators:
            for number, unit in rows_of(next(iterator), is_group=run.is_group_batches).items():
                assert number not in seen, "no unit twice"
                seen[number] = unit
    found = [loader.state_dict() for loader in loaders]
    for iterator, loader in zip(iterators, loaders, strict=True):
        iterator.close()  # type: ignore[attr-defined]
        loader.close()
    return found


def changed(run: FramedRun, state: dict[str, Any], kind: str, places: list[Path], seed: int) -> FramedRun:
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
    places: list[Path], form: str, lives: list[tuple[int, int, str]], seed: int, staged: bool
) -> None:
    run = run_of(places, form, staged=staged)
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


def test_sources_go_on_where_they_are(places: list[Path]) -> None:
    """Each sample of a source comes once in each of its epochs, before the edit and behind it."""
    run = run_of(places, "singles")
    later = run.edit(trained(run, 10), weights={"d0": 5, "d1": 1}, reason="more of the first")
    at = later.edits[0].at_step
    positions = np.arange(at + 300)
    found, before = later.stream.lookup(positions), run.stream.lookup(positions)
    for name in ("sources", "epochs", "indices"):
        assert (getattr(found, name)[:at] == getattr(before, name)[:at]).all()
    assert np.bincount(found.sources[at:]).tolist() == [250, 50]
    for source, dataset in enumerate(later.stream.datasets):
        for epoch in range(int(found.epochs[found.sources == source].max())):
            of_epoch = found.indices[(found.sources == source) & (found.epochs == epoch)]
            assert sorted(of_epoch.tolist()) == list(range(len(dataset)))


@pytest.mark.parametrize("form", ["packs", "best fit", "singles"])
def test_the_first_new_step(places: list[Path], form: str) -> None:
    """From there on, and not before, all outputs are those of the source that is left."""
    run = run_of(places, form)
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
    with pytest.raises(ConfigError, match="the run is not edited"):
        run.first_new_step(state)


def test_states_load_until_their_lanes_have_come_to_the_edit(places: list[Path]) -> None:
    run = run_of(places)
    early, late = trained(run, 12), trained(run, 60)
    edited = run.edit(early, weights={"d0": 1, "d1": 1})
    loader = Loader(edited, micro_batch_size=1, ranks=Ranks(), reading=NO_THREADS)
    loader.load_state_dict(trained(run, 5))
    loader.load_state_dict(early)
    with pytest.raises(
        StateError, match=r"others from position \d+ on: resume from a state before, or edit the run at"
    ):
        loader.load_state_dict(late)
    with pytest.raises(StateError, match="is of another run"):
        run_of(places, "singles").edit(early, weights={"d0": 1, "d1": 1})
    with pytest.raises(StateError, match="belongs to another run"):
        Loader(run, micro_batch_size=1, ranks=Ranks(), reading=NO_THREADS).load_state_dict(trained(edited, 12))


def test_the_policy_is_changed_at_any_state(places: list[Path], tmp_path: Path) -> None:
    """A run that stops at a sample that breaks goes on with a substitute, and with its journal."""
    dataset = MediaDataset.open(places[0], **media_texts.TEXT)
    found: dict[int, Any] = {}
    state, journal = None, tmp_path / "journal"
    for on_error in ("raise", "substitute"):
        policy = ErrorPolicy(on_error=on_error)  # type: ignore[arg-type]
        data = Framed(dataset, framed_made.Packs(), frame_positions=1, errors=policy)
        run = FramedRun(data, global_batch_size=4, order=Order(seed=6))
        loader = Loader(run, micro_batch_size=1, ranks=Ranks(), reading=NO_THREADS, journal=journal)
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


def test_bad_edits_change_nothing(places: list[Path], tmp_path: Path) -> None:
    run = run_of(places, samples=200)
    state = trained(run, 8)
    with pytest.raises(ConfigError, match="d7"):
        run.edit(state, weights={"d7": 1, "d0": 1})
    with pytest.raises(ConfigError, match="an edit changes something"):
        run.edit(state)
    parts = [loader.state_dict() for loader in _ranks(run)]
    with pytest.raises(StateError, match="lacks 2 of 4 lanes, so it is that of one rank"):
        run.edit(parts[0], weights={"d0": 1, "d1": 1})
    with pytest.raises(ConfigError, match="has begun its last frame"):
        run.edit(trained(run, 110), weights={"d0": 1, "d1": 1})
    with pytest.raises(ConfigError, match="cannot hold the edits of a framed run"):
        save_run(run.edit(state, samples=300), tmp_path / "run.json")
    assert not list(tmp_path.iterdir())
    assert run.edits == ()


def _ranks(run: FramedRun) -> list[Loader]:
    loaders = [Loader(run, micro_batch_size=1, ranks=Ranks(rank, 2), reading=NO_THREADS) for rank in range(2)]
    for loader in loaders:
        next(iter(loader))
    return loaders


def test_a_run_that_is_made_longer_ends_later(places: list[Path]) -> None:
    run = run_of(places, "singles", samples=100)
    longer = run.edit(trained(run, 8), samples=160)
    assert (run.stream.length, longer.stream.length) == (100, 160)
    assert len(Whole(longer).up_to(1 << 30)) > len(Whole(run).up_to(1 << 30))


def test_the_journal_goes_on_through_edits(places: list[Path], tmp_path: Path) -> None:
    run, journal = run_of(places), tmp_path / "journal"
    loader = Loader(run, micro_batch_size=1, ranks=Ranks(), reading=NO_THREADS, journal=journal)
    for _ in zip(range(20), loader, strict=False):
        pass
    edited = run.edit(loader.state_dict(), weights={"d0": 4, "d1": 1})
    later = Loader(edited, micro_batch_size=1, ranks=Ranks(), reading=NO_THREADS, journal=journal)
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
