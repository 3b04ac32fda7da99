"""Opens the reader of a span, whatever the format of its file; and reads files of lines, of plain text, and of CSV.

A record of plain text is a file, a paragraph or a line. In all three cases the byte order mark of the file is left
out, all other bytes stay as they are, and a text of white space only is blank. Only ``\\n`` and ``\\r\\n`` end a line;
what ends the last line of a paragraph or a line is not part of it. The first line of CSV and TSV names the columns.
"""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from headrace.config import nearest
from headrace.errors import InputError
from headrace.preparing.sources.block import (
    BadRecord,
    Block,
    RecordSpec,
    SpanReader,
    bad_block,
    bad_utf8,
    too_long,
)
from headrace.preparing.sources.columnar import ArrowSpanReader, ParquetSpanReader
from headrace.preparing.sources.json import ListReader, parse_jsonl
from headrace.preparing.sources.source_file import SampleBy, SourceFile, Span, is_hashed_while_read
from headrace.preparing.sources.streams import (
    BLOCK_BYTES,
    BOM,
    HEAD_OF_LINE_BYTES,
    NEWLINE,
    CountedFile,
    DamagedStreamError,
    Decompressed,
    GzipStream,
    Lines,
    Readable,
    ZstdStream,
    go_to_first_line,
    read_blocks,
    split_lines,
)


def open_span(file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int = BLOCK_BYTES) -> SpanReader:
    """Return the reader of a span. The file is opened when the blocks are iterated.

    Args:
        file: the file.
        span: the part of it, as `plan_tasks` returned it.
        spec: what to read of each record; the same spec that `find_inputs` received.
        block_bytes: bytes of text in a block, roughly.
    """
    readers: dict[str, type[SpanReader]] = {
        "parquet": ParquetSpanReader,
        "arrow": ArrowSpanReader,
        "json": ListReader,
    }
    return readers.get(file.format, LineSpanReader)(file, span, spec, block_bytes=block_bytes)


class LineSpanReader(SpanReader):
    """Reads files of lines: JSON Lines, text and CSV, plain or compressed.

    Memory: twice ``block_bytes`` and the texts of one block, or four times the longest line if that is more. A text
    file that is one document is held in memory as a whole.
    """

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        """Yield the lines of the span. Damaged compression ends the span with a fatal bad record."""
        is_whole = is_hashed_while_read(self._file, self._span)
        self._source = CountedFile(raw, is_hashed=is_whole)
        self._stream: Decompressed | None = None
        if self._file.format.endswith(".gz"):
            self._stream = GzipStream(self._source)
        elif self._file.format.endswith(".zst"):
            self._stream = ZstdStream(self._source, self._file.name)
        self._first_byte = -1
        self._reached = 0  # the byte of the text up to which lines were read
        yield from self._read(self._lines(raw))
        self.xxh3_128 = self._source.finish()
        if not is_whole:
            self.begin, self.end = (self._first_byte, self._reached) if self._first_byte >= 0 else (0, 0)

    def _read(self, lines: Iterator[Lines]) -> Iterator[Block]:
        line = counted = 0
        try:
            for block in self._parsed(lines):
                line += block.num_lines
                used = self._reached - max(self._first_byte, 0)
                if self._stream is not None:
                    used, self.compressed_bytes = self._source.position, self._stream.reached
                block.input_bytes, counted = used - counted, used
                yield block
            if self._stream is not None:
                self._stream.finish()
        except DamagedStreamError as error:
            block = bad_block(self._spec, [BadRecord(line, self._reached, str(error), fatal=True)])
            block.input_bytes = self._file.size_bytes - counted
            yield block

    def _lines(self, raw: BinaryIO) -> Iterator[Lines]:
        begin, end = self._span.begin, self._span.end
        source: Readable = self._source
        if self._stream is None:
            begin = go_to_first_line(raw, begin, end, block_bytes=self._block_bytes)
        else:
            source, begin, end = self._stream, 0, sys.maxsize
        # A record of CSV may have any number of lines.
        longest = sys.maxsize if self._file.format in DELIMITERS else self._spec.max_record_bytes
        for lines in read_blocks(source, begin, end, block_bytes=self._block_bytes, max_line_bytes=longest):
            if self._first_byte < 0:
                self._first_byte = lines.offset
            self._reached = lines.offset + lines.size
            yield lines

    def _parsed(self, lines: Iterable[Lines]) -> Iterator[Block]:
        kind, spec = self._file.format, self._spec
        if kind.startswith("jsonl"):
            return parse_jsonl(lines, spec)
        if kind in DELIMITERS:
            return _CsvParser(spec, self._file, self._block_bytes).parse(lines)
        return _TEXT_PARSERS[spec.sample_by](spec).parse(lines)


FIELD = "text"
"""The name of a text's only field, if the spec names none."""


class _Parser(ABC):
    """Collects the records of a block. Subclasses find where a record begins and ends."""

    noun = ""

    @abstractmethod
    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield the records of these lines in blocks. If records are lines, those of a span are enough."""

    def __init__(self, spec: RecordSpec) -> None:
        self._spec = spec
        self._max_bytes = spec.max_record_bytes
        self._next_line = 0
        self._clear()

    def _clear(self) -> None:
        self._values: list[Any] = []
        self._good: list[int] = []
        self._places: list[int] = []
        self._blank: list[int] = []
        self._bad: list[BadRecord] = []

    def _add(self, data: bytes, place: int) -> None:
        """Add the next record, which may turn out blank or bad."""
        if not data or data.isspace():
            self._add_blank()
            return
        try:
            self._add_good(data.decode("utf-8"), place)
        except UnicodeDecodeError as error:
            self._add_bad(bad_utf8(data, error, self.noun), place)

    def _add_good(self, value: Any, place: int) -> None:
        self._values.append(value)
        self._good.append(self._next_line)
        self._places.append(place)
        self._next_line += 1

    def _add_blank(self) -> None:
        self._blank.append(self._next_line)
        self._next_line += 1

    def _add_bad(self, message: str, place: int, *, fatal: bool = False) -> None:
        self._bad.append(BadRecord(self._next_line, place, message, fatal))
        self._next_line += 1

    def _refuse(self, head: bytes, size: int, place: int) -> None:
        """Add the next record as a bad one, because it is too long."""
        self._add_bad(too_long(head, size, self._max_bytes, self.noun), place)

    def _block(self) -> Block:
        """The records that were collected since the last block."""
        block = Block(
            texts=self._texts(),
            lines=np.array(self._good, np.int64),
            places=np.array(self._places, np.int64),
            bad=self._bad,
            blank_lines=np.array(self._blank, np.int64),
            ids=self._ids(),
            records=self._records() if self._spec.whole else None,
        )
        self._clear()
        return block

    def _texts(self) -> list[list[str]]:
        return [self._values for _ in self._spec.fields]

    def _ids(self) -> list[str] | None:
        return None

    def _records(self) -> list[Mapping[str, Any]]:
        field = self._spec.fields[0] if self._spec.fields else FIELD
        return [{field: text} for text in self._values]


class _LineParser(_Parser):
    noun = "line"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield one block of records for each block of lines."""
        for lines in blocks:
            if lines.is_too_long:
                self._refuse(lines.data, lines.size, lines.offset)
            else:
                for line, place in _split(lines):
                    self._add(line, place)
            yield self._block()


class _ParagraphParser(_Parser):
    """Parses paragraphs, which blank lines separate. Blank lines belong to no paragraph, and are not counted."""

    noun = "paragraph"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield about one block of records for each block of lines."""
        self._open: list[bytes] = []
        self._begin = 0
        self._size = 0
        is_ended = False
        for lines in blocks:
            is_ended = lines.data.endswith(NEWLINE)
            if lines.is_too_long:
                self._continue(lines.data, lines.size, lines.offset)
                continue
            split, begins = split_lines(lines)
            for line, place in zip(split, begins.tolist(), strict=True):
                if not line or line.isspace():
                    self._close()
                else:
                    self._continue(line, len(line) + 1, place)
            if self._good or self._bad:
                yield self._block()
        self._close(is_ended=is_ended)
        if self._good or self._bad:
            yield self._block()

    def _continue(self, line: bytes, size: int, place: int) -> None:
        if not self._size:
            self._begin = place
        self._size += size
        # Above the limit only the beginning is kept, for the message. A line that was cut is above the limit by itself.
        if self._size <= self._max_bytes or not self._open:
            self._open.append(line)

    def _close(self, *, is_ended: bool = True) -> None:
        if not self._size:
            return
        data = NEWLINE.join(self._open)
        if is_ended:  # its last newline is left out already
            data = data.removesuffix(b"\r")
        if self._size > self._max_bytes:
            self._refuse(data[:HEAD_OF_LINE_BYTES], self._size, self._begin)
        else:
            self._add(data, self._begin)
        self._open.clear()
        self._size = 0


class _DocumentParser(_Parser):
    noun = "document"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield one block with one record, or nothing for an empty file."""
        pieces: list[bytes] = []
        size = 0
        for lines in blocks:
            size += lines.size
            if size <= self._max_bytes or not pieces:
                pieces.append(lines.data)
        if not size:
            return
        if size > self._max_bytes:
            self._refuse(pieces[0][:HEAD_OF_LINE_BYTES], size, 0)
        else:
            self._add(b"".join(pieces).removeprefix(BOM), 0)
        yield self._block()


def _split(lines: Lines) -> Iterator[tuple[bytes, int]]:
    """Each line without its ``\\n`` or ``\\r\\n``, and the byte where it begins."""
    split, begins = split_lines(lines)
    if b"\r\n" in lines.data:  # then every line has a newline, see `Lines`
        split = [line.removesuffix(b"\r") for line in split]
    return zip(split, begins.tolist(), strict=True)


_TEXT_PARSERS: dict[SampleBy, type[_Parser]] = {
    "line": _LineParser,
    "paragraph": _ParagraphParser,
    "document": _DocumentParser,
}
DELIMITERS = {"csv": ",", "tsv": "\t"}


class _CsvParser(_Parser):
    """Parses all records of a file, which is not cut into spans, since a quoted field may hold line ends.

    A *line* of its blocks is a record after the line of names, counted from 0; a record may take several lines of the
    file. Every value is a string. Memory: a block, or the longest record.
    """

    def __init__(self, spec: RecordSpec, file: SourceFile, block_bytes: int) -> None:
        super().__init__(spec)
        self._file = file
        self._block_bytes = block_bytes

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield all records. Wrong quotes end the file, since it is not known where the next record begins.

        Raises:
            InputError: a column has no name, two have the same name, or one is missing.
        """
        before = csv.field_size_limit(self._max_bytes)
        kind = self._file.format
        try:
            rows = csv.reader(_text_lines(blocks), delimiter=DELIMITERS[kind], strict=True)
            names = self._names(rows)
            first, num_bytes, is_over = 0, 0, False
            while not is_over:
                try:
                    row = next(rows, None)
                    is_over = row is None
                    num_bytes += 0 if row is None else self._add_row(names, row)
                except csv.Error as error:
                    advice = f"nothing behind it can be read; is this {kind.upper()}, quoted by its rules?"
                    self._add_bad(f"{error}: {advice}", self._next_line, fatal=True)
                    is_over = True
                if num_bytes >= self._block_bytes or (is_over and self._next_line > first):
                    first, num_bytes = self._next_line, 0
                    yield self._block()
        finally:
            csv.field_size_limit(before)

    def _names(self, rows: Iterator[list[str]]) -> list[str]:
        try:
            names = next(rows, [])
        except csv.Error as error:
            raise InputError(f"{self._file.name}: its first line cannot be read: {error}") from error
        if not names or not all(names):
            raise InputError(f"{self._file.name}: its first line must name the columns; found {names!r:.200}")
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{self._file.name}: two columns are called {repeated!r}: rename one")
        for field in self._spec.named:
            if field not in names:
                near = nearest(field, names)
                raise InputError(f"{self._file.name}: no column {field!r}{near} ({self._spec.option(field)})")
        return names

    def _add_row(self, names: list[str], row: list[str]) -> int:
        """Add a row. Returns roughly its bytes."""
        if not row:
            self._add_blank()
        elif len(row) != len(names):
            self._add_bad(f"{len(row)} values, and the first line names {len(names)} columns", self._next_line)
        else:
            try:
                "".join(row).encode()
                self._add_good(dict(zip(names, row, strict=True)), self._next_line)
            except UnicodeEncodeError:
                self._add_bad("not UTF-8", self._next_line)
        return sum(map(len, row)) + max(len(row), 1)

    def _texts(self) -> list[list[str]]:
        return [[row[field] for row in self._values] for field in self._spec.fields]

    def _ids(self) -> list[str] | None:
        return None if self._spec.id_field is None else [row[self._spec.id_field] for row in self._values]

    def _records(self) -> list[Mapping[str, Any]]:
        return self._values


def _text_lines(blocks: Iterable[Lines]) -> Iterator[str]:
    """Lines with their ends. Bytes that are not UTF-8 become surrogates, so that the record is found to be bad."""
    for lines in blocks:
        for line in split_lines(lines)[0]:
            yield line.decode("utf-8", "surrogateescape") + "\n"
