"""Prepares a corpus: filters, removes duplicates, and finds the input lines that documents come from."""

from __future__ import annotations

import json

import corpus
import numpy as np
from tokenizers import Tokenizer

import headrace
from headrace import preparing
from headrace.stores import Provenance


def has_classes(record: dict[str, str]) -> bool | str:
    """Return True to keep a record, or the reason to drop it. Workers import it as ``prepare_corpus:has_classes``."""
    return "class " in record["text"] or "functions only"


def main() -> None:
    folder = corpus.make()
    tokenizer = folder / "tokenizer.json"
    source = folder / "text" / "large" / "part-0.jsonl"
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    rows = [
        {"name": f"file-{number}", **row} for number, row in enumerate(rows + rows[:3])
    ]  # three records appear twice
    source.write_text("".join(json.dumps(row) + "\n" for row in rows) + "this is no JSON\n")

    options = preparing.PrepareOptions(
        records=preparing.RecordOptions(id_field="name"),
        tokens=preparing.TokenOptions(append_eod=True),
        filters=preparing.FilterSpec(min_chars=1000, function="prepare_corpus:has_classes"),
        deduplicate=True,
        output=preparing.OutputOptions(shard_tokens=50_000),
        errors=preparing.ErrorOptions(on_error="skip", max_errors=0.1),
    )
    found = preparing.estimate([source], tokenizer=tokenizer, options=options)
    print(f"at most {found.documents} documents, {found.tokens:,} tokens, {found.output_bytes:,} bytes")

    manifest = headrace.prepare(source, folder / "store", tokenizer=tokenizer, options=options)
    documents = manifest.ledger.documents
    print(f"{documents.read} read, {documents.kept} kept in {len(manifest.outputs)} shards")
    print(f"left out: {documents.dropped}")
    for error in manifest.errors:
        print(f"line {error.line}: {error.message}")

    decode = Tokenizer.from_file(str(tokenizer)).decode
    origins = Provenance(folder / "store" / "provenance")
    with headrace.open(folder / "store") as store:
        chosen = np.arange(3)
        for document, line, name in zip(chosen, origins.locate(chosen)[1], origins.ids(chosen), strict=True):
            begin = decode(store.document(document)[:12].tolist())
            print(f"document {document} is line {line + 1}, {name}: {begin!r}")


if __name__ == "__main__":  # workers import this file, and must not run it again
    main()
