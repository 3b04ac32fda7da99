"""Finds the tars of a file, list, pattern or folder, and their indexes ``.tar.idx``; and a table of keys.

An index is read, or made by a pass over the tar. It is a file of `headrace.stores.kept_arrays`. Entry i is the offset
of the first header of sample i, including its extension headers. Entry N is the offset of the end, which is the first
block of zeros. Sample 0 is always read from byte 0.
"""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import InputError, OutputError, StoreError
from headrace.io import Reader, cache_folder, expand_braces, natural_key, output_errors, reader
from headrace.stores.arguments import IntArray
from headrace.stores.kept_arrays import ENTRY, ENTRY_BYTES, kept_name, read_offsets, write_offsets
from headrace.stores.tar.members import BLOCK, SUFFIXES, check_uncompressed
from headrace.stores.tar.scan import TarFault, scan_shard

SUFFIX: Final = ".tar.idx"

IndexPlace = str | IntArray
"""An index, as the path of its file or as the offsets themselves."""


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


def index_path(tar: str | Path) -> Path:
    """Return the path of the index beside a shard: ``x.tar.idx`` for ``x.tar``."""
    return Path(beside(str(tar)))


def beside(tar: str) -> str:
    """Return the same as `index_path`, as a string."""
    if tar.endswith(".tar"):
        return tar + ".idx"
    return os.path.splitext(tar)[0] + SUFFIX  # noqa: PTH122 - called in every read


def read_index(path: str | Path, using: str | Reader = "mmap") -> IntArray:
    """Read an index as (N + 1,) int64, read-only; it is mapped if the reader maps. Only its ends are checked, O(1).

    Raises:
        StoreError: the file is missing, or is not such an index.
    """
    try:
        entries = read_offsets(str(path), reader(using))
    except ValueError as error:
        raise StoreError(f"{path}: {error}; make it again with headrace prepare") from error
    first, last = int(entries[0]), int(entries[-1])
    if not 0 <= first <= last:
        raise StoreError(
            f"{path}: goes from byte {first} to byte {last}, which cannot be; make it again with headrace prepare"
        )
    return entries


def open_index(path: str, using: Reader, tar: str) -> IntArray:
    """Read the index of a shard as `read_index` does; if it is missing, the error says what to do."""
    try:
        return read_index(path, using)
    except StoreError as error:
        if not Path(tar).exists():
            raise StoreError(f"{tar}: there is no such shard") from error
        if Path(path).exists():
            raise
        raise StoreError(
            f"{path}: there is no such index; make it with headrace prepare {Path(tar).parent}, or open the tar by"
            " itself with headrace.stores.TarStore"
        ) from error


def index_entries(data: NDArray[np.uint8] | IntArray) -> memoryview:
    """Return the entries of a checked index as a memoryview, which is faster: 40 ns an entry, against 100."""
    return data.view(ENTRY).astype(np.int64, copy=False).data


def index_faults(offsets: IntArray) -> Iterator[tuple[int, str]]:
    """Yield number and fault of each entry that is out of order or not at the border of a block. One pass."""
    for at in np.flatnonzero((np.diff(offsets) < 0) | (offsets[1:] % 512 != 0)).tolist():
        yield at + 1, f"byte {offsets[at + 1]} after byte {offsets[at]}: out of order, or not at the border of a block"


IndexWhere = Literal["beside", "cache", "memory"]
_VERSION: Final = 1
_MAX_THREADS: Final = 8
_log = logging.getLogger("headrace")


class ShardIndex(msgspec.Struct, frozen=True):
    """The index of one tar.

    Attributes:
        place: the path of its file, or the offsets.
        count: number of samples.
        size: size of the tar in bytes.
        faults: why samples are missing, if the tar could be indexed only in part.
    """

    place: IndexPlace
    count: int
    size: int
    faults: tuple[TarFault, ...] = ()


def shard_indexes(tars: Sequence[str], *, where: IndexWhere, hidden: bool, skip: bool) -> list[ShardIndex]:
    """Find or make the index of each tar. An existing one takes about 50 us, a new one a pass over the tar's headers.

    An index beside a tar is used if it is at least as new as the tar.

    Args:
        tars: paths of the tars.
        where: whether new indexes are kept beside the tar, in the cache, or only in memory.
        hidden: whether ``dir/.hid`` is a sample. If not, indexes beside a tar are ignored, since they are Energon's.
        skip: whether to use the samples before the fault of a faulty tar.

    Raises:
        StoreError: a tar is missing.
        InputError: a tar is faulty or compressed.
    """
    began = time.monotonic()
    found: dict[str, ShardIndex | None] = {tar: _found(tar, where, hidden) for tar in tars}
    missing = [tar for tar, index in found.items() if index is None]

    def make(tar: str) -> ShardIndex:
        return _make(tar, where, hidden=hidden, skip=skip)

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        new = dict(zip(missing, threads.map(make, missing), strict=True))
    if missing:
        count = sum(index.count for index in new.values())
        _log.info("%s and others: indexed %s samples in %.1f s", missing[0], f"{count:,}", time.monotonic() - began)
    return [found[tar] or new[tar] for tar in tars]


def _found(tar: str, where: IndexWhere, hidden: bool) -> ShardIndex | None:
    status = _status(tar)
    places = [beside(tar)] if hidden else []
    if where != "memory" and (cache := cache_folder("tar")) is not None:
        places.append(str(cache / _name(tar, status, hidden)))
    for at, place in enumerate(places):
        try:
            # The name of an index in the cache depends on size and time of the tar, so it is always fresh.
            index = Path(place).stat()
            is_fresh = not hidden or at > 0 or index.st_mtime_ns >= status.st_mtime_ns
            if is_fresh and _ends_right(tar, status.st_size, place, index.st_size):
                return ShardIndex(place, index.st_size // ENTRY_BYTES - 1, status.st_size)
        except OSError:
            continue
    return None


def _ends_right(tar: str, size: int, place: str, index_size: int) -> bool:
    """Return whether the last entry of an index is where the tar ends: at a block of zeros, or at the file's end."""
    if not index_size or index_size % ENTRY_BYTES:
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
            f"{tar}: sample {fault.sample}: byte {fault.byte}: {fault.message}; open it with faulty='skip' to use the"
            f" {len(found.keys):,} samples that can be read"
        )
    count, size = len(found.keys), status.st_size
    if found.faults:
        # Never kept, so that opening the tar without faulty="skip" still raises the error.
        return ShardIndex(found.offsets, count, size, found.faults)
    places = [Path(beside(tar))] if where == "beside" and hidden and not Path(beside(tar)).exists() else []
    if where != "memory" and (cache := cache_folder("tar")) is not None:
        places.append(cache / _name(tar, status, hidden))
    for place in places:
        try:
            with output_errors(place.parent, "create"):
                place.parent.mkdir(parents=True, exist_ok=True)
            write_offsets(place, found.offsets)
        except OutputError:  # the folder is read-only or full: try the next one
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


class KeyTable:
    """Finds samples by the 64-bit hashes of their keys, in 16 bytes a sample.

    Args:
        keys: the key of each sample, in order; the keys themselves are not kept.
        count: number of samples; -1 if unknown.
    """

    def __init__(self, keys: Iterable[str], count: int) -> None:
        hashes = np.fromiter((_hash(key) for key in keys), np.uint64, count)
        self._numbers: IntArray = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._numbers]

    def candidates(self, key: str) -> list[int]:
        """Return the numbers of samples whose key has the same hash, ascending; the key itself has to be compared."""
        wanted = np.uint64(_hash(key))
        first, last = (int(np.searchsorted(self._hashes, wanted, side=side)) for side in ("left", "right"))
        return [int(number) for number in self._numbers[first:last]]

    def repeated(self, key_of: Callable[[int], str]) -> Iterator[tuple[str, list[int]]]:
        """Yield each key that several samples have, with their numbers, ascending; ``key_of`` returns one's key."""
        same = self._hashes[1:] == self._hashes[:-1]
        firsts = np.flatnonzero(same & ~np.concatenate(([False], same[:-1])))
        for first in firsts.tolist():
            last = first + 1 + int(np.argmin(np.append(same[first:], False)))
            found: dict[str, list[int]] = {}
            for number in self._numbers[first:last].tolist():
                found.setdefault(key_of(number), []).append(number)
            yield from ((key, numbers) for key, numbers in found.items() if len(numbers) > 1)


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
