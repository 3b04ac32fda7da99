"""Where documents come from: which line of which input, through any number of copies of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.copying import copied_documents
from headrace.copying.plan import SourceEntry, is_copy
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.inspect.answers import Answer
from headrace.inspect.figures import count, listing, plural, separated
from headrace.inspect.input_texts import InputTexts, describe_input
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, OutputShard, Provenance, load_manifest
from headrace.stores.manifest import find_manifest
from headrace.stores.opening import open_keys

if TYPE_CHECKING:
    pass


class ShardPart(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a document: the shard that holds it, its number in the shard, and how many tokens it has."""

    key: str
    prefix: str
    document: int
    tokens: int


class StoredAt(msgspec.Struct, frozen=True, kw_only=True):
    """A document of a store: the path of the store, as it was given to the run, and the number of the document."""

    path: str
    document: int


class DocumentOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``headrace where`` says of a document."""

    document: int
    """The number of the document over all shards, from 0."""

    input: str
    """The path of the input, as it was given to the run."""

    unit: str
    """What is counted in the input: ``line``, ``row``, ``paragraph`` or ``document``; or ``stored document`` if the
    origin is known only up to a store."""

    number: int
    counted_from: int
    """0 for rows and stored documents, otherwise 1."""

    id: str | None
    shards: tuple[ShardPart, ...]
    texts: dict[str, str] | None
    """For each field its text in the input as it is now; None if it was not read, see ``note``."""

    note: str
    """The reason why there is no text."""

    copied_from: tuple[StoredAt, ...] = ()
    """The stores that the document was copied through, the last copy first."""


def find_origins(
    path: str, documents: Sequence[int], *, read_all: bool = False, with_texts: bool = True
) -> list[DocumentOrigin]:
    """Find where documents come from. Returns their origins in the given order.

    Args:
        path: a prepared folder, a copy of one, or the prefix of a shard in one.
        documents: the numbers of documents in the store, or in the shard.
        read_all: read texts from large files too.
        with_texts: read inputs and stores; without it, the origins have no texts and no shards.

    Raises:
        StoreError: there is no such store, or it is damaged, or has no provenance.
        ConfigError: there is no such document.
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
    if domain is not None:  # a part of a split store, which keeps the origins of all its parts
        whole = (chosen + int(domain["first_document"])).tolist()
        origins = find_origins(str(folder.parent), whole, read_all=read_all, with_texts=with_texts)
        return [
            msgspec.structs.replace(origin, document=number)
            for origin, number in zip(origins, chosen.tolist(), strict=True)
        ]
    parts = _parts(folder, series, chosen.tolist()) if with_texts else [()] * len(chosen)
    if not manifest.provenance:
        return copied_origins(
            manifest,
            chosen.tolist(),
            parts,
            lambda source, numbers: find_origins(source, numbers, read_all=read_all, with_texts=with_texts),
        )
    provenance = Provenance(folder / PROVENANCE_NAME)
    if provenance.num_documents != sum(entry.documents for entry in next(iter(series.values()))):
        raise StoreError(
            f"{provenance.folder}: holds the origins of {provenance.num_documents:,} documents, but {MANIFEST_NAME} "
            f"lists {manifest.ledger.documents.kept:,}; one of the two belongs to another store"
        )
    files, lines = (array.tolist() for array in provenance.locate(chosen))
    if max(files) >= len(manifest.inputs):
        raise StoreError(
            f"{provenance.folder}: names input {max(files)}, but {MANIFEST_NAME} lists {len(manifest.inputs)} inputs; "
            "one of the two was changed"
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
            DocumentOrigin(
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
        raise StoreError(f"{path}: does not exist; expected a folder that headrace prepare wrote, or a shard in one")
    raise StoreError(f"{path}: no {MANIFEST_NAME} lists it; origins are known only for what headrace prepare wrote")


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


STORED = "stored document"
"""The unit of an origin that is known only up to a store."""

Find = Callable[[str, Sequence[int]], list[DocumentOrigin]]


def copied_origins(
    manifest: Manifest, documents: Sequence[int], parts: Sequence[tuple[ShardPart, ...]], find: Find
) -> list[DocumentOrigin]:
    """Find where documents of a copy come from, through any number of copies.

    Args:
        manifest: the manifest of the copy.
        documents: the numbers of documents over all shards of the copy.
        parts: the shards in the copy that hold each document.
        find: finds the origins of documents of the store that was copied.

    Raises:
        StoreError: the ranges in the manifest are not those of the store.
    """
    copied = copied_documents(manifest, documents)
    by_source: dict[SourceEntry, list[int]] = {}
    for one in copied:
        by_source.setdefault(one.source, []).append(one.document)
    found: dict[tuple[SourceEntry, int], DocumentOrigin] = {}
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
    """Return why origins cannot be followed beyond a source; an empty text if they can."""
    if source.documents != "indices":
        return "each sequence was read as a document, so they are not the documents of the source"
    try:
        found = find_manifest(source.path)
    except HeadraceError as error:
        return str(error)
    if found is None:
        exists = Path(source.path).exists() or Path(source.path + ".idx").exists()
        gone = "has no headrace.json" if exists else "no longer exists"
        return f"the store {source.path} {gone}, so the origin is not known further"
    folder, listing = found
    hashes: dict[Path, str] = {}
    for shard in listing.outputs:
        inside = folder / shard.prefix if shard.format == "keyed" else (folder / shard.prefix).parent
        hashes |= {(inside / file.name).resolve(): file.xxh3_128 for file in shard.files}
    was = {Path(file.path).resolve(): file.xxh3_128 for file in manifest.inputs}
    same = [hashes[path] == digest for path, digest in was.items() if path in hashes]
    if not same or not all(same):
        return f"the store {source.path} has been written anew, so the origin is not known further"
    return ""


def _through(source: SourceEntry, number: int, origin: DocumentOrigin) -> DocumentOrigin:
    step = StoredAt(path=source.path, document=number)
    return msgspec.structs.replace(origin, copied_from=(step, *origin.copied_from))


def _end(source: SourceEntry, number: int, note: str) -> DocumentOrigin:
    return DocumentOrigin(
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


def place_in_input(origin: DocumentOrigin) -> str:
    """Return the place in the input in words, such as ``line 12``."""
    if origin.unit == STORED:
        return f"document {count(origin.number)}"
    if origin.unit == "document":
        return "the whole file"
    note = ", counted from 0" if origin.counted_from == 0 else ""
    return f"{origin.unit} {count(origin.number)}{note}"


class DocumentOrigins(Answer, frozen=True, kw_only=True):
    """Where documents of a store come from."""

    path: str
    documents: tuple[DocumentOrigin, ...]

    def lines(self, *, whole_texts: bool = False) -> list[str]:
        """Return the lines that ``headrace where`` prints; ``whole_texts`` shows texts in full, below the rest."""
        return separated(_document_lines(origin, self.path, whole_texts) for origin in self.documents)


EXCERPT_CHARS = 80


def _document_lines(origin: DocumentOrigin, path: str, whole_texts: bool) -> list[str]:
    pairs = [("copied from", f"{step.path}, document {count(step.document)}") for step in origin.copied_from]
    pairs.append(("input", f"{origin.input}, {place_in_input(origin)}"))
    if origin.id is not None:
        pairs.append(("id", origin.id))
    for part in origin.shards:
        name = "shard" if len(origin.shards) == 1 else f"shard of {part.key}"
        pairs.append((name, f"{part.prefix}, document {count(part.document)}, {plural(part.tokens, 'token')}"))
    whole: list[str] = []
    if origin.texts is None:
        pairs.append(("text", origin.note))
    for field, text in (origin.texts or {}).items():
        name = "text" if len(origin.texts or {}) == 1 else f"text of {field}"
        if whole_texts:
            whole += ["", f"{name}:", text]
        else:
            shown = text[:EXCERPT_CHARS]
            pairs.append((name, repr(shown) + (f" ... {plural(len(text), 'character')}" if shown != text else "")))
    return [f"{path}: document {count(origin.document)}", *listing(pairs), *whole]
