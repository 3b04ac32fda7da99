"""Units of framed sources: the same from any state, nothing lost and nothing twice, each restored by its key."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from counts import cases
from framed_encoders import KINDS, Packed, numbers
from headrace import Blend, MediaDataset, Order
from headrace.datasets import Framed, FramedRun
from headrace.datasets.encoded import UnitReader
from headrace.datasets.encoded.samples import parsed, restore_key_of
from headrace.encoders import ErrorPolicy, stateless
from headrace.plan.framed import LaneState, read_lanes, saved_lanes

SUBSTITUTE = ErrorPolicy(on_error="substitute")
Sources = dict[str, MediaDataset]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Twice the same 20 samples, and 9 of which two are broken."""
    root = tmp_path_factory.mktemp("numbers")
    whole, flawed = numbers(root / "whole", 20), numbers(root / "flawed", 9, first=100, broken=(102, 105))
    return {"a": MediaDataset.open(whole), "b": MediaDataset.open(flawed), "c": MediaDataset.open(whole)}


def run_of(sources: Sources, kind: str, *, samples: int | None = 60, frame: int = 5, **options: Any) -> FramedRun:
    encoder, form = KINDS[kind]
    mixed = Blend(sources, weights={"a": 2, "b": 1, "c": 1})
    of_run = {name: options.pop(name) for name in ("num_lanes", "steps") if name in options}
    order = options.pop("order", Order(kind="full", seed=3))
    framed = Framed(mixed, encoder(), form=form, frame_positions=frame, errors=SUBSTITUTE, **options)
    return FramedRun(framed, global_batch_size=4, order=order, samples=samples, **of_run)


def last(run: FramedRun) -> int:
    """A number of the run that is beyond all its units."""
    return 4 * run.lanes.num_positions if run.lanes.num_positions else 200


def resumed(run: FramedRun, marks: Iterable[LaneState], number: int) -> tuple[LaneState, ...]:
    """All lanes after the first units of the run, from the marks that were given out, through bytes."""
    states = {lane: LaneState(lane) for lane in range(run.lanes.num_lanes)}
    for mark in marks:
        if mark.first_unit <= run.lanes.next_unit(mark.lane, number) and mark.frame >= states[mark.lane].frame:
            states[mark.lane] = mark
    placed = [state.at(run.lanes.next_unit(lane, number)) for lane, state in states.items()]
    return read_lanes(saved_lanes(placed, run.lanes), run.lanes, number)


def read(reader: UnitReader, wanted: Iterable[int], together: int = 5) -> tuple[list[Any], list[LaneState]]:
    """Units in several calls, and the marks after each."""
    found: list[Any] = []
    marks: list[LaneState] = []
    each = list(wanted)
    for at in range(0, len(each), together):
        found += reader.samples(each[at : at + together])
        marks += reader.marks()
    return found, marks


def members(unit: Any) -> list[Any]:
    return unit if isinstance(unit, list) else [unit]


KIND = st.sampled_from(sorted(KINDS))


@settings(max_examples=cases(10, 500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=KIND,
    frame=st.integers(1, 9),
    num_lanes=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 3),
    cut=st.integers(0, 60),
    together=st.integers(1, 9),
    buffer_bytes=st.sampled_from([0, 3_000, 1 << 20]),
    world=st.integers(1, 3),
)
def test_a_reader_from_any_state_makes_the_same_units(
    sources: Sources, kind: str, frame: int, num_lanes: int, seed: int, cut: int, together: int, buffer_bytes: int,
    world: int,
) -> None:  # fmt: skip
    run = run_of(sources, kind, frame=frame, num_lanes=num_lanes, seed=seed)
    wanted = run.reader().samples(range(last(run)))
    first = run_of(sources, kind, frame=frame, num_lanes=num_lanes, seed=seed, buffer_bytes=buffer_bytes)
    assert first.recipe == run.recipe, "how much is kept decides nothing"
    reader = first.reader()
    found, marks = read(reader, range(cut), together)
    assert found == wanted[:cut]
    states = resumed(run, marks, cut)
    for rank in range(world):
        mine = range(cut + rank, last(run), world)
        again = pickle.loads(pickle.dumps(first)).reader(states)
        assert read(again, mine, together)[0] == wanted[cut + rank :: world]
        assert world > 1 or not again.figures.num_waiting, "nothing waits for a unit that does not come"
    if buffer_bytes == 0:
        assert reader.figures.num_waiting == 0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_output_is_in_one_unit(sources: Sources, kind: str) -> None:
    run = run_of(sources, kind, order=Order(kind="none"))  # the same addresses in every epoch
    reader = run.reader()
    units = [unit for unit in reader.samples(range(last(run))) if unit is not None]
    there: Counter[Any] = Counter()
    for unit in units:
        for sample in members(unit):
            key = parsed(restore_key_of(sample))
            assert key is not None
            there.update(key.outputs if key.kind == "Framed" or key.number == 0 else ())
    located = run.locate(np.arange(60))
    alone = run.new_sources()
    made = [one for sample in alone.outputs(located.sources, located.addresses) for one in sample.outputs]
    wanted = Counter(map(alone.key, made))
    left_out = {key for key in wanted if key not in there}
    assert not there - wanted
    if kind == "groups":
        skipped = {alone.key(one) for one in made if one.output.sample["n"] % 13 == 5}
        assert left_out == skipped != set()
    elif kind == "torn":
        assert left_out, "selections without a pack"
        assert max(restore_key_of(unit)[1] for unit in units) == 1
    else:
        assert there == wanted
    figures = reader.figures
    assert figures.num_waiting == 0 < figures.most_waiting_bytes
    assert figures.num_encoded == 60
    assert figures.frames.num_units == len(units)
    expected = len(made) - sum(wanted[key] for key in left_out if kind == "groups")
    assert figures.frames.num_items == expected
    if kind == "fitted":
        lengths = [one.output.sample["length"] for one in made]
        assert figures.frames.num_tokens == sum(lengths)
        assert 0.5 < figures.frames.fill(12) <= 1


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_keys_restore_samples_and_batches(sources: Sources, kind: str) -> None:
    run = run_of(sources, kind)
    reader = run.reader()
    units = [unit for unit in reader.samples(range(40)) if unit is not None]
    elsewhere = pickle.loads(pickle.dumps(run))
    for unit in units[:12]:
        for sample in members(unit):
            assert elsewhere.restore_sample(sample["__restore_key__"]) == sample
    alone = [reader.collate([unit])["of_batch"] for unit in units]
    assert len(set(alone)) == len(alone)
    size = 1 if run.is_group_batches else 3
    batches = [reader.collate(units[at : at + size]) for at in range(0, 6, size)]
    assert len({batch["of_batch"] for batch in batches}) == len(batches)
    for batch in batches:
        assert elsewhere.restore_sample(batch["__restore_key__"]) == batch
        assert run.reader(()).collate(
            [[run.restore_sample(key) for key in batch["__restore_key__"]]]
            if run.is_group_batches
            else [run.restore_sample(key) for key in batch["__restore_key__"]]
        ) == batch  # fmt: skip
    assert reader.collate([None])["__key__"] == []


def test_random_numbers_are_of_place_epoch_and_seed(sources: Sources) -> None:
    """The same dataset at two paths, and each of its epochs, draws anew."""
    run = run_of(sources, "singles", samples=300)
    samples = run.reader().samples(range(250))
    noise = [sample["noise"] for sample in samples if sample is not None]
    assert len(set(noise)) == len(noise) > 200
    in_order = run_of(sources, "singles", samples=36, order=Order(kind="none")).reader()
    noise = [sample["noise"] for sample in in_order.samples(range(36)) if sample is not None]
    assert len(set(noise)) == len(noise) > 20
    other = run_of(sources, "singles", samples=300, seed=1).reader().samples(range(250))
    assert not set(noise) & {sample["noise"] for sample in other if sample is not None}


class Pairs(Packed):
    """One output of each sample: a fault is told with it."""

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return {**sample, "k": 0, "noise": 0.5}


class TornPairs(Pairs):
    """Each pack twice."""

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        yield from [self._pack(samples), self._pack(samples)]


@pytest.mark.parametrize("encoder", [Pairs, TornPairs])
def test_a_fault_is_told_once_whatever_stops_there_are(sources: Sources, encoder: type[Pairs]) -> None:
    def of(**options: Any) -> FramedRun:
        framed = Framed(sources["b"], encoder(), frame_positions=5, errors=SUBSTITUTE, **options)
        return FramedRun(framed, global_batch_size=4, samples=60)

    run = of()
    whole = run.reader()
    whole.samples(range(last(run)))
    assert whole.faults.total > 10
    reader = run.reader()
    marks: list[LaneState] = []
    told: Counter[Any] = Counter()
    for cut in range(0, 70, 7):
        after = run.reader(resumed(run, marks, cut))
        after.samples(range(cut, last(run)))
        assert told + after.faults.counts == whole.faults.counts
        reader.samples(range(cut, cut + 7))
        marks += reader.marks()
        told = Counter(reader.faults.counts)
    tight = of(buffer_bytes=0).reader()
    tight.samples(range(last(run)))
    assert tight.faults.counts == whole.faults.counts
    assert tight.figures.num_encoded_again > 10


def test_an_endless_run_keeps_little(sources: Sources) -> None:
    run = run_of(sources, "packs", samples=None, num_lanes=2)
    reader = run.reader()
    most = 0
    assert not reader.marks()
    reader.samples([0])
    assert reader.marks()[0] == LaneState(0)
    for step in range(30):
        reader.samples(range(4 * step, 4 * step + 4))
        most = max(most, reader.figures.num_waiting)
        assert len(reader.marks()) <= 8
    assert most < 40
    assert run.units(3) == run.reader().samples(range(12, 16))
    assert not any(lane.marks for lane in reader._walk.lanes.values())


def test_ranks_that_share_a_lane_keep_what_is_theirs(sources: Sources) -> None:
    run = run_of(sources, "singles", num_lanes=1)
    wanted = run.reader().samples(range(30))
    for rank in range(3):
        reader = run.reader()
        assert reader.samples(range(rank, 30, 3)) == wanted[rank::3]
        reader.skip(29)
        assert reader.figures.num_waiting < 16


def test_frames_that_are_read_in_parts(sources: Sources) -> None:
    """Of single outputs the length of a frame decides nothing."""
    wanted = run_of(sources, "singles", samples=200, num_lanes=1).reader().samples(range(200))
    assert run_of(sources, "singles", samples=200, num_lanes=1, frame=190).reader().samples(range(200)) == wanted


def test_lanes_that_are_left(sources: Sources) -> None:
    """What is kept for them is let go of, and the others go on."""
    run = run_of(sources, "torn", samples=None, frame=20)
    wanted = run.reader().samples(range(60))
    reader = run.reader()
    found = reader.samples(range(4))
    held = reader.figures.num_waiting
    reader.leave([0, 2])
    assert 0 < reader.figures.num_waiting < held
    for number in range(5, 60, 2):
        found += reader.samples([number])
    assert found == [*wanted[:4], *wanted[5::2]]
    assert {mark.lane for mark in reader.marks()} == {1, 3}
