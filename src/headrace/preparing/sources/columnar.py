"""Turns Arrow record batches into blocks of records, and reads Parquet files by row groups.

The memory does not depend on the size of a row group. Arrow files, whose batches are read in `arrow`, become blocks in
the same way.

Reads Arrow IPC: files by record batches, and streams (which the library ``datasets`` saves) as a whole.
"""

from __future__ import annotations

import importlib
import itertools
import mmap
from abc import abstractmethod
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.config import nearest
from headrace.errors import ConfigError, InputError, MissingExtraError
from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, SpanReader, bad_block, bad_utf8
from headrace.preparing.sources.source_file import ARROW_FILE_MAGIC, SourceFile, input_errors

MAX_BATCH_ROWS = 1024
MAX_UNIT_ROWS = 1 << 31
"""A row group or record batch that claims to have more rows is damaged. Otherwise each of these rows would become a bad
record."""
LOST_ROWS_A_BLOCK = 1 << 16
ROW_BYTES = 16
"""Bytes that are added for each row, so that empty rows also fill a block."""


def load_pyarrow(module: str, name: str) -> ModuleType:
    """Import a module of pyarrow, such as ``pyarrow.parquet``.

    Raises:
        MissingExtraError: it is not installed. The message names the file ``name``, which needs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{name}: reading Parquet and Arrow needs pyarrow: pip install 'headrace[parquet]'"
        ) from error


def needed_columns(schema: Any, spec: RecordSpec, name: str) -> list[int]:
    """Indices of the columns that the spec needs, ascending.

    Raises:
        ConfigError: a column is missing, exists twice, or is not text (for an id: neither text nor an integer).
        InputError: the name of a column is not UTF-8.
    """
    pa = load_pyarrow("pyarrow", name)
    try:
        schema.names  # noqa: B018 - this decodes all names
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: the name of a column is not UTF-8: {error}") from error
    found = set()
    for field in spec.named:
        indices = schema.get_all_field_indices(field)
        if not indices:
            near = nearest(field, schema.names)
            raise ConfigError(
                f"{name}: no column {field!r}{near}; its columns are: {_columns_in_words(schema)}"
                f" ({spec.option(field)})"
            )
        if len(indices) > 1:
            raise ConfigError(f"{name}: {len(indices)} columns are called {field!r}: rename all but one")
        kind = _plain_type(pa, schema.field(indices[0]).type)
        is_text = any(check(kind) for check in _text_checks(pa))
        if field in spec.fields and not is_text:
            raise ConfigError(
                f"{name}: column {field!r} is {kind}, not text; its columns are: {_columns_in_words(schema)}"
            )
        if not is_text and not pa.types.is_integer(kind):
            raise ConfigError(f"{name}: id column {field!r} is {kind}, neither text nor an integer")
        found.update(indices)
    return list(range(len(schema))) if spec.whole else sorted(found)


def check_rows(rows: list[int], what: str, name: str) -> None:
    """Raise InputError if a row group or record batch claims an impossible number of rows."""
    for number, num_rows in enumerate(rows):
        if not 0 <= num_rows <= MAX_UNIT_ROWS:
            raise InputError(
                f"{name}: {what} {number:,} claims to have {num_rows:,} rows: the file is damaged. Fetch or write it "
                "again."
            )


class ColumnReader(SpanReader):
    """Turns the record batches of one span into blocks, and counts the rows.

    Memory: a batch, and texts of ``block_bytes`` (or a single longer text).
    """

    in_order = False

    @abstractmethod
    def _open(self, raw: BinaryIO) -> list[int]:
        """Open the file; return the rows of each of its units."""

    @abstractmethod
    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        """Yield the batches of a row group or record batch; raise ValueError or an error of Arrow at damage."""

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        """Yield all records of the span. Damage costs only the rows of a unit that come after it."""
        rows = self._open(raw)
        self._begin(sum(rows[: self._span.begin]))
        yield from self._with_input_bytes(self._read(rows), self._row, sum(rows))

    def _begin(self, first_row: int) -> None:
        self._pa = load_pyarrow("pyarrow", self._file.name)
        self._compute = load_pyarrow("pyarrow.compute", self._file.name)
        self._errors = (self._pa.ArrowException, OSError, ValueError)
        self._named = [*self._spec.fields, *([] if self._spec.id_field is None else [self._spec.id_field])]
        self._first_row = self._row = first_row
        self._block = bad_block(self._spec, [])
        self._rows: list[NDArray[np.int64]] = []
        self._held_bytes = 0

    def _read(self, rows: list[int]) -> Iterator[Block]:
        for unit in range(self._span.begin, self._span.end):
            end_row, damage = self._row + rows[unit], "it ends too early"
            batches = self._batches(unit, rows[unit])
            while True:
                try:
                    batch = next(batches, None)
                except self._errors as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    batch, damage = None, _first(error)
                if batch is None:
                    break
                yield from self._add(batch)
                del batch  # free it before the next one is decompressed
            what = f"{'row group' if self._file.format == 'parquet' else 'record batch'} {unit:,}"
            if self._row > end_row:
                raise InputError(f"{self._file.name}: {what} has more rows than its {rows[unit]:,}")
            if self._row < end_row:
                message = f"{what} is damaged from row {self._row:,} of the file on: {damage}"
                yield from self._lose(end_row - self._row, message)
        yield from self._flush()

    def _add(self, batch: Any) -> Iterator[Block]:
        """Add a batch, and yield the blocks that it completes."""
        cuts = self._cuts(batch)
        for begin, end in itertools.pairwise(cuts):
            self._take(batch.slice(begin, end - begin))
            if self._held_bytes >= self._block_bytes:
                yield from self._flush()

    def _lose(self, num_rows: int, message: str) -> Iterator[Block]:
        """Yield the next rows as bad records, as they cannot be read."""
        yield from self._flush()
        while num_rows > 0:
            count = min(num_rows, LOST_ROWS_A_BLOCK)
            rows = range(self._row, self._row + count)
            yield bad_block(self._spec, [BadRecord(row - self._first_row, row, message) for row in rows])
            self._row += count
            num_rows -= count

    def _fail(self, message: str) -> Iterator[Block]:
        """Yield a fatal bad record, as nothing of the file can be read from the next row on."""
        yield from self._flush()
        yield bad_block(self._spec, [BadRecord(self._row - self._first_row, self._row, message, fatal=True)])
        self._row += 1

    def _flush(self) -> Iterator[Block]:
        """Yield the last block, if it holds anything."""
        block, rows = self._block, self._rows
        self._block, self._rows, self._held_bytes = bad_block(self._spec, []), [], 0
        if rows:
            block.places = np.concatenate(rows)
            block.lines = block.places - self._first_row
            yield block

    def _cuts(self, batch: Any) -> list[int]:
        """The rows at which to cut a batch so that each slice holds at most one block of text, or one row."""
        sizes = np.full(batch.num_rows, ROW_BYTES, np.int64)
        for field in self._spec.fields:
            sizes += self._lengths(self._plain(batch.column(field)))
        if not self._spec.fields:
            sizes += batch.nbytes // max(batch.num_rows, 1)  # the average is accurate enough for nested columns
        cuts = [0]
        ends = np.cumsum(sizes)
        while cuts[-1] < batch.num_rows:
            before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
            fitting = int(np.searchsorted(ends, before + self._block_bytes, side="right"))
            cuts.append(max(fitting, cuts[-1] + 1))
        return cuts

    def _lengths(self, column: Any) -> NDArray[np.int64]:
        """(rows,) bytes of each text, 0 for null."""
        pa = self._pa
        if pa.types.is_dictionary(column.type):
            lengths = pa.array(self._lengths(column.dictionary)).take(column.indices)
        elif column.type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            lengths = self._compute.binary_length(column)
        else:  # views have no kernel for it
            lengths = self._compute.binary_length(column.cast(pa.large_binary()))
        return np.asarray(lengths.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)

    def _take(self, batch: Any) -> None:
        bad: dict[int, str] = {}
        columns = [self._to_texts(self._plain(batch.column(field)), field, bad) for field in self._named]
        if self._spec.whole:
            columns.append(self._to_records(batch, bad))
        rows = np.arange(self._row, self._row + batch.num_rows)
        if bad:
            good = [row for row in range(batch.num_rows) if row not in bad]
            columns = [[column[row] for row in good] for column in columns]
            rows = rows[good]
            first = self._row - self._first_row
            self._block.bad += [BadRecord(first + row, self._row + row, bad[row]) for row in sorted(bad)]
        for collected, column in zip(self._collected(), columns, strict=True):
            collected += column
        texts = columns[: len(self._spec.fields)]
        self._rows.append(rows)
        self._held_bytes += ROW_BYTES * batch.num_rows + sum(sum(map(len, column)) for column in texts)
        self._held_bytes += 0 if texts else batch.nbytes
        self._row += batch.num_rows

    def _collected(self) -> list[list[Any]]:
        """The lists of the block, in the order of the columns that `_take` reads: texts, ids, whole records."""
        block = self._block
        return [*block.texts, *(part for part in (block.ids, block.records) if part is not None)]

    def _plain(self, column: Any) -> Any:
        return column.storage if isinstance(column.type, self._pa.BaseExtensionType) else column

    def _to_texts(self, column: Any, field: str, bad: dict[int, str]) -> list[Any]:
        """The values of a column. For rows without valid text, a message is added to ``bad`` unless there is one."""
        pa = self._pa
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        is_binary = not any(check(column.type) for check in _text_checks(pa)[:3])
        try:
            values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        except (pa.ArrowException, UnicodeDecodeError):
            is_binary = True
            values = column.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist()
        if column.null_count:
            for row, value in enumerate(values):
                if value is None:
                    bad.setdefault(row, f"column {field!r} is null")
        if is_binary:
            for row, value in enumerate(values):
                try:
                    values[row] = value if value is None else value.decode("utf-8")
                except UnicodeDecodeError as error:
                    bad.setdefault(row, bad_utf8(value, error, f"column {field!r}"))
        return values

    def _to_records(self, batch: Any, bad: dict[int, str]) -> list[Any]:
        try:
            return batch.to_pylist()  # type: ignore[no-any-return]
        except (UnicodeDecodeError, ValueError, OverflowError):
            records: list[Any] = []
            for row in range(batch.num_rows):
                try:
                    records += batch.slice(row, 1).to_pylist()
                except (UnicodeDecodeError, ValueError, OverflowError) as error:
                    records.append(None)
                    bad.setdefault(row, f"the row cannot be turned into Python objects: {error}")
            return records


def _text_checks(pa: ModuleType) -> list[Any]:
    types = pa.types
    strings = [types.is_string, types.is_large_string, types.is_string_view]
    return [*strings, types.is_binary, types.is_large_binary, types.is_binary_view]


def _plain_type(pa: ModuleType, kind: Any) -> Any:
    """The type of the values, with dictionary and extension types unwrapped."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _columns_in_words(schema: Any) -> str:
    shown = ", ".join(f"{field.name!r} ({field.type})" for field in list(schema)[:12])
    return (shown or "none") + (f" and {len(schema) - 12} more" if len(schema) > 12 else "")


READ_BYTES = 1 << 20
BATCHES_A_BLOCK = 4
"""In sorted files, rows of similar length lie together; small batches limit the memory for a run of long rows."""


def describe_parquet(source: SourceFile, spec: RecordSpec) -> tuple[int, tuple[int, ...]]:
    """The number of row groups, and the uncompressed bytes of the needed columns of each.

    Raises:
        ConfigError: a column is missing or not text.
        InputError: the file is not a whole Parquet file.
        MissingExtraError: pyarrow is not installed.
    """
    name = source.name
    with input_errors(name), source.open(in_order=False) as raw:
        file = _opened(raw, name)
        columns = _leaves(file.metadata, _names(file, spec, name))
        groups = _groups(file, name)
        sizes = tuple(_bytes_of(group, columns) for group in groups)
    return len(sizes), sizes


class ParquetSpanReader(ColumnReader):
    """Reads row groups ``[begin, end)``. Pages are read when they are needed, only in this thread.

    Memory: a few batches of rows and one page of each column, see `ColumnReader`.
    """

    def _open(self, raw: BinaryIO) -> list[int]:
        self._reader = _opened(raw, self._file.name)
        self._columns = _names(self._reader, self._spec, self._file.name)
        return [group.num_rows for group in _groups(self._reader, self._file.name)]

    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        metadata = self._reader.metadata
        size = _bytes_of(metadata.row_group(unit), _leaves(metadata, self._columns))
        wanted = self._block_bytes // BATCHES_A_BLOCK * num_rows // max(size, 1)
        batch_rows = min(max(wanted, 1), MAX_BATCH_ROWS)
        yield from self._reader.iter_batches(
            batch_size=batch_rows, row_groups=[unit], columns=self._columns, use_threads=False
        )


def _opened(raw: BinaryIO | RawIOBase, name: str) -> Any:
    pa, pq = load_pyarrow("pyarrow", name), load_pyarrow("pyarrow.parquet", name)
    file = pa.PythonFile(raw, mode="r")
    try:
        return pq.ParquetFile(file, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = str(error).splitlines()[0]
        raise InputError(f"{name}: not a whole Parquet file: {what} Was it copied or written whole?") from error


def _groups(file: Any, name: str) -> list[Any]:
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    check_rows([group.num_rows for group in groups], "row group", name)
    return groups


def _names(file: Any, spec: RecordSpec, name: str) -> list[str]:
    schema = file.schema_arrow
    return [schema.field(at).name for at in needed_columns(schema, spec, name)]


def _leaves(metadata: Any, names: list[str]) -> list[int]:
    """Indices of the Parquet leaf columns of these columns, several if a column is nested."""
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    return [at for at, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in names)]


def _bytes_of(group: Any, leaves: list[int]) -> int:
    """Uncompressed bytes of these columns of a row group."""
    return sum(group.column(at).total_uncompressed_size for at in leaves)


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


class ArrowSpanReader(ColumnReader):
    """Reads record batches ``[begin, end)`` of a file, or a whole stream, in which damage ends the reading.

    Memory: the file is mapped, and its pages are released after each block. In compressed files (Feather), the needed
    columns of one batch are decompressed at a time.
    """

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        self._arrow = arrow = _Arrow(self._file)
        self._columns = needed_columns(arrow.schema, self._spec, self._file.name)
        for block in super()._blocks(raw) if arrow.is_file else self._read_stream(arrow):
            arrow.let_go()
            yield block

    def _open(self, raw: BinaryIO) -> list[int]:
        self._reader = self._arrow.open(self._columns)
        return [size.num_rows for size in self._arrow.sizes()]

    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        batch = self._reader.get_batch(unit)
        self._arrow.check(batch)
        if batch.num_rows != num_rows:
            raise ValueError(f"it has {batch.num_rows:,} rows, and {num_rows:,} by its head")
        yield batch

    def _read_stream(self, arrow: _Arrow) -> Iterator[Block]:
        self._begin(0)
        stream = arrow.open(self._columns)
        reached = 0
        while True:
            try:
                batch = stream.read_next_batch()
                arrow.check(batch)
                blocks = self._add(batch)
            except StopIteration:
                blocks = self._flush()
                batch = None
            except self._errors as error:
                blocks = self._fail(
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
        with input_errors(name), Path(source.local_path()).open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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
