"""Prepares Energon datasets with the pieces of `headrace.stores`, as `headrace prepare` does it as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from energon_made import write_shards
from headrace.stores.energon import SqliteWriter, write_info, write_splits
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.tar.index import index_path
from headrace.stores.tar.scan import scan_shard

Shards = Mapping[str, Sequence[tuple[str, bytes]]]


def prepare(root: Path, names: Iterable[str], splits: Mapping[str, Sequence[str]], exclude: Sequence[str] = ()) -> Path:
    """Write everything of ``.nv-meta`` and the indices of shards that are there."""
    (root / ".nv-meta").mkdir(exist_ok=True)
    counts = {}
    with SqliteWriter(root) as writer:
        for shard, name in enumerate(names):
            scanned = scan_shard(root / name)
            write_offsets(index_path(root / name), scanned.offsets)
            writer.add_shard(shard, scanned)
            counts[name] = len(scanned.keys)
    write_info(root, counts, "7.4.1")
    write_splits(root, splits, exclude=exclude)
    return root


def prepared(
    root: Path, shards: Shards, splits: Mapping[str, Sequence[str]] | None = None, exclude: Sequence[str] = ()
) -> Path:
    """Write shards, and all that makes a dataset of them."""
    write_shards(root, dict(shards))
    return prepare(root, shards, {"train": list(shards)} if splits is None else splits, exclude)
