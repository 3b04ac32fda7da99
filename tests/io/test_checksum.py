from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreError
from headrace.io import BLOCK_BYTES, FileHasher, FileSum, file_sum, hash_bytes, hash_file


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
    with pytest.raises(StoreError, match="nothing: cannot be read: No such file"):
        file_sum(tmp_path / "nothing")


def test_hash_bytes_is_xxh3_128() -> None:
    # The published test vector of the empty input.
    assert hash_bytes(b"") == "99aa06d3014798d86001c324468d497f"


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(1, 16))
def test_a_hasher_goes_on_behind_the_first_bytes_of_a_file(data: bytes, size: int, block_bytes: int) -> None:
    size = min(size, len(data))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.io.checksum._READ_BYTES", 7)
        path = Path(folder) / "f"
        path.write_bytes(data)
        hasher = hash_file(path, size=size, block_bytes=block_bytes)
        assert hasher.size == size
        hasher.update(data[size:])
        assert hasher.sum("x") == plain_sum(data, block_bytes)
        with pytest.raises(
            StoreError, match=rf"f: the first {len(data) + 1} bytes are needed, but the file has only {len(data)}$"
        ):
            hash_file(path, size=len(data) + 1)
