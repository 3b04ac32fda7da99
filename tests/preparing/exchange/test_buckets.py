"""Buckets: dealt and sorted, the documents are in the order of their hashes, however they came and were cut."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.engine.serving import Done
from headrace.errors import OutputError
from headrace.preparing.exchange.buckets import BucketSorter, BucketWriter, bucket_path
from headrace.preparing.messages import SortTask
from headrace.preparing.piece import piece_path, read_piece
from headrace.preparing.run_plan import MAX_BUCKET_BYTES, MAX_BUCKETS, MIN_BUCKET_BYTES, choose_num_buckets

Document = tuple[int, int, list[list[int]]]
"""Order hash, ordinal, and the tokens of each key."""


@given(size=st.integers(0, 1 << 50), num_workers=st.integers(1, 64))
def test_the_number_of_buckets(size: int, num_workers: int) -> None:
    count = choose_num_buckets(size, num_workers)
    assert count.bit_count() == 1
    assert 1 <= count <= MAX_BUCKETS
    if size > MAX_BUCKETS * MAX_BUCKET_BYTES:
        assert count == MAX_BUCKETS
    else:
        assert size / count <= MAX_BUCKET_BYTES
        assert count == 1 or size / count >= MIN_BUCKET_BYTES / 2


def test_some_numbers_of_buckets() -> None:
    sizes = (0, MIN_BUCKET_BYTES, MIN_BUCKET_BYTES + 1, 512 * MIN_BUCKET_BYTES, 512 * MAX_BUCKET_BYTES)
    assert [choose_num_buckets(size, 16) for size in sizes] == [1, 1, 2, 512, 1024]
    assert [choose_num_buckets(size, 1) for size in sizes] == [1, 1, 2, 128, 512]
    assert choose_num_buckets(513 * MAX_BUCKET_BYTES, 16) == 1024


def make_documents(seed: int, count: int, num_keys: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    # Some hashes are equal, some at the very ends.
    hashes = rng.integers(0, 1 << 64, count, np.uint64)
    hashes[rng.random(count) < 0.2] = rng.integers(0, 1 << 64, dtype=np.uint64)
    hashes[rng.random(count) < 0.1] = np.uint64((1 << 64) - 1 if seed % 2 else 0)
    tokens = [[rng.integers(0, 60_000, rng.integers(0, 9)).tolist() for _ in range(num_keys)] for _ in range(count)]
    return [(int(order), ordinal, tokens[ordinal]) for ordinal, order in enumerate(hashes)]


def deal(buckets: BucketWriter, documents: list[Document], num_keys: int) -> None:
    documents = sorted(documents)
    rows = []
    for key in range(num_keys):
        lengths = np.array([len(tokens[key]) for _, _, tokens in documents], np.int64)
        flat = [token for _, _, tokens in documents for token in tokens[key]]
        rows.append((np.array(flat, np.uint16), lengths))
    order = np.array([order for order, _, _ in documents], np.uint64)
    buckets.add(order, np.array([ordinal for _, ordinal, _ in documents], np.int64), rows)


def sort_all(folder: Path, sizes: list[int], num_keys: int) -> list[Document]:
    sorter = BucketSorter(str(folder), str(folder), [np.dtype(np.uint16)] * num_keys)
    found: list[Document] = []
    for bucket, size in enumerate(sizes):
        done = sorter.run(SortTask(bucket, size))
        piece = read_piece(piece_path(folder, bucket, 0))
        assert done == Done.of(bucket, (size, piece.info.num_documents, 0))
        assert (piece.info.task_index, piece.info.is_last) == (bucket, True)
        ends = [np.cumsum(piece.arrays[f"lengths.{key}"]) for key in range(num_keys)]
        for row, ordinal in enumerate(piece.arrays["ordinals"].tolist()):
            tokens = []
            for key in range(num_keys):
                end, length = int(ends[key][row]), int(piece.arrays[f"lengths.{key}"][row])
                tokens.append(piece.arrays[f"tokens.{key}"][end - length : end].tolist())
            found.append((bucket, ordinal, tokens))
        assert piece.info.num_documents == len(piece.arrays["ordinals"])
    return found


@settings(deadline=None, max_examples=cases(24, 60))
@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(0, 60),
    num_keys=st.integers(1, 3),
    bits=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    flushes=st.integers(0, 31),
)
def test_sorted_by_hash_then_ordinal(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    count: int,
    num_keys: int,
    bits: int,
    cuts: list[int],
    flushes: int,
) -> None:
    folder = tmp_path_factory.mktemp("buckets")
    documents = make_documents(seed, count, num_keys)
    buckets = BucketWriter(folder, 1 << bits)
    edges = sorted({0, *(min(cut, count) for cut in cuts), count})
    for number, (first, last) in enumerate(itertools.pairwise(edges)):
        deal(buckets, documents[first:last], num_keys)
        if flushes >> number & 1:
            buckets.flush()
    buckets.flush()
    found = sort_all(folder, buckets.sizes, num_keys)
    wanted = [(order >> 64 - bits, ordinal, tokens) for order, ordinal, tokens in sorted(documents)]
    assert found == wanted
    assert [bucket_path(folder, bucket).exists() for bucket in range(1 << bits)] == [size > 0 for size in buckets.sizes]


def test_what_was_appended_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    documents = make_documents(1, 40, 1)
    buckets = BucketWriter(tmp_path, 4)
    deal(buckets, documents[:20], 1)
    buckets.flush()
    sizes = list(buckets.sizes)
    deal(buckets, documents[20:], 1)
    assert buckets.waiting_bytes > 0
    buckets.flush()
    assert buckets.waiting_bytes == 0
    again = BucketWriter(tmp_path, 4, sizes)
    deal(again, documents[20:30], 1)
    again.flush()
    assert [bucket_path(tmp_path, bucket).stat().st_size for bucket in range(4)] == again.sizes
    wanted = [(order >> 62, ordinal, tokens) for order, ordinal, tokens in sorted(documents[:30])]
    assert sort_all(tmp_path, again.sizes, 1) == wanted


def one_bucket(folder: Path) -> tuple[Path, SortTask]:
    buckets = BucketWriter(folder, 1)
    for part in range(2):
        deal(buckets, make_documents(part, 3, 2), 2)
    buckets.flush()
    return bucket_path(folder, 0), SortTask(0, buckets.sizes[0])


def test_a_bucket_with_one_other_byte(tmp_path: Path) -> None:
    path, task = one_bucket(tmp_path)
    data = path.read_bytes()
    sorter = BucketSorter(str(tmp_path), str(tmp_path), [np.dtype(np.uint16)] * 2)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(OutputError, match=r"00000\.bucket: a bucket is damaged at byte \d+; .*--restart"):
            sorter.run(task)


def test_a_bucket_that_was_cut(tmp_path: Path) -> None:
    path, task = one_bucket(tmp_path)
    sorter = BucketSorter(str(tmp_path), str(tmp_path), [np.dtype(np.uint16)] * 2)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(OutputError, match=f"a bucket has {task.size - 8:,} bytes, {task.size:,} were written"):
        sorter.run(task)
    # A tail of zeros, as after a loss of power.
    path.write_bytes(path.read_bytes()[:-100] + bytes(108))
    with pytest.raises(OutputError, match="a bucket is damaged"):
        sorter.run(task)
    path.unlink()
    with pytest.raises(OutputError, match=r"a bucket cannot be read back: No such file"):
        sorter.run(task)
    assert sorter.run(SortTask(1, 0)) == Done.of(1, (0, 0, 0))


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    buckets = BucketWriter(tmp_path / "none", 1)
    deal(buckets, make_documents(1, 3, 1), 1)
    with pytest.raises(OutputError, match=r"00000\.bucket: cannot write: No such file"):
        buckets.flush()


def test_no_documents(tmp_path: Path) -> None:
    buckets: Any = BucketWriter(tmp_path, 2)
    deal(buckets, [], 1)
    buckets.flush()
    assert list(tmp_path.iterdir()) == []
