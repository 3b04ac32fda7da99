"""The layouts of samples (as opposed to documents of tokens). Each says which paths are its own, and opens them.

- A folder with ``.nv-meta``: an Energon dataset or a folder of files, as its metadata says.
- A list, or a name or pattern that ends in ``.tar`` (or in a suffix of a compressed tar): tar shards.
- Another folder that holds a tar, at any depth: tar shards, unless the folder holds shards of tokens itself, or they
  are found below it before the first tar.
- A ``.jsonl``: samples, if a ``.jsonl.idx`` lies beside it or its first record does not consist of lists of numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.io import Reader, reader
from headrace.stores import energon
from headrace.stores.arguments import check_name
from headrace.stores.energon.config_file import folder_kind
from headrace.stores.energon.jsonl import JsonlSamplesStore, index_place, is_records_of_text
from headrace.stores.hdf5.store import HDF5_SUFFIXES
from headrace.stores.json.store import is_object
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.quarantine import quarantined
from headrace.stores.sample_store import SampleStore
from headrace.stores.tar.names import SUFFIXES as COMPRESSED
from headrace.stores.tar.names import TarPaths
from headrace.stores.tar.store import TarStore
from headrace.stores.written import META_NAME

SampleFormat = Literal["energon", "files", "tar", "jsonl samples"]

_TARS: Final = (".tar", *COMPRESSED)


class SampleLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One layout.

    Attributes:
        words: what it is, for messages.
        is_at: returns whether a path is of this layout.
        open: opens a path with a split part, which is only for Energon datasets, and a reader.
    """

    words: str
    is_at: Callable[[str, str | Reader], bool]
    open: Callable[[str | os.PathLike[str], str | None, str | Reader], SampleStore]


def _holds_tars(name: str, using: str | Reader) -> bool:
    if not Path(name).is_dir():
        return name.endswith(_TARS)
    for at, (_, folders, files) in enumerate(os.walk(name)):
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        if any(file in (MANIFEST_NAME, META_NAME) or file.endswith(HDF5_SUFFIXES) for file in files):
            return False
        if at == 0 and any(file.endswith((".idx", ".bin")) and not file.endswith(".tar.idx") for file in files):
            return False
        if any(file.endswith(_TARS) and not file.startswith(".") for file in files):
            return True
    return False


def _holds_records(name: str, using: str | Reader) -> bool:
    if not name.endswith(".jsonl") or not Path(name).is_file():
        return False
    using = reader(using)
    return index_place(name).is_file() or (not is_object(name, using) and is_records_of_text(name, using))


SAMPLE_LAYOUTS: Final[dict[SampleFormat, SampleLayout]] = {
    "energon": SampleLayout(
        words="an Energon dataset, a folder with .nv-meta",
        is_at=lambda name, using: folder_kind(Path(name)) == "webdataset",
        open=lambda path, part, using: energon.EnergonStore(path, split_part=part, using=using),
    ),
    "files": SampleLayout(
        words="a folder of files with media metadata in .nv-meta",
        is_at=lambda name, using: folder_kind(Path(name)) == "filesystem",
        open=lambda path, part, using: energon.FilesystemStore(path, using=using),
    ),
    "tar": SampleLayout(
        words="tar shards",
        is_at=_holds_tars,
        open=lambda path, part, using: quarantined(TarStore(path, using=using)),
    ),
    "jsonl samples": SampleLayout(
        words="a .jsonl whose records are not lists of tokens",
        is_at=_holds_records,
        open=lambda path, part, using: quarantined(JsonlSamplesStore(path, using=using)),
    ),
}
"""All layouts; of several to which a path belongs, the first counts."""


def sample_layout(path: TarPaths, using: str | Reader = "mmap") -> SampleFormat | None:
    """Return which layout of samples lies at a path, or None if there are tokens, something else, or nothing."""
    if not isinstance(path, str | os.PathLike):
        return "tar"
    name = os.fspath(path)
    check_name(name)
    return next((found for found, layout in SAMPLE_LAYOUTS.items() if layout.is_at(name, using)), None)


def open_samples(path: TarPaths, layout: SampleFormat, *, split_part: str | None, using: str | Reader) -> SampleStore:
    """Open a path with the layout that `sample_layout` found.

    Raises:
        ConfigError: ``split_part`` is set, but the layout has no parts.
        StoreError: the data are missing or malformed.
    """
    found = SAMPLE_LAYOUTS[layout]
    if split_part is not None and layout != "energon":
        raise ConfigError(f"{path}: split_part={split_part!r} is for Energon datasets; this is {found.words}")
    if not isinstance(path, str | os.PathLike):
        return quarantined(TarStore(path, using=using))
    return found.open(path, split_part, using)
