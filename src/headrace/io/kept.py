"""Digests of files that are kept in the cache and hold nothing but their own content, as the copy of an index does."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

from headrace.io.atomic import AtomicFile, output_errors
from headrace.io.checksum import file_digest
from headrace.io.paths import cache_folder

_log = logging.getLogger("headrace")
_DIGESTS: Final = "digests"
"""The cache folder of the digests of files in other ones, by their names, which are hashes."""


def keep_digest(name: str, digest: str) -> None:
    """Note in the cache the xxh3_128 of a file that is going to be kept under a name, for `is_as_kept`.

    Raises:
        OutputError: the system reports an error.
    """
    if (folder := cache_folder(_DIGESTS)) is not None:
        with output_errors(folder, "create"):
            folder.mkdir(parents=True, exist_ok=True)
        with AtomicFile(folder / name, lasts=False) as file:
            file.write(digest.encode())


def is_as_kept(path: Path, what: str) -> bool:
    """Return whether a kept file holds the bytes whose digest `keep_digest` has noted. All of them are read.

    If it does not, a warning says so, with what it was kept of.
    """
    with contextlib.suppress(OSError):
        folder = cache_folder(_DIGESTS)
        if folder is not None and file_digest(path).encode() == (folder / path.name).read_bytes():
            return True
    _log.warning("%s: is damaged: it is not what was kept of %s; it is made or fetched again", path, what)
    return False
