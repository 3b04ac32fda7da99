"""Context-parallel ranks hold each token once, early chunks with late ones, and go together again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan.segments import context_parallel_indices, context_parallel_order


def plainly(lengths: list[int], cp_size: int, rank: int) -> list[int]:
    """Segment by segment, chunk by chunk."""
    taken: list[int] = []
    begin = 0
    for length in lengths:
        chunk = length // (2 * cp_size)
        for number in (rank, 2 * cp_size - 1 - rank):
            taken += range(begin + number * chunk, begin + (number + 1) * chunk)
        begin += length
    return taken


@settings(max_examples=cases(40, 2000), deadline=None)
@given(st.integers(2, 8), st.lists(st.integers(0, 4), max_size=6))
def test_each_token_once_and_back(cp_size: int, chunks: list[int]) -> None:
    lengths = [2 * cp_size * chunk for chunk in chunks]
    borders = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    total = sum(lengths)
    parts = [context_parallel_indices(borders, cp_size, rank) for rank in range(cp_size)]
    for rank, part in enumerate(parts):
        assert part.dtype == np.int64
        assert part.tolist() == plainly(lengths, cp_size, rank)
        # Causal work: each rank's tokens see equally many, up to the triangles on the diagonal.
        assert len(part) * cp_size == total
        assert 2 * int(part.sum()) == len(part) * (total - 1) or len(set(lengths) - {0}) > 1
    together = np.concatenate(parts)
    assert sorted(together.tolist()) == list(range(total))
    order = context_parallel_order(borders, cp_size)
    assert order.dtype == np.int64
    assert together[order].tolist() == list(range(total))


def test_worked_example() -> None:
    borders = np.array([0, 8, 12], dtype=np.int32)
    assert context_parallel_indices(borders, 2, 0).tolist() == [0, 1, 6, 7, 8, 11]
    assert context_parallel_indices(borders, 2, 1).tolist() == [2, 3, 4, 5, 9, 10]


def test_one_rank_holds_segments_of_any_length() -> None:
    borders = np.array([0, 3, 4], dtype=np.int32)
    assert context_parallel_indices(borders, 1, 0).tolist() == context_parallel_order(borders, 1).tolist()
    assert context_parallel_order(borders, 1).tolist() == [0, 1, 2, 3]


def test_a_segment_that_does_not_divide_is_named() -> None:
    with pytest.raises(ConfigError, match=r"segment 1, tokens 8 to 14 .* 6 tokens; 2 .* pack with segment_multiple=4"):
        context_parallel_indices(np.array([0, 8, 14, 16], dtype=np.int32), 2, 0)


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_no_such_rank(size: int, rank: int) -> None:
    with pytest.raises(ConfigError, match=f"rank is {rank} of {size}"):
        context_parallel_indices(np.array([0, 8], dtype=np.int32), size, rank)
    if rank == 0:
        with pytest.raises(ConfigError, match="rank is 0 of 0"):
            context_parallel_order(np.array([0, 8], dtype=np.int32), size)


@pytest.mark.parametrize("borders", [[], [4, 8], [0, 8, 4], [[0, 8]]])
def test_what_is_no_prefix_sum_is_refused(borders: list[int]) -> None:
    with pytest.raises(ConfigError, match="one row of prefix sums"):
        context_parallel_indices(np.array(borders, dtype=np.int32), 2, 0)
