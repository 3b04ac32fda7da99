"""Small files, and ends of files, that are kept in the cache, each with a digest, and compared with it before use.

    cache_folder("objects")   whole objects that are read all over, such as indexes and manifests; ends of objects
    cache_folder("ends")      a hash of the ends of many local files
    cache_folder("tar")       indexes of tars that cannot be kept beside them
    cache_folder("digests")   the digest of each of these files, by its name, which is a hash of what it was kept of

They hold nothing but their content, so that they can be mapped, and can be fetched or made again. Arrays that take long
to make are kept by `headrace.stores.kept_arrays`, with a record of them, and blocks of large files by `headrace.Cache`.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Final

import xxhash

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


def keep_bytes(place: Path, data: bytes) -> None:
    """Keep bytes, and their digest, at a place in the cache.

    Raises:
        OutputError: the system reports an error.
    """
    keep_digest(place.name, xxhash.xxh3_128_hexdigest(data))
    with output_errors(place.parent, "create"):
        place.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(place, lasts=False) as file:
        file.write(data)


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
