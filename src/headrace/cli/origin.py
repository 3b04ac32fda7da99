"""Looks up where documents come from, for ``headrace where``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.cli.input_text import InputTexts, describe_input
from headrace.copying.plan import is_copy
from headrace.errors import ConfigError, StoreError
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, OutputShard, Provenance, load_manifest
from headrace.stores.opening import open_keys


class ShardPart(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a document: the shard that holds it, its number in there, and its tokens."""

    key: str
    prefix: str
    document: int
    tokens: int


class StoredAt(msgspec.Struct, frozen=True, kw_only=True):
    """A document of a store: the path as a run was given it, and its number from 0."""

    path: str
    document: int


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``headrace where`` says of a document."""

    document: int
    """Number over all shards, from 0."""

    input: str
    """As the run was given it."""

    unit: str
    """What is counted in the input: ``line``, ``row``, ``paragraph`` or ``document``; or ``stored document`` where the
    way ends at a store."""

    number: int
    counted_from: int
    """0 for rows and stored documents, else 1."""

    id: str | None
    shards: tuple[ShardPart, ...]
    texts: dict[str, str] | None
    """For each field the text as the input holds it now; None: see `note`."""

    note: str
    """Why no text is shown."""

    copied_from: tuple[StoredAt, ...] = ()
    """Of a copy: the stores that the document was copied through, the last copy first."""


def find_origins(
    path: str, documents: Sequence[int], *, read_all: bool = False, with_texts: bool = True
) -> list[Origin]:
    """Where documents come from, in the order asked for.

    Args:
        path: a prepared folder, a copy of one, or the prefix of a shard in one.
        documents: numbers in the store, or in the shard.
        read_all: read texts also where that means to read much of a large file.
        with_texts: look into inputs and stores at all; without, the origins have no texts and no shards.

    Raises:
        StoreError: no such store, a damaged one, or one without provenance.
        ConfigError: a document that is not there.
    """
    folder, manifest, shard = _find_store(path)
    domain = manifest.options.get("domain") if (folder.parent / MANIFEST_NAME).exists() else None
    if not manifest.provenance and not is_copy(manifest) and domain is None:
        raise StoreError(
            f"{path}: the store does not keep where its documents come from: {MANIFEST_NAME} lists no files of "
            f"{PROVENANCE_NAME}/"
        )
    series = {key: [entry for entry in manifest.outputs if key in entry.keys] for key in manifest.keys}
    begin, end = 0, sum(entry.documents for entry in next(iter(series.values()), []))
    if shard is not None:
        siblings = series[next(iter(shard.keys))]
        begin = sum(entry.documents for entry in siblings[: siblings.index(shard)])
        end = begin + shard.documents
    for document in documents:
        if not 0 <= document < end - begin:
            raise ConfigError(f"{path} has no document {document}; it has {end - begin:,}, counted from 0")
    chosen = np.array(documents, np.int64) + begin
    if domain is not None:  # a part of a store, which keeps for all of them where its documents come from
        whole = (chosen + int(domain["first_document"])).tolist()
        origins = find_origins(str(folder.parent), whole, read_all=read_all, with_texts=with_texts)
        return [
            msgspec.structs.replace(origin, document=number)
            for origin, number in zip(origins, chosen.tolist(), strict=True)
        ]
    parts = _parts(folder, series, chosen.tolist()) if with_texts else [()] * len(chosen)
    if not manifest.provenance:
        from headrace.cli.copied_origin import copied_origins

        return copied_origins(
            manifest,
            chosen.tolist(),
            parts,
            lambda source, numbers: find_origins(source, numbers, read_all=read_all, with_texts=with_texts),
        )
    provenance = Provenance(folder / PROVENANCE_NAME)
    if provenance.num_documents != sum(entry.documents for entry in next(iter(series.values()))):
        raise StoreError(
            f"{provenance.folder}: tells of {provenance.num_documents:,} documents, {MANIFEST_NAME} of "
            f"{manifest.ledger.documents.kept:,}; one of them is not of this store"
        )
    files, lines = (array.tolist() for array in provenance.locate(chosen))
    if max(files) >= len(manifest.inputs):
        raise StoreError(
            f"{provenance.folder}: tells of input {max(files)}, {MANIFEST_NAME} has {len(manifest.inputs)} of them; "
            "it was changed"
        )
    ids = provenance.ids(chosen) if provenance.has_ids else [None] * len(chosen)
    texts = InputTexts(manifest, read_all=read_all)
    if with_texts:
        texts.want(zip(files, lines, strict=True))
    origins = []
    for document, file, line, name, part in zip(chosen.tolist(), files, lines, ids, parts, strict=True):
        unit, counted_from = describe_input(manifest, file)
        found, note = texts.get(file, line) if with_texts else (None, "")
        origins.append(
            Origin(
                document=document,
                input=manifest.inputs[file].path,
                unit=unit,
                number=line + counted_from,
                counted_from=counted_from,
                id=name,
                shards=part,
                texts=found,
                note=note,
            )
        )
    return origins


def _find_store(path: str) -> tuple[Path, Manifest, OutputShard | None]:
    place = Path(path).absolute()
    if (place / MANIFEST_NAME).exists():
        return place, load_manifest(place), None
    prefix = place.with_suffix("") if place.suffix in (".bin", ".idx") else place
    for folder in prefix.parents:
        if (folder / MANIFEST_NAME).exists():
            manifest = load_manifest(folder)
            shard = manifest.shard(prefix.relative_to(folder).as_posix())
            if shard is not None:
                return folder, manifest, shard
    if not place.exists():
        raise StoreError(f"{path}: nothing is there; expected a folder that headrace prepare wrote, or a shard in one")
    raise StoreError(f"{path}: no {MANIFEST_NAME} tells of it; only what headrace prepare wrote leads back to inputs")


def _parts(folder: Path, series: dict[str, list[OutputShard]], documents: list[int]) -> list[tuple[ShardPart, ...]]:
    stores: dict[str, Any] = open_keys(folder)
    try:
        ends = {key: np.cumsum([entry.documents for entry in entries]) for key, entries in series.items()}
        found = []
        for document in documents:
            parts = []
            for key, entries in series.items():
                at = int(np.searchsorted(ends[key], document, side="right"))
                parts.append(
                    ShardPart(
                        key=key,
                        prefix=entries[at].prefix,
                        document=document - int(ends[key][at]) + entries[at].documents,
                        tokens=len(stores[key].document(document)),
                    )
                )
            found.append(tuple(parts))
        return found
    finally:
        for store in stores.values():
            store.close()
