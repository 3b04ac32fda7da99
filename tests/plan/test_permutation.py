"""Permutations are bijections at every length, and look like NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.plan import derive_array, permute, unpermute
from headrace.plan.keys import derive, mix, mix_array, source_key
from headrace.plan.permutation import permute_each

EDGES = [1, 2, 3, 255, 256, 257, 65_521, 65_535, 65_536, 65_537, 104_729, 2**17 - 1, 2**17, 2**17 + 1, 1_000_003]
GOLDEN = {
    "key": 14001236752012199354,
    "derive": 17278932916280575146,
    "ten": [1, 2, 9, 8, 4, 3, 5, 0, 6, 7],
    "billions": [4481703300, 8910853386, 9434306820, 1519783006, 7429182167],
}
HUGE = [2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**32 + 15, 2**53 + 1, 2**61 - 1, 2**62 - 1, 2**62]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("length", EDGES)
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_every_element_exactly_once(length: int, key: int) -> None:
    ranks = np.arange(length, dtype=np.int64)
    elements = permute(ranks, length, key)
    assert elements.dtype == np.int64
    assert np.array_equal(np.sort(elements), ranks)
    assert np.array_equal(unpermute(elements, length, key), ranks)


@pytest.mark.parametrize("key", [41, 170, 613, 931, 1333])
def test_walks_that_land_exactly_on_the_length_go_on(key: int) -> None:
    """With these keys some rank outside [0, 65537) is sent to 65537, the first that is outside."""
    elements = permute(np.arange(65_537, dtype=np.int64), 65_537, key)
    assert np.array_equal(np.sort(elements), np.arange(65_537))


@pytest.mark.parametrize("length", HUGE)
def test_huge_lengths_are_injective_and_inverted(length: int) -> None:
    near = np.arange(5_000, dtype=np.int64)
    ranks = np.unique(np.concatenate([near, length - 1 - near, near * (length // 5_000)]))
    elements = permute(ranks, length, 7)
    assert elements.min() >= 0
    assert elements.max() < length
    assert np.unique(elements).size == ranks.size
    assert np.array_equal(unpermute(elements, length, 7), ranks)


@settings(max_examples=cases(20, 200), deadline=None)
@given(st.data(), st.integers(1, 2**62), st.integers(0, 2**64 - 1))
def test_one_key_for_all_or_one_each(data: st.DataObject, length: int, key: int) -> None:
    ranks = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=40)), dtype=np.int64)
    # Small lengths go another way from nine distinct keys on.
    keys = derive_array(key, np.arange(ranks.size) % data.draw(st.sampled_from([1, 5, 40])))
    together = permute(ranks, length, keys)
    single = [permute(ranks[i : i + 1], length, int(keys[i]))[0] for i in range(ranks.size)]
    assert together.tolist() == single
    assert np.array_equal(unpermute(together, length, keys), ranks)


def test_golden_values() -> None:
    """The order of a run is part of its format: a change here needs a new ORDER_FORMAT."""
    assert source_key(1234, "web/en", "order") == GOLDEN["key"]
    assert derive(5, 7) == GOLDEN["derive"]
    assert permute(np.arange(10, dtype=np.int64), 10, 5).tolist() == GOLDEN["ten"]
    ranks = np.arange(5, dtype=np.int64) * 2_000_000_000
    assert permute(ranks, 10**10, 5).tolist() == GOLDEN["billions"]


def test_scalar_and_array_hashes_agree() -> None:
    values = [0, 1, 2**63, 2**64 - 1, 123_456_789]
    assert mix_array(np.array(values, dtype=np.uint64)).tolist() == [mix(value) for value in values]
    numbers = np.array([0, 1, 2, 2**62], dtype=np.int64)
    assert derive_array(99, numbers).tolist() == [derive(99, number) for number in numbers.tolist()]


def statistics(elements: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """What a shuffle is judged by; each is near 0 for a uniform permutation, in units of its standard deviation."""
    n = elements.size
    scaled = elements / n
    ranks = np.arange(n) / n

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(a, b)[0, 1] * np.sqrt(a.size))

    cells = 32
    table = np.histogram2d(ranks, scaled, bins=cells, range=[[0, 1], [0, 1]])[0]
    chi2 = float(((table - n / cells**2) ** 2 / (n / cells**2)).sum())
    gaps = np.histogram((np.diff(elements) % n) / n, bins=256, range=(0, 1))[0]
    gap_chi2 = float(((gaps - gaps.mean()) ** 2 / gaps.mean()).sum())
    low = np.bincount(elements[: n // 2] % 64, minlength=64)
    low_chi2 = float(((low - low.mean()) ** 2 / low.mean()).sum())
    return {
        "position": correlation(ranks, scaled),
        "neighbour": correlation(scaled[:-1], scaled[1:]),
        "epochs": correlation(scaled, other / n),
        "cells": (chi2 - (cells - 1) ** 2) / np.sqrt(2 * (cells - 1) ** 2),
        "gaps": (gap_chi2 - 255) / np.sqrt(2 * 255),
        # Half of the elements are drawn without replacement, which halves the variance.
        "low bits": (low_chi2 - 31.5) / np.sqrt(31.5),
    }


@pytest.mark.parametrize("length", [4_001, 65_535, 65_536, 1_048_577, 65_537, 200_003])
@pytest.mark.sampled(3)
def test_statistics_like_numpys(length: int) -> None:
    ranks = np.arange(length, dtype=np.int64)
    rng = np.random.default_rng(1)
    worst: dict[str, list[float]] = {}
    for source in ("ours", "numpy"):
        values = []
        for trial in range(6):
            if source == "ours":
                epochs = [permute(ranks, length, derive(source_key(trial, "", "order"), epoch)) for epoch in (0, 1)]
            else:
                epochs = [rng.permutation(length) for _ in (0, 1)]
            values.append(statistics(*epochs))
        for name in values[0]:
            worst.setdefault(name, []).append(max(abs(one[name]) for one in values))
    for name, (ours, numpys) in worst.items():
        assert ours < max(4.5, 2 * numpys), f"{name}: {ours:.1f} standard deviations, NumPy has {numpys:.1f}"


@pytest.mark.parametrize("first", [1, 51, 101, 151])
def test_each_of_a_length_of_its_own_is_a_bijection(first: int) -> None:
    """All elements of every length from 1 to 200, each with several keys, in one call."""
    groups = [(length, key) for length in range(first, first + 50) for key in (0, 1, 2**63, 2**64 - 1, length)]
    sizes = np.array([length for length, _ in groups])
    lengths = np.repeat(sizes, sizes)
    keys = np.repeat(np.array([key for _, key in groups], dtype=np.uint64), sizes)
    ends = np.cumsum(sizes)
    ranks = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    elements = permute_each(ranks, lengths, keys)
    assert elements.dtype == np.int64
    for length, found in zip(sizes.tolist(), np.split(elements, ends[:-1]), strict=True):
        assert np.array_equal(np.sort(found), np.arange(length))


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 2**17 + 1, 999_983])
def test_each_of_one_great_length_is_a_bijection(length: int) -> None:
    ranks = np.arange(length)
    elements = permute_each(ranks, np.full(length, length), np.full(length, 11, dtype=np.uint64))
    assert np.array_equal(np.sort(elements), ranks)
    assert np.count_nonzero(elements == ranks) < 12


@settings(max_examples=cases(20, 200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2**32), st.integers(0, 2**64 - 1), st.integers(0, 2**32)), max_size=8),
    st.integers(0, 99),
)
def test_each_does_not_depend_on_the_others(groups: list[tuple[int, int, int]], seed: int) -> None:
    """Drawn lengths up to 2^32: within the length, injective, and the same in any company."""
    near = np.arange(40)
    parts = [np.unique(np.concatenate([near, length - 1 - near, [rank]]) % length) for length, _, rank in groups]
    sizes = [len(part) for part in parts]
    ranks = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    lengths = np.repeat(np.array([length for length, _, _ in groups], dtype=np.int64), sizes)
    keys = np.repeat(np.array([key for _, key, _ in groups], dtype=np.uint64), sizes)
    together = permute_each(ranks, lengths, keys)
    assert ((together >= 0) & (together < lengths)).all()
    for (length, key, _), part, found in zip(
        groups, parts, np.split(together, np.cumsum(sizes)[:-1]) if sizes else [], strict=True
    ):
        assert np.unique(found).size == len(part)
        alone = permute_each(part, np.full(len(part), length), np.full(len(part), key, dtype=np.uint64))
        assert np.array_equal(found, alone)
    order = np.random.default_rng(seed).permutation(len(ranks))
    assert np.array_equal(permute_each(ranks[order], lengths[order], keys[order]), together[order])


@pytest.mark.parametrize("length", [50, 1_000, 100_000])
def test_first_elements_of_many_keys_are_uniform(length: int) -> None:
    keys, firsts = derive_array(3, np.arange(20_000)), np.zeros(20_000, dtype=np.int64)
    for elements in (permute(firsts, length, keys), permute_each(firsts, np.full(20_000, length), keys)):
        counts = np.histogram(elements, bins=50, range=(0, length))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * np.sqrt(98)
