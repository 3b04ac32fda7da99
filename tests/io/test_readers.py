from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, strategies as st

from headrace.errors import ConfigError, StoreError
from headrace.io import (
    BLOCK_BYTES,
    FileHasher,
    FilePool,
    FileSum,
    MmapReader,
    PreadReader,
    Reader,
    file_sum,
    hash_bytes,
    reader,
)
from headrace.testing.readers import ReaderContract


class TestMmapReader(ReaderContract):
    def make(self, pool: FilePool) -> Reader:
        return MmapReader(pool=pool)


class TestPreadReader(ReaderContract):
    def make(self, pool: FilePool) -> Reader:
        return PreadReader(pool=pool)

    def test_a_file_cut_short_after_opening(self, reader: Reader, path: str) -> None:
        reader.size(path)
        os.truncate(path, 4000)
        with pytest.raises(StoreError, match=r"3990.*20.*10"):
            reader.read_ranges(path, np.array([0, 3990]), np.array([10, 20]))

    def test_short_reads_are_continued(self, reader: Reader, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: whole(fd, [buffers[0][:7]], offset))
        found = reader.read_ranges(path, np.array([3, 100]), np.array([90, 20]))
        content = Path(path).read_bytes()
        assert found.tobytes() == content[3:93] + content[100:120]

    def test_neighbours_are_read_at_once(self, reader: Reader, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reads = []
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda *args: reads.append(args[2]) or whole(*args))
        reader.read_ranges(path, np.array([0, 10, 20, 50, 55]), np.array([10, 10, 20, 5, 5]))
        assert reads == [0, 50]


def test_by_name() -> None:
    assert type(reader("mmap")) is MmapReader
    assert type(reader("pread")) is PreadReader
    own = PreadReader()
    assert reader(own) is own
    with pytest.raises(ConfigError, match=r"'map'.*'mmap'.*'pread'"):
        reader("map")


def test_a_pass_copies_where_reads_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    mapped = MmapReader()
    assert mapped.size(str(path)) == 10
    passing = mapped.for_pass()
    assert type(passing) is PreadReader
    assert passing.for_pass() is passing
    assert bytes(passing.read_ranges(str(path), np.array([2]), np.array([3]))) == b"234"
    path.write_bytes(b"01234567890")
    with pytest.raises(StoreError, match="changed"):
        mapped.for_pass().size(str(path))


def test_the_least_recently_used_is_let_go() -> None:
    pool = FilePool(2)
    for key in "ab":
        pool.make_room()
        pool.put(key, key.upper())
    assert pool.get("a") == "A"
    pool.make_room()
    pool.put("c", "C")
    assert [pool.get(key) for key in "abc"] == ["A", None, "C"]
    pool.drop("a")
    pool.drop("a")
    assert len(pool) == 1


def plain_sum(data: bytes, block_bytes: int, name: str = "x") -> FileSum:
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    return FileSum(
        name=name,
        size=len(data),
        xxh3_128=xxhash.xxh3_128_hexdigest(data),
        block_bytes=block_bytes,
        xxh3_64=tuple(map(xxhash.xxh3_64_hexdigest, blocks)),
    )


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(1, 16))
def test_pieces_of_any_size(pieces: list[bytes], block_bytes: int) -> None:
    hasher = FileHasher(block_bytes=block_bytes)
    for piece in pieces:
        hasher.update(piece)
        hasher.sum("x")  # asking in between changes nothing
    assert hasher.sum("x") == plain_sum(b"".join(pieces), block_bytes)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES - 1])
def test_a_file(tmp_path: Path, size: int) -> None:
    data = (b"0123456789abcdefghijklm" * (size // 23 + 1))[:size]
    (tmp_path / "f.bin").write_bytes(data)
    assert file_sum(tmp_path / "f.bin") == plain_sum(data, BLOCK_BYTES, "f.bin")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing"):
        file_sum(tmp_path / "nothing")


def test_hash_bytes_is_xxh3_128() -> None:
    # The published test vector of the empty input.
    assert hash_bytes(b"") == "99aa06d3014798d86001c324468d497f"
