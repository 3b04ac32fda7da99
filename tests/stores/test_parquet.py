"""The store contract over Parquet files with columns of tokens."""

from __future__ import annotations

import os
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from counts import PATIENCE_S
from headrace.errors import StoreError
from headrace.stores import ParquetStore, Store, kept_arrays
from headrace.testing.stores import Documents, StoreContract


class TestOneFile(StoreContract):
    dtype = "int32"
    keys = ("input_ids",)

    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.list_(pa.from_numpy_dtype(self.dtype)))
        table = pa.table({"text": ["text"] * len(documents), "input_ids": column})
        (folder / "one").mkdir()
        pq.write_table(table, folder / "one" / "x.parquet", row_group_size=5)
        return folder / "one" / "x.parquet"

    def open(self, path: Path) -> Store:
        return headrace.open(path)


class TestFolder(TestOneFile):
    dtype = "int64"

    def write(self, folder: Path, documents: Documents) -> Path:
        for number, at in enumerate(range(0, max(1, len(documents)), 7), start=9):
            part = folder / "part"
            part.mkdir()
            super().write(part, documents[at : at + 7])
            (folder / "one").mkdir(exist_ok=True)
            (part / "one" / "x.parquet").rename(folder / "one" / f"x{number}.parquet")
            (part / "one").rmdir()
            part.rmdir()
        return folder / "one"


def test_a_fork_reads_while_a_thread_of_its_parent_reads(tmp_path: Path) -> None:
    """The lock that the thread holds is never released in the fork."""
    pq.write_table(pa.table({"tokens": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}), tmp_path / "x.parquet")
    store = ParquetStore(tmp_path / "x.parquet")
    begun, done, process = threading.Event(), threading.Event(), os.getpid()

    class Slow:
        def read_row_group(self, *given: Any, **named: Any) -> Any:
            begun.set()
            assert os.getpid() != process or done.wait()
            return opened.read_row_group(*given, **named)

    store.document(0)
    opened, store._opened, store._recent = store._opened, Slow(), {}
    reads = threading.Thread(target=store.document, args=(0,))
    reads.start()
    begun.wait()
    fork = get_context("fork").Process(target=store.document, args=(1,))
    try:
        fork.start()
        fork.join(PATIENCE_S)
        assert fork.exitcode == 0
    finally:
        fork.kill()
        done.set()
        reads.join()


def test_keys_and_kinds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "labels": pa.array([[-100, 2], [3]], pa.list_(pa.int64())),
            "tokens": pa.array([[1, 2], [3]], pa.large_list(pa.uint16())),
            "loss_mask": pa.array([[True, False], [True]], pa.list_(pa.bool_())),
            "messages": pa.array([[{"role": "user"}], []]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    store = headrace.open(tmp_path / "x.parquet")
    assert store.keys == ("tokens", "labels", "loss_mask")
    assert [str(dtype) for dtype in store.dtypes.values()] == ["uint16", "int64", "bool"]
    found = store.fetch(1, 3, ["labels", "loss_mask"])
    assert {key: values.tolist() for key, values in found.items()} == {"labels": [2, 3], "loss_mask": [False, True]}


def test_an_index_that_was_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "_KEPT_BYTES", 0)
    pq.write_table(pa.table({"tokens": [[1, 2], [3]]}), tmp_path / "x.parquet")
    first = headrace.open(tmp_path / "x.parquet").fingerprint
    monkeypatch.setattr(ParquetStore, "_make_index", None)
    again = headrace.open(tmp_path / "x.parquet")
    assert again.fingerprint == first
    assert again.document(1).tolist() == [3]


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for rows in ([[1], None], [[1, None]]):
        pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), path)
        with pytest.raises(StoreError, match="column 'tokens' holds null"):
            headrace.open(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(StoreError, match="no column has lists of numbers; the columns are text"):
        headrace.open(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match="cannot be read as Parquet"):
        headrace.open(path)


def test_check_finds_a_file_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"tokens": pa.array([[1], [2, 3]], pa.list_(pa.int32()))}), path)
    store = headrace.open(path)
    assert list(store.check(vocab_size=4)) == []
    pq.write_table(pa.table({"tokens": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}), path)
    assert ["changed since" in problem.message for problem in store.check()] == [True]
    assert np.array_equal(headrace.open(path).lengths, [2, 1])
