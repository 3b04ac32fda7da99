from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import StoreError
from headrace.io import reader
from headrace.stores.indexed.index import ContiguousStream, Index, ScatteredStream, check_bounds, examine
from headrace.stores.indexed.layout import open_index
from headrace.testing.shards import write_raw


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three entries, so that ten sequences are several."""
    monkeypatch.setattr("headrace.stores.indexed.index.CHUNK", 3)
    monkeypatch.setattr("headrace.stores.indexed.store.CHUNK", 3)


SIZES = [2, 0, 1, 3, 1, 0, 0, 2, 1, 4]
BEGINS = np.cumsum([0, *SIZES[:-1]]).tolist()
BYTES = np.arange(14, dtype="<u2").tobytes()


def described(folder: Path, pointers: list[int], bounds: list[int]) -> Index:
    write_raw(folder / "x", "uint16", SIZES, pointers, bounds, BYTES)
    return open_index(reader("pread"), str(folder / "x.idx"), len(BYTES))


def examined(folder: Path, pointers: list[int], bounds: list[int]) -> object:
    return examine(described(folder, pointers, bounds))


def test_contiguous_over_several_chunks(tmp_path: Path) -> None:
    stream = examined(tmp_path, [2 * begin for begin in BEGINS], [0, 4, 4, 9, 10])
    assert type(stream) is ContiguousStream
    assert stream.num_tokens == 14
    assert list(stores.open(tmp_path / "x").check()) == []


@pytest.mark.parametrize("at", range(10))
def test_one_pointer_elsewhere(tmp_path: Path, at: int) -> None:
    pointers = [2 * begin for begin in BEGINS]
    pointers[at] = pointers[at] - 2 if at else 2
    stream = examined(tmp_path, pointers, [0, 4, 4, 9, 10])
    assert type(stream) is ScatteredStream
    assert stream.num_tokens == 14
    wanted = [
        token for begin, size in zip(pointers, SIZES, strict=True) for token in range(begin // 2, begin // 2 + size)
    ]
    store = stores.open(tmp_path / "x")
    assert store.fetch(0, 14).tolist() == wanted
    assert store.gather(np.array([0, 4]), 10).tolist() == [wanted[:10], wanted[4:]]
    numbers = [0] * 6 + [2] * 4 + [3] * 4
    assert store.find_documents(np.arange(14)).tolist() == numbers


@pytest.mark.parametrize("at", range(1, 6))
def test_indices_that_fall_are_named_in_any_chunk(tmp_path: Path, at: int) -> None:
    bounds = [0, 1, 3, 5, 6, 8, 10]
    bounds[at] = 11
    with pytest.raises(StoreError, match=rf"document {at} begins with sequence 11 and ends before sequence"):
        check_bounds(described(tmp_path, [2 * begin for begin in BEGINS], bounds))
    store = stores.open(tmp_path / "x")
    assert store.num_tokens == 14, "the stream needs no documents"
    for ask in (lambda: store.find_documents(np.array([0])), lambda: store.document_begins(np.array([0]))):
        with pytest.raises(StoreError, match="may not decrease"):
            ask()
    problems = list(stores.open(tmp_path / "x").check())
    assert [problem.place for problem in problems] == [f"document {at - 1}", f"document {at}"]


def test_sizes_below_zero_are_named_in_any_chunk(tmp_path: Path) -> None:
    sizes = [*SIZES[:7], -2, *SIZES[8:]]
    pointers = (2 * np.cumsum([0, *sizes[:-1]])).tolist()  # contiguous, but for the sign
    write_raw(tmp_path / "x", "uint16", sizes, pointers, [0, 10], BYTES)
    with pytest.raises(StoreError, match="sequence 7 has -2 tokens"):
        stores.open(tmp_path / "x").num_tokens  # noqa: B018
    (problem,) = stores.open(tmp_path / "x").check()
    assert problem.place == "document 0, sequence 7"


@pytest.mark.parametrize("how", ["mmap", "pread"])
@pytest.mark.parametrize("shift", [0, 2, 1])
def test_parts_of_documents_come_through_the_pointers(tmp_path: Path, how: str, shift: int) -> None:
    # Contiguous; all but the first elsewhere; and at odd bytes, where no token of the mapped file begins.
    pointers = [2 * begin + (shift if number else 0) for number, begin in enumerate(BEGINS)]
    write_raw(tmp_path / "x", "uint16", SIZES, pointers, [0, 4, 4, 9, 10], BYTES + b"\x07\x00")
    store = stores.open(tmp_path / "x", reader=how, documents="sequences")
    wanted = np.array([0, 3, 9, 3]), np.array([1, 0, 1, 2]), np.array([1, 2, 3, 1])
    before = [bytes(part) for part in store.document_buffers(*wanted)]
    assert before == [
        store.document(number)[begin : begin + length].tobytes()
        for number, begin, length in zip(*(some.tolist() for some in wanted), strict=True)
    ]
    assert store.num_tokens == 14, "and so they do after the pass"
    assert [bytes(part) for part in store.document_buffers(*wanted)] == before
    with pytest.raises(IndexError):
        store.document_buffers(np.array([10]), np.array([0]), np.array([1]))
    with pytest.raises(IndexError):
        store.document_buffers(np.array([9]), np.array([0]), np.array([9]))
