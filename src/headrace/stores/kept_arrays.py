"""Arrays that were computed from a store, kept in a folder so that other processes and later starts map them.

    folder/<name>/<array>.npy ...     each as NumPy writes it
    folder/<name>/kept.json           appears last: dtype, shape and xxh3_128 of each array, and what the maker says

The name is a hash of what decides the content, so that what is found under it is not out of date, and two processes
that make it at the same time make the same. The folder appears as a whole, by one rename.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import hash_file, output_errors, sync_folder

KEPT_NAME = "kept.json"
_STALE_S = 24 * 3600.0
"""A folder that is still partial after this time was left by a process that ended."""


class KeptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array: its file's size and hash."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    xxh3_128: str


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``kept.json`` holds; ``meta`` is the maker's own, as text, and vouched for like the arrays."""

    arrays: dict[str, KeptFile]
    meta: str
    meta_xxh3_128: str


def keep_arrays(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], meta: bytes) -> None:
    """Write arrays and their JSON ``meta`` to ``folder/name``, whole or not at all; what is there already stays.

    Raises:
        OutputError: the system refuses.
    """
    partial = folder / f".{name}.partial-{os.getpid()}-{time.monotonic_ns()}"
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
            size = path.stat().st_size
            hashed = hash_file(path, size=size).sum(path.name)
            files[key] = KeptFile(array.dtype.name, array.shape, size, hashed.xxh3_128)
        kept = Kept(files, meta.decode(), xxhash.xxh3_128_hexdigest(meta))
        with output_errors(partial, "write"):
            (partial / KEPT_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
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
    """The arrays under a name, mapped read-only, and their ``meta``; None where there are none. O(1).

    Raises:
        StoreError: they are damaged: an array is missing, or has another size, dtype or shape than was written.
    """
    place = folder / name
    try:
        data = (place / KEPT_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{place / KEPT_NAME}: cannot be read: {error.strerror}") from error
    kept = _decoded(place, data)
    arrays: dict[str, NDArray[Any]] = {}
    for key, file in kept.arrays.items():
        path = place / f"{key}.npy"
        try:
            found_bytes = path.stat().st_size
            dtype = np.dtype(file.dtype)
            array = np.load(path, mmap_mode="r", allow_pickle=False) if file.shape != (0,) else np.empty(0, dtype)
        except (OSError, ValueError, EOFError, TypeError) as error:
            raise StoreError(f"{path}: cannot be read: {error}; remove {place}, it is made anew") from error
        if (array.dtype, array.shape, found_bytes) != (dtype, file.shape, file.size):
            raise StoreError(
                f"{path}: {array.dtype} of shape {array.shape} in {found_bytes} bytes, written were {file.dtype} "
                f"of shape {file.shape} in {file.size} bytes; remove {place}, it is made anew"
            )
        # As a plain array over the mapping: a memmap object costs a microsecond at every indexing.
        arrays[key] = np.asarray(array)
    return arrays, kept.meta.encode()


def check_arrays(folder: Path, name: str) -> list[str]:
    """Read everything under a name and say what differs from what was written; empty if nothing does."""
    place = folder / name
    try:
        kept = _decoded(place, (place / KEPT_NAME).read_bytes())
    except OSError as error:
        raise StoreError(f"{place / KEPT_NAME}: cannot be read: {error.strerror}") from error
    faults = []
    for key, file in kept.arrays.items():
        path = place / f"{key}.npy"
        if not path.exists():
            faults.append(f"{path}: missing")
        elif (size := path.stat().st_size) != file.size:
            faults.append(f"{path}: {size} bytes, written were {file.size}")
        elif hash_file(path, size=size).sum(path.name).xxh3_128 != file.xxh3_128:
            faults.append(f"{path}: the xxh3_128 is not the one that was written")
    return faults


def _decoded(place: Path, data: bytes) -> Kept:
    try:
        kept = msgspec.json.decode(data, type=Kept)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{place / KEPT_NAME}: damaged: {error}; remove {place}, it is made anew") from error
    if xxhash.xxh3_128_hexdigest(kept.meta.encode()) != kept.meta_xxh3_128:
        raise StoreError(f"{place / KEPT_NAME}: damaged: meta is not what was written; remove {place}, it is made anew")
    return kept


def kept_name(*facts: object) -> str:
    """128 bits in hex over facts that msgspec can encode."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(facts, order="sorted"))


def _remove_stale(folder: Path, name: str) -> None:
    for other in folder.glob(f".{name}.partial-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_S:
                shutil.rmtree(other, ignore_errors=True)
