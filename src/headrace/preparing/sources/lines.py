"""Reads the lines of one span of a file, in blocks that hold whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
NEWLINE = b"\n"
BOM = b"\xef\xbb\xbf"
HEAD_OF_LINE_BYTES = 200


class Readable(Protocol):
    """A file, or a decompressed stream. A stream is only read from byte 0 on, without a seek."""

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes; no bytes mean the end."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""


class Lines(NamedTuple):
    """One or more whole lines. Only the last line of a file may lack its newline, and then it comes alone."""

    offset: int
    """The byte of the file where they begin."""

    data: bytes
    """The lines, or only the beginning of a line that is too long."""

    size: int
    """Bytes of the lines in the file."""

    is_too_long: bool = False
    """Whether this is one line above the limit, of which only the beginning was kept."""


def find_first_line(file: Readable, begin: int, end: int, *, block_bytes: int) -> int:
    """The byte where the first line in ``[begin, end)`` begins, or ``end`` if no line begins there."""
    if begin == 0:
        return 0
    # A line begins after each newline, so the newline must lie in [begin - 1, end - 1).
    position = begin - 1
    file.seek(position)
    while position < end - 1:
        block = file.read(min(block_bytes, end - 1 - position))
        if not block:
            break
        found = block.find(NEWLINE)
        if found >= 0:
            return position + found + 1
        position += len(block)
    return end


def read_blocks(
    file: Readable, begin: int, end: int, *, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Lines]:
    """Yield all lines that begin in ``[begin, end)``, in blocks of about ``block_bytes``.

    A line of more than ``max_line_bytes`` comes alone, cut to its beginning. The blocks join without a gap, by their
    offsets and sizes. Memory: about twice ``block_bytes``, or four times the longest line that is allowed.
    """
    offset = find_first_line(file, begin, end, block_bytes=block_bytes)
    if offset >= end:
        return
    if offset:
        file.seek(offset)
    carry = b""
    while offset < end:
        # While a line is longer than what was read, each read doubles, so that joining the pieces takes linear time.
        piece = file.read(max(block_bytes, len(carry)))
        data = carry + piece if carry else piece
        if len(data) > max_line_bytes and not 0 <= data.find(NEWLINE) < max_line_bytes:
            size, carry = _pass_over(file, data, block_bytes)
            yield Lines(offset, data[:HEAD_OF_LINE_BYTES], size, is_too_long=True)
            offset += size
            continue
        if not piece:
            if data:
                yield Lines(offset, data, len(data))
            return
        if offset + len(data) >= end:
            # The last line of the span is the one that holds byte end - 1.
            stop = data.find(NEWLINE, max(end - 1 - offset, 0)) + 1
            if stop:
                yield Lines(offset, data[:stop], stop)
                return
        cut = data.rfind(NEWLINE) + 1
        if cut:
            yield Lines(offset, data[:cut], cut)
            offset += cut
        carry = data[cut:]


def _pass_over(file: Readable, data: bytes, block_bytes: int) -> tuple[int, bytes]:
    """Read to the end of the line that ``data`` begins. Returns its size, and the bytes that were read after it."""
    size = 0
    while data:
        found = data.find(NEWLINE) + 1
        if found:
            return size + found, data[found:]
        size += len(data)
        data = file.read(block_bytes)
    return size, b""


def split_lines(lines: Lines) -> tuple[list[bytes], NDArray[np.int64]]:
    """The lines without newlines and without the byte order mark of the file, and the byte where each begins."""
    split = lines.data.split(NEWLINE)
    if not split[-1]:
        split.pop()
    begins = np.empty(len(split), np.int64)
    begins[0] = lines.offset
    lengths = np.fromiter(map(len, split[:-1]), np.int64, len(split) - 1)
    np.cumsum(lengths + 1, out=begins[1:])
    begins[1:] += lines.offset
    if lines.offset == 0 and split[0].startswith(BOM):
        split[0] = split[0][len(BOM) :]
    return split, begins
