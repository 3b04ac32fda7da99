"""A store with a parallel key that is 1 at tokens that are trained on: the labels of the others are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packs_plainly
from counts import cases
from headrace import ConfigError, PackedSequenceDataset, Packing, stores
from headrace.plan import derive_array
from headrace.testing.shards import write_keyed
from packs_plainly import check_samples


@pytest.fixture(scope="module", params=["mmap", "pread", "shards"])
def marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 50, 60) * (rng.random(60) > 0.1)
    documents = [rng.integers(0, 90_000, length).astype(np.int32) for length in lengths]
    marks = [(rng.random(length) > 0.3).astype(np.uint8) for length in lengths]
    folder = tmp_path_factory.mktemp("marked")
    for shard, (begin, end) in enumerate([(0, 25), (25, 60)] if request.param == "shards" else [(0, 60)]):
        write_keyed(
            folder / f"s{shard}",
            text=("int32", documents[begin:end]),
            trained=("uint8", marks[begin:end]),
            other=("int32", [*documents[begin : end - 1], np.zeros(77, np.int32)]),
        )
    path = folder if request.param == "shards" else folder / "s0"
    store = stores.open(path, reader="pread" if request.param == "pread" else "mmap")
    return store, [one.tolist() for one in documents], [one.tolist() for one in marks]


@settings(max_examples=cases(24, 2_000), deadline=None)
@given(
    packing=packs_plainly.packings(most_units=30),
    border_labels=st.sampled_from(["mask", "keep"]),
    seed=st.integers(0, 99),
)
def test_labels_are_left_out(marked: Any, packing: Packing, border_labels: Any, seed: int) -> None:
    store, documents, marks = marked
    if not packs_plainly.packs([len(document) for document in documents], packing):
        return
    dataset = PackedSequenceDataset(store, packing, loss_mask_key="trained", border_labels=border_labels, padding_idx=3)
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, len(dataset), 5)
    check_samples(dataset, documents, indices, marks=marks)
    if packing.repack:
        check_samples(dataset, documents, indices, derive_array(5, rng.integers(0, 3, 5)), marks=marks)


def test_the_count_of_many_packs(marked: Any) -> None:
    store, documents, marks = marked
    dataset = PackedSequenceDataset(store, Packing(seq_len=5, strategy="wrapped"), loss_mask_key="trained")
    assert len(dataset) > 200  # they are counted some at a time
    check_samples(dataset, documents, np.arange(len(dataset)), marks=marks)
    assert dataset.count(np.arange(0)).supervised_tokens.tolist() == []


def test_a_mark_is_of_the_token_that_is_predicted(tmp_path: Path) -> None:
    write_keyed(
        tmp_path / "s",
        ids=("int32", [np.array([1, 2, 3, 4, 5]), np.array([6, 7])]),
        trained=("bool", [np.array([1, 0, 1, 0, 1]), np.array([0, 1])]),
    )
    store = stores.open(tmp_path / "s")
    dataset = PackedSequenceDataset(
        store, Packing(seq_len=4, strategy="greedy", over_long="split"), loss_mask_key="trained"
    )
    assert dataset[0]["labels"].tolist() == [-100, 3, -100, 5], "5 is the label of 4 though it lies in another pack"
    assert dataset[1]["labels"].tolist() == [-100, 7, -100, -100]


def test_an_unknown_key(marked: Any) -> None:
    with pytest.raises(ConfigError, match=r"no key 'mask'; its keys are 'text', 'trained'"):
        PackedSequenceDataset(marked[0], Packing(seq_len=60), loss_mask_key="mask")
    with pytest.raises(ConfigError, match="not parallel"):
        PackedSequenceDataset(marked[0], Packing(seq_len=60), loss_mask_key="other")
