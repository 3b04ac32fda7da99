"""The shards of a run: documents in, one shard after another out, continued after a kill where the state says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.prepare.ragged import IntArray, total_lengths
from headrace.stores import IndexedWriter, KeyedWriter, WriterState, WrittenShard

Rows = Sequence[tuple[NDArray[Any], IntArray]]
"""For each key the tokens of n documents in a row, and their (n,) lengths."""


class OutputState(msgspec.Struct, frozen=True, kw_only=True):
    """Shards that are complete, and where the writers of the next one stand; none where it has no document yet."""

    finished: tuple[tuple[WrittenShard, ...], ...] = ()
    writers: tuple[WriterState, ...] = ()


class StoreOutput:
    """Writes shards into a folder under working names; what a shard is called in the end is the folder's business.

    A shard ends before the document that would take it over ``shard_tokens`` tokens, all keys together, so that where
    it ends depends on the documents alone.

    Raises:
        OutputError: the system refuses.
        StoreError: what is there is not what the state says.
    """

    def __init__(
        self,
        folder: Path,
        *,
        layout: Literal["indexed", "keyed"],
        keys: Sequence[str],
        dtype: np.dtype[Any],
        shard_tokens: int | None,
        state: OutputState,
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._keys = tuple(keys)
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self.finished = list(state.finished)
        self._writers: list[IndexedWriter | KeyedWriter] = []
        self._open_tokens = 0
        if state.writers:
            self._open(state.writers)
            self._open_tokens = sum(writer.num_tokens for writer in state.writers)

    def add(self, rows: Rows) -> None:
        """Append documents, which every key has the same number of."""
        lengths = total_lengths(rows)
        if self._shard_tokens is None:
            if len(lengths):
                self._append(rows)
            return
        first = 0
        ends = np.cumsum(lengths)
        begin = 0
        while first < len(lengths):
            room = self._shard_tokens - self._open_tokens
            last = int(np.searchsorted(ends, begin + room, side="right"))
            if last == first and not self._writers:
                last = first + 1  # a document that is longer than a shard
            if last > first:
                self._append([_slice(row, first, last) for row in rows])
                self._open_tokens += int(ends[last - 1]) - begin
                begin, first = int(ends[last - 1]), last
            if first < len(lengths):
                self._close()

    def checkpoint(self) -> OutputState:
        """Bring everything to the disk, and say where to continue."""
        return OutputState(
            finished=tuple(self.finished), writers=tuple(writer.checkpoint() for writer in self._writers)
        )

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
        if self._layout == "keyed":
            tokens, lengths = ({key: row[part] for key, row in zip(self._keys, rows, strict=True)} for part in (0, 1))
            for keyed in self._writers:
                keyed.add_documents(tokens, lengths)  # type: ignore[arg-type]
            return
        for writer, row in zip(self._writers, rows, strict=True):
            writer.add_documents(*row)  # type: ignore[arg-type]

    def _open(self, states: Sequence[WriterState]) -> None:
        number = len(self.finished)
        if self._layout == "keyed":
            dtypes = dict.fromkeys(self._keys, self._dtype)
            state = states[0] if states else None
            folder = self._folder / f"shard_{number:04d}"
            self._writers = [KeyedWriter(folder, dtypes=dtypes, resumable=True, state=state)]
            return
        writers: list[IndexedWriter | KeyedWriter] = []
        try:
            for index, key in enumerate(self._keys):
                state = states[index] if states else None
                prefix = self._folder / f"{key}_document_{number:05d}"
                writers.append(IndexedWriter(prefix, dtype=self._dtype, resumable=True, state=state))
        except BaseException:
            for writer in writers:
                writer.suspend()
            raise
        self._writers = writers

    def _close(self) -> None:
        written = tuple(writer.finish() for writer in self._writers)
        self._writers = []
        self._open_tokens = 0
        self.finished.append(written)


def _slice(row: tuple[NDArray[Any], IntArray], first: int, last: int) -> tuple[NDArray[Any], IntArray]:
    tokens, lengths = row
    begin = int(lengths[:first].sum())
    return tokens[begin : begin + int(lengths[first:last].sum())], lengths[first:last]
