"""Several stores as one: their documents, and their token streams, one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.stores.arguments import by_keys, check_range, check_ranges, document_number, positions, read_only
from headrace.stores.store import IntArray, KeyList, Problem, Store, TokenArray

_BULK_ROWS = 4
"""From so many rows of one shard on, one call of its own gather is cheaper than a fetch a row."""


class ShardedStore(Store):
    """Stores in a given order, read as one. O(shards) memory.

    Args:
        shards: the stores, at least one, all with the same keys and dtypes.
        path: what was opened.

    Raises:
        StoreError: no shards, or shards that do not fit together; names both.
    """

    format = "sharded"

    def __init__(self, shards: Sequence[Store], path: str) -> None:
        if not shards:
            raise StoreError(f"{path}: no shards; a store needs at least one")
        for shard in shards[1:]:
            if dict(shard.dtypes) != dict(shards[0].dtypes):
                raise StoreError(
                    f"{path}: shards of different kinds are not one store: {shards[0].path} has"
                    f" {_kinds(shards[0])}, {shard.path} has {_kinds(shard)}"
                )
        self.path = path
        self.shards = tuple(shards)
        self._document_begins = _prefix_sums([shard.num_documents for shard in shards])
        self._token_begins: IntArray | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of every shard."""
        return self.shards[0].keys

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Those of every shard."""
        return self.shards[0].dtypes

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of all shards, in order."""
        return tuple(file for shard in self.shards for file in shard.files)

    @property
    def num_documents(self) -> int:
        """Documents of all shards. O(1)."""
        return int(self._document_begins[-1])

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards; the first use asks every shard."""
        return int(self._begins()[-1])

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: tokens of each document."""
        return np.concatenate([shard.lengths for shard in self.shards])

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the fingerprints of the shards, in order."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for shard in self.shards:
            hasher.update(shard.fingerprint.encode())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """(length,) tokens of one document, as its shard returns them."""
        number = document_number(index, self.num_documents)
        at = bisect_right(self._document_begins, number) - 1
        return self.shards[at].document(number - int(self._document_begins[at]), keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """(end - begin,) tokens of the stream; a copy only where the range crosses from one shard to the next."""
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda key: self._read(begin, end, key), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) tokens, a fresh array: about 2 us a row where each row lies in another shard."""
        shard_begins = self._begins()
        begins = positions(begins, max(0, int(shard_begins[-1]) - length + 1), "begins")
        out = np.empty((len(begins), length), self.dtypes[self.keys[0]])
        if not out.size:
            return out
        of = np.searchsorted(shard_begins, begins, side="right") - 1
        crosses = begins + length > shard_begins[of + 1]
        local = (begins - shard_begins[of]).tolist()
        rows_of: dict[int, list[int]] = {}
        for row, shard in enumerate(of.tolist()):
            rows_of.setdefault(-1 if crosses[row] else shard, []).append(row)
        for row in rows_of.pop(-1, ()):
            out[row] = self._read(int(begins[row]), int(begins[row]) + length, self.keys[0])
        for shard, rows in rows_of.items():
            store = self.shards[shard]
            if len(rows) >= _BULK_ROWS:
                out[rows] = store.gather(np.array([local[row] for row in rows]), length)
            else:
                for row in rows:
                    out[row] = store.fetch(local[row], local[row] + length)
        return out

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """The tokens of each range; a copy only where one crosses from one shard to the next."""
        shard_begins = self._begins()
        check_ranges(begins, lengths, int(shard_begins[-1]))
        of = np.searchsorted(shard_begins, begins, side="right") - 1
        # An empty range may begin where the last shard ends.
        of = np.minimum(of, len(self.shards) - 1)
        found = [memoryview(b"")] * len(begins)
        crosses = begins + lengths > shard_begins[of + 1]
        for row in np.flatnonzero(crosses).tolist():
            begin = int(begins[row])
            found[row] = self._read(begin, begin + int(lengths[row]), self.keys[0] if key is None else key).data
        order = np.argsort(np.where(crosses, -1, of), kind="stable")[int(np.count_nonzero(crosses)) :]
        shards, firsts = np.unique(of[order], return_index=True)
        for shard, rows in zip(shards.tolist(), np.split(order, firsts)[1:], strict=True):
            local = self.shards[shard].buffers(begins[rows] - shard_begins[shard], lengths[rows], key)
            for row, piece in zip(rows.tolist(), local, strict=True):
                found[row] = piece
        return found

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Those of each shard in turn."""
        for shard in self.shards:
            yield from shard.length_chunks(num_documents)

    def find_documents(self, begins: IntArray) -> IntArray:
        """(n,) int64: the document that holds each token; each shard in use is asked once."""
        shard_begins = self._begins()
        begins = positions(begins, int(shard_begins[-1]), "begins")
        out = np.empty(len(begins), np.int64)
        for shard, rows in _groups(shard_begins, begins):
            found = self.shards[shard].find_documents(begins[rows] - shard_begins[shard])
            out[rows] = found + self._document_begins[shard]
        return out

    def document_begins(self, documents: IntArray) -> IntArray:
        """(n,) int64: the token where each document begins; ``num_documents`` itself gives ``num_tokens``."""
        documents = positions(documents, self.num_documents + 1, "documents")
        shard_begins = self._begins()
        out = np.full(len(documents), shard_begins[-1])
        inner = np.flatnonzero(documents < self.num_documents)
        for shard, rows in _groups(self._document_begins, documents[inner]):
            at = inner[rows]
            local = documents[at] - self._document_begins[shard]
            out[at] = self.shards[shard].document_begins(local) + shard_begins[shard]
        return out

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every shard."""
        for shard in self.shards:
            yield from shard.check(vocab_size=vocab_size)

    def close(self) -> None:
        """Close every shard."""
        for shard in self.shards:
            shard.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shards, self.path)

    def _begins(self) -> IntArray:
        if self._token_begins is None:
            self._token_begins = _prefix_sums([shard.num_tokens for shard in self.shards])
        return self._token_begins

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        shard_begins = self._begins()
        first = bisect_right(shard_begins, begin) - 1
        if first < len(self.shards) and end <= shard_begins[first + 1]:
            at = int(shard_begins[first])
            part: TokenArray = self.shards[first].fetch(begin - at, end - at, key)
            return part
        parts = []
        while begin < end:
            at, until = int(shard_begins[first]), min(end, int(shard_begins[first + 1]))
            parts.append(self.shards[first].fetch(begin - at, until - at, key))
            begin, first = until, first + 1
        return read_only(np.concatenate(parts) if parts else np.empty(0, self.dtypes[key]))


def _prefix_sums(counts: Sequence[int]) -> IntArray:
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def _groups(shard_begins: IntArray, positions: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each shard that holds some of the positions, with the places of those in ``positions``."""
    of = np.searchsorted(shard_begins, positions, side="right") - 1
    order = np.argsort(of, kind="stable")
    shards, firsts = np.unique(of[order], return_index=True)
    # Cut at each first, the piece before the first of all is empty, also where there are no positions at all.
    return zip(shards.tolist(), np.split(order, firsts)[1:], strict=True)


def _kinds(store: Store) -> str:
    return ", ".join(f"{key} of {dtype.name}" for key, dtype in store.dtypes.items())
