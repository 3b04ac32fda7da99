from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import file_sum
from headrace.stores import IndexedWriter, KeyInfo, optimal_dtype, token_file
from headrace.testing.shards import write_shard
from headrace.testing.stores import numbered_documents

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_golden_bytes(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / "x", [np.array([1, 2, 3]), np.array([], int), np.array([4, 5])], name)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (GOLDEN / f"{name}{suffix}").read_bytes()


def test_golden_bytes_of_no_documents(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", [])
    assert (tmp_path / "x.bin").read_bytes() == b""
    assert (tmp_path / "x.idx").read_bytes() == (GOLDEN / "empty.idx").read_bytes()


@settings(deadline=None)
@example(lengths=[1, 0, 0, 0, 0, 0, 0, 2], cuts=[])  # the second chunk has no sequence
@given(lengths=st.lists(st.integers(0, 5), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=3))
def test_calls_and_chunks_do_not_show(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], cuts: list[int]
) -> None:
    documents = numbered_documents(lengths, "int32")
    folder = tmp_path_factory.mktemp("w")
    whole = write_shard(folder / "whole", documents, "int32")
    with pytest.MonkeyPatch.context() as patch, IndexedWriter(folder / "parts", dtype="int32") as writer:
        patch.setattr(token_file, "CHUNK", 3)
        for part in np.split(np.arange(len(documents)), sorted(cut for cut in cuts if cut < len(documents))):
            tokens = [documents[number] for number in part]
            writer.add_documents(np.concatenate(tokens) if tokens else np.zeros(0, "i4"), np.array(lengths)[part])
        parts = writer.finish()
    assert [file.xxh3_128 for file in parts.files] == [file.xxh3_128 for file in whole.files]
    assert parts.num_documents == len(lengths)
    assert parts.num_tokens == sum(lengths)


def test_what_was_written(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x", [np.array([1, 2]), np.array([3])])
    assert shard == stores.WrittenShard(
        format="indexed",
        prefix=str(tmp_path / "x"),
        num_documents=2,
        keys={"tokens": KeyInfo(dtype="uint16", tokens=3)},
        contiguous=True,
        files=(file_sum(tmp_path / "x.bin"), file_sum(tmp_path / "x.idx")),
    )
    assert shard.num_tokens == 3
    assert names(tmp_path) == ["x.bin", "x.idx"]


@pytest.mark.parametrize(
    ("dtype", "tokens", "message"),
    [
        ("uint16", [1, 65536], "token id 65536 does not fit into uint16, which holds 0 to 65535"),
        ("uint16", [-1, 1], "token id -1 does not fit into uint16"),
        ("int8", [128], "token id 128 does not fit into int8"),
        ("int32", np.array([2**31], np.uint32), "2147483648 does not fit into int32"),
        ("int64", np.array([2**63], np.uint64), "9223372036854775808 does not fit into int64"),
        ("uint16", [1.0], "tokens must be integers, not float64"),
        ("uint16", [[1, 2]], "one-dimensional"),
        ("uint16", np.array([True]), "tokens must be integers, not bool"),
    ],
)
def test_ids_that_do_not_fit(tmp_path: Path, dtype: str, tokens: object, message: str) -> None:
    array = np.array(tokens)
    with IndexedWriter(tmp_path / "x", dtype=dtype) as writer:
        with pytest.raises(InputError, match=message):
            writer.add_documents(array, np.array([len(array)]))
        # The call wrote nothing, so the writer goes on.
        writer.add_documents(np.array([1]), np.array([1]))
        assert writer.finish().num_tokens == 1


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
        ([2], "add up to 2, but there are 3 tokens"),
        ([4, -1], "a document has -1 tokens"),
        ([2**31], "a document has 2147483648 tokens; 0 to 2147483647 are allowed in a document"),
        ([1.5, 1.5], "lengths must be one-dimensional integers"),
        ([[3]], "lengths must be one-dimensional integers"),
    ],
)
def test_lengths_that_do_not_fit(tmp_path: Path, lengths: list[int], message: str) -> None:
    with IndexedWriter(tmp_path / "x", dtype="uint16") as writer, pytest.raises(InputError, match=message):
        writer.add_documents(np.array([1, 2, 3]), np.array(lengths))
    assert names(tmp_path) == []


@pytest.mark.parametrize("dtype", ["uint32", "float32", "bool", "S3", "nonsense"])
def test_dtypes_that_the_format_does_not_have(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match="dtype"):
        IndexedWriter(tmp_path / "x", dtype=dtype)
    assert names(tmp_path) == []


def test_optimal_dtype_is_megatrons() -> None:
    assert [optimal_dtype(size).name for size in (1, 65_499, 65_500, 2**20, None)] == [*["uint16"] * 2, *["int32"] * 3]


def test_leaving_without_finish_leaves_nothing(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "x", dtype="uint16") as writer:
        writer.add_documents(np.array([1, 2, 3]), np.array([3]))
    assert names(tmp_path) == []


def test_a_shard_is_replaced(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", numbered_documents([5, 5], "uint16"))
    write_shard(tmp_path / "x", numbered_documents([3], "uint16"))
    assert names(tmp_path) == ["x.bin", "x.idx"]
    assert stores.open(tmp_path / "x").lengths.tolist() == [3]


@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("moment", range(1, 9))
def test_no_space_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, has_old: bool) -> None:
    old, new = numbered_documents([4], "uint16"), numbered_documents([3, 0, 2], "uint16")
    if has_old:
        write_shard(tmp_path / "x", old)
    calls = 0
    refused = False

    def counted(whole):
        def call(*args):
            nonlocal calls, refused
            calls += 1
            if calls == moment:
                refused = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return whole(*args)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "write"), (os, "fsync"), (Path, "rename")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        with pytest.raises(OutputError, match=rf"{tmp_path}/x.*: No space left"):
            write_shard(tmp_path / "x", new)
    assert refused
    assert all(name in ("x.bin", "x.idx") for name in names(tmp_path))
    try:
        lengths = stores.open(tmp_path / "x").lengths.tolist()
    except StoreError:
        return
    assert has_old
    assert lengths == [4]


_WRITE_FOREVER = """
import sys
import numpy as np
from headrace.stores import IndexedWriter
for number in range(10**9):
    with IndexedWriter(sys.argv[1], dtype="uint16") as writer:
        size = number % 7 + 1
        writer.add_documents(np.full(3 * size, size), np.full(3, size))
        writer.finish()
    if number == 3:
        print("ready", flush=True)
"""


def test_sigkill_leaves_a_whole_shard_or_none(tmp_path: Path) -> None:
    for round_ in range(6):
        command = [sys.executable, "-c", _WRITE_FOREVER, str(tmp_path / "x")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            try:
                process.wait(0.003 * round_)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        try:
            store = stores.open(tmp_path / "x")
        except StoreError as error:
            assert "missing beside" in str(error) or "nothing is there" in str(error)  # noqa: PT017
        else:
            assert list(store.check()) == []
            size = int(store.document(0)[0])
            assert [store.document(number).tolist() for number in range(3)] == [[size] * size] * 3


def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
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
