"""Blends keep to their shares at every prefix, and to exact counts at their end."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.plan import BlendTree, apportion, counts_until, exact_weights, quantised
from headrace.plan.arithmetic import scaled
from headrace.plan.blend import QUANTUM


@settings(max_examples=cases(60, 300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**61)), min_size=1), st.integers(1, 2**61))
def test_scaled_is_exact(pairs: list[tuple[int, int]], total: int) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.int64)
    shares = np.array([share % (total + 1) for _, share in pairs], dtype=np.int64)
    quotient, remainder = scaled(values, shares, np.full_like(values, total))
    expected = [divmod(v * s, total) for v, s in zip(values.tolist(), shares.tolist(), strict=True)]
    assert list(zip(quotient.tolist(), remainder.tolist(), strict=True)) == expected


@pytest.mark.parametrize("bits", [1, 30, 31, 32, 40, 41, 60, 61])
def test_scaled_at_the_borders_of_its_digits(bits: int) -> None:
    for total in {(1 << bits) - 1, 1 << bits, (1 << bits) + (bits < 61)}:
        values = np.array([0, 1, total - 1, total, total + 1, 2**62 - 1], dtype=np.int64)
        for share in {0, 1, total // 2, total - 1, total}:
            quotient, _ = scaled(values, np.full_like(values, share), np.full_like(values, total))
            assert quotient.tolist() == [value * share // total for value in values.tolist()]


def deviation(shares: list[int], positions: np.ndarray) -> float:
    """The largest |count - share| of any source at any prefix of consecutive positions, which begin anywhere."""
    tree = BlendTree(shares)
    sources, ranks = tree.split(positions)
    total = sum(shares)
    worst = Fraction(0)
    for source, share in enumerate(shares):
        mine = sources == source
        if not mine.any():
            # Its count does not move; it strays most at the ends, and there by less than a source with a rank would.
            continue
        counts = ranks[mine]
        assert np.array_equal(np.diff(counts), np.ones(counts.size - 1)), "ranks of a source are consecutive"
        at = positions[mine].tolist()
        for edge in {0, len(at) // 2, len(at) - 1}:
            worst = max(worst, abs(counts.tolist()[edge] - Fraction(at[edge] * share, total)))
        # Between two items of a source the deviation is largest right before and right after an item.
        before = counts - positions[mine].astype(np.float64) * (share / total)
        if int(positions[-1]) < 2**31:
            worst = max(
                worst, Fraction(float(np.abs(before).max())), Fraction(float(np.abs(before + 1 - share / total).max()))
            )
    return float(worst)


@settings(max_examples=cases(24, 60), deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=200))
def test_within_two_samples_of_the_weights_at_every_prefix(weights: list[float]) -> None:
    assert deviation(quantised(weights), np.arange(20_000, dtype=np.int64)) < 2


@pytest.mark.sampled(20)
@pytest.mark.parametrize("num_sources", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("kind", ["equal", "zipf", "two sizes", "random"])
@pytest.mark.parametrize("begin", [0, 2**32 - 500, 2**41])
def test_many_sources_also_above_2_to_32(num_sources: int, kind: str, begin: int) -> None:
    weights = {
        "equal": [1.0] * num_sources,
        "zipf": [1 / (i + 1) for i in range(num_sources)],
        "two sizes": [1000.0] + [1.0] * (num_sources - 1),
        "random": np.random.default_rng(num_sources).random(num_sources).tolist(),
    }[kind]
    assert deviation(quantised(weights), begin + np.arange(30_000, dtype=np.int64)) < 2


@settings(max_examples=cases(20, 100), deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any))
def test_exact_at_the_end_and_periodic(counts: list[int]) -> None:
    total = sum(counts)
    sources, ranks = BlendTree(counts).split(np.arange(3 * total, dtype=np.int64))
    for source, count in enumerate(counts):
        assert np.array_equal(ranks[sources == source], np.arange(3 * count))
        assert np.count_nonzero(sources[:total] == source) == count
    assert np.array_equal(sources[:total], sources[total : 2 * total])


@pytest.mark.parametrize("total", [2**32 + 1, 2**41, 2**41 + 7, 2**60])
@pytest.mark.parametrize("num_sources", [2, 7, 1000])
def test_exact_at_a_huge_end(total: int, num_sources: int) -> None:
    shares = apportion(total, exact_weights([1.0 + (i % 13) for i in range(num_sources)]))
    assert sum(shares) == total
    sources, ranks = BlendTree(shares).split(np.arange(total - 40_000, total, dtype=np.int64))
    for source in np.unique(sources).tolist():
        assert int(ranks[sources == source][-1]) == shares[source] - 1
    again, first = BlendTree(shares).split(np.arange(total, total + 40_000, dtype=np.int64))
    for source in np.unique(again).tolist():
        assert int(first[again == source][0]) == shares[source]


def test_worked_example() -> None:
    sources, ranks = BlendTree([2, 1]).split(np.arange(6, dtype=np.int64))
    assert sources.tolist() == [0, 1, 0, 0, 1, 0]
    assert ranks.tolist() == [0, 0, 1, 2, 1, 3]


@settings(max_examples=cases(20, 100), deadline=None)
@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=50))
def test_quantised_weights_sum_to_the_quantum(weights: list[float]) -> None:
    shares = quantised(weights)
    assert sum(shares) == QUANTUM
    assert min(shares) >= 1
    exact = exact_weights(weights)
    assert all(abs(share - weight * QUANTUM) <= len(weights) for share, weight in zip(shares, exact, strict=True))


def test_counts_until_a_source_is_exhausted() -> None:
    assert counts_until("first_exhausted", [0.5, 0.5], [10, 100]) == [10, 10]
    assert counts_until("all_exhausted", [0.5, 0.5], [10, 100]) == [100, 100]
    assert counts_until("first_exhausted", [0.7, 0.3], [10, 100]) == [10, 4]
    assert counts_until("all_exhausted", [0.7, 0.3], [10, 100]) == [233, 100]


@settings(max_examples=cases(20, 100), deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**12)), min_size=1, max_size=20))
def test_no_source_beyond_once_or_none_below(sources: list[tuple[float, int]]) -> None:
    weights, lengths = [list(column) for column in zip(*sources, strict=True)]
    first = counts_until("first_exhausted", weights, lengths)
    every = counts_until("all_exhausted", weights, lengths)
    pairs = list(zip(first, every, lengths, strict=True))
    assert all(low <= length <= high for low, high, length in pairs)
    assert any(low == length for low, _, length in pairs)
    assert any(high == length for _, high, length in pairs)
