"""Ranges of the streams of several keys, whole stores and shards; and that mapped ones are not copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import ConfigError, stores
from headrace.io import PreadReader
from headrace.plan import IntArray
from headrace.testing.shards import write_keyed, write_shard
from headrace.testing.stores import numbered_documents

LENGTHS = [5, 0, 3, 7, 0, 2, 4]
CUT = 3
"""The first so many documents are the first shard."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards, in a folder of their own, of ids, marks parallel to them, and answers that are not."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    ids = numbered_documents(LENGTHS, "int32")
    marks = [document % 3 == 0 for document in ids]
    answers = numbered_documents([1] * len(LENGTHS), "int16")
    (tmp_path / "keyed").mkdir()
    for shard, part in (("s0", slice(0, CUT)), ("s1", slice(CUT, None))):
        write_keyed(
            tmp_path / "keyed" / shard,
            ids=("int32", ids[part]),
            marks=("bool", marks[part]),
            answers=("int16", answers[part]),
        )
    return tmp_path / "keyed"


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("place", ["", "s1"])
def test_any_parallel_key(folder: Path, reader: str, place: str) -> None:
    store = stores.open(folder / place, reader=reader)
    first = 0 if place == "" else sum(LENGTHS[:CUT])
    ids = np.arange(first + 1, sum(LENGTHS) + 1)
    total = len(ids)
    begins = np.array([begin for begin in range(total + 1) for _ in range(begin, total + 1)])
    lengths = np.array([end - begin for begin in range(total + 1) for end in range(begin, total + 1)])
    for key, stream in ((None, ids), ("ids", ids), ("tokens", ids), ("marks", ids % 3 == 0)):
        found = store.pieces(begins, lengths, key)
        wanted = [stream[begin : begin + length].tolist() for begin, length in zip(begins, lengths, strict=True)]
        assert [piece.tolist() for piece in found] == wanted
        assert {piece.dtype for piece in found} == {store.dtypes["marks" if key == "marks" else "ids"]}
    for wrong in ("mask", "answers"):
        with pytest.raises(ConfigError, match=f"'{wrong}'"):
            store.pieces(np.array([0]), np.array([total]), wrong)


def test_mapped_streams_are_not_copied(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    write_shard(folder.parent / "other" / "indexed", numbered_documents(LENGTHS, "uint16"))
    begins, lengths = np.array([0, 4, 2]), np.array([3, 5, 1])
    for store, key in (
        (stores.open(folder / "s1"), None),
        (stores.open(folder / "s1"), "marks"),
        (stores.open(folder.parent / "other" / "indexed"), None),
    ):
        view = store.stream_view(key)
        assert view is not None
        assert all(np.shares_memory(piece, view) for piece in store.pieces(begins, lengths, key))
    for store in (stores.open(folder / "s1", reader="pread"), stores.open(folder, reader="mmap")):
        assert store.stream_view() is None
    # Of shards, what crosses from one to the next is a copy, and nothing else is.
    sharded = stores.open(folder)
    own = sharded.pieces(np.array([6, 6, 8]), np.array([2, 4, 2]))
    whole = [shard.stream_view() for shard in sharded.shards]  # type: ignore[attr-defined]
    assert [[np.shares_memory(piece, one) for one in whole] for piece in own] == [
        [True, False], [False, False], [False, True]
    ]  # fmt: skip


def test_ranges_that_are_not_mapped_are_read_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store then fetches them all at the same time."""
    (folder.parent / "other").mkdir()
    write_shard(folder.parent / "other" / "indexed", numbered_documents(LENGTHS, "uint16"))
    calls: list[int] = []
    whole = PreadReader.read_ranges

    def counted(self: PreadReader, path: str, offsets: IntArray, *rest: Any) -> Any:
        calls.append(len(offsets))
        return whole(self, path, offsets, *rest)

    begins, lengths = np.array([0, 4, 2, 4]), np.array([3, 5, 0, 1])
    for path, key in ((folder / "s1", None), (folder / "s1", "marks"), (folder.parent / "other" / "indexed", None)):
        store, mapped = stores.open(path, reader="pread"), stores.open(path)
        wanted = [piece.tolist() for piece in mapped.pieces(begins, lengths, key)]
        store.pieces(begins, lengths, key)  # looks at the index
        with monkeypatch.context() as patch:
            patch.setattr(PreadReader, "read_ranges", counted)
            calls.clear()
            assert [piece.tolist() for piece in store.pieces(begins, lengths, key)] == wanted
        assert calls == [4]
        with pytest.raises(IndexError, match="out of range"):
            store.pieces(np.array([0, store.num_tokens]), np.array([1, 1]), key)
