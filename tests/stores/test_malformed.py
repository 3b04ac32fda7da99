"""Files that are not what they say: always a StoreError that tells, never another exception, a hang or a crash."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import StoreError
from headrace.testing.damage import other_byte
from headrace.testing.shards import write_raw

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed"
IDX = (GOLDEN / "uint16.idx").read_bytes()
BIN = (GOLDEN / "uint16.bin").read_bytes()


def put(at: int, code: str, value: int) -> bytes:
    packed = struct.pack("<" + code, value)
    return IDX[:at] + packed + IDX[at + len(packed) :]


def header(sequences: int, bounds: int) -> bytes:
    return IDX[:18] + struct.pack("<QQ", sequences, bounds)


CASES = {
    "an empty .idx": (b"", BIN, r"begins with the 9 bytes"),
    "a bad magic": (b"X" + IDX[1:], BIN, r"begins with the 9 bytes.*found b'XMIDIDX"),
    "fairseq's older layout": (b"TNTIDX\0\0" + IDX[8:], BIN, r"cached"),
    "a .bin instead": (BIN, IDX, r"begins with the 9 bytes"),
    "version 2": (put(9, "Q", 2), BIN, r"version 2 of the \.idx is unknown"),
    "code 0": (put(17, "B", 0), BIN, r"byte 17: dtype code 0 is unknown; the codes are 1 uint8"),
    "code 9": (put(17, "B", 9), BIN, r"dtype code 9 is unknown"),
    "code 255": (put(17, "B", 255), BIN, r"dtype code 255 is unknown"),
    "only a header": (IDX[:34], BIN, r"cut short: 5 sequences and 6 document indices take 142 bytes.* has 34"),
    "half a header": (IDX[:30], BIN, r"cut short: it has 30 bytes, but the header alone takes 34"),
    "an .idx without its last byte": (IDX[:-1], BIN, r"cut short.*142 bytes.* has 141"),
    "no document indices": (put(26, "Q", 0), BIN, r"byte 26: there are no document indices"),
    "documents lost in a merge": (
        header(5, 1) + IDX[34:94] + bytes(8),
        BIN,
        r"go from 0 to 5.*found 0 to 0 in 1 of them; ",
    ),
    "indices that end early": (put(134, "q", 4), BIN, r"go from 0 to 5.*found 0 to 4"),
    "indices that end late": (put(134, "q", 6), BIN, r"go from 0 to 5.*found 0 to 6"),
    "indices that begin late": (put(94, "q", 1), BIN, r"found 1 to 5"),
    "a .bin cut short": (IDX, BIN[:-1], r"sequence 4, the last, ends at byte 18 of the \.bin, which has 17 bytes"),
    "an empty .bin": (IDX, b"", r"ends at byte 18 of the \.bin, which has 0 bytes"),
    "a first pointer before the file": (put(54, "q", -2), BIN, r"negative.*sequence 0 begins at byte -2"),
    "a last pointer before the file": (put(86, "q", -2), BIN, r"negative.*sequence 4 begins at byte -2"),
    "a last size below 0": (put(50, "i", -1), BIN, r"negative.* has -1 tokens"),
    "a last pointer at the end of numbers": (put(86, "q", 2**63 - 1), BIN, r"ends at byte 9223372036854775811"),
    "2^64 - 1 sequences": (header(2**64 - 1, 6) + IDX[34:], BIN, r"cut short: 18446744073709551615 sequences"),
    "sequences whose bytes overflow": (header(2**60, 6) + IDX[34:], BIN, r"cut short"),
    "2^64 - 1 document indices": (header(5, 2**64 - 1) + IDX[34:], BIN, r"cut short"),
}


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", CASES)
def test_refused_at_open(tmp_path: Path, name: str, reader: str) -> None:
    idx, data, message = CASES[name]
    (tmp_path / "x.idx").write_bytes(idx)
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(StoreError, match=message) as caught:
        stores.open(tmp_path / "x", reader=reader)
    assert str(tmp_path / "x") in str(caught.value)


def exercise(prefix: Path, reader: str) -> None:
    """Use everything; a StoreError is the one right answer to bad bytes."""
    try:
        store = stores.open(prefix, reader=reader)
    except StoreError:
        return
    list(store.check(vocab_size=100))
    for number in range(min(store.num_documents, 10)):
        with contextlib.suppress(StoreError):
            store.document(number)
    with contextlib.suppress(StoreError):
        tokens = store.num_tokens
        begins = np.arange(min(tokens, 5))
        store.lengths  # noqa: B018
        store.find_documents(begins)
        store.document_begins(np.array([0, store.num_documents]))
        store.gather(begins, min(1, tokens))
        store.gather(np.array([0]), tokens)
        store.fetch(0, tokens)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_every_byte_of_the_index_changed(tmp_path: Path, reader: str) -> None:
    (tmp_path / "x.bin").write_bytes(BIN)
    (tmp_path / "x.idx").write_bytes(IDX)
    for at in range(len(IDX)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, IDX[at] ^ 1):
            with other_byte(tmp_path / "x.idx", at, value):
                exercise(tmp_path / "x", reader)


small = st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1, 2**62, 2**31, -(2**31)])


@settings(max_examples=cases(60, 300), deadline=None)
@given(
    sizes=st.lists(st.integers(-2, 9) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=6),
    pointers=st.lists(small, min_size=6, max_size=6),
    bounds=st.lists(small, max_size=5),
    size=st.integers(0, 20),
)
@example(sizes=[3, 2**31 - 1, 3], pointers=[0, 2**62, 0, 0, 0, 0], bounds=[1, 2], size=20)
def test_any_arrays(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], pointers: list[int], bounds: list[int], size: int
) -> None:
    prefix = tmp_path_factory.getbasetemp() / "arrays"
    write_raw(prefix, "uint16", sizes, pointers[: len(sizes)], [0, *bounds, len(sizes)], bytes(size))
    for reader in ("mmap", "pread"):
        exercise(prefix, reader)


@settings(max_examples=cases(40, 200), deadline=None)
@given(
    idx=st.binary(max_size=200), fields=st.lists(st.integers(0, 40), min_size=2, max_size=2), code=st.integers(0, 12)
)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, idx: bytes, fields: list[int], code: int) -> None:
    prefix = tmp_path_factory.getbasetemp() / "bytes"
    prefix.with_suffix(".bin").write_bytes(bytes(64))
    for content in (idx, IDX[:17] + bytes([code]) + struct.pack("<QQ", *fields) + idx):
        prefix.with_suffix(".idx").write_bytes(content)
        exercise(prefix, "mmap")


def test_a_fault_between_the_ends_is_found_in_use(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2, 2, 2], [0, 4, 8], [0, 2, 1, 3], bytes(12))
    store = stores.open(tmp_path / "x")
    assert store.document(0).tolist() == [0] * 4
    with pytest.raises(StoreError, match=r"document 1 goes from sequence 2 to 1 of 3"):
        store.document(1)
    with pytest.raises(StoreError, match=r"document 1 begins with sequence 2 and ends before sequence 1"):
        store.find_documents(np.array([0]))
    write_raw(tmp_path / "y", "uint16", [2, -1, 2], [0, 4, 8], [0, 1, 2, 3], bytes(12))
    with pytest.raises(StoreError, match=r"sequence 1 has -1 tokens"):
        stores.open(tmp_path / "y").num_tokens  # noqa: B018
    write_raw(tmp_path / "z", "uint16", [2, 2, 2], [0, 11, 8], [0, 1, 2, 3], bytes(12))
    store = stores.open(tmp_path / "z")
    with pytest.raises(StoreError, match=r"document 1 lies at bytes 11 to 15; the file has 12 bytes"):
        store.document(1)
    with pytest.raises(StoreError, match=r"byte 11: wanted 4 bytes, found 1"):
        store.gather(np.array([0]), 6)
