"""The tars that a user means: a file, a list, a pattern, a folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import StoreError
from headrace.io import expand_braces, natural_key
from headrace.stores.tar.compressed import SUFFIXES, check_uncompressed

TarPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def find_tars(path: TarPaths) -> list[str]:
    """The paths of the shards, in order: as written, or for a folder or ``*`` by `headrace.io.natural_key`.

    Raises:
        StoreError: there is none.
        InputError: one is compressed; says how to unpack it.
        ConfigError: braces that count down.
    """
    names = [path] if isinstance(path, str | os.PathLike) else list(path)
    tars = [tar for name in names for tar in _expanded(os.fspath(name))]
    if not tars:
        raise StoreError(f"{path}: an empty list of tars; name one at least")
    for tar in tars:
        check_uncompressed(tar)
    return tars


def common_root(tars: Sequence[str]) -> str:
    """The deepest folder that all lie below."""
    return os.path.commonpath([os.path.dirname(os.path.abspath(tar)) for tar in tars])  # noqa: PTH100, PTH120 - 10,000s


def _expanded(name: str) -> list[str]:
    if Path(name).is_dir():
        return _below(name)
    # A file may have braces or brackets in its name.
    if Path(name).exists():
        return [name]
    tars: list[str] = []
    for pattern in expand_braces(name):
        if glob.has_magic(pattern):
            found = sorted(glob.glob(pattern, recursive=True), key=natural_key)  # noqa: PTH207 - may be absolute
            if not found:
                raise StoreError(f"{pattern}: nothing is there; a pattern must meet a tar at least")
            tars += found
        else:
            tars.append(pattern)
    return tars


def _below(folder: str) -> list[str]:
    """All tars below a folder; those of hidden folders not."""
    found, compressed = [], []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = [os.path.relpath(os.path.join(root, name), folder) for name in files if not name.startswith(".")]  # noqa: PTH118
        found += [name for name in below if name.endswith(".tar")]
        compressed += [name for name in below if name.endswith(SUFFIXES)]
    if not found and compressed:
        check_uncompressed(str(Path(folder) / min(compressed, key=natural_key)))
    if not found:
        raise StoreError(f"{folder}: a folder without tars; expected files that end in .tar, in it or below it")
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(found, key=natural_key)]
