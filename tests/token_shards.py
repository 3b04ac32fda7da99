"""Write shards of tokens for tests, valid or not: in the indexed and in the keyed format, and manifests of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.io import file_sum
from headrace.stores import (
    BackendInfo,
    DocumentLedger,
    ErrorEntry,
    IndexedStore,
    IndexedWriter,
    InputFile,
    KeyedStore,
    KeyedWriter,
    KeyInfo,
    Ledger,
    Manifest,
    OutputShard,
    ShuffledOrder,
    TokenizerInfo,
    TokenLedger,
    save_manifest,
)
from headrace.stores.indexed.layout import IdxLayout, dtype_code


def write_shard(prefix: Path, documents: Sequence[NDArray[Any]], dtype: str = "uint16") -> OutputShard:
    """Write a valid shard."""
    with IndexedWriter(prefix, dtype=dtype) as writer:
        if documents:
            writer.add_documents(np.concatenate(documents), np.array([len(document) for document in documents]))
        return writer.finish()


def write_raw(
    prefix: Path, dtype: str, sizes: Sequence[int], pointers: Sequence[int], bounds: Sequence[int], data: bytes
) -> None:
    """Write a pair of files with a valid header and any arrays."""
    layout = IdxLayout(dtype_code(dtype), len(sizes), len(bounds))
    arrays = np.array(sizes, "<i4").tobytes() + np.array(pointers, "<i8").tobytes() + np.array(bounds, "<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(layout.header() + arrays)
    prefix.with_name(prefix.name + ".bin").write_bytes(data)


def vouch_for(folder: Path, shards: Iterable[IndexedStore], *, contiguous: bool = True) -> Manifest:
    """Write a manifest that lists shards with their hashes as they are on disk."""
    outputs = []
    for store in shards:
        written = OutputShard(
            format="indexed",
            prefix=store.prefix,
            documents=store.num_documents,
            keys={"tokens": KeyInfo(dtype=store.dtypes["tokens"].name, tokens=store.num_tokens)},
            contiguous=contiguous,
            files=(file_sum(store.prefix + ".bin"), file_sum(store.prefix + ".idx")),
        )
        outputs.append(OutputShard.of(written, folder))
    return save_manifest(folder, manifest_of(outputs))


def manifest_of(outputs: Sequence[OutputShard], *, key: str | None = None) -> Manifest:
    """Return a manifest whose ledger balances, with an entry of every kind.

    Args:
        outputs: the shards.
        key: a key that all documents have, if the shards have several.
    """
    key = key or next((key for shard in outputs for key in shard.keys), None)
    documents = sum(shard.documents for shard in outputs if key in shard.keys)
    kept = sum(shard.tokens for shard in outputs)
    return Manifest(
        inputs=(InputFile(path="in.jsonl", size=5, xxh3_128="00"),),
        options={"seed": 1, "share": 0.1},
        tokenizer=TokenizerInfo(
            source="tokenizer.json", xxh3_128="11", vocab_size=1000, eod=0, eod_text="<eod>", library_version="1.2"
        ),
        backend=BackendInfo(name="fast", version="3.4", why={"fast": "proved"}, proved={"probe_texts": 7}),
        order=ShuffledOrder(seed=5),
        outputs=tuple(outputs),
        ledger=Ledger(
            documents=DocumentLedger(read=documents + 3, kept=documents, dropped={"error": 1, "short": 2}),
            tokens=TokenLedger(made=kept + 4, kept=kept, dropped={"short": 3}, truncated={"long": 1}),
        ),
        errors=(ErrorEntry(file="in.jsonl", line=2, message="not JSON"),),
    )


def write_keyed(folder: Path, **keys: tuple[DTypeLike, Sequence[NDArray[Any]]]) -> OutputShard:
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
        written = OutputShard(
            format="keyed",
            prefix=store.folder,
            documents=store.num_documents,
            keys=keys,
            contiguous=True,
            files=tuple(file_sum(file) for file in store.files),
        )
        outputs.append(OutputShard.of(written, folder))
    return save_manifest(folder, manifest_of(outputs))
