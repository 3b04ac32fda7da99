"""Looks up where documents of a copy come from: the store they were copied from, and on to its own inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.cli.origin import Origin, ShardPart, StoredAt
from headrace.copying import copied_documents
from headrace.copying.plan import SourceEntry
from headrace.errors import HeadraceError
from headrace.stores import Manifest
from headrace.stores.manifest import find_manifest

STORED = "stored document"
"""The unit of an origin that ends at a store."""

Find = Callable[[str, Sequence[int]], list[Origin]]


def copied_origins(
    manifest: Manifest, documents: Sequence[int], parts: Sequence[tuple[ShardPart, ...]], find: Find
) -> list[Origin]:
    """Where documents of a copy come from, through any number of copies.

    Args:
        manifest: of the copy.
        documents: numbers over all its shards.
        parts: where each lies in the copy.
        find: the same for a store and documents of it.

    Raises:
        StoreError: the manifest's ranges are not those of the store.
    """
    copied = copied_documents(manifest, documents)
    by_source: dict[SourceEntry, list[int]] = {}
    for one in copied:
        by_source.setdefault(one.source, []).append(one.document)
    found: dict[tuple[SourceEntry, int], Origin] = {}
    for source, numbers in by_source.items():
        note = _obstacle(manifest, source)
        if not note:
            try:
                origins = find(source.path, numbers)
            except HeadraceError as error:
                note = str(error)
        for at, number in enumerate(numbers):
            found[source, number] = _end(source, number, note) if note else _through(source, number, origins[at])
    return [
        msgspec.structs.replace(found[one.source, one.document], document=document, shards=part)
        for document, one, part in zip(documents, copied, parts, strict=True)
    ]


def _obstacle(manifest: Manifest, source: SourceEntry) -> str:
    """Why the way ends at the source; empty: it goes on."""
    if source.documents != "indices":
        return "each sequence was taken as a document, so the documents of the source are others"
    try:
        there = find_manifest(source.path)
    except HeadraceError as error:
        return str(error)
    if there is None:
        is_there = Path(source.path).exists() or Path(source.path + ".idx").exists()
        gone = "has no headrace.json" if is_there else "is not there any more"
        return f"the store {source.path} {gone}, so the way ends there"
    folder, listing = there
    hashes: dict[Path, str] = {}
    for shard in listing.outputs:
        inside = folder / shard.prefix if shard.format == "keyed" else (folder / shard.prefix).parent
        hashes |= {(inside / file.name).resolve(): file.xxh3_128 for file in shard.files}
    was = {Path(file.path).resolve(): file.xxh3_128 for file in manifest.inputs}
    same = [hashes[path] == digest for path, digest in was.items() if path in hashes]
    if not same or not all(same):
        return f"the store {source.path} was written anew since, so the way ends there"
    return ""


def _through(source: SourceEntry, number: int, origin: Origin) -> Origin:
    step = StoredAt(path=source.path, document=number)
    return msgspec.structs.replace(origin, copied_from=(step, *origin.copied_from))


def _end(source: SourceEntry, number: int, note: str) -> Origin:
    return Origin(
        document=number,
        input=source.path,
        unit=STORED,
        number=number,
        counted_from=0,
        id=None,
        shards=(),
        texts=None,
        note=note,
    )
