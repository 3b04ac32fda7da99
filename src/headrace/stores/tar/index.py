"""Finds the tars of a file, list, pattern or folder, and their indexes ``.tar.idx``; and a table of keys.

An index is read, or made by a pass over the tar. It is a file of `headrace.stores.kept_arrays`. Entry i is the offset
of the first header of sample i, including its extension headers. Entry N is the offset of the end, which is the first
block of zeros. Sample 0 is always read from byte 0.
"""

from __future__ import annotations

import glob
import itertools
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

from headrace.config import nearest_path
from headrace.errors import InputError, OutputError, StoreError
from headrace.io import (
    AnyPath,
    Reader,
    cache_folder,
    expand_braces,
    natural_key,
    path_at,
    reader,
    walk,
)
from headrace.io.finding import matching
from headrace.io.kept import is_as_kept, keep_bytes
from headrace.stores.arguments import IntArray, check_case
from headrace.stores.kept_arrays import ENTRY, ENTRY_BYTES, kept_name, offsets_bytes, read_offsets, write_offsets
from headrace.stores.store import ENDS_BYTES
from headrace.stores.tar.members import BLOCK, SUFFIXES, check_uncompressed
from headrace.stores.tar.scan import ScannedShard, TarFault, scan_shard

SUFFIX: Final = ".tar.idx"

IndexPlace = str | IntArray
"""An index, as the path of its file or as the offsets themselves."""


TarPaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def find_tars(path: TarPaths, using: str | Reader = "mmap") -> list[str]:
    """Return the paths of the shards: in the order written, or for a folder or ``*`` by `headrace.io.natural_key`.

    Raises:
        StoreError: there are no tars.
        InputError: a tar is compressed; the message says how to unpack it.
        ConfigError: braces do not match, or there are too many names.
    """
    names = [path] if isinstance(path, str | os.PathLike) else list(path)
    tars = [tar for name in names for tar in _expanded(os.fspath(name), using)]
    if not tars:
        raise StoreError(f"{path}: the list of tars is empty; name at least one")
    for tar in tars:
        check_uncompressed(tar)
    return tars


def _expanded(name: str, using: str | Reader) -> list[str]:
    path = path_at(name, using)
    if path.exists():  # a file may have braces or brackets in its name
        return [name] if path.is_file() else _below(name, path)
    tars: list[str] = []
    for pattern in expand_braces(name):
        found = matching(pattern, using) if glob.has_magic(pattern) else [pattern]
        if not found:
            raise StoreError(f"{pattern}: no tar matches this pattern")
        tars += found
    return tars


def _below(folder: str, path: AnyPath) -> list[str]:
    """Find all tars below a folder, without hidden files and folders."""
    names = list(_names_below(path))
    found = [name for name in names if name.endswith(".tar")]
    check_case(folder, names, (".tar", *SUFFIXES))
    if compressed := [name for name in names if name.endswith(SUFFIXES)]:
        check_uncompressed(f"{folder.rstrip('/')}/{min(compressed, key=natural_key)}")
    if not found:
        raise StoreError(f"{folder}: a folder without tars; expected files that end in .tar, in it or below it")
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(found, key=natural_key)]


def _names_below(path: AnyPath) -> Iterator[str]:
    for root, files in walk(path):
        yield from (str((root / name).relative_to(path)) for name in files)


def index_path(tar: str | AnyPath) -> AnyPath:
    """Return the path of the index beside a shard: ``x.tar.idx`` for ``x.tar``."""
    path = path_at(tar)
    return path.with_name(beside(path.name))


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
        using = reader(using)
        using.keep(str(path))
        entries = read_offsets(str(path), using)
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
        if not using.path_at(tar).is_file():
            raise StoreError(f"{tar}: there is no such shard") from error
        if using.path_at(path).is_file():
            raise
        raise StoreError(
            f"{path}: there is no such index; make it with headrace prepare {using.path_at(tar).parent}, or open the"
            " tar by itself with headrace.stores.TarStore"
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
_MAX_REMOTE: Final = 32
"""How many indexes of objects are looked up at once."""

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


def shard_indexes(
    tars: Sequence[str], *, where: IndexWhere, hidden: bool, skip: bool, using: str | Reader = "mmap"
) -> list[ShardIndex]:
    """Find or make the index of each tar. An existing one takes about 50 us, a new one a pass over the tar's headers.

    An index beside a tar is used if it is at least as new as the tar. A new index of an object is never kept beside it.

    Args:
        tars: paths of the tars.
        where: whether new indexes are kept beside the tar, in the cache, or only in memory.
        hidden: whether ``dir/.hid`` is a sample. If not, indexes beside a tar are ignored, since they are Energon's.
        skip: whether to use the samples before the fault of a faulty tar.
        using: reads the tars, if they are objects.

    Raises:
        StoreError: a tar is missing.
        InputError: a tar is faulty or compressed.
    """
    began = time.monotonic()
    using = reader(using)

    def find(tar: str) -> ShardIndex | None:
        return _found(tar, where, hidden, using)

    if using.reads_urls:
        with ThreadPoolExecutor(_MAX_REMOTE) as threads:
            # By them the tars are known when a run begins; with the indexes they take no round trip of their own.
            ends = threads.submit(using.keep_all, [], dict.fromkeys(tars, ENDS_BYTES))
            found = dict(zip(tars, threads.map(find, tars), strict=True))
            ends.result()
    else:
        found = {tar: find(tar) for tar in tars}
    missing = [tar for tar, index in found.items() if index is None]

    def make(tar: str) -> ShardIndex:
        return _make(tar, where, using, hidden=hidden, skip=skip)

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        new = dict(zip(missing, threads.map(make, missing), strict=True))
    if missing:
        count = sum(index.count for index in new.values())
        _log.info("%s and others: indexed %s samples in %.1f s", missing[0], f"{count:,}", time.monotonic() - began)
    return [found[tar] or new[tar] for tar in tars]


def _found(tar: str, where: IndexWhere, hidden: bool, using: Reader) -> ShardIndex | None:
    status = _status(tar, using)
    places = [beside(tar)] if hidden else []
    if where != "memory" and (cache := cache_folder("tar")) is not None:
        places.append(str(cache / _name(tar, status, hidden)))
    for at, place in enumerate(places):
        try:
            index = using.path_at(place).stat()
            # The name of an index in the cache depends on size and time of the tar, so it is always fresh.
            is_in_cache = not hidden or at > 0
            if is_in_cache and not is_as_kept(Path(place), tar):
                continue
            is_fresh = is_in_cache or index.st_mtime_ns >= status.st_mtime_ns
            if is_fresh and _ends_right(tar, status.st_size, place, index.st_size, using):
                return ShardIndex(place, index.st_size // ENTRY_BYTES - 1, status.st_size)
        except OSError:
            continue
    return None


def _ends_right(tar: str, size: int, place: str, index_size: int, using: Reader) -> bool:
    """Return whether the last entry of an index is where the tar ends: at a block of zeros, or at the file's end."""
    if not index_size or index_size % ENTRY_BYTES:
        return False
    using.keep(place)
    last = int.from_bytes(using.peek(place, index_size - ENTRY_BYTES, ENTRY_BYTES), "little", signed=True)
    if last == size > 0:
        return True
    if not 0 <= last <= size - BLOCK:
        return False
    return using.peek(tar, last, BLOCK) == bytes(BLOCK)


def _check_together(tar: str, found: ScannedShard) -> None:
    """Raise InputError if the parts of a sample do not lie next to each other, so that they would be several samples.

    A key that comes again with a part that it had before is another sample; `TarStore.check` reports it.
    """
    if len(set(found.keys)) == len(found.keys):
        return
    firsts: dict[str, int] = {}
    parts = [set(found.part_names[low:high]) for low, high in itertools.pairwise(found.part_bounds.tolist())]
    for number, key in enumerate(found.keys):
        first = firsts.setdefault(key, number)
        if parts[first].isdisjoint(parts[number]):
            raise InputError(
                f"{tar}: sample {number}: byte {found.offsets[number]}: key {key!r} comes again, with the parts"
                f" {', '.join(sorted(parts[number]))}; before, as sample {first}, it had"
                f" {', '.join(sorted(parts[first]))}. The parts of a sample have to lie next to each other: pack the"
                " files anew, sorted by name, as tar --sort=name does"
            )


def _make(tar: str, where: IndexWhere, using: Reader, *, hidden: bool, skip: bool) -> ShardIndex:
    status = _status(tar, using)
    found = scan_shard(tar, hidden=hidden, on_fault="keep", using=using if using.reads_urls else None)
    if found.faults and not skip:
        fault = found.faults[0]
        raise InputError(
            f"{tar}: sample {fault.sample}: byte {fault.byte}: {fault.message}; {len(found.keys):,} samples can be"
            " read. headrace check lists all faults; in Python, headrace.stores.TarStore(..., faulty='skip') opens the"
            " others"
        )
    _check_together(tar, found)
    count, size = len(found.keys), status.st_size
    if found.faults:
        # Never kept, so that opening the tar without faulty="skip" still raises the error.
        return ShardIndex(found.offsets, count, size, found.faults)
    index = path_at(beside(tar))
    is_new = where == "beside" and hidden and isinstance(index, Path) and not index.exists()
    places = [Path(index)] if is_new else []
    cache = None if where == "memory" else cache_folder("tar")
    if cache is not None:
        places.append(cache / _name(tar, status, hidden))
    for place in places:
        try:
            if place.parent == cache:
                keep_bytes(place, offsets_bytes(found.offsets))
            else:
                write_offsets(place, found.offsets)
        except OutputError:  # the folder is read-only or full: try the next one
            continue
        return ShardIndex(str(place), count, size)
    return ShardIndex(np.asarray(found.offsets), count, size)


def _status(tar: str, using: Reader) -> Any:
    try:
        return using.path_at(tar).stat()
    except OSError as error:
        raise StoreError(f"{tar}: cannot be opened: {error.strerror}{nearest_path(tar)}; expected a tar") from error


def _name(tar: str, status: Any, hidden: bool) -> str:
    facts: tuple[Any, ...] = (str(path_at(tar).absolute()), status.st_size, status.st_mtime_ns, hidden)
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
