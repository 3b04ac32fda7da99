"""Small stores of random documents, and the plain arrays that they must read as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import headrace
from headrace.stores import IndexedWriter, Store


@dataclass(frozen=True)
class Corpus:
    """A store and its content: (num_tokens,) int64 tokens, and the document of each."""

    store: Store
    tokens: np.ndarray
    documents: np.ndarray


def write(prefix: Path, documents: list[np.ndarray], dtype: type = np.uint16) -> None:
    """One ``.bin/.idx`` shard."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with IndexedWriter(str(prefix), dtype=np.dtype(dtype)) as writer:
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        writer.add_documents(np.concatenate([np.empty(0, dtype), *documents]).astype(dtype), lengths)
        writer.finish()


def make(
    folder: Path, seed: int, num_documents: int, *, num_shards: int = 1, max_length: int = 60, reader: str = "mmap"
) -> Corpus:
    """Random documents, some of them empty, over some shards."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, max_length, num_documents) * (rng.random(num_documents) > 0.15)
    documents = [rng.integers(0, 60_000, length).astype(np.uint16) for length in lengths]
    for shard in range(num_shards):
        part = documents[shard * num_documents // num_shards : (shard + 1) * num_documents // num_shards]
        write(folder / f"shard-{shard}", part)
    store = headrace.open(str(folder if num_shards > 1 else folder / "shard-0"), reader=reader)
    return Corpus(store, np.concatenate(documents).astype(np.int64), np.repeat(np.arange(num_documents), lengths))
