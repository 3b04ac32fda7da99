"""Simulated caches against plain models, and the plan against the best that any policy can do."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.plan.caching import POLICIES, next_uses, simulate

SEQUENCES = st.lists(st.integers(0, 6), max_size=14)


def best_hits(blocks: list[int], capacity: int) -> int:
    """The most hits of any policy, which may also leave a block out: all choices are tried."""

    @cache
    def best(at: int, kept: frozenset[int]) -> int:
        if at == len(blocks):
            return 0
        block = blocks[at]
        if block in kept:
            return 1 + best(at + 1, kept)
        choices = [best(at + 1, kept)]
        if len(kept) < capacity:
            choices.append(best(at + 1, kept | {block}))
        choices += [best(at + 1, kept - {gone} | {block}) for gone in kept if len(kept) == capacity]
        return max(choices)

    return best(0, frozenset())


def plainly(blocks: list[int], capacity: int, policy: str) -> list[bool]:
    """LRU, FIFO and pin as one writes them down."""
    kept: list[int] = []
    hits = []
    for block in blocks:
        hits.append(block in kept)
        if block in kept:
            if policy == "lru":
                kept.remove(block)
                kept.append(block)
        elif len(kept) < capacity:
            kept.append(block)
        elif capacity and policy != "pin":
            kept.pop(0)
            kept.append(block)
    return hits


@given(SEQUENCES, st.integers(0, 4))
def test_no_policy_has_more_hits_than_the_plan(blocks: list[int], capacity: int) -> None:
    array = np.array(blocks, dtype=np.int64)
    assert int(simulate(array, capacity, "plan").is_hit.sum()) == best_hits(blocks, capacity)


@given(SEQUENCES, st.integers(0, 4), st.sampled_from(["lru", "fifo", "pin"]))
def test_the_others_are_what_they_are_called(blocks: list[int], capacity: int, policy: str) -> None:
    found = simulate(np.array(blocks, dtype=np.int64), capacity, policy)  # type: ignore[arg-type]
    assert found.is_hit.tolist() == plainly(blocks, capacity, policy)


@given(SEQUENCES, st.integers(0, 4), st.sampled_from(POLICIES))
def test_a_block_that_hits_was_kept_before(blocks: list[int], capacity: int, policy: str) -> None:
    found = simulate(np.array(blocks, dtype=np.int64), capacity, policy)  # type: ignore[arg-type]
    assert not (found.is_hit & found.is_kept).any()
    for at in np.flatnonzero(found.is_hit).tolist():
        assert any(found.is_kept[before] for before in range(at) if blocks[before] == blocks[at])


@given(SEQUENCES)
def test_next_uses(blocks: list[int]) -> None:
    expected = [
        next((later for later in range(at + 1, len(blocks)) if blocks[later] == block), len(blocks))
        for at, block in enumerate(blocks)
    ]
    assert next_uses(np.array(blocks, dtype=np.int64)).tolist() == expected


def test_a_shuffled_epoch_with_half_of_the_data_in_the_cache() -> None:
    """The figures that other systems reach, and the half that is possible."""
    rng = np.random.default_rng(1)
    blocks = np.concatenate([rng.permutation(2000) for _ in range(6)])
    rates = {one: float(simulate(blocks, 1000, one).is_hit[2000:].mean()) for one in POLICIES}
    assert rates["pin"] == 0.5
    assert 0.5 <= rates["plan"] < 0.51
    assert 0.13 < rates["lru"] < 0.18
    assert rates["lru"] < rates["fifo"] < 0.25


def test_unknown_policies_and_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="policies are plan, pin, lru, fifo"):
        simulate(np.zeros(1, dtype=np.int64), 1, "mru")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 0"):
        simulate(np.zeros(1, dtype=np.int64), -1, "lru")
