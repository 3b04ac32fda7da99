"""Blocks of whole lines: each line once, wherever the spans and the blocks are cut."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.prepare.lines import LongLineError, read_blocks

contents = st.lists(st.sampled_from([b"\n", b"a", b"bb", b"\r\n", b"c" * 9]), max_size=30).map(b"".join)


@given(content=contents, cuts=st.lists(st.integers(0, 100), max_size=6), block_bytes=st.integers(1, 12))
def test_each_line_once(content: bytes, cuts: list[int], block_bytes: int) -> None:
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    reached = 0
    for begin, end in itertools.pairwise(edges):
        blocks = list(read_blocks(io.BytesIO(content), begin, end, block_bytes=block_bytes, max_line_bytes=1000))
        for offset, data in blocks:
            assert offset == reached
            assert data == content[offset : offset + len(data)]
            assert data.endswith(b"\n") or offset + len(data) == len(content)
            # Only lines that begin in the span: one that begins behind it is the next span's.
            assert all(begin <= start < end for start in _line_begins(content) if offset <= start < offset + len(data))
            reached += len(data)
    assert reached == len(content)


def _line_begins(content: bytes) -> list[int]:
    begins = [0, *(at + 1 for at, byte in enumerate(content) if byte == 10)]
    return [begin for begin in begins if begin < len(content)]


def test_a_long_line_is_read_in_linear_time() -> None:
    content = b"x" * 1_000_000 + b"\n" + b"y"

    class Counting(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            return super().read(size)

    file = Counting(content)
    blocks = list(read_blocks(file, 0, 10, block_bytes=16, max_line_bytes=2_000_000))
    assert blocks == [(0, content[:-1])]
    assert file.reads < 25


def test_a_line_over_the_limit_is_refused() -> None:
    content = b"a\n" + b"x" * 5000
    with pytest.raises(LongLineError, match="more than 1,000 bytes begins at byte 2") as caught:
        list(read_blocks(io.BytesIO(content), 0, len(content), block_bytes=64, max_line_bytes=1000))
    assert caught.value.begin == 2


def test_the_limit_allows_a_line_of_just_that_length() -> None:
    content = b"x" * 999 + b"\n"
    assert list(read_blocks(io.BytesIO(content), 0, 1000, block_bytes=64, max_line_bytes=1000)) == [(0, content)]
