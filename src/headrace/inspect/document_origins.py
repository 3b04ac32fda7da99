"""Where documents come from: which line of which input, through any number of copies of the store.

The text of a record is read again from the input that the store was made of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import RawIOBase
from typing import Any

import msgspec
import numpy as np

from headrace.config import nearest_path
from headrace.copying import copied_documents
from headrace.copying.plan import SourceEntry, is_copy
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.inspect import blocks
from headrace.inspect.answers import Report
from headrace.inspect.blocks import Pairs, Titled, Verbatim
from headrace.inspect.figures import count, plural
from headrace.io import AnyPath, path_at
from headrace.plan import IntArray
from headrace.preparing.sources import Block, RecordSpec, SampleBy, SourceFile, Span, find_inputs, open_span
from headrace.preparing.sources.source_file import counted_from, format_of, record_noun
from headrace.preparing.sources.streams import MAX_LINE_BYTES
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, OutputShard, Provenance, load_manifest
from headrace.stores.manifest import find_manifest
from headrace.stores.opening import open_keys

FREE_BYTES = 256 << 20
"""Inputs up to this size are read for texts by default; larger ones only with ``read_all``."""

_READ_BYTES = 1 << 20


def describe_input(manifest: Manifest, file: int) -> tuple[str, int]:
    """Return what is counted in an input, such as ``line``, and whether people count it from 0 or from 1."""
    entry = manifest.inputs[file]
    kind = entry.format or format_of(entry.path) or "jsonl"
    unit = record_noun(kind, record_options(manifest).sample_by)
    return unit, counted_from(unit)


class _Records(msgspec.Struct, frozen=True):
    """The options of a run that decide what a record is."""

    fields: tuple[str, ...] = ("text",)
    sample_by: SampleBy = "document"
    max_record_bytes: int | None = None


class InputTexts:
    """Reads the texts of records, by input and line. All records of a file are read in one pass."""

    def __init__(self, manifest: Manifest, *, read_all: bool) -> None:
        self._manifest = manifest
        self._read_all = read_all
        self._found: dict[tuple[int, int], dict[str, str]] = {}
        self._notes: dict[int, str] = {}

    def want(self, places: Iterable[tuple[int, int]]) -> None:
        """Read the records at these pairs of input and line."""
        lines_of: dict[int, list[int]] = {}
        for file, line in sorted(set(places)):
            lines_of.setdefault(file, []).append(line)
        for file, lines in lines_of.items():
            note = self._obstacle(file)
            if not note:
                try:
                    self._read(file, lines)
                except HeadraceError as error:
                    note = str(error)
            self._notes[file] = note or "the record cannot be found; the input has changed"

    def get(self, file: int, line: int) -> tuple[dict[str, str] | None, str]:
        """Return the texts by field and an empty text; or None and the reason, which is empty if none were wanted."""
        found = self._found.get((file, line))
        return found, "" if found is not None else self._notes.get(file, "")

    def _obstacle(self, file: int) -> str:
        entry = self._manifest.inputs[file]
        if entry.path == "-":
            return "the input was standard input, which is gone"
        try:
            size = path_at(entry.path).stat().st_size
        except OSError as error:
            return f"the input cannot be read: {error.strerror or error}"
        except HeadraceError as error:
            return str(error)
        if size != entry.size:
            return f"the input has changed: it had {entry.size:,} bytes, and has {size:,}"
        if size > FREE_BYTES and not self._read_all:
            return "the input is large, and was not read; with --show it is read up to the record"
        return ""

    def _read(self, file: int, lines: list[int]) -> None:
        options = record_options(self._manifest)
        fields = options.fields
        # A recipe reads whole records.
        spec = RecordSpec(fields=fields, sample_by=options.sample_by, whole=not fields, lists=not fields)
        [source] = find_inputs([self._manifest.inputs[file].path], spec=spec)
        for line, texts in texts_at(source, spec, lines, options.max_record_bytes):
            self._found[file, line] = dict(zip(fields or ("record",), texts, strict=True))


def texts_at(
    source: SourceFile, spec: RecordSpec, lines: list[int], max_record_bytes: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line and texts of the records on these lines (ascending) that can be read; whole records are JSON."""
    limit = max_record_bytes or MAX_LINE_BYTES
    if source.can_split:
        with source.open() as file:
            for line, offset in _offsets(file, lines):
                # A span of one byte holds only the line that begins at it.
                for block in open_span(source, Span(0, offset, offset + 1), spec, max_record_bytes=limit).blocks():
                    if len(block.lines):
                        yield line, _texts_of(block, 0)
        return
    wanted = set(lines)
    for block in open_span(source, Span(0, 0, source.extent), spec, max_record_bytes=limit).blocks():
        for index, line in enumerate(block.lines.tolist()):
            if line in wanted:
                yield line, _texts_of(block, index)
                wanted.remove(line)
        if not wanted:
            return


def _texts_of(block: Block, index: int) -> list[str]:
    if block.texts or block.records is None:
        return [texts[index] for texts in block.texts]
    return [json.dumps(block.records[index], ensure_ascii=False, default=str)]


def _offsets(file: RawIOBase, lines: list[int]) -> Iterator[tuple[int, int]]:
    """Yield lines (ascending) with the byte at which each begins. Reads up to the last one, and counts newlines."""
    reached = begin = 0
    rest = iter(lines)
    line = next(rest, None)
    while line is not None:
        if line == 0:
            yield 0, 0
            line = next(rest, None)
            continue
        piece = file.read(_READ_BYTES)
        if not piece:
            return
        num_newlines = piece.count(b"\n")
        while line is not None and line <= reached + num_newlines:
            at = -1
            for _ in range(line - reached):
                at = piece.find(b"\n", at + 1)
            yield line, begin + at + 1
            line = next(rest, None)
        reached += num_newlines
        begin += len(piece)


def record_options(manifest: Manifest) -> _Records:
    """Return the options of the run that decide what a record is.

    Raises:
        StoreError: the options have types that no run writes.
    """
    try:
        given = manifest.options.get("records")
        return msgspec.convert(given if isinstance(given, dict) else {}, _Records)
    except msgspec.ValidationError as error:
        raise StoreError(f"the manifest is damaged: options: records: {error}") from error


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
    chosen = _in_whole_store(path, series, shard, documents)
    find = partial(find_origins, read_all=read_all, with_texts=with_texts)
    if domain is not None:  # a part of a split store, which keeps the origins of all its parts
        origins = find(str(folder.parent), (chosen + int(domain["first_document"])).tolist())
        return [
            msgspec.structs.replace(origin, document=number)
            for origin, number in zip(origins, chosen.tolist(), strict=True)
        ]
    parts = _parts(folder, series, chosen.tolist()) if with_texts else [()] * len(chosen)
    if not manifest.provenance:
        return copied_origins(manifest, chosen.tolist(), parts, find)
    places = _places_in_inputs(folder, manifest, chosen)
    texts = InputTexts(manifest, read_all=read_all)
    if with_texts:
        texts.want((file, line) for file, line, _ in places)
    origins = []
    for document, (file, line, name), part in zip(chosen.tolist(), places, parts, strict=True):
        unit, counted_from = describe_input(manifest, file)
        found, note = texts.get(file, line)
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


def _in_whole_store(
    path: str, series: dict[str, list[OutputShard]], shard: OutputShard | None, documents: Sequence[int]
) -> IntArray:
    """Return (n,) int64: the numbers over all shards of documents that are counted in a shard, or over all anyway.

    Raises:
        ConfigError: there is no such document.
    """
    begin, end = 0, _num_documents(next(iter(series.values()), []))
    if shard is not None:
        siblings = series[next(iter(shard.keys))]
        begin = _num_documents(siblings[: siblings.index(shard)])
        end = begin + shard.documents
    for document in documents:
        if not 0 <= document < end - begin:
            raise ConfigError(f"{path} has no document {document}; it has {end - begin:,}, counted from 0")
    return np.array(documents, np.int64) + begin


def _num_documents(shards: Sequence[OutputShard]) -> int:
    return sum(entry.documents for entry in shards)


def _places_in_inputs(folder: AnyPath, manifest: Manifest, documents: IntArray) -> list[tuple[int, int, str | None]]:
    """Return for each document the number of its input, its line there, and its id, if ids are kept.

    Raises:
        StoreError: the provenance is of another store than the manifest.
    """
    provenance = Provenance(folder / PROVENANCE_NAME)
    first = next(iter(manifest.keys))
    if provenance.num_documents != _num_documents([entry for entry in manifest.outputs if first in entry.keys]):
        raise StoreError(
            f"{provenance.folder}: holds the origins of {provenance.num_documents:,} documents, but {MANIFEST_NAME} "
            f"lists {manifest.ledger.documents.kept:,}; one of the two belongs to another store"
        )
    files, lines = (array.tolist() for array in provenance.locate(documents))
    if max(files) >= len(manifest.inputs):
        raise StoreError(
            f"{provenance.folder}: names input {max(files)}, but {MANIFEST_NAME} lists {len(manifest.inputs)} inputs; "
            "one of the two was changed"
        )
    ids = provenance.ids(documents) if provenance.has_ids else [None] * len(documents)
    return list(zip(files, lines, ids, strict=True))


def _find_store(path: str) -> tuple[AnyPath, Manifest, OutputShard | None]:
    place = path_at(path).absolute()
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
        expected = "expected a folder that headrace prepare wrote, or a shard in one"
        raise StoreError(f"{path}: does not exist{nearest_path(path)}; {expected}")
    raise StoreError(f"{path}: no {MANIFEST_NAME} lists it; origins are known only for what headrace prepare wrote")


def _parts(folder: AnyPath, series: dict[str, list[OutputShard]], documents: list[int]) -> list[tuple[ShardPart, ...]]:
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
        exists = path_at(source.path).exists() or path_at(source.path + ".idx").exists()
        gone = "has no headrace.json" if exists else "no longer exists"
        return f"the store {source.path} {gone}, so the origin is not known further"
    folder, listing = found
    hashes: dict[AnyPath, str] = {}
    for shard in listing.outputs:
        inside = folder / shard.prefix if shard.format == "keyed" else (folder / shard.prefix).parent
        hashes |= {(inside / file.name).resolve(): file.xxh3_128 for file in shard.files}
    was: dict[AnyPath, str] = {path_at(file.path).resolve(): file.xxh3_128 for file in manifest.inputs}
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


class DocumentOrigins(Report, frozen=True, kw_only=True):
    """Where documents of a store come from."""

    path: str
    documents: tuple[DocumentOrigin, ...]

    def shown(self, *, whole_texts: bool = False) -> list[blocks.Block]:
        """See `Report`; ``whole_texts`` shows texts in full, below the rest."""
        return [_document_section(origin, self.path, whole_texts) for origin in self.documents]


EXCERPT_CHARS = 80


def _document_section(origin: DocumentOrigin, path: str, whole_texts: bool) -> Titled:
    pairs = [("copied from", f"{step.path}, document {count(step.document)}") for step in origin.copied_from]
    pairs.append(("input", f"{origin.input}, {place_in_input(origin)}"))
    if origin.id is not None:
        pairs.append(("id", origin.id))
    for part in origin.shards:
        name = "shard" if len(origin.shards) == 1 else f"shard of {part.key}"
        pairs.append((name, f"{part.prefix}, document {count(part.document)}, {plural(part.tokens, 'token')}"))
    if origin.texts is None:
        pairs.append(("text", origin.note))
    whole = []
    for field, text in (origin.texts or {}).items():
        name = "text" if len(origin.texts or {}) == 1 else f"text of {field}"
        if whole_texts:
            whole.append(Verbatim(text, f"{name}:"))
        else:
            shown = text[:EXCERPT_CHARS]
            pairs.append((name, repr(shown) + (f" ... {plural(len(text), 'character')}" if shown != text else "")))
    return Titled(f"{path}: document {count(origin.document)}", [Pairs(pairs), *whole])
