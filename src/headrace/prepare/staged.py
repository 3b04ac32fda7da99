"""A shard that was written in a layout that can be continued -> the same documents in one that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.prepare.columns import Column
from headrace.stores import Hdf5Writer, KeyedStore, WrittenShard

BATCH_DOCUMENTS = 4096


def write_hdf5_shard(staged: Path, path: Path, columns: Sequence[Column]) -> WrittenShard:
    """Copy a complete shard of the keyed layout into one HDF5 file, which appears whole. 50 us a document and key.

    Raises:
        OutputError: the system refuses.
        StoreError: the shard is damaged.
        MissingExtraError: h5py is not installed.
    """
    store = KeyedStore(staged)
    try:
        bounds = {column.key: _bounds(store, column.key) for column in columns}
        dtypes = {column.key: column.dtype for column in columns}
        values = [column.key for column in columns if column.kind != "ids"]
        with Hdf5Writer(path, dtypes=dtypes, values=values) as writer:
            for first in range(0, store.num_documents, BATCH_DOCUMENTS):
                last = min(first + BATCH_DOCUMENTS, store.num_documents)
                own = {key: ends[first : last + 1] for key, ends in bounds.items()}
                tokens = {key: store.with_main(key).fetch(int(ends[0]), int(ends[-1])) for key, ends in own.items()}
                writer.add_documents(tokens, {key: np.diff(ends) for key, ends in own.items()})
            return writer.finish()
    finally:
        store.close()


def _bounds(store: KeyedStore, key: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lengths = store.with_main(key).lengths
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
