"""Megatron's order against plain loops, and what is kept of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan.megatron import AlephAlphaOrder, GPTOrder, GPTSampling, SamplePieces, count_epochs, order_samples
from headrace.plan.megatron.indices import SequenceStream, checked_sizes
from plan.megatron import plainly

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)


def split(found: SamplePieces) -> list[list[plainly.Piece]]:
    rows = np.stack([found.sequences, found.begins, found.lengths], axis=1)
    bounds = zip(found.offsets[:-1], found.offsets[1:], strict=True)
    return [[tuple(row) for row in rows[begin:end].tolist()] for begin, end in bounds]


@settings(max_examples=cases(15, 3000), deadline=None)
@given(
    SIZES,
    st.integers(1, 50),
    st.floats(0, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["auto", "separate", "together"]),
    st.booleans(),
    st.booleans(),
)
@example([20, 50, 60, 30, 100, 5], 30, 1.5, 1234, "auto", False, True)
def test_equals_the_plain_loops(
    sizes: list[int], size: int, epochs: float, seed: int, last: Any, extra: bool, drop: bool
) -> None:
    wanted = int(epochs * sum(sizes) / size)
    plain = plainly.order(sizes, wanted, size, seed, int(extra), drop, last)
    # Megatron has no answer where a partial last sample would end in an empty sequence.
    assume(drop or not extra or sizes[plain.documents[-1]] > 0)
    sampling = GPTSampling(
        sequence_length=size,
        num_samples=wanted,
        seed=seed,
        add_extra_token=extra,
        drop_last_partial=drop,
        last_epoch=last,
    )
    order = GPTOrder(np.array(sizes), sampling, first_sequence=7)
    assert order.num_epochs == plain.num_epochs
    assert order.separate_last_epoch == plain.separate
    assert order.document_index.tolist() == [document + 7 for document in plain.documents]
    assert order.sample_index.tolist() == [list(row) for row in plain.rows]
    assert order.shuffle_index.tolist() == plain.shuffled
    assert np.array_equal(np.concatenate(list(order.document_index_chunks(size))), order.document_index)
    assert np.array_equal(np.concatenate(list(order.sample_index_chunks())), order.sample_index)
    assert order.num_samples == len(order) == len(plain.shuffled) >= wanted
    found = order.locate(np.arange(order.num_samples))
    expected = [plainly.pieces(plain, sizes, i, int(extra)) for i in range(order.num_samples)]
    assert split(found) == [[(d + 7, begin, length) for d, begin, length in part] for part in expected]
    full = np.full(order.num_samples, size + extra)
    if drop:
        assert np.array_equal(found.num_tokens, full)
    else:
        # At most one sample is short, wherever the shuffle has put it.
        assert np.count_nonzero(found.num_tokens != full) <= 1


@settings(max_examples=cases(12, 2000), deadline=None)
@given(SIZES, st.integers(1, 12), st.integers(0, 60), st.integers(0, 2**31))
@example([7, 5], 3, 2, 0)
@example([4, 4, 4, 1, 0, 4], 3, 9, 5)
def test_aleph_alpha(sizes: list[int], size: int, wanted: int, seed: int) -> None:
    sampling = GPTSampling(sequence_length=size, num_samples=wanted, seed=seed, dialect="aleph_alpha")
    expected = plainly.aleph_alpha_epoch(sizes, size, seed)
    if wanted and not expected:
        with pytest.raises(ConfigError, match="sample"):
            AlephAlphaOrder(np.array(sizes), sampling)
        return
    epochs = 1
    while len(expected) < wanted:
        more = plainly.aleph_alpha_epoch(sizes, size, seed + epochs)
        if not more:
            with pytest.raises(ConfigError, match="sample"):
                AlephAlphaOrder(np.array(sizes), sampling)
            return
        expected += more
        epochs += 1
    order = order_samples(np.array(sizes), sampling, first_sequence=0)
    assert order.num_epochs == epochs
    assert order.num_samples == len(expected)
    numbers = np.random.default_rng(0).permutation(len(expected))
    assert split(order.locate(numbers)) == [expected[i] for i in numbers]
    with pytest.raises(ConfigError, match="samples"):
        order.locate(np.array([len(expected)]))


def test_neox_shuffles_all_epochs_together_and_wraps_around() -> None:
    sizes = [20, 50, 60, 30, 100, 5]
    sampling = GPTSampling(sequence_length=30, num_samples=12, seed=1234, dialect="neox")
    order = GPTOrder(np.array(sizes), sampling)
    plain = plainly.order(sizes, 12, 30, 1234, 1, True, "together")
    assert not order.separate_last_epoch
    assert order.document_index.tolist() == plain.documents
    assert order.shuffle_index.tolist() == plain.shuffled
    assert order.sample_index.tolist() == [list(row) for row in plain.rows]
    assert (order.num_samples, len(plain.shuffled)) == (16, 17)
    # The 17th is there all the same; what lies behind it is taken modulo 16.
    found = split(order.locate(np.array([0, 16, 17, 31, 32])))
    assert found == [plainly.pieces(plain, sizes, i, 1) for i in (0, 16, 1, 15, 0)]


def test_legacy_is_core() -> None:
    sizes = np.array([20, 50, 60, 30, 100, 5])
    orders = [
        GPTOrder(sizes, GPTSampling(sequence_length=30, num_samples=20, seed=3, dialect=dialect))
        for dialect in ("core", "legacy")
    ]
    assert np.array_equal(orders[0].document_index, orders[1].document_index)
    assert np.array_equal(orders[0].shuffle_index, orders[1].shuffle_index)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint64])
def test_lengths_of_any_alignment_and_type_are_taken_as_they_lie(dtype: Any) -> None:
    values = np.random.default_rng(1).integers(0, 900, 70_000).astype(dtype)
    raw = np.zeros(values.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(dtype)
    unaligned[:] = values
    assert not unaligned.flags.aligned
    sampling = GPTSampling(sequence_length=257, num_samples=150_000, seed=5)
    one, two = GPTOrder(values, sampling), GPTOrder(unaligned, sampling)
    some = np.random.default_rng(2).integers(0, one.num_samples, 5000)
    for left, right in zip(one.locate(some), two.locate(some), strict=True):
        assert np.array_equal(left, right)
    rows = one.sample_index
    assert np.array_equal(rows, two.sample_index)
    # The lookup, which stores no sample index, against the array.
    place = one.shuffle_index[some].astype(np.int64)
    pieces = one.locate(some)
    first = pieces.offsets[:-1]
    assert np.array_equal(pieces.sequences[first], one.document_index[rows[place, 0]])
    assert np.array_equal(pieces.begins[first], rows[place, 1])
    assert (pieces.num_tokens == 258).all()


def test_lengths_of_uint64_are_not_added_as_floats() -> None:
    stream = SequenceStream(np.array([0, 1]), checked_sizes(np.array([2**53 + 1, 10], np.uint64)))
    entries, offsets = stream.find(np.array([2**53, 2**53 + 1, 2**53 + 2]))
    assert (entries.tolist(), offsets.tolist()) == ([0, 1, 1], [2**53, 0, 1])


@pytest.mark.parametrize(("wanted", "epochs"), [(None, 1), (3000, 2)])
def test_what_is_kept(wanted: int | None, epochs: int) -> None:
    sizes = np.random.default_rng(0).integers(1, 300, 20_000).astype(np.int32)
    order = GPTOrder(sizes, GPTSampling(sequence_length=1024, num_samples=wanted, seed=1))
    assert order.num_epochs == epochs
    assert order.num_bytes <= 5 * epochs * len(sizes) + 4 * order.num_samples
    order.shuffle_index[:1].tolist()
    with pytest.raises(ValueError, match="read-only"):
        order.shuffle_index[0] = 1


@settings(max_examples=cases(12, 2000), deadline=None)
@given(SIZES, st.integers(1, 30), st.integers(0, 90), st.integers(0, 90), st.sampled_from(["core", "neox"]))
@example([20, 50, 60, 30, 100, 5], 30, 12, 16, "core")
def test_extending_a_run_warns_exactly_when_its_order_changes(
    sizes: list[int], size: int, before: int, after: int, dialect: Any
) -> None:
    wanted = {"sequence_length": size, "seed": 9, "dialect": dialect}
    old = GPTOrder(np.array(sizes), GPTSampling(num_samples=before, **wanted))
    new = GPTOrder(np.array(sizes), GPTSampling(num_samples=after, **wanted))
    same = np.array_equal(old.document_index, new.document_index) and np.array_equal(
        old.shuffle_index, new.shuffle_index
    )
    reorders = old.reorders_when_extended(after)
    assert reorders != (after in old.epochs.same_order)
    assert before in old.epochs.same_order
    assert old.reorders_when_extended(None) == (old.num_epochs > 1)
    if not reorders:
        assert same
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        new.warn_if_extended_from(before)
    assert len(caught) == reorders
    for warning in caught:
        assert warning.category.__name__ == "ReorderWarning"
        assert f"to {old.epochs.same_order.stop - 1:,} samples" in str(warning.message)


@pytest.mark.parametrize("epochs", [2, 3, 7])
def test_the_last_epoch_is_apart_below_80_percent(epochs: int) -> None:
    """1,000 samples an epoch: 799 of the last are apart, 800 are not."""
    before = (epochs - 1) * 1000
    sampling = {"sequence_length": 100, "seed": 0}
    for needed, expected in ((1, True), (799, True), (800, False), (1000, False)):
        found = count_epochs(100_001, GPTSampling(num_samples=before + needed, **sampling))
        assert (found.num_epochs, found.separate_last_epoch) == (epochs, expected)
        assert found.same_order == (range(before + 1, before + 800) if expected else range(before + 800, before + 1001))
    # int() cuts: 80 % of 9 samples are 7.
    for needed, expected in ((6, True), (7, False), (8, False)):
        found = count_epochs(91, GPTSampling(sequence_length=10, num_samples=9 + needed, seed=0))
        assert found.separate_last_epoch == expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sequence_length": 0}, "sequence_length.*0"),
        ({"num_samples": -1}, "num_samples.*-1"),
        ({"seed": 2**32}, "seed.*4294967296"),
        ({"seed": -1}, "seed.*-1"),
        ({"dialect": "deepspeed"}, "'core'"),
        ({"last_epoch": "apart"}, "'auto'"),
        ({"dialect": "neox", "add_extra_token": False}, "'core'"),
        ({"dialect": "legacy", "drop_last_partial": False}, "'core'"),
        ({"dialect": "neox", "last_epoch": "separate"}, "separate"),
        ({"float32_ceil": True}, "drop_last_partial=False"),
    ],
)
def test_what_is_not_allowed(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GPTSampling(**({"sequence_length": 8, "num_samples": 1, "seed": 0} | change))


def test_wrong_lengths_are_refused() -> None:
    sampling = GPTSampling(sequence_length=8, num_samples=1, seed=0)
    for sizes, named in [
        (np.array([3, -1]), "1.*-1"),
        (np.array([3.0]), "integers"),
        (np.array([[3]]), "integers"),
        (np.array([0, 0]), "sequences"),
        (np.zeros(0), "sequences"),
    ]:
        with pytest.raises(ConfigError, match=named):
            GPTOrder(sizes, sampling)
    with pytest.raises(ConfigError, match=r"2\^62"):
        GPTOrder(np.array([1]), GPTSampling(sequence_length=2**30, num_samples=2**33, seed=0))
    with pytest.raises(ConfigError, match=r"numbers.*0"):
        GPTOrder(np.array([1]), sampling, first_sequence=2**31)
    with pytest.raises(ConfigError, match="AlephAlphaOrder"):
        GPTOrder(np.array([9]), GPTSampling(sequence_length=8, num_samples=1, seed=0, dialect="aleph_alpha"))
    with pytest.raises(ConfigError, match="'aleph_alpha'"):
        AlephAlphaOrder(np.array([9]), sampling)
    with pytest.raises(ConfigError, match=r"4294967296.*2\^32"):
        order_samples(
            np.array([9]), GPTSampling(sequence_length=8, num_samples=2, seed=2**32 - 1, dialect="aleph_alpha")
        )
    order = GPTOrder(np.array([9, 9]), sampling)
    for wrong in (-1, order.num_samples):
        with pytest.raises(ConfigError, match="samples"):
            order.locate(np.array([0, wrong]))


@pytest.mark.parametrize("sizes", [[], [0, 0], [3], [8]])
def test_one_epoch_without_a_sample_is_empty(sizes: list[int]) -> None:
    order = GPTOrder(np.array(sizes, dtype=np.int32), GPTSampling(sequence_length=8, num_samples=None, seed=0))
    assert order.num_samples == 0
    assert order.sample_index.tolist() == [[0, 0]]
    assert order.locate(np.zeros(0, dtype=np.int64)).offsets.tolist() == [0]
