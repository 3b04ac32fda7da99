"""One key of the records of a store: lengths and values of many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.stores import CombinedStore, KeyedStore, ShardedStore, Store
from headrace.stores.segmented import SegmentedStore


class RecordKey:
    """What a store keeps under a key, record by record; document i of every key is record i.

    Raises:
        ConfigError: the store has no such key, or not for every record.
    """

    def __init__(self, store: Store, key: str) -> None:
        if key not in store.keys:
            raise ConfigError(f"{store.path}: no key {key!r}; its keys are {', '.join(map(repr, store.keys))}")
        self.store = store
        self.key = key
        self._own = _own_store(store, key)
        if self._own is None and len(store):
            store.document(0, key)  # refuses keys that have not as many documents

    def lengths(self, records: IntArray) -> IntArray:
        """(n,) int64: values of each record. O(1) each."""
        if self._own is None:
            return np.array([len(self.store.document(i, self.key)) for i in records.tolist()], dtype=np.int64)
        bounds = self._own.document_begins(np.concatenate([records, records + 1]))
        return bounds[len(records) :] - bounds[: len(records)]

    def values(self, records: IntArray) -> list[NDArray[Any]]:
        """Of each record its (length,) values; views where the store is mapped."""
        if self._own is None:
            return [self.store.document(i, self.key) for i in records.tolist()]
        bounds = self._own.document_begins(np.concatenate([records, records + 1]))
        begins = bounds[: len(records)]
        return self._own.pieces(begins, bounds[len(records) :] - begins)

    def first_values(self, records: IntArray) -> NDArray[Any]:
        """(n,) the first value of each record, none of which is empty."""
        if self._own is None:
            return np.array([self.store.document(i, self.key)[0] for i in records.tolist()])
        begins = self._own.document_begins(records)
        return np.concatenate([np.empty(0, np.int64), *self._own.pieces(begins, np.ones_like(begins))])


def found_key(store: Store, wanted: str | None, names: Sequence[str], what: str) -> str:
    """The key that was asked for, or else the first of some names that the store has.

    Raises:
        ConfigError: there is none.
    """
    looked_for = names if wanted is None else [wanted]
    for name in looked_for:
        if name in store.keys:
            return name
    raise ConfigError(
        f"{store.path}: no key for {what}; looked for {', '.join(map(repr, looked_for))}, its keys are"
        f" {', '.join(map(repr, store.keys))}"
    )


def _own_store(store: Store, key: str) -> Store | None:
    """A store whose main key it is, where there is one at hand: it reads many records at once."""
    if key == store.keys[0]:
        return store
    if isinstance(store, CombinedStore):
        return store.stores[key]
    if isinstance(store, KeyedStore | SegmentedStore):
        own = store.with_main(key)
        # A key of other records has none of its own here, and `document` says what is wrong with it.
        return own if len(own) == len(store) else None
    if isinstance(store, ShardedStore):
        shards = [_own_store(shard, key) for shard in store.shards]
        known = [shard for shard in shards if shard is not None]
        # Borders of records must fall on the same shards in every key.
        if list(map(len, known)) == list(map(len, store.shards)):
            return ShardedStore(known, store.path)
    return None
