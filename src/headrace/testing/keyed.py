"""Write shards of the keyed format for tests, valid or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from headrace.io import file_sum
from headrace.stores import KeyedStore, KeyedWriter, KeyInfo, Manifest, OutputShard, WrittenShard, save_manifest
from headrace.testing.indexed import manifest_of
from headrace.testing.strategies import Documents


def write_keyed(folder: Path, **keys: tuple[DTypeLike, Documents]) -> WrittenShard:
    """Write a valid shard; ``keys`` holds the dtype and the documents of each key."""
    with KeyedWriter(folder, dtypes={key: dtype for key, (dtype, _) in keys.items()}) as writer:
        tokens = {key: np.concatenate([np.empty(0, dtype), *parts]) for key, (dtype, parts) in keys.items()}
        lengths = {key: np.array([len(part) for part in parts], np.int64) for key, (_, parts) in keys.items()}
        writer.add_documents({key: tokens[key].astype(dtype) for key, (dtype, _) in keys.items()}, lengths)
        return writer.finish()


def write_raw_keyed(folder: Path, meta: bytes, files: Mapping[str, bytes]) -> Path:
    """Write any ``meta.json``, and a ``.bin`` with any bytes for each of these keys."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_bytes(meta)
    for key, data in files.items():
        (folder / f"{key}.bin").write_bytes(data)
    return folder


def vouch_for_keyed(folder: Path, shards: Iterable[KeyedStore]) -> Manifest:
    """Write a manifest that lists shards with their hashes as they are on disk."""
    outputs = []
    for store in shards:
        keys = {
            key: KeyInfo(dtype=dtype.name, tokens=file_sum(Path(store.folder) / f"{key}.bin").size // dtype.itemsize)
            for key, dtype in store.dtypes.items()
        }
        written = WrittenShard(
            format="keyed",
            prefix=store.folder,
            num_documents=store.num_documents,
            keys=keys,
            contiguous=True,
            files=tuple(file_sum(file) for file in store.files),
        )
        outputs.append(OutputShard.of(written, folder))
    return save_manifest(folder, manifest_of(outputs))
