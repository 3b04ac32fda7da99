"""Blocks of whole lines: each line once, wherever the spans and the blocks are cut."""

from __future__ import annotations

import io
import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.sources.streams import HEAD_OF_LINE_BYTES, Lines, read_blocks, split_lines

contents = st.lists(st.sampled_from([b"\n", b"a", b"bb", b"\r\n", b"c" * 9]), max_size=30).map(b"".join)


@given(content=contents, cuts=st.lists(st.integers(0, 100), max_size=6), block_bytes=st.integers(1, 12))
def test_each_line_once(content: bytes, cuts: list[int], block_bytes: int) -> None:
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    reached = 0
    for begin, end in itertools.pairwise(edges):
        blocks = list(read_blocks(io.BytesIO(content), begin, end, block_bytes=block_bytes, max_line_bytes=1000))
        for offset, data, size, is_too_long in blocks:
            assert (size, is_too_long) == (len(data), False)
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
    assert blocks == [Lines(0, content[:-1], 1_000_001)]
    assert file.reads < 25


@given(
    lengths=st.lists(st.integers(0, 70), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    block_bytes=st.integers(1, 30),
    ends_open=st.booleans(),
)
def test_lines_over_the_limit_are_told_apart_exactly(
    lengths: list[int], cuts: list[int], block_bytes: int, ends_open: bool
) -> None:
    lines = [bytes([97 + number % 26]) * length + b"\n" for number, length in enumerate(lengths)]
    content = b"".join(lines)
    if ends_open and lines:
        lines[-1] = lines[-1][:-1]
        content = content[:-1]
    limit = 30
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    found = []
    reached = 0
    for begin, end in itertools.pairwise(edges):
        for block in read_blocks(io.BytesIO(content), begin, end, block_bytes=block_bytes, max_line_bytes=limit):
            assert block.offset == reached
            reached += block.size
            if block.is_too_long:
                found.append((block.data[:1], block.size))
                assert content[block.offset :].startswith(block.data)
            else:
                assert block.data == content[block.offset : reached]
    assert reached == len(content)
    assert found == [(line[:1], len(line)) for line in lines if len(line) > limit]


def test_of_a_line_over_the_limit_the_beginning_is_kept() -> None:
    content = b"a\n" + b"x" * 5000 + b"\nb\n"
    blocks = list(read_blocks(io.BytesIO(content), 0, len(content), block_bytes=64, max_line_bytes=1000))
    assert blocks == [
        Lines(0, b"a\n", 2),
        Lines(2, b"x" * HEAD_OF_LINE_BYTES, 5001, is_too_long=True),
        Lines(5003, b"b\n", 2),
    ]


def test_the_limit_allows_a_line_of_just_that_length() -> None:
    for content in (b"x" * 999 + b"\n", b"x" * 1000):
        blocks = list(read_blocks(io.BytesIO(content), 0, 1000, block_bytes=64, max_line_bytes=1000))
        assert blocks == [Lines(0, content, 1000)]


def test_split_lines() -> None:
    lines, begins = split_lines(Lines(0, b"\xef\xbb\xbfa\n\nbc", 8))
    assert (lines, begins.tolist()) == ([b"a", b"", b"bc"], [0, 5, 6])
    lines, begins = split_lines(Lines(7, b"\xef\xbb\xbf\n", 4))
    assert (lines, begins.tolist()) == ([b"\xef\xbb\xbf"], [7])
