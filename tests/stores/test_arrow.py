"""The store contract over folders of ``Dataset.save_to_disk`` and over Parquet files, and what only they have.

The folders are written with pyarrow, in the layout that ``datasets`` has; tests/interop writes them with ``datasets``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore import delete

import headrace
from arrow_made import save
from counts import PATIENCE_S
from headrace.errors import ConfigError, StoreError
from headrace.io import ObjectReader
from headrace.stores import ParquetStore, SavedDatasetStore, Store, kept_arrays, open_tokens
from headrace.testing.stores import Documents, StoreContract
from memory_stores import MemoryBucket

Write = Callable[[Path, pa.Table], Path]


def parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=5)
    return path.with_suffix(".parquet")


EVERY = pytest.mark.parametrize("write", [save, parquet])


class TestOneFile(StoreContract):
    dtype = "int32"
    keys = ("input_ids",)

    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.list_(pa.from_numpy_dtype(self.dtype)))
        text = pa.array(["text"] * len(documents))
        return save(folder / "one", pa.table({"text": text, "input_ids": column}))

    def open(self, path: Path) -> Store:
        return headrace.open(path)


class TestTwoFiles(TestOneFile):
    dtype = "int64"

    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.large_list(pa.from_numpy_dtype(self.dtype)))
        return save(folder / "one", pa.table({"input_ids": column}), num_files=2, batch_rows=3)


class TestAtUrl(TestTwoFiles):
    """The same folder in a store in memory, which forked processes do not reach; tests/remote forks."""

    bucket: ClassVar[MemoryBucket]
    range_every = 60
    test_check_finds_every_flipped_bit = None
    test_a_pickled_store_that_changed_is_refused = None
    test_arrays_outlive_the_store = None

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: MemoryBucket) -> None:
        type(self).bucket = bucket

    def open(self, path: Path) -> Store:
        return headrace.open(self.bucket.upload(path, secrets.token_hex(8)))


def test_at_a_url(bucket: MemoryBucket, tmp_path: Path) -> None:
    column = pa.array([list(range(at, at + 7)) for at in range(0, 70, 7)], pa.list_(pa.int32()))
    local = headrace.open(save(tmp_path / "x", pa.table({"input_ids": column}), num_files=2))
    url = bucket.upload(tmp_path / "x", "x")
    reader = ObjectReader()
    ours = headrace.open(url, reader=reader)
    assert isinstance(ours, SavedDatasetStore)
    assert ours.fingerprint == local.fingerprint
    assert local.document(3).base is not None  # a view of what is mapped
    assert [str(file) for file in ours.files] == [f"{url}/{file.name}" for file in local.files]
    assert reader.stats.gets == 3  # the state, and each file once
    again = ObjectReader()
    assert headrace.open(url, reader=again).fingerprint == local.fingerprint
    assert again.stats.gets == 0
    run = headrace.Run(headrace.WindowDataset(ours, seq_len=4), global_batch_size=4, order=headrace.Order(kind="none"))
    assert run.step(0)["input_ids"].ravel().tolist() == list(range(16))
    # The bounds of another content would be wrong.
    save(tmp_path / "y", pa.table({"input_ids": column.slice(0, 6)}), num_files=2)
    bucket.upload(tmp_path / "y", "x")
    ours.close()
    reader.close()
    with pytest.raises(StoreError, match=rf"{url}"):
        ours.document(0)
    bucket.put("x/data-00001-of-00002.arrow", b"broken")
    with pytest.raises(StoreError, match=rf"{url}"):
        headrace.open(url)
    delete(bucket.store, ["x/data-00001-of-00002.arrow"])
    with pytest.raises(StoreError, match=r"x/state.json.*'data-00001-of-00002.arrow'"):
        headrace.open(url)


def test_a_dict_at_a_url(bucket: MemoryBucket, tmp_path: Path) -> None:
    for name in ("train", "test"):
        save(tmp_path / "x" / name, lists([1, 2]))
    (tmp_path / "x/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    url = bucket.upload(tmp_path / "x", "x")
    web = url.replace("s3://", "http://") + "/"
    with pytest.MonkeyPatch.context() as patch:  # `monkeypatch` begins before the bucket, and would restore it
        patch.setattr("headrace.io.objects.client.connect", lambda *given, **how: bucket.store)
        for place in (url, web):
            with pytest.raises(StoreError, match="DatasetDict"):
                headrace.open(place)
            with headrace.open(f"{place.rstrip('/')}/train/") as store:
                assert store.document(0).tolist() == [1, 2]  # type: ignore[union-attr]
        bucket.put("x/dataset_dict.json", b"[]")
        with pytest.raises(StoreError, match=r"dataset_dict.json"):
            headrace.open(web)


@EVERY
def test_keys_and_kinds(tmp_path: Path, write: Write) -> None:
    table = pa.table(
        {
            "labels": pa.array([[-100, 2], [3]], pa.list_(pa.int64())),
            "tokens": pa.array([[1, 2], [3]], pa.large_list(pa.uint16())),
            "loss_mask": pa.array([[True, False], [True]], pa.list_(pa.bool_())),
            "scores": pa.array([[0.5, 1.5], [2.5, 3.5]], pa.list_(pa.float32(), 2)),
            "length": pa.array([2, 1]),
            "messages": pa.array([[{"role": "user"}], []]),
        }
    )
    path = write(tmp_path / "x", table)
    store = headrace.open(path)
    assert store.keys == ("tokens", "labels", "loss_mask", "scores")
    assert [str(dtype) for dtype in store.dtypes.values()] == ["uint16", "int64", "bool", "float32"]
    found = store.fetch(1, 3, ["tokens", "labels", "loss_mask"])
    assert [values.tolist() for values in found.values()] == [[2, 3], [2, 3], [False, True]]
    assert store.document(1, "scores").tolist() == [2.5, 3.5]
    assert open_tokens(path, key="labels").fetch(0, 3).tolist() == [-100, 2, 3]
    with pytest.raises(ConfigError, match="'none'"):
        open_tokens(path, key="none")


def lists(*rows: Any) -> pa.Table:
    return pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))})


@EVERY
def test_columns_that_are_refused(tmp_path: Path, write: Write) -> None:
    for name, rows in (("null", ([1], None)), ("null in a list", ([1, None],))):
        with pytest.raises(StoreError, match="'input_ids'"):
            headrace.open(write(tmp_path / name, lists(*rows)))
    with pytest.raises(StoreError, match="columns"):
        headrace.open(write(tmp_path / "text", pa.table({"text": ["a"]})))


def test_files_that_are_refused(tmp_path: Path) -> None:
    torn = parquet(tmp_path / "torn", lists([1]))
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(StoreError, match="Parquet"):
        headrace.open(torn)
    path = save(tmp_path / "good", lists([1]))
    with pytest.raises(StoreError, match="mapped"):
        headrace.open(path, reader="pread")
    data = path / "data-00000-of-00001.arrow"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="streams"):
        headrace.open(path)
    data.unlink()
    with pytest.raises(StoreError, match="folder"):
        headrace.open(path)
    for state in ('{"_data_files": [{"filename": "../x"}]}', '{"_data_files": ', '{"_data_files": []}'):
        (path / "state.json").write_text(state)
        with pytest.raises(StoreError, match=r"state\.json"):
            headrace.open(path)
    (path / "state.json").write_text("{}")
    with pytest.raises(StoreError, match="JSON"):
        headrace.open(path)
    save(tmp_path / "dict" / "train", lists([1]))
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(StoreError, match="folders"):
        headrace.open(tmp_path / "dict")


@EVERY
def test_check_finds_files_that_changed(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "x", lists([1], [2, 3]))
    store = headrace.open(path)
    assert list(store.check(vocab_size=4)) == []
    other = write(tmp_path / "y", lists([1, 2], [3]))
    if path.is_dir():
        shutil.rmtree(path)
    other.rename(path)
    assert ["changed since" in problem.message for problem in store.check()] == [True]
    assert headrace.open(path).lengths.tolist() == [2, 1]


class TestParquetFile(TestOneFile):
    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.list_(pa.from_numpy_dtype(self.dtype)))
        return parquet(folder / "x", pa.table({"text": ["text"] * len(documents), "input_ids": column}))


class TestParquetFolder(TestParquetFile):
    dtype = "int64"

    def write(self, folder: Path, documents: Documents) -> Path:
        (folder / "one").mkdir()
        for number, at in enumerate(range(0, max(1, len(documents)), 7), start=9):
            super().write(folder, documents[at : at + 7]).rename(folder / "one" / f"x{number}.parquet")
        return folder / "one"


def test_a_fork_reads_while_a_thread_of_its_parent_reads(tmp_path: Path) -> None:
    """The lock that the thread holds is never released in the fork."""
    store = ParquetStore(parquet(tmp_path / "x", lists([1, 2], [3])))
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


def test_an_index_that_was_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "_KEPT_BYTES", 0)
    path = parquet(tmp_path / "x", lists([1, 2], [3]))
    first = headrace.open(path).fingerprint
    monkeypatch.setattr(ParquetStore, "_find", None)
    again = headrace.open(path)
    assert again.fingerprint == first
    assert again.document(1).tolist() == [3]
