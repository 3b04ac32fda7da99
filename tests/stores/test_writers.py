"""What the writers write, to the byte; what they refuse; and that a file stays until the new one is whole."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import headrace.stores as stores
import killing
from counts import cases
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import file_sum
from headrace.stores import (
    Hdf5Writer,
    IndexedWriter,
    JsonlWriter,
    KeyedWriter,
    KeyInfo,
    OutputShard,
    Writer,
    optimal_dtype,
    save_manifest,
)
from headrace.testing.stores import numbered_documents
from stored import files
from token_shards import manifest_of, write_keyed, write_shard

pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

WRITERS: dict[str, Callable[..., Any]] = {"s": KeyedWriter, "s.h5": Hdf5Writer, "s.jsonl": JsonlWriter}
EVERY = pytest.mark.parametrize("name", WRITERS)
ONE = np.array([1])
BOTH = {"a": ONE, "b": ONE}


@EVERY
@pytest.mark.parametrize(
    ("dtypes", "values", "message"),
    [
        ({}, [], "key"),
        ({"a/b": "int32"}, [], "'a/b'"),
        ({"": "int32"}, [], "''"),
        ({"a": "complex64"}, [], "complex64.*bool.*uint8"),
        ({"a": "nonsense"}, [], "'nonsense'"),
        ({"a": "int32"}, ["b"], "values.*'b'.*'a'"),
    ],
)
def test_keys_and_dtypes_that_cannot_be(tmp_path: Path, name: str, dtypes: Any, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WRITERS[name](tmp_path / name, dtypes=dtypes, values=values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "endings"), [("s.h5", r"x\.bin.*\.h5.*\.hdf5"), ("s.jsonl", r"x\.bin.*\.jsonl")])
def test_names_that_the_format_does_not_have(tmp_path: Path, name: str, endings: str) -> None:
    with pytest.raises(ConfigError, match=endings):
        WRITERS[name](tmp_path / "x.bin", dtypes={"a": "int32"})


@EVERY
@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ({"a": [1]}, {"a": [1], "b": [1]}, "tokens.*'a'.*'a', 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "c": [1]}, "lengths.*'a', 'c'.*'a', 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [1, 0]}, "1.*'a'.*2.*'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [2]}, "2.*1"),
        ({"a": [1], "b": [200]}, {"a": [1], "b": [1]}, "'b'.*200.*int8"),
    ],
)
def test_documents_that_do_not_fit(tmp_path: Path, name: str, tokens: Any, lengths: Any, message: str) -> None:
    with WRITERS[name](tmp_path / name, dtypes={"a": "int8", "b": "int8"}) as writer:
        with pytest.raises(InputError, match=message):
            writer.add_documents(
                {key: np.array(part) for key, part in tokens.items()},
                {key: np.array(part) for key, part in lengths.items()},
            )
        # The call wrote nothing, not even of the first key, so the writer goes on.
        writer.add_documents(BOTH, BOTH)
        assert writer.finish().tokens == 2


@EVERY
@pytest.mark.parametrize("end", ["finish", "discard"])
def test_a_writer_that_is_done(tmp_path: Path, name: str, end: str) -> None:
    writer = WRITERS[name](tmp_path / name, dtypes={"a": "int8"})
    writer.add_documents({"a": ONE}, {"a": ONE})
    getattr(writer, end)()
    before = files(tmp_path)
    writer.discard()
    for use in (writer.finish, lambda: writer.add_documents({"a": ONE}, {"a": ONE})):
        with pytest.raises(ConfigError, match="discarded"):
            use()
    assert files(tmp_path) == before
    assert bool(before) == (end == "finish")


@pytest.mark.parametrize("name", ["s.h5", "s.jsonl"])
def test_what_was_there_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def write(dtype: str) -> None:
        with WRITERS[name](tmp_path / name, dtypes={"a": dtype}) as writer:
            writer.add_documents({"a": ONE}, {"a": ONE})
            writer.finish()

    write("int8")
    before = files(tmp_path)
    with WRITERS[name](tmp_path / name, dtypes={"a": "bool"}) as writer:
        writer.add_documents({"a": ONE}, {"a": ONE})
    assert files(tmp_path) == before
    for call in ("os.fsync", "pathlib.Path.rename"):
        with monkeypatch.context() as patch:
            patch.setattr(call, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OutputError, match=name):
                write("bool")
        assert files(tmp_path) == before
    write("bool")
    assert stores.open(tmp_path / name).dtypes["a"] == np.bool_
    with pytest.raises(OutputError, match=f"nothing/{name}"):
        WRITERS[name](tmp_path / "nothing" / name, dtypes={"a": "int8"})


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
    found = stores.open(tmp_path / "s").fetch(0, 3)
    assert (found.dtype.name, found.tolist()) == (name, [1, 2, 3])


def test_golden_bytes_with_offsets_of_some_keys(tmp_path: Path) -> None:
    arrays = {"sequence": np.array([1, 2, 258]), "loss_mask": np.array([1, 0, 1]), "f": np.array([1.5])}
    dtypes = {"sequence": "int32", "loss_mask": "bool", "f": "float32"}
    with KeyedWriter(tmp_path / "some", dtypes=dtypes, offsets=["sequence"]) as writer:
        writer.add_documents(arrays, {"sequence": np.array([2, 1])})
        assert {key: dtype.name for key, dtype in writer.dtypes.items()} == dtypes
        assert (writer.num_documents, writer.num_tokens) == (2, 7)
        assert writer.finish().documents == 2
    same_files(tmp_path / "some", GOLDEN / "some")
    del arrays["f"], dtypes["f"]
    with KeyedWriter(tmp_path / "none", dtypes=dtypes, offsets=[]) as writer:
        for part in (slice(0, 2), slice(2, 3)):
            writer.add_documents({key: values[part] for key, values in arrays.items()}, {})
        assert writer.finish().documents == 1
    same_files(tmp_path / "none", GOLDEN / "none")
    assert stores.open(tmp_path / "none").num_documents == 1


def test_offsets_name_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'b'.*'a'"):
        KeyedWriter(tmp_path / "s", dtypes={"a": "int8"}, offsets=["b"])
    one = np.array([1])
    with KeyedWriter(tmp_path / "s", dtypes={"a": "int8", "b": "int8"}, offsets=["a"]) as writer:
        with pytest.raises(InputError, match=r"'a'.*'b'"):
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
        with pytest.raises(ConfigError, match=r"3.*meta\.json"):
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
        patch.setattr("headrace.stores.writer.CHUNK", chunk)
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
    assert shard == OutputShard(
        format="keyed",
        prefix=str(folder),
        documents=2,
        keys={"b": KeyInfo(dtype="int32", tokens=3), "a": KeyInfo(dtype="bool", tokens=1)},
        contiguous=True,
        files=tuple(file_sum(folder / name) for name in ("b.bin", "a.bin", "meta.json")),
    )
    assert shard.tokens == 4
    assert names(folder) == ["a.bin", "b.bin", "meta.json"]


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("uint16", [65536], "'a'.*65536.*uint16.*65535"),
        ("int32", np.array([2**31], np.int64), "2147483648.*int32"),
        ("bool", [0, 2], "2.*bool"),
        ("bool", [-1], "-1.*bool"),
        ("bool", [0.5], "float64"),
        ("int32", [True], "bool"),
        ("int32", [0.5], "float64"),
        ("float16", [1.0, 70000.0], "70000.0.*float16"),
        ("float32", np.array(["x"]), "<U1"),
        ("int32", [[1, 2]], "one-dimensional"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, dtype: str, values: Any, message: str) -> None:
    array = np.array(values)
    with KeyedWriter(tmp_path / "s", dtypes={"a": dtype}) as writer, pytest.raises(InputError, match=message):
        writer.add_documents({"a": array}, {"a": np.array([len(array)])})


def test_infinity_is_a_value(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", f=("float16", [np.array([np.inf, -np.inf, 1, np.nan])]))
    assert stores.open(tmp_path / "s").fetch(0, 3).tolist() == [np.inf, -np.inf, 1]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nothing/s"):
        KeyedWriter(tmp_path / "nothing" / "s", dtypes={"a": "int32"})
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="exists"):
        KeyedWriter(tmp_path / "file", dtypes={"a": "int32"})


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with KeyedWriter(tmp_path / "s", dtypes={"a": "int32"}):
        assert len(names(tmp_path / "s")) == 1
    assert names(tmp_path) == ["s"]
    assert names(tmp_path / "s") == []


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


PAIRS = Path(__file__).parents[1] / "golden" / "indexed"


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "empty"])
def test_golden_bytes_of_pairs(tmp_path: Path, name: str) -> None:
    documents = [np.array([1, 2, 3]), np.array([], int), np.array([4, 5])]
    write_shard(tmp_path / "x", *([[]] if name == "empty" else [documents, name]))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (PAIRS / f"{name}{suffix}").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "tokens", "message"),
    [
        ("uint16", [1, 65536], "65536.*uint16.*65535"),
        ("uint16", [-1, 1], "-1.*uint16"),
        ("int64", np.array([2**63], np.uint64), "9223372036854775808.*int64"),
        ("uint16", [1.0], "float64"),
        ("uint16", [[1, 2]], "one-dimensional"),
        ("uint16", np.array([True]), "bool"),
    ],
)
def test_ids_that_do_not_fit(tmp_path: Path, dtype: str, tokens: object, message: str) -> None:
    array = np.array(tokens)
    with IndexedWriter(tmp_path / "x", dtype=dtype) as writer:
        with pytest.raises(InputError, match=message):
            writer.add_documents(array, np.array([len(array)]))
        # The call wrote nothing, so the writer goes on.
        writer.add_documents(np.array([1]), np.array([1]))
        assert writer.finish().tokens == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_the_least_and_the_greatest_id(tmp_path: Path, dtype: str) -> None:
    limits = np.iinfo(dtype)
    ids = np.array([limits.min, limits.max], np.int64)
    with IndexedWriter(tmp_path / "x", dtype=dtype) as writer:
        writer.add_documents(ids, np.array([2]))
        writer.finish()
    assert stores.open(tmp_path / "x").document(0).tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2], "2.*3"),
        ([4, -1], "-1"),
        ([2**31], "2147483648.*2147483647"),
        ([1.5, 1.5], "integers"),
        ([[3]], "integers"),
    ],
)
def test_lengths_that_do_not_fit(tmp_path: Path, lengths: list[int], message: str) -> None:
    with IndexedWriter(tmp_path / "x", dtype="uint16") as writer, pytest.raises(InputError, match=message):
        writer.add_documents(np.array([1, 2, 3]), np.array(lengths))
    assert names(tmp_path) == []


@pytest.mark.parametrize("dtype", ["uint32", "float32", "bool", "S3", "nonsense"])
def test_dtypes_that_pairs_do_not_have(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match="dtype"):
        IndexedWriter(tmp_path / "x", dtype=dtype)
    assert names(tmp_path) == []


def test_optimal_dtype_is_megatrons() -> None:
    assert [optimal_dtype(size).name for size in (1, 65_499, 65_500, 2**20, None)] == [*["uint16"] * 2, *["int32"] * 3]


def test_memory_does_not_grow_with_the_documents_of_a_pair(tmp_path: Path) -> None:
    lengths = np.ones(100_000, np.int64)
    tokens = np.ones(100_000, np.uint16)
    tracemalloc.start()
    with IndexedWriter(tmp_path / "x", dtype="uint16") as writer:
        for _ in range(20):
            writer.add_documents(tokens, lengths)
        writer.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 2 million documents have 40 MB of index; a chunk of 2^18 takes some 2 MB an array.
    assert peak < 12e6
    store = stores.open(tmp_path / "x")
    assert store.num_tokens == 2_000_000
    assert store.document(1_999_999).tolist() == [1]


Make = Callable[[Path], Writer]
LENGTHS = np.array([3, 0, 1, 4, 0, 0, 2, 5, 1, 0])


def indexed(folder: Path) -> IndexedWriter:
    return IndexedWriter(folder / "x", dtype="uint16")


def keyed(folder: Path) -> KeyedWriter:
    return KeyedWriter(folder / "x", dtypes={"ids": "int32", "mask": "bool"})


FORMATS = pytest.mark.parametrize("make", [indexed, keyed])


def add(writer: Writer, first: int, last: int) -> None:
    """Add the documents from ``first`` to ``last`` of `LENGTHS`."""
    lengths = LENGTHS[first:last]
    tokens = np.arange(lengths.sum()) + 100 * first
    if isinstance(writer, IndexedWriter):
        writer.add_documents(tokens, lengths)
    else:
        # The second key has documents of other lengths.
        mask = np.arange((lengths + 1).sum()) % 2
        writer.add_documents({"ids": tokens, "mask": mask}, {"ids": lengths, "mask": lengths + 1})


def write(make: Make, folder: Path, first: int = 0) -> None:
    with make(folder) as writer:
        for number in range(first, len(LENGTHS), 2):
            add(writer, number, number + 2)
            assert writer.num_documents == number + 2 - first
        writer.finish()


def content(folder: Path) -> dict[str, bytes]:
    """All files, also hidden ones."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def visible(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if not Path(name).name.startswith(".")}


def has_store(folder: Path) -> bool:
    """Whether a store opens there; what opens must be whole."""
    try:
        with stores.open(folder / "x") as store:
            assert list(store.check()) == []
            return store.num_documents > 0
    except StoreError:
        return False


@FORMATS
@pytest.mark.parametrize("has_old", [False, True])
def test_killed_at_any_moment_and_written_again(tmp_path: Path, make: Make, has_old: bool) -> None:
    (tmp_path / "good").mkdir()
    write(make, tmp_path / "good")
    good = content(tmp_path / "good")
    moment, is_done = cases(int(has_old), 0), False
    while not is_done:
        folder = tmp_path / f"try{moment}"
        folder.mkdir()
        if has_old:
            write(make, folder, 4)
        is_done = killing.run(lambda: write(make, folder), moment=moment)  # noqa: B023
        has_store(folder)
        write(make, folder)
        assert visible(content(folder)) == good, f"killed at change {moment}"
        moment += cases(2, 1)
    assert moment > 15, "the process was to be killed at each change that it makes"


@FORMATS
def test_no_store_opens_before_the_end(tmp_path: Path, make: Make) -> None:
    with make(tmp_path) as writer:
        for number in range(0, len(LENGTHS), 2):
            add(writer, number, number + 2)
            assert not has_store(tmp_path)
        assert visible(content(tmp_path)) == {}
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=cases(12, 30))
@example(lengths=[1, 0, 0, 0, 0, 0, 0, 2], cuts=[], chunk=3)  # the second chunk has no sequence
@given(
    lengths=st.lists(st.integers(0, 4), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    chunk=st.integers(1, 5),
)
def test_documents_are_added_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], cuts: list[int], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("w")
    tokens, counts = np.arange(sum(lengths)), np.array(lengths, int)
    ends = [*sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
    for name, parts in (("whole", [(0, len(lengths))]), ("parts", zip([0, *ends], ends, strict=False))):
        with pytest.MonkeyPatch.context() as patch, IndexedWriter(folder / name, dtype="uint16") as writer:
            if name == "parts":
                patch.setattr("headrace.stores.writer.CHUNK", chunk)
            for begin, end in parts:
                writer.add_documents(tokens[sum(lengths[:begin]) : sum(lengths[:end])], counts[begin:end])
            writer.finish()
    for suffix in (".bin", ".idx"):
        assert (folder / f"parts{suffix}").read_bytes() == (folder / f"whole{suffix}").read_bytes()


@contextlib.contextmanager
def refusing(moment: int) -> Iterator[None]:
    """The write, sync or rename of this number, counted from 0, finds the disk full."""
    calls = itertools.count()

    def counted(whole):
        def call(*args):
            if next(calls) == moment:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return whole(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "write"), (os, "fsync"), (Path, "rename")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


@FORMATS
@pytest.mark.parametrize("has_old", [False, True])
def test_no_space_leaves_the_old_store_or_none(tmp_path: Path, make: Make, has_old: bool) -> None:
    for moment in range(100):
        folder = tmp_path / str(moment)
        folder.mkdir()
        if has_old:
            write(make, folder)
        old = content(folder)
        try:
            with refusing(moment):
                write(make, folder, 4)
        except OutputError as error:
            assert str(folder) in str(error)  # noqa: PT017
        else:
            break
        found = content(folder)
        assert visible(found) == found
        assert found == old or not has_store(folder)
    assert 8 < moment < 99


def test_two_writers_of_one_prefix_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    write(indexed, tmp_path / "good")
    with indexed(tmp_path) as one, indexed(tmp_path) as two:
        for number in range(0, len(LENGTHS), 2):
            add(one, number, number + 2)
            add(two, 8 - number, 10 - number)
        one.finish()
        assert content(tmp_path).items() >= content(tmp_path / "good").items()
        two.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"good", "x.bin", "x.idx"}
