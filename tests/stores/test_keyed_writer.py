from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import file_sum
from headrace.stores import KeyedWriter, KeyInfo, OutputShard, WrittenShard, save_manifest, token_file
from headrace.testing.shards import manifest_of, write_keyed
from headrace.testing.stores import numbered_documents

GOLDEN = Path(__file__).parents[1] / "golden" / "keyed"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same_files(one: Path, other: Path) -> None:
    assert names(one) == names(other)
    for name in names(one):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_golden_bytes(tmp_path: Path) -> None:
    sequence = [np.array([1, 2]), np.array([], int), np.array([258])]
    mask = [np.array([], bool), np.array([True, False]), np.array([True])]
    write_keyed(tmp_path / "s", **{"sequence": ("int32", sequence), "loss mask": ("bool", mask)})
    same_files(tmp_path / "s", GOLDEN / "all")


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int64", "float16", "float32", "float64"])
def test_golden_bytes_of_dtypes(tmp_path: Path, name: str) -> None:
    write_keyed(tmp_path / "s", k=(name, [np.array([1, 2]), np.array([3])]))
    same_files(tmp_path / "s", GOLDEN / name)


def test_golden_bytes_with_offsets_of_some_keys(tmp_path: Path) -> None:
    arrays = {"sequence": np.array([1, 2, 258]), "loss_mask": np.array([1, 0, 1]), "f": np.array([1.5])}
    dtypes = {"sequence": "int32", "loss_mask": "bool", "f": "float32"}
    with KeyedWriter(tmp_path / "some", dtypes=dtypes, offsets=["sequence"]) as writer:
        writer.add_documents(arrays, {"sequence": np.array([2, 1])})
        assert writer.num_documents == 2
        assert writer.finish().num_documents == 2
    same_files(tmp_path / "some", GOLDEN / "some")
    del arrays["f"], dtypes["f"]
    with KeyedWriter(tmp_path / "none", dtypes=dtypes, offsets=[]) as writer:
        for part in (slice(0, 2), slice(2, 3)):
            writer.add_documents({key: values[part] for key, values in arrays.items()}, {})
        assert writer.finish().num_documents == 1
    same_files(tmp_path / "none", GOLDEN / "none")
    assert stores.open(tmp_path / "none").num_documents == 1


def test_offsets_and_values_name_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s: offsets names 'b'; the keys are 'a'"):
        KeyedWriter(tmp_path / "s", dtypes={"a": "int8"}, offsets=["b"])
    with pytest.raises(ConfigError, match="s: values names 'b'; the keys are 'a'"):
        KeyedWriter(tmp_path / "s", dtypes={"a": "int8"}, values=["b"])
    with pytest.raises(ConfigError, match="a writer with offsets= is not resumable; leave out offsets= or resumable="):
        KeyedWriter(tmp_path / "s", dtypes={"a": "int8"}, offsets=["a"], resumable=True)
    one = np.array([1])
    with KeyedWriter(tmp_path / "s", dtypes={"a": "int8", "b": "int8"}, offsets=["a"]) as writer:
        with pytest.raises(InputError, match="lengths has the keys 'a', 'b', but the writer needs 'a'"):
            writer.add_documents({"a": one, "b": one}, {"a": one, "b": one})
        writer.add_documents({"a": one, "b": one}, {"a": one})
    assert names(tmp_path) == []


def test_keys_that_hold_no_ids(tmp_path: Path) -> None:
    with KeyedWriter(tmp_path / "s", dtypes={"a": "uint16", "lengths": "int32"}, values=["lengths"]) as writer:
        big = {"a": np.array([7]), "lengths": np.array([70_000])}
        writer.add_documents(big, {"a": np.array([1]), "lengths": np.array([1])})
        shard = writer.finish()
    assert [info.ids for info in shard.keys.values()] == [True, False]
    save_manifest(tmp_path, manifest_of([OutputShard.of(shard, tmp_path)]))
    assert b'"ids": false' in (tmp_path / "headrace.json").read_bytes()
    assert b'"ids": true' not in (tmp_path / "headrace.json").read_bytes()  # as manifests always were
    assert list(stores.open(tmp_path).check(vocab_size=8)) == []
    assert len(list(stores.open(tmp_path).check(vocab_size=7))) == 1


def test_no_more_documents_than_a_json_can_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.keyed.writer.MAX_DOCUMENTS", 3)
    with KeyedWriter(tmp_path / "s", dtypes={"a": "uint16"}) as writer:
        writer.add_documents({"a": np.array([1, 2])}, {"a": np.array([1, 1])})
        with pytest.raises(
            ConfigError, match=r"at most 3 documents, since its meta\.json lists all of them; write more and"
        ):
            writer.add_documents({"a": np.array([1, 2])}, {"a": np.array([1, 1])})
        writer.add_documents({"a": np.array([3])}, {"a": np.array([1])})
        writer.finish()
    assert stores.open(tmp_path / "s").fetch(0, 3).tolist() == [1, 2, 3]


@settings(deadline=None)
@given(
    keys=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), min_size=1, max_size=3, unique=True
    ),
    lengths=st.lists(st.integers(0, 9), max_size=9),
    cut=st.integers(0, 9),
    chunk=st.integers(1, 4),
)
def test_meta_is_what_json_dump_writes(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], lengths: list[int], cut: int, chunk: int
) -> None:
    keys = [key for key in keys if not (key.startswith(".") or set(key) & set("/\\\0"))] or ["k"]
    if len({key.casefold() for key in keys}) < len(keys):
        return
    folder = tmp_path_factory.mktemp("w") / "s"
    tokens = np.arange(sum(lengths))
    at = sum(lengths[:cut])
    with pytest.MonkeyPatch.context() as patch, KeyedWriter(folder, dtypes=dict.fromkeys(keys, "uint16")) as writer:
        patch.setattr(token_file, "CHUNK", chunk)
        for part, counts in ((tokens[:at], lengths[:cut]), (tokens[at:], lengths[cut:])):
            writer.add_documents(dict.fromkeys(keys, part), dict.fromkeys(keys, np.array(counts, int)))
        writer.finish()
    entry = {"shape": [sum(lengths)], "dtype": "uint16", "offsets": np.cumsum([0, *lengths]).tolist()}
    assert (folder / "meta.json").read_text() == json.dumps(dict.fromkeys(keys, entry))
    for key in keys:
        assert (folder / f"{key}.bin").read_bytes() == tokens.astype("<u2").tobytes()
    store = stores.open(folder)
    assert set(store.keys) == set(keys)
    assert store.lengths.tolist() == lengths


def test_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shard = write_keyed(
        folder, b=("int32", numbered_documents([2, 1], "int32")), a=("bool", [np.array([1]), np.array([])])
    )
    assert shard == WrittenShard(
        format="keyed",
        prefix=str(folder),
        num_documents=2,
        keys={"b": KeyInfo(dtype="int32", tokens=3), "a": KeyInfo(dtype="bool", tokens=1)},
        contiguous=True,
        files=tuple(file_sum(folder / name) for name in ("b.bin", "a.bin", "meta.json")),
    )
    assert shard.num_tokens == 4
    assert names(folder) == ["a.bin", "b.bin", "meta.json"]


def test_the_writer_says_what_it_has(tmp_path: Path) -> None:
    with KeyedWriter(tmp_path / "s", dtypes={"a": "uint16", "b": np.bool_}) as writer:
        assert {key: dtype.name for key, dtype in writer.dtypes.items()} == {"a": "uint16", "b": "bool"}
        writer.add_documents({"a": np.array([1, 2]), "b": np.array([1])}, {"a": np.array([2]), "b": np.array([1])})
        assert (writer.num_documents, writer.num_tokens) == (1, 3)


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("uint16", [65536], "key 'a': token id 65536 does not fit into uint16, which holds 0 to 65535"),
        ("int32", np.array([2**31], np.int64), "token id 2147483648 does not fit into int32"),
        ("bool", [0, 2], "token id 2 does not fit into bool, which holds 0 to 1"),
        ("bool", [-1], "token id -1 does not fit into bool"),
        ("bool", [0.5], "tokens must be integers, not float64"),
        ("int32", [True], "tokens must be integers, not bool"),
        ("int32", [0.5], "tokens must be integers, not float64"),
        ("float16", [1.0, 70000.0], "value 70000.0 does not fit into float16"),
        ("float32", np.array(["x"]), "values must be numbers, not <U1"),
        ("int32", [[1, 2]], "one-dimensional"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, dtype: str, values: Any, message: str) -> None:
    array = np.array(values)
    with KeyedWriter(tmp_path / "s", dtypes={"b": "uint8", "a": dtype}) as writer:
        one = np.array([1])
        with pytest.raises(InputError, match=message):
            writer.add_documents({"b": one, "a": array}, {"b": one, "a": np.array([len(array)])})
        # The call wrote nothing, not even of the first key, so the writer goes on.
        writer.add_documents({"b": one, "a": one}, {"b": one, "a": one})
        assert writer.finish().num_tokens == 2


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ({"a": [1]}, {"a": [1], "b": [1]}, "tokens has the keys 'a', but the writer needs 'a', 'b'"),
        (
            {"a": [1], "b": [1]},
            {"a": [1], "c": [1]},
            "lengths has the keys 'a', 'c', but the writer needs 'a', 'b'",
        ),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [1, 0]}, "different numbers of documents: 1 for 'a', 2 for 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [2]}, "the lengths add up to 2, but there are 1 tokens"),
    ],
)
def test_keys_that_do_not_fit(tmp_path: Path, tokens: Any, lengths: Any, message: str) -> None:
    with (
        KeyedWriter(tmp_path / "s", dtypes={"a": "int8", "b": "int8"}) as writer,
        pytest.raises(InputError, match=message),
    ):
        writer.add_documents(
            {key: np.array(values) for key, values in tokens.items()},
            {key: np.array(values) for key, values in lengths.items()},
        )
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({}, "names no key"),
        ({"a/b": "int32"}, "'a/b' cannot be a key"),
        ({"": "int32"}, "'' cannot be a key"),
        ({"a": "complex64"}, "dtype complex64 is not known to the keyed format; known are bool, uint8"),
        ({"a": "nonsense"}, "dtype='nonsense' is not a dtype"),
    ],
)
def test_keys_and_dtypes_that_the_format_does_not_have(tmp_path: Path, dtypes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KeyedWriter(tmp_path / "s", dtypes=dtypes)
    assert names(tmp_path) == []


def test_infinity_is_a_value(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", f=("float16", [np.array([np.inf, -np.inf, 1, np.nan])]))
    assert stores.open(tmp_path / "s").fetch(0, 3).tolist() == [np.inf, -np.inf, 1]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nothing/s: cannot create the folder: No such file"):
        KeyedWriter(tmp_path / "nothing" / "s", dtypes={"a": "int32"})
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: cannot create the folder: File exists"):
        KeyedWriter(tmp_path / "file", dtypes={"a": "int32"})


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with KeyedWriter(tmp_path / "s", dtypes={"a": "int32"}):
        assert len(names(tmp_path / "s")) == 1
    assert names(tmp_path) == ["s"]
    assert names(tmp_path / "s") == []


def test_a_shard_is_replaced(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", tokens=("int32", numbered_documents([5, 5], "int32")))
    write_keyed(tmp_path / "s", tokens=("uint8", numbered_documents([3], "uint8")))
    assert names(tmp_path / "s") == ["meta.json", "tokens.bin"]
    assert stores.open(tmp_path / "s").lengths.tolist() == [3]


@pytest.mark.soak
def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    lengths = {"a": np.ones(100_000, np.int64)}
    tokens = {"a": np.ones(100_000, np.uint16)}
    with KeyedWriter(tmp_path / "s", dtypes={"a": "uint16"}) as writer:
        for _ in range(10):
            writer.add_documents(tokens, lengths)
        tracemalloc.start()
        writer.finish()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # A chunk of 2^18 documents is some 30 MB while it is text; all of them would be 100.
    assert peak < 50e6
    assert stores.open(tmp_path / "s").document(999_999).tolist() == [1]
