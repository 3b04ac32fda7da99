"""Framed runs in the loader, without samples: who makes which units, where a run ends, what is known of lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from threading import Barrier, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import PATIENCE_S, cases
from headrace import BatchSchedule, StateError
from headrace.loader.framed.feed import LaneHistory, MadeBatch, up_to_the_end
from headrace.loader.framed.parts import BatchPart, parts
from headrace.plan import Share, micro_batches
from headrace.plan.framed import Lanes, LaneState, beginning, served_lanes


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    unit = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return BatchSchedule(tuple((3 * number, unit * size) for number, size in enumerate(sizes)))


@settings(max_examples=cases(20, 5_000), deadline=None)
@given(schedules(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 60), st.data())
def test_every_unit_is_in_one_part_and_a_lane_has_one_reader(
    schedule: BatchSchedule, world_size: int, micro: int, num_readers: int, position: int, data: st.DataObject
) -> None:
    lanes = Lanes.of(schedule, frame_positions=4)
    share = Share(data.draw(st.integers(0, world_size - 1)), world_size, micro)
    states = beginning(lanes)
    some = list(
        islice(
            parts(schedule, lanes, share, states, position=position, end=None, num_readers=num_readers),
            40 * num_readers,
        )
    )
    planned = micro_batches(schedule, share, position=position, end=None, at_least=1500)
    whole: list[list[BatchPart]] = [[]]
    readers: dict[int, set[int]] = {}
    for turn, part in enumerate(some):
        assert (part.states is states) == (turn < num_readers), "each reader is told where to begin, once"
        for number in part.numbers.tolist():
            readers.setdefault(number % lanes.num_lanes, set()).add(turn % num_readers)
        whole[-1].append(part)
        if part.after is not None:
            whole.append([])
    assert all(len(found) == 1 for found in readers.values())
    for number, found in enumerate(whole[:-1]):
        begin, size = int(planned.begins[number]), int(planned.sizes[number])
        assert sorted(n for part in found for n in part.numbers.tolist()) == list(range(begin, begin + size))
        assert found[-1].after == planned.afters[number]
        assert {part.step for part in found} == {planned.steps[number]}
        wholes = [part for part in found if part.is_whole]
        assert len(wholes) == (sum(map(bool, map(len, (part.numbers for part in found)))) < 2)
        assert all(len(part.numbers) == size for part in wholes)
    left = [set(part.leaves.tolist()) for part in some if len(part.leaves)]
    assert all(one == left[0] for one in left)
    assert len(left) <= num_readers
    if left and len(schedule.pieces) == 1:
        later = served_lanes(lanes, schedule, share, number=schedule.begin(schedule.step_of(position) + 1))
        assert not left[0] & set(later.tolist())


@pytest.mark.parametrize(("num_readers", "micro"), [(1, 2), (2, 2), (2, 4), (4, 2), (4, 8), (8, 4), (3, 8)])
def test_readers_have_equally_much_to_do(num_readers: int, micro: int) -> None:
    """In whole steps: the same number of units each, and no turn is passed where parts come out even."""
    schedule = BatchSchedule.of(16)
    lanes = Lanes.of(schedule, frame_positions=4)
    some = list(
        islice(
            parts(schedule, lanes, Share(0, 1, micro), (), position=0, end=None, num_readers=num_readers),
            16 * num_readers,
        )
    )
    units = Counter[int]()
    for turn, part in enumerate(some):
        units[turn % num_readers] += len(part.numbers)
    most, fewest = max(units.values()), min(units.values())
    assert most - fewest <= most * (num_readers == 3) / 2
    if num_readers != 3:
        assert all(len(part.numbers) for part in some)


class Simulated:
    """A rank whose units end after some steps; it knows of those it has made, and of the steps of its frame."""

    def __init__(self, units: list[list[int]], ahead: int) -> None:
        self.units = units
        self.ahead = ahead
        self.read = self.known = -1

    def made(self) -> Iterator[MadeBatch]:
        after = 0
        for step in range(10_000):
            self.read = step
            for num_units in self.units[step] if step < len(self.units) else [0] * len(self.units[0]):
                after += 1
                self.known = step if num_units else self.known
                yield MadeBatch({"step": step}, num_units, step, after)

    def known_step(self) -> int:
        ends = [step for step, sizes in enumerate(self.units) if any(sizes)]
        return max([self.known, *(step for step in ends if step < self.read + self.ahead)])


@settings(max_examples=cases(16, 1_000), deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_all_ranks_end_after_the_last_step_that_has_a_unit(
    data: st.DataObject, num_ranks: int, micro_steps: int
) -> None:
    ranks = []
    for _ in range(num_ranks):
        num_steps = data.draw(st.integers(1, 7))
        sizes = st.lists(st.integers(0, 2), min_size=micro_steps, max_size=micro_steps)
        units = data.draw(st.lists(sizes, min_size=num_steps, max_size=num_steps))
        # A step in the midst in which a rank has nothing: others have, or lanes would not end.
        ranks.append(Simulated(units, data.draw(st.integers(0, 3))))
    steps = max(len(rank.units) for rank in ranks)
    for step in range(steps):
        if not any(any(rank.units[step]) for rank in ranks if step < len(rank.units)):
            owner = next(rank for rank in ranks if step < len(rank.units))
            owner.units[step][-1] = 1
    barrier, said = Barrier(num_ranks), [0] * num_ranks
    calls = [0] * num_ranks
    found: list[list[MadeBatch]] = [[] for _ in ranks]

    def take(number: int) -> None:
        def agreed(step: int) -> int:
            said[number] = step
            calls[number] += 1
            barrier.wait(PATIENCE_S)
            highest = max(said)
            barrier.wait(PATIENCE_S)
            return highest

        found[number] = list(up_to_the_end(ranks[number].made(), -1, ranks[number].known_step, agreed))

    threads = [Thread(target=take, args=(number,)) for number in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(calls)) == 1, "exchanges are collective"
    for taken in found:
        assert [one.step for one in taken] == [step for step in range(steps) for _ in range(micro_steps)]
        assert [one.after for one in taken] == list(range(1, steps * micro_steps + 1))


def test_a_step_that_has_begun_is_handed_over_to_its_end() -> None:
    rank = Simulated([[0], [0]], 0)
    assert [one.step for one in up_to_the_end(rank.made(), 0, rank.known_step, lambda step: step)] == [0]


def test_a_run_that_is_cut_ends_there() -> None:
    rank = Simulated([[1], [1], [1]], 0)
    assert len(list(up_to_the_end(islice(rank.made(), 2), -1, rank.known_step, lambda step: step))) == 2


def test_the_book_keeps_what_is_needed() -> None:
    lanes = Lanes(num_lanes=2, frame_positions=4)
    book = LaneHistory(lanes, beginning(lanes))
    assert book.last_unit() == -1
    marks = [LaneState(0, 1, 3, 3), LaneState(0, 2, 3, 3, ((4, 0),)), LaneState(0, 3, 5, 5), LaneState(1, 1, 2, 2)]
    book.add(marks)
    book.add(marks[:2])
    assert book.last_unit() == 4 * 2
    assert book.states(5, [0, 1]) == (LaneState(0, 2, 3, 3, ((4, 0),)), LaneState(1, 1, 2, 2))
    assert book.states(4, [0, 1]) == (LaneState(0, 0, 0, 2), LaneState(1, 1, 2, 2))
    book.forget(5)
    assert book.states(5, [0]) == (LaneState(0, 2, 3, 3, ((4, 0),)),)
    book.add([LaneState(0, 4, 5, 5)])
    assert book.states(5, [0]) == (LaneState(0, 2, 3, 3, ((4, 0),)),)
    with pytest.raises(StateError, match="at its unit 2 is not known"):
        book.states(4, [0])
    with pytest.raises(StateError, match="lane 3"):
        book.states(8, [3])
    assert np.array_equal(book.lanes, [0, 1])
