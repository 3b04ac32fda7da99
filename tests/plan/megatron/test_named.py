"""The three builders by Megatron's names: their examples, lists and arrays, and what they refuse."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan.megatron import (
    GPTSampling,
    build_doc_idx,
    build_sample_idx,
    build_shuffle_idx,
    count_epochs,
    indices,
)
from headrace.plan.megatron.indices import SequenceStream
from plan.megatron import plainly

SIZES = [20, 50, 60, 30, 100, 5]


def test_examples() -> None:
    failed, tried = doctest.testmod(indices)
    assert (failed, tried >= 6) == (0, True)


@settings(max_examples=cases(20, 2000), deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any),
    st.integers(1, 3),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_sample_idx_equals_the_plain_loop(
    sizes: list[int], epochs: int, size: int, drop: bool, extra: bool, random: Any
) -> None:
    entries = list(range(len(sizes))) * epochs
    random.shuffle(entries)
    lengths = [sizes[entry] for entry in entries]
    assume(drop or not extra or lengths[-1] > 0)
    left = epochs * sum(sizes) - extra
    num_samples = left // size if drop else -(-left // size)
    expected = plainly.sample_rows(lengths, size, num_samples, int(extra))
    found = build_sample_idx(sizes, entries, size, epochs, sum(sizes), drop, extra)
    assert found.dtype == np.int32
    assert found.tolist() == [list(row) for row in expected]
    stream = SequenceStream(np.arange(len(lengths)), np.array(lengths))
    rows = stream.sample_index(size, num_samples, int(extra))
    assert np.array_equal(found, rows)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_073])
def test_sample_idx_over_several_chunks(count: int) -> None:
    """Against prefix sums of all documents, at the sizes where a pass ends."""
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 9, count)
    entries = rng.permutation(count).astype(np.int32)
    found = build_sample_idx(sizes, entries, 7, 1, int(sizes.sum()))
    ends = np.cumsum(sizes[entries])
    tokens = np.arange(1, (ends[-1] - 1) // 7 + 1) * 7
    place = np.searchsorted(ends, tokens, side="right")
    assert np.array_equal(found[1:, 0], place)
    assert np.array_equal(found[1:, 1], tokens - (ends - sizes[entries])[place])
    assert found[0].tolist() == [0, 0]


def test_a_partial_sample_ends_with_the_last_token_there_is() -> None:
    """Megatron cannot: its offset would be -1."""
    assert build_sample_idx([4, 3, 0], [0, 1, 2], 5, 1, 7, False).tolist() == [[0, 0], [1, 1], [1, 2]]
    # Without the extra token it can, and ends in the empty document.
    assert build_sample_idx([4, 3, 0], [0, 1, 2], 5, 1, 7, False, False).tolist() == [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize(
    ("tokens", "exact", "in_float32"), [(134_217_730, 16385, 16384), (2**40 + 70_000, 134_217_737, 134_217_744)]
)
def test_the_number_of_samples_is_exact_unless_asked(tokens: int, exact: int, in_float32: int) -> None:
    for float32_ceil, expected in ((False, exact), (True, in_float32)):
        sampling = GPTSampling(
            sequence_length=8192, num_samples=1, seed=0, drop_last_partial=False, float32_ceil=float32_ceil
        )
        assert count_epochs(tokens, sampling).num_samples == expected


def test_samples_past_the_end_are_the_last_token() -> None:
    """Where float32 counts too many, as Megatron does: rows that stand still, samples of one token."""
    stream = SequenceStream(np.array([0, 1]), np.array([9, 21]))
    assert stream.sample_index(10, 5, 1).tolist() == [[0, 0], [1, 1], [1, 11], [1, 20], [1, 20], [1, 20]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((SIZES, [0], 0, 1, 265), "0.*1.*265"),
        ((SIZES, [0], 30, 0, 265), "30.*0.*265"),
        ((SIZES, [0, 1, 2, 3, 4, 6], 30, 1, 265), "0.*6.*6.*sizes"),
        ((SIZES, [0, -1], 30, 1, 25), "-1.*0.*6.*sizes"),
        ((SIZES, [0, 1, 2, 3, 4, 5], 30, 2, 265), "265.*2.*265.*530"),
        ((SIZES, [], 30, 1, 265), "0.*tokens"),
        (([2.5], [0], 30, 1, 2), "float64"),
    ],
)
def test_what_sample_idx_refuses(arguments: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build_sample_idx(*arguments)


def test_what_the_others_refuse() -> None:
    rng = np.random.RandomState(0)
    with pytest.raises(ConfigError, match=r"num_epochs.*0"):
        build_doc_idx([1], 0, rng, False)
    for documents in ([2**31], range(2**31 - 1, 2**31 + 1)):
        with pytest.raises(ConfigError, match="int32"):
            build_doc_idx(list(documents), 1, rng, False)
    with pytest.raises(ConfigError, match=r"0.*total_size.*3"):
        build_shuffle_idx(4, 3, rng)
