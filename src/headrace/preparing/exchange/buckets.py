"""The buckets of a shuffled run: documents that lie near each other in the order, since their order hashes begin alike.

Pass 1 deals documents to buckets by the high bits of their order hash. Pass 2 sorts one bucket after another by the
whole hash. Since the buckets are in the order of their high bits, the documents of all buckets in a row are in the
order of their hashes, whatever the number of buckets.

A local run appends the documents to a file for each bucket (`BucketWriter`, `BucketSorter`). They are collected in
memory and written many at a time.

In a planned run each task of encoding writes its documents as a file of parts, a part for each bucket. What only the
order of all tasks decides comes later, from one process that moves no documents: the number of each document among all,
or that it is left out. These numbers lie in one file, for the documents of one piece after another as they lie in the
piece's parts. `DealtSorter` reads a part of every piece, and the numbers that belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.engine.serving import Done
from headrace.errors import OutputError
from headrace.io import output_errors, write_all
from headrace.preparing.columns import IntArray, Rows, take_rows
from headrace.preparing.exchange.parts import (
    DAMAGED,
    NumberedDocuments,
    at,
    decode_frames,
    encode_frames,
    for_each,
    joined,
    parts_of,
    read_bytes,
    read_part,
)
from headrace.preparing.messages import Dealt, Exchange, SortTask
from headrace.preparing.piece import PieceInfo, write_piece
from headrace.preparing.tally import Tally
from headrace.stores import DocumentLedger

NUMBERS_NAME = "numbers"
"""The file of numbers, in the folder of the buckets."""


def bucket_path(folder: str | Path, bucket: int) -> Path:
    """The path of a bucket's file."""
    return Path(folder) / f"{bucket:05d}.bucket"


class BucketWriter:
    """Distributes sorted documents among bucket files. What was not flushed is lost when the process ends."""

    def __init__(self, folder: Path, num_buckets: int, sizes: Sequence[int] | None = None) -> None:
        self._folder = folder
        self._num_buckets = num_buckets
        self._waiting: dict[int, list[bytes]] = {}
        self.waiting_bytes = 0
        self.sizes: list[int] = list(sizes) if sizes is not None else [0] * num_buckets

    def add(self, order: NDArray[np.uint64], ordinals: IntArray, rows: Rows) -> None:
        """Add documents that are sorted by ``order`` (n,); ``rows`` has tokens and lengths for each key."""
        for bucket, frame in encode_frames(
            parts_of(order, self._num_buckets), NumberedDocuments(order, ordinals, rows)
        ):
            self._waiting.setdefault(bucket, []).append(frame)
            self.waiting_bytes += len(frame)

    def flush(self) -> None:
        """Append everything collected in memory to the files.

        Raises:
            OutputError: the system refuses a write.
        """
        for bucket in sorted(self._waiting):
            path = bucket_path(self._folder, bucket)
            data = b"".join(self._waiting[bucket])
            with output_errors(path, "write"), path.open("r+b" if self.sizes[bucket] else "wb", buffering=0) as file:
                file.seek(self.sizes[bucket])  # what follows was not recorded before a kill
                write_all(file.write, data)
                file.truncate()
            self.sizes[bucket] += len(data)
        self._waiting.clear()
        self.waiting_bytes = 0


class BucketSorter:
    """Sorts buckets of one folder into pieces of another, in a worker. Memory: three times the bucket."""

    def __init__(self, folder: str, parts: str, dtypes: Sequence[np.dtype[Any]]) -> None:
        self._folder = folder
        self._parts = parts
        self._dtypes = tuple(dtypes)

    def run(self, order: SortTask) -> Done:
        """Sort a bucket by order hash; documents with equal hashes are sorted by their ordinal.

        Raises:
            OutputError: the bucket is damaged or cannot be read, or the piece cannot be written.
        """
        return _write_sorted(self._parts, order.bucket, self._read(order), order.size)

    def _read(self, order: SortTask) -> NumberedDocuments:
        path = bucket_path(self._folder, order.bucket)
        data = np.zeros(0, np.uint8)
        if order.size:
            try:
                data = np.fromfile(path, np.uint8, order.size)
            except OSError as error:
                raise OutputError(f"{path}: a bucket cannot be read back: {error.strerror or error}") from error
        if data.size != order.size:
            raise OutputError(f"{path}: a bucket has {data.size:,} bytes, {order.size:,} were written; {DAMAGED}")
        return joined(list(decode_frames(data, self._dtypes, path, "a bucket")), self._dtypes)


class DealtSorter:
    """Sorts the parts of a bucket that pieces hold, in a worker. Memory: three times the bucket.

    Args:
        folder: the folder of the buckets, in the work folder.
        parts: where to put the sorted pieces.
        dtypes: the dtype of each column.
        exchange: the pieces, in their order, and where they and the file of numbers are.
    """

    def __init__(self, folder: Path, parts: str, dtypes: Sequence[np.dtype[Any]], exchange: Exchange) -> None:
        self._base: Path | str = exchange.url or folder.parent
        self._numbers = f"{exchange.url}/{exchange.numbers}" if exchange.numbers else folder / NUMBERS_NAME
        self._parts = parts
        self._dtypes = tuple(dtypes)
        self._dealt = exchange.dealt

    def run(self, order: SortTask) -> Done:
        """Sort a bucket as `BucketSorter` does; documents whose number is negative are left out.

        Raises:
            OutputError: a file is damaged or cannot be read, or the piece cannot be written.
        """
        documents, size = self._read(order.bucket)
        return _write_sorted(self._parts, order.bucket, documents, size)

    def _read(self, bucket: int) -> tuple[NumberedDocuments, int]:
        """Return the documents of a bucket, and how many bytes were read."""
        frames: list[NumberedDocuments] = []
        size = 0
        for num_bytes, found in for_each(self._base, lambda dealt: self._read_dealt(dealt, bucket), self._dealt):
            size += num_bytes
            frames += found
        return joined(frames, self._dtypes), size

    def _read_dealt(self, dealt: Dealt, bucket: int) -> tuple[int, list[NumberedDocuments]]:
        path = at(self._base, dealt.path)
        data = read_part(path, bucket)
        return data.size, [self._numbered(dealt, frame) for frame in decode_frames(data, self._dtypes, path)]

    def _numbered(self, dealt: Dealt, frame: NumberedDocuments) -> NumberedDocuments:
        """Return the documents with their numbers among all, and with the domains of the run."""
        count, first = len(frame.numbers), dealt.first + int(frame.numbers[0])
        if isinstance(self._numbers, str):
            numbers = read_bytes(self._numbers, 8 * first, 8 * count).view("<i8")
        else:
            with output_errors(self._numbers, "read"):
                numbers = np.fromfile(self._numbers, "<i8", count, offset=8 * first)
        if len(numbers) < count:
            raise OutputError(f"{self._numbers}: the numbers of documents were cut short; {DAMAGED}")
        rows = list(frame.rows)
        if dealt.domains:
            values, lengths = rows[-1]
            rows[-1] = (np.array(dealt.domains, values.dtype)[values], lengths)
        return NumberedDocuments(frame.keys, numbers, rows)


def _write_sorted(folder: str, bucket: int, documents: NumberedDocuments, size: int) -> Done:
    """Sort the documents of a bucket by key, then by number, and write the piece; ``size`` bytes were read."""
    order = np.lexsort((documents.numbers, documents.keys))
    order = order[documents.numbers[order] >= 0]
    arrays: dict[str, list[NDArray[Any]]] = {"ordinals": [documents.numbers[order]]}
    for key, (tokens, lengths) in enumerate(documents.rows):
        arrays[f"tokens.{key}"] = [take_rows(tokens, lengths, order)]
        arrays[f"lengths.{key}"] = [lengths[order]]
    tally = Tally(documents=DocumentLedger(read=0, kept=len(order)))
    write_piece(folder, PieceInfo(task_index=bucket, piece=0, is_last=True, tally=tally), arrays)
    return Done.of(bucket, (size, len(order), 0))
