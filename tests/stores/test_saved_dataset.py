"""The store contract over folders of ``Dataset.save_to_disk``, and what only they have.

The folders are written with pyarrow, in the layout that ``datasets`` has; tests/interop writes them with ``datasets``.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from click.testing import CliRunner
from obstore import delete

import headrace
from arrow_made import save
from headrace.cli import main
from headrace.errors import ConfigError, StoreError
from headrace.io import ObjectReader
from headrace.stores import SavedDatasetStore, Store, open_tokens
from headrace.testing.stores import Documents, StoreContract
from memory_stores import MemoryBucket


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
    with pytest.raises(StoreError, match=f"{url}: the objects changed since they were opened; open it again"):
        ours.document(0)
    bucket.put("x/data-00001-of-00002.arrow", b"broken")
    with pytest.raises(StoreError, match=f"{url}: the files cannot be read as Arrow streams"):
        headrace.open(url)
    delete(bucket.store, ["x/data-00001-of-00002.arrow"])
    with pytest.raises(StoreError, match=r"x/state.json: names 'data-00001-of-00002.arrow', which is no file"):
        headrace.open(url)


@pytest.mark.parametrize("words", [("info", "--json"), ("check",), ("preview", "--ids", "--plain")])
def test_commands_at_a_url(bucket: MemoryBucket, tmp_path: Path, words: tuple[str, ...]) -> None:
    save(tmp_path / "x", lists([1, 2], [3], [4, 5, 6]), num_files=2)
    url = bucket.upload(tmp_path / "x", "x")

    def said(place: str) -> str:
        done = CliRunner().invoke(main, [words[0], place, *words[1:]])
        assert done.exit_code == 0, done.output
        return re.sub(r"\d\.\d s", "", done.output)

    assert said(url).replace(url, str(tmp_path / "x")) == said(str(tmp_path / "x"))


def test_a_dict_at_a_url(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "test"):
        save(tmp_path / "x" / name, lists([1, 2]))
    (tmp_path / "x/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    url = bucket.upload(tmp_path / "x", "x")
    monkeypatch.setattr("headrace.io.objects.client.connect", lambda *given, **how: bucket.store)
    for place in (url, url.replace("s3://", "http://") + "/"):
        with pytest.raises(StoreError, match="this is a DatasetDict: open one of its folders, test, train"):
            headrace.open(place)
        with headrace.open(f"{place.rstrip('/')}/train/") as store:
            assert store.document(0).tolist() == [1, 2]  # type: ignore[union-attr]
    bucket.put("x/dataset_dict.json", b"[]")
    with pytest.raises(StoreError, match=r"dataset_dict.json: does not name the splits"):
        headrace.open(url.replace("s3://", "http://") + "/")


def test_keys_and_kinds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "labels": pa.array([[-100, 2], [3]], pa.list_(pa.int64())),
            "tokens": pa.array([[1, 2], [3]], pa.list_(pa.uint16())),
            "loss_mask": pa.array([[True, False], [True]], pa.list_(pa.bool_())),
            "scores": pa.array([[0.5, 1.5], [2.5, 3.5]], pa.list_(pa.float32(), 2)),
            "length": pa.array([2, 1]),
        }
    )
    store = headrace.open(save(tmp_path / "x", table))
    assert store.keys == ("tokens", "labels", "loss_mask", "scores")
    assert {key: str(dtype) for key, dtype in store.dtypes.items()} == {
        "tokens": "uint16",
        "labels": "int64",
        "loss_mask": "bool",
        "scores": "float32",
    }
    found = store.fetch(1, 3, ["tokens", "labels", "loss_mask"])
    assert {key: values.tolist() for key, values in found.items()} == {
        "tokens": [2, 3],
        "labels": [2, 3],
        "loss_mask": [False, True],
    }
    assert store.document(1, "scores").tolist() == [2.5, 3.5]
    assert open_tokens(tmp_path / "x", key="labels").fetch(0, 3).tolist() == [-100, 2, 3]
    with pytest.raises(ConfigError, match="no key 'none'"):
        open_tokens(tmp_path / "x", key="none")


def test_a_run_over_it(tmp_path: Path) -> None:
    column = pa.array([list(range(at, at + 7)) for at in range(0, 70, 7)], pa.list_(pa.int32()))
    store = headrace.open(save(tmp_path / "x", pa.table({"input_ids": column})))
    run = headrace.Run(headrace.WindowDataset(store, seq_len=4), global_batch_size=4, order=headrace.Order(kind="none"))
    assert run.step(0)["input_ids"].ravel().tolist() == list(range(16))
    assert store.document(3).base is not None


def lists(*rows: Any) -> pa.Table:
    return pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))})


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="column 'input_ids' holds null"):
        headrace.open(save(tmp_path / "null", lists([1], None)))
    with pytest.raises(StoreError, match="column 'input_ids' holds null"):
        headrace.open(save(tmp_path / "null in a list", lists([1, None])))
    with pytest.raises(StoreError, match="no column has lists of numbers; the columns are text"):
        headrace.open(save(tmp_path / "text", pa.table({"text": ["a"]})))
    path = save(tmp_path / "good", lists([1]))
    with pytest.raises(StoreError, match="only be mapped"):
        headrace.open(path, reader="pread")
    data = path / "data-00000-of-00001.arrow"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="cannot be read as Arrow streams"):
        headrace.open(path)
    data.unlink()
    with pytest.raises(StoreError, match="no file of this folder"):
        headrace.open(path)
    for state in ('{"_data_files": [{"filename": "../x"}]}', '{"_data_files": ', '{"_data_files": []}'):
        (path / "state.json").write_text(state)
        with pytest.raises(StoreError, match=r"state\.json"):
            headrace.open(path)
    (path / "state.json").write_text("{}")
    with pytest.raises(StoreError, match="one JSON object"):
        headrace.open(path)
    save(tmp_path / "dict" / "train", lists([1]))
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(StoreError, match="open one of its folders, train"):
        headrace.open(tmp_path / "dict")


def test_check_finds_files_that_changed(tmp_path: Path) -> None:
    store = SavedDatasetStore(save(tmp_path / "x", lists([1], [2, 3])))
    other = save(tmp_path / "y", lists([1, 2], [3]))
    (other / "data-00000-of-00001.arrow").replace(tmp_path / "x" / "data-00000-of-00001.arrow")
    assert ["changed since" in problem.message for problem in store.check()] == [True]
