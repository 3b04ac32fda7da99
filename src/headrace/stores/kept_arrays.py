"""Arrays that were computed from a store, kept in a folder so that other processes and later starts map them.

    folder/<name>/<array>.npy ...     each as NumPy writes it
    folder/<name>/kept.json           appears last: dtype, shape and xxh3_128 of each array, what the maker says, and
                                      a hash of itself

The name is a hash of what decides the content, so that what is found under it is not out of date, and two processes
that make it at the same time make the same. The folder appears as a whole, by one rename.

Nothing of it is believed: all bytes are hashed before an array is handed out, and headers are parsed, not evaluated.
That takes 0.15 s a gigabyte of page cache, 0.12 s for 10^8 entries of 8 bytes. No start that reads tokens, tars or
windows alone opens such a folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import file_digest, hash_bytes, map_npy, output_errors, sync_folder

KEPT_NAME: Final = "kept.json"
_KIND: Final = "headrace.kept"
_VERSION: Final = 2
_STALE_S: Final = 24 * 3600.0
"""A folder that is still partial after this time was left by a process that ended."""

_log = logging.getLogger("headrace")


class KeptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array: its file's size and hash."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    xxh3_128: str


class KeptRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``kept.json`` holds; ``meta`` is the maker's own, as text.

    Version 1 had neither ``kind`` nor ``version``, nor a hash of the list itself: ``xxh3_128``, made with it empty.
    """

    arrays: dict[str, KeptFile]
    meta: str
    meta_xxh3_128: str
    kind: str = _KIND
    version: int = 1
    xxh3_128: str = ""


class _DamageError(Exception):
    """What is wrong with which file."""


def keep_arrays(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], meta: bytes) -> None:
    """Write arrays and their JSON ``meta`` to ``folder/name``, whole or not at all; what is there already stays.

    Raises:
        OutputError: the system refuses.
    """
    partial = folder / _partial_name(name)
    with output_errors(partial, "create"):
        partial.mkdir(parents=True)
    try:
        files: dict[str, KeptFile] = {}
        for key, array in arrays.items():
            path = partial / f"{key}.npy"
            with output_errors(path, "write"), path.open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
                files[key] = KeptFile(array.dtype.name, array.shape, path.stat().st_size, file_digest(path))
        kept = KeptRecord(files, meta.decode(), hash_bytes(meta), version=_VERSION)
        kept = msgspec.structs.replace(kept, xxh3_128=_own_hash(kept))
        with output_errors(partial, "write"):
            (partial / KEPT_NAME).write_bytes(_encoded(kept))
            sync_folder(partial / KEPT_NAME)
            try:
                partial.rename(folder / name)
            except OSError as error:
                # Another process was faster, with the same content.
                if not (folder / name).exists():
                    raise
                if not (folder / name / KEPT_NAME).exists():
                    reason = f"{folder / name}: cannot be replaced: {error.strerror}; remove {folder / name}"
                    raise OutputError(f"{reason}, it is made anew") from error
        sync_folder(folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_stale(folder, name)


def find_arrays(folder: Path, name: str) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """The arrays under a name, mapped read-only, and their ``meta``; None where there are none. All bytes are hashed.

    Raises:
        StoreError: they are damaged: so much as a bit differs from what was written; or they cannot be read.
    """
    place = folder / name
    try:
        return _checked(place, since=1)
    except _DamageError as damage:
        raise StoreError(f"{damage}; remove {place}, it is made anew") from damage.__cause__


def find_cache(folder: Path, name: str) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """As `find_arrays`, of what can be made anew: what is damaged is told of and removed, and counts as not there.

    So does what an earlier version of Headrace has kept, which is not told of.

    Raises:
        StoreError: the system refuses to read it.
    """
    place = folder / name
    try:
        found = _checked(place, since=_VERSION)
    except _DamageError as damage:
        _log.warning("%s; it is made anew", damage)
        found = None
    if found is None and place.is_dir():
        old = place.with_name(_partial_name(name))
        with contextlib.suppress(OSError):
            place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
    return found


def check_arrays(folder: Path, name: str) -> list[str]:
    """Read everything under a name and say what differs from what was written; empty if nothing does."""
    place = folder / name
    try:
        kept = _listed(place, _list_bytes(place))
    except _DamageError as damage:
        return [str(damage)]
    except OSError as error:
        raise StoreError(f"{place / KEPT_NAME}: cannot be read: {error.strerror or error}") from error
    faults = []
    for key, file in kept.arrays.items():
        try:
            _array(place / f"{key}.npy", file)
        except _DamageError as damage:
            faults.append(str(damage))
    return faults


def _checked(place: Path, *, since: int) -> tuple[dict[str, NDArray[Any]], bytes] | None:
    """The arrays in a folder and their meta, None where there are none of this version at least."""
    try:
        kept = _listed(place, _list_bytes(place))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{place / KEPT_NAME}: cannot be read: {error.strerror or error}") from error
    if kept.version < since:
        return None
    return {key: _array(place / f"{key}.npy", file) for key, file in kept.arrays.items()}, kept.meta.encode()


def _array(path: Path, file: KeptFile) -> NDArray[Any]:
    """One array, mapped, of which every byte is as it was written."""
    try:
        found_bytes = path.stat().st_size
        if found_bytes != file.size:
            raise _DamageError(f"{path}: damaged: {found_bytes:,} bytes, written were {file.size:,}")
        if file_digest(path) != file.xxh3_128:
            raise _DamageError(f"{path}: damaged: the xxh3_128 is not the one that was written")
        array = map_npy(path)
    except FileNotFoundError as error:
        raise _DamageError(f"{path}: missing") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _DamageError(f"{path}: damaged: {error}") from error
    if (array.dtype.name, array.shape) != (file.dtype, file.shape):
        raise _DamageError(
            f"{path}: damaged: {array.dtype} of shape {array.shape}, written were {file.dtype} of shape {file.shape}"
        )
    return array


def _list_bytes(place: Path) -> bytes:
    return (place / KEPT_NAME).read_bytes()


def _listed(place: Path, data: bytes) -> KeptRecord:
    """What ``kept.json`` says, if nothing of it was changed since it was written."""
    path = place / KEPT_NAME
    try:
        kept = msgspec.json.decode(data, type=KeptRecord)
        whole = _encoded(kept) if kept.version > 1 else data
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _DamageError(f"{path}: damaged: {error}") from error
    if kept.kind != _KIND or not 1 <= kept.version <= _VERSION:
        raise _DamageError(f"{path}: is {kept.kind} of version {kept.version}, known are {_KIND} 1 to {_VERSION}")
    if kept.xxh3_128 != ("" if kept.version == 1 else _own_hash(kept)) or whole != data:
        raise _DamageError(f"{path}: damaged: its own hash is not that of its content")
    if hash_bytes(kept.meta.encode()) != kept.meta_xxh3_128:
        raise _DamageError(f"{path}: damaged: meta is not what was written")
    for key in kept.arrays:
        if not key.isidentifier():
            raise _DamageError(f"{path}: damaged: {key!r} is no name of an array")
    return kept


def _own_hash(kept: KeptRecord) -> str:
    return hash_bytes(_encoded(msgspec.structs.replace(kept, xxh3_128="")))


def _encoded(kept: KeptRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"


def _partial_name(name: str) -> str:
    return f".{name}.partial-{os.getpid()}-{time.monotonic_ns()}"


def kept_name(*facts: object) -> str:
    """128 bits in hex over facts that msgspec can encode."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(facts, order="sorted"))


def _remove_stale(folder: Path, name: str) -> None:
    for other in folder.glob(f".{name}.partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other, ignore_errors=True)
