"""Finds the manifest that speaks of a store."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.manifest_output import META_NAME


def find_manifest(path: str | os.PathLike[str]) -> tuple[Path, Manifest] | None:
    """The folder of the manifest that lists what lies at a path (a folder, or a shard in one), and the manifest.

    Raises:
        StoreError: there is one, but it is damaged.
    """
    place = Path(path)
    if place.is_dir() and (place / MANIFEST_NAME).exists():
        return place, load_manifest(place)
    if place.name == META_NAME:
        place = place.parent
    if not (place.parent / MANIFEST_NAME).exists():
        return None
    manifest = load_manifest(place.parent)
    prefix = place.stem if place.suffix in (".bin", ".idx", ".h5", ".hdf5", ".jsonl") else place.name
    entry = manifest.shard(prefix)
    is_listed = entry is not None and (entry.format == "keyed") == place.is_dir()
    return (place.parent, manifest) if is_listed else None
