"""A piece: the documents and counts that a task writes to disk, for the parent to commit.

    arrays one after another, each begun at a multiple of 8 bytes
    footer      msgpack: what the piece is, its counts, names and dtypes of the arrays
    16 bytes    uint64 size of the footer, uint64 xxh3_64 of all bytes before it

A piece is renamed into place once it is written, and its hash tells whether it is whole, so that the pieces of a killed
run need not be made again. It is not synced: after a power failure the hash shows the damage.

`PieceBuilder` collects the documents of a task until they fill a piece.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.serving import Done
from headrace.errors import OutputError
from headrace.io import write_all
from headrace.preparing.documents import BLANK, Documents
from headrace.preparing.duplicates import write_hashes
from headrace.preparing.messages import Setup
from headrace.preparing.sources import Block
from headrace.preparing.tally import BAD, Tally

_ALIGN = 8
_NUMBER = struct.Struct("<Q")
_TAIL_BYTES = 2 * _NUMBER.size


class SpanResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The counts of one span in a piece. Lines are counted from the first line of the piece in this span.

    Every line is either kept or listed in the piece's ``skipped`` arrays; a line that was split is kept several times.
    """

    file: int
    begin: int
    """``[begin, end)`` was read of the file, in the unit of its extent; both are 0 unless the piece ends the span."""
    end: int
    lines: int
    blank_lines: int
    bad: int
    documents: int
    """Records that were read whole: those kept, and those dropped by a filter."""
    kept: int
    skipped: int
    xxh3_128: str
    """Hash of the file if the span is the whole file, else empty."""
    split: int = 0
    """Documents beyond the first of each record, for records that became several; ``documents`` counts them, too."""


class PieceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which piece of which task this is, and the counts of what it holds."""

    task_index: int = msgspec.field(name="turn")
    piece: int
    is_last: bool
    next_span: int = 0
    """Where the next piece of the task begins, see `messages.PiecePosition`."""
    next_lines: int = 0
    spans: tuple[SpanResult, ...] = ()
    tally: Tally = Tally()
    """The counts of all documents of the piece, and of the lines that are none."""
    errors: tuple[tuple[int, int, str], ...] = ()
    """Bad records that were skipped: number of the span in ``spans``, line, message."""
    reasons: tuple[str, ...] = ()
    """The reasons that the codes in the array ``skipped_reasons`` refer to."""
    domains: tuple[str, ...] = ()
    """The domains that the numbers in the domain column refer to."""

    @property
    def num_documents(self) -> int:
        """Documents of the piece."""
        return self.tally.documents.kept


class _Array(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _Footer(msgspec.Struct, frozen=True):
    info: PieceInfo
    arrays: tuple[_Array, ...]


class Piece(msgspec.Struct, frozen=True):
    """A piece that was read back; ``arrays`` are views of one buffer."""

    info: PieceInfo
    arrays: dict[str, NDArray[Any]]
    size_bytes: int


PIECE, HASHES = "piece", "hashes"
"""Files of a piece: the piece itself; and, if tasks find duplicates and it has documents, the hashes of these."""


def piece_path(folder: str | Path, task_index: int, piece: int, kind: str = PIECE) -> Path:
    """The path of a file of a piece."""
    return Path(folder) / f"{task_index}.{piece}.{kind}"


def write_piece(folder: str | Path, info: PieceInfo, arrays: Mapping[str, Iterable[NDArray[Any]]]) -> None:
    """Write a piece. Each array is passed as the blocks that it consists of, which have the same dtype.

    Raises:
        OutputError: the system refuses a write.
    """
    path = piece_path(folder, info.task_index, info.piece)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    hasher = xxhash.xxh3_64()
    described = []
    try:
        with temporary.open("wb", buffering=0) as file:

            def write(data: bytes | memoryview) -> None:
                hasher.update(data)
                write_all(file.write, data)

            for name, blocks in arrays.items():
                entry, num_bytes = _Array(name, "", ()), 0
                for block in blocks:
                    if block.size:
                        write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
                    rows = (entry.shape[0] if entry.shape else 0) + len(block)
                    entry = _Array(name, block.dtype.str, (rows, *block.shape[1:]))
                    num_bytes += block.nbytes
                if entry.dtype:
                    described.append(entry)
                    write(bytes(-num_bytes % _ALIGN))
            footer = msgspec.msgpack.encode(_Footer(info, tuple(described)))
            write(footer)
            write(_NUMBER.pack(len(footer)))
            write(_NUMBER.pack(hasher.intdigest()))
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: a temporary piece cannot be written: {error.strerror or error}") from error


def read_piece(path: Path) -> Piece:
    """Read a piece, and verify its hash.

    Raises:
        OutputError: it is missing, incomplete or damaged.
    """
    try:
        # It is mapped, not read: its bytes are hashed and then written to the output without a copy.
        data = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise OutputError(f"{path}: a temporary piece cannot be read back: {error.strerror or error}") from error
    if data.size < _TAIL_BYTES:
        raise OutputError(f"{path}: a temporary piece is incomplete: it has {data.size} bytes")
    body = data[:-_TAIL_BYTES]
    footer_size, digest = (_NUMBER.unpack(data[at : at + 8].tobytes())[0] for at in (data.size - 16, data.size - 8))
    if xxhash.xxh3_64_intdigest(data[:-8].data) != digest:
        raise OutputError(f"{path}: a temporary piece is damaged: its hash is not that of its content")
    footer = msgspec.msgpack.decode(body[body.size - footer_size :].data, type=_Footer)
    arrays = {}
    offset = 0
    for entry in footer.arrays:
        dtype = np.dtype(entry.dtype)
        num_bytes = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
        arrays[entry.name] = body[offset : offset + num_bytes].view(dtype).reshape(entry.shape)
        offset += num_bytes + -num_bytes % _ALIGN
    return Piece(footer.info, arrays, data.size)


_OPEN_SPAN = SpanResult(
    file=0, begin=0, end=0, lines=0, blank_lines=0, bad=0, documents=0, kept=0, skipped=0, xxh3_128=""
)  # fmt: skip


class PieceBuilder:
    """A piece that is being filled. It writes these arrays, for n documents and the columns 0, 1, ...:

    =================== ==================== =================================================================
    ``tokens.K``        (values,) of column  values of column K, one document after another
    ``lengths.K``       (n,) int64           number of values of each document
    ``text_hashes``     (n, 2) uint64        if duplicates are dropped
    ``lines``           (n,) int64           if duplicates are dropped, and in recipes: line in the span's part
    ``ids``             (bytes,) uint8       if ids are stored: all in a row
    ``ids_lengths``     (n,) int64           bytes of each id
    ``skipped_lines``   (s,) int64           lines of all spans that are not documents
    ``skipped_reasons`` (s,) int64           index into the reasons
    =================== ==================== =================================================================
    """

    def __init__(self, setup: Setup, task_index: int, piece: int) -> None:
        self._setup = setup
        self._task_index = task_index
        self._number = piece
        self._next = (0, 0)
        self._arrays: dict[str, list[NDArray[Any]]] = {}
        self._spans: list[SpanResult] = []
        self._span = _OPEN_SPAN
        self._tally = Tally()
        self.errors: list[tuple[int, int, str]] = []
        self._reasons: dict[str, int] = {BLANK: 0, BAD: 1}
        self._domains: dict[str, int] = {}
        self.first_line = 0
        """The first line of the piece in the open span, counted from 0 in the span."""
        self.num_bytes = 0

    @property
    def num_lines(self) -> int:
        """Lines of the inputs in the piece."""
        return self._tally.lines

    def begin_span(self, file: int, first_line: int) -> None:
        """Begin a span of this file; its lines are counted from ``first_line`` of the span."""
        self._span = msgspec.structs.replace(_OPEN_SPAN, file=file)
        self.first_line = first_line

    def end_span(self, begin: int, end: int, xxh3_128: str) -> None:
        """End the span; ``[begin, end)`` was read of the file."""
        self._spans.append(msgspec.structs.replace(self._span, begin=begin, end=end, xxh3_128=xxh3_128))

    def next(self, span: int, lines: int) -> PieceBuilder:
        """End this piece after ``lines`` of a span, and return the builder of the next piece, which begins there."""
        self._spans.append(self._span)
        self._next = (span, lines)
        return PieceBuilder(self._setup, self._task_index, self._number + 1)

    def add(self, block: Block, documents: Documents) -> None:
        """Add the documents of a block, and the counts of its other lines."""
        span, tally, num_bad = self._span, documents.tally, len(documents.bad)
        self._tally += tally
        self._span = msgspec.structs.replace(
            span,
            lines=span.lines + block.num_lines,
            blank_lines=span.blank_lines + block.num_blank,
            bad=span.bad + num_bad,
            documents=span.documents + tally.documents.read - num_bad,
            kept=span.kept + len(documents.lines),
            skipped=span.skipped + len(documents.skipped),
            split=span.split + tally.split,
        )
        rows = list(zip(documents.tokens, documents.lengths, strict=True))
        for number, (tokens, lengths) in enumerate(rows):
            if self._setup.columns[number].kind == "domain":
                tokens = self._domain_numbers(documents.domains, tokens)
            self._put(f"tokens.{number}", tokens)
            self._put(f"lengths.{number}", lengths)
            self.num_bytes += tokens.nbytes
        if documents.text_hashes is not None:
            self._put("text_hashes", documents.text_hashes)
        if documents.text_hashes is not None or self._setup.making is not None:
            self._put("lines", documents.lines - self.first_line)
        if documents.ids is not None:
            encoded = [name.encode() for name in documents.ids]
            self._put("ids", np.frombuffer(b"".join(encoded), np.uint8))
            self._put("ids_lengths", np.fromiter(map(len, encoded), np.int64, len(encoded)))
        if documents.skipped:
            codes = [self._reasons.setdefault(reason, len(self._reasons)) for _, reason in documents.skipped]
            lines = np.array([line for line, _ in documents.skipped], np.int64)
            self._put("skipped_lines", lines - self.first_line)
            self._put("skipped_reasons", np.array(codes, np.int64))
        span_number = len(self._spans)
        self.errors += [(span_number, record.line - self.first_line, record.message) for record in documents.bad]

    def write(self, *, is_last: bool) -> Done:
        """Write the piece.

        Raises:
            OutputError: the system refuses a write.
        """
        setup = self._setup
        if setup.num_ranges and self._tally.documents.kept:
            path = piece_path(setup.parts, self._task_index, self._number, HASHES)
            write_hashes(path, setup.num_ranges, np.concatenate(self._arrays["text_hashes"]))
        info = PieceInfo(
            task_index=self._task_index,
            piece=self._number,
            is_last=is_last,
            next_span=self._next[0],
            next_lines=self._next[1],
            spans=tuple(self._spans),
            tally=self._tally,
            errors=tuple(self.errors),
            reasons=tuple(self._reasons),
            domains=tuple(self._domains),
        )
        write_piece(setup.parts, info, self._arrays)
        tally = self._tally
        counts = (tally.input_bytes, tally.documents.kept, tally.tokens.kept)
        return Done(self._task_index, self._number, is_last, msgspec.msgpack.encode(counts), self._next)

    def _domain_numbers(self, names: list[str], numbers: NDArray[Any]) -> NDArray[Any]:
        """Translate the numbers of a block's domains into those of the piece."""
        own = [self._domains.setdefault(name, len(self._domains)) for name in names]
        return np.array(own, numbers.dtype).take(numbers)

    def _put(self, name: str, array: NDArray[Any]) -> None:
        self._arrays.setdefault(name, []).append(array)
