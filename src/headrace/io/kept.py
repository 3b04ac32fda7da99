"""Small files, and ends of files, that are kept in the cache, each with a digest, and compared with it before use.

    cache_folder("objects")   whole objects that are read all over, such as indexes and manifests; ends of objects
    cache_folder("ends")      a hash of the ends of many local files
    cache_folder("tar")       indexes of tars that cannot be kept beside them
    cache_folder("digests")   the digest of each of these files, by its name, which is a hash of what it was kept of

They hold nothing but their content, so that they can be mapped, and can be fetched or made again. Arrays that take long
to make are kept by `headrace.stores.kept_arrays`, with a record of them, and blocks of large files by `headrace.Cache`.

`map_npy` maps an array of a ``.npy`` file that is not trusted.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.io.atomic import AtomicFile, output_errors
from headrace.io.checksum import file_digest
from headrace.io.paths import cache_folder, check_kind

_log = logging.getLogger("headrace")
_MAX_HEADER: Final = 4096
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


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array of an ``.npy`` file and return it as a plain read-only array. O(1).

    The array must hold integers, floats or bools in C order and in the byte order of this machine, and the file must be
    exactly as long as the header says.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file; the message says what was found and what was expected.
    """
    size = check_kind(path).st_size
    try:
        array = np.lib.format.open_memmap(Path(path), mode="r", max_header_size=_MAX_HEADER)
    except OSError:
        raise
    except Exception as error:  # NumPy passes on whatever the parser of the header raises
        raise ValueError(f"it does not hold numbers as numpy.save writes them: {error}") from error
    if array.dtype.kind not in "biuf" or not array.dtype.isnative or not array.flags.c_contiguous:
        raise ValueError(f"it holds {array.dtype.str} of shape {array.shape}; expected numbers in C order")
    if size != array.offset + array.nbytes:
        raise ValueError(f"it has {size:,} bytes, but its array takes {array.offset + array.nbytes:,}, with the header")
    return array.view(np.ndarray)
