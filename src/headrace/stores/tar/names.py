"""Names: finds the tars of a file, list, pattern or folder, and splits names of members into key and part.

Compressed tars are refused, since their samples cannot be reached by number; the message says how to unpack them.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.errors import InputError, StoreError
from headrace.io import expand_braces, natural_key

_SPLIT: Final = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Splits a name into key and part, as webdataset and Energon do; `sample_part` returns the same, but faster."""

_META: Final = re.compile(r"__[^/]*__($|/)")
"""Names that begin like this are skipped, as by webdataset and Energon."""


def sample_part(name: str, *, hidden: bool = True) -> tuple[str, str] | None:
    """Return key and part of a regular member, or None if it belongs to no sample.

    The name is split at the first dot after its last slash. Folders belong to the key, and nothing is normalised:

        ``a0.jpg``           key ``a0``, part ``jpg``         ``a0.seg.PNG``    key ``a0``, part ``seg.PNG``
        ``v1.2/a0.txt``      key ``v1.2/a0``, part ``txt``    ``./a0.txt``      key ``./a0``, part ``txt``
        ``a0.``              key ``a0``, part ``""``          ``a0``, ``.git``  None: no key or no part
        ``__meta__/a0.txt``  None: begins with ``__...__``    ``d/__a__/b.x``   key ``d/__a__/b``, part ``x``

    Args:
        name: the full name of the member, as ``tarfile`` decodes it.
        hidden: whether ``dir/.hid`` is key ``dir/`` and part ``hid``, as in webdataset and Energon, or is skipped.
    """
    if name.startswith("__") and _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1:
        # The pattern then takes the last folder for the name of the file, if there is a folder and it has no dot.
        if not hidden or slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]:
            return None
    elif "\n" not in name:
        return name[:dot], name[dot + 1 :]
    if "\n" in name:
        # The pattern treats line breaks differently in different places, so such names are left to it.
        found = _SPLIT.match(name)
        return None if found is None else (found[1], found[2])
    return name[:dot], name[dot + 1 :]


_KINDS: Final = {
    "gzip": (b"\x1f\x8b", (".tar.gz", ".tgz"), "gzip -dc"),
    "zstd": (b"\x28\xb5\x2f\xfd", (".tar.zst", ".tzst"), "zstd -dc"),
    "bzip2": (b"BZh", (".tar.bz2", ".tbz2", ".tbz"), "bzip2 -dc"),
    "xz": (b"\xfd7zXZ\0", (".tar.xz", ".txz"), "xz -dc"),
    "lz4": (b"\x04\x22\x4d\x18", (".tar.lz4",), "lz4 -dc"),
}
SUFFIXES: Final = tuple(suffix for _, suffixes, _ in _KINDS.values() for suffix in suffixes)


def check_uncompressed(path: str, head: bytes = b"") -> None:
    """Raise InputError if a tar is compressed, by its name or its first bytes; the message says how to unpack it."""
    for kind, (magic, suffixes, command) in _KINDS.items():
        named = next((suffix for suffix in suffixes if path.endswith(suffix)), None)
        if named is None and not (head and head.startswith(magic)):
            continue
        stem = path.removesuffix(named) if named else path.removesuffix(".tar") + "-plain"
        raise InputError(
            f"{path}: compressed with {kind}; samples can be reached by number only in a plain tar: unpack it with"
            f" {command} {path} > {stem}.tar"
        )


TarPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def find_tars(path: TarPaths) -> list[str]:
    """Return the paths of the shards: in the order written, or for a folder or ``*`` by `headrace.io.natural_key`.

    Raises:
        StoreError: there are no tars.
        InputError: a tar is compressed; the message says how to unpack it.
        ConfigError: a range in braces counts down.
    """
    names = [path] if isinstance(path, str | os.PathLike) else list(path)
    tars = [tar for name in names for tar in _expanded(os.fspath(name))]
    if not tars:
        raise StoreError(f"{path}: the list of tars is empty; name at least one")
    for tar in tars:
        check_uncompressed(tar)
    return tars


def common_root(tars: Sequence[str]) -> str:
    """Return the deepest folder that holds all of the tars."""
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
                raise StoreError(f"{pattern}: no tar matches this pattern")
            tars += found
        else:
            tars.append(pattern)
    return tars


def _below(folder: str) -> list[str]:
    """Find all tars below a folder, without hidden files and folders."""
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
