"""Ranks and micro-steps: every position exactly once, as Megatron assigns them, also while batches grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Share, micro_batches
from plan.framed.simulated import GAPS, schedule_of


@settings(max_examples=cases(20, 200), deadline=None)
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


@settings(max_examples=cases(30, 300), deadline=None)
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


@settings(max_examples=cases(15, 3000), deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 12), st.integers(1, 500), st.integers(1, 6))
@example(1, 1, 10, 3, 1)  # a third of a sample an increment: sizes are left out
@example(1, 1, 3, 1, 1)
@example(2, 1, 7, 58, 1)  # 58 / (58 / 7) is below 7: the last size comes a step later
@example(1, 1, 13, 27, 1)
def test_every_step_has_the_size_that_is_due_where_it_begins(
    start: int, increment: int, num_increments: int, samples: int, multiple: int
) -> None:
    start = max(start, multiple)
    last = start + num_increments * increment
    schedule = BatchSchedule.ramp_up(
        start=start, increment=increment, samples=samples, global_batch_size=last, multiple_of=multiple
    )
    consumed = step = 0
    while consumed < samples + 3 * last:
        due = last if consumed > samples else start + int(consumed / (samples / num_increments)) * increment
        size = due - due % multiple
        assert schedule.begin(step) == consumed
        assert schedule.size(step) == size
        consumed += size
        step += 1
    sizes = [size for _, size in schedule.pieces]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == last - last % multiple


def test_by_hand() -> None:
    ramp = BatchSchedule.ramp_up(start=4, increment=4, samples=48, global_batch_size=16)
    assert ramp.pieces == ((0, 4), (4, 8), (6, 12), (8, 16))
    assert [ramp.begin(step) for step, _ in ramp.pieces] == [0, 16, 32, 56]
    # Bloom's: 16 32 9_765_625 samples to 2048, on 8 ranks of micro-batches of 2; 127 increments of 76,894.7 samples.
    bloom = BatchSchedule.ramp_up(start=16, increment=16, samples=9_765_625, global_batch_size=2048, multiple_of=16)
    assert len(bloom.pieces) == 128
    assert bloom.pieces[:2] == ((0, 16), (4806, 32))
    assert bloom.begin(4806) == 76_896
    assert bloom.begin(bloom.pieces[-1][0]) >= 9_765_625


def test_rounded_down_to_what_ranks_and_micro_batches_divide() -> None:
    schedule = BatchSchedule.ramp_up(start=6, increment=2, samples=40, global_batch_size=14, multiple_of=4)
    # Due are 6 8 10 12 14, each for 10 samples; 6 is fed as 4, 10 as 8.
    assert schedule.pieces == ((0, 4), (3, 8), (6, 12))


def test_nothing_to_ramp_up() -> None:
    for start, samples in ((16, 100), (4, 0)):
        schedule = BatchSchedule.ramp_up(start=start, increment=4, samples=samples, global_batch_size=16)
        assert schedule == BatchSchedule.of(16)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"start": 0}, "start=0"),
        ({"increment": 0}, "increment=0"),
        ({"samples": -1}, "samples=-1"),
        ({"samples": 4.8}, r"4\.8"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"start": 20}, "20.*4.*global_batch_size.*16"),
        ({"increment": 5}, "4.*5"),
        ({"multiple_of": 6}, "4.*6"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BatchSchedule.ramp_up(**{"start": 4, "increment": 4, "samples": 48, "global_batch_size": 16, **wrong})
