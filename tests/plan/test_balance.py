"""Balance: the same samples in as many slots, and micro-batches that cost alike."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import Balance, BatchSchedule, Share, balanced, costs_of, micro_batches, not_taken


def draw(name: str, size: int, room: int) -> np.ndarray:
    """Lengths of megatron.md 4.3, as in benchmarks/packing.py."""
    rng = np.random.default_rng(0)
    if name == "bimodal":
        short = rng.random(size) < 0.8
        lengths = np.where(short, rng.lognormal(4.5, 0.5, size), rng.lognormal(7, 0.5, size))
    else:
        lengths = rng.lognormal(*{"sft": (5.5, 1), "web": (6, 1.2), "long": (7, 0.8)}[name], size)
    return np.clip(lengths.astype(np.int64), 1, room)


def unbalanced(costs: np.ndarray, world_size: int, micro: int) -> Balance:
    order = np.arange(len(costs))
    return Balance(order, costs_of(costs, order, world_size=world_size, micro_batch_size=micro))


@settings(max_examples=cases(200, 4_000), deadline=None)
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


@settings(max_examples=cases(60, 1_000), deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_it_is_no_worse_than_not_balancing(world_size: int, micro: int, micro_steps: int, seed: int) -> None:
    """Of the sum over the micro-steps of the costliest rank: the time of the step."""
    costs = np.random.default_rng(seed).integers(1, 100, world_size * micro * micro_steps)
    found = balanced(costs, world_size=world_size, micro_batch_size=micro).cost.max(axis=1).sum()
    assert found <= unbalanced(costs, world_size, micro).cost.max(axis=1).sum()


@settings(max_examples=cases(60, 1_000), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3)), max_size=4), st.integers(1, 70))
def test_a_step_that_is_stopped_within_goes_on_with_other_ranks(legs: list[tuple[int, int, int]], size: int) -> None:
    costs = np.random.default_rng(size).integers(1, 100, size)
    seen: list[int] = []
    taken: list[tuple[int, int, int]] = []
    for world_size, micro, micro_steps in legs:
        left = not_taken(costs, taken)
        order = left[balanced(costs[left], world_size=world_size, micro_batch_size=micro).order]
        num = min(len(left), world_size * micro * micro_steps)
        seen += order[:num].tolist()
        taken.append((world_size, micro, num))
    assert sorted(seen + not_taken(costs, taken).tolist()) == list(range(size))


@pytest.mark.parametrize("name", ["sft", "web", "bimodal", "long"])
@pytest.mark.parametrize("room", [2_048, 4_096, 8_192])
@pytest.mark.parametrize(("size", "micro"), [(512, 8), (1_024, 8), (512, 16)])
def test_eight_ranks_have_alike(name: str, room: int, size: int, micro: int) -> None:
    costs = draw(name, size, room)
    plain = unbalanced(costs, 8, micro)
    found = balanced(costs, world_size=8, micro_batch_size=micro)
    assert plain.micro_step_imbalance > 1.1
    assert found.micro_step_imbalance <= 1.05
    assert found.rank_imbalance <= 1.01
    assert found.rank_imbalance < plain.rank_imbalance
    assert found.micro_batch_imbalance < plain.micro_batch_imbalance


LIMITS = [
    # Samples, micro-batch; micro-steps, micro-batches, ranks.
    (1_024, 8, 1.025, 1.85, 1.005),
    (1_024, 4, 1.05, 3.6, 1.002),
    (512, 16, 1.002, 1.004, 1.001),
    (4_096, 1, 1.4, 16.1, 1.002),
]
"""What is reached, and not without any one of the steps of the algorithm."""


@pytest.mark.parametrize(("size", "micro", "micro_step", "micro_batch", "rank"), LIMITS)
def test_what_is_reached(size: int, micro: int, micro_step: float, micro_batch: float, rank: float) -> None:
    for name in ("sft", "web", "bimodal", "long"):
        for room in (2_048, 4_096, 8_192):
            found = balanced(draw(name, size, room), world_size=8, micro_batch_size=micro)
            assert found.micro_step_imbalance <= micro_step
            assert found.micro_batch_imbalance <= micro_batch
            assert found.rank_imbalance <= rank


def test_all_micro_batches_of_a_step_are_alike_where_none_is_too_heavy() -> None:
    costs = draw("sft", 1_024, 4_096)
    found = balanced(costs, world_size=8, micro_batch_size=32)
    assert found.micro_batch_imbalance <= 1.01
    assert unbalanced(costs, 8, 32).micro_batch_imbalance > 1.2


def test_the_example_of_the_docstring() -> None:
    costs = np.array([9, 9, 1, 1, 1, 1, 1, 1])
    assert unbalanced(costs, 2, 2).cost.tolist() == [[18, 2], [2, 2]]
    found = balanced(costs, world_size=2, micro_batch_size=2)
    assert found.cost.tolist() == [[10, 10], [2, 2]]
    assert sorted(found.order[[0, 2]].tolist()) == [0, 1]


def test_an_uneven_step_is_even_in_its_last_micro_step_too() -> None:
    costs = draw("long", 8 * 8 * 4 + 31, 2_048)
    found = balanced(costs, world_size=8, micro_batch_size=8)
    assert found.cost.shape == (5, 8)
    assert [row.max() / row.mean() <= limit for row, limit in zip(found.cost, [1.05] * 4 + [1.15], strict=True)] == [
        True
    ] * 5
    plain = unbalanced(costs, 8, 8).cost
    assert plain[4].max() / plain[4].mean() > 1.4


def test_like_costs_and_none() -> None:
    assert balanced(np.zeros(8), world_size=2, micro_batch_size=2).micro_step_imbalance == 1
    assert balanced(np.full(8, 3), world_size=2, micro_batch_size=2).rank_imbalance == 1
    nothing = balanced(np.zeros(0), world_size=2, micro_batch_size=2)
    assert (len(nothing.order), nothing.micro_step_imbalance, nothing.micro_batch_imbalance) == (0, 1, 1)


def test_a_large_step_is_quick() -> None:
    costs = draw("web", 4_096, 4_096)
    began = time.process_time()
    for _ in range(5):
        balanced(costs, world_size=64, micro_batch_size=4)
    assert (time.process_time() - began) / 5 < 0.1, "20 ms on an idle machine"


@pytest.mark.parametrize(
    ("costs", "world_size", "micro", "says"),
    [
        (np.array([1.0, np.nan]), 1, 1, "sample 1 of the step costs nan"),
        (np.array([1, -2]), 1, 1, "sample 1 of the step costs -2"),
        (np.array([np.inf]), 1, 1, "costs inf"),
        (np.array(["a"]), 1, 1, "expected"),
        (np.ones((2, 2)), 1, 1, "expected"),
        (np.ones(2), 0, 1, "at least 1"),
        (np.ones(2), 1, 0, "at least 1"),
    ],
)
def test_what_is_refused(costs: np.ndarray, world_size: int, micro: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        balanced(costs, world_size=world_size, micro_batch_size=micro)
