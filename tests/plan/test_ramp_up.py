"""Batch sizes that grow as Megatron's; megatron-core's own calculator is asked in tests/interop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule


@settings(max_examples=cases(30, 3000), deadline=None)
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
