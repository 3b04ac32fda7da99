"""The bytes of a file as a stream: hashed, decompressed, and cut into lines.

    file -> CountedFile -> GzipStream, ZstdStream -> read_blocks -> Lines -> split_lines

gzip and zstd files are decompressed in bounded memory, and damage is reported with its place in the file. `read_blocks`
reads the lines of one span of a file, in blocks that hold whole lines.
"""

from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import load_extra
from headrace.preparing.sources.source_file import GZIP_MAGIC, is_zstd

CHUNK_BYTES = 1 << 18


class DamagedStreamError(Exception):
    """A compressed file cannot be read from here on; the message says what was found at which byte."""


class CountedFile:
    """A file that is read in order, and whose bytes are counted, and hashed if it is read as a whole."""

    def __init__(self, file: BinaryIO, *, is_hashed: bool) -> None:
        self._file = file
        self._hasher = xxhash.xxh3_128() if is_hashed else None
        self.position = 0

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

    Memory: what `FEED_BYTES` of the file hold, usually some KiB and at most 1 MiB (gzip) or 32 MiB (zstd), and the
    window of the format (gzip 32 KiB; zstd at most 128 MiB, 1 to 8 MiB at the usual levels).
    """

    kind: ClassVar[str]
    pad: ClassVar[bytes] = b""
    """What may follow the last member, repeated."""

    def __init__(self, file: CountedFile) -> None:
        self._file = file
        self._input = b""
        self._used = 0
        self._output = memoryview(b"")
        self._piece_bytes = 1
        self._decoder: Any = None
        self._has_begun = self._is_over = False
        self._damage: DamagedStreamError | None = None
        self._trailing = ""

    def read(self, size: int, /) -> bytes:
        """Read ``size`` bytes, or fewer at the end.

        Raises:
            DamagedStreamError: the file is damaged. It is raised after everything before the damage was returned,
                except what the last `FEED_BYTES` of the file before it hold.
        """
        pieces: list[memoryview] = []
        total = 0
        while total < size and self._damage is None and not self._is_over:
            try:
                if not self._output:
                    self._output = memoryview(self._decompress())
                    self._piece_bytes = max(len(self._output), 1)
            except DamagedStreamError as error:
                self._damage = error
                break
            pieces.append(self._output[: size - total])
            self._output = self._output[size - total :]
            total += len(pieces[-1])
        if self._damage is not None and not total:
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
    def _begin(self, head: bytes) -> Any:
        """Return what decompresses the member or frame that begins with these bytes; None if none begins with them."""

    def _decompress(self) -> bytes:
        """Decompress some bytes; at the end none."""
        if self._decoder is None:
            head = self._take(HEAD_BYTES)
            while self._has_begun and head and self.pad and not head.strip(self.pad):
                head = self._take(HEAD_BYTES)
            self._untake(len(head))
            self._decoder = self._begin(head)
            if self._decoder is None:
                self._is_over = True
                if head:
                    self._trailing = (
                        f"what follows the compressed data at byte {self.reached:,} of the file is not {self.kind}: it"
                        f" begins with {head[:16]!r}. Was something appended to the file? All of it from there on is"
                        " lost."
                    )
                return b""
            self._has_begun = True
        data = self._take(FEED_BYTES)
        try:
            piece: bytes = self._decoder.decompress(data)
        except Exception as error:  # zlib.error, or ZstdError of a package that is loaded when it is needed
            raise DamagedStreamError(
                f"the {self.kind} data is damaged at about byte {self.reached:,} of the file: {error}. What was read"
                " before may be wrong too: fetch or write the file again."
            ) from None
        if self._decoder.eof:
            self._untake(len(self._decoder.unused_data))
            self._decoder = None
        elif not data:
            raise DamagedStreamError(
                f"the {self.kind} data is incomplete: the file ends at byte {self._file.position:,}, in the middle of"
                " it. Was the file copied or written whole?"
            )
        return piece

    def _take(self, size: int) -> bytes:
        """Take ``size`` bytes of the file, or fewer at its end."""
        if len(self._input) - self._used < size:
            self._input, self._used = self._input[self._used :] + self._file.read(CHUNK_BYTES), 0
        taken = self._input[self._used : self._used + size]
        self._used += len(taken)
        return taken

    def _untake(self, size: int) -> None:
        """Put back the last ``size`` bytes of what was taken last."""
        self._used -= size

    @property
    def reached(self) -> int:
        """The byte of the file up to which it was decompressed; of what is not read yet, about."""
        return self._file.position - len(self._input) + self._used - FEED_BYTES * len(self._output) // self._piece_bytes


FEED_BYTES = 1 << 10
HEAD_BYTES = 18
"""The longest header of a frame of zstd."""


class GzipStream(Decompressed):
    """A gzip file with any number of members (RFC 1952), which zero bytes may follow, as on a tape."""

    kind = "gzip"
    pad = b"\0"

    def _begin(self, head: bytes) -> Any:
        return zlib.decompressobj(wbits=31) if head.startswith(GZIP_MAGIC) else None


MAX_WINDOW_BYTES = 128 << 20


class ZstdStream(Decompressed):
    """A zstd file with any number of frames (RFC 8878). Skippable frames are skipped."""

    kind = "zstd"

    def __init__(self, file: CountedFile, name: str) -> None:
        super().__init__(file)
        self._zstandard = load_zstandard(name)
        self._frames = self._zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def _begin(self, head: bytes) -> Any:
        if not is_zstd(head):
            return None
        with contextlib.suppress(self._zstandard.ZstdError):  # the decoder meets it again
            window_bytes = self._zstandard.get_frame_parameters(head).window_size
            if window_bytes > MAX_WINDOW_BYTES:
                raise DamagedStreamError(
                    f"the zstd frame needs a window of {window_bytes:,} bytes in memory; at most"
                    f" {MAX_WINDOW_BYTES:,} are allowed. Compress it again without --long or --ultra."
                )
        return self._frames.decompressobj()


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
