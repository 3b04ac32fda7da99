"""Reads Arrow IPC: files by record batches, and streams (which the library ``datasets`` saves) as a whole."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace.preparing.sources.block import Block, RecordSpec, SpanReader
from headrace.preparing.sources.columnar import ColumnReader, check_rows, load_pyarrow, needed_columns
from headrace.preparing.sources.source_file import ARROW_FILE_MAGIC, SourceFile

_FILE_HEAD_BYTES = 8
"""What comes before the first message of a file: the magic and its padding."""


class BatchSize(NamedTuple):
    """The size of a record batch in a file."""

    num_rows: int
    num_bytes: int


def describe_arrow(source: SourceFile, spec: RecordSpec) -> tuple[int, tuple[int, ...]]:
    """The number of record batches and the bytes of each; for a stream, the number of its bytes and an empty tuple.

    Raises:
        InputError: the file is neither an Arrow file nor a stream, or a column is missing or not text.
        MissingExtraError: pyarrow is not installed.
    """
    arrow = _Arrow(source)
    needed_columns(arrow.schema, spec, source.name)
    if not arrow.is_file:
        return len(arrow.map), ()
    sizes = tuple(size.num_bytes for size in arrow.sizes())
    return len(sizes), sizes


class ArrowSpanReader(SpanReader):
    """Reads record batches ``[begin, end)`` of a file, or a whole stream.

    Memory: the file is mapped, and its pages are released after each block. In compressed files (Feather), the needed
    columns of one batch are decompressed at a time.
    """

    def blocks(self) -> Iterator[Block]:
        """Yield all records of the span. Damage costs a file only the rows of that batch, but ends a stream."""
        file = self._file
        self._check_unchanged()
        arrow = _Arrow(file)
        columns = needed_columns(arrow.schema, self._spec, file.name)
        if arrow.is_file:
            rows = [size.num_rows for size in arrow.sizes()]
            first_row = sum(rows[: self._span.begin])
            blocks = self._read_file(arrow, self._reader(first_row), columns, rows)
            blocks = self._with_input_bytes(blocks, first_row, sum(rows))
        else:
            blocks = self._read_stream(arrow, self._reader(0), columns)
        for block in blocks:
            arrow.let_go()
            yield block
        self._check_unchanged()
        self.begin, self.end = self._span.begin, self._span.end

    def _reader(self, first_row: int) -> ColumnReader:
        return ColumnReader(self._spec, first_row=first_row, block_bytes=self._block_bytes, name=self._file.name)

    def _read_file(self, arrow: _Arrow, reader: ColumnReader, columns: list[int], rows: list[int]) -> Iterator[Block]:
        opened = arrow.open(columns)
        for number in range(self._span.begin, self._span.end):
            try:
                batch = opened.get_batch(number)
                arrow.check(batch)
                if batch.num_rows != rows[number]:
                    raise ValueError(f"it has {batch.num_rows:,} rows, and {rows[number]:,} by its head")
            except arrow.errors as error:
                message = (
                    f"record batch {number:,} (from row {reader.row:,} of the file on) is damaged: {_first(error)}"
                )
                yield from reader.lose(rows[number], message)
                continue
            yield from reader.add(batch)
            del batch  # free it before the next one is decompressed
        yield from reader.flush()

    def _read_stream(self, arrow: _Arrow, reader: ColumnReader, columns: list[int]) -> Iterator[Block]:
        stream = arrow.open(columns)
        reached = 0
        while True:
            try:
                batch = stream.read_next_batch()
                arrow.check(batch)
                blocks = reader.add(batch)
            except StopIteration:
                blocks = reader.flush()
                batch = None
            except arrow.errors as error:
                blocks = reader.fail(
                    f"the Arrow stream is incomplete or damaged at about byte {arrow.position:,} of the file: "
                    f"{_first(error)}. All rows from here on are lost: fetch or write the file again."
                )
                batch = None
            for block in blocks:
                block.input_bytes = arrow.position - reached
                reached = arrow.position
                yield block
            if batch is None:
                return


class _Arrow:
    """An Arrow file or stream, as a memory map; of an object, a local copy is mapped."""

    def __init__(self, source: SourceFile) -> None:
        name = source.name
        self._pa = load_pyarrow("pyarrow", name)
        self._ipc = load_pyarrow("pyarrow.ipc", name)
        self._name = name
        self.errors = (self._pa.ArrowException, OSError, ValueError)
        try:
            with Path(source.local_path()).open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{name}: the file cannot be read: {error.strerror or error}") from error
        self.is_file = self.map[: len(ARROW_FILE_MAGIC)] == ARROW_FILE_MAGIC
        self.schema = self.open([]).schema

    @property
    def position(self) -> int:
        """The byte of the file up to which a stream was read."""
        return int(self._source.tell())

    def open(self, columns: list[int]) -> Any:
        """Open a reader of these columns, or of all columns if the list is empty."""
        self._source = self._pa.BufferReader(self._buffer())
        options = self._ipc.IpcReadOptions(use_threads=False, included_fields=columns)
        try:
            if self.is_file:
                return self._ipc.open_file(self._source, options=options)
            return self._ipc.open_stream(self._source, options=options)
        except self.errors as error:
            raise self._broken(_first(error)) from error

    def _broken(self, what: str) -> InputError:
        kind = "file" if self.is_file else "stream"
        return InputError(f"{self._name}: not a whole Arrow {kind}: {what}. Was it copied or written whole?")

    def _buffer(self) -> Any:
        return self._pa.py_buffer(self.map)

    def sizes(self) -> list[BatchSize]:
        """The sizes of the record batches of a file. Only the head of each is read, and nothing is decompressed."""
        found: list[BatchSize] = []
        try:
            num_batches = self.open([]).num_record_batches
            messages = self._ipc.MessageReader.open_stream(self._buffer().slice(_FILE_HEAD_BYTES))
            while len(found) < num_batches:
                message = messages.read_next_message()
                if message.type == "record batch":
                    # Of a schema without columns no column is read.
                    num_rows = self._ipc.read_record_batch(message, self._pa.schema([])).num_rows
                    found.append(BatchSize(num_rows, message.metadata.size + message.body.size))
        except (*self.errors, StopIteration) as error:
            raise self._broken(_first(error) or "it has fewer record batches than its footer says") from error
        check_rows([size.num_rows for size in found], "record batch", self._name)
        return found

    def check(self, batch: Any) -> None:
        """Raise one of ``errors`` if offsets point outside the data, which Arrow itself does not check.

        Text that is not UTF-8 is not damage; its rows are found later.
        """
        pa = self._pa
        as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
        for column in batch.columns:
            if column.type in as_bytes:
                column.view(as_bytes[column.type]).validate(full=True)
                continue
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                if "UTF8" not in str(error):
                    raise

    def let_go(self) -> None:
        """Release the memory of what was read; pages that are needed again are read from the file."""
        self.map.madvise(mmap.MADV_DONTNEED)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
