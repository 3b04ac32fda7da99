"""Names: the tars that a user means, and which sample a member belongs to, as which part.

The tars that a user means: a file, a list, a pattern, a folder.

Compressed tars are no stores: they have no sample by number. Whoever brings one is told how to make one of it.
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
"""Key and part of a name, as the peers split it; `sample_part` gives the same, quicker."""

_META: Final = re.compile(r"__[^/]*__($|/)")
"""What the peers leave out, when a name begins so."""


def sample_part(name: str, *, hidden: bool = True) -> tuple[str, str] | None:
    """Key and part of a regular member, or None if it belongs to no sample.

    The name is split at the first dot behind its last slash; folders belong to the key, and nothing is normalised:

        ``a0.jpg``           key ``a0``, part ``jpg``         ``a0.seg.PNG``    key ``a0``, part ``seg.PNG``
        ``v1.2/a0.txt``      key ``v1.2/a0``, part ``txt``    ``./a0.txt``      key ``./a0``, part ``txt``
        ``a0.``              key ``a0``, part ``""``          ``a0``, ``.git``  None: no key or no part
        ``__meta__/a0.txt``  None: ``__...__`` at the begin   ``d/__a__/b.x``   key ``d/__a__/b``, part ``x``

    Args:
        name: the full name of the member, as ``tarfile`` decodes it.
        hidden: take ``dir/.hid`` as key ``dir/`` and part ``hid``, as the peers do; False leaves it out.
    """
    if name.startswith("__") and _META.match(name):
        return None
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0:
        return None
    if dot == slash + 1:
        # The peers' pattern then takes the last folder for the name of the file, if there is one and it has no dot.
        if not hidden or slash < 0 or "." in name[name.rfind("/", 0, slash) + 1 : slash]:
            return None
    elif "\n" not in name:
        return name[:dot], name[dot + 1 :]
    if "\n" in name:
        # Their pattern stops at the end of a line in some places and not in others: nothing to be said more clearly.
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
    """Raise InputError for a tar that is compressed, by its name, or by its first bytes; says how to unpack it."""
    for kind, (magic, suffixes, command) in _KINDS.items():
        named = next((suffix for suffix in suffixes if path.endswith(suffix)), None)
        if named is None and not (head and head.startswith(magic)):
            continue
        stem = path.removesuffix(named) if named else path.removesuffix(".tar") + "-plain"
        raise InputError(
            f"{path}: compressed with {kind}; a sample can be reached by its number only in a plain tar:"
            f" {command} {path} > {stem}.tar"
        )


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
