"""Folders as `headrace prepare` leaves them, made by the writers of the stores alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.io import file_sum
from headrace.stores import (
    PROVENANCE_NAME,
    BackendInfo,
    DocumentLedger,
    ErrorEntry,
    IndexedWriter,
    InputFile,
    KeyedWriter,
    Ledger,
    Manifest,
    OutputShard,
    ShuffledOrder,
    TokenizerInfo,
    TokenLedger,
    save_manifest,
)

VOCAB_SIZE = 100
INPUTS = ("a.jsonl", "b.jsonl")


def documents(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids below `VOCAB_SIZE`, and the lengths."""
    return (np.arange(lengths.sum()) * 7 % VOCAB_SIZE).astype(np.uint16), lengths


def one_key(folder: Path) -> Path:
    """100 documents of 0 to 178 tokens, two of them empty, in one indexed shard; with a provenance file."""
    folder.mkdir(parents=True)
    with IndexedWriter(folder / "text_document", dtype="uint16") as writer:
        writer.add_documents(*documents(np.arange(100) % 90 * 2 * (np.arange(100) != 95)))
        shard = writer.finish()
    (folder / PROVENANCE_NAME).mkdir()
    (folder / PROVENANCE_NAME / "rows.npy").write_bytes(bytes(range(200)))
    _save(folder, [OutputShard.of(shard, folder, key="text")])
    return folder


def two_keys(folder: Path, layout: str) -> Path:
    """Three documents of the keys title and body, over two shards; the body has 10 tokens, the title 3."""
    folder.mkdir(parents=True)
    lengths = {"title": np.array([1, 0, 2]), "body": np.array([4, 6, 0])}
    parts = [(0, 2), (2, 3)]
    outputs = []
    if layout == "keyed":
        for number, (begin, end) in enumerate(parts):
            with KeyedWriter(folder / f"shard_{number:04d}", dtypes=dict.fromkeys(lengths, "uint16")) as writer:
                tokens = {key: documents(counts[begin:end])[0] for key, counts in lengths.items()}
                writer.add_documents(tokens, {key: counts[begin:end] for key, counts in lengths.items()})
                outputs.append(OutputShard.of(writer.finish(), folder))
    else:
        for key, counts in lengths.items():
            for number, (begin, end) in enumerate(parts):
                shard = _indexed(folder / f"{key}_document_{number:05d}", counts[begin:end])
                outputs.append(OutputShard.of(shard, folder, key=key))
    _save(folder, outputs)
    return folder


def _indexed(prefix: Path, lengths: np.ndarray) -> OutputShard:
    with IndexedWriter(prefix, dtype="uint16") as writer:
        writer.add_documents(*documents(lengths))
        return writer.finish()


def _save(folder: Path, outputs: list[OutputShard]) -> None:
    key = next(iter(outputs[0].keys))
    kept = sum(shard.documents for shard in outputs if key in shard.keys)
    tokens = sum(shard.tokens for shard in outputs)
    provenance = sorted((folder / PROVENANCE_NAME).glob("*"))
    manifest = Manifest(
        inputs=tuple(InputFile(path=name, size=5, xxh3_128="00") for name in INPUTS),
        tokenizer=TokenizerInfo(source="tokenizer.json", xxh3_128="11", vocab_size=VOCAB_SIZE, eod=1),
        backend=BackendInfo(name="fast", version="1.2", proved={"probe_texts": 7, "first_documents": 1000}),
        order=ShuffledOrder(seed=5),
        outputs=tuple(outputs),
        ledger=Ledger(
            documents=DocumentLedger(read=kept + 1, kept=kept, dropped={"error": 1}),
            tokens=TokenLedger(made=tokens, kept=tokens),
        ),
        errors=(ErrorEntry(file="a.jsonl", line=3, message="not JSON"),),
        provenance=tuple(map(file_sum, provenance)),
    )
    save_manifest(folder, manifest)
