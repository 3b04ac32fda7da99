"""What `headrace prepare` should make of JSON Lines, computed by plain loops over lists."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from headrace.preparing import PrepareOptions


class Origin(NamedTuple):
    file: int
    line: int
    place: int
    id: str | None


class Expected(NamedTuple):
    keys: list[str]
    documents: list[list[list[int]]]
    """For each document the ids of each key."""
    origins: list[Origin]
    dropped: dict[str, int]
    errors: list[tuple[str, int]]
    """File and line, from 1, of each bad record."""
    read: int
    blank_lines: int
    text_bytes: int
    made_tokens: int

    def shards(self, shard_tokens: int | None) -> list[list[list[list[int]]]]:
        """The documents of each shard."""
        shards: list[list[list[list[int]]]] = [[]]
        size = 0
        for document in self.documents:
            length = sum(map(len, document))
            if shard_tokens is not None and shards[-1] and size + length > shard_tokens:
                shards.append([])
                size = 0
            shards[-1].append(document)
            size += length
        return shards


def lines_of(file: Path) -> list[tuple[int, str]]:
    """Every line of a file with the byte where it begins, after decompression."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    found, place = [], 0
    for line in data.split(b"\n"):
        text = line.decode()
        found.append((place, text.removeprefix("\ufeff") if place == 0 else text))
        place += len(line) + 1
    return found[:-1] if not found[-1][1] else found


def expect(
    files: list[Path], tokenizer: Path, options: PrepareOptions, *, eod: int | None, bos: int | None
) -> Expected:
    """The whole output. ``eod`` and ``bos`` are the ids of the tokens that are added."""
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.encode_special_tokens = options.tokens.special_tokens_in_text == "literal"
    records, filters = options.records, options.filters
    is_joined = len(records.fields) > 1 and records.join is not None
    keys = (
        list(records.fields)
        if len(records.fields) > 1 and not is_joined
        else ["sequence" if options.output.format == "keyed" else "text"]
    )
    special = [token.content for token in encoder.get_added_tokens_decoder().values()]
    documents: list[list[list[int]]] = []
    origins, errors = [], []
    dropped: dict[str, int] = {}
    seen: set[tuple[str, ...]] = set()
    read = blank = text_bytes = made = 0

    def drop(reason: str) -> None:
        dropped[reason] = dropped.get(reason, 0) + 1

    for number, file in enumerate(files):
        for line, (place, content) in enumerate(lines_of(file)):
            if not content.strip():
                blank += 1
                continue
            read += 1
            try:
                record = json.loads(content)
                texts = [record[field] for field in records.fields]
                assert all(isinstance(text, str) for text in texts)
                if options.tokens.special_tokens_in_text == "error":
                    assert not any(token in text for token in special for text in texts)
            except (ValueError, KeyError, AssertionError, TypeError):
                errors.append((str(file), line + 1))
                drop("bad")
                continue
            if is_joined:
                texts = [str(records.join).join(texts)]
            text_bytes += sum(len(text.encode()) for text in texts)
            num_chars = sum(map(len, texts))
            if filters.min_chars is not None and num_chars < filters.min_chars:
                drop("min_chars")
                continue
            if filters.max_chars is not None and num_chars > filters.max_chars:
                drop("max_chars")
                continue
            rows = [encoder.encode(text, add_special_tokens=False).ids for text in texts]
            num_tokens = sum(map(len, rows))
            made += num_tokens
            if filters.min_tokens is not None and num_tokens < filters.min_tokens:
                drop("min_tokens")
                continue
            if filters.max_tokens is not None and num_tokens > filters.max_tokens:
                drop("max_tokens")
                continue
            rows = [
                [*([bos] * (bos not in (None, *row[:1]))), *row, *([eod] * (eod is not None))] if row else []
                for row in rows
            ]
            made += sum(map(len, rows)) - num_tokens
            if options.deduplicate:
                if tuple(texts) in seen:
                    drop("duplicate")
                    continue
                seen.add(tuple(texts))
            documents.append(rows)
            name = record.get(records.id_field) if records.id_field else None
            origins.append(Origin(number, line, place, None if name is None else str(name)))
    return Expected(keys, documents, origins, dropped, errors, read, blank, text_bytes, made)


def stored(folder: Path, keys: list[str]) -> list[list[list[int]]]:
    """For each document of an output folder the ids of each key."""
    import headrace
    from headrace.stores import load_manifest

    manifest = load_manifest(folder)
    if manifest.outputs[0].format == "keyed":
        with headrace.open(folder) as store:
            return [[store.document(index, key).tolist() for key in keys] for index in range(len(store))]
    columns: list[Any] = []
    for key in keys:
        with headrace.open(folder, key=key) as store:
            columns.append([store.document(index).tolist() for index in range(len(store))])
    return [list(row) for row in zip(*columns, strict=True)]
