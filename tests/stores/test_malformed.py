"""Files that are not what they say: a StoreError, never another exception or a hang; and what `check` says."""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import StoreError
from headrace.io import FileHasher, checksum
from headrace.stores import IndexedStore
from headrace.testing.damage import other_byte
from headrace.testing.stores import numbered_documents
from token_shards import vouch_for, write_raw, write_shard

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed"
IDX = (GOLDEN / "uint16.idx").read_bytes()
BIN = (GOLDEN / "uint16.bin").read_bytes()


def put(at: int, code: str, value: int) -> bytes:
    packed = struct.pack("<" + code, value)
    return IDX[:at] + packed + IDX[at + len(packed) :]


def header(sequences: int, bounds: int) -> bytes:
    return IDX[:18] + struct.pack("<QQ", sequences, bounds)


CASES = {
    "an empty .idx": (b"", BIN, "b''"),
    "a bad magic": (b"X" + IDX[1:], BIN, "b'XMIDIDX"),
    "fairseq's older layout": (b"TNTIDX\0\0" + IDX[8:], BIN, "cached"),
    "a .bin instead": (BIN, IDX, "begins"),
    "version 2": (put(9, "Q", 2), BIN, r"version.*2.*\.idx"),
    "code 0": (put(17, "B", 0), BIN, "17.*0.*uint8"),
    "code 9": (put(17, "B", 9), BIN, "code.*9"),
    "code 255": (put(17, "B", 255), BIN, "code.*255"),
    "only a header": (IDX[:34], BIN, "short.*5.*6.*142.*34"),
    "half a header": (IDX[:30], BIN, "short.*30.*34"),
    "an .idx without its last byte": (IDX[:-1], BIN, "short.*142.*141"),
    "no document indices": (put(26, "Q", 0), BIN, "26.*indices"),
    "documents lost in a merge": (header(5, 1) + IDX[34:94] + bytes(8), BIN, "0.*5.*0.*0.*1"),
    "indices that end early": (put(134, "q", 4), BIN, "0.*5.*0.*4"),
    "indices that end late": (put(134, "q", 6), BIN, "0.*5.*0.*6"),
    "indices that begin late": (put(94, "q", 1), BIN, "0.*5.*1.*5"),
    "a .bin cut short": (IDX, BIN[:-1], "sequence.*4.*18.*17"),
    "an empty .bin": (IDX, b"", "18.*0"),
    "a first pointer before the file": (put(54, "q", -2), BIN, "negative.*sequence.*0.*-2"),
    "a last pointer before the file": (put(86, "q", -2), BIN, "negative.*sequence.*4.*-2"),
    "a last size below 0": (put(50, "i", -1), BIN, "negative.*-1"),
    "a last pointer at the end of numbers": (put(86, "q", 2**63 - 1), BIN, "9223372036854775811"),
    "2^64 - 1 sequences": (header(2**64 - 1, 6) + IDX[34:], BIN, "18446744073709551615"),
    "sequences whose bytes overflow": (header(2**60, 6) + IDX[34:], BIN, "short"),
    "2^64 - 1 document indices": (header(5, 2**64 - 1) + IDX[34:], BIN, "short"),
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


@pytest.mark.parametrize(("at", "kind", "value"), [(70, "q", -2), (42, "i", -1)], ids=["pointer", "size"])
def test_check_names_a_negative_number_in_the_middle(tmp_path: Path, at: int, kind: str, value: int) -> None:
    (tmp_path / "x.idx").write_bytes(put(at, kind, value))
    (tmp_path / "x.bin").write_bytes(BIN)
    found = [f"{problem.place}: {problem.message}" for problem in stores.open(tmp_path / "x").check()]
    assert any(re.search(r"sequence 2.*do not lie in the \.bin of 18 bytes", problem) for problem in found), found


def exercise(prefix: Path, reader: str, **options: Any) -> None:
    """Use everything; a StoreError is the one right answer to bad bytes."""
    try:
        store = stores.open(prefix, reader=reader, **options)
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


@pytest.mark.parametrize(
    ("name", "reader", "options"),
    [
        ("indexed/uint16", "mmap", {}),
        ("indexed/uint16", "pread", {}),
        ("indexed_dialects/tnt-megatron", "mmap", {}),
        ("indexed_dialects/tnt-fairseq", "mmap", {"dialect": "fairseq"}),
    ],
)
def test_every_byte_of_the_index_changed(tmp_path: Path, name: str, reader: str, options: Any) -> None:
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").write_bytes((GOLDEN.parent / f"{name}{suffix}").read_bytes())
    for at, byte in enumerate((tmp_path / "x.idx").read_bytes()):
        values = (0, 1, 0x7F, 0x80, 0xFF, byte ^ 1)
        for value in values[at % cases(3, 1) :: cases(3, 1)]:
            with other_byte(tmp_path / "x.idx", at, value):
                exercise(tmp_path / "x", reader, **options)


small = st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1, 2**62, 2**31, -(2**31)])


@settings(max_examples=cases(30, 300), deadline=None)
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


@settings(max_examples=cases(20, 200), deadline=None)
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
    with pytest.raises(StoreError, match=r"1.*sequence.*2"):
        store.document(1)
    write_raw(tmp_path / "z", "uint16", [2, 2, 2], [0, 11, 8], [0, 1, 2, 3], bytes(12))
    store = stores.open(tmp_path / "z")
    with pytest.raises(StoreError, match=r"document.*1.*11"):
        store.document(1)
    with pytest.raises(StoreError, match=r"11.*wanted.*4"):
        store.gather(np.array([0]), 6)


def check(prefix: Path, **options: int) -> list[str]:
    """The problems, without the folder in their paths."""
    return [str(problem).replace(f"{prefix.parent}/", "") for problem in stores.open(prefix).check(**options)]


def test_arrays(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_raw(prefix, "uint16", [2, 2, -1, 2, 2], [0, -4, 8, 99, 8], [0, 2, 1, 9, 5], bytes(12))
    assert check(prefix) == [
        "x.idx: document 1: goes from sequence 2 to 1; document indices may not decrease and must be within 0 to 5",
        "x.idx: document 2: goes from sequence 1 to 9; document indices may not decrease and must be within 0 to 5",
        "x.idx: document 3: goes from sequence 9 to 5; document indices may not decrease and must be within 0 to 5",
        *[line for line in check(prefix) if "tokens from byte" in line],
    ]
    write_raw(prefix, "uint16", [2, 2, -1, 2, 2], [0, -4, 8, 99, 8], [0, 0, 1, 3, 5], bytes(12))
    assert check(prefix) == [
        "x.idx: document 2, sequence 1: 2 tokens from byte -4 on do not lie in the .bin of 12 bytes",
        "x.idx: document 2, sequence 2: -1 tokens from byte 8 on do not lie in the .bin of 12 bytes",
        "x.idx: document 3, sequence 3: 2 tokens from byte 99 on do not lie in the .bin of 12 bytes",
    ]


def test_many_faults_are_counted(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_raw(prefix, "uint8", [1] * 200, [0] + [500] * 198 + [0], range(201), bytes(1))
    problems = check(prefix)
    assert len(problems) == 21
    assert problems[-1] == "x.idx: 178 more sequences at fault"


def test_bytes_that_belong_to_nothing(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_shard(prefix, numbered_documents([3], "uint16"))
    for suffix, extra in ((".bin", 5), (".idx", 3)):
        with (tmp_path / f"x{suffix}").open("ab") as file:
            file.write(bytes(extra))
    assert check(prefix) == [
        "x.idx: byte 62: 3 unused bytes after the document indices",
        "x.bin: bytes 6 to 11: 5 bytes outside of any document",
    ]
    # They are tolerated, as Megatron does.
    assert stores.open(prefix).fetch(0, 3).tolist() == [1, 2, 3]


def test_gaps_of_a_filtered_index(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_raw(prefix, "uint16", [1, 3, 2, 0], [16, 2, 4, 0], [0, 1, 2, 3, 4], np.arange(11, dtype="<u2").tobytes())
    assert check(prefix) == [
        "x.bin: bytes 0 to 2: 2 bytes outside of any document",
        "x.bin: bytes 8 to 16: 8 bytes outside of any document",
        "x.bin: bytes 18 to 22: 4 bytes outside of any document",
    ]
    store = stores.open(prefix)
    assert store.fetch(0, 6).tolist() == [8, 1, 2, 3, 2, 3]
    assert store.gather(np.array([0, 2]), 3).tolist() == [[8, 1, 2], [2, 3, 2]]


def test_numbers_that_are_no_ids() -> None:
    golden = Path(__file__).parents[1] / "golden" / "indexed" / "float32"
    assert check(golden) == []
    assert check(golden, vocab_size=9) == ["float32.bin: float32 numbers are not token ids"]


def test_block_of_a_changed_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "x"
    write_shard(prefix, numbered_documents([4, 4, 4, 0, 4], "uint16"))
    monkeypatch.setattr(FileHasher.__init__, "__kwdefaults__", {"block_bytes": 16})
    monkeypatch.setattr(checksum.file_sum, "__kwdefaults__", {"block_bytes": 16})
    vouch_for(tmp_path, [IndexedStore(prefix)])
    assert check(prefix) == []
    data = bytearray((tmp_path / "x.bin").read_bytes())
    data[19] ^= 4
    (tmp_path / "x.bin").write_bytes(data)
    (problem,) = check(prefix)
    assert problem.startswith("x.bin: bytes 16 to 32: the bytes were changed: xxh3_64 is ")
    assert problem.endswith(" (in documents 2 to 4)")
    data[19] ^= 4
    (tmp_path / "x.bin").write_bytes(data)
    index = bytearray((tmp_path / "x.idx").read_bytes())
    index[67] ^= 2  # 512 in pointer 2, which was 16
    (tmp_path / "x.idx").write_bytes(index)
    problems = check(prefix)
    assert problems[0].startswith("x.idx: document 2, sequence 2: 4 tokens from byte 528 on do")
    assert problems[1].startswith("x.idx: bytes 64 to 80: the bytes were changed")
    assert problems[1].endswith(" (pointers of sequences 1 to 3)")


def test_a_listed_shard_of_another_size(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_shard(prefix, numbered_documents([4], "uint16"))
    vouch_for(tmp_path, [IndexedStore(prefix)])
    store = stores.open(prefix)
    with (tmp_path / "x.bin").open("ab") as file:
        file.write(b"12")
    # The open store knows the old size; check looks anew.
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in store.check()] == [
        "x.bin: the manifest says 8 bytes, the file has 10",
        "x.bin: bytes 8 to 10: 2 bytes outside of any document",
    ]


def test_a_manifest_that_counts_otherwise(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    write_raw(prefix, "uint16", [1, 1], [2, 0], [0, 1, 2], bytes(4))
    vouch_for(tmp_path, [IndexedStore(prefix)], contiguous=True)
    assert check(prefix) == ["x: contiguous: the manifest says True, the shard has False"]
