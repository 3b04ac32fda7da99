"""Origins: which line of which input documents and samples come from, for ``headrace where`` and ``headrace trace``.

Documents of copies are followed to the store that they were copied from, and on to the inputs of that store, whose
records are read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.config import nearest_path
from headrace.copying import copied_documents, is_copy
from headrace.copying.plan import SourceEntry
from headrace.errors import ConfigError, HeadraceError, StoreAwayError, StoreError
from headrace.inspect import blocks
from headrace.inspect.answers import Report
from headrace.inspect.blocks import Pairs, Titled, Verbatim
from headrace.inspect.description import own_manifest
from headrace.inspect.figures import count, plural, size
from headrace.io import AnyPath, path_at
from headrace.plan import IntArray
from headrace.preparing import RecordOptions
from headrace.preparing.sources import RecordSpec, Span, counted_from, find_inputs, open_span, record_noun
from headrace.preparing.sources.source_file import format_of
from headrace.stores import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    InputFile,
    Manifest,
    OutputShard,
    Provenance,
    SampleStore,
    load_manifest,
    open_keys,
)
from headrace.stores.energon import EnergonStore
from headrace.stores.manifest import find_manifest

if TYPE_CHECKING:
    from headrace.datasets.origins import Origin
    from headrace.tracing import Traced

FREE_BYTES = 256 << 20
"""Inputs up to this size are read for texts by default; larger ones only with ``read_all``."""


def describe_input(manifest: Manifest, file: int) -> tuple[str, int]:
    """Return what is counted in an input, such as ``line``, and whether people count it from 0 or from 1."""
    entry = manifest.inputs[file]
    kind = entry.format or format_of(entry.path) or "jsonl"
    unit = "sample" if kind == "folder" else record_noun(kind, record_options(manifest).sample_by)
    return unit, counted_from(unit)


Texts = dict[tuple[int, int], tuple[dict[str, str] | None, str]]
"""Input and line -> the texts of the record by field and an empty text; or None and the reason."""


def _input_texts(manifest: Manifest, places: Iterable[tuple[int, int]], *, read_all: bool) -> Texts:
    """Read the texts of the records at these pairs of input and line, all of a file in one pass."""
    lines_of: dict[int, list[int]] = {}
    for file, line in sorted(set(places)):
        lines_of.setdefault(file, []).append(line)
    found: Texts = {}
    for file, lines in lines_of.items():
        texts: dict[int, dict[str, str]] = {}
        try:
            note = _changed(manifest.inputs[file], read_all=read_all)
            if not note:
                texts = dict(_texts_at(manifest, file, lines))
        except HeadraceError as error:
            note = str(error)
        note = note or "the record cannot be found; the input has changed"
        found |= {(file, line): (texts[line], "") if line in texts else (None, note) for line in lines}
    return found


def _changed(entry: InputFile, *, read_all: bool) -> str:
    """Return why an input is not read; an empty text if it can be."""
    if entry.path == "-":
        return "the input was standard input, which is gone"
    try:
        size = path_at(entry.path).stat().st_size
    except OSError as error:
        return f"the input cannot be read: {error.strerror or error}"
    if size != entry.size:
        return f"the input has changed: it had {entry.size:,} bytes, and has {size:,}"
    if size > FREE_BYTES and not read_all:
        return "the input is large, and was not read; with --long it is read up to the record"
    return ""


def _texts_at(manifest: Manifest, file: int, lines: list[int]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the records on these lines (ascending) that can be read: their texts by field, or the whole as JSON."""
    options = record_options(manifest)
    fields, limit = options.fields, options.max_record_bytes
    # A recipe reads whole records.
    spec = RecordSpec(fields=fields, sample_by=options.sample_by, whole=not fields, max_record_bytes=limit)
    [source] = find_inputs([manifest.inputs[file].path], spec=spec)
    wanted = {*lines}
    for block in open_span(source, Span(0, 0, source.extent), spec).blocks():
        for index, line in enumerate(block.lines.tolist()):
            if line in wanted:
                wanted.remove(line)
                texts = [texts[index] for texts in block.texts]
                if not texts and block.records is not None:
                    texts = [json.dumps(block.records[index], ensure_ascii=False, default=str)]
                yield line, dict(zip(fields or ("record",), texts, strict=True))
        if not wanted:
            return


def record_options(manifest: Manifest) -> RecordOptions:
    """Return the options of the run that decide what a record is.

    Raises:
        StoreError: the options have types that no run writes.
    """
    try:
        given = manifest.options.get("records")
        return msgspec.convert(given if isinstance(given, dict) else {}, RecordOptions)
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
    counted_from: int = 0
    """0 for rows and stored documents, otherwise 1."""

    id: str | None = None
    shards: tuple[ShardPart, ...] = ()
    texts: dict[str, str] | None = None
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
    first = next(iter(manifest.keys))
    total = _num_documents([entry for entry in manifest.outputs if first in entry.keys])
    places = _places_in_inputs(folder, manifest, chosen, total)
    wanted = [(file, line) for file, line, _ in places] if with_texts else []
    texts = _input_texts(manifest, wanted, read_all=read_all)
    origins = []
    for document, (file, line, name), part in zip(chosen.tolist(), places, parts, strict=True):
        unit, counted_from = describe_input(manifest, file)
        found, note = texts.get((file, line), (None, ""))
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


def _places_in_inputs(
    folder: AnyPath, manifest: Manifest, numbers: IntArray, total: int
) -> list[tuple[int, int, str | None]]:
    """Return for each document or sample the number of its input, its line there, and its id, if ids are kept.

    Args:
        folder: the folder of the store.
        manifest: its manifest.
        numbers: (n,) int64: the numbers of the documents or samples.
        total: how many the store has; it must keep the origins of all.

    Raises:
        StoreError: the origins are those of another store.
    """
    provenance = Provenance(folder / PROVENANCE_NAME)
    if provenance.num_documents != total:
        raise StoreError(
            f"{provenance.folder}: holds the origins of {provenance.num_documents:,}, but the store lists {total:,} "
            "documents or samples; one of the two belongs to another store"
        )
    files, lines = (array.tolist() for array in provenance.locate(numbers))
    if max(files, default=-1) >= len(manifest.inputs):
        raise StoreError(
            f"{provenance.folder}: names input {max(files)}, but {MANIFEST_NAME} lists {len(manifest.inputs)} inputs; "
            "one of the two was changed"
        )
    ids = provenance.ids(numbers) if provenance.has_ids else [None] * len(numbers)
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
        note, origins = _obstacle(manifest, source), []
        if not note:
            try:
                origins = find(source.path, numbers)
            except HeadraceError as error:
                note = str(error)
        for number, origin in zip_longest(numbers, origins):
            steps = () if origin is None else (StoredAt(path=source.path, document=number), *origin.copied_from)
            end = origin or DocumentOrigin(document=number, input=source.path, unit=STORED, number=number, note=note)
            found[source, number] = msgspec.structs.replace(end, copied_from=steps)
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
        """Return what is shown; ``whole_texts`` shows texts in full, below the rest."""
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


class SampleOrigins(Report, frozen=True, kw_only=True):
    """Where samples of tar shards come from."""

    path: str
    samples: tuple[SampleOrigin, ...]

    def shown(self, *, whole_texts: bool = False) -> list[blocks.Block]:
        """Return what is shown. No texts are known, whole or not."""
        return [_sample_section(origin, self.path) for origin in self.samples]


def where(
    path: str | os.PathLike[str], which: int | str | Sequence[int | str], *, read_all: bool = False
) -> DocumentOrigins | SampleOrigins:
    """Return which line or row of which input documents or samples come from, in the order in which they are given.

    Args:
        path: a prepared folder, a copy of one, or the prefix of a shard in one.
        which: the numbers of documents, counted from 0; for tar shards, numbers or keys of samples. One, or several.
        read_all: read the texts of documents from large inputs too.

    Raises:
        StoreError: there is no such store, or it is damaged, or has no provenance.
        ConfigError: there is no such document or sample.

    Example:
        >>> from headrace import inspect
        >>> (origin,) = inspect.where("stores/web", 7).documents
        >>> origin.unit, origin.number, origin.shards[0].tokens
        ('line', 8, 52)
        >>> inspect.where("shards", "003").to_dict()["samples"][0]["shard"]
        'shard-000000.tar'
    """
    path = os.fspath(path)
    asked = [which] if isinstance(which, int | str) else which
    if (shards := find_shards(path)) is not None:
        return SampleOrigins(path=path, samples=tuple(find_sample_origins(path, shards, asked)))
    try:
        documents = list(map(int, asked))
    except ValueError as error:
        name = next(name for name in asked if not str(name).removeprefix("-").isdecimal())
        raise ConfigError(f"{name!r} is not the number of a document, which is counted from 0") from error
    return DocumentOrigins(path=path, documents=tuple(find_origins(path, documents, read_all=read_all)))


def find_shards(path: str) -> Manifest | None:
    """Return the manifest of tar shards that ``headrace prepare --format tar`` wrote; None if the path has none."""
    manifest = own_manifest(path)
    return manifest if manifest and any(shard.format == "tar" for shard in manifest.outputs) else None


def find_sample_origins(path: str, manifest: Manifest, samples: Sequence[int | str]) -> list[SampleOrigin]:
    """Find where samples come from. Returns their origins in the given order.

    Args:
        path: the folder of tar shards.
        manifest: its manifest.
        samples: keys, or numbers over all shards.

    Raises:
        ConfigError: there is no such sample.
        StoreError: the store or its table of origins is damaged.
    """
    found = []
    with EnergonStore(path) as store:
        numbers = np.array([_number(store, path, given) for given in samples], np.int64)
        places = _places_in_inputs(path_at(path), manifest, numbers, len(store))
        for sample, (file, line, name) in zip(numbers.tolist(), places, strict=True):
            entry = manifest.inputs[file]
            unit, first = describe_input(manifest, file)
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
                    number=line + first,
                    files=() if name is None or entry.format != "folder" else (name,),
                )
            )
    return found


def _number(store: SampleStore, path: str, given: int | str) -> int:
    """Return the number of a sample. Keys are tried first: those of numbered samples are numbers of nine digits."""
    try:
        if isinstance(given, str):
            return store.find(given)
    except KeyError:
        pass
    if str(given).isascii() and str(given).isdigit() and int(given) < len(store):
        return int(given)
    raise ConfigError(
        f"{path} has no sample {given!r}: it is neither a key, nor a number below {len(store):,}, counted from 0"
    )


def _sample_section(origin: SampleOrigin, path: str) -> Titled:
    place = f"{origin.unit} {count(origin.number)}"
    pairs = [
        ("key", origin.key),
        ("input", f"{origin.input}, {', '.join(f'{name}.*' for name in origin.files) or place}"),
        ("shard", f"{origin.shard}, sample {count(origin.index)}"),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in origin.parts.items())),
    ]
    return Titled(f"{path}: sample {count(origin.sample)}", [Pairs(pairs)])


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
        return msgspec.structs.replace(origin, input=found.input, unit=found.unit, number=found.number)

    return [msgspec.structs.replace(sample, origins=tuple(map(with_input, sample.origins))) for sample in samples]


def _name(origin: Origin) -> int | str | None:
    return origin.document if origin.key is None else origin.key


def _inputs(store: str, names: list[int | str]) -> Iterable[tuple[int | str, DocumentOrigin | SampleOrigin]]:
    """Return where each document or key comes from; nothing if the store does not keep it."""
    found: Sequence[DocumentOrigin | SampleOrigin]
    try:
        if (shards := find_shards(store)) is not None:
            found = find_sample_origins(store, shards, list(map(str, names)))
        else:
            found = find_origins(store, [int(name) for name in names], with_texts=False)
    except StoreAwayError:
        raise
    except (HeadraceError, ValueError):
        # The store was not made by `headrace prepare`, or has no provenance: only documents and keys are known.
        return []
    return zip(names, found, strict=True)
