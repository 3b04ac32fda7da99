"""All shards of a run: one series of them, or one for each domain with the ordinals of its documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import StoreError
from headrace.io import output_errors
from headrace.prepare.columns import Column, Rows, stored
from headrace.prepare.ragged import IntArray, keep_rows
from headrace.prepare.shard_series import Layout, SeriesState, ShardSeries
from headrace.stores import WrittenShard

_READ_ORDINALS = 1 << 18


class OutputState(msgspec.Struct, frozen=True, kw_only=True):
    """Where each series stands."""

    series: tuple[SeriesState, ...] = ()


class StoreOutput:
    """Writes documents into the series of their domains; where there is no column of domains there is one series.

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
        state: OutputState,
    ) -> None:
        self._folder = folder
        self._layout: Layout = layout
        self._columns = tuple(columns)
        self._shard_tokens = shard_tokens
        self._series: list[ShardSeries] = []
        self._ordinals: list[Ordinals] = []
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
        """Whether documents say their domain."""
        return len(stored(self._columns)) < len(self._columns)

    @property
    def supervised(self) -> list[int]:
        """Trained tokens of each series: ones in its masks."""
        return [series.supervised for series in self._series]

    def add(self, rows: Rows, ordinals: IntArray | None = None) -> None:
        """Append documents, which every column has the same number of; with domains, also their ordinals (n,)."""
        if not self.has_domains:
            self._series[0].add(rows)
            return
        numbers = rows[-1][0]
        while len(numbers) and len(self._series) <= int(numbers.max()):
            self._begin(SeriesState())
        for number in np.unique(numbers).tolist():
            keep = numbers == number
            self._series[number].add([(keep_rows(*row, keep), row[1][keep]) for row in rows[:-1]])
            if ordinals is not None:
                self._ordinals[number].add(ordinals[keep])

    def checkpoint(self) -> OutputState:
        """Bring everything to the disk, and say where to continue."""
        for ordinals in self._ordinals:
            ordinals.sync()
        return OutputState(series=tuple(series.checkpoint() for series in self._series))

    def forget(self) -> None:
        """The state that `checkpoint` gave is safe: what only an earlier one needs may go."""
        for series in self._series:
            series.forget()

    def finish(self) -> list[list[tuple[WrittenShard, ...]]]:
        """Complete the last shard of each series. For each series its shards, as `ShardSeries.finish` gives them."""
        return [series.finish() for series in self._series]

    def ordinals(self) -> Iterator[IntArray]:
        """The ordinals of all documents, series after series, in pieces."""
        for ordinals in self._ordinals:
            yield from ordinals.pieces()

    def suspend(self) -> None:
        """Close all files, and leave them for a later run."""
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
    """(documents,) int64 in a file that only grows, and is cut to what a checkpoint made sure of."""

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
        """Append some."""
        self._waiting.append(ordinals.astype("<i8").tobytes())

    def sync(self) -> None:
        """Bring them to the disk."""
        if not self._waiting:
            return
        with output_errors(self._path, "write"), self._path.open("ab", buffering=0) as file:
            view = memoryview(b"".join(self._waiting))
            while len(view):
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        self._waiting.clear()

    def pieces(self) -> Iterator[IntArray]:
        """All of them, in order."""
        self.sync()
        with output_errors(self._path, "read"), self._path.open("rb") as file:
            while data := file.read(8 * _READ_ORDINALS):
                yield np.frombuffer(data, "<i8")


def series_folder(folder: Path, number: int) -> Path:
    """Where the shards of a domain lie until they get its name."""
    return folder / f"domain_{number:04d}"
