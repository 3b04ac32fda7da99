"""Indices that were stored: whole orders pass, and whatever is changed in them or in the data is found."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.plan.megatron import GPTOrder, GPTSampling, build_blending_indices
from headrace.plan.megatron import caches as checking
from headrace.plan.megatron.caches import (
    CachedIndices,
    IndexFault,
    built_otherwise,
    check_blend_indices,
    check_indices,
    fitting_sampling,
)
from headrace.plan.megatron.indices import SequenceStream

SIZES = np.array([20, 50, 60, 30, 100, 5])
SAMPLING = GPTSampling(sequence_length=30, num_samples=12, seed=1234)
"""Two epochs, the last one apart: 8 samples before it, 17 in all."""


def indices(sizes: Any = SIZES, sampling: GPTSampling = SAMPLING, first: int = 0) -> CachedIndices:
    order = GPTOrder(np.asarray(sizes), sampling, first_sequence=first)
    return CachedIndices(order.document_index, order.sample_index, order.shuffle_index.copy())


def faults(found: CachedIndices, sizes: Any = SIZES, sampling: GPTSampling = SAMPLING, **how: int) -> list[IndexFault]:
    return list(check_indices(found, np.asarray(sizes), sampling, **how))


def order_of(found: CachedIndices, sizes: list[int], sampling: GPTSampling, first: int = 0) -> GPTOrder:
    """The order that indices give, whoever shuffled them."""
    order = GPTOrder(np.array(sizes), sampling, first_sequence=first)
    order._stream = SequenceStream(found.document_index - first, np.array(sizes))
    order._shuffled = found.shuffle_index
    return order


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[int], GPTSampling]:
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=30).filter(any))
    sampling = GPTSampling(
        sequence_length=draw(st.integers(1, 12)),
        num_samples=draw(st.none() | st.integers(0, 150)),
        seed=draw(st.integers(0, 99)),
        add_extra_token=draw(st.booleans()),
        drop_last_partial=draw(st.booleans()),
    )
    return sizes, sampling


@settings(max_examples=cases(32, 3000))
@given(drawn(), st.integers(0, 5), st.integers(1, 40))
def test_orders_pass(given_: tuple[list[int], GPTSampling], first: int, chunk: int) -> None:
    sizes, sampling = given_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "CHUNK", chunk)
        found = indices(sizes, sampling, first)
        assert not faults(found, sizes, sampling, first_sequence=first)
        assert fitting_sampling(found, np.array(sizes), sampling) == sampling
    # The same order again, from the indices alone.
    order = GPTOrder(np.array(sizes), sampling, first_sequence=first)
    again = order_of(found, sizes, sampling, first)
    samples = np.arange(order.num_samples)
    for one, other in zip(order.locate(samples), again.locate(samples), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(again.document_index, found.document_index)
    assert np.array_equal(np.concatenate(list(again.document_index_chunks(chunk))), found.document_index)
    assert np.array_equal(np.concatenate(list(again.sample_index_chunks())), found.sample_index)


@settings(max_examples=cases(30, 5000))
@given(drawn(), st.data())
def test_any_change_of_an_entry_is_found(given_: tuple[list[int], GPTSampling], data: st.DataObject) -> None:
    sizes, sampling = given_
    found = indices(sizes, sampling)
    number = data.draw(st.integers(0, 2))
    array = found[number].copy()
    if not array.size:
        return
    place = data.draw(st.integers(0, array.size - 1))
    there = int(array.flat[place])
    array.flat[place] = data.draw(st.integers(0, 400).filter(lambda value: value != there))
    changed = CachedIndices(*(array if i == number else each for i, each in enumerate(found)))
    assert faults(changed, sizes, sampling)


@settings(max_examples=cases(30, 5000))
@given(drawn(), st.data())
def test_any_change_of_the_sizes_is_found_or_changes_no_sample(
    given_: tuple[list[int], GPTSampling], data: st.DataObject
) -> None:
    """What passes has the rows of the data there are, so every sample is cut as their own order would cut it."""
    sizes, sampling = given_
    found = indices(sizes, sampling)
    place = data.draw(st.integers(0, len(sizes) - 1))
    other = [*sizes]
    other[place] = data.draw(st.integers(0, 30))
    if not any(other) or faults(found, other, sampling):
        return
    order = order_of(found, other, sampling)
    assert np.array_equal(order.sample_index, found.sample_index)
    assert order.num_samples == len(found.shuffle_index)


def test_each_fault_says_where_and_what() -> None:
    found = indices()
    documents, samples, shuffled = (each.copy() for each in found)
    documents[7] = documents[8]
    assert faults(found._replace(document_index=documents)) == [
        IndexFault("document_index", "entries 6 to 11", "sequence 3 comes 2 times; expected 1")
    ]
    documents = found.document_index.copy()
    documents[3] = 6
    [fault] = faults(found._replace(document_index=documents))
    assert fault == IndexFault("document_index", "entry 3", "sequence 6; the part has 0 to 5")
    samples[4] = 3, 6
    [fault] = faults(found._replace(sample_index=samples))
    assert fault == IndexFault("sample_index", "row 4", "entry 3 at token 6; expected entry 3 at token 5")
    shuffled[0] = 2
    [fault] = faults(found._replace(shuffle_index=shuffled))
    assert fault == IndexFault("shuffle_index", "", "sample 1 is missing, and another comes twice")
    shuffled = found.shuffle_index[::-1].copy()
    [fault] = faults(found._replace(shuffle_index=shuffled))
    assert fault == IndexFault("shuffle_index", "entry 0", "sample 8; expected one from 0 to 7 here")


def test_epochs_that_are_mixed() -> None:
    """A last epoch that ought to be apart, and is not."""
    together = indices(sampling=msgspec.structs.replace(SAMPLING, last_epoch="together"))
    [documents, shuffled] = faults(together)
    assert (documents.array, documents.place) == ("document_index", "entries 0 to 5")
    assert (shuffled.array, shuffled.message) == ("shuffle_index", "sample 9; expected one from 0 to 7 here")


def test_another_number_of_sequences_or_tokens() -> None:
    found = indices()
    [documents, *_] = faults(found, [*SIZES, 3])
    assert documents == IndexFault("document_index", "", "12 entries; expected 2 epochs of 7 sequences")
    [documents, samples, shuffled] = faults(found, SIZES * 3)
    assert documents.message == "12 entries; expected 1 epoch of 6 sequences"
    assert samples == IndexFault("sample_index", "", "18 rows; expected 27: one for each sample, and the end")
    assert shuffled == IndexFault("shuffle_index", "", "17 entries; expected 26")
    [fault] = faults(found, [0] * 6)
    assert "12 samples are wanted, but the sequences have no tokens" in fault.message


@pytest.mark.parametrize(
    ("change", "array", "message"),
    [
        (
            {"document_index": np.arange(12)},
            "document_index",
            r"int64 of shape \(12,\); expected int32 with one dimension",
        ),
        ({"sample_index": np.zeros((18, 3), np.int32)}, "sample_index", "expected int32 or int64 with 2 columns"),
        (
            {"shuffle_index": np.zeros((17, 2), np.uint32)},
            "shuffle_index",
            "expected uint32 or int64 with one dimension",
        ),
        ({"shuffle_index": np.zeros(17, np.float32)}, "shuffle_index", "float32 of shape"),
    ],
)
def test_arrays_of_another_form(change: dict[str, Any], array: str, message: str) -> None:
    [fault] = faults(indices()._replace(**change))
    assert fault.array == array
    assert re.search(message, fault.message)


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_the_options_it_was_built_with_are_named(extra: bool, drop: bool) -> None:
    other = msgspec.structs.replace(SAMPLING, add_extra_token=extra, drop_last_partial=drop)
    found = indices(sampling=other)
    if (extra, drop) == (True, True):
        assert built_otherwise(found, SIZES, SAMPLING) is None
    else:
        assert faults(found)
        assert built_otherwise(found, SIZES, SAMPLING) == other
    assert built_otherwise(found, SIZES[::-1] + 1, SAMPLING) is None


def test_the_number_of_samples_in_float32() -> None:
    """134,217,730 tokens in samples of 8,192: 16,385, or 16,384 as float32 rounds it."""
    sizes = np.array([134_217_730])
    exact = GPTSampling(sequence_length=8192, num_samples=None, seed=1, drop_last_partial=False, add_extra_token=False)
    rounded = msgspec.structs.replace(exact, float32_ceil=True)
    for sampling, count in ((exact, 16_385), (rounded, 16_384)):
        found = indices(sizes, sampling)
        assert len(found.shuffle_index) == count
        assert fitting_sampling(found, sizes, exact) == sampling
        assert not faults(found, sizes, sampling)


@settings(max_examples=cases(32, 2000))
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=9), st.integers(1, 200), st.integers(1, 50), st.data())
def test_blends(weights: list[float], size: int, chunk: int, data: st.DataObject) -> None:
    datasets, samples = build_blending_indices(weights, size)
    lengths = np.bincount(datasets, minlength=len(weights)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "CHUNK", chunk)
        assert not list(check_blend_indices(datasets, samples, size=size, lengths=lengths))
        place = data.draw(st.integers(0, size - 1))
        short = [*lengths]
        short[datasets[place]] -= 1
        [fault] = check_blend_indices(datasets, samples, size=size, lengths=short)
        assert fault.message.endswith(f"which has {short[datasets[place]]:,}")
        for array in (datasets.copy(), samples.copy()):
            array[place] = data.draw(st.integers(-1, 300).filter(lambda value, a=array: value != a[place]))
            pair = (array, samples) if array.dtype == np.int16 else (datasets, array)
            assert list(check_blend_indices(*pair, size=size, lengths=lengths))


def test_blends_of_another_form() -> None:
    datasets, samples = build_blending_indices([0.5, 0.5], 9)
    [fault] = check_blend_indices(datasets, samples, size=10, lengths=[5, 5])
    assert fault == IndexFault("dataset_index", "", "int16 of shape (9,); expected int16 of shape (10,)")
    [fault] = check_blend_indices(datasets, samples.astype(np.int32), size=9, lengths=[5, 5])
    assert fault.array == "dataset_sample_index"
