"""Mock data: the store against documents made one by one, and samples of it; Megatron's own are in tests/interop."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace import ConfigError, Loader, Order, Run
from headrace.compat.megatron import FillInTheMiddle, FIMTokens, GPTFIMDataset, GPTMasks, MockGPTDataset, MockStore


def plain(store: MockStore, vocab_size: int, eod: int) -> list[list[int]]:
    """The documents by their rule."""
    return [[*((number + 1) % vocab_size for number in range(length - 1)), eod] for length in store.lengths.tolist()]


@settings(max_examples=cases(24, 600), deadline=None)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 12), st.integers(2, 9), st.data())
def test_every_way_to_read(vocab_size: int, eod: int, num_documents: int, max_length: int, data: st.DataObject) -> None:
    store = MockStore(vocab_size=vocab_size, eod=eod, num_documents=num_documents, max_length=max_length)
    documents = plain(store, vocab_size, eod)
    stream = [token for document in documents for token in document]
    assert (store.num_documents, store.num_tokens, len(store)) == (num_documents, len(stream), num_documents)
    assert set(store.lengths.tolist()) <= set(range(1, max_length))
    assert [store.document(i).tolist() for i in range(-num_documents, num_documents)] == documents * 2
    begin = data.draw(st.integers(0, len(stream)))
    end = data.draw(st.integers(begin, len(stream)))
    found = store.fetch(begin, end)
    assert found.tolist() == stream[begin:end]
    assert found.dtype == store.dtypes["tokens"] == np.int32
    assert not found.flags.writeable
    length = end - begin
    begins = np.array(data.draw(st.lists(st.integers(0, len(stream) - length), max_size=4)), dtype=np.int64)
    assert store.gather(begins, length).tolist() == [stream[one : one + length] for one in begins.tolist()]
    pieces = store.pieces(begins, np.full(len(begins), length))
    assert [piece.tolist() for piece in pieces] == [stream[one : one + length] for one in begins.tolist()]
    everywhere = np.arange(len(stream))
    assert store.find_documents(everywhere).tolist() == np.repeat(np.arange(num_documents), store.lengths).tolist()
    assert store.document_begins(np.arange(num_documents + 1)).tolist() == [0, *np.cumsum(store.lengths).tolist()]
    assert np.concatenate(list(store.length_chunks(3))).tolist() == store.lengths.tolist()
    vocab = data.draw(st.integers(1, 10))
    assert bool(list(store.check(vocab_size=vocab))) == (max(stream) >= vocab)
    top = max(stream)
    assert list(store.check(vocab_size=top + 1)) == list(store.check()) == []
    (problem,) = store.check(vocab_size=top) if top else [None]
    if problem is not None:
        first = next(number for number, document in enumerate(documents) if max(document) >= top)
        assert problem.place == f"document {first}"
        assert f"has id {top}, " in problem.message


def test_the_lengths_are_those_of_megatron() -> None:
    """The first ones, and their sum: a NumPy that draws otherwise is noticed."""
    store = MockStore(vocab_size=100, eod=0)
    assert store.num_documents == 100_000
    assert store.lengths[:5].tolist() == [3484, 2609, 2094, 1105, 1261]
    assert store.num_tokens == 204_637_097


def test_no_documents() -> None:
    store = MockStore(vocab_size=5, eod=0, num_documents=0)
    assert (store.num_tokens, store.lengths.tolist(), store.fetch(0, 0).tolist()) == (0, [], [])
    assert list(store.check(vocab_size=1)) == []


def test_fingerprint_and_pickling() -> None:
    options = {"vocab_size": 50, "eod": 1, "num_documents": 1000, "max_length": 40}
    store = MockStore(**options)
    others = [MockStore(**{**options, name: value + 1}) for name, value in options.items()]
    assert len({store.fingerprint, *(other.fingerprint for other in others)}) == 5
    data = pickle.dumps(store)
    assert len(data) < 500
    again = pickle.loads(data)
    assert again.fingerprint == store.fingerprint
    assert again.fetch(0, 500).tolist() == store.fetch(0, 500).tolist()
    with store:
        assert store.files == ()
    assert store.fetch(0, 5).tolist() == again.fetch(0, 5).tolist(), "closing it changes nothing"
    with pytest.raises(ConfigError, match="use different versions of NumPy"):
        pickle.loads(data.replace(store.fingerprint.encode(), b"0" * 32))


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 0}, {"eod": -1}, {"eod": 1 << 31}, {"num_documents": -1}, {"max_length": 1}]
)
def test_wrong_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="max_length at least 2 and eod 0 to"):
        MockStore(**{"vocab_size": 5, "eod": 0, **wrong})
    with pytest.raises(IndexError, match="are out of range"):
        MockStore(vocab_size=5, eod=0, num_documents=1).fetch(0, 1 << 40)


def test_samples_are_pieces_of_the_documents() -> None:
    dataset = MockGPTDataset(vocab_size=1000, eod=7, sequence_length=512, num_samples=40, masks=GPTMasks(eod=7))
    assert dataset.split == "1,1,1"
    first = dataset[0]
    for token, label in zip(first["tokens"].tolist(), first["labels"].tolist(), strict=True):
        # The number after this one, the end of the document, or the first number after an end.
        assert label in ((token + 1) % 1000, 7) or (token == 7 and label in (1, 7))
    parts = [
        MockGPTDataset(vocab_size=9, eod=0, sequence_length=64, split_part=part) for part in ("train", "valid", "test")
    ]
    documents = [set(part.document_index.tolist()) for part in parts]
    assert [len(numbers) for numbers in documents] == [33_333, 33_334, 33_333]
    assert not documents[0] & documents[1] | documents[1] & documents[2]
    assert dataset.describe().startswith("mock data in core order of Megatron, seed 1234")
    assert pickle.loads(pickle.dumps(dataset))[3]["tokens"].tolist() == dataset[3]["tokens"].tolist()


def test_it_is_fed_as_any_other() -> None:
    dataset = MockGPTDataset(vocab_size=1000, eod=7, sequence_length=32, num_samples=40)
    run = Run(dataset, global_batch_size=4, order=Order(kind="none"), samples=12)
    rows = [row for batch in Loader(run, micro_batch_size=2) for row in batch["tokens"].tolist()]
    assert rows == [dataset[i]["tokens"].tolist() for i in range(12)]
    marks = FIMTokens(prefix=1001, middle=1002, suffix=1003, pad=1004, eod=7)
    filled = GPTFIMDataset(dataset, FillInTheMiddle(tokens=marks, rate=1.0))
    assert all(1001 in filled[i]["tokens"] for i in range(12))


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 1 to"):
        MockGPTDataset(vocab_size=0, eod=0, sequence_length=8)
    options: dict[str, Any] = {"sequence_lenght": 8}
    with pytest.raises(TypeError, match="sequence_lenght"):
        MockGPTDataset(vocab_size=5, eod=0, **options)
