"""What `check` says, and where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
from headrace.io import FileHasher, checksum
from headrace.stores import IndexedStore, Problem
from headrace.testing.shards import vouch_for, write_raw, write_shard
from headrace.testing.stores import numbered_documents


def check(prefix: Path, **options: int) -> list[str]:
    """The problems, without the folder in their paths."""
    return [str(problem).replace(f"{prefix.parent}/", "") for problem in stores.open(prefix).check(**options)]


def test_a_problem_is_one_line() -> None:
    assert str(Problem(path="a.bin", place="byte 3", message="bad")) == "a.bin: byte 3: bad"
    assert str(Problem(path="a.bin", place="", message="bad")) == "a.bin: bad"


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


def test_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.checking._VALUES_AT_ONCE", 4)
    prefix = tmp_path / "x"
    write_shard(prefix, [np.array([0, 1]), np.array([5, 9, 9, 9, -2]), np.zeros(0, int), np.array([10])], "int32")
    assert check(prefix, vocab_size=9) == [
        "x.bin: document 1, value 3 of the stream: id 9 is outside the vocabulary, 0 to 8",
        "x.bin: document 3, value 7 of the stream: id 10 is outside the vocabulary, 0 to 8",
    ]
    assert check(prefix, vocab_size=11) == [
        "x.bin: document 1, value 6 of the stream: id -2 is outside the vocabulary, 0 to 10"
    ]


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
