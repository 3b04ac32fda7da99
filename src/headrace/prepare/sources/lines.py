"""The lines of one span of a file, read in blocks that hold whole lines."""

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
    """A file, or what comes out of a decompressor; the latter is only read from 0 on, without a seek."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none at the end alone."""

    def seek(self, offset: int, /) -> int:
        """Go to a byte."""


class Lines(NamedTuple):
    """One or more whole lines. Only the last one of a file may lack its newline, and then it comes alone."""

    offset: int
    """Where they begin in the file."""

    data: bytes
    """The lines, or the beginning of the one that is too long."""

    size: int
    """Bytes that they take in the file."""

    is_too_long: bool = False
    """It is one line above the limit, of which only the beginning was kept."""


def find_first_line(file: Readable, begin: int, end: int, *, block_bytes: int) -> int:
    """Where the first line that begins in ``[begin, end)`` begins, or ``end`` where none does."""
    if begin == 0:
        return 0
    # A line begins after each newline, so the newlines that count lie in [begin - 1, end - 1).
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

    A line of more than ``max_line_bytes`` comes alone, cut to its beginning. The offsets and sizes of the blocks join
    without a gap. Memory: about twice ``block_bytes``, or four times the longest line that is allowed.
    """
    offset = find_first_line(file, begin, end, block_bytes=block_bytes)
    if offset >= end:
        return
    if offset:
        file.seek(offset)
    carry = b""
    while offset < end:
        # A line longer than the block doubles the next read, so that joining the pieces stays linear.
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
            # The last line owned is the one that holds byte end - 1.
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
    """Read to the end of the line that ``data`` begins with: its size, and what was read behind it."""
    size = 0
    while data:
        found = data.find(NEWLINE) + 1
        if found:
            return size + found, data[found:]
        size += len(data)
        data = file.read(block_bytes)
    return size, b""


def split_lines(lines: Lines) -> tuple[list[bytes], NDArray[np.int64]]:
    """The lines without their newlines (and without the byte order mark of the file), and where each begins."""
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
