"""A store's numbers, gathered for ``headrace info``."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.stores import (
    MANIFEST_NAME,
    InputFile,
    Ledger,
    Manifest,
    ShardedStore,
    Store,
    TokenizerInfo,
    load_manifest,
    open,
)


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a document, empty ones included."""

    min: int
    median: float
    mean: float
    max: int


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of ``first`` to ``last`` tokens, both included."""

    first: int
    last: int
    documents: int
    tokens: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``headrace info`` says; the last three come from the manifest, where there is one."""

    path: str
    format: str
    dtype: str
    shards: int
    documents: int
    empty_documents: int
    tokens: int
    bytes: int
    tokens_per_document: Lengths | None
    histogram: tuple[Bar, ...]
    tokenizer: TokenizerInfo | None
    inputs: tuple[InputFile, ...] | None
    ledger: Ledger | None


def describe(path: str) -> Description:
    """Open a store and gather its numbers. Reads the index, not the tokens; memory is that of one shard's lengths.

    Raises:
        StoreError: it does not open.
    """
    with open(path) as store:
        shards = store.shards if isinstance(store, ShardedStore) else (store,)
        lengths, counts = _merge([np.unique(shard.lengths, return_counts=True) for shard in shards])
        manifest = find_manifest(path)
        num_documents = int(counts.sum())
        return Description(
            path=path,
            format=shards[0].format,
            dtype=store.dtypes[store.keys[0]].name,
            shards=len(shards),
            documents=num_documents,
            empty_documents=int(counts[lengths == 0].sum()),
            tokens=store.num_tokens,
            bytes=sum(file.stat().st_size for file in files_of(store)),
            tokens_per_document=_summarise(lengths, counts) if num_documents else None,
            histogram=histogram(lengths, counts),
            tokenizer=manifest.tokenizer if manifest else None,
            inputs=manifest.inputs if manifest else None,
            ledger=manifest.ledger if manifest else None,
        )


def find_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """The manifest that speaks of this store, or None.

    Raises:
        StoreError: there is one, but it is damaged.
    """
    place = Path(path)
    if place.is_dir():
        return load_manifest(place) if (place / MANIFEST_NAME).exists() else None
    if not (place.parent / MANIFEST_NAME).exists():
        return None
    manifest = load_manifest(place.parent)
    prefix = place.name[:-4] if place.name.endswith((".bin", ".idx")) else place.name
    return manifest if manifest.shard(prefix) is not None else None


def files_of(store: Store) -> list[Path]:
    """The files of all shards, in order."""
    shards = store.shards if isinstance(store, ShardedStore) else (store,)
    prefixes = [str(getattr(shard, "prefix", shard.path)) for shard in shards]
    return [Path(prefix + suffix) for prefix in prefixes for suffix in (".bin", ".idx")]


def histogram(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Bar, ...]:
    """Documents by powers of two of their tokens: 0, 1, 2 to 3, 4 to 7, ...; bars at the ends are never empty.

    Args:
        lengths: distinct lengths, ascending.
        counts: documents of each.
    """
    # frexp gives n = m * 2^e with m in [1/2, 1), so e is the number of bits; exact below 2^53.
    bits = np.frexp(lengths.astype(np.float64))[1]
    bars = []
    for bit in range(int(bits[0]), int(bits[-1]) + 1) if len(bits) else ():
        chosen = bits == bit
        bars.append(
            Bar(
                first=(1 << bit) >> 1,
                last=(1 << bit) - 1,
                documents=int(counts[chosen].sum()),
                tokens=int((lengths[chosen] * counts[chosen]).sum()),
            )
        )
    return tuple(bars)


def _merge(parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths, where = np.unique(np.concatenate([lengths for lengths, _ in parts]), return_inverse=True)
    counts = np.zeros(len(lengths), np.int64)
    np.add.at(counts, where, np.concatenate([counts for _, counts in parts]))
    return lengths, counts


def _summarise(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> Lengths:
    ends = np.cumsum(counts)
    num_documents = int(ends[-1])
    middle = np.searchsorted(ends, [(num_documents - 1) // 2, num_documents // 2], side="right")
    return Lengths(
        min=int(lengths[0]),
        median=float(lengths[middle].mean()),
        mean=int((lengths * counts).sum()) / num_documents,
        max=int(lengths[-1]),
    )
