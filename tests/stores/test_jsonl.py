"""The store contract over JSON lines, those of others and those of `JsonlWriter`; bad lines, kinds, an index."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import file_sum
from headrace.stores import (
    JsonlStore,
    JsonlWriter,
    JsonObjectStore,
    KeyInfo,
    OutputShard,
    ShardedStore,
    kept_arrays,
    save_manifest,
)
from headrace.stores.manifest import find_manifest
from headrace.testing.stores import Documents
from store_contracts import OpenedContract
from stored import files
from token_shards import manifest_of


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class TestMapped(OpenedContract):
    test_check_finds_every_flipped_bit = None  # a digit that became another digit is a good file of other tokens
    test_no_documents = None  # a file without a record names no keys, and is refused: see test_no_record

    dtype = "int64"

    def write(self, folder: Path, documents: Documents) -> Path:
        path = lines(folder / "x.jsonl", *({"tokens": document.tolist()} for document in documents))
        path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\r\n  \n").rstrip())  # blank lines, no last end
        return path


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
    assert [dtype.name for dtype in store.dtypes.values()] == ["int64", "bool", "float64", "int64"]
    assert store.fetch(1, 4).tolist() == [2, 2**63 - 1, -(2**63)]
    assert store.fetch(1, 3, "loss_mask").tolist() == [False, False]
    assert store.document(1, "rewards").tolist() == [0.5, 2.0]
    with pytest.raises(ConfigError, match=r"'rewards'.*3.*'tokens'"):
        store.fetch(0, 1, "rewards")
    assert stores.open(path, key="rewards").lengths.tolist() == [1, 2]
    assert [one.num_tokens for one in stores.open_keys(path).values()] == [4, 4, 3, 0]
    with pytest.raises(ConfigError, match="'text'"):
        stores.open(path, key="text")


def test_kinds_of_several_files(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"tokens": [1], "rewards": [1], "mask": []})
    lines(tmp_path / "b.jsonl", {"tokens": [2, 3], "rewards": [0.5], "mask": [True, True]})
    store = stores.open(tmp_path)
    assert isinstance(store, ShardedStore)
    kinds = {key: dtype.name for key, dtype in store.dtypes.items()}
    assert kinds == {"tokens": "int64", "rewards": "float64", "mask": "bool"}
    found = store.document(0, "rewards")
    assert (found.dtype.name, found.tolist()) == ("float64", [1.0])
    assert pickle.loads(pickle.dumps(store)).document(0, "rewards").dtype.name == "float64"
    lines(tmp_path / "c.jsonl", {"tokens": [True], "rewards": [1], "mask": []})
    with pytest.raises(StoreError, match="different"):
        stores.open(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": [1]', "truncated"),
        (b'{"a": [1]} {"a": [2]}', "tokens"),
        (b"[1, 2]", "`object`.*`array`"),
        (b'{"a": "text"}', "`array`.*`str`.*headrace"),
        (b'{"a": [[1]]}', "tokens"),
        (b'{"a": [null]}', "tokens"),
        (b'{"a": 1}', "tokens"),
        (b'{"a": [9223372036854775808]}', "tokens"),
        (b'{"a": [true]}', "'a'.*true.*numbers"),
        (b'{"a": [0.5, false]}', "'a'.*true.*numbers"),
        (b'{"b": [1]}', "'b'.*'a'"),
        (b'{"a": [1], "b": [1]}', "'a', 'b'.*'a'"),
        (b"{}", "none.*'a'"),
        (b'{"\xff": [1]}', "tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": [1]}\n\n' + line + b'\n{"a": [2]}\n')
    with pytest.raises(StoreError, match=rf"x\.jsonl.*3.*{message}"):
        stores.open(path)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.jsonl"):
        stores.open(tmp_path)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_an_object_of_lists(tmp_path: Path, name: str) -> None:
    """As AstrAI wrote it, also where it is named as lines are."""
    (tmp_path / name).write_text(json.dumps({"sequence": [[1, 2], [], [3]], "rewards": [[0.5], [1], []], "one": [[7]]}))
    for path in (tmp_path / name, tmp_path):
        store = stores.open(path)
        assert isinstance(store, JsonObjectStore)
        assert store.keys == ("sequence", "rewards", "one")
        assert store.lengths.tolist() == [2, 0, 1]
        assert store.document(1, "rewards").tolist() == [1.0]
        assert store.gather(np.array([0, 1]), 2).tolist() == [[1, 2], [2, 3]]
        assert pickle.loads(pickle.dumps(store)).fetch(0, 3).tolist() == [1, 2, 3]
        assert list(store.check(vocab_size=4)) == []
        assert [problem.place for problem in store.check(vocab_size=3)] == [
            "key 'sequence', document 2, value 2 of the stream"
        ]
        (tmp_path / name).write_text(json.dumps({"sequence": [[1, 2], [3]]}))
        assert ["changed since" in problem.message for problem in store.check()] == [True]
        (tmp_path / name).write_text(
            json.dumps({"sequence": [[1, 2], [], [3]], "rewards": [[0.5], [1], []], "one": [[7]]})
        )


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
    assert [problem.message for problem in store.check()] == ["the file changed since it was opened; open it again"]
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

        monkeypatch.setattr(JsonlStore, "_find", refuse)
        store = stores.open(path.parent)
        assert isinstance(store, JsonlStore)
        assert store.fingerprint == first.fingerprint
        assert store.keys == ("tokens", "r")
        assert [store.document(at).tolist() for at in range(50)] == [[at] * at for at in range(50)]
        assert store.document(3, "r").tolist() == [1.5]
        assert pickle.loads(pickle.dumps(store)).num_tokens == store.num_tokens
        # Another file of that size, with those ends: the time tells them apart.
        path.write_bytes(path.read_bytes().replace(b"[7, 7", b"[7, 8"))
        with pytest.raises(AssertionError, match="alone"):
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
        column = store._found.columns["tokens"]
        bounds = column.bounds + np.arange(51)
        store._found.columns["tokens"] = column._replace(bounds=bounds, parts=bounds)
        store._bounds["tokens"] = bounds
        with pytest.raises(StoreError, match=r"document.*3"):
            store.document(3, "r")

    def test_chunks(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = stores.open(path).fingerprint
        shutil.rmtree(path.parent / kept_arrays.INDEX_FOLDER)
        for size in (1, 7, 64):
            monkeypatch.setattr("headrace.stores.foreign._CHUNK_BYTES", size)
            monkeypatch.setattr("headrace.stores.kept_arrays._KEPT_BYTES", 1 << 30)
            store = stores.open(path)
            assert store.fingerprint == wanted
            assert store.document(49).tolist() == [49] * 49


numbers = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(st.floats(allow_nan=False, allow_infinity=False))
)


@settings(max_examples=cases(12, 50), deadline=None)
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


ONE = np.array([1])


def write(path: Path, documents: Documents, dtype: str) -> OutputShard:
    with JsonlWriter(path, dtypes={"tokens": dtype}) as writer:
        lengths = np.array([len(document) for document in documents], np.int64)
        writer.add_documents({"tokens": np.concatenate(documents)}, {"tokens": lengths})
        return writer.finish()


class TestListed(OpenedContract):
    """With a manifest, which knows the dtype."""

    test_no_documents = None  # a file without a record names no keys, and is refused

    def write(self, folder: Path, documents: Documents) -> Path:
        save_manifest(folder, manifest_of([OutputShard.of(write(folder / "a.jsonl", documents, self.dtype), folder)]))
        return folder

    def vouch(self, path: Path) -> None:
        assert find_manifest(path) is not None


def test_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "data_0000.jsonl"
    dtypes = {"sequence": "uint16", "loss_mask": "bool", "rewards": "float32"}
    with JsonlWriter(path, dtypes=dtypes, values=["loss_mask", "rewards"]) as writer:
        two, lengths = np.array([True, False, True]), np.array([3, 0])
        writer.add_documents(
            {"sequence": np.array([1, 2, 3]), "loss_mask": two, "rewards": np.array([0.8, 1])},
            {"sequence": lengths, "loss_mask": lengths, "rewards": np.array([1, 1])},
        )
        assert (writer.num_documents, writer.num_tokens) == (2, 8)
        assert list(files(tmp_path)) != ["data_0000.jsonl"]
        shard = writer.finish()
    assert path.read_text() == (
        '{"sequence":[1,2,3],"loss_mask":[true,false,true],"rewards":[0.8]}\n'
        '{"sequence":[],"loss_mask":[],"rewards":[1.0]}\n'
    )
    assert (shard.format, shard.prefix, shard.documents) == ("jsonl", str(tmp_path / "data_0000"), 2)
    assert shard.files == (file_sum(path),)
    assert shard.keys == {
        "sequence": KeyInfo(dtype="uint16", tokens=3),
        "loss_mask": KeyInfo(dtype="bool", tokens=3, ids=False),
        "rewards": KeyInfo(dtype="float32", tokens=2, ids=False),
    }
    assert list(files(tmp_path)) == ["data_0000.jsonl"]
    alone = stores.open(path)
    assert [dtype.name for dtype in alone.dtypes.values()] == ["int64", "bool", "float64"]
    save_manifest(tmp_path, manifest_of([OutputShard.of(shard, tmp_path)]))
    store = stores.open(tmp_path)
    assert {key: dtype.name for key, dtype in store.dtypes.items()} == dtypes
    assert store.document(0, "rewards").tobytes() == np.array([0.8], "float32").tobytes()
    assert list(store.check(vocab_size=4)) == []
    (problem,) = store.check(vocab_size=3)
    assert problem.place == "key 'sequence', document 0, value 2 of the stream"
    assert [one.message for one in alone.check(vocab_size=3)] == [problem.message]  # the manifest lies beside it
    assert find_manifest(path) is not None


def test_what_json_lines_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.jsonl.*'a'.*uint64.*int64"):
        JsonlWriter(tmp_path / "x.jsonl", dtypes={"a": "uint64"})
    with JsonlWriter(tmp_path / "x.jsonl", dtypes={"a": "float16"}) as writer:
        with pytest.raises(InputError, match=r"'a'.*nan"):
            writer.add_documents({"a": np.array([np.nan])}, {"a": ONE})
        with pytest.raises(ConfigError, match="document"):
            writer.finish()
        assert list(files(tmp_path)) == []
        with pytest.raises(ConfigError, match="discarded"):
            writer.finish()


def test_a_file_that_is_not_what_the_manifest_lists(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    shard = write(path, [np.array([7, 8]), np.array([300])], "uint16")
    whole = path.read_bytes()

    def listed(dtype: str) -> None:
        path.write_bytes(whole)
        keys = {"tokens": KeyInfo(dtype=dtype, tokens=3)}
        entry = OutputShard.of(shard, tmp_path)
        save_manifest(tmp_path, manifest_of([msgspec.structs.replace(entry, keys=keys)]))

    listed("uint8")
    store = stores.open(tmp_path)
    assert store.document(0).dtype.name == "uint8"
    with pytest.raises(StoreError, match=r"1.*17.*300"):
        store.document(1)
    (problem,) = store.check(vocab_size=1000)
    assert "300" in problem.message
    listed("bool")
    with pytest.raises(StoreError, match=r"'tokens'.*int64"):
        stores.open(tmp_path)
    listed("uint16")
    path.write_bytes(whole.replace(b"7,8", b"7,9"))
    (problem,) = stores.open(tmp_path).check()
    assert "xxh3" in problem.message
    path.write_bytes(whole.replace(b"7,8", b"7"))
    with pytest.raises(StoreError, match=r"2.*documents"):
        stores.open(tmp_path)
    path.write_bytes(whole.replace(b"7,8", b"7, 8"))
    with pytest.raises(StoreError, match=r"35.*manifest.*34"):
        stores.open(tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match=r"x\.jsonl"):
        stores.open(tmp_path)


DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")


@settings(max_examples=cases(16, 40), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), cut=st.integers(0, 6))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str, cut: int
) -> None:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        numbers: Any = st.floats(width=8 * kind.itemsize, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    elif kind.kind == "b":
        numbers = st.booleans()
    else:
        numbers = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    documents = [np.array(one, kind) for one in data.draw(st.lists(st.lists(numbers, max_size=4), min_size=1))]
    folder = tmp_path_factory.mktemp("j")
    written = write(folder / "x.jsonl", documents, dtype)
    # However many are added at a time.
    with JsonlWriter(folder / "y.jsonl", dtypes={"tokens": dtype}) as writer:
        for part in (documents[:cut], documents[cut:]):
            lengths = np.array([len(one) for one in part], np.int64)
            writer.add_documents({"tokens": np.concatenate([np.empty(0, kind), *part])}, {"tokens": lengths})
        writer.finish()
    assert (folder / "x.jsonl").read_bytes() == (folder / "y.jsonl").read_bytes()
    for line, document in zip((folder / "x.jsonl").read_text().splitlines(), documents, strict=True):
        assert np.array(json.loads(line)["tokens"], kind).tobytes() == document.tobytes()
    (folder / "y.jsonl").unlink()
    save_manifest(folder, manifest_of([OutputShard.of(written, folder)]))
    store = stores.open(folder)
    for number, document in enumerate(documents):
        found = store.document(number)
        assert (found.dtype, found.tobytes()) == (kind, document.tobytes())
    assert list(store.check()) == []
