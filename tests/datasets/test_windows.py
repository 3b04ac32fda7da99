"""Windows are the slices of the stream, and documents the documents, that they say they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import headrace
from counts import cases
from headrace.compat.torchtune import DocumentDataset
from headrace.errors import ConfigError, InputError
from headrace.plan import derive_array
from headrace.stores import KeyedWriter, Store


def naive(corpus: corpora.Corpus, begin: int, window: int) -> dict[str, list[int]]:
    """A window, token by token."""
    documents = corpus.documents[begin : begin + window].tolist()
    restart, start = [], 0
    for column, document in enumerate(documents):
        if column and document != documents[column - 1]:
            start = column
        restart.append(column - start)
    return {
        "input_ids": corpus.tokens[begin : begin + window].tolist(),
        "labels": corpus.tokens[begin + 1 : begin + window + 1].tolist(),
        "document_ids": documents,
        "restart": restart,
        "continue": list(range(window)),
    }


@settings(max_examples=cases(16, 80), deadline=None)
@given(st.integers(0, 3), st.integers(1, 90), st.integers(1, 120), st.booleans(), st.booleans(), st.data())
def test_every_window_is_its_slice(
    corpus: list[corpora.Corpus],
    which: int,
    window: int,
    stride: int,
    phase: bool,
    document_ids: bool,
    data: st.DataObject,
) -> None:
    mine = corpus[which]
    positions = data.draw(st.sampled_from(["continue", "restart"]))
    dataset = headrace.WindowDataset(
        mine.store, seq_len=window, stride=stride, phase=phase, document_ids=document_ids, position_ids=positions
    )
    without = (len(mine.tokens) - window - 1) // stride + 1
    assert len(dataset) in ({without, max(1, without - 1)} if phase else {without})
    indices = np.array(data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)))
    keys = derive_array(data.draw(st.integers(0, 2**64 - 1)), np.zeros(len(indices), dtype=np.int64))
    begins = dataset.locate(indices, keys)
    shift = begins - indices * stride
    assert (shift == shift[0]).all(), "one phase an epoch"
    assert 0 <= shift[0] < (stride if phase else 1)
    batch = dataset.read(begins)
    assert set(batch) == {"input_ids", "labels", "position_ids", *["document_ids"] * document_ids}
    for row, begin in enumerate(begins.tolist()):
        expected = naive(mine, begin, window)
        assert batch["input_ids"][row].tolist() == expected["input_ids"]
        assert batch["labels"][row].tolist() == expected["labels"]
        assert batch["position_ids"][row].tolist() == expected[positions]
        if document_ids:
            assert batch["document_ids"][row].tolist() == expected["document_ids"]


def test_phases_cover_the_stride_and_keep_the_count(corpus: list[corpora.Corpus]) -> None:
    dataset = headrace.WindowDataset(corpus[0].store, seq_len=10, phase=True)
    keys = derive_array(1, np.arange(2_000))
    phases = dataset.locate(np.zeros(2_000, dtype=np.int64), keys)
    assert set(phases.tolist()) == set(range(10))
    assert np.bincount(phases).min() > 120
    last = dataset.locate(np.full(2_000, len(dataset) - 1), keys)
    assert last.max() + 11 <= len(corpus[0].tokens)


def test_items_are_numpy_and_their_own(corpus: list[corpora.Corpus]) -> None:
    dataset = headrace.WindowDataset(corpus[0].store, seq_len=8)
    item = dataset[3]
    assert {name: (value.shape, value.dtype) for name, value in item.items()} == {
        "input_ids": ((8,), np.int64), "labels": ((8,), np.int64), "position_ids": ((8,), np.int64)
    }  # fmt: skip
    before = {name: value.copy() for name, value in dataset[4].items()}
    many = dataset.__getitems__([3, 4, -1])
    for value in (*item.values(), *many[0].values()):
        value[:] = -100
    for name, value in before.items():
        assert np.array_equal(dataset[4][name], value)
        assert np.array_equal(many[1][name], value)
        assert np.array_equal(many[2][name], dataset[len(dataset) - 1][name])
    assert not np.shares_memory(many[1]["input_ids"], many[1]["labels"]), "masking labels in place leaves inputs alone"
    with pytest.raises(IndexError, match="sample"):
        dataset[len(dataset)]
    with pytest.raises(IndexError, match="samples"):
        dataset.__getitems__([0, len(dataset)])


def test_recipe_tells_what_changes_the_bytes(corpus: list[corpora.Corpus]) -> None:
    store = corpus[0].store
    said = headrace.WindowDataset(store, seq_len=8, stride=4, phase=True).describe()
    assert "8 tokens every 4, another phase each epoch" in said
    options = [{}, {"stride": 4}, {"phase": True}, {"document_ids": True}, {"position_ids": "restart"}]
    prints = {headrace.WindowDataset(store, seq_len=8, **option).fingerprint for option in options}
    prints.add(headrace.WindowDataset(store, seq_len=9).fingerprint)
    prints.add(headrace.WindowDataset(corpus[1].store, seq_len=8).fingerprint)
    assert len(prints) == 7
    assert headrace.WindowDataset(store, seq_len=8).fingerprint in prints


def test_too_short_a_store_is_refused(tmp_path: Path) -> None:
    corpora.write(tmp_path / "tiny", [np.arange(5, dtype=np.uint16)])
    store = headrace.open(str(tmp_path / "tiny"))
    assert headrace.WindowDataset(store, seq_len=4)[0]["labels"].tolist() == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"5.*window.*6"):
        headrace.WindowDataset(store, seq_len=5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seq_len": 0}, "0"),
        ({"stride": 0}, "0"),
        ({"position_ids": "reset"}, "'reset'"),
        ({"store": "data/web"}, "'data/web'"),
    ],
)
def test_bad_options_are_refused(corpus: list[corpora.Corpus], options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        headrace.WindowDataset(**{"store": corpus[0].store, "seq_len": 4, **options})


def keyed(folder: Path, mask: list[int]) -> Store:
    """Documents of 3, 0, 2 and 1 tokens with a loss mask, and a key that is longer."""
    lengths = np.array([3, 0, 2, 1])
    dtypes = {"sequence": "uint16", "loss_mask": "uint8", "more": "uint8"}
    with KeyedWriter(folder, dtypes=dtypes) as writer:
        tokens = {"sequence": np.arange(10, 16), "loss_mask": np.array(mask), "more": np.zeros(7)}
        arrays = {key: values.astype(dtypes[key]) for key, values in tokens.items()}
        writer.add_documents(
            arrays, {"sequence": lengths, "loss_mask": lengths, "more": lengths + np.eye(4, dtype=int)[1]}
        )
        writer.finish()
    return headrace.open(str(folder))


def test_every_document_of_every_store(corpus: list[corpora.Corpus]) -> None:
    for mine in corpus:
        dataset = DocumentDataset(mine.store)
        assert len(dataset) == mine.store.num_documents
        assert dataset.lengths.tolist() == np.bincount(mine.documents, minlength=len(dataset)).tolist()
        wanted = [3, 4, 5, -1, 0, 0, 2]
        for number, sample in zip(wanted, dataset.__getitems__(wanted), strict=True):
            expected = mine.tokens[mine.documents == number % len(dataset)]
            for item in (sample, dataset[number]):
                assert list(item) == ["tokens", "labels"]
                for values in item.values():
                    assert values.dtype == np.int64
                    assert values.tolist() == expected.tolist()
    dataset = DocumentDataset(corpus[0].store)
    assert dataset.__getitems__([]) == []
    for wrong in (60, -61):
        with pytest.raises(IndexError, match=rf"{wrong}.*60"):
            dataset[wrong]
        with pytest.raises(IndexError, match=r"dataset.*60"):
            dataset.__getitems__([0, wrong])
    sample, before = dataset[0], dataset[0]["tokens"].copy()
    sample["labels"][:] = -1
    assert np.array_equal(sample["tokens"], before), "each array has memory of its own"
    sample["tokens"][:] = -1
    assert np.array_equal(dataset[0]["tokens"], before)


def test_a_mask_decides_the_labels(tmp_path: Path) -> None:
    dataset = DocumentDataset(keyed(tmp_path / "shard", [0, 1, 1, 1, 0, 0]), loss_mask_key="loss_mask")
    expected = [[-100, 11, 12], [], [13, -100], [-100]]
    assert [sample["labels"].tolist() for sample in dataset.__getitems__(range(4))] == expected
    assert [dataset[number]["labels"].tolist() for number in range(4)] == expected
    assert [dataset[number]["tokens"].tolist() for number in range(4)] == [[10, 11, 12], [], [13, 14], [15]]


def test_what_is_refused(tmp_path: Path) -> None:
    store = keyed(tmp_path / "shard", [0, 1, 1, 7, 0, 0])
    refused: list[tuple[Any, str, str]] = [("data/web", "auto", "'data/web'"), (store, "mask", "'mask'")]
    for asked, key, named in (*refused, (store, "more", "parallel")):
        with pytest.raises(ConfigError, match=named):
            DocumentDataset(asked, loss_mask_key=key)
    dataset = DocumentDataset(store, loss_mask_key="loss_mask")
    assert dataset[0]["labels"].tolist() == [-100, 11, 12]
    with pytest.raises(InputError, match=r"2.*'loss_mask'.*7"):
        dataset[2]


def test_fingerprint_and_words(tmp_path: Path, corpus: list[corpora.Corpus]) -> None:
    store = keyed(tmp_path / "shard", [1] * 6)
    masked = DocumentDataset(store, loss_mask_key="loss_mask")
    plain = DocumentDataset(store, loss_mask_key=None)
    prints = {plain.fingerprint, masked.fingerprint, DocumentDataset(corpus[0].store).fingerprint}
    assert len(prints) == 3
    assert plain.fingerprint == DocumentDataset(store, loss_mask_key=None).fingerprint
    assert masked.fingerprint == DocumentDataset(store).fingerprint
    assert f"4 samples, documents of {store.path}, 100.0%" in repr(masked)
