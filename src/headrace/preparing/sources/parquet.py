"""Reads Parquet files by row groups, in memory that does not depend on the size of a row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.preparing.sources.block import Block, RecordSpec
from headrace.preparing.sources.columns import MAX_BATCH_ROWS, ColumnReader, check_rows, load_pyarrow, needed_columns
from headrace.preparing.sources.source_file import SourceFile, SpanReader
from headrace.preparing.sources.tasks import Span

READ_BYTES = 1 << 20
BATCHES_A_BLOCK = 4
"""In sorted files, rows of similar length lie together; small batches limit the memory for a run of long rows."""


def describe_parquet(path: str, spec: RecordSpec, name: str) -> tuple[int, tuple[int, ...]]:
    """The number of row groups, and the uncompressed bytes of the needed columns of each.

    Raises:
        InputError: the file is not a whole Parquet file, or a column is missing or not text.
        MissingExtraError: pyarrow is not installed.
    """
    with _open(path, name) as file:
        metadata = file.metadata
        columns = _leaves(metadata, _names(file, spec, name))
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        check_rows([group.num_rows for group in groups], "row group", name)
        sizes = tuple(_bytes_of(group, columns) for group in groups)
    return len(sizes), sizes


class ParquetSpanReader(SpanReader):
    """Reads row groups ``[begin, end)``. Pages are read when they are needed, only in this thread.

    Memory: a few batches of rows and one page of each column, see `ColumnReader`.
    """

    def __init__(self, file: SourceFile, span: Span, spec: RecordSpec, *, block_bytes: int) -> None:
        super().__init__(file)
        self._span = span
        self._spec = spec
        self._block_bytes = block_bytes

    def blocks(self) -> Iterator[Block]:
        """Yield all records of the span. Damage costs only the rows of that row group that come after it."""
        name = self._file.name
        self._check_unchanged()
        with _open(self._file.path, name) as file:
            metadata = file.metadata
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            names = _names(file, self._spec, name)
            first_row = sum(rows[: self._span.begin])
            reader = ColumnReader(self._spec, first_row=first_row, block_bytes=self._block_bytes, name=name)
            blocks = self._read(file, reader, names, rows)
            yield from self._with_input_bytes(blocks, first_row, sum(rows))
        self._check_unchanged()
        self.begin, self.end = self._span.begin, self._span.end

    def _read(self, file: Any, reader: ColumnReader, names: list[str], rows: list[int]) -> Iterator[Block]:
        pa = load_pyarrow("pyarrow", self._file.name)
        leaves = _leaves(file.metadata, names)
        end_row = reader.row
        for group in range(self._span.begin, self._span.end):
            end_row += rows[group]
            batches = file.iter_batches(
                batch_size=self._batch_rows(file.metadata.row_group(group), leaves),
                row_groups=[group],
                columns=names,
                use_threads=False,
            )
            try:
                for batch in batches:
                    yield from reader.add(batch)
                damage = "it ends too early"
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise InputError(f"{self._file.name}: the file cannot be read: {error}") from error
                damage = str(error).splitlines()[0]
            if reader.row > end_row:
                raise InputError(f"{self._file.name}: row group {group:,} has more rows than its {rows[group]:,}")
            if reader.row < end_row:
                message = f"row group {group:,} is damaged from row {reader.row:,} of the file on: {damage}"
                yield from reader.lose(end_row - reader.row, message)
        yield from reader.flush()

    def _batch_rows(self, group: Any, leaves: list[int]) -> int:
        wanted: int = self._block_bytes // BATCHES_A_BLOCK * group.num_rows // max(_bytes_of(group, leaves), 1)
        return min(max(wanted, 1), MAX_BATCH_ROWS)


def _open(path: str, name: str) -> Any:
    pa = load_pyarrow("pyarrow", name)
    pq = load_pyarrow("pyarrow.parquet", name)
    try:
        Path(path).open("rb").close()  # raises the system's own message if it refuses access
        return pq.ParquetFile(
            pa.OSFile(path), pre_buffer=False, buffer_size=READ_BYTES, page_checksum_verification=True
        )
    except OSError as error:
        if error.errno is not None:
            raise InputError(f"{name}: the file cannot be read: {error.strerror or error}") from error
        raise _broken(name, error) from error
    except pa.ArrowException as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> InputError:
    what = str(error).splitlines()[0]
    return InputError(f"{name}: not a whole Parquet file: {what} Was it copied or written whole?")


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
