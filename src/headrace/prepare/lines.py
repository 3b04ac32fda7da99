"""The lines of one span of a file, read in blocks that hold whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from headrace.errors import InputError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 30
NEWLINE = b"\n"


class LongLineError(InputError):
    """A line passes the limit; ``begin`` is its first byte."""

    def __init__(self, begin: int, limit_bytes: int) -> None:
        super().__init__(f"a line of more than {limit_bytes:,} bytes begins at byte {begin:,}")
        self.begin = begin


def find_first_line(file: BinaryIO, begin: int, end: int, *, block_bytes: int) -> int:
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
    file: BinaryIO, begin: int, end: int, *, block_bytes: int, max_line_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset, data)`` for all lines that begin in ``[begin, end)``; data is one or more whole lines.

    Only the last line of the file may lack its newline. The offsets and lengths of the blocks join without a gap.
    Memory: about twice ``block_bytes``, or four times the longest line.

    Raises:
        LongLineError: for a line of more than ``max_line_bytes``.
    """
    offset = find_first_line(file, begin, end, block_bytes=block_bytes)
    if offset >= end:
        return
    file.seek(offset)
    carry = b""
    while True:
        # A line longer than the block doubles the next read, so that joining the pieces stays linear.
        piece = file.read(max(block_bytes, len(carry)))
        data = carry + piece if carry else piece
        if not piece:
            if data:
                yield offset, data
            return
        if offset + len(data) >= end:
            # The last line owned is the one that holds byte end - 1.
            stop = data.find(NEWLINE, max(end - 1 - offset, 0)) + 1
            if stop:
                yield offset, data[:stop]
                return
        cut = min(data.rfind(NEWLINE) + 1, len(data))
        if cut:
            yield offset, data[:cut]
            offset += cut
            carry = data[cut:]
            if offset >= end:
                return
        else:
            carry = data
        if len(carry) > max_line_bytes:
            raise LongLineError(offset, max_line_bytes)
