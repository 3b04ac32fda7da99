"""Arrays beside a text that describes them, in Megatron's layout of index caches.

    folder/<stem>-<array>.npy ...     each as NumPy writes it
    folder/<stem>-description.txt     here the last to appear: Megatron takes a cache only when all its files are there

What the names hash and what the arrays mean is no matter of this module.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import AtomicFile, commit, file_sum, map_npy, output_errors
from headrace.plan.megatron.caches import DESCRIPTION


class ChunkedArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array that is made a chunk at a time: ``chunks`` hold its elements in C order, of any shapes and dtypes."""

    suffix: str
    shape: tuple[int, ...]
    dtype: DTypeLike
    chunks: Iterable[NDArray[Any]]


def write_cache(folder: Path, stem: str, text: str, arrays: Sequence[ChunkedArray], *, replace: bool = False) -> bool:
    """Write the files of a cache, whole or not at all; False if they were there already, byte for byte.

    The memory is that of a chunk. The folder is made where it is missing; what a process that was killed left of a
    cache is replaced.

    Raises:
        OutputError: another whole cache has this name and ``replace`` is False, or the system refuses.
    """
    with output_errors(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    files: list[AtomicFile] = []
    try:
        for array in arrays:
            files.append(AtomicFile(folder / f"{stem}-{array.suffix}"))
            _write_npy(files[-1], array)
        files.append(AtomicFile(folder / f"{stem}-{DESCRIPTION}"))
        files[-1].write(text.encode())
        if all(file.path.is_file() for file in files):
            differing = [file.path for file in files if file_sum(file.path).xxh3_128 != file.sum.xxh3_128]
            if not differing:
                return False
            if not replace:
                raise OutputError(
                    f"{differing[0]}: another cache of this name is there, and a run may be in the middle of it:"
                    " check it; then replace it on purpose, or write to another folder"
                )
        commit(files)
    finally:
        for file in files:
            file.discard()
    return True


def map_array(path: Path) -> NDArray[Any]:
    """The array of an ``.npy``, mapped and read-only. O(1).

    Raises:
        StoreError: it is missing, torn, or not of numbers in C order.
    """
    try:
        return map_npy(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: missing; Megatron builds the cache anew without it") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: torn: {error}; remove the cache, and it is built anew") from error


def read_text(path: Path) -> str:
    """The text of a description.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("ascii")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: cannot be read: {error}; Megatron writes ASCII; remove the cache") from error


def _write_npy(file: AtomicFile, array: ChunkedArray) -> None:
    dtype = np.dtype(array.dtype)
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(header, facts)
    file.write(header.getvalue())
    for chunk in array.chunks:
        file.write(np.ascontiguousarray(chunk, dtype=dtype).data)
    due = len(header.getvalue()) + prod(array.shape) * dtype.itemsize
    if file.size != due:
        raise OutputError(f"{file.path}: {file.size:,} bytes were made of an array of {due:,}; nothing was written")
