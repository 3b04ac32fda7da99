"""Several stores as one: `CombinedStore` joins keys of the same documents, `ShardedStore` joins shards in order."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import AnyPath, Reader
from headrace.stores.arguments import (
    by_keys,
    check_range,
    check_ranges,
    document_number,
    known_key,
    not_parallel,
    positions,
    prefix_sums,
    read_only,
)
from headrace.stores.store import (
    MAIN,
    Extents,
    IntArray,
    KeyList,
    Problem,
    Store,
    TokenArray,
    read_ahead_of_fingerprints,
)

_SAMPLED_DOCUMENTS = 4096


class SeveralStores(Store):
    """What is the sum of several stores."""

    @property
    @abstractmethod
    def parts(self) -> Collection[Store]:
        """The stores, in order."""

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files of all stores, each once."""
        return tuple(dict.fromkeys(file for store in self.parts for file in store.files))

    @property
    def readers(self) -> tuple[Reader, ...]:
        """Those of all stores, each once."""
        return tuple(dict.fromkeys(one for store in self.parts for one in store.readers))

    @property
    def data_files(self) -> tuple[str, ...]:
        """Those of all stores, one after another."""
        return tuple(file for store in self.parts for file in store.data_files)

    def data_sizes(self) -> IntArray:
        """(data_files,) int64: the bytes of each."""
        return np.concatenate([store.data_sizes() for store in self.parts])

    def data_file(self, file: int) -> tuple[Reader, str]:
        """Return one of ``data_files``, and what reads it. O(stores)."""
        for store in self.parts:
            num_files = len(store.data_files)
            if file < num_files:
                return store.data_file(file)
            file -= num_files
        raise IndexError(f"there is no data file {file} more")

    @property
    def opening(self) -> dict[str, Any]:
        """Those of the first store: all are opened with the same."""
        return next(iter(self.parts)).opening

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every store, in order; ids not in keys that hold none according to the manifest."""
        for store in self.parts:
            yield from store.check(vocab_size=vocab_size)

    def close(self) -> None:
        """Close the files of every store."""
        for store in self.parts:
            store.close()


class CombinedStore(SeveralStores):
    """Joins keys that have stores of their own into one store. O(keys) memory.

    Document i of every key belongs to the same record. The *main* key is the one called ``"tokens"``, or else the
    first; `num_tokens`, `lengths` and `gather` refer to it. `document` reads any key, each with its own length.
    `fetch`, `pieces`, `buffers` and `stream_view` read keys *parallel* to the main one, whose documents have the same
    lengths; a loss mask is such a key. This is checked when a key is first read so, by the totals and by the begins of
    4,096 documents spread over the store (or of all, if there are fewer).

    Args:
        stores: the store of each key, of which the key is the main one.
        path: the path that was opened, for messages.

    Raises:
        StoreError: there are no stores, or keys have different numbers of documents; the message names both.

    Example:
        >>> web = headrace.open("stores/web")
        >>> store = headrace.stores.CombinedStore({"text": web, "copy": web}, "stores/web")
        >>> store.keys
        ('text', 'copy')
    """

    format = "combined"

    def __init__(self, stores: Mapping[str, Store], path: str) -> None:
        if not stores:
            raise StoreError(f"{path}: no keys; a store needs at least one")
        main = MAIN if MAIN in stores else next(iter(stores))
        self.path = path
        self.stores = {main: stores[main], **stores}
        self._main = stores[main]
        self._parallel = {main}
        for key, store in stores.items():
            if store.num_documents != self._main.num_documents:
                raise StoreError(
                    f"{path}: the keys have different numbers of documents: {main!r} has {self._main.num_documents:,},"
                    f" {key!r} has {store.num_documents:,}; open them one by one, with key="
                )

    @property
    def parts(self) -> Collection[Store]:
        """The stores of the keys."""
        return self.stores.values()

    @property
    def keys(self) -> tuple[str, ...]:
        """The main key, then the others in the order of ``stores``."""
        return tuple(self.stores)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key."""
        return {key: store.dtypes[store.keys[0]] for key, store in self.stores.items()}

    def extents(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> Extents:
        """Return the ranges in the files of the key's own store."""
        return self._of(key).extents(begins, lengths)

    @property
    def num_documents(self) -> int:
        """Number of documents, the same for each key. O(1)."""
        return self._main.num_documents

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the main key."""
        return self._main.num_tokens

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens in each document of the main key."""
        return self._main.lengths

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the names and the fingerprints of all keys, the main one first."""
        read_ahead_of_fingerprints([self])
        hasher = xxhash.xxh3_128(self.format.encode())
        for key, store in self.stores.items():
            hasher.update(repr((key, store.fingerprint)).encode())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """Return the values of one document; keys may have different lengths there."""
        number = document_number(index, self.num_documents)
        return by_keys(lambda key: self.stores[key].document(number), keys, self.keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """Return the (end - begin,) tokens of the stream, as the stores of the keys return them.

        Raises:
            IndexError: unless ``0 <= begin <= end <= num_tokens``.
            ConfigError: the store does not have a key, or the key is not parallel to the main one.
        """
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda key: self._parallel_store(key).fetch(begin, end), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) tokens of the main key in a new array."""
        return self._main.gather(begins, length)

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """Return the stream of the key's own store as a view, if it has one."""
        return self._of(key).stream_view()

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """Return the tokens of each range, as the key's own store returns them."""
        return self._of(key).buffers(begins, lengths)

    def document_buffers(self, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[memoryview]:
        """Return ranges of documents of the main key."""
        return self._main.document_buffers(documents, begins, lengths)

    def with_main(self, key: str) -> Store | None:
        """Return the key's own store."""
        return self.stores[known_key(key, self.keys)]

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Yield the lengths of the main key's documents."""
        return self._main.length_chunks(num_documents)

    def find_documents(self, begins: IntArray) -> IntArray:
        """Return the document that holds each token of the main key, (n,) int64."""
        return self._main.find_documents(begins)

    def document_begins(self, documents: IntArray) -> IntArray:
        """Return where each document begins in the main key, (n,) int64; for ``num_documents``, ``num_tokens``."""
        return self._main.document_begins(documents)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stores, self.path)

    def _of(self, key: str | None) -> Store:
        return self._parallel_store(self._known(key))

    def _parallel_store(self, key: str) -> Store:
        store = self.stores[key]
        if key in self._parallel:
            return store
        main = self.keys[0]
        if store.num_tokens != self.num_tokens:
            difference = f"has {store.num_tokens:,} values, but the main key {main!r} has {self.num_tokens:,}"
        else:
            step = max(1, self.num_documents // _SAMPLED_DOCUMENTS)
            sampled = np.arange(0, self.num_documents + 1, step)
            wrong = np.flatnonzero(store.document_begins(sampled) != self._main.document_begins(sampled))
            if not len(wrong):
                self._parallel.add(key)
                return store
            first = sampled[wrong[0]] - step
            difference = f"has documents of other lengths than the main key {main!r}, from document {first} on"
        raise not_parallel(self.path, key, difference)


_BULK_ROWS = 4
"""With at least so many rows in one shard, one call of its gather costs less than a fetch for each row."""


class ShardedStore(SeveralStores):
    """Joins stores in a given order into one: their documents and token streams follow each other. O(shards) memory.

    Args:
        shards: the stores, at least one, all with the same keys and dtypes.
        path: the path that was opened, for messages.

    Raises:
        StoreError: there are no shards, or two of them do not fit together; the message names both.

    Example:
        >>> web, code = headrace.open("stores/web"), headrace.open("stores/code")
        >>> store = headrace.stores.ShardedStore([web, code], "stores")
        >>> store.num_documents == web.num_documents + code.num_documents
        True
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
        self._document_begins = prefix_sums([shard.num_documents for shard in shards])
        self._token_begins: IntArray | None = None

    @property
    def parts(self) -> Collection[Store]:
        """The shards."""
        return self.shards

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, which are the same in every shard."""
        return self.shards[0].keys

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtypes, which are the same in every shard."""
        return self.shards[0].dtypes

    def extents(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> Extents:
        """Return the ranges in the files of the shards; one that crosses shards is cut."""
        shard_begins = self._begins()
        check_ranges(begins, lengths, int(shard_begins[-1]))
        firsts = np.minimum(np.searchsorted(shard_begins, begins, side="right") - 1, len(self.shards) - 1)
        lasts = np.maximum(firsts, np.searchsorted(shard_begins, begins + lengths, side="left") - 1)
        counts = lasts - firsts + 1
        rows = np.repeat(np.arange(len(begins)), counts)
        owners = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[rows]
        low = np.maximum(begins[rows], shard_begins[owners])
        high = np.minimum(begins[rows] + lengths[rows], shard_begins[owners + 1])
        num_files = prefix_sums([len(shard.data_files) for shard in self.shards])
        parts = []
        for shard, mine in _groups(owners):
            begin = shard_begins[shard]
            found = self.shards[shard].extents(low[mine] - begin, high[mine] - low[mine], key)
            parts.append(found._replace(rows=rows[mine][found.rows], files=found.files + num_files[shard]))
        return Extents.joined(self, parts)

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards. O(1)."""
        return int(self._document_begins[-1])

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all shards. The first use asks every shard."""
        return int(self._begins()[-1])

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens in each document."""
        return np.concatenate([shard.lengths for shard in self.shards])

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the fingerprints of the shards, in order."""
        read_ahead_of_fingerprints([self])
        hasher = xxhash.xxh3_128(self.format.encode())
        for shard in self.shards:
            hasher.update(shard.fingerprint.encode())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """Return the tokens of one document, as its shard returns them."""
        number = document_number(index, self.num_documents)
        at = bisect_right(self._document_begins, number) - 1
        return self.shards[at].document(number - int(self._document_begins[at]), keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """Return the (end - begin,) tokens of the stream; only a range that crosses two shards is copied."""
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda key: self._read(begin, end, key), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) tokens in a new array; about 2 us a row if each row lies in another shard."""
        shard_begins = self._begins()
        begins = positions(begins, max(0, int(shard_begins[-1]) - length + 1), "begins")
        out = np.empty((len(begins), length), self.dtypes[self.keys[0]])
        if not out.size:
            return out
        owners = np.searchsorted(shard_begins, begins, side="right") - 1
        crosses = begins + length > shard_begins[owners + 1]
        local = (begins - shard_begins[owners]).tolist()
        rows_of: dict[int, list[int]] = {}
        for row, shard in enumerate(owners.tolist()):
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
        """Return the tokens of each range; only a range that crosses two shards is copied."""
        shard_begins = self._begins()
        check_ranges(begins, lengths, int(shard_begins[-1]))
        owners = np.searchsorted(shard_begins, begins, side="right") - 1
        # An empty range may begin where the last shard ends.
        owners = np.minimum(owners, len(self.shards) - 1)
        found = [memoryview(b"")] * len(begins)
        crosses = begins + lengths > shard_begins[owners + 1]
        for shard, rows in _groups(np.where(crosses, -1, owners)):
            if shard < 0:
                main = self.keys[0] if key is None else key
                ranges = zip(begins[rows].tolist(), lengths[rows].tolist(), strict=True)
                local = [self._read(begin, begin + length, main).data for begin, length in ranges]
            else:
                local = self.shards[shard].buffers(begins[rows] - shard_begins[shard], lengths[rows], key)
            for row, piece in zip(rows.tolist(), local, strict=True):
                found[row] = piece
        return found

    def with_main(self, key: str) -> Store | None:
        """Return the shards with another main key as one store; None if one of them has to be opened again."""
        if key == self.keys[0]:
            return self
        shards = [shard.with_main(key) for shard in self.shards]
        found = [shard for shard in shards if shard is not None]
        return ShardedStore(found, self.path) if len(found) == len(shards) else None

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Yield the lengths of each shard in turn."""
        for shard in self.shards:
            yield from shard.length_chunks(num_documents)

    def find_documents(self, begins: IntArray) -> IntArray:
        """Return the document that holds each token, (n,) int64; each shard in use is asked once."""
        shard_begins = self._begins()
        begins = positions(begins, int(shard_begins[-1]), "begins")
        out = np.empty(len(begins), np.int64)
        for shard, rows in _groups(np.searchsorted(shard_begins, begins, side="right") - 1):
            found = self.shards[shard].find_documents(begins[rows] - shard_begins[shard])
            out[rows] = found + self._document_begins[shard]
        return out

    def document_begins(self, documents: IntArray) -> IntArray:
        """Return the token where each document begins, (n,) int64; for ``num_documents``, ``num_tokens``."""
        documents = positions(documents, self.num_documents + 1, "documents")
        shard_begins = self._begins()
        out = np.full(len(documents), shard_begins[-1])
        inner = np.flatnonzero(documents < self.num_documents)
        for shard, rows in _groups(np.searchsorted(self._document_begins, documents[inner], side="right") - 1):
            at = inner[rows]
            local = documents[at] - self._document_begins[shard]
            out[at] = self.shards[shard].document_begins(local) + shard_begins[shard]
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shards, self.path)

    def _begins(self) -> IntArray:
        if self._token_begins is None:
            self._token_begins = prefix_sums([shard.num_tokens for shard in self.shards])
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


def _groups(owners: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each shard that owns something, with the indices of what it owns, rising."""
    order = np.argsort(owners, kind="stable")
    shards, firsts = np.unique(owners[order], return_index=True)
    # The piece before the first cut is always empty, even if there are no owners at all.
    return zip(shards.tolist(), np.split(order, firsts)[1:], strict=True)


def _kinds(store: Store) -> str:
    return ", ".join(f"{key} of {dtype.name}" for key, dtype in store.dtypes.items())
