"""Looks up where samples of tar shards come from, for ``headrace where``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.cli.figures import count, listing, size
from headrace.errors import ConfigError, StoreError
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Manifest, Provenance, load_manifest
from headrace.stores.energon.store import EnergonStore
from headrace.stores.sample_store import SampleStore


class SampleOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``headrace where`` says of a sample."""

    sample: int
    """Number over all shards, from 0."""

    key: str
    shard: str
    index: int
    """In the shard."""

    parts: dict[str, int]
    """Bytes of each part."""

    input: str
    """As the run was given it."""

    unit: str
    """What is counted in the input: ``line``, ``row`` or ``record`` of a table, or ``sample`` of a folder."""

    number: int
    files: tuple[str, ...] = ()
    """Of a folder, the files by the name that the sample has there, the extension left out."""


def find_shards(path: str) -> Manifest | None:
    """The manifest of a folder of tar shards that ``headrace prepare --format tar`` wrote; None: it is none."""
    if not (Path(path) / MANIFEST_NAME).is_file():
        return None
    manifest = load_manifest(path)
    return manifest if any(shard.format == "tar" for shard in manifest.outputs) else None


def find_sample_origins(path: str, manifest: Manifest, samples: Sequence[str]) -> list[SampleOrigin]:
    """Where samples come from, in the order asked for.

    Args:
        path: the folder.
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
                f"{origins.folder}: tells of {origins.num_documents:,} samples, the shards hold {len(store):,}; they "
                "do not belong together"
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
    """An origin for people."""
    place = f"{origin.unit} {count(origin.number)}"
    pairs = [
        ("key", origin.key),
        ("input", f"{origin.input}, {', '.join(f'{name}.*' for name in origin.files) or place}"),
        ("shard", f"{origin.shard}, sample {count(origin.index)}"),
        ("parts", ", ".join(f"{name} {size(number)}" for name, number in origin.parts.items())),
    ]
    return [f"{path}: sample {count(origin.sample)}", *listing(pairs)]


def _unit(kind: str) -> tuple[str, int]:
    from headrace.prepare.sources import counted_from, record_noun

    unit = "sample" if kind == "folder" else record_noun(kind, "document")
    return unit, counted_from(unit)


def _number(store: SampleStore, path: str, given: str) -> int:
    """A key comes first: those of numbered samples are numbers, but of nine digits."""
    try:
        return store.find(given)
    except KeyError:
        if given.isascii() and given.isdigit() and int(given) < len(store):
            return int(given)
    raise ConfigError(
        f"{path} has no sample {given!r}: it is neither a key, nor a number below {len(store):,}, counted from 0"
    )
