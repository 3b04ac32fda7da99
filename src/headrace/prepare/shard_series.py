"""The shards of one series: documents in, one shard after another out, continued after a kill where the state says."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from headrace.io import output_errors
from headrace.prepare.columns import Column, Row, Rows, num_values
from headrace.prepare.staged import STAGED, write_staged_shard
from headrace.stores import IndexedWriter, KeyedWriter, WriterState, WrittenShard
from headrace.stores.keyed.writer import MAX_DOCUMENTS

Layout = Literal["indexed", "keyed", "hdf5", "jsonl"]


class SeriesState(msgspec.Struct, frozen=True, kw_only=True):
    """Shards that are complete, and where the writers of the next one stand; none where it has no document yet."""

    finished: tuple[tuple[WrittenShard, ...], ...] = ()
    writers: tuple[WriterState, ...] = ()
    supervised: int = 0
    """Ones in all masks."""


class ShardSeries:
    """Writes shards into a folder under working names; what a shard is called in the end is the folder's business.

    A shard ends before the document that would take it over ``shard_tokens`` values, all keys together, so that where
    it ends depends on the documents alone. In layouts that keep a list of all documents in one piece it also ends at
    `MAX_DOCUMENTS`.

    A file of HDF5 or of JSON lines is written in one go: until a shard is complete it is one of the keyed layout.

    Raises:
        OutputError: the system refuses.
        StoreError: what is there is not what the state says.
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
        self._open_tokens = self._open_documents = 0
        self._open_positions = [0] * len(self._columns)
        if state.writers:
            self._open(state.writers)
            self._open_tokens = sum(writer.num_tokens for writer in state.writers)
            self._open_documents = state.writers[0].num_documents
            counts = [info.tokens for writer in state.writers for info in writer.keys.values()]
            self._open_positions = counts if len(counts) == len(self._columns) else self._open_positions

    @property
    def num_documents(self) -> int:
        """Documents of all shards, the open one included."""
        return sum(shards[0].num_documents for shards in self.finished) + self._open_documents

    def add(self, rows: Rows) -> None:
        """Append documents, which every key has the same number of."""
        for column, (tokens, _) in zip(self._columns, rows, strict=True):
            if column.kind == "mask":
                self.supervised += int(np.count_nonzero(tokens))
        lengths = num_values(self._columns, rows)
        if self._shard_tokens is None:
            if len(lengths):
                self._append(rows)
            return
        first = 0
        ends = np.cumsum(lengths)
        begin = 0
        most = len(lengths) if self._layout == "indexed" else MAX_DOCUMENTS
        while first < len(lengths):
            room = self._shard_tokens - self._open_tokens
            last = int(np.searchsorted(ends, begin + room, side="right"))
            if self._layout != "indexed":
                last = min(last, first + most - self._open_documents)
            if last == first and not self._writers:
                last = first + 1  # a document that is longer than a shard
            if last > first:
                self._append([_slice(row, first, last) for row in rows])
                self._open_tokens += int(ends[last - 1]) - begin
                begin, first = int(ends[last - 1]), last
            if first < len(lengths):
                self._close()

    def checkpoint(self) -> SeriesState:
        """Bring everything to the disk, and say where to continue."""
        return SeriesState(
            finished=tuple(self.finished),
            writers=tuple(writer.checkpoint() for writer in self._writers),
            supervised=self.supervised,
        )

    def forget(self) -> None:
        """Remove what only a run needs that goes on from an earlier checkpoint than the last."""
        for folder in self._staged:
            with output_errors(folder, "remove"):
                shutil.rmtree(folder, ignore_errors=True)
        self._staged.clear()

    def finish(self) -> list[tuple[WrittenShard, ...]]:
        """Complete the last shard. For each shard what was written: one entry for each key, or one for all of them."""
        if self._writers:
            self._close()
        return self.finished

    def suspend(self) -> None:
        """Close all files, and leave them for a later run."""
        for writer in self._writers:
            writer.suspend()
        self._writers = []

    def _append(self, rows: Rows) -> None:
        if not self._writers:
            self._open(())
        rows = self._numbered(rows)
        self._open_documents += len(rows[0][1])
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
        """The rows with positions that go on through the shard."""
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
        self._open_tokens = self._open_documents = 0
        self._open_positions = [0] * len(self._columns)
        self.finished.append(written)


def _slice(row: Row, first: int, last: int) -> Row:
    tokens, lengths = row
    begin = int(lengths[:first].sum())
    return tokens[begin : begin + int(lengths[first:last].sum())], lengths[first:last]
