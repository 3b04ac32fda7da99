"""A shard that was written in a layout that can be continued -> the same documents in one that is written in one go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from headrace.prepare.columns import Column
from headrace.stores import Hdf5Writer, JsonlWriter, KeyedStore, WrittenShard

BATCH_DOCUMENTS = 4096

STAGED: Final[dict[str, tuple[type[Hdf5Writer | JsonlWriter], str]]] = {
    "hdf5": (Hdf5Writer, ".h5"),
    "jsonl": (JsonlWriter, ".jsonl"),
}
"""The layouts that are, each with its writer and the suffix of its files."""


def write_staged_shard(staged: Path, folder: Path, number: int, layout: str, columns: Sequence[Column]) -> WrittenShard:
    """Copy a complete shard of the keyed layout into one file ``data_<number>``, which appears whole.

    50 us a document and key for HDF5, and 50 ns a number for JSON lines.

    Raises:
        OutputError: the system refuses.
        StoreError: the shard is damaged.
        MissingExtraError: h5py is not installed.
    """
    make, suffix = STAGED[layout]
    path = folder / f"data_{number:04d}{suffix}"
    store = KeyedStore(staged)
    try:
        bounds = {column.key: _bounds(store, column.key) for column in columns}
        dtypes = {column.key: column.dtype for column in columns}
        values = [column.key for column in columns if column.kind != "ids"]
        with make(path, dtypes=dtypes, values=values) as writer:
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
