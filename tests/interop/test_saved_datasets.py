"""Folders that ``datasets`` saved are stores, and stores are datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import datasets
import headrace
from headrace.stores import KeyedStore, Store
from headrace.testing.stores import Documents, StoreContract
from token_shards import write_keyed

pytestmark = pytest.mark.interop


class TestSaved(StoreContract):
    dtype = "int32"
    keys = ("input_ids",)

    def write(self, folder: Path, documents: Documents) -> Path:
        features = datasets.Features({"input_ids": datasets.List(datasets.Value(self.dtype))})
        rows = {"input_ids": [one.tolist() for one in documents]}
        saved = datasets.Dataset.from_dict(rows, features=features)
        saved.save_to_disk(folder / "one", num_shards=2 if len(saved) > 1 else 1)
        return folder / "one"

    def open(self, path: Path) -> Store:
        return headrace.open(path)


def test_what_was_selected_and_shuffled_is_saved_as_it_is_seen(tmp_path: Path) -> None:
    rows = {"text": ["a", "b", "c"] * 5, "input_ids": [[1, 2, 3], [4], []] * 5}
    saved = datasets.Dataset.from_dict(rows).shuffle(seed=0).filter(lambda row: row["input_ids"] != [4])
    saved = saved.map(lambda row: {"labels": [-100 if token == 1 else token for token in row["input_ids"]]})
    saved.save_to_disk(tmp_path / "x")
    store = headrace.open(tmp_path / "x")
    for number, row in enumerate(saved):
        found = store.document(number, ["input_ids", "labels"])
        assert {key: values.tolist() for key, values in found.items()} == {key: row[key] for key in found}


def test_a_store_is_a_dataset(tmp_path: Path) -> None:
    documents = [np.array(one, np.uint16) for one in ([1, 2, 3], [], [4])]
    masks = [np.array(one, np.uint8) for one in ([0, 1, 1], [], [1])]
    write_keyed(tmp_path / "x", tokens=("uint16", documents), loss_mask=("uint8", masks))
    found = headrace.to_datasets(KeyedStore(tmp_path / "x"))
    assert found.column_names == ["input_ids", "loss_mask"]
    assert list(found["input_ids"]) == [one.tolist() for one in documents]
    assert list(found["loss_mask"]) == [one.tolist() for one in masks]
    found.save_to_disk(tmp_path / "saved")
    assert headrace.open(tmp_path / "saved").fetch(0, 4).tolist() == [1, 2, 3, 4]
