"""Balance: the same samples in as many slots, and micro-batches that cost alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases, python_steps
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Share, StepPart, balanced, micro_batches, step_order, unbalanced
from plan.framed.simulated import lengths


@settings(max_examples=cases(40, 4_000), deadline=None)
@given(
    st.lists(st.integers(0, 30) | st.integers(0, 2**45), min_size=1, max_size=70),
    st.integers(1, 9),
    st.integers(1, 6),
    st.booleans(),
)
def test_every_sample_once_in_the_slots_of_the_split(
    values: list[int], world_size: int, micro: int, is_float: bool
) -> None:
    costs = np.array(values, dtype=np.float64 if is_float else np.int64)
    given_back = balanced(costs, world_size=world_size, micro_batch_size=micro)
    assert sorted(given_back.order.tolist()) == list(range(len(costs)))
    again = balanced(costs.copy(), world_size=world_size, micro_batch_size=micro)
    assert np.array_equal(again.order, given_back.order)
    num_micro_steps = -(-len(costs) // (world_size * micro))
    assert given_back.cost.shape == (num_micro_steps, world_size)
    for rank in range(world_size):
        share = Share(rank, world_size, micro)
        split = micro_batches(BatchSchedule.of(len(costs)), share, position=0, end=len(costs), at_least=1)
        for micro_step, (begin, size) in enumerate(zip(split.begins.tolist(), split.sizes.tolist(), strict=True)):
            mine = given_back.order[begin : begin + size]
            assert given_back.cost[micro_step, rank] == pytest.approx(costs[mine].sum())
            assert mine.tolist() == sorted(mine.tolist())


@settings(max_examples=cases(24, 1_000), deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9), st.integers(0, 1000))
def test_it_is_no_worse_than_not_balancing(world_size: int, micro: int, micro_steps: int, more: int, seed: int) -> None:
    """Of the sum over the micro-steps of the costliest rank: the time of the step."""
    costs = np.random.default_rng(seed).integers(1, 100, world_size * micro * micro_steps + more)
    found = balanced(costs, world_size=world_size, micro_batch_size=micro).cost.max(axis=1).sum()
    assert found <= unbalanced(costs, world_size=world_size, micro_batch_size=micro).cost.max(axis=1).sum()


@settings(max_examples=cases(24, 1_000), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9)), max_size=4),
    st.integers(1, 70),
    st.integers(0, 5),
)
def test_a_step_that_is_stopped_within_goes_on_with_other_ranks(
    lives: list[tuple[int, int, int, int]], size: int, first: int
) -> None:
    """Each takes a part of the samples left, and keeps the assignment that it had if it is the same again."""
    first = min(first, size)
    came = np.random.default_rng(1).permutation(size)[:first]
    taken: list[StepPart] = []
    costs = np.zeros(0)
    seen = came.tolist()
    for world_size, micro, micro_steps, longer in lives:
        # A run that is made longer adds to its last step.
        size += longer
        costs = np.random.default_rng(0).integers(1, 100, size)
        order = step_order(costs, taken, first=came, world_size=world_size, micro_batch_size=micro)
        assert sorted(order.tolist()) == list(range(size))
        assert order[: len(seen)].tolist() == seen, "what was taken stays taken"
        left = np.setdiff1d(np.arange(size), seen)
        num = min(len(left), world_size * micro * micro_steps)
        if not num:
            continue
        goes_on = bool(taken) and taken[-1].is_assigned_by(size, world_size, micro)
        if not goes_on:
            assignment = balanced(costs[left], world_size=world_size, micro_batch_size=micro)
            assert order[len(seen) :].tolist() == left[assignment.order].tolist()
        seen += order[len(seen) : len(seen) + num].tolist()
        before = taken.pop().num_taken if goes_on else 0
        taken.append(StepPart(size, world_size, micro, before + num))
        again = step_order(costs, taken, first=came, world_size=world_size, micro_batch_size=micro)
        assert again.tolist() == order.tolist(), "for the same ranks nothing has happened"


LIMITS = [
    # Samples, micro-batch; micro-steps, micro-batches, ranks.
    (1_024, 8, 1.025, 1.85, 1.005),
    (1_024, 4, 1.05, 3.6, 1.0025),
    (512, 16, 1.002, 1.004, 1.001),
    (4_096, 1, 1.4, 16.1, 1.002),
]
"""What is reached, and not without any one of the steps of the algorithm."""


@pytest.mark.parametrize(("size", "micro", "micro_step", "micro_batch", "rank"), LIMITS)
def test_what_is_reached(size: int, micro: int, micro_step: float, micro_batch: float, rank: float) -> None:
    for name in ("sft", "web", "bimodal", "long"):
        for room in (2_048, 4_096, 8_192):
            found = balanced(lengths(name, size, room), world_size=8, micro_batch_size=micro)
            assert found.micro_step_imbalance <= micro_step
            assert found.cost.max() / found.cost.mean() <= micro_batch
            assert found.rank_imbalance <= rank


def test_a_handful_of_samples_may_be_best_as_they_come() -> None:
    found = balanced(np.array([1, 3, 1, 10, 8]), world_size=3, micro_batch_size=1)
    assert found.order.tolist() == [0, 1, 2, 3, 4]
    assert found.cost.tolist() == [[1, 3, 1], [0, 10, 8]]
    assert found.waiting == pytest.approx(1 - 23 / 39)


def test_large_micro_batches() -> None:
    """Of which a round looks at few."""
    costs = lengths("bimodal", 8_192, 8_192)
    found = balanced(costs, world_size=8, micro_batch_size=512)
    assert found.cost.max() / found.cost.mean() <= 1.0005
    plain = unbalanced(costs, world_size=8, micro_batch_size=512).cost
    assert plain.max() / plain.mean() > 1.05


def test_an_uneven_step_is_even_in_its_last_micro_step_too() -> None:
    costs = lengths("long", 8 * 8 * 4 + 31, 2_048)
    found = balanced(costs, world_size=8, micro_batch_size=8)
    assert found.cost.shape == (5, 8)
    assert [row.max() / row.mean() <= limit for row, limit in zip(found.cost, [1.05] * 4 + [1.15], strict=True)] == [
        True
    ] * 5
    plain = unbalanced(costs, world_size=8, micro_batch_size=8).cost
    assert plain[4].max() / plain[4].mean() > 1.4


def test_like_costs_and_none() -> None:
    assert balanced(np.zeros(8), world_size=2, micro_batch_size=2).micro_step_imbalance == 1
    assert balanced(np.full(8, 3), world_size=2, micro_batch_size=2).rank_imbalance == 1
    nothing = balanced(np.zeros(0), world_size=2, micro_batch_size=2)
    assert (len(nothing.order), nothing.micro_step_imbalance, nothing.rank_imbalance) == (0, 1, 1)


def test_a_large_step_is_quick() -> None:
    costs = lengths("web", 4_096, 4_096)
    steps = python_steps(lambda: balanced(costs, world_size=64, micro_batch_size=4))
    assert steps < 10 * 4_096, "some six lines of Python for each sample"


@pytest.mark.parametrize(
    ("costs", "world_size", "micro", "named"),
    [
        (np.array([1.0, np.nan]), 1, 1, "1.*nan"),
        (np.array([1, -2]), 1, 1, "1.*-2"),
        (np.array([np.inf]), 1, 1, "inf"),
        (np.array(["a"]), 1, 1, "expected"),
        (np.ones((2, 2)), 1, 1, "expected"),
        (np.ones(2), 0, 1, "least.*1"),
        (np.ones(2), 1, 0, "least.*1"),
    ],
)
def test_what_is_refused(costs: np.ndarray, world_size: int, micro: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        balanced(costs, world_size=world_size, micro_batch_size=micro)
