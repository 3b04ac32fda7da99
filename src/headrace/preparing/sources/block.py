"""Blocks of records, which the readers of all formats return, in the order of the file; and the base of all readers."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.preparing.sources.source_file import SampleBy, SourceFile, Span, input_errors
from headrace.preparing.sources.streams import MAX_LINE_BYTES


class RecordSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to read of each record."""

    fields: tuple[str, ...] = ("text",)
    """The fields that hold text, in the order of the output keys; empty if only whole records are needed."""

    id_field: str | None = None
    """The field that names a record: a string or an integer."""

    whole: bool = False
    """Return the whole records as well, for a filter of the user's or for a recipe."""

    sample_by: SampleBy = "document"
    """What a record of a ``.txt`` file is: the whole file, a paragraph, or a line."""

    max_record_bytes: int = MAX_LINE_BYTES
    """A longer line (paragraph, document) is a bad record."""

    @property
    def named(self) -> tuple[str, ...]:
        """The fields that are read by their names, each once: the texts, then the id."""
        return tuple(dict.fromkeys(field for field in (*self.fields, self.id_field) if field is not None))

    def option(self, field: str) -> str:
        """What to do if a file lacks a field."""
        return "choose with --field" if field in self.fields else "choose with --id-field"


class BadRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that cannot be used."""

    line: int
    """Its line, counted from 0 in the span, see `Block.lines`."""

    place: int
    """Its place in the file, see `Block.places`."""

    message: str
    """What was found and what to do, without file and line."""

    fatal: bool = False
    """Whether the file cannot be read from here on, as with an incomplete archive or stream. A fatal record is the last
    one of its span."""

    ended_worker: bool = False
    """Whether it can be read, but ends each worker that comes to it."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Block:
    """Adjacent records of a file: about one MiB of them, or a single longer one.

    A *line* is what a person counts in a file: a line of JSON Lines, a row of Parquet, a paragraph of text (see
    `record_noun`). Every line is a record, or blank, or bad.
    """

    texts: list[list[str]]
    """For each field of the `RecordSpec` the texts of the n records."""

    lines: NDArray[np.int64]
    """(n,) line of each record, counted from 0 in the span, ascending."""

    places: NDArray[np.int64]
    """(n,) place of each record, ascending and unique within the file: the byte of the text where its line begins (JSON
    Lines and text), or its row (Parquet, Arrow)."""

    bad: list[BadRecord]
    """Records that cannot be used, in order."""

    blank_lines: NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    """(num_blank,) the lines that hold only white space, and therefore no record, counted from 0 in the span."""

    input_bytes: int = 0
    """Bytes of the file that were read for this block, for the progress; compressed bytes if the file is compressed."""

    ids: list[str] | None = None
    """(n,) the value of each record's id field, if the spec names one; integers in decimal."""

    records: list[Mapping[str, Any]] | None = None
    """(n,) the whole records, if the spec asks for them."""

    @property
    def num_blank(self) -> int:
        """The number of blank lines."""
        return len(self.blank_lines)

    @property
    def num_lines(self) -> int:
        """The number of lines: records, blank lines and bad records."""
        return len(self.lines) + len(self.blank_lines) + len(self.bad)

    def between(self, first: int, end: int) -> Block:
        """Return what lies in the lines ``[first, end)``."""
        rows = slice(*np.searchsorted(self.lines, (first, end)).tolist())
        return dataclasses.replace(
            self._rows(rows),
            bad=[record for record in self.bad if first <= record.line < end],
            blank_lines=self.blank_lines[(self.blank_lines >= first) & (self.blank_lines < end)],
        )

    def without(self, poison: Mapping[int, str]) -> Block:
        """Return the block with these lines as bad records, each with a message. Other lines are ignored."""
        rows = [row for row, line in enumerate(self.lines.tolist()) if line in poison]
        if not rows:
            return self
        bad = [
            BadRecord(line, place, poison[line], ended_worker=True)
            for line, place in zip(self.lines[rows].tolist(), self.places[rows].tolist(), strict=True)
        ]
        kept = self._rows(np.setdiff1d(np.arange(len(self.lines)), rows))
        return dataclasses.replace(kept, bad=sorted([*self.bad, *bad], key=lambda record: record.line))

    def _rows(self, rows: slice | NDArray[np.int64]) -> Block:
        """The block with these of its records."""

        def taken(values: list[Any]) -> list[Any]:
            return values[rows] if isinstance(rows, slice) else [values[row] for row in rows.tolist()]

        return dataclasses.replace(
            self,
            texts=[taken(texts) for texts in self.texts],
            lines=self.lines[rows],
            places=self.places[rows],
            ids=None if self.ids is None else taken(self.ids),
            records=None if self.records is None else taken(self.records),
        )


def bad_block(spec: RecordSpec, bad: list[BadRecord]) -> Block:
    """A block that holds only bad records."""
    return Block(
        texts=[[] for _ in spec.fields],
        lines=np.zeros(0, np.int64),
        places=np.zeros(0, np.int64),
        bad=bad,
        ids=None if spec.id_field is None else [],
        records=[] if spec.whole else None,
    )


EXCERPT_BYTES = 60


def bad_utf8(data: bytes, error: UnicodeDecodeError, of: str) -> str:
    """The message for data that is not UTF-8; ``of`` says what the data is, such as ``line``."""
    hint = ""
    if data.startswith(b"\x1f\x8b"):
        hint = " (it looks compressed with gzip: decompress it first)"
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        hint = " (it looks compressed with zstd: decompress it first)"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = " (it looks like UTF-16: convert it to UTF-8)"
    found = data[error.start : error.start + 1].hex()
    begin = max(error.start - 20, 0)
    near = excerpt(data[begin : begin + 2 * EXCERPT_BYTES])
    return f"not UTF-8: byte 0x{found} at byte {error.start:,} of the {of}{hint}; found near it {near}"


def too_long(head: bytes, size: int, limit_bytes: int, of: str) -> str:
    """The message for a record above the limit; ``of`` says what the record is, such as ``line``."""
    return f"a {of} of {size:,} bytes; at most {limit_bytes:,} are allowed; it begins with {excerpt(head)}"


def excerpt(line: bytes) -> str:
    """The beginning of a line, short and printable."""
    shown = line[:EXCERPT_BYTES].decode("utf-8", "replace").strip()
    return repr(shown) + ("..." if len(line) > EXCERPT_BYTES else "")


class SpanReader(ABC):
    """Reads one span of one file, once. Formats that are not cut into spans read the whole file.

    Of a file with a `SourceFile.fault` the only record is a bad one that says why nothing of it can be read.

    Args:
        file: the file, which is opened when the blocks are iterated.
        span: the part of it.
        spec: what to read of each record.
        block_bytes: bytes of text in a block, roughly.
    """

    in_order: ClassVar[bool] = True
    """Whether the file is read from one byte to the next."""

    compressed_bytes = 0
    """Bytes of a compressed file from which the blocks so far were decompressed; 0 for files without compression. The
    sum of `Block.input_bytes` may be larger, as it includes bytes that were read ahead."""

    def __init__(self, file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int) -> None:
        self._file = file
        self._span = span
        self._spec = spec
        self._block_bytes = block_bytes
        self.begin = 0
        """``[begin, end)`` was covered, in the unit of the file's extent; known when `blocks` is exhausted. It joins
        without a gap with the spans before and after. Both are 0 if no line begins in the span."""
        self.end = 0
        self.xxh3_128 = ""
        """Hash of the file, known when `blocks` is exhausted, if `is_hashed_while_read`; else empty."""

    def blocks(self) -> Iterator[Block]:
        """Yield all records of the span, in order. The blocks depend only on file and span, and are never empty.

        A record that cannot be used is in `Block.bad`. Nothing follows after a fatal one, and the rest of the span
        counts as covered.

        Raises:
            InputError: the file cannot be read, has changed since the run began, or changes while it is read.
        """
        file, span = self._file, self._span
        if file.fault:
            block = bad_block(self._spec, [BadRecord(0, 0, file.fault, fatal=True)])
            block.input_bytes = file.size_bytes
            yield block
            return
        end = span.end if self.in_order and span.end < file.extent else None
        with input_errors(file.name), file.open(end=end, in_order=self.in_order) as raw:
            self.begin, self.end = span.begin, span.end
            yield from self._blocks(cast(BinaryIO, raw))
            file.check_opened(raw)

    def describe(self) -> tuple[int, tuple[int, ...]]:
        """Return the extent of the file and the bytes of each of its units, see `SourceFile`.

        Raises:
            ConfigError: a column is missing or not text.
            InputError: the file is not a whole file of its format.
            MissingExtraError: a package is not installed.
        """
        return self._file.size_bytes, ()

    @abstractmethod
    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        """Yield the blocks of the file, which is open, unbuffered."""

    def _with_input_bytes(self, blocks: Iterator[Block], first_row: int, num_rows: int) -> Iterator[Block]:
        """Divide the bytes of a file evenly among its rows; the sum over all spans is exact."""
        row = first_row
        for block in blocks:
            end = row + block.num_lines
            size = self._file.size_bytes
            block.input_bytes = size * end // num_rows - size * row // num_rows
            row = end
            yield block
