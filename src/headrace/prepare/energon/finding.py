"""The tars below a folder, in Energon's order: by the parts of their names, hidden ones left out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from headrace.errors import InputError
from headrace.prepare.energon.options import exclude_pattern
from headrace.stores.tar.names import SUFFIXES, check_uncompressed


class FoundTar(msgspec.Struct, frozen=True):
    """A tar as it was when the run began."""

    name: str
    """Relative to the folder, with slashes."""
    size: int
    mtime_ns: int


def find_shards(
    root: Path, exclude: str | None, *, refuse_compressed: bool, on_notice: Callable[[str], None]
) -> list[FoundTar]:
    """The shards of a dataset, in order.

    Args:
        root: the folder; links to folders are followed.
        exclude: names in which this regular expression is found are left out.
        refuse_compressed: a compressed tar is an error; else it is left out, and said.
        on_notice: is told what is left out.

    Raises:
        InputError: a folder cannot be read; a tar is compressed; there is none.
    """
    pattern = exclude_pattern(exclude) if exclude is not None else None
    names, compressed = [], []
    for name in _walk(root):
        if pattern is not None and pattern.search(name):
            continue
        if name.endswith(".tar"):
            names.append(name)
        elif name.endswith(SUFFIXES):
            compressed.append(name)
    if compressed:
        first = min(compressed, key=_key)
        if refuse_compressed or not names:
            check_uncompressed(str(root / first))
        on_notice(f"{len(compressed):,} compressed tars are left out, the first is {first}: only plain tars are shards")
    if not names:
        left = " that is not excluded" if pattern is not None else ""
        raise InputError(f"{root}: no .tar in it or below it{left}: a dataset is made of tars")
    return [_status(root, name) for name in sorted(names, key=_key)]


def _key(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _walk(root: Path) -> list[str]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {error.strerror or error}") from error

    found: list[str] = []
    seen = {os.path.realpath(root)}
    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        kept = []
        for name in folders:
            path = os.path.join(folder, name)  # noqa: PTH118 - names by the million
            if name.startswith(".") or (os.path.islink(path) and _leads_up(path, seen)):  # noqa: PTH114
                continue
            kept.append(name)
        folders[:] = kept
        below = os.path.relpath(folder, root)
        prefix = "" if below == "." else f"{below}/"
        found += [prefix + name for name in files if not name.startswith(".")]
    return found


def _leads_up(path: str, seen: set[str]) -> bool:
    """Whether a link leads to a folder that it lies in, or that another link led to: else the walk would not end."""
    target = os.path.realpath(path)
    if target in seen or f"{os.path.realpath(os.path.dirname(path))}/".startswith(f"{target}/"):  # noqa: PTH120
        return True
    seen.add(target)
    return False


def _status(root: Path, name: str) -> FoundTar:
    try:
        status = (root / name).stat()
    except OSError as error:
        raise InputError(f"{root / name}: cannot be read: {error.strerror or error}") from error
    return FoundTar(name, status.st_size, status.st_mtime_ns)
