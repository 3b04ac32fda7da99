"""The store contract over what `JsonlWriter` wrote, what it refuses, and that its file appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import file_sum
from headrace.stores import JsonlWriter, KeyInfo, OutputShard, Store, WrittenShard, save_manifest
from headrace.stores.manifest import find_manifest
from headrace.testing.shards import manifest_of
from headrace.testing.stores import Documents, StoreContract

ONE = np.array([1])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(path: Path, documents: Documents, dtype: str) -> WrittenShard:
    with JsonlWriter(path, dtypes={"tokens": dtype}) as writer:
        lengths = np.array([len(document) for document in documents], np.int64)
        writer.add_documents({"tokens": np.concatenate(documents)}, {"tokens": lengths})
        return writer.finish()


class TestListed(StoreContract):
    """With a manifest, which knows the dtype."""

    test_no_documents = None  # a file without a record names no keys, and is refused

    def write(self, folder: Path, documents: Documents) -> Path:
        save_manifest(folder, manifest_of([OutputShard.of(write(folder / "a.jsonl", documents, self.dtype), folder)]))
        return folder

    def open(self, path: Path) -> Store:
        return stores.open(path)

    def vouch(self, path: Path) -> None:
        assert find_manifest(path) is not None


class TestListedAndSharded(TestListed):
    test_check_finds_every_flipped_bit = None
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        parts = [documents[at : at + 4] for at in range(0, len(documents), 4)]
        shards = [write(folder / f"d_{number}.jsonl", part, self.dtype) for number, part in enumerate(parts)]
        save_manifest(folder, manifest_of([OutputShard.of(shard, folder) for shard in shards]))
        return folder


def test_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "data_0000.jsonl"
    dtypes = {"sequence": "uint16", "loss_mask": "bool", "rewards": "float32"}
    with JsonlWriter(path, dtypes=dtypes, values=["loss_mask", "rewards"]) as writer:
        two, lengths = np.array([True, False, True]), np.array([3, 0])
        writer.add_documents(
            {"sequence": np.array([1, 2, 3]), "loss_mask": two, "rewards": np.array([0.8, 1])},
            {"sequence": lengths, "loss_mask": lengths, "rewards": np.array([1, 1])},
        )
        one = {"sequence": ONE, "loss_mask": ONE, "rewards": ONE}
        writer.add_documents(one, one)
        assert (writer.num_documents, writer.num_tokens) == (3, 11)
        assert names(tmp_path) != ["data_0000.jsonl"]
        shard = writer.finish()
    assert path.read_text() == (
        '{"sequence":[1,2,3],"loss_mask":[true,false,true],"rewards":[0.8]}\n'
        '{"sequence":[],"loss_mask":[],"rewards":[1.0]}\n'
        '{"sequence":[1],"loss_mask":[true],"rewards":[1.0]}\n'
    )
    assert shard == WrittenShard(
        format="jsonl",
        prefix=str(tmp_path / "data_0000"),
        num_documents=3,
        keys={
            "sequence": KeyInfo(dtype="uint16", tokens=4),
            "loss_mask": KeyInfo(dtype="bool", tokens=4, ids=False),
            "rewards": KeyInfo(dtype="float32", tokens=3, ids=False),
        },
        contiguous=True,
        files=(file_sum(path),),
    )
    assert names(tmp_path) == ["data_0000.jsonl"]
    alone = stores.open(path)
    assert {key: dtype.name for key, dtype in alone.dtypes.items()} == {
        "sequence": "int64",
        "loss_mask": "bool",
        "rewards": "float64",
    }
    save_manifest(tmp_path, manifest_of([OutputShard.of(shard, tmp_path)]))
    store = stores.open(tmp_path)
    assert {key: dtype.name for key, dtype in store.dtypes.items()} == dtypes
    assert store.document(0, "rewards").tobytes() == np.array([0.8], "float32").tobytes()
    assert list(store.check(vocab_size=4)) == []
    (problem,) = store.check(vocab_size=3)
    assert problem.place == "key 'sequence', document 0, value 2 of the stream"
    assert [one.message for one in alone.check(vocab_size=3)] == [problem.message]  # the manifest lies beside it
    assert find_manifest(path) is not None


@pytest.mark.parametrize(
    ("name", "dtypes", "values", "message"),
    [
        ("x.json", {"a": "int32"}, [], r"x\.json: the name of a file of the jsonl format must end in \.jsonl"),
        ("x.jsonl", {}, [], "dtypes names no key"),
        ("x.jsonl", {"a/b": "int32"}, [], "'a/b' cannot be a key"),
        ("x.jsonl", {"a": "complex64"}, [], "dtype complex64 is not known"),
        ("x.jsonl", {"a": "uint64"}, [], r"x\.jsonl: key 'a': uint64 cannot be written as JSON lines.*choose int64"),
        ("x.jsonl", {"a": "int32"}, ["b"], "values names 'b'; the keys are 'a'"),
    ],
)
def test_what_it_is_not_for(tmp_path: Path, name: str, dtypes: Any, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JsonlWriter(tmp_path / name, dtypes=dtypes, values=values)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ({"a": [1]}, {"a": [1], "b": [1]}, "tokens has the keys 'a', but the writer needs 'a', 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "c": [1]}, "lengths has the keys 'a', 'c'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [1, 0]}, "different numbers of documents: 1 for 'a', 2 for 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [2]}, "the lengths add up to 2, but there are 1 tokens"),
        ({"a": [200], "b": [1]}, {"a": [1], "b": [1]}, "key 'a': token id 200 does not fit into int8"),
        (
            {"a": [1], "b": [np.nan]},
            {"a": [1], "b": [1]},
            "key 'b': the value nan cannot be written as JSON; it is not finite",
        ),
    ],
)
def test_documents_that_do_not_fit(tmp_path: Path, tokens: Any, lengths: Any, message: str) -> None:
    with JsonlWriter(tmp_path / "x.jsonl", dtypes={"a": "int8", "b": "float16"}) as writer:
        with pytest.raises(InputError, match=message):
            writer.add_documents(
                {key: np.array(part) for key, part in tokens.items()},
                {key: np.array(part) for key, part in lengths.items()},
            )
        writer.add_documents({"a": ONE, "b": ONE}, {"a": ONE, "b": ONE})
        assert writer.finish().num_tokens == 2  # nothing of the call before


def test_a_writer_that_is_done_or_has_nothing(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "x.jsonl", dtypes={"a": "int8"})
    with pytest.raises(ConfigError, match="no document was added"):
        writer.finish()
    assert names(tmp_path) == []
    for use in (writer.finish, lambda: writer.add_documents({"a": ONE}, {"a": ONE})):
        with pytest.raises(ConfigError, match="was finished or discarded"):
            use()


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    write(path, [np.arange(3)], "int8")
    before = path.read_bytes()
    with JsonlWriter(path, dtypes={"a": "int8"}) as writer:
        writer.add_documents({"a": ONE}, {"a": ONE})
    assert (names(tmp_path), path.read_bytes()) == (["x.jsonl"], before)
    for call in ("os.fsync", "pathlib.Path.rename"):
        with monkeypatch.context() as patch, JsonlWriter(path, dtypes={"a": "int8"}) as writer:
            writer.add_documents({"a": ONE}, {"a": ONE})
            patch.setattr(call, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OutputError, match=r"x\.jsonl: cannot \w+: No space left on device"):
                writer.finish()
        assert (names(tmp_path), path.read_bytes()) == (["x.jsonl"], before)


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
    with pytest.raises(
        StoreError, match=r"document 1, byte 17: .*300.*; the file differs from the one that its manifest lists"
    ):
        store.document(1)
    (problem,) = store.check(vocab_size=1000)
    assert "300" in problem.message
    listed("bool")
    with pytest.raises(
        StoreError, match="manifest lists: key 'tokens' holds int64 numbers, but the manifest lists bool"
    ):
        stores.open(tmp_path)
    listed("uint16")
    path.write_bytes(whole.replace(b"7,8", b"7,9"))
    (problem,) = stores.open(tmp_path).check()
    assert "xxh3" in problem.message
    path.write_bytes(whole.replace(b"7,8", b"7"))
    with pytest.raises(
        StoreError, match=r"found 2 documents with {'tokens': 2} tokens, but the manifest lists 2 with {'tokens': 3}"
    ):
        stores.open(tmp_path)
    path.write_bytes(whole.replace(b"7,8", b"7, 8"))
    with pytest.raises(StoreError, match="the file has 35 bytes, but the manifest lists 34"):
        stores.open(tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match=r"x\.jsonl: missing, but"):
        stores.open(tmp_path)


DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64")


@settings(max_examples=cases(16, 40), deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), cut=st.integers(0, 6))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str, cut: int) -> None:
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
