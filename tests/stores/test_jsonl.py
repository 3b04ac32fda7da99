"""The store contract over JSON lines, and what only they have: bad lines, kinds of numbers, an index."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.stores import JsonlStore, ShardedStore, Store, kept_arrays
from headrace.testing.stores import Documents, StoreContract


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class TestMapped(StoreContract):
    test_check_finds_every_flipped_bit = None  # a digit that became another digit is a good file of other tokens
    test_no_documents = None  # a file without a record names no keys, and is refused: see test_no_record

    dtype = "int64"

    def write(self, folder: Path, documents: Documents) -> Path:
        return lines(folder / "x.jsonl", *({"tokens": document.tolist()} for document in documents))

    def open(self, path: Path) -> Store:
        return stores.open(path)


class TestRead(TestMapped):
    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


class TestSharded(TestMapped):
    """Every four documents a file."""

    def write(self, folder: Path, documents: Documents) -> Path:
        (folder / "d").mkdir()
        for number, at in enumerate(range(0, max(1, len(documents)), 4), start=9):
            super().write(folder / "d", documents[at : at + 4])
            (folder / "d" / "x.jsonl").rename(folder / "d" / f"x{number}.jsonl")
        return folder / "d"


def test_keys_and_kinds(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "x.jsonl",
        {"loss_mask": [True, False], "tokens": [1, 2], "rewards": [1], "none": []},
        {"tokens": [2**63 - 1, -(2**63)], "loss_mask": [False, True], "none": [], "rewards": [0.5, 2]},
    )
    store = stores.open(path)
    assert store.keys == ("tokens", "loss_mask", "rewards", "none")
    assert {key: dtype.name for key, dtype in store.dtypes.items()} == {
        "tokens": "int64",
        "loss_mask": "bool",
        "rewards": "float64",
        "none": "int64",
    }
    assert store.fetch(1, 4).tolist() == [2, 2**63 - 1, -(2**63)]
    assert store.fetch(1, 3, "loss_mask").tolist() == [False, False]
    assert store.document(1, "rewards").tolist() == [0.5, 2.0]
    with pytest.raises(ConfigError, match="key 'rewards' has 3 values, but the main key 'tokens' has 4"):
        store.fetch(0, 1, "rewards")
    assert stores.open(path, key="rewards").lengths.tolist() == [1, 2]
    assert {key: one.num_tokens for key, one in stores.open_keys(path).items()} == {
        "tokens": 4,
        "loss_mask": 4,
        "rewards": 3,
        "none": 0,
    }
    with pytest.raises(ConfigError, match="no key 'text'"):
        stores.open(path, key="text")


def test_kinds_of_several_files(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"tokens": [1], "rewards": [1], "mask": []})
    lines(tmp_path / "b.jsonl", {"tokens": [2, 3], "rewards": [0.5], "mask": [True, True]})
    store = stores.open(tmp_path)
    assert isinstance(store, ShardedStore)
    assert {key: dtype.name for key, dtype in store.dtypes.items()} == {
        "tokens": "int64",
        "rewards": "float64",
        "mask": "bool",
    }
    found = store.document(0, "rewards")
    assert (found.dtype.name, found.tolist()) == ("float64", [1.0])
    assert pickle.loads(pickle.dumps(store)).document(0, "rewards").dtype.name == "float64"
    lines(tmp_path / "c.jsonl", {"tokens": [True], "rewards": [1], "mask": []})
    with pytest.raises(StoreError, match="shards of different kinds are not one store"):
        stores.open(tmp_path)


def test_blank_lines_and_the_last_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n{"a": [1,\t2]}\r\n  \n\r\n{"a":[3]}')
    store = stores.open(path)
    assert [store.document(at).tolist() for at in range(len(store))] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": [1]', "line 3: not a record of tokens, .*: Input data was truncated"),
        (b'{"a": [1]} {"a": [2]}', "line 3: not a record of tokens"),
        (b"[1, 2]", r"line 3: not a record of tokens, which is a JSON object .*Expected `object`, got `array`"),
        (
            b'{"a": "text"}',
            r"line 3: .*Expected `array`, got `str` .*; use headrace prepare to make tokens from text and messages",
        ),
        (b'{"a": [[1]]}', r"line 3: not a record of tokens"),
        (b'{"a": [null]}', r"line 3: not a record of tokens"),
        (b'{"a": 1}', r"line 3: not a record of tokens"),
        (b'{"a": [9223372036854775808]}', r"line 3: not a record of tokens"),
        (b'{"a": [true]}', r"line 3: key 'a' holds both truth values \(true, false\) and numbers"),
        (b'{"a": [0.5, false]}', r"line 3: key 'a' holds both truth values \(true, false\) and numbers"),
        (b'{"b": [1]}', r"line 3: has the keys 'b', but the first record has 'a'; all records must have the same"),
        (b'{"a": [1], "b": [1]}', r"line 3: has the keys 'a', 'b', but the first record has 'a'"),
        (b"{}", r"line 3: has the keys none, but the first record has 'a'"),
        (b'{"\xff": [1]}', r"line 3: not a record of tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": [1]}\n\n' + line + b'\n{"a": [2]}\n')
    with pytest.raises(StoreError, match=rf"x\.jsonl: {message}"):
        stores.open(path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.jsonl: holds no record"):
        stores.open(tmp_path)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_an_object_of_lists_is_refused_with_what_converts_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps({"sequence": [[1, 2], [], [3]], "rewards": [[0.5], [1], []]}))
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(
            StoreError, match=rf"{name}: the file is one JSON object, .* `headrace convert .*{name} FOLDER --format"
        ):
            stores.open(path)


def test_folders(tmp_path: Path) -> None:
    for name in ("x10.jsonl", "x9.jsonl", ".x.jsonl"):
        lines(tmp_path / name, {"tokens": [int(name[1:-6])] if name[0] == "x" else [0]})
    (tmp_path / "other.json").write_text("{}")  # where there are .jsonl, they are meant
    (tmp_path / "below").mkdir()
    lines(tmp_path / "below" / "y.jsonl", {"tokens": [7]})
    assert stores.open(tmp_path).fetch(0, 2).tolist() == [9, 10]


def test_check(tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", {"tokens": [1, 2]}, {"tokens": [900]})
    store = stores.open(path)
    assert list(store.check(vocab_size=901)) == []
    (problem,) = store.check(vocab_size=900)
    assert problem.place == "document 1, value 2 of the stream"
    path.write_text('{"tokens": [1, 3]}\n{"tokens": [900]}\n')
    assert [problem.message for problem in store.check()] == ["the file changed since it was indexed; open it again"]
    path.write_text('{"tokens": [1, 3]}\n{"tokens": [900}\n')
    assert [problem.message[:25] for problem in store.check()] == ["line 2: not a record of t"]


class TestIndex:
    @pytest.fixture
    def path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("headrace.stores.kept_arrays._KEPT_BYTES", 1)
        monkeypatch.setattr("headrace.stores.kept_arrays._ENDS_BYTES", 8)
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
        (tmp_path / "data").mkdir()
        return lines(tmp_path / "data" / "x.jsonl", *({"tokens": [at] * at, "r": [at / 2]} for at in range(50)))

    def test_is_kept_beside_the_file(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = stores.open(path)
        (kept,) = (path.parent / kept_arrays.INDEX_FOLDER).iterdir()
        assert (kept / "kept.json").exists()

        def refuse(*_: object) -> None:
            raise AssertionError("the file was to be left alone")

        monkeypatch.setattr("headrace.stores.json.index.make_index", refuse)
        store = stores.open(path.parent)
        assert isinstance(store, JsonlStore)
        assert store.fingerprint == first.fingerprint
        assert store.keys == ("tokens", "r")
        assert [store.document(at).tolist() for at in range(50)] == [[at] * at for at in range(50)]
        assert store.document(3, "r").tolist() == [1.5]
        assert pickle.loads(pickle.dumps(store)).num_tokens == store.num_tokens
        # Another file of that size, with those ends: the time tells them apart.
        path.write_bytes(path.read_bytes().replace(b"[7, 7", b"[7, 8"))
        with pytest.raises(AssertionError, match="left alone"):
            stores.open(path)

    def test_is_kept_elsewhere_where_the_folder_cannot_be_written(self, path: Path, tmp_path: Path) -> None:
        (path.parent / kept_arrays.INDEX_FOLDER).touch()  # so that no folder of this name can be made, even by root
        assert stores.open(path).num_documents == 50
        assert len(list((tmp_path / "cache" / "jsonl").iterdir())) == 1
        assert stores.open(path).num_documents == 50
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").touch()
        assert stores.open(path).num_documents == 50

    def test_of_another_file_is_found_in_use(self, path: Path) -> None:
        stores.open(path)
        store = stores.open(path)
        assert isinstance(store, JsonlStore)
        store._index.bounds["tokens"] = store._index.bounds["tokens"] + np.arange(51)
        store._bounds = store._index.bounds
        with pytest.raises(
            StoreError,
            match=r"document 3, byte \d+: its lists have other lengths .*; the index belongs to another file",
        ):
            store.document(3, "r")

    def test_chunks(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = stores.open(path).fingerprint
        shutil.rmtree(path.parent / kept_arrays.INDEX_FOLDER)
        for size in (1, 7, 64):
            monkeypatch.setattr("headrace.stores.json.index._CHUNK_BYTES", size)
            monkeypatch.setattr("headrace.stores.kept_arrays._KEPT_BYTES", 1 << 30)
            store = stores.open(path)
            assert store.fingerprint == wanted
            assert store.document(49).tolist() == [49] * 49


numbers = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(st.floats(allow_nan=False, allow_infinity=False))
)


@settings(max_examples=cases(20, 50), deadline=None)
@given(
    records=st.lists(
        st.fixed_dictionaries({"a": numbers, "b\u00e9 \n": st.lists(st.booleans(), max_size=3)}), min_size=1, max_size=8
    ),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("j")
    path = lines(folder / "x.jsonl", *records)
    for key, store in stores.open_keys(path).items():
        assert len(store) == len(records)
        dtype = store.dtypes[key]
        for number, record in enumerate(records):
            assert store.document(number).tolist() == np.array(record[key], dtype).tolist()
        whole = [np.array(record[key], dtype) for record in records]
        assert store.fetch(0, store.num_tokens).tolist() == np.concatenate(whole).tolist()
        assert list(store.check()) == []
