"""Origins: which line of which input a document or a sample comes from, for ``headrace where`` and ``headrace trace``.

A document of a copy is followed to the store that it was copied from, and on to the inputs of that store. A record is
read again if its text is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.copying import copied_documents
from headrace.copying.plan import SourceEntry, is_copy
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.inspect.figures import count, listing, size
from headrace.preparing.sources import SampleBy
from headrace.preparing.sources.source_file import counted_from, format_of, record_noun
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, OutputShard, Provenance, load_manifest
from headrace.stores.energon.store import EnergonStore
from headrace.stores.manifest import find_manifest
from headrace.stores.opening import open_keys
from headrace.stores.sample_store import SampleStore

if TYPE_CHECKING:
    from headrace.datasets.origins import Origin
    from headrace.tracing import Traced

if TYPE_CHECKING:
    from headrace.preparing.sources import Block, RecordSpec, SourceFile

FREE_BYTES = 256 << 20
"""Inputs up to this size are read for texts by default; larger ones only with ``read_all``."""

_READ_BYTES = 1 << 20


def describe_input(manifest: Manifest, file: int) -> tuple[str, int]:
    """Return what is counted in an input, such as ``line``, and whether people count it from 0 or from 1."""
    entry = manifest.inputs[file]
    kind = entry.format or format_of(entry.path) or "jsonl"
    unit = record_noun(kind, _records(manifest).sample_by)
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
        """Return the texts by field and an empty text; or None and the reason why there are none."""
        found = self._found.get((file, line))
        return found, "" if found is not None else self._notes[file]

    def _obstacle(self, file: int) -> str:
        entry = self._manifest.inputs[file]
        if entry.path == "-":
            return "the input was standard input, which is gone"
        try:
            size = Path(entry.path).stat().st_size
        except OSError as error:
            return f"the input cannot be read: {error.strerror or error}"
        if size != entry.size:
            return f"the input has changed: it had {entry.size:,} bytes, and has {size:,}"
        if size > FREE_BYTES and not self._read_all:
            return "the input is large, and was not read; with --show it is read up to the record"
        return ""

    def _read(self, file: int, lines: list[int]) -> None:
        from headrace.preparing.sources import RecordSpec, find_inputs

        options = _records(self._manifest)
        fields = options.fields
        # A recipe reads whole records.
        spec = RecordSpec(fields=fields, sample_by=options.sample_by, whole=not fields, lists=not fields)
        [source] = find_inputs([self._manifest.inputs[file].path], spec=spec)
        for line, texts in read_records(source, spec, lines, options.max_record_bytes):
            self._found[file, line] = dict(zip(fields or ("record",), texts, strict=True))


def read_records(
    source: SourceFile, spec: RecordSpec, lines: list[int], max_record_bytes: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line and texts of the records on these lines (ascending) that can be read; whole records are JSON."""
    from headrace.preparing.sources import Span, open_span
    from headrace.preparing.sources.lines import MAX_LINE_BYTES

    limit = max_record_bytes or MAX_LINE_BYTES
    if source.can_split:
        for line, offset in _offsets(Path(source.path), lines):
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


def _offsets(path: Path, lines: list[int]) -> Iterator[tuple[int, int]]:
    """Yield lines (ascending) with the byte at which each begins. Reads up to the last one, and counts newlines."""
    reached = begin = 0
    rest = iter(lines)
    line = next(rest, None)
    with path.open("rb") as file:
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


def _records(manifest: Manifest) -> _Records:
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


class SampleOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``headrace where`` says of a sample."""

    sample: int
    """The number of the sample over all shards, from 0."""

    key: str
    shard: str
    index: int
    """The number of the sample in its shard."""

    parts: dict[str, int]
    """The number of bytes of each part."""

    input: str
    """The path of the input, as it was given to the run."""

    unit: str
    """What is counted in the input: ``line``, ``row`` or ``record`` of a table, or ``sample`` of a folder."""

    number: int
    files: tuple[str, ...] = ()
    """For a folder, the name of the sample's files there, without their extensions."""


def find_shards(path: str) -> Manifest | None:
    """Return the manifest of tar shards that ``headrace prepare --format tar`` wrote; None if the path has none."""
    if not (Path(path) / MANIFEST_NAME).is_file():
        return None
    manifest = load_manifest(path)
    return manifest if any(shard.format == "tar" for shard in manifest.outputs) else None


def find_sample_origins(path: str, manifest: Manifest, samples: Sequence[str]) -> list[SampleOrigin]:
    """Find where samples come from. Returns their origins in the given order.

    Args:
        path: the folder of tar shards.
        manifest: its manifest.
        samples: keys, or numbers over all shards.

    Raises:
        ConfigError: there is no such sample.
        StoreError: the store or its table of origins is damaged.
    """
    origins = Provenance(Path(path) / PROVENANCE_NAME)
    found = []
    with EnergonStore(path) as store:
        if origins.num_documents != len(store):
            raise StoreError(
                f"{origins.folder}: holds the origins of {origins.num_documents:,} samples, but the shards hold "
                f"{len(store):,}; they do not belong together"
            )
        for given in samples:
            sample = _number(store, path, given)
            files, lines = origins.locate(np.array([sample]))
            entry = manifest.inputs[int(files[0])]
            unit, first = _unit(entry.format)
            names = origins.ids([sample]) if origins.has_ids and entry.format == "folder" else []
            shard = int(np.searchsorted(store.shard_bounds, sample, side="right")) - 1
            found.append(
                SampleOrigin(
                    sample=sample,
                    key=store.key(sample),
                    shard=store.shards[shard],
                    index=sample - int(store.shard_bounds[shard]),
                    parts={name: place.size for name, place in store.places(sample).items()},
                    input=entry.path,
                    unit=unit,
                    number=int(lines[0]) + first,
                    files=tuple(names),
                )
            )
    return found


def sample_report(origin: SampleOrigin, path: str) -> list[str]:
    """Return an origin as lines to print."""
    place = f"{origin.unit} {count(origin.number)}"
    pairs = [
        ("key", origin.key),
        ("input", f"{origin.input}, {', '.join(f'{name}.*' for name in origin.files) or place}"),
        ("shard", f"{origin.shard}, sample {count(origin.index)}"),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in origin.parts.items())),
    ]
    return [f"{path}: sample {count(origin.sample)}", *listing(pairs)]


def _unit(kind: str) -> tuple[str, int]:
    from headrace.preparing.sources import counted_from, record_noun

    unit = "sample" if kind == "folder" else record_noun(kind, "document")
    return unit, counted_from(unit)


def _number(store: SampleStore, path: str, given: str) -> int:
    """Return the number of a sample. Keys are tried first: those of numbered samples are numbers of nine digits."""
    try:
        return store.find(given)
    except KeyError:
        if given.isascii() and given.isdigit() and int(given) < len(store):
            return int(given)
    raise ConfigError(
        f"{path} has no sample {given!r}: it is neither a key, nor a number below {len(store):,}, counted from 0"
    )


def place_in_input(origin: DocumentOrigin) -> str:
    """Return the place in the input in words, such as ``line 12``."""
    if origin.unit == "stored document":
        return f"document {count(origin.number)}"
    if origin.unit == "document":
        return "the whole file"
    note = ", counted from 0" if origin.counted_from == 0 else ""
    return f"{origin.unit} {count(origin.number)}{note}"


def with_inputs(samples: Sequence[Traced]) -> list[Traced]:
    """Add file and line to the documents and media samples whose stores keep their origins."""
    wanted: dict[str, dict[int | str, None]] = {}
    for sample in samples:
        for origin in sample.origins:
            if (name := _name(origin)) is not None:
                wanted.setdefault(origin.store, {})[name] = None
    known = {(store, name): found for store, names in wanted.items() for name, found in _inputs(store, list(names))}

    def with_input(origin: Origin) -> Origin:
        name = _name(origin)
        found = None if name is None else known.get((origin.store, name))
        if found is None:
            return origin
        return msgspec.structs.replace(origin, input=found[0], unit=found[1], number=found[2])

    return [msgspec.structs.replace(sample, origins=tuple(map(with_input, sample.origins))) for sample in samples]


def _name(origin: Origin) -> int | str | None:
    return origin.document if origin.key is None else origin.key


def _inputs(store: str, names: list[int | str]) -> Iterable[tuple[int | str, tuple[str, str, int]]]:
    """Return file, unit and number for each document or key; nothing if the store does not keep them."""
    try:
        if (shards := find_shards(store)) is not None:
            samples = find_sample_origins(store, shards, list(map(str, names)))
            return [(name, (one.input, one.unit, one.number)) for name, one in zip(names, samples, strict=True)]
        documents = find_origins(store, [int(name) for name in names], with_texts=False)
    except (HeadraceError, ValueError):
        # The store was not made by `headrace prepare`, or has no provenance: only documents and keys are known.
        return []
    return [(name, (one.input, one.unit, one.number)) for name, one in zip(names, documents, strict=True)]
