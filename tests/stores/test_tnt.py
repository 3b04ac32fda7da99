"""The older layout of fairseq and of Megatron-LM, ``TNTIDX``."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import StoreError
from headrace.stores.indexed.pairs import TntStore
from headrace.stores.store import Store
from headrace.testing.stores import Documents, StoreContract

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed_dialects"
IDX = (GOLDEN / "tnt-megatron.idx").read_bytes()
BIN = (GOLDEN / "tnt-megatron.bin").read_bytes()


def write_tnt(prefix: Path, documents: Documents, *, code: int, dtype: str, add: int, has_documents: bool) -> Path:
    sizes = [len(document) for document in documents]
    bounds = range(len(sizes) + 1)
    ends = np.cumsum([0, *sizes])
    idx = struct.pack("<8sQQQQQ", b"TNTIDX", 1, code, np.dtype(dtype).itemsize, len(sizes), len(sizes))
    idx += struct.pack("<Q", len(bounds)) if has_documents else b""
    for numbers in (bounds, ends, sizes, bounds if has_documents else []):
        idx += np.array(numbers, "<i8").tobytes()
    data = b"".join((document + np.dtype(dtype).type(add)).tobytes() for document in documents)
    prefix.with_name(prefix.name + ".idx").write_bytes(idx)
    prefix.with_name(prefix.name + ".bin").write_bytes(data)
    return prefix


class TestFairseq(StoreContract):
    """Ids + 1 are stored."""

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_tnt(folder / "shard", documents, code=8, dtype=self.dtype, add=1, has_documents=False)

    def open(self, path: Path) -> Store:
        return stores.open(path, dialect="fairseq")


class TestMegatronRead(StoreContract):
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_tnt(folder / "shard", documents, code=4, dtype=self.dtype, add=0, has_documents=True)

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden(reader: str) -> None:
    store = stores.open(GOLDEN / "tnt-megatron", reader=reader)
    assert isinstance(store, TntStore)
    assert store.format == "tntidx"
    assert [store.document(number).tolist() for number in range(4)] == [[1, 2, 3, 4, 5], [], [], [6]]
    assert store.sequence_lengths.tolist() == [3, 2, 0, 1]
    assert list(store.check(vocab_size=7)) == []
    sequences = [[1, 2, 3], [4, 5], [], [6]]
    other = stores.open(GOLDEN / "tnt-megatron", reader=reader, documents="sequences")
    assert [other.document(number).tolist() for number in range(4)] == sequences
    store = stores.open(GOLDEN / "tnt-fairseq", reader=reader, dialect="fairseq")
    assert [store.document(number).tolist() for number in range(4)] == sequences
    assert list(store.check(vocab_size=7)) == []
    assert [problem.place for problem in store.check(vocab_size=6)] == ["document 3, value 5 of the stream"]
    assert store.stream_view() is None  # what lies there is not the tokens
    raw = stores.open(GOLDEN / "tnt-fairseq", reader=reader, dialect="megatron")
    assert raw.fetch(0, 6).tolist() == [2, 3, 4, 5, 6, 7]
    assert raw.fingerprint != store.fingerprint


def test_who_wrote_it_has_to_be_said_where_nothing_tells() -> None:
    with pytest.raises(StoreError, match=r"1.*dialect='fairseq'.*dialect='megatron'"):
        stores.open(GOLDEN / "tnt-fairseq")
    with pytest.raises(StoreError, match="dialect='fairseq'"):
        stores.open(GOLDEN / "tnt-megatron", dialect="fairseq")


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_a_stored_0_is_no_id_plus_1(tmp_path: Path, reader: str) -> None:
    write_tnt(tmp_path / "x", [np.array([0, 5], "u2")], code=8, dtype="uint16", add=0, has_documents=False)
    store = stores.open(tmp_path / "x", dialect="fairseq", reader=reader)
    for read in (lambda: store.document(0), lambda: store.fetch(0, 2), lambda: store.gather(np.array([0]), 2)):
        with pytest.raises(StoreError, match=r"x\.bin.*0.*dialect='megatron'"):
            read()
    [problem] = store.check(vocab_size=10)
    assert "holds the number 0" in problem.message


def put(at: int, value: int, idx: bytes = IDX) -> bytes:
    return idx[:at] + struct.pack("<q", value) + idx[at + 8 :]


CASES: dict[str, tuple[bytes, str]] = {
    "version 2": (put(8, 2), "8.*2.*cached"),
    "code 0": (put(16, 0), "16.*0.*uint8"),
    "code 11": (put(16, 11), "11"),
    "an element of another size": (put(24, 2), "2.*int32.*4"),
    "float numbers of half the size": (put(16, 6), "4.*float64.*8"),
    "items of two dimensions": (put(40, 8), "8.*4.*dimensions"),
    "half a header": (IDX[:40], "40.*48"),
    "cut short": (IDX[:-1], "short.*207"),
    "too long": (IDX + b"!", "209"),
    "more items than bytes": (put(32, 2**60, put(40, 2**60)), "short"),
    "documents that end early": (put(200, 3), "0.*4.*0.*3.*documents='sequences'"),
    "offsets that end elsewhere": (put(128, 7), "128.*28.*24"),
    "a last item behind the file": (put(120, 6), "28.*24"),
    "an offset that overflows": (put(120, 2**62), "beyond"),
    "a negative offset": (put(120, -3), "negative"),
}


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path: Path, name: str, reader: str) -> None:
    idx, message = CASES[name]
    (tmp_path / "x.idx").write_bytes(idx)
    (tmp_path / "x.bin").write_bytes(BIN)
    with pytest.raises(StoreError, match=message) as caught:
        stores.open(tmp_path / "x", reader=reader)
    assert str(tmp_path / "x") in str(caught.value)


def test_check_finds_items_of_several_dimensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.indexed.pairs.CHUNK", 2)
    (tmp_path / "x.bin").write_bytes(BIN)
    (tmp_path / "x.idx").write_bytes(put(56 + 8 * 3, 2))
    assert [problem.place for problem in stores.open(tmp_path / "x").check()] == ["sequence 3"]
