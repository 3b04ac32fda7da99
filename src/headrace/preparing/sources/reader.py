"""Opens the reader of a span, whatever the format of its file; and reads files of lines, of plain text, and of CSV.

A record of plain text is a file, a paragraph or a line. In all three cases the byte order mark of the file is left
out, all other bytes stay as they are, and a text of white space only is blank. Only ``\\n`` and ``\\r\\n`` end a line;
what ends the last line of a paragraph or a line is not part of it. Tables of CSV and TSV, whose first line names the
columns, are for runs that read whole records.
"""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

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
    CHUNK_BYTES,
    HEAD_OF_LINE_BYTES,
    MAX_LINE_BYTES,
    NEWLINE,
    CountedFile,
    CutStream,
    DamagedStreamError,
    Decompressed,
    GzipStream,
    HashedFile,
    Lines,
    LostLineError,
    Readable,
    ZstdStream,
    go_to_first_line,
    read_blocks,
    split_lines,
)


def open_span(
    file: SourceFile,
    span: Span,
    spec: RecordSpec,
    *,
    block_bytes: int = BLOCK_BYTES,
    max_record_bytes: int = MAX_LINE_BYTES,
) -> SpanReader:
    """Return the reader of a span. The file is opened when the blocks are iterated.

    Args:
        file: the file.
        span: the part of it, as `plan_tasks` returned it.
        spec: what to read of each record; the same spec that `find_inputs` received.
        block_bytes: bytes of text in a block, roughly.
        max_record_bytes: a longer line (paragraph, document) is a bad record.
    """
    readers: dict[str, type[SpanReader]] = {
        "parquet": ParquetSpanReader,
        "arrow": ArrowSpanReader,
        "json": ListReader,
        "csv": CsvReader,
        "tsv": CsvReader,
    }
    reader = FaultReader if file.fault else readers.get(file.format, LineSpanReader)
    return reader(file, span, spec, block_bytes=block_bytes, max_record_bytes=max_record_bytes)


class FaultReader(SpanReader):
    """Reads a file of which nothing can be read: its only record is a bad one that says why."""

    def blocks(self) -> Iterator[Block]:
        """Yield one block with the bad record."""
        block = bad_block(self._spec, [BadRecord(0, 0, self._file.fault, fatal=True)])
        block.input_bytes = self._file.size_bytes
        yield block


class LineSpanReader(SpanReader):
    """Reads files of lines: JSON Lines and text, plain or compressed.

    Memory: twice ``block_bytes`` and the texts of one block, or four times the longest line if that is more. A text
    file that is one document is held in memory as a whole.
    """

    def __init__(
        self, file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int, max_record_bytes: int
    ) -> None:
        super().__init__(file, span, spec, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
        self._stream: Decompressed | None = None
        self._source: CountedFile | None = None
        self._first_byte = -1
        self._reached = span.place
        """The byte up to which lines were read, after decompression."""

    @property
    def compressed_bytes(self) -> int:
        """Bytes of a compressed file from which the blocks so far were decompressed; 0 for files without compression.

        The sum of `Block.input_bytes` may be larger, as it includes bytes that were read ahead.
        """
        return 0 if self._stream is None else self._stream.reached

    def blocks(self) -> Iterator[Block]:
        """Yield the lines of the span. Damaged compression ends the span with a fatal bad record."""
        with self._opened() as raw:
            hashed = HashedFile(raw) if is_hashed_while_read(self._file, self._span) else None
            yield from self._read(raw, hashed)
            if hashed is not None:
                self.xxh3_128 = hashed.finish()
        if self._stream is not None:
            self.begin, self.end = self._span.begin, self._span.end
        elif self._first_byte >= 0:
            self.begin, self.end = self._first_byte, self._reached

    def _read(self, raw: BinaryIO, hashed: HashedFile | None) -> Iterator[Block]:
        line = counted = 0
        try:
            for block in self._parsed(self._lines(raw, hashed)):
                line += block.num_lines
                used = self._reached - max(self._first_byte, 0)
                if self._source is not None:
                    used = min(self._source.position, self._span.end) - self._span.begin
                block.input_bytes, counted = used - counted, used
                yield block
            if self._stream is not None and self._span.end == self._file.extent:
                self._stream.finish()
        except LostLineError:
            return
        except DamagedStreamError as error:
            block = bad_block(self._spec, [BadRecord(line, self._reached, str(error), fatal=True)])
            block.input_bytes = self._span.end - self._span.begin - counted
            yield block

    def _lines(self, raw: BinaryIO, hashed: HashedFile | None) -> Iterator[Lines]:
        begin, end = self._span.begin, self._span.end
        source: Readable = hashed or raw
        cut: CutStream | None = None
        if self._file.format.endswith((".gz", ".zst")):
            self._source = hashed or CountedFile(raw, begin)
            is_gzip = self._file.format.endswith(".gz")
            source = self._stream = GzipStream(self._source) if is_gzip else ZstdStream(self._source, self._file.name)
            if hashed is None:
                if end < self._file.extent:
                    self._stream.border = end
                source = cut = CutStream(self._stream, is_first=begin == 0)
            begin, end = 0, sys.maxsize
        else:
            begin = go_to_first_line(raw, begin, end, block_bytes=self._block_bytes)
        for lines in read_blocks(
            source, begin, end, block_bytes=self._block_bytes, max_line_bytes=self._max_record_bytes
        ):
            if cut is not None:
                lines = lines._replace(offset=lines.offset + self._span.place + cut.passed_over)
            if self._first_byte < 0:
                self._first_byte = lines.offset
            self._reached = lines.offset + lines.size
            yield lines

    def _parsed(self, lines: Iterable[Lines]) -> Iterator[Block]:
        parse = parse_text if self._file.format.startswith("txt") else parse_jsonl
        return parse(lines, self._spec, self._max_record_bytes)


FIELD = "text"
"""The name of a text's only field, if the spec names none."""


def parse_text(blocks: Iterable[Lines], spec: RecordSpec, max_record_bytes: int) -> Iterator[Block]:
    """Yield the records of the lines of a file in blocks. If records are lines, those of a span are enough."""
    kinds: dict[SampleBy, type[_Parser]] = {
        "line": _LineParser,
        "paragraph": _ParagraphParser,
        "document": _DocumentParser,
    }
    return kinds[spec.sample_by](spec, max_record_bytes).parse(blocks)


class _Parser(ABC):
    """Collects the records of a block. Subclasses find where a record begins and ends."""

    noun = ""

    @abstractmethod
    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield the records of these lines in blocks."""

    def __init__(self, spec: RecordSpec, max_record_bytes: int) -> None:
        self._spec = spec
        self._max_record_bytes = max_record_bytes
        self._field = spec.fields[0] if spec.fields else FIELD
        self._next_line = 0
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._good: list[int] = []
        self._places: list[int] = []
        self._blank: list[int] = []
        self._bad: list[BadRecord] = []

    def _add(self, data: bytes, place: int) -> None:
        """Add the next record, which may turn out blank or bad."""
        line = self._next_line
        self._next_line += 1
        if not data or data.isspace():
            self._blank.append(line)
            return
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            self._bad.append(BadRecord(line, place, bad_utf8(data, error, self.noun)))
            return
        self._texts.append(text)
        self._good.append(line)
        self._places.append(place)

    def _refuse(self, head: bytes, size: int, place: int) -> None:
        """Add the next record as a bad one, because it is too long."""
        message = too_long(head, size, self._max_record_bytes, self.noun)
        self._bad.append(BadRecord(self._next_line, place, message))
        self._next_line += 1

    def _block(self) -> Block:
        """The records that were collected since the last block."""
        block = Block(
            texts=[self._texts for _ in self._spec.fields],
            lines=np.array(self._good, np.int64),
            places=np.array(self._places, np.int64),
            bad=self._bad,
            blank_lines=np.array(self._blank, np.int64),
            records=[{self._field: text} for text in self._texts] if self._spec.whole else None,
        )
        self._clear()
        return block


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
        if self._size <= self._max_record_bytes or not self._open:
            self._open.append(line)

    def _close(self, *, is_ended: bool = True) -> None:
        if not self._size:
            return
        data = NEWLINE.join(self._open)
        if is_ended:  # its last newline is left out already
            data = data.removesuffix(b"\r")
        if self._size > self._max_record_bytes:
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
            if size <= self._max_record_bytes or not pieces:
                pieces.append(lines.data)
        if not size:
            return
        if size > self._max_record_bytes:
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


DELIMITERS = {"csv": ",", "tsv": "\t"}


class CsvReader(SpanReader):
    """Reads all records of a file. The file is not cut into spans, since a quoted field may hold line ends.

    A *line* of its blocks is a record after the line of names, counted from 0; a record may take several lines of the
    file. Every value is a string. Memory: a block, or the longest record.
    """

    def blocks(self) -> Iterator[Block]:
        """Yield all records. Wrong quotes end the file, since it is not known where the next record begins.

        Raises:
            InputError: the file cannot be read or has changed; a column has no name, or two have the same name.
        """
        before = csv.field_size_limit(self._max_record_bytes)
        try:
            with self._opened() as raw:
                hashed = HashedFile(raw)
                yield from self._read(hashed)
                self.xxh3_128 = hashed.finish()
        finally:
            csv.field_size_limit(before)
        self.end = self._file.extent

    def _read(self, hashed: HashedFile) -> Iterator[Block]:
        rows = csv.reader(_text_lines(hashed), delimiter=DELIMITERS[self._file.format], strict=True)
        names = self._names(rows)
        counted = line = 0
        block, num_bytes, good, blank = bad_block(self._spec, []), 0, list[int](), list[int]()
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                message = (
                    f"{error}: nothing behind it can be read; is this {self._file.format.upper()}, quoted by its rules?"
                )
                block.bad.append(BadRecord(line, line, message, fatal=True))
                row, line = None, line + 1
            else:
                if row is not None:
                    num_bytes += self._add(block, good, blank, names, row, line)
                    line += 1
            if num_bytes >= self._block_bytes or (row is None and line > 0):
                block.lines = block.places = np.array(good, np.int64)
                block.blank_lines = np.array(blank, np.int64)
                block.input_bytes, counted = hashed.position - counted, hashed.position
                if block.num_lines:
                    yield block
                block, num_bytes, good, blank = bad_block(self._spec, []), 0, [], []
            if row is None:
                return

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
        return names

    @staticmethod
    def _add(block: Block, good: list[int], blank: list[int], names: list[str], row: list[str], line: int) -> int:
        """Add a row to the records, blank lines or bad records of the block. Returns roughly its bytes."""
        if not row:
            blank.append(line)
            return 1
        if len(row) != len(names):
            block.bad.append(BadRecord(line, line, f"{len(row)} values, and the first line names {len(names)} columns"))
            return len(row)
        size = sum(map(len, row))
        try:
            "".join(row).encode()
        except UnicodeEncodeError:
            block.bad.append(BadRecord(line, line, "not UTF-8"))
            return size
        records: list[Any] = block.records if block.records is not None else []
        records.append(dict(zip(names, row, strict=True)))
        good.append(line)
        return size + len(row)


def _text_lines(file: HashedFile) -> Iterator[str]:
    """Lines with their ends. Bytes that are not UTF-8 become surrogates, so that the record is found to be bad."""
    for lines in read_blocks(file, 0, sys.maxsize, block_bytes=CHUNK_BYTES, max_line_bytes=sys.maxsize):
        for line in split_lines(lines)[0]:
            yield line.decode("utf-8", "surrogateescape") + "\n"
