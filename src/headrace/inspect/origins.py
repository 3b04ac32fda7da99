"""Origins: which line of which input a document or a sample comes from, for ``headrace where`` and ``headrace trace``.

`document_origins` follows documents of copies to the store that they were copied from, and on to the inputs of that
store, whose records it reads again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError, StoreAwayError, StoreError
from headrace.inspect.answers import Report
from headrace.inspect.blocks import Block, Pairs, Titled
from headrace.inspect.document_origins import DocumentOrigins, find_origins
from headrace.inspect.figures import count, size
from headrace.io import path_at
from headrace.preparing.sources.source_file import counted_from, record_noun
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, Provenance, load_manifest
from headrace.stores.energon.store import EnergonStore
from headrace.stores.store import SampleStore

if TYPE_CHECKING:
    from headrace.datasets.origins import Origin
    from headrace.tracing import Traced


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

    def shown(self, *, whole_texts: bool = False) -> list[Block]:
        """See `Report`. No texts are known, whole or not."""
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
    for name in asked:
        if isinstance(name, str):
            raise ConfigError(f"{name!r} is not the number of a document, which is counted from 0")
    documents = [int(number) for number in asked]
    return DocumentOrigins(path=path, documents=tuple(find_origins(path, documents, read_all=read_all)))


def find_shards(path: str) -> Manifest | None:
    """Return the manifest of tar shards that ``headrace prepare --format tar`` wrote; None if the path has none."""
    if not (path_at(path) / MANIFEST_NAME).is_file():
        return None
    manifest = load_manifest(path)
    return manifest if any(shard.format == "tar" for shard in manifest.outputs) else None


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
    origins = Provenance(path_at(path) / PROVENANCE_NAME)
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


def _unit(kind: str) -> tuple[str, int]:
    unit = "sample" if kind == "folder" else record_noun(kind, "document")
    return unit, counted_from(unit)


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
    except StoreAwayError:
        raise
    except (HeadraceError, ValueError):
        # The store was not made by `headrace prepare`, or has no provenance: only documents and keys are known.
        return []
    return [(name, (one.input, one.unit, one.number)) for name, one in zip(names, documents, strict=True)]
