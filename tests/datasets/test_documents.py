"""The documents of a store as samples of tokens and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from headrace.compat.torchtune import DocumentDataset
from headrace.errors import ConfigError, InputError
from headrace.stores import KeyedWriter, Store


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
    for given, key, named in (*refused, (store, "more", "parallel")):
        with pytest.raises(ConfigError, match=named):
            DocumentDataset(given, loss_mask_key=key)
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
