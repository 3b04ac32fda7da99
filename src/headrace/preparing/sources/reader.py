"""Opens the reader of a span, whatever the format of its file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from headrace.errors import InputError
from headrace.preparing.sources.arrow import ArrowSpanReader
from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, bad_block
from headrace.preparing.sources.compressed import DamagedStreamError, Decompressed, GzipStream, HashedFile, ZstdStream
from headrace.preparing.sources.csv_table import CsvReader
from headrace.preparing.sources.json import JsonlParser, ListReader
from headrace.preparing.sources.lines import BLOCK_BYTES, MAX_LINE_BYTES, Lines, Readable, read_blocks
from headrace.preparing.sources.parquet import ParquetSpanReader
from headrace.preparing.sources.source_file import SourceFile, SpanReader
from headrace.preparing.sources.tasks import Span, is_hashed_while_read
from headrace.preparing.sources.text import TextParser, text_parser


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
    if file.fault:
        return FaultReader(file, spec)
    if file.format == "parquet":
        return ParquetSpanReader(file, span, spec, block_bytes=block_bytes)
    if file.format == "arrow":
        return ArrowSpanReader(file, span, spec, block_bytes=block_bytes)
    if file.format == "json":
        return ListReader(file, spec, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
    if file.format in ("csv", "tsv"):
        return CsvReader(file, spec, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
    return LineSpanReader(file, span, spec, block_bytes=block_bytes, max_record_bytes=max_record_bytes)


class FaultReader(SpanReader):
    """Reads a file of which nothing can be read: its only record is a bad one that says why."""

    def __init__(self, file: SourceFile, spec: RecordSpec) -> None:
        super().__init__(file)
        self._spec = spec

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
        super().__init__(file)
        self._span = span
        self._spec = spec
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes
        self._stream: Decompressed | None = None
        self._first_byte = -1
        self._reached = 0
        """The byte up to which lines were read, after decompression."""

    @property
    def compressed_bytes(self) -> int:
        """Bytes of a compressed file from which the blocks so far were decompressed; 0 for files without compression.

        The sum of `Block.input_bytes` may be larger, as it includes bytes that were read ahead.
        """
        return 0 if self._stream is None else self._stream.reached

    def blocks(self) -> Iterator[Block]:
        """Yield the lines of the span. Damaged compression ends the file with a fatal bad record."""
        is_hashed = is_hashed_while_read(self._file, self._span)
        try:
            with Path(self._file.path).open("rb", buffering=0) as raw:
                self._file.check_unchanged(os.fstat(raw.fileno()))
                hashed = HashedFile(raw) if is_hashed else None
                yield from self._read(raw, hashed)
                if hashed is not None:
                    self.xxh3_128 = hashed.finish()
                self._file.check_unchanged(os.fstat(raw.fileno()))
        except OSError as error:
            raise InputError(f"{self._file.name}: the file cannot be read: {error.strerror or error}") from error
        if self._stream is not None:
            self.end = self._file.extent
        elif self._first_byte >= 0:
            self.begin, self.end = self._first_byte, self._reached

    def _read(self, raw: BinaryIO, hashed: HashedFile | None) -> Iterator[Block]:
        parse = self._parser()
        line = counted = 0
        try:
            for block in parse(self._lines(raw, hashed)):
                line += block.num_lines
                used = self._reached - max(self._first_byte, 0)
                if self._stream is not None and hashed is not None:
                    used = hashed.position
                block.input_bytes, counted = used - counted, used
                yield block
            if self._stream is not None:
                self._stream.finish()
        except DamagedStreamError as error:
            block = bad_block(self._spec, [BadRecord(line, self._reached, str(error), fatal=True)])
            block.input_bytes = self._file.size_bytes - counted
            yield block

    def _lines(self, raw: BinaryIO, hashed: HashedFile | None) -> Iterator[Lines]:
        begin, end = self._span.begin, self._span.end
        source: Readable = hashed or raw
        if hashed is not None and self._file.format.endswith((".gz", ".zst")):
            gzip = self._file.format.endswith(".gz")
            source = self._stream = GzipStream(hashed) if gzip else ZstdStream(hashed, self._file.name)
            begin, end = 0, sys.maxsize
        for lines in read_blocks(
            source, begin, end, block_bytes=self._block_bytes, max_line_bytes=self._max_record_bytes
        ):
            if self._first_byte < 0:
                self._first_byte = lines.offset
            self._reached = lines.offset + lines.size
            yield lines

    def _parser(self) -> TextParser:
        if self._file.format.startswith("txt"):
            return text_parser(self._spec, self._max_record_bytes)
        return JsonlParser(self._spec, self._max_record_bytes).parse
