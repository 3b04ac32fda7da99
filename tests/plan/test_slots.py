"""Slots that are drawn, and samples in buckets: a permutation of what belongs together, whatever is asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace import ConfigError
from headrace.errors import StateError
from headrace.plan import (
    BatchSchedule,
    Branch,
    Bucketing,
    ConcatNode,
    Draw,
    Leaf,
    Order,
    Plan,
    bucketed,
    draw_of,
    quantised,
)
from plan.framed.simulated import GAPS, schedule_of


def blend_plan(kind: str = "full", num_sources: int = 2) -> Plan:
    leaves = tuple(Leaf(f"s{i}", 100) for i in range(num_sources))
    return Plan(Branch("", leaves, tuple(quantised([1.0] * num_sources)), None), Order(kind=kind))  # type: ignore[arg-type]


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(GAPS, st.integers(1, 9), st.booleans(), st.integers(1, 200), st.integers(0, 2**64 - 1), st.data())
def test_every_step_is_a_permutation_of_its_units(
    gaps: list[tuple[int, int]], unit: int, from_step: bool, length: int, key: int, data: st.DataObject
) -> None:
    schedule = schedule_of(gaps)
    _, begin, size, _ = schedule.locate(data.draw(st.integers(0, length)))
    # A run that was made longer once or twice within a step, see below; groups of bucketing never are.
    inside = st.integers(begin + 1, begin + size - 1) if size > 1 and not from_step else st.nothing()
    ends = tuple(sorted(data.draw(st.sets(inside, max_size=2) if size > 1 and not from_step else st.just(set()))))
    draw = Draw(key, schedule, length, unit, from_step, ends)
    slots = np.arange(length)
    positions = draw.positions(slots)
    assert sorted(positions.tolist()) == slots.tolist()
    assert draw.slots(positions).tolist() == slots.tolist()
    some = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=30)), dtype=np.int64)
    assert draw.positions(some).tolist() == positions[some].tolist()
    begins, nexts = schedule.bounds(slots)
    assert [schedule.locate(slot)[1] for slot in slots.tolist()] == begins.tolist()
    assert [schedule.begin(schedule.step_of(slot) + 1) for slot in slots.tolist()] == nexts.tolist()
    for end in ends:
        begins = np.where((slots >= end) & (begins < end), end, begins)
    assert ((positions >= begins) & (positions < nexts)).all(), "each within its step, and its part of it"
    units = (positions - begins * from_step) // unit
    found = [
        (one, [at for _, at in group])
        for one, group in groupby(
            zip(zip(begins, units, strict=True), positions, strict=True), key=lambda pair: pair[0]
        )
    ]
    assert len({one for one, _ in found}) == len(found), "a unit stays together"
    assert all(group == list(range(group[0], group[0] + len(group))) for _, group in found), "and in its order"


def test_all_orders_of_a_small_step_come_equally_often() -> None:
    for size in (2, 3, 4):
        draw = Draw(7, BatchSchedule.of(size), None)
        rows = draw.positions(np.arange(20_000 * size)).reshape(-1, size) - np.arange(20_000)[:, None] * size
        orders, counts = np.unique(rows, axis=0, return_counts=True)
        expected = 20_000 / len(orders)
        assert len(orders) == [1, 1, 2, 6, 24][size]
        assert abs(counts - expected).max() < 5 * expected**0.5


def test_a_draw_is_of_the_seed_and_the_begin_of_the_step() -> None:
    draw = Draw(1, BatchSchedule.of(8), None)
    assert draw.positions(np.arange(16)).tolist() == [7, 0, 6, 1, 5, 4, 2, 3, 12, 13, 9, 14, 11, 10, 8, 15]
    other = Draw(1, BatchSchedule.of([(0, 5), (1, 3), (2, 8)]), 30)
    assert other.positions(np.arange(8, 16)).tolist() == draw.positions(np.arange(8, 16)).tolist()
    assert replace(draw, key=2).positions(np.arange(8)).tolist() != draw.positions(np.arange(8)).tolist()


def test_large_positions() -> None:
    begin = 3 * 2**40
    draw = Draw(1, BatchSchedule.of([(0, 3), (2**40, 2**20)]), None)
    positions = draw.positions(np.arange(begin, begin + 2**20))
    assert np.array_equal(np.sort(positions), np.arange(begin, begin + 2**20))


def test_what_is_not_drawn() -> None:
    def drawn(plan: Plan, *, size: int = 8, bucketing: Bucketing | None = None) -> bool:
        draw = draw_of(plan, BatchSchedule.of(size), None, bucketing=bucketing)
        return draw is not None

    assert drawn(blend_plan())
    assert drawn(blend_plan("shards"), bucketing=Bucketing(group_samples=4))
    assert not drawn(blend_plan("none")), "in the order of the stores"
    assert not drawn(blend_plan(num_sources=1)), "a single source"
    assert not drawn(Plan(Leaf("", 9), Order())), "a single source"
    assert not drawn(Plan(ConcatNode("", (Leaf("a", 9), Leaf("b", 9))), Order())), "one after another"
    assert drawn(Plan(ConcatNode("", (Leaf("a", 9), Branch("b", (Leaf("c", 9), Leaf("d", 9)), (5, 5), 10))), Order()))
    assert not drawn(blend_plan(), size=1), "a step of one sample"
    assert not drawn(blend_plan(), bucketing=Bucketing()), "whole steps belong together"
    assert not drawn(blend_plan(), bucketing=Bucketing(group_samples=8)), "whole steps belong together"


@pytest.mark.parametrize("lengths", [(10, 12), (10, 12, 15), (10, 20), (10, None), (16, 21), (11, 11, 19)])
def test_a_run_that_is_made_longer_keeps_what_was_given(lengths: tuple[int | None, ...]) -> None:
    """Steps of 8; at each length the run gives some slots, is saved, and goes on with the next length."""
    for stop in range(8, 16):
        given: list[int] = list(range(8))
        position, ends = 8, ()
        for number, length in enumerate(lengths):
            draw = Draw(3, BatchSchedule.of(8), length).resumed(position, ends)
            until = min(stop + number, 16, 16 if length is None else length)
            given += draw.positions(np.arange(position, max(position, until))).tolist()
            position = max(position, until)
            ends = draw.saved_ends(position)
            assert draw.resumed(position, ends).saved_ends(position) == ends
            assert len(set(given)) == len(given), "none twice"
        last = 16 if lengths[-1] is None else min(16, lengths[-1])
        given += draw.resumed(position, ends).positions(np.arange(position, max(position, last))).tolist()
        assert sorted(given) == list(range(max(last, position))), "none is missing"


def test_a_run_that_is_made_shorter_within_a_step() -> None:
    long, short = Draw(3, BatchSchedule.of(8), 16), Draw(3, BatchSchedule.of(8), 12)
    assert short.resumed(8, long.saved_ends(8)).ends == ()
    with pytest.raises(StateError, match=r"1.*16.*samples"):
        short.resumed(9, long.saved_ends(9))
    assert short.saved_ends(9) == short.saved_ends(12) == (12,)
    with pytest.raises(StateError, match=r"12.*samples.*11"):
        Draw(3, BatchSchedule.of(8), 11).resumed(9, (12,))
    for damaged in ((8,), (16,), (12, 10), (12, 12)):
        with pytest.raises(StateError, match="damaged"):
            long.resumed(9, damaged)


def test_the_example_of_the_module() -> None:
    lengths = np.array([9, 2, 7, 3, 8, 1])
    found = {tuple(bucketed(lengths, np.array([3, 3]), key).tolist()) for key in range(20)}
    assert found == {(5, 1, 3, 2, 4, 0), (2, 4, 0, 5, 1, 3)}, "either group may be the one of the short ones"


@settings(max_examples=cases(12, 2_000), deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.data())
def test_each_sample_has_one_place_and_groups_are_runs_of_the_sorted(lengths: list[int], data: st.DataObject) -> None:
    sizes: list[int] = []
    while sum(sizes) < len(lengths):
        sizes.append(data.draw(st.integers(1, len(lengths) - sum(sizes))))
    key = data.draw(st.integers(0, 2**64 - 1))
    places = bucketed(np.array(lengths, np.int64), np.array(sizes, np.int64), key)
    assert sorted(places.tolist()) == list(range(len(lengths)))
    by_length = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    groups = np.split(places, np.cumsum(sizes)[:-1]) if sizes else []
    assert sorted((group.tolist() for group in groups), key=lambda group: by_length.index(group[0])) == [
        part.tolist() for part in _runs(by_length, groups)
    ]


def _runs(by_length: list[int], groups: list[np.ndarray]) -> list[np.ndarray]:
    sizes = [len(group) for group in sorted(groups, key=lambda group: by_length.index(group[0]))]
    return np.split(np.array(by_length), np.cumsum(sizes)[:-1]) if sizes else []


def test_steps_are_cut_into_groups() -> None:
    assert Bucketing().group_sizes([8, 8, 3]).tolist() == [8, 8, 3]
    assert Bucketing(group_samples=3).group_sizes([8, 6, 2]).tolist() == [3, 3, 2, 3, 3, 2]
    assert Bucketing(group_samples=9).group_sizes([8]).tolist() == [8]
    assert Bucketing().group_sizes([]).tolist() == []


@pytest.mark.parametrize("sizes", [{"window_steps": 0}, {"group_samples": 0}, {"window_steps": -1}])
def test_sizes_below_1_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"least.*1"):
        Bucketing(**sizes)
