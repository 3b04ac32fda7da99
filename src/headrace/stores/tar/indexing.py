"""The indexes of plain tars: those that lie beside them if they are fresh, else made by a pass, and kept."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from headrace.errors import InputError, OutputError, StoreError
from headrace.io import output_errors
from headrace.stores.kept_arrays import kept_name
from headrace.stores.tar.headers import BLOCK
from headrace.stores.tar.index import ENTRY_BYTES, IndexPlace, beside, write_index
from headrace.stores.tar.scan import TarFault, scan_shard

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
