"""Stores to copy, and what is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import headrace
from headrace.compat.megatron import IndexedDatasetBuilder
from headrace.stores import open_keys
from stored import files as files

GOLDEN = Path(__file__).parent / "golden"


def pair(prefix: Path, documents: list[list[list[int]]], dtype: str = "uint16") -> Path:
    """A pair of documents, each a list of sequences."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sequences in documents:
        builder.add_document([token for sequence in sequences for token in sequence], list(map(len, sequences)))
    builder.finalize(f"{prefix}.idx")
    return prefix


def drawn(prefix: Path, seed: int, num_documents: int, dtype: str = "uint16") -> Path:
    """A pair of random documents of no, one and several sequences, some empty."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(0, 7, rng.integers(0, 4)) for _ in range(num_documents)]
    return pair(prefix, [[rng.integers(0, 250, length).tolist() for length in document] for document in lengths], dtype)


def content(path: Path) -> dict[str, list[list[int]]]:
    """All documents of all keys."""
    return {
        key: [store.document(number).tolist() for number in range(len(store))] for key, store in open_keys(path).items()
    }


def documents(path: Path) -> list[list[int]]:
    """All documents of the main key."""
    store = headrace.open(path)
    return [store.document(number).tolist() for number in range(len(store))]


def pair_bytes(prefix: Path) -> tuple[bytes, bytes]:
    """The two files."""
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()
