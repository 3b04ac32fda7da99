"""The older layout of fairseq and of Megatron-LM, ``TNTIDX``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import StoreError
from headrace.stores.indexed.pairs import TntStore
from headrace.stores.store import Store
from headrace.testing.damage import other_byte
from headrace.testing.stores import Documents, StoreContract

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed_dialects"
IDX = (GOLDEN / "tnt-megatron.idx").read_bytes()
BIN = (GOLDEN / "tnt-megatron.bin").read_bytes()
FAIRSEQ_IDX = (GOLDEN / "tnt-fairseq.idx").read_bytes()


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
    with pytest.raises(StoreError, match=r"ids \+ 1.*dialect='fairseq' or dialect='megatron'"):
        stores.open(GOLDEN / "tnt-fairseq")
    with pytest.raises(StoreError, match="dialect='fairseq' was requested, but this index has documents"):
        stores.open(GOLDEN / "tnt-megatron", dialect="fairseq")


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_a_stored_0_is_no_id_plus_1(tmp_path: Path, reader: str) -> None:
    write_tnt(tmp_path / "x", [np.array([0, 5], "u2")], code=8, dtype="uint16", add=0, has_documents=False)
    store = stores.open(tmp_path / "x", dialect="fairseq", reader=reader)
    for read in (lambda: store.document(0), lambda: store.fetch(0, 2), lambda: store.gather(np.array([0]), 2)):
        with pytest.raises(StoreError, match=r"x\.bin: holds the number 0.*dialect='megatron'"):
            read()
    [problem] = store.check(vocab_size=10)
    assert "holds the number 0" in problem.message


def put(at: int, value: int, idx: bytes = IDX) -> bytes:
    return idx[:at] + struct.pack("<q", value) + idx[at + 8 :]


CASES: dict[str, tuple[bytes, str]] = {
    "version 2": (put(8, 2), r"byte 8: version 2 of .*cached"),
    "code 0": (put(16, 0), r"byte 16: dtype code 0 .*the codes are 1 uint8"),
    "code 11": (put(16, 11), r"dtype code 11"),
    "an element of another size": (put(24, 2), r"an element has 2 bytes, but int32 has 4"),
    "float numbers of half the size": (put(16, 6), r"an element has 4 bytes, but float64 has 8; such files"),
    "items of two dimensions": (put(40, 8), r"8 sizes for 4 items: items of several dimensions"),
    "half a header": (IDX[:40], r"cut short: it has 40 bytes, but the header of .* takes 48"),
    "cut short": (IDX[:-1], r"cut short.*the file has 207"),
    "too long": (IDX + b"!", r"the file has 209"),
    "more items than bytes": (put(32, 2**60, put(40, 2**60)), r"cut short"),
    "documents that end early": (put(200, 3), r"go from 0 to 4.*found 0 to 3.*documents='sequences'"),
    "offsets that end elsewhere": (
        put(128, 7),
        r"byte 128: .*at byte 28 of the \.bin, but the last item ends at byte 24",
    ),
    "a last item behind the file": (put(120, 6), r"ends at byte 28 of the \.bin, which has 24 bytes"),
    "an offset that overflows": (put(120, 2**62), r"is beyond any file"),
    "a negative offset": (put(120, -3), r"a pointer or size is negative"),
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
    assert [(problem.place, problem.message[:37]) for problem in stores.open(tmp_path / "x").check()] == [
        ("sequence 3", "begins at dimension 2 instead of 3; i")
    ]


@pytest.mark.parametrize("idx", [IDX, FAIRSEQ_IDX])
def test_every_byte_changed(tmp_path: Path, idx: bytes) -> None:
    """A StoreError is the one right answer to bad bytes."""
    dialect: Any = None if idx is IDX else "fairseq"
    (tmp_path / "x.bin").write_bytes(BIN)
    (tmp_path / "x.idx").write_bytes(idx)
    refused = 0
    for at in range(len(idx)):
        for value in (0, 0x7F, 0xFF, idx[at] ^ 1):
            with other_byte(tmp_path / "x.idx", at, value):
                try:
                    store = stores.open(tmp_path / "x", dialect=dialect)
                    list(store.check(vocab_size=100))
                    for number in range(min(4, len(store))):
                        store.document(number)
                    store.find_documents(np.arange(store.num_tokens))
                except StoreError:
                    refused += 1
    assert refused > 300
