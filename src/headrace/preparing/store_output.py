"""Writes the shards of a run: one series of shards, or one series for each domain.

A killed run continues each series where its state says. Files of HDF5 or JSON lines cannot be continued, so their
documents are first written as a shard of the keyed layout, and copied when that is complete.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import output_errors, write_all
from headrace.preparing.columns import Column, IntArray, Row, Rows, keep_rows, num_values, stored
from headrace.stores import Hdf5Writer, IndexedWriter, JsonlWriter, KeyedStore, KeyedWriter, WriterState, WrittenShard
from headrace.stores.keyed.writer import MAX_DOCUMENTS
from headrace.stores.writer import ShardFilling

BATCH_DOCUMENTS = 4096

STAGED: Final[dict[str, tuple[type[Hdf5Writer | JsonlWriter], str]]] = {
    "hdf5": (Hdf5Writer, ".h5"),
    "jsonl": (JsonlWriter, ".jsonl"),
}
"""The layouts that are written in one go, from a complete shard of the keyed layout: writer and suffix of each."""


def write_staged_shard(staged: Path, folder: Path, number: int, layout: str, columns: Sequence[Column]) -> WrittenShard:
    """Copy a complete shard of the keyed layout into a file ``data_<number>``, which appears whole or not at all.

    Cost: 50 us for each document and key with HDF5, and 50 ns for each number with JSON lines.

    Raises:
        OutputError: the system refuses a write.
        StoreError: the shard is damaged.
        MissingExtraError: h5py is not installed.
    """
    make, suffix = STAGED[layout]
    path = folder / f"data_{number:04d}{suffix}"
    store = KeyedStore(staged)
    try:
        bounds = {column.key: _bounds(store, column.key) for column in columns}
        dtypes = {column.key: column.dtype for column in columns}
        values = [column.key for column in columns if column.kind != "ids"]
        with make(path, dtypes=dtypes, values=values) as writer:
            for first in range(0, store.num_documents, BATCH_DOCUMENTS):
                last = min(first + BATCH_DOCUMENTS, store.num_documents)
                own = {key: ends[first : last + 1] for key, ends in bounds.items()}
                tokens = {key: store.with_main(key).fetch(int(ends[0]), int(ends[-1])) for key, ends in own.items()}
                writer.add_documents(tokens, {key: np.diff(ends) for key, ends in own.items()})
            return writer.finish()
    finally:
        store.close()


def _bounds(store: KeyedStore, key: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = store.with_main(key).lengths
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


Layout = Literal["indexed", "keyed", "hdf5", "jsonl"]


class SeriesState(msgspec.Struct, frozen=True, kw_only=True):
    """The complete shards of a series, and the states of the writers of the next shard."""

    finished: tuple[tuple[WrittenShard, ...], ...] = ()
    writers: tuple[WriterState, ...] = ()
    """Empty as long as the next shard has no document."""
    supervised: int = 0
    """Number of ones in all masks."""


class ShardSeries:
    """Writes shards into a folder under working names; `name_outputs` gives them their final names.

    A shard ends before the document that would bring it above ``shard_tokens`` values, all keys together, so that its
    end depends on the documents alone. In all layouts but the indexed one, a shard also ends at `MAX_DOCUMENTS`.

    A file of HDF5 or JSON lines is written in one go: until the shard is complete, it has the keyed layout.

    Raises:
        OutputError: the system refuses a write.
        StoreError: the files on disk do not match the state.
    """

    def __init__(
        self,
        folder: Path,
        *,
        layout: Layout,
        columns: Sequence[Column],
        shard_tokens: int | None,
        state: SeriesState,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._columns = tuple(columns)
        self._shard_tokens = shard_tokens
        self.finished = list(state.finished)
        self.supervised = state.supervised
        self._writers: list[IndexedWriter | KeyedWriter] = []
        self._staged: list[Path] = []
        self._filling = ShardFilling()
        self._open_positions = [0] * len(self._columns)
        if state.writers:
            self._open(state.writers)
            tokens = sum(writer.num_tokens for writer in state.writers)
            self._filling = ShardFilling(tokens, state.writers[0].num_documents)
            counts = [info.tokens for writer in state.writers for info in writer.keys.values()]
            self._open_positions = counts if len(counts) == len(self._columns) else self._open_positions

    @property
    def num_documents(self) -> int:
        """Documents of all shards, including the open one."""
        return sum(shards[0].num_documents for shards in self.finished) + self._filling.documents

    def add(self, rows: Rows) -> None:
        """Append documents; ``rows`` has the same number of documents for every key."""
        for column, (tokens, _) in zip(self._columns, rows, strict=True):
            if column.kind == "mask":
                self.supervised += int(np.count_nonzero(tokens))
        lengths = num_values(self._columns, rows)
        if self._shard_tokens is None:
            if len(lengths):
                self._append(rows)
                self._filling.documents += len(lengths)
            return
        most = None if self._layout == "indexed" else MAX_DOCUMENTS
        for first, last, is_full in self._filling.cut(lengths, self._shard_tokens, most):
            if last > first:
                self._append([_slice(row, first, last) for row in rows])
            if is_full:
                self._close()

    def checkpoint(self) -> SeriesState:
        """Flush everything to the disk, and return the state to continue from."""
        return SeriesState(
            finished=tuple(self.finished),
            writers=tuple(writer.checkpoint() for writer in self._writers),
            supervised=self.supervised,
        )

    def forget(self) -> None:
        """Remove files that only an earlier checkpoint than the last needs."""
        for folder in self._staged:
            with output_errors(folder, "remove"):
                shutil.rmtree(folder, ignore_errors=True)
        self._staged.clear()

    def finish(self) -> list[tuple[WrittenShard, ...]]:
        """Complete the last shard. Returns the files of each shard: one entry for each key, or one for all keys."""
        if self._writers:
            self._close()
        return self.finished

    def suspend(self) -> None:
        """Close all files, and leave them for a later run to continue."""
        for writer in self._writers:
            writer.suspend()
        self._writers = []

    def _append(self, rows: Rows) -> None:
        if not self._writers:
            self._open(())
        rows = self._numbered(rows)
        keyed = self._writers[0]
        if isinstance(keyed, KeyedWriter):
            tokens, lengths = (
                {column.key: row[part] for column, row in zip(self._columns, rows, strict=True)} for part in (0, 1)
            )
            keyed.add_documents(tokens, lengths)
            return
        for writer, row in zip(self._writers, rows, strict=True):
            writer.add_documents(*row)  # type: ignore[arg-type]

    def _numbered(self, rows: Rows) -> Rows:
        """The rows, with positions that are numbered through the shard."""
        if all(column.kind != "positions" for column in self._columns):
            return rows
        numbered: list[Row] = []
        for at, (column, (tokens, lengths)) in enumerate(zip(self._columns, rows, strict=True)):
            first = self._open_positions[at]
            self._open_positions[at] += len(tokens)
            if column.kind == "positions":
                tokens = np.arange(first, first + len(tokens), dtype=np.int64)
            numbered.append((tokens, lengths))
        return numbered

    def _open(self, states: Sequence[WriterState]) -> None:
        number = len(self.finished)
        if self._layout != "indexed":
            self._writers = [
                KeyedWriter(
                    self._folder / (f"shard_{number:04d}" if self._layout == "keyed" else f"staged_{number:04d}"),
                    dtypes={column.key: column.dtype for column in self._columns},
                    values=[column.key for column in self._columns if column.kind != "ids"],
                    resumable=True,
                    state=states[0] if states else None,
                )
            ]
            return
        writers: list[IndexedWriter | KeyedWriter] = []
        try:
            for index, column in enumerate(self._columns):
                writers.append(
                    IndexedWriter(
                        self._folder / f"{column.key}_document_{number:05d}",
                        dtype=column.dtype,
                        ids=column.kind == "ids",
                        resumable=True,
                        state=states[index] if states else None,
                    )
                )
        except BaseException:
            for writer in writers:
                writer.suspend()
            raise
        self._writers = writers

    def _close(self) -> None:
        written = tuple(writer.finish() for writer in self._writers)
        self._writers = []
        if self._layout in STAGED:
            staged = Path(written[0].prefix)
            number = len(self.finished)
            written = (write_staged_shard(staged, self._folder, number, self._layout, self._columns),)
            self._staged.append(staged)
        self._filling.tokens = self._filling.documents = 0
        self._open_positions = [0] * len(self._columns)
        self.finished.append(written)


def _slice(row: Row, first: int, last: int) -> Row:
    tokens, lengths = row
    begin = int(lengths[:first].sum())
    return tokens[begin : begin + int(lengths[first:last].sum())], lengths[first:last]


_READ_ORDINALS = 1 << 18


class OutputState(msgspec.Struct, frozen=True, kw_only=True):
    """The states of all series."""

    series: tuple[SeriesState, ...] = ()


class StoreOutput:
    """Writes documents into the series of their domains, or into a single series if there is no domain column.

    Raises:
        OutputError: the system refuses a write.
        StoreError: the files on disk do not match the state.
    """

    def __init__(
        self,
        folder: Path,
        *,
        layout: Layout,
        columns: Sequence[Column],
        shard_tokens: int | None,
        state: OutputState,
    ) -> None:
        self._folder = folder
        self._layout: Layout = layout
        self._columns = tuple(columns)
        self._shard_tokens = shard_tokens
        self._series: list[ShardSeries] = []
        self._ordinals: list[Ordinals] = []
        self._num_taken: Counter[int] = Counter()
        try:
            for series in state.series:
                self._begin(series)
        except BaseException:
            self.suspend()
            raise
        if not self.has_domains and not self._series:
            self._begin(SeriesState())

    @property
    def has_domains(self) -> bool:
        """Whether there is a domain column."""
        return len(stored(self._columns)) < len(self._columns)

    @property
    def supervised(self) -> list[int]:
        """The number of trained tokens in each series: the ones in its masks."""
        return [series.supervised for series in self._series]

    def add(self, rows: Rows, ordinals: IntArray) -> None:
        """Append n documents; ``rows`` has n for every column. With domains, their ``ordinals`` (n,) are noted."""
        if not self.has_domains:
            self._series[0].add(rows)
            return
        numbers = rows[-1][0]
        while len(numbers) and len(self._series) <= int(numbers.max()):
            self._begin(SeriesState())
        for number in np.unique(numbers).tolist():
            keep = numbers == number
            self._series[number].add([(keep_rows(*row, keep), row[1][keep]) for row in rows[:-1]])
            self._ordinals[number].add(ordinals[keep])

    def checkpoint(self) -> OutputState:
        """Flush everything to the disk, and return the state to continue from."""
        for ordinals in self._ordinals:
            ordinals.sync()
        return OutputState(series=tuple(series.checkpoint() for series in self._series))

    def forget(self) -> None:
        """Remove files that only an earlier state needs. Call it once the state from `checkpoint` is saved."""
        for series in self._series:
            series.forget()

    def take_finished(self) -> list[list[tuple[int, tuple[WrittenShard, ...]]]]:
        """Return for each series the number and the files of each shard that is complete, and was not returned yet."""
        found = []
        for number, series in enumerate(self._series):
            first = self._num_taken[number]
            self._num_taken[number] = len(series.finished)
            found.append(list(enumerate(series.finished[first:], first)))
        return found

    def finish(self) -> list[list[tuple[WrittenShard, ...]]]:
        """Complete the last shard of each series. Returns the shards of each, as `ShardSeries.finish` returns them."""
        return [series.finish() for series in self._series]

    def ordinals(self) -> Iterator[IntArray]:
        """Yield the ordinals of all documents in pieces, one series after another."""
        for ordinals in self._ordinals:
            yield from ordinals.pieces()

    def suspend(self) -> None:
        """Close all files, and leave them for a later run to continue."""
        for series in self._series:
            series.suspend()

    def _begin(self, state: SeriesState) -> None:
        folder = self._folder
        if self.has_domains:
            folder = series_folder(self._folder, len(self._series))
            with output_errors(folder, "create"):
                folder.mkdir(exist_ok=True)
        series = ShardSeries(
            folder,
            layout=self._layout,
            columns=stored(self._columns),
            shard_tokens=self._shard_tokens,
            state=state,
        )
        if self.has_domains:
            self._ordinals.append(Ordinals(folder / "ordinals", series.num_documents))
        self._series.append(series)


class Ordinals:
    """The ordinals of the documents of a series, (documents,) int64, in a file.

    The file only grows. When a run continues, the file is cut to the ``count`` that its checkpoint recorded.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        with output_errors(path, "continue"):
            path.touch()
            if path.stat().st_size < 8 * count:
                raise StoreError(
                    f"{path}: has {path.stat().st_size:,} bytes, {8 * count:,} were written; the machine may have lost "
                    "power. Run again with --restart"
                )
            os.truncate(path, 8 * count)
        self._waiting: list[bytes] = []

    def add(self, ordinals: IntArray) -> None:
        """Append ordinals, in memory until `sync`."""
        self._waiting.append(ordinals.astype("<i8").tobytes())

    def sync(self) -> None:
        """Write the collected ordinals to the disk."""
        if not self._waiting:
            return
        with output_errors(self._path, "write"), self._path.open("ab", buffering=0) as file:
            write_all(file.write, b"".join(self._waiting))
            os.fsync(file.fileno())
        self._waiting.clear()

    def pieces(self) -> Iterator[IntArray]:
        """Yield all ordinals in order."""
        self.sync()
        with output_errors(self._path, "read"), self._path.open("rb") as file:
            while data := file.read(8 * _READ_ORDINALS):
                yield np.frombuffer(data, "<i8")


def series_folder(folder: Path, number: int) -> Path:
    """The folder of a domain's shards until they are moved into a folder with its name."""
    return folder / f"domain_{number:04d}"
