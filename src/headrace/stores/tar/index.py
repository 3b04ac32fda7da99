"""``.tar.idx``, where the samples of a shard begin: read, made by a pass where it is missing, and looked up by key.

N + 1 little-endian 64-bit integers, no header. Entry i: offset in the tar of the first header of sample i, its
extensions included; entry N: offset of the end, which is the first block of zeros. Sample 0 is read from 0 on.

The indexes of plain tars: those that lie beside them if they are fresh, else made by a pass, and kept.

From a key to the numbers that it may have: sorted hashes, 16 bytes a sample.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from headrace.errors import InputError, OutputError, StoreError
from headrace.io import Reader, atomic_write, output_errors, reader
from headrace.stores.arguments import IntArray
from headrace.stores.kept_arrays import kept_name
from headrace.stores.tar.headers import BLOCK
from headrace.stores.tar.scan import TarFault, scan_shard

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


IndexWhere = Literal["beside", "cache", "memory"]
_VERSION: Final = 1
_MAX_THREADS: Final = 8
_log = logging.getLogger("headrace")


class ShardIndex(msgspec.Struct, frozen=True):
    """The index of one tar.

    Attributes:
        place: its file, or the offsets.
        count: samples.
        size: bytes of the tar.
        faults: why samples are missing, of a tar that was indexed as far as it could be read.
    """

    place: IndexPlace
    count: int
    size: int
    faults: tuple[TarFault, ...] = ()


def shard_indexes(tars: Sequence[str], *, where: IndexWhere, hidden: bool, skip: bool) -> list[ShardIndex]:
    """The index of each tar. Those that are found cost some 50 us each, the others a pass over their headers.

    Args:
        tars: their paths.
        where: what is made is kept beside the tar or in the cache, or nowhere.
        hidden: take ``dir/.hid`` as a sample. Without, indexes beside a tar are not looked at: they are Energon's.
        skip: of a faulty tar take the samples before the fault.

    Raises:
        StoreError: a tar is missing.
        InputError: a tar is faulty, or compressed.
    """
    began = time.monotonic()
    found: dict[str, ShardIndex | None] = {tar: _found(tar, where, hidden) for tar in tars}
    missing = [tar for tar, index in found.items() if index is None]

    def make(tar: str) -> ShardIndex:
        return _make(tar, where, hidden=hidden, skip=skip)

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        made = dict(zip(missing, threads.map(make, missing), strict=True))
    if missing:
        count = sum(index.count for index in made.values())
        _log.info("%s and others: indexed %s samples in %.1f s", missing[0], f"{count:,}", time.monotonic() - began)
    return [found[tar] or made[tar] for tar in tars]


def _found(tar: str, where: IndexWhere, hidden: bool) -> ShardIndex | None:
    status = _status(tar)
    places = [beside(tar)] if hidden else []
    places += [str(folder / _name(tar, status, hidden)) for folder in _cache_folders()] if where != "memory" else []
    for at, place in enumerate(places):
        try:
            # What is in the cache has the size and the time of the tar in its name.
            index = Path(place).stat()
            is_fresh = not hidden or at > 0 or index.st_mtime_ns >= status.st_mtime_ns
            if is_fresh and _ends_right(tar, status.st_size, place, index.st_size):
                return ShardIndex(place, index.st_size // ENTRY_BYTES - 1, status.st_size)
        except OSError:
            continue
    return None


def _ends_right(tar: str, size: int, place: str, index_size: int) -> bool:
    """Whether the last entry of an index is where the tar ends: a block of zeros, or the end of the file."""
    if index_size < ENTRY_BYTES or index_size % ENTRY_BYTES:
        return False
    with Path(place).open("rb") as file:
        last = int.from_bytes(os.pread(file.fileno(), ENTRY_BYTES, index_size - ENTRY_BYTES), "little", signed=True)
    if last == size > 0:
        return True
    if not 0 <= last <= size - BLOCK:
        return False
    with Path(tar).open("rb") as file:
        return os.pread(file.fileno(), BLOCK, last) == bytes(BLOCK)


def _make(tar: str, where: IndexWhere, *, hidden: bool, skip: bool) -> ShardIndex:
    status = _status(tar)
    found = scan_shard(tar, hidden=hidden, on_fault="keep")
    if found.faults and not skip:
        fault = found.faults[0]
        raise InputError(
            f"{tar}: sample {fault.sample}: byte {fault.byte}: {fault.message}; faulty='skip' takes the"
            f" {len(found.keys):,} samples that can be read, and counts the faults"
        )
    count, size = len(found.keys), status.st_size
    if found.faults:
        # Never kept: whoever opens the tar without skipping is to hear of it.
        return ShardIndex(found.offsets, count, size, found.faults)
    places = [Path(beside(tar))] if where == "beside" and hidden and not Path(beside(tar)).exists() else []
    places += [folder / _name(tar, status, hidden) for folder in _cache_folders()] if where != "memory" else []
    for place in places:
        try:
            with output_errors(place.parent, "create"):
                place.parent.mkdir(parents=True, exist_ok=True)
            write_index(place, found.offsets)
        except OutputError:  # read-only, or full: the next place
            continue
        return ShardIndex(str(place), count, size)
    return ShardIndex(np.asarray(found.offsets), count, size)


def _status(tar: str) -> os.stat_result:
    try:
        return Path(tar).stat()
    except OSError as error:
        raise StoreError(f"{tar}: cannot be opened: {error.strerror}; expected a tar") from error


def _name(tar: str, status: os.stat_result, hidden: bool) -> str:
    facts: tuple[Any, ...] = (os.path.abspath(tar), status.st_size, status.st_mtime_ns, hidden)  # noqa: PTH100
    return kept_name("tar", _VERSION, *facts) + ".tar.idx"


def _cache_folders() -> list[Path]:
    if named := os.environ.get("HEADRACE_CACHE"):
        return [Path(named) / "tar"]
    if named := os.environ.get("XDG_CACHE_HOME"):
        return [Path(named) / "headrace" / "tar"]
    try:
        return [Path.home() / ".cache" / "headrace" / "tar"]
    except RuntimeError:
        return []


class KeyTable:
    """The keys of all samples, by their 64-bit hashes.

    Args:
        keys: of sample 0, 1, ...; they are not kept.
        count: how many; -1: unknown.
    """

    def __init__(self, keys: Iterable[str], count: int) -> None:
        hashes = np.fromiter((_hash(key) for key in keys), np.uint64, count)
        self._numbers: IntArray = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._numbers]

    def candidates(self, key: str) -> list[int]:
        """Numbers of samples whose key has the same hash, ascending; another key has it once in 2^64."""
        wanted = np.uint64(_hash(key))
        first, last = (int(np.searchsorted(self._hashes, wanted, side=side)) for side in ("left", "right"))
        return [int(number) for number in self._numbers[first:last]]

    def repeated(self) -> Iterator[list[int]]:
        """Numbers of samples whose keys seem to be the same, each group ascending."""
        same = self._hashes[1:] == self._hashes[:-1]
        firsts = np.flatnonzero(same & ~np.concatenate(([False], same[:-1])))
        for first in firsts.tolist():
            last = first + 1 + int(np.argmin(np.append(same[first:], False)))
            yield [int(number) for number in self._numbers[first:last]]


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
