"""Writes files of the indexed format for tests: good ones, and any that a test wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from headrace.io import file_sum
from headrace.stores import (
    DocumentLedger,
    IndexedStore,
    IndexedWriter,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    TokenizerInfo,
    TokenLedger,
    WrittenShard,
    save_manifest,
)
from headrace.stores.indexed_layout import Layout, dtype_code
from headrace.testing.strategies import Documents


def write_shard(prefix: Path, documents: Documents, dtype: str = "uint16") -> WrittenShard:
    """One shard with our writer."""
    with IndexedWriter(prefix, dtype=dtype) as writer:
        if documents:
            writer.add_documents(np.concatenate(documents), np.array([len(document) for document in documents]))
        return writer.finish()


def write_raw(
    prefix: Path, dtype: str, sizes: Sequence[int], pointers: Sequence[int], bounds: Sequence[int], data: bytes
) -> None:
    """Any pair of files with a good header, whatever their arrays say."""
    layout = Layout(dtype_code(dtype), len(sizes), len(bounds))
    arrays = np.array(sizes, "<i4").tobytes() + np.array(pointers, "<i8").tobytes() + np.array(bounds, "<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(layout.header() + arrays)
    prefix.with_name(prefix.name + ".bin").write_bytes(data)


def vouch_for(folder: Path, shards: Iterable[IndexedStore], *, contiguous: bool = True) -> Manifest:
    """Write a manifest that lists shards as they are on disk."""
    outputs = []
    for store in shards:
        written = WrittenShard(
            prefix=store.prefix,
            num_documents=store.num_documents,
            num_tokens=store.num_tokens,
            dtype=store.dtypes["tokens"].name,
            contiguous=contiguous,
            files=(file_sum(store.prefix + ".bin"), file_sum(store.prefix + ".idx")),
        )
        outputs.append(OutputShard.of(written, folder))
    return save_manifest(folder, manifest_of(outputs))


def manifest_of(outputs: Sequence[OutputShard]) -> Manifest:
    """A manifest that balances, with an entry of every kind."""
    documents = sum(shard.documents for shard in outputs)
    return Manifest(
        inputs=(InputFile(path="in.jsonl", size=5, xxh3_128="00"),),
        options={"seed": 1, "share": 0.1},
        tokenizer=TokenizerInfo(source="tokenizer.json", xxh3_128="11", vocab_size=1000, eod=0),
        outputs=tuple(outputs),
        ledger=Ledger(
            documents=DocumentLedger(read=documents + 2, kept=documents, dropped={"empty": 2}),
            tokens=TokenLedger(kept=sum(shard.tokens for shard in outputs)),
        ),
    )
