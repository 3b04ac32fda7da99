"""Turns Arrow record batches into blocks of records, and reads Parquet files by row groups.

The memory does not depend on the size of a row group. Arrow files, whose batches are read in `arrow`, become blocks in
the same way.

Reads Arrow IPC: files by record batches, and streams (which the library ``datasets`` saves) as a whole.
"""

from __future__ import annotations

import itertools
import mmap
from abc import abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from headrace.config import nearest
from headrace.errors import ConfigError, InputError, load_extra
from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, SpanReader, bad_block, bad_utf8
from headrace.preparing.sources.source_file import ARROW_FILE_MAGIC, SourceFile, Span, input_errors

MAX_BATCH_ROWS = 1024
MAX_UNIT_ROWS = 1 << 31
"""A row group or record batch that claims to have more rows is damaged. Otherwise each of these rows would become a bad
record."""
LOST_ROWS_A_BLOCK = 1 << 16
ROW_BYTES = 16
"""Bytes that are added for each row, so that empty rows also fill a block."""


def load_pyarrow(module: str, name: str) -> Any:
    """Import a module of pyarrow, such as ``pyarrow.parquet``.

    Raises:
        MissingExtraError: it is not installed. The message names the file ``name``, which needs it.
    """
    return load_extra(module, f"{name}: reading Parquet and Arrow needs pyarrow: pip install 'headrace[parquet]'")


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


class UnitSize(NamedTuple):
    """The size of a row group or a record batch."""

    num_rows: int
    num_bytes: int


class ColumnReader(SpanReader):
    """Turns the record batches of one span into blocks, and counts the rows.

    Memory: a batch, and texts of ``block_bytes`` (or a single longer text).
    """

    in_order = False
    noun: ClassVar[str]

    def __init__(self, file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int) -> None:
        super().__init__(file, span, spec, block_bytes=block_bytes)
        self._pa, self._compute = (load_pyarrow(module, file.name) for module in ("pyarrow", "pyarrow.compute"))
        self._errors = (self._pa.ArrowException, OSError, ValueError)
        self._named = [*spec.fields, *([] if spec.id_field is None else [spec.id_field])]

    @abstractmethod
    def _open(self, raw: BinaryIO) -> list[UnitSize]:
        """Open the file, and check that it has the needed columns; return the sizes of its units."""

    @abstractmethod
    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        """Yield the batches of a row group or record batch; raise ValueError or an error of Arrow at damage."""

    def describe(self) -> tuple[int, tuple[int, ...]]:
        """See `SpanReader`: the number of row groups or record batches, and the bytes of each."""
        with input_errors(self._file.name), self._file.open(in_order=False) as raw:
            units = self._units(cast(BinaryIO, raw))
        return len(units), tuple(unit.num_bytes for unit in units)

    def _units(self, raw: BinaryIO) -> list[UnitSize]:
        units = self._open(raw)
        for number, unit in enumerate(units):
            if not 0 <= unit.num_rows <= MAX_UNIT_ROWS:
                raise InputError(
                    f"{self._file.name}: {self.noun} {number:,} claims to have {unit.num_rows:,} rows: the file is"
                    " damaged. Fetch or write it again."
                )
        return units

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        """Yield all records of the span. Damage costs only the rows of a unit that come after it."""
        rows = [unit.num_rows for unit in self._units(raw)]
        self._begin(sum(rows[: self._span.begin]))
        yield from self._with_input_bytes(self._read(rows), self._row, sum(rows))

    def _begin(self, first_row: int) -> None:
        self._first_row = self._row = first_row
        self._block = bad_block(self._spec, [])
        self._rows: list[NDArray[np.int64]] = []
        self._held_bytes = 0

    def _read(self, rows: list[int]) -> Iterator[Block]:
        for unit in range(self._span.begin, self._span.end):
            end_row = self._row + rows[unit]
            damage = yield from self._add_all(self._batches(unit, rows[unit]))
            what = f"{self.noun} {unit:,}"
            if self._row > end_row:
                raise InputError(f"{self._file.name}: {what} has more rows than its {rows[unit]:,}")
            if self._row < end_row:
                damage = "it ends too early" if damage is None else damage
                message = f"{what} is damaged from row {self._row:,} of the file on: {damage}"
                yield from self._lose(end_row - self._row, message)
        yield from self._flush()

    def _add_all(self, batches: Iterator[Any]) -> Generator[Block, None, str | None]:
        """Add all batches, and yield the blocks that these complete; return at what damage they end, if at any."""
        while True:
            try:
                batch = next(batches, None)
            except self._errors as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                return _first(error)
            if batch is None:
                return None
            yield from self._add(batch)
            del batch  # free it before the next one is decompressed

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


class ParquetSpanReader(ColumnReader):
    """Reads row groups ``[begin, end)``. Pages are read when they are needed, only in this thread.

    Of a unit the uncompressed bytes of the needed columns are counted. Memory: a few batches of rows and one page of
    each column, see `ColumnReader`.
    """

    noun = "row group"

    def _open(self, raw: BinaryIO) -> list[UnitSize]:
        name = self._file.name
        pq = load_pyarrow("pyarrow.parquet", name)
        file = self._pa.PythonFile(raw, mode="r")
        try:
            self._opened = pq.ParquetFile(
                file, pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
            )
        except (OSError, self._pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            what = str(error).splitlines()[0]
            raise InputError(f"{name}: not a whole Parquet file: {what} Was it copied or written whole?") from error
        metadata, schema = self._opened.metadata, self._opened.schema_arrow
        self._columns = [schema.field(at).name for at in needed_columns(schema, self._spec, name)]
        leaves = _leaves(metadata, self._columns)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        self._groups = [
            UnitSize(group.num_rows, sum(group.column(at).total_uncompressed_size for at in leaves)) for group in groups
        ]
        return self._groups

    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        wanted = self._block_bytes // BATCHES_A_BLOCK * num_rows // max(self._groups[unit].num_bytes, 1)
        batch_rows = min(max(wanted, 1), MAX_BATCH_ROWS)
        yield from self._opened.iter_batches(
            batch_size=batch_rows, row_groups=[unit], columns=self._columns, use_threads=False
        )


def _leaves(metadata: Any, names: list[str]) -> list[int]:
    """Indices of the Parquet leaf columns of these columns, several if a column is nested."""
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    return [at for at, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in names)]


_FILE_HEAD_BYTES = 8
"""What comes before the first message of a file: the magic and its padding."""


class ArrowSpanReader(ColumnReader):
    """Reads record batches ``[begin, end)`` of a file, or a whole stream, in which damage ends the reading.

    Memory: the file, or a local copy of an object, is mapped, and its pages are released after each block. In
    compressed files (Feather), the needed columns of one batch are decompressed at a time.
    """

    noun = "record batch"

    def describe(self) -> tuple[int, tuple[int, ...]]:
        """See `SpanReader`; of a stream nothing but the number of its bytes is known."""
        self._map()
        return super().describe() if self._is_file else (len(self._mapped), ())

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        self._map()
        for block in super()._blocks(raw) if self._is_file else self._read_stream():
            self._mapped.madvise(mmap.MADV_DONTNEED)  # pages that are needed again are read from the file
            yield block

    def _map(self) -> None:
        name = self._file.name
        self._ipc = load_pyarrow("pyarrow.ipc", name)
        with input_errors(name), Path(self._file.local_path()).open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._is_file = self._mapped[: len(ARROW_FILE_MAGIC)] == ARROW_FILE_MAGIC
        self._columns: list[int] = []
        self._columns = needed_columns(self._new_reader().schema, self._spec, name)

    def _buffer(self) -> Any:
        return self._pa.py_buffer(self._mapped)

    def _new_reader(self) -> Any:
        """Open a reader of the needed columns; of all columns as long as these are not known."""
        self._source = self._pa.BufferReader(self._buffer())
        options = self._ipc.IpcReadOptions(use_threads=False, included_fields=self._columns)
        try:
            if self._is_file:
                return self._ipc.open_file(self._source, options=options)
            return self._ipc.open_stream(self._source, options=options)
        except self._errors as error:
            raise self._broken(_first(error)) from error

    def _broken(self, what: str) -> InputError:
        kind = "file" if self._is_file else "stream"
        return InputError(f"{self._file.name}: not a whole Arrow {kind}: {what}. Was it copied or written whole?")

    def _open(self, raw: BinaryIO) -> list[UnitSize]:
        """Read the head of each record batch; nothing is decompressed."""
        self._opened = self._new_reader()
        found: list[UnitSize] = []
        try:
            messages = self._ipc.MessageReader.open_stream(self._buffer().slice(_FILE_HEAD_BYTES))
            while len(found) < self._opened.num_record_batches:
                message = messages.read_next_message()
                if message.type == "record batch":
                    # Of a schema without columns no column is read.
                    num_rows = self._ipc.read_record_batch(message, self._pa.schema([])).num_rows
                    found.append(UnitSize(num_rows, message.metadata.size + message.body.size))
        except (*self._errors, StopIteration) as error:
            raise self._broken(_first(error) or "it has fewer record batches than its footer says") from error
        return found

    def _batches(self, unit: int, num_rows: int) -> Iterator[Any]:
        batch = self._checked(self._opened.get_batch(unit))
        if batch.num_rows != num_rows:
            raise ValueError(f"it has {batch.num_rows:,} rows, and {num_rows:,} by its head")
        yield batch

    def _read_stream(self) -> Iterator[Block]:
        self._begin(0)
        reached = 0
        for block in self._stream_blocks():
            position = self._source.tell()
            block.input_bytes, reached = position - reached, position
            yield block

    def _stream_blocks(self) -> Iterator[Block]:
        damage = yield from self._add_all(map(self._checked, self._new_reader()))
        if damage is None:
            yield from self._flush()
            return
        yield from self._fail(
            f"the Arrow stream is incomplete or damaged at about byte {self._source.tell():,} of the file: "
            f"{damage}. All rows from here on are lost: fetch or write the file again."
        )

    def _checked(self, batch: Any) -> Any:
        """Return the batch; raise one of the errors if offsets point outside it, which Arrow itself does not check.

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
        return batch


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")
