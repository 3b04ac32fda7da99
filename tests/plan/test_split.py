"""Ranks and micro-steps: every position exactly once, prefixes after each micro-step, as Megatron assigns them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Share, micro_batches
from plan.framed.simulated import GAPS, schedule_of


@settings(max_examples=cases(40, 200), deadline=None)
@given(GAPS, st.integers(0, 60))
def test_steps_and_positions_agree(gaps: list[tuple[int, int]], step: int) -> None:
    schedule = schedule_of(gaps)
    begin = sum(schedule.size(earlier) for earlier in range(step))
    assert schedule.begin(step) == begin
    for position in (begin, begin + schedule.size(step) - 1):
        assert schedule.step_of(position) == step
        located, first, size, num_equal = schedule.locate(position)
        assert (located, first, size) == (step, begin, schedule.size(step))
        assert num_equal is None or schedule.size(step + num_equal) is not None
        assert all(schedule.size(step + i) == size for i in range(num_equal or 3))


@settings(max_examples=cases(60, 300), deadline=None)
@given(GAPS, st.integers(1, 16), st.integers(1, 9), st.integers(1, 400), st.integers(0, 200), st.data())
def test_disjoint_complete_and_prefixes(
    gaps: list[tuple[int, int]], world_size: int, micro: int, length: int, at_least: int, data: st.DataObject
) -> None:
    schedule = schedule_of(gaps)
    position = data.draw(st.integers(0, length - 1))
    parts = []
    for rank in range(world_size):
        share = Share(rank, world_size, micro)
        part = micro_batches(schedule, share, position=position, end=length, at_least=at_least)
        again = micro_batches(schedule, share, position=position, end=None, at_least=max(at_least, length - position))
        # An endless run gives the same micro-batches up to the last whole step.
        whole = int(np.searchsorted(part.afters, schedule.begin(schedule.step_of(length)), side="right"))
        assert again.begins[:whole].tolist() == part.begins[:whole].tolist()
        parts.append(part)
    assert len({tuple(part.afters.tolist()) for part in parts}) == 1, "all ranks take the same micro-steps"
    taken = position
    for j, after in enumerate(parts[0].afters.tolist()):
        together = np.concatenate([np.arange(p.begins[j], p.begins[j] + p.sizes[j]) for p in parts])
        assert np.array_equal(together, np.arange(taken, after)), "after a micro-step the ranks hold a prefix, in order"
        assert all(int(p.sizes[j]) <= micro for p in parts)
        assert {int(p.steps[j]) for p in parts} == {schedule.step_of(taken)} == {schedule.step_of(after - 1)}
        taken = after
    assert taken >= min(length, position + at_least)
    assert np.array_equal(np.concatenate([p.slots() for p in parts]).sum(), np.arange(position, taken).sum())


def test_uneven_steps_are_dealt() -> None:
    parts = [micro_batches(BatchSchedule.of(11), Share(rank, 2, 2), position=0, end=11, at_least=11) for rank in (0, 1)]
    assert [p.slots().tolist() for p in parts] == [[0, 1, 4, 5, 8], [2, 3, 6, 7, 9, 10]]
    few = [micro_batches(BatchSchedule.of(1), Share(rank, 3, 4), position=0, end=2, at_least=9) for rank in range(3)]
    assert [p.sizes.tolist() for p in few] == [[0, 0], [0, 0], [1, 1]]


def test_numpys_integers_are_integers_and_fractions_are_not() -> None:
    assert BatchSchedule.of(np.int64(8)) == BatchSchedule.of(8) == BatchSchedule.of([(np.int64(0), np.int64(8))])  # type: ignore[arg-type, list-item]
    with pytest.raises(ConfigError, match=r"global_batch_size.*8\.5"):
        BatchSchedule.of(8.5)  # type: ignore[arg-type]


def test_large_positions() -> None:
    schedule = BatchSchedule.of([(0, 3), (2**40, 2**20)])
    begin = schedule.begin(2**40 + 5)
    assert begin == 3 * 2**40 + 5 * 2**20
    part = micro_batches(schedule, Share(1, 2, 512), position=begin, end=None, at_least=2**20)
    assert part.begins[0] == begin + 512
    assert part.steps[0] == 2**40 + 5


@pytest.mark.parametrize("bad", [[(1, 4)], [], [(0, 0)], [(0, 4), (0, 8)], [(0, 4), (9, 8), (5, 2)]])
def test_bad_schedules_are_refused(bad: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigError):
        BatchSchedule.of(bad)
