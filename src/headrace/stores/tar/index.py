"""``.tar.idx``: where the samples of a shard begin, as Energon writes it.

N + 1 little-endian 64-bit integers, no header. Entry i: offset in the tar of the first header of sample i, its
extensions included; entry N: offset of the end, which is the first block of zeros. Sample 0 is read from 0 on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import StoreError
from headrace.io import Reader, atomic_write, reader
from headrace.stores.types import IntArray

SUFFIX: Final = ".tar.idx"
_ENTRY: Final = np.dtype("<i8")
ENTRY_BYTES: Final = _ENTRY.itemsize

IndexPlace = str | IntArray
"""An index: the path of its file, or the offsets themselves."""


def index_path(tar: str | Path) -> Path:
    """The index of a shard: beside it, ``x.tar`` -> ``x.tar.idx``."""
    return Path(beside(str(tar)))


def beside(tar: str) -> str:
    """As `index_path`, of strings."""
    if tar.endswith(".tar"):
        return tar + ".idx"
    return os.path.splitext(tar)[0] + SUFFIX  # noqa: PTH122 - called in every read


def write_index(path: str | Path, offsets: ArrayLike) -> None:
    """Write (N + 1,) offsets, whole or not at all; what is there is replaced.

    Raises:
        OutputError: the system refuses.
    """
    atomic_write(path, np.ascontiguousarray(offsets, _ENTRY).tobytes())


def read_index(path: str | Path, using: str | Reader = "mmap") -> IntArray:
    """(N + 1,) int64, read-only, mapped where the reader maps. Its ends are looked at, O(1).

    Raises:
        StoreError: missing, or no such index.
    """
    using, path = reader(using), str(path)
    data = using.view(path)
    if data is None:
        data = using.read_ranges(path, np.array([0]), np.array([using.size(path)]))
        data.flags.writeable = False
    if len(data) == 0 or len(data) % ENTRY_BYTES:
        raise StoreError(
            f"{path}: {len(data)} bytes, which is no {SUFFIX}: 8 bytes a sample and 8 more; make it anew with"
            " headrace prepare"
        )
    entries: IntArray = np.frombuffer(data, _ENTRY)
    first, last = int(entries[0]), int(entries[-1])
    if not 0 <= first <= last:
        raise StoreError(f"{path}: goes from byte {first} to byte {last}; make it anew with headrace prepare")
    return entries


def open_index(path: str, using: Reader, tar: str) -> IntArray:
    """The index of a shard, as `read_index`; where it is missing, the error says what to do."""
    try:
        return read_index(path, using)
    except StoreError as error:
        if not Path(tar).exists():
            raise StoreError(f"{tar}: there is no such shard") from error
        if Path(path).exists():
            raise
        raise StoreError(
            f"{path}: there is no such index; headrace prepare {Path(tar).parent} makes it, or open the tar by itself"
            " with headrace.stores.TarStore"
        ) from error


def index_entries(data: NDArray[np.uint8] | IntArray) -> memoryview:
    """The entries of an index that was looked at before; one of them costs 40 ns, of an array 100."""
    return data.view(_ENTRY).astype(np.int64, copy=False).data


def index_faults(offsets: IntArray) -> Iterator[tuple[int, str]]:
    """Entries that are out of order: their number, and what is wrong. One pass."""
    for at in np.flatnonzero((np.diff(offsets) < 0) | (offsets[1:] % 512 != 0)).tolist():
        yield at + 1, f"byte {offsets[at + 1]} behind byte {offsets[at]}: not in order, or between two blocks"
