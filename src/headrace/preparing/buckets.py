"""The buckets of a shuffled run: files to which documents are assigned by the high bits of their order hash.

Pass 1 appends frames to the buckets. They are collected in memory and written many documents at a time. Pass 2 sorts
one bucket after another by the whole hash. Since the buckets are in the order of their high bits, the documents of all
buckets in a row are in the order of their hashes, whatever the number of buckets. A frame:

    uint64 x (3 + keys)   bytes of the frame, documents, values of each key, and last xxh3_64 of the rest
    (n,) uint64           order hash
    (n,) int64            number of the document in the order of the input
    for each key: (n,) uint32 lengths, padded to 8 bytes; then its tokens, padded to 8 bytes
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.engine.serving import Done
from headrace.errors import OutputError
from headrace.io import output_errors, write_all
from headrace.preparing.columns import IntArray, take_rows
from headrace.preparing.messages import SortTask
from headrace.preparing.piece import PieceInfo, write_piece
from headrace.preparing.tally import Tally
from headrace.stores import DocumentLedger

MIN_BUCKET_BYTES = 256 << 10
MAX_BUCKET_BYTES = 32 << 20
MAX_BUCKETS = 1 << 15
BUCKETS_PER_WORKER = 64
"""Buckets for each worker, as far as the limits on their size allow. Each worker sorts one at a time, so that only a
small part of the whole is in memory."""


def choose_num_buckets(output_bytes: int, num_workers: int) -> int:
    """The number of buckets, a power of two, for an output of about this size. It does not change the output."""
    fineness = BUCKETS_PER_WORKER * max(num_workers, 2)
    size = min(max(output_bytes // fineness, MIN_BUCKET_BYTES), MAX_BUCKET_BYTES)
    wanted = max(-(-output_bytes // size), 1)
    return min(1 << (wanted - 1).bit_length(), MAX_BUCKETS)


def bucket_path(folder: str | Path, bucket: int) -> Path:
    """The path of a bucket's file."""
    return Path(folder) / f"{bucket:05d}.bucket"


class BucketWriter:
    """Distributes sorted documents among bucket files. What was not flushed is lost when the process ends."""

    def __init__(self, folder: Path, num_buckets: int, num_keys: int, sizes: Sequence[int] | None = None) -> None:
        self._folder = folder
        self._num_keys = num_keys
        self._shift = np.uint64(64 - (num_buckets.bit_length() - 1))
        self._num_buckets = num_buckets
        self._waiting: dict[int, list[bytes]] = {}
        self.waiting_bytes = 0
        self.sizes: list[int] = list(sizes) if sizes is not None else [0] * num_buckets

    def add(self, order: NDArray[np.uint64], ordinals: IntArray, rows: Sequence[tuple[NDArray[Any], IntArray]]) -> None:
        """Add documents that are sorted by ``order`` (n,); ``rows`` has tokens and lengths for each key."""
        if not len(order):
            return
        buckets = (order >> self._shift).astype(np.int64) if self._num_buckets > 1 else np.zeros(len(order), np.int64)
        edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=self._num_buckets))
        ends = [np.concatenate(([0], np.cumsum(lengths))) for _, lengths in rows]
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            parts = [order[first:last].tobytes(), ordinals[first:last].tobytes()]
            counts = []
            for (tokens, lengths), end in zip(rows, ends, strict=True):
                counts.append(int(end[last] - end[first]))
                parts.append(_padded(lengths[first:last].astype(np.uint32).tobytes()))
                parts.append(_padded(tokens[end[first] : end[last]].tobytes()))
            body = b"".join(parts)
            size = len(body) + 8 * (3 + self._num_keys)
            head = np.array([size, last - first, *counts], np.uint64).tobytes()
            self._waiting.setdefault(int(buckets[first]), []).append(head + _digest(head, body) + body)
            self.waiting_bytes += size

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
        self._num_keys = len(dtypes)
        self._dtypes = tuple(dtypes)

    def run(self, order: SortTask) -> Done:
        """Sort a bucket by order hash; documents with equal hashes are sorted by their ordinal.

        Raises:
            OutputError: the bucket is damaged or cannot be read, or the piece cannot be written.
        """
        hashes, ordinals, rows = self._read(order)
        sorting = np.lexsort((ordinals, hashes))
        arrays: dict[str, list[NDArray[Any]]] = {"ordinals": [ordinals[sorting]]}
        for key, (tokens, lengths) in enumerate(rows):
            arrays[f"tokens.{key}"] = [take_rows(tokens, lengths, sorting)]
            arrays[f"lengths.{key}"] = [lengths[sorting]]
        tally = Tally(documents=DocumentLedger(read=0, kept=len(hashes)))
        info = PieceInfo(task_index=order.bucket, piece=0, is_last=True, tally=tally)
        write_piece(self._parts, info, arrays)
        return Done(order.bucket, 0, True)

    def _read(self, order: SortTask) -> tuple[NDArray[np.uint64], IntArray, list[tuple[NDArray[Any], IntArray]]]:
        path = bucket_path(self._folder, order.bucket)
        data = np.zeros(0, np.uint8)
        if order.size:
            try:
                data = np.fromfile(path, np.uint8, order.size)
            except OSError as error:
                raise OutputError(f"{path}: a bucket cannot be read back: {error.strerror or error}") from error
        if data.size != order.size:
            raise OutputError(f"{path}: a bucket has {data.size:,} bytes, {order.size:,} were written; {_DAMAGED}")
        hashes, ordinals = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        tokens: list[list[NDArray[Any]]] = [[np.zeros(0, dtype)] for dtype in self._dtypes]
        lengths: list[list[IntArray]] = [[np.zeros(0, np.int64)] for _ in range(self._num_keys)]
        offset = 0
        while offset < data.size:
            head_bytes = 8 * (3 + self._num_keys)
            head = data[offset : offset + head_bytes]
            size, count, *num_tokens, _ = head.view(np.uint64).tolist() if head.size == head_bytes else [0, 0, 0]
            body = data[offset + head_bytes : offset + size]
            if size < head_bytes or _digest(head[:-8].data, body.data) != head[-8:].tobytes():
                raise OutputError(f"{path}: a bucket is damaged at byte {offset:,}; {_DAMAGED}")
            offset += size
            hashes.append(body[: 8 * count].view(np.uint64))
            ordinals.append(body[8 * count : 16 * count].view(np.int64))
            at = 16 * count
            for key, dtype in enumerate(self._dtypes):
                lengths[key].append(body[at : at + 4 * count].view(np.uint32).astype(np.int64))
                at += _rounded(4 * count)
                num_bytes = num_tokens[key] * dtype.itemsize
                tokens[key].append(body[at : at + num_bytes].view(dtype))
                at += _rounded(num_bytes)
        rows = [(np.concatenate(tokens[key]), np.concatenate(lengths[key])) for key in range(self._num_keys)]
        return np.concatenate(hashes), np.concatenate(ordinals), rows


_DAMAGED = "the machine may have lost power. Run again with --restart"


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    hasher = xxhash.xxh3_64(head)
    hasher.update(body)
    return hasher.intdigest().to_bytes(8, sys.byteorder)


def _rounded(size: int) -> int:
    return size + -size % 8


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
