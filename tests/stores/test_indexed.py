"""The store contract over the indexed format, permuted, sharded, mapped and read; and files of Megatron itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import StoreError
from headrace.io import reader
from headrace.stores.indexed.index import ContiguousStream, Index, ScatteredStream, check_bounds, examine, is_contiguous
from headrace.stores.indexed.layout import open_index
from headrace.testing.stores import Documents
from store_contracts import OpenedContract, ShardedContract
from token_shards import vouch_for, write_raw, write_shard


class TestMapped(OpenedContract):
    def write(self, folder: Path, documents: Documents) -> Path:
        write_shard(folder / "shard", documents, self.dtype)
        return folder / "shard"

    def vouch(self, path: Path) -> None:
        vouch_for(path.parent, [self.open(path)])


class TestRead(TestMapped):
    options: ClassVar = {"reader": "pread"}


class TestSeveralSequences(TestMapped):
    """Each document in up to three sequences, one of them empty."""

    def write(self, folder: Path, documents: Documents) -> Path:
        sizes, bounds = [], [0]
        for document in documents:
            if len(document):
                cut = len(document) // 2
                sizes += [cut, 0, len(document) - cut]
            bounds.append(len(sizes))
        ends = np.cumsum([0, *sizes]) * np.dtype(self.dtype).itemsize
        data = b"".join(document.tobytes() for document in documents)
        write_raw(folder / "shard", self.dtype, sizes, ends[:-1].tolist(), bounds, data)
        return folder / "shard"


class TestPermuted(TestMapped):
    """Sequences in another order in the .bin than in the .idx."""

    def write(self, folder: Path, documents: Documents) -> Path:
        sequences = [part for document in documents if len(document) for part in np.array_split(document, 2)]
        bounds = np.cumsum([0, *(2 * (len(document) > 0) for document in documents)]).tolist()
        pointers, data = [0] * len(sequences), b""
        for number in np.random.default_rng(len(sequences)).permutation(len(sequences)).tolist():
            pointers[number] = len(data)
            data += sequences[number].tobytes()
        write_raw(folder / "shard", self.dtype, [len(s) for s in sequences], pointers, bounds, data)
        return folder / "shard"

    def vouch(self, path: Path) -> None:
        vouch_for(path.parent, [self.open(path)], contiguous=False)


class TestPermutedRead(TestPermuted):
    test_check_finds_every_flipped_bit = None

    options: ClassVar = {"reader": "pread"}


class TestSharded(ShardedContract):
    """One is empty before all others."""

    def write(self, folder: Path, documents: Documents) -> Path:
        (folder / "data").mkdir(exist_ok=True)
        self.write_shard(folder / "data", 7, [])
        return super().write(folder, documents)

    def write_shard(self, folder: Path, number: int, documents: Documents) -> None:
        write_shard(folder / f"shard-{number}", documents, self.dtype)  # shard-10 comes after shard-9

    def vouch(self, path: Path) -> None:
        vouch_for(path, self.open(path).shards)


GOLDEN = Path(__file__).parents[1] / "golden" / "indexed"


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden_documents(reader: str) -> None:
    store = stores.open(GOLDEN / "uint16", reader=reader)
    documents = [[1, 2, 3], [4, 5, 6, 7], [], [], [8, 9]]
    assert [store.document(number).tolist() for number in range(len(store))] == documents
    assert store.lengths.tolist() == [3, 4, 0, 0, 2]
    assert store.document_begins(np.arange(6)).tolist() == [0, 3, 7, 7, 7, 9]
    assert store.find_documents(np.arange(9)).tolist() == [0, 0, 0, 1, 1, 1, 1, 4, 4]
    assert store.gather(np.array([5, 0]), 4).tolist() == [[6, 7, 8, 9], [1, 2, 3, 4]]
    assert list(store.check(vocab_size=10)) == []


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float32", "float64"])
def test_golden_dtypes(name: str, reader: str) -> None:
    store = stores.open(GOLDEN / name, reader=reader)
    assert store.dtypes["tokens"] == np.dtype(name)
    assert [store.document(number).tolist() for number in range(3)] == [[1, 2, 3], [], [4, 5]]
    assert store.gather(np.array([0, 1]), 4).dtype == np.dtype(name)
    assert list(store.check()) == []


@pytest.fixture
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


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("at", [None, *range(10)])
def test_one_pointer_elsewhere(tmp_path: Path, at: int | None) -> None:
    pointers = [2 * begin for begin in BEGINS]
    if at is not None:
        pointers[at] = pointers[at] - 2 if at else 2
    stream = examine(described(tmp_path, pointers, [0, 4, 4, 9, 10]))
    assert type(stream) is (ContiguousStream if at is None else ScatteredStream)
    assert stream.num_tokens == 14
    wanted = [
        token for begin, size in zip(pointers, SIZES, strict=True) for token in range(begin // 2, begin // 2 + size)
    ]
    store = stores.open(tmp_path / "x")
    assert store.fetch(0, 14).tolist() == wanted
    assert store.gather(np.array([0, 4]), 10).tolist() == [wanted[:10], wanted[4:]]
    numbers = [0] * 6 + [2] * 4 + [3] * 4
    assert store.find_documents(np.arange(14)).tolist() == numbers


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_outcome_of_a_long_pass_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool) -> None:
    monkeypatch.setattr("headrace.stores.indexed.store._LONG", 10)
    monkeypatch.setattr("headrace.stores.kept_arrays._KEPT_BYTES", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    passes: list[str] = []
    for name, function in (("is_contiguous", is_contiguous), ("check_bounds", check_bounds)):

        def noted(index: Index, name: str = name, function: Callable[[Index], Any] = function) -> Any:
            passes.append(name)
            return function(index)

        monkeypatch.setattr(f"headrace.stores.indexed.store.{name}", noted)
    pointers = [2 * begin for begin in BEGINS]
    if not is_whole:
        pointers[3], pointers[4] = pointers[4], pointers[3]
    described(tmp_path, pointers, [0, 4, 4, 9, 10])
    found = []
    for _ in range(2):
        store = stores.open(tmp_path / "x")
        found.append((store.fetch(0, 14).tolist(), store.find_documents(np.arange(14)).tolist()))
    assert found[0] == found[1]
    assert (found[0][0] == list(range(14))) is is_whole
    assert passes == ["is_contiguous", "check_bounds"], "once for all who open it"
    described(tmp_path, pointers, [0, 1, 4, 9, 10])
    assert stores.open(tmp_path / "x").find_documents(np.arange(14)).tolist() != found[0][1]
    assert passes == ["is_contiguous", "check_bounds"] * 2, "and once more when it has changed"


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("at", range(1, 6))
def test_indices_that_fall_are_named_in_any_chunk(tmp_path: Path, at: int) -> None:
    bounds = [0, 1, 3, 5, 6, 8, 10]
    bounds[at] = 11
    with pytest.raises(StoreError, match=rf"{at}.*11"):
        check_bounds(described(tmp_path, [2 * begin for begin in BEGINS], bounds))
    store = stores.open(tmp_path / "x")
    assert store.num_tokens == 14, "the stream needs no documents"
    for ask in (lambda: store.find_documents(np.array([0])), lambda: store.document_begins(np.array([0]))):
        with pytest.raises(StoreError, match="decrease"):
            ask()
    problems = list(stores.open(tmp_path / "x").check())
    assert [problem.place for problem in problems] == [f"document {at - 1}", f"document {at}"]


@pytest.mark.usefixtures("small_chunks")
def test_sizes_below_zero_are_named_in_any_chunk(tmp_path: Path) -> None:
    sizes = [*SIZES[:7], -2, *SIZES[8:]]
    pointers = (2 * np.cumsum([0, *sizes[:-1]])).tolist()  # contiguous, but for the sign
    write_raw(tmp_path / "x", "uint16", sizes, pointers, [0, 10], BYTES)
    with pytest.raises(StoreError, match=r"sequence.*7.*-2"):
        stores.open(tmp_path / "x").num_tokens  # noqa: B018
    (problem,) = stores.open(tmp_path / "x").check()
    assert problem.place == "document 0, sequence 7"


@pytest.mark.usefixtures("small_chunks")
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
