"""The bytes of a file as a stream: hashed, decompressed, and cut into lines.

    file -> CountedFile -> GzipStream, ZstdStream -> CutStream -> read_blocks -> Lines -> split_lines

gzip and zstd files are decompressed in bounded memory, and damage is reported with its place in the file. `CutStream`
finds the lines of a span between two borders of a compressed file. `read_blocks` reads the lines of one span of a file,
in blocks that hold whole lines.
"""

from __future__ import annotations

import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import load_extra
from headrace.preparing.sources.source_file import GZIP_MAGIC, ZSTD_MAGIC, is_zstd

CHUNK_BYTES = 1 << 18


class DamagedStreamError(Exception):
    """A compressed file cannot be read from here on; the message says what was found at which byte."""


class LostLineError(Exception):
    """A line cannot be read to its end, which lies in a damaged part of the file. The reader of that part tells."""


class CountedFile:
    """A file that is read in order, and whose bytes are counted, and hashed if it is read as a whole."""

    def __init__(self, file: BinaryIO, *, is_hashed: bool) -> None:
        self._file = file
        self._hasher = xxhash.xxh3_128() if is_hashed else None
        self.position = 0

    def seek(self, position: int) -> None:
        """Begin at this byte."""
        self.position = self._file.seek(position)

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes."""
        data = self._file.read(size)
        self.position += len(data)
        if self._hasher is not None:
            self._hasher.update(data)
        return data

    def finish(self) -> str:
        """Read the rest; return the hash of the whole file as 32 hexadecimal digits, empty if it is not hashed."""
        while self._hasher is not None and self.read(CHUNK_BYTES):
            pass
        return "" if self._hasher is None else self._hasher.hexdigest()


class Decompressed(ABC):
    """The decompressed bytes of a file, with all its members or frames.

    Memory: the ``size`` of the reads, some hundred KiB, and the window of the format (gzip 32 KiB; zstd at most
    128 MiB, 1 to 8 MiB at the usual levels).
    """

    def __init__(self, file: CountedFile) -> None:
        self._file = file
        self.border = sys.maxsize
        """The byte of the file before which reading ends, where a frame begins; it may be moved on later."""
        self._input = b""
        self._used = 0
        self._damage: DamagedStreamError | None = None
        self._trailing = ""

    def read(self, size: int, /) -> bytes:
        """Read ``size`` bytes, or fewer at the end and at the border.

        Raises:
            DamagedStreamError: the file is damaged. It is raised after everything before the damage was returned.
        """
        pieces: list[bytes] = []
        total = 0
        while total < size and self._damage is None:
            try:
                piece = self._decompress(size - total)
            except DamagedStreamError as error:
                self._damage = error
                break
            if not piece:
                break
            pieces.append(piece)
            total += len(piece)
        if self._damage is not None and not pieces:
            raise self._damage
        return b"".join(pieces)

    def finish(self) -> None:
        """Check the end of the file. Call this after the last read.

        Raises:
            DamagedStreamError: other data follows the compressed data.
        """
        if self._trailing:
            raise DamagedStreamError(self._trailing)

    @abstractmethod
    def _decompress(self, limit: int) -> bytes:
        """Decompress some bytes, at most about ``limit``; none at the end."""

    def _take(self, size: int) -> bytes:
        """Take ``size`` bytes of the file, or fewer at its end."""
        while len(self._input) - self._used < size:
            data = self._file.read(max(CHUNK_BYTES, size))
            if not data:
                break
            self._input, self._used = self._input[self._used :] + data, 0
        taken = self._input[self._used : self._used + size]
        self._used += len(taken)
        return taken

    def _take_any(self) -> bytes:
        """Take the bytes that were read already; at least one byte, except at the end of the file."""
        return self._take(len(self._input) - self._used or CHUNK_BYTES)

    def _untake(self, size: int) -> None:
        """Put back the last ``size`` bytes of what was taken last."""
        self._used -= size

    @property
    def reached(self) -> int:
        """The byte of the file up to which it was decompressed."""
        return self._file.position - len(self._input) + self._used

    @property
    def is_at_border(self) -> bool:
        """Whether reading has ended at the border; between two frames.

        Raises:
            DamagedStreamError: no frame begins at the border.
        """
        if self.reached > self.border:
            raise DamagedStreamError(
                f"no frame begins at byte {self.border:,} of the file, although the sizes of the frames before say so"
            )
        return self.reached == self.border

    def _end_in_garbage(self, kind: str, found: bytes) -> None:
        self._trailing = (
            f"what follows the compressed data at byte {self.reached:,} of the file is not {kind}: it begins with "
            f"{found[:16]!r}. Was something appended to the file? All of it from there on is lost."
        )

    def _incomplete(self, kind: str) -> DamagedStreamError:
        return DamagedStreamError(
            f"the {kind} data is incomplete: the file ends at byte {self._file.position:,}, in the middle of it. Was "
            "the file copied or written whole?"
        )

    def _broken(self, kind: str, error: Exception) -> DamagedStreamError:
        return DamagedStreamError(
            f"the {kind} data is damaged at about byte {self.reached:,} of the file: {error}. What was read before "
            "may be wrong too: fetch or write the file again."
        )


SALVAGE_BYTES = 1 << 10
"""At the best ratio of the format, this many bytes decompress to at most one MiB."""


class GzipStream(Decompressed):
    """A gzip file with any number of members (RFC 1952), which zero bytes may follow."""

    def __init__(self, file: CountedFile) -> None:
        super().__init__(file)
        self._decoder: zlib._Decompress | None = None
        self._members = 0

    def _decompress(self, limit: int) -> bytes:
        while True:
            decoder = self._decoder or self._begin_member()
            if decoder is None:
                return b""
            data = self._take_any()
            before = decoder.copy()
            try:
                piece = decoder.decompress(data, limit)
            except zlib.error as error:
                return self._salvage(before, data, error)
            self._untake(len(decoder.unused_data if decoder.eof else decoder.unconsumed_tail))
            self._decoder = None if decoder.eof else decoder
            if piece:
                return piece
            if not data and not decoder.eof:
                raise self._incomplete("gzip")

    def _begin_member(self) -> zlib._Decompress | None:
        if self.is_at_border:
            return None
        data = self._take_any()
        while self._members and data:  # zero bytes pad the last block of a tape
            data = data.lstrip(b"\0")
            if data:
                break
            data = self._take_any()
        self._untake(len(data))
        head = self._take(len(GZIP_MAGIC))
        self._untake(len(head))
        if not head:
            return None
        if head != GZIP_MAGIC:
            self._end_in_garbage("gzip", data)
            return None
        self._members += 1
        return zlib.decompressobj(wbits=31)

    def _salvage(self, decoder: zlib._Decompress, data: bytes, error: zlib.error) -> bytes:
        """All bytes that can be decompressed before the damage. A call that fails returns none of them, so this retries
        with ever smaller parts of the data."""
        pieces = []
        step = SALVAGE_BYTES
        while step and data:
            attempt = decoder.copy()
            try:
                pieces.append(attempt.decompress(data[:step]))
            except zlib.error:
                step //= 2
                continue
            decoder, data = attempt, data[step:]
        self._untake(len(data))
        self._damage = self._broken("gzip", error)
        return b"".join(pieces)


MAX_WINDOW_BYTES = 128 << 20
ZSTD_HEADER_BYTES = 18
RLE_BLOCK = 1


class ZstdStream(Decompressed):
    """A zstd file with any number of frames (RFC 8878). Skippable frames are skipped.

    This class finds the blocks of a frame itself, and decompresses them one at a time. A block has at most 128 KiB
    decompressed, whatever the ratio, and a missing end of a frame is noticed.
    """

    def __init__(self, file: CountedFile, name: str) -> None:
        super().__init__(file)
        self._zstandard = load_zstandard(name)
        self._decoder = self._zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._has_checksum = False

    def _decompress(self, limit: int) -> bytes:
        while True:
            frame = self._frame or self._begin_frame()
            if frame is None:
                return b""
            header = self._exactly(3)
            value = int.from_bytes(header, "little")
            is_last, kind, size = value & 1, value >> 1 & 3, value >> 3
            data = header + self._exactly(1 if kind == RLE_BLOCK else size)
            if is_last and self._has_checksum:
                data += self._exactly(4)
            piece = self._feed(frame, data)
            self._frame = None if is_last else frame
            if piece:
                return piece

    def _begin_frame(self) -> Any:
        while True:
            if self.is_at_border:
                return None
            head = self._take(ZSTD_HEADER_BYTES)
            if head[:4] == ZSTD_MAGIC:
                break
            if not head:
                return None
            if not is_zstd(head):
                self._untake(len(head))
                self._end_in_garbage("zstd", head)
                return None
            self._untake(len(head))
            left = int.from_bytes(self._exactly(8)[4:], "little")
            while left:
                left -= len(self._exactly(min(left, CHUNK_BYTES)))
        try:
            size = self._zstandard.frame_header_size(head)
            parameters = self._zstandard.get_frame_parameters(head)
        except self._zstandard.ZstdError as error:
            raise self._incomplete("zstd") if len(head) < ZSTD_HEADER_BYTES else self._broken("zstd", error) from None
        if parameters.window_size > MAX_WINDOW_BYTES:
            raise DamagedStreamError(
                f"the zstd frame needs a window of {parameters.window_size:,} bytes in memory; at most "
                f"{MAX_WINDOW_BYTES:,} are allowed. Compress it again without --long or --ultra."
            )
        self._untake(len(head) - size)
        self._has_checksum = parameters.has_checksum
        frame = self._decoder.decompressobj()
        self._feed(frame, head[:size])
        return frame

    def _exactly(self, size: int) -> bytes:
        data = self._take(size)
        if len(data) < size:
            raise self._incomplete("zstd")
        return data

    def _feed(self, frame: Any, data: bytes) -> bytes:
        try:
            piece: bytes = frame.decompress(data)
        except self._zstandard.ZstdError as error:
            raise self._broken("zstd", error) from None
        return piece


def load_zstandard(name: str) -> Any:
    """Import the module ``zstandard``.

    Raises:
        MissingExtraError: it is not installed. The message names the file ``name``, which needs it.
    """
    return load_extra("zstandard", f"{name}: reading .zst needs zstandard: pip install 'headrace[zstd]'")


BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
NEWLINE = b"\n"
BOM = b"\xef\xbb\xbf"
HEAD_OF_LINE_BYTES = 200


class Readable(Protocol):
    """A file, or a decompressed stream."""

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes; no bytes mean the end."""


class CutStream:
    """The lines of a span between borders of a compressed file.

    They are those that begin behind its first byte, and the one that begins at its end, see `source_file`. What is
    before them is passed over; the last line is read to its end, in the frames behind the span.

    Args:
        stream: what is decompressed from the begin of the span on; its border is the end of the span.
        is_first: whether a line begins at the begin of the span, as it is that of the file.
    """

    def __init__(self, stream: Decompressed, *, is_first: bool) -> None:
        self._stream = stream
        self._has_line = is_first
        self._is_behind = self._is_over = False
        self._behind_bytes = CHUNK_BYTES // 4
        self.passed_over = 0
        """Bytes of the span before its first line."""

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes.

        Raises:
            DamagedStreamError: the span is damaged.
            LostLineError: what follows the span is damaged, and its last line goes on there.
        """
        while not self._is_over:
            data = self._read_behind(size) if self._is_behind else self._stream.read(size)
            if not data and not self._is_behind and self._stream.is_at_border:
                self._is_behind, self._is_over = True, not self._has_line
                self._stream.border = sys.maxsize
                continue
            if self._has_line or not data:
                return data
            begin = data.find(NEWLINE) + 1
            self._has_line = begin > 0
            self.passed_over += begin or len(data)
            if begin and data[begin:]:
                return data[begin:]
        return b""

    def _read_behind(self, size: int) -> bytes:
        """Read up to the end of the line. The reads double, so that a long one is joined in linear time."""
        try:
            data = self._stream.read(min(size, self._behind_bytes))
            self._behind_bytes *= 2
        except DamagedStreamError as error:
            raise LostLineError(str(error)) from error
        end = data.find(NEWLINE) + 1
        self._is_over = end > 0
        return data[:end] if end else data


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


def go_to_first_line(file: BinaryIO, begin: int, end: int, *, block_bytes: int) -> int:
    """Go to the byte where the first line in ``[begin, end)`` begins, and return it; ``end`` if no line begins there.

    At 0 the file is not moved.
    """
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
            return file.seek(position + found + 1)
        position += len(block)
    return end


def read_blocks(
    file: Readable, begin: int, end: int, *, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Lines]:
    """Yield all lines that begin in ``[begin, end)``, in blocks of about ``block_bytes``.

    The file is at ``begin``, where a line begins, see `go_to_first_line`.
    A line of more than ``max_line_bytes`` comes alone, cut to its beginning. The blocks join without a gap, by their
    offsets and sizes. Memory: about twice ``block_bytes``, or four times the longest line that is allowed.
    """
    offset, carry = begin, b""
    while offset < end:
        # While a line is longer than what was read, each read doubles, so that joining the pieces takes linear time.
        # Whole lines that came with the end of one over the limit go first: only the first line of a block is measured,
        # and no other may be longer than what is read at once.
        piece = b"" if NEWLINE in carry else file.read(max(block_bytes, len(carry)))
        data = carry + piece if carry else piece
        if len(data) > max_line_bytes and not 0 <= data.find(NEWLINE) < max_line_bytes:
            size, carry = _pass_over(file, data, block_bytes)
            yield Lines(offset, data[:HEAD_OF_LINE_BYTES], size, is_too_long=True)
            offset += size
            continue
        if not piece and NEWLINE not in data:
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
