"""Windows are the slices of the stream that they say they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import headrace
from counts import cases
from headrace.errors import ConfigError
from headrace.plan import derive_array


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


@settings(max_examples=cases(32, 80), deadline=None)
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
