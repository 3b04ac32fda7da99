"""Arrow IPC: files by record batches, streams (what the library ``datasets`` saves) as a whole."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.prepare.sources.arrow_footer import BatchPlace, read_batch_places
from headrace.prepare.sources.block import Block, RecordSpec
from headrace.prepare.sources.columns import ColumnReader, check_rows, load_pyarrow, needed_columns
from headrace.prepare.sources.formats import ARROW_FILE_MAGIC
from headrace.prepare.sources.source_file import SourceFile
from headrace.prepare.sources.span_reader import SpanReader
from headrace.prepare.sources.tasks import Span


def describe_arrow(path: str, spec: RecordSpec, name: str) -> tuple[int, tuple[int, ...]]:
    """The number of record batches and the bytes of each; for a stream its bytes and nothing.

    Raises:
        InputError: neither an Arrow file nor a stream, or a column is missing or no text.
        MissingExtraError: pyarrow is not installed.
    """
    arrow = _Arrow(path, name)
    needed_columns(arrow.schema, spec, name)
    if not arrow.is_file:
        return len(arrow.map), ()
    sizes = tuple(place.num_bytes for place in arrow.places())
    return len(sizes), sizes


class ArrowSpanReader(SpanReader):
    """Record batches ``[begin, end)`` of a file, or all of a stream.

    Memory: the file is mapped, and what was read is let go again block by block. Of compressed files (Feather) the
    needed columns of one batch are decompressed as a whole.
    """

    def __init__(self, file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int) -> None:
        super().__init__(file)
        self._span = span
        self._spec = spec
        self._block_bytes = block_bytes

    def blocks(self) -> Iterator[Block]:
        """See `SpanReader.blocks`. In a file a batch that is damaged costs its own rows; a stream ends there."""
        file = self._file
        self._check_unchanged()
        arrow = _Arrow(file.path, file.name)
        columns = needed_columns(arrow.schema, self._spec, file.name)
        if arrow.is_file:
            rows = [place.num_rows for place in arrow.places()]
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
            del batch  # before the next one is decompressed
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
                    f"the Arrow stream is torn or damaged at about byte {arrow.position:,} of the file: "
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
    """A mapped file."""

    def __init__(self, path: str, name: str) -> None:
        self._pa = load_pyarrow("pyarrow", name)
        self._ipc = load_pyarrow("pyarrow.ipc", name)
        self._name = name
        self.errors = (self._pa.ArrowException, OSError, ValueError)
        try:
            with Path(path).open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{name}: the file cannot be read: {error.strerror or error}") from error
        self.is_file = self.map[: len(ARROW_FILE_MAGIC)] == ARROW_FILE_MAGIC
        self.schema = self.open([]).schema

    @property
    def position(self) -> int:
        """Byte of the file up to which a stream was read."""
        return int(self._source.tell())

    def open(self, columns: list[int]) -> Any:
        """A reader of these columns, of all where none are named."""
        self._source = self._pa.BufferReader(self._pa.py_buffer(self.map))
        options = self._ipc.IpcReadOptions(use_threads=False, included_fields=columns)
        try:
            if self.is_file:
                return self._ipc.open_file(self._source, options=options)
            return self._ipc.open_stream(self._source, options=options)
        except self.errors as error:
            kind = "file" if self.is_file else "stream"
            raise InputError(
                f"{self._name}: no whole Arrow {kind}: {_first(error)}. Was it copied or written whole?"
            ) from error

    def places(self) -> list[BatchPlace]:
        """The record batches of a file."""
        try:
            places = read_batch_places(self.map)
        except ValueError as error:
            raise InputError(f"{self._name}: no whole Arrow file: {error}. Was it copied or written whole?") from error
        check_rows([place.num_rows for place in places], "record batch", self._name)
        return places

    def check(self, batch: Any) -> None:
        """Raise one of ``errors`` where offsets point outside the data, which Arrow itself takes on trust.

        Text that is not UTF-8 is no damage: its rows are found later.
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
        """Give back the memory of what was read; it comes again from the file where it is needed."""
        self.map.madvise(mmap.MADV_DONTNEED)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
