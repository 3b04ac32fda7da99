"""Read many documents of a store at once: their tokens, their lengths, and the sequences that they consist of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, StoreError
from headrace.stores import IndexedStore, ShardedStore, Store
from headrace.stores.arguments import IntArray


class DocumentRows(NamedTuple):
    """``n`` consecutive documents of one key.

    Attributes:
        tokens: (sum of lengths,) contiguous, the tokens of all documents.
        lengths: (n,) int64, number of tokens in each document.
        sequences: (m,) int64, number of tokens in each sequence.
        ends: (n,) int64, number of sequences up to the end of each document.
        modes: (m,) int8, mode of each sequence; (0,) if the store has no modes.
    """

    tokens: NDArray[Any]
    lengths: IntArray
    sequences: IntArray
    ends: IntArray
    modes: NDArray[np.int8]


def shards_of(store: Store) -> tuple[Store, ...]:
    """Return the shards of a store, or the store itself if it is not sharded."""
    return store.shards if isinstance(store, ShardedStore) else (store,)


def read_rows(store: Store, first: int, end: int) -> DocumentRows:
    """Read the documents ``[first, end)``, at least one. Without sequences each document that has tokens is one."""
    parts = [_shard_rows(shard, begin, until) for shard, begin, until in _within(store, first, end)]
    if len(parts) == 1:
        return parts[0]
    num_sequences = np.cumsum([0, *(len(part.sequences) for part in parts)])
    ends = [part.ends + before for part, before in zip(parts, num_sequences[:-1], strict=True)]
    return DocumentRows(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.sequences for part in parts]),
        np.concatenate(ends),
        np.concatenate([part.modes for part in parts]),
    )


def cast(rows: DocumentRows, dtype: np.dtype[Any], where: str, first: int) -> DocumentRows:
    """Convert documents to another dtype without changing a value.

    Args:
        rows: the documents ``first``, ``first + 1``, ... of a store.
        dtype: the dtype of the result.
        where: name of the store for the message.
        first: number of the first document, for the message.

    Raises:
        InputError: a value does not fit; the message names the document.
    """
    tokens = rows.tokens
    if tokens.dtype == dtype:
        return rows
    if tokens.dtype.kind == "b":
        tokens = tokens.view(np.uint8)
    if not np.can_cast(tokens.dtype, dtype, "safe"):
        wrong = _misfits(tokens, dtype)
        if len(wrong):
            number = first + int(np.searchsorted(np.cumsum(rows.lengths), wrong[0], side="right"))
            raise InputError(
                f"{where}: document {number}: the value {tokens[wrong[0]]} does not fit into {dtype.name}; nothing was"
                " written: choose a wider --dtype"
            )
    return rows._replace(tokens=tokens.astype(dtype))


def _misfits(tokens: NDArray[Any], dtype: np.dtype[Any]) -> IntArray:
    """Return the (k,) positions of the values that the dtype cannot hold."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            back = tokens.astype(dtype).astype(tokens.dtype)
        return np.flatnonzero((back != tokens) & ~np.isnan(tokens))
    lowest, highest = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if not len(tokens) or lowest <= int(tokens.min()) <= int(tokens.max()) <= highest:
        return np.zeros(0, np.int64)
    return np.flatnonzero((tokens < lowest) | (tokens > highest))


def _within(store: Store, first: int, end: int) -> Iterator[tuple[Store, int, int]]:
    """Yield the shards that hold documents ``[first, end)``, each with the range of its own documents."""
    begin = 0
    for shard in shards_of(store):
        low, high = max(first - begin, 0), min(end - begin, shard.num_documents)
        if low < high:
            yield shard, low, high
        begin += shard.num_documents


def _shard_rows(shard: Store, first: int, end: int) -> DocumentRows:
    if not isinstance(shard, IndexedStore):
        begins = shard.document_begins(np.arange(first, end + 1))
        lengths = np.diff(begins)
        tokens = shard.fetch(int(begins[0]), int(begins[-1]))
        ends = np.cumsum(lengths > 0, dtype=np.int64)
        return DocumentRows(np.ascontiguousarray(tokens), lengths, lengths[lengths > 0], ends, np.zeros(0, np.int8))
    ends, sizes = _sequences(shard, first, end)
    begin, until = shard.document_begins(np.array([first, end])).tolist()
    if until - begin != int(sizes.sum()):
        raise StoreError(
            f"{shard.index.path}: documents {first} to {end} have {int(sizes.sum())} tokens by their sizes but"
            f" {until - begin} by their pointers; the index is damaged"
        )
    tokens = shard.fetch(begin, until)
    return DocumentRows(
        np.ascontiguousarray(tokens), _documents(ends, sizes), sizes, ends, _modes(shard, first, len(sizes))
    )


def _sequences(shard: IndexedStore, first: int, end: int) -> tuple[IntArray, IntArray]:
    """Return the sequences up to the end of each document, (end - first,), and the tokens of each sequence, (m,)."""
    bounds = shard.index.bounds.read(first, end + 1)
    if int(bounds[0]) < 0 or int(bounds[-1]) > len(shard.index.sizes) or (np.diff(bounds) < 0).any():
        raise StoreError(
            f"{shard.index.path}: documents {first} to {end}: the document indices must not decrease, nor exceed"
            f" the {len(shard.index.sizes)} sequences"
        )
    sizes = shard.index.sizes.read(int(bounds[0]), int(bounds[-1]))
    if len(sizes) and int(sizes.min()) < 0:
        raise StoreError(f"{shard.index.path}: documents {first} to {end}: a sequence of {int(sizes.min())} tokens")
    return bounds[1:] - bounds[0], sizes


def _documents(ends: IntArray, sizes: IntArray) -> IntArray:
    tokens = np.concatenate(([0], np.cumsum(sizes)))
    lengths: IntArray = np.diff(tokens[ends], prepend=0)
    return lengths


def _modes(shard: IndexedStore, first: int, count: int) -> NDArray[np.int8]:
    if shard.index.modes is None:
        return np.zeros(0, np.int8)
    begin = int(shard.index.bounds.read(first, first + 1)[0])
    modes = shard.index.modes.read(begin, begin + count)
    if len(modes) and not -128 <= int(modes.min()) <= int(modes.max()) <= 127:
        raise StoreError(f"{shard.index.path}: document {first} and after: a mode beyond -128 to 127 cannot be kept")
    return modes.astype(np.int8)
