"""Several stores side by side: the same documents, each store with one key of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreError
from headrace.stores.arguments import by_keys, check_range, document_number, known_key
from headrace.stores.store import MAIN, IntArray, KeyList, Problem, Store, TokenArray

_SAMPLED_DOCUMENTS = 4096


class CombinedStore(Store):
    """Keys with shards of their own as one store; document i of every key is the same record. O(keys) memory.

    The *main* key decides what the stream is: `num_tokens`, `lengths`, `gather`. It is the one called ``"tokens"``, or
    the first. `document` reads any key, each with its own length. `fetch`, `pieces`, `buffers` and `stream_view` read
    keys *parallel* to the main one, whose documents have the same lengths, as a loss mask has. Whether a key is, is
    looked at when it is first read so: the totals, and the begins of 4,096 documents spread over all (of fewer, all).

    Args:
        stores: for each key its store, whose main key it is.
        path: what was opened.

    Raises:
        StoreError: no stores, or keys with different numbers of documents; names both.
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
                    f"{path}: the keys are not of the same documents: {main!r} has {self._main.num_documents:,},"
                    f" {key!r} {store.num_documents:,}; open them one by one, with key="
                )

    @property
    def keys(self) -> tuple[str, ...]:
        """The main key, then the others in the order given."""
        return tuple(self.stores)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each key."""
        return {key: store.dtypes[store.keys[0]] for key, store in self.stores.items()}

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of all keys, each once."""
        return tuple(dict.fromkeys(file for store in self.stores.values() for file in store.files))

    @property
    def num_documents(self) -> int:
        """Documents of each key. O(1)."""
        return self._main.num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens of the main key."""
        return self._main.num_tokens

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: tokens of each document of the main key."""
        return self._main.lengths

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the names and the fingerprints of all keys, the main one first."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for key, store in self.stores.items():
            hasher.update(repr((key, store.fingerprint)).encode())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """(length,) values of one document, of each key as many as it has there."""
        number = document_number(index, self.num_documents)
        return by_keys(lambda key: self.stores[key].document(number), keys, self.keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """(end - begin,) tokens of the stream, as the stores of the keys return them.

        Raises:
            IndexError: unless ``0 <= begin <= end <= num_tokens``.
            ConfigError: a key that the store does not have, or that is not parallel to the main one.
        """
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda key: self._parallel_store(key).fetch(begin, end), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) tokens of the main key, a fresh array."""
        return self._main.gather(begins, length)

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """That of the key's own store."""
        return self._of(key).stream_view()

    def buffers(self, begins: IntArray, lengths: IntArray, key: str | None = None) -> list[memoryview]:
        """The tokens of each range, as the key's own store gives them."""
        return self._of(key).buffers(begins, lengths)

    def document_buffers(self, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[memoryview]:
        """Of the main key."""
        return self._main.document_buffers(documents, begins, lengths)

    def length_chunks(self, num_documents: int) -> Iterator[IntArray]:
        """Of the main key."""
        return self._main.length_chunks(num_documents)

    def find_documents(self, begins: IntArray) -> IntArray:
        """(n,) int64: the document that holds each token of the main key."""
        return self._main.find_documents(begins)

    def document_begins(self, documents: IntArray) -> IntArray:
        """(n,) int64: where each document begins in the main key; ``num_documents`` itself gives ``num_tokens``."""
        return self._main.document_begins(documents)

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every key; ids in all but those that the manifest says hold none."""
        for store in self.stores.values():
            yield from store.check(vocab_size=vocab_size)

    def close(self) -> None:
        """Close every key."""
        for store in self.stores.values():
            store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.stores, self.path)

    def _of(self, key: str | None) -> Store:
        return self._main if key is None else self._parallel_store(known_key(key, self.keys))

    def _parallel_store(self, key: str) -> Store:
        store = self.stores[key]
        if key in self._parallel:
            return store
        main = self.keys[0]
        if store.num_tokens != self.num_tokens:
            difference = f"has {store.num_tokens:,} values, the main key {main!r} {self.num_tokens:,}"
        else:
            step = max(1, self.num_documents // _SAMPLED_DOCUMENTS)
            sampled = np.arange(0, self.num_documents + 1, step)
            wrong = np.flatnonzero(store.document_begins(sampled) != self._main.document_begins(sampled))
            if not len(wrong):
                self._parallel.add(key)
                return store
            difference = (
                f"has documents of other lengths than the main key {main!r}, from {sampled[wrong[0]] - step} on"
            )
        raise ConfigError(
            f"{self.path}: key {key!r} {difference}: the streams are not parallel; read them by document, or open the"
            f" store with key={key!r}"
        )
