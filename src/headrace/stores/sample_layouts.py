"""Recognises layouts of samples (as opposed to documents of tokens) at a path, and opens them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.io import Reader, reader
from headrace.stores.arguments import check_name
from headrace.stores.energon.config_file import folder_kind
from headrace.stores.energon.jsonl import JsonlSamplesStore, index_place, is_records_of_text
from headrace.stores.hdf5.store import HDF5_SUFFIXES
from headrace.stores.json.store import is_object
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.sample_store import SampleStore
from headrace.stores.tar.names import SUFFIXES as COMPRESSED
from headrace.stores.written import META_NAME

Place = str | os.PathLike[str]
SampleLayout = Literal["energon", "files", "tar", "jsonl samples"]

WORDS: Final[dict[SampleLayout, str]] = {
    "energon": "an Energon dataset, a folder with .nv-meta",
    "files": "a folder of files with media metadata in .nv-meta",
    "tar": "tar shards",
    "jsonl samples": "a .jsonl whose records are not lists of tokens",
}
_TARS: Final = (".tar", *COMPRESSED)


def sample_layout(path: Place | Sequence[Place], using: str | Reader = "mmap") -> SampleLayout | None:
    """Return which layout of samples lies at a path, or None if there are tokens, something else, or nothing.

    - A list, or a name or pattern that ends in ``.tar`` (or in a suffix of a compressed tar): tar shards.
    - A folder with ``.nv-meta``: an Energon dataset or a folder of files, as its metadata says.
    - Another folder that holds a tar, at any depth: tar shards, unless the folder holds shards of tokens itself, or
      they are found below it before the first tar.
    - A ``.jsonl``: samples, if a ``.jsonl.idx`` lies beside it or its first record does not consist of lists of
    numbers.
    """
    if not isinstance(path, str | os.PathLike):
        return "tar"
    name = os.fspath(path)
    check_name(name)
    place = Path(name)
    if place.is_dir():
        kind = folder_kind(place)
        if kind is None:
            return "tar" if _holds_tars(place) else None
        return "energon" if kind == "webdataset" else "files"
    if name.endswith(_TARS):
        return "tar"
    if name.endswith(".jsonl") and place.is_file():
        using = reader(using)
        if index_place(name).is_file() or (not is_object(name, using) and is_records_of_text(name, using)):
            return "jsonl samples"
    return None


def open_samples(
    path: Place | Sequence[Place], layout: SampleLayout, *, split_part: str | None, using: str | Reader
) -> SampleStore:
    """Open a path with the layout that `sample_layout` found.

    Raises:
        ConfigError: ``split_part`` is set, but the layout has no parts.
        StoreError: the data are missing or malformed.
    """
    # These import YAML and SQLite, which stores of tokens do not need.
    from headrace.stores.energon.filesystem import FilesystemStore
    from headrace.stores.energon.store import EnergonStore
    from headrace.stores.quarantine import quarantined
    from headrace.stores.tar.store import TarStore

    if layout == "energon" and isinstance(path, str | os.PathLike):
        return EnergonStore(path, split_part=split_part, using=using)
    if split_part is not None:
        raise ConfigError(f"{path}: split_part={split_part!r} is for Energon datasets; this is {WORDS[layout]}")
    if layout == "tar" or not isinstance(path, str | os.PathLike):
        return quarantined(TarStore(path, using=using))
    if layout == "files":
        return FilesystemStore(path, using=using)
    return quarantined(JsonlSamplesStore(path, using=using))


def _holds_tars(folder: Path) -> bool:
    for at, (_, folders, files) in enumerate(os.walk(folder)):
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        if any(file in (MANIFEST_NAME, META_NAME) or file.endswith(HDF5_SUFFIXES) for file in files):
            return False
        if at == 0 and any(file.endswith((".idx", ".bin")) and not file.endswith(".tar.idx") for file in files):
            return False
        if any(file.endswith(_TARS) and not file.startswith(".") for file in files):
            return True
    return False
