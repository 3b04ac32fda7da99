"""Shards of a dataset that hold documents of tokens: each document is a sample, each key of the store a part of it."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import HeadraceError, StoreError
from headrace.io import Reader
from headrace.stores.sample_store import RawSample
from headrace.stores.store import Problem, Store
from headrace.stores.types import IntArray, TokenArray


class DocumentShards:
    """Stores of tokens as shards, each opened when it is first read: ``.jsonl``, ``.h5``, ``.bin`` with ``.idx``, ...

    Document i is the sample of key ``"i"`` with a part ``<key>.npy`` for each key of its store, which holds the bytes
    of such a file. Nothing of another kind than ``.npy`` is made.

    Args:
        root: the folder that the names are relative to.
        names: of the shards.
        counts: (shards,) int64: the documents that each must have.
        using: how to read, see `headrace.io.reader`.
    """

    def __init__(self, root: str | Path, names: Sequence[str], counts: IntArray, *, using: str | Reader) -> None:
        self._root = Path(root)
        self._names = names
        self._counts = counts
        self._using = using
        self._stores: dict[int, Store] = {}

    def read(self, shards: IntArray, indices: IntArray, parts: Collection[str] | None) -> list[RawSample]:
        """The documents ``indices`` of ``shards``, in the order asked for."""
        found = []
        for shard, index in zip(shards.tolist(), indices.tolist(), strict=True):
            store = self.store(shard)
            wanted = [key for key in store.keys if parts is None or _part(key) in parts]
            content = {_part(key): _npy(tokens) for key, tokens in store.document(index, wanted).items()}
            found.append(RawSample(str(index), self._names[shard], index, content))
        return found

    def store(self, shard: int) -> Store:
        """The store of a shard.

        Raises:
            StoreError: it cannot be opened, or has another number of documents.
        """
        store = self._stores.get(shard)
        if store is None:
            from headrace.stores.opening import open_tokens  # which opens datasets that hold such shards

            place = self._root / self._names[shard]
            store = open_tokens(place, reader=self._using)
            if len(store) != self._counts[shard]:
                found = len(store)
                store.close()
                raise StoreError(
                    f"{place}: has {found:,} documents, the info file lists {self._counts[shard]:,}; prepare the"
                    " dataset again"
                )
            self._stores[shard] = store
        return store

    def check(self, shard: int) -> Iterator[Problem]:
        """Read a shard and yield what is wrong."""
        try:
            yield from self.store(shard).check()
        except HeadraceError as error:
            yield Problem(path=str(self._root / self._names[shard]), place="", message=str(error))

    def close(self) -> None:
        """Let go of the files."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()


def count_documents(place: Path, using: str | Reader) -> int:
    """How many documents a store of tokens has; raises as `headrace.stores.open_tokens`."""
    from headrace.stores.opening import open_tokens

    with open_tokens(place, reader=using) as store:
        return len(store)


def _part(key: str) -> str:
    return f"{key}.npy"


def _npy(tokens: TokenArray) -> bytes:
    out = io.BytesIO()
    array: np.ndarray[Any, Any] = np.asarray(tokens)
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()
