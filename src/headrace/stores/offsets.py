"""Indexes that say where the samples of a file begin, and where Headrace keeps the indexes that it makes.

``X.tar.idx`` and ``X.jsonl.idx`` hold N + 1 little-endian 64-bit integers and no header: the byte where each sample
begins, and the byte where the last one ends. Energon writes both.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import OutputError
from headrace.io import Reader, atomic_write, cache_folder, hash_bytes
from headrace.stores.arguments import IntArray
from headrace.stores.kept_arrays import find_cache, keep_arrays, kept_name

ENTRY: Final = np.dtype("<i8")
ENTRY_BYTES: Final = ENTRY.itemsize

INDEX_FOLDER: Final = ".headrace-index"
"""The folder beside a file in which an index is kept that is no file of its own."""

_KEPT_BYTES: Final = 8 << 20
"""The index of a smaller file is not kept: making it again takes no longer than reading it."""

_ENDS_BYTES: Final = 64 << 10
_log = logging.getLogger("headrace")

Kept = tuple[Mapping[str, NDArray[Any]], bytes]
"""What an index consists of: arrays by name, and JSON."""


def write_offsets(path: str | Path, offsets: ArrayLike) -> None:
    """Write (N + 1,) offsets, whole or not at all. An existing file is replaced.

    Raises:
        OutputError: the system reports an error.
    """
    atomic_write(path, np.ascontiguousarray(offsets, ENTRY).tobytes())


def read_offsets(path: str, using: Reader) -> IntArray:
    """Return the entries of an index, (N + 1,) int64, read-only; they are mapped if the reader maps.

    Raises:
        StoreError: the file cannot be read.
        ValueError: no index has this size; the message says what was found and what was expected.
    """
    data = using.whole(path)
    num_entries(len(data))
    entries: IntArray = np.frombuffer(data, ENTRY)
    return entries


def num_entries(num_bytes: int) -> int:
    """Return N + 1 for an index of this size; raises ValueError if no index has it."""
    if num_bytes == 0 or num_bytes % ENTRY_BYTES:
        raise ValueError(f"has {num_bytes} bytes, but an index has 8 bytes a sample and 8 more")
    return num_bytes // ENTRY_BYTES


def kept_index(path: str, using: Reader, kind: str, version: int, make: Callable[[], Kept]) -> Kept:
    """Return the index of a file: a kept one, or a new one, which is kept if the file has 8 MiB or more.

    It is kept in ``.headrace-index`` beside the file or, if that cannot be written, in ``$HEADRACE_CACHE`` or
    ``~/.cache/headrace``. It is found again by the file's name, size and modification time, and by a hash of the first
    and last bytes of the file.

    Args:
        path: the file.
        using: reads the file.
        kind: name of the kind of index.
        version: version of its arrays.
        make: makes the index.
    """
    size = using.size(path)
    if size < _KEPT_BYTES:
        return make()
    ends = hash_bytes(using.ends(path, _ENDS_BYTES))
    name = kept_name(kind, version, Path(path).name, size, Path(path).stat().st_mtime_ns, ends)
    cache = cache_folder("jsonl")
    folders = [Path(path).absolute().parent / INDEX_FOLDER, *([] if cache is None else [cache])]
    for folder in folders:
        if (kept := find_cache(folder, name)) is not None:
            return kept
    began = time.monotonic()
    index = make()
    _log.info("%s: made its index in %.1f s", path, time.monotonic() - began)
    for folder in folders:
        # If the index cannot be kept, the next start only takes longer.
        with contextlib.suppress(OutputError):
            keep_arrays(folder, name, *index)
            break
    return index
