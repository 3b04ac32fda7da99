"""The files of one key while a shard is written.

<stem>.bin         the tokens; the file gets this name when the store is complete
<stem>.lengths     (documents,) int32, the lengths of the documents; a temporary file from which the index is made
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.io import AtomicFile, FileSum, commit

CHUNK = 1 << 18
"""How many documents' lengths are in memory at a time while an index is written."""

MAX_LENGTH = 2**31 - 1

LengthChunks = Iterator[NDArray[np.integer[Any]]]


class TokenFile:
    """The two files of one key. Memory does not depend on the number of documents: each takes 4 bytes on disk.

    Args:
        path: the final path of the ``.bin``.
        dtype: dtype of the tokens on disk.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.data = AtomicFile(path)
        try:
            self._lengths = unnamed_file(path, "lengths")
        except BaseException:
            self.data.discard()
            raise

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far."""
        return self.data.size // self.dtype.itemsize

    @property
    def num_documents(self) -> int:
        """Number of documents added so far."""
        return self._lengths.size // 4

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents whose arguments were checked: contiguous tokens in `dtype`, and the documents' lengths."""
        self.data.write(tokens.data)
        self._lengths.write(lengths.astype("<i4").data)

    def chunks(self) -> LengthChunks:
        """Yield the lengths of all documents, in order, `CHUNK` at a time."""
        for data in self._lengths.pieces(4 * CHUNK):
            yield np.frombuffer(data, "<i4")

    def discard(self) -> None:
        """Remove both temporary files. A ``.bin`` that has its final name stays."""
        self.data.discard()
        self._lengths.discard()


def unnamed_file(path: Path, name: str) -> AtomicFile:
    """Create a file beside a ``.bin`` that only this process needs; it has no name, so a kill does not leave it behind.

    Raises:
        OutputError: the system reports an error.
    """
    file = AtomicFile(path.with_name(f"{path.name.removesuffix('.bin')}.{name}"))
    with contextlib.suppress(OSError):
        file.temporary.unlink()
    return file


def commit_shard(
    files: Collection[TokenFile], index: Path, write_index: Callable[[AtomicFile], None]
) -> tuple[FileSum, ...]:
    """Write the index, and give the ``.bin`` files and then the index their final names; return their checksums.

    Raises:
        OutputError: the system reports an error; then the index is not there.
    """
    last = AtomicFile(index)
    try:
        write_index(last)
    except BaseException:
        last.discard()
        raise
    named = [*(file.data for file in files), last]
    commit(named)
    return tuple(file.sum for file in named)


def checked_lengths(lengths: NDArray[np.int64], num_tokens: int) -> NDArray[np.int64]:
    """Return the lengths as int64.

    Raises:
        InputError: they are not one-dimensional integers in ``[0, MAX_LENGTH]`` that add up to ``num_tokens``.
    """
    if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
        raise InputError(f"lengths must be one-dimensional integers, not {lengths.dtype} of shape {lengths.shape}")
    if len(lengths):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > MAX_LENGTH:
            wrong = low if low < 0 else high
            raise InputError(f"a document has {wrong} tokens; 0 to {MAX_LENGTH} are allowed in a document")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_tokens:
        raise InputError(f"the lengths add up to {total}, but there are {num_tokens} tokens")
    return lengths.astype(np.int64, copy=False)


def checked_tokens(tokens: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return the tokens in a dtype, contiguous.

    This takes one pass over the tokens if their own dtype can hold values that do not fit.

    Raises:
        InputError: the tokens are not one-dimensional, are another kind of number, or do not fit into the dtype.
    """
    if tokens.ndim != 1:
        raise InputError(f"{where}: tokens must be one-dimensional, not of shape {tokens.shape}")
    if not len(tokens):
        return np.empty(0, dtype)
    if dtype.kind == "f":
        return _checked_floats(tokens, dtype, where)
    if tokens.dtype.kind not in ("iub" if dtype.kind == "b" else "iu"):
        raise InputError(f"{where}: tokens must be integers, not {tokens.dtype}")
    if not np.can_cast(tokens.dtype, dtype, "safe"):
        lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = int(tokens.min()), int(tokens.max())
        if low < lowest or high > highest:
            wrong = low if low < lowest else high
            raise InputError(
                f"{where}: token id {wrong} does not fit into {dtype.name}, which holds {lowest} to {highest}; choose"
                " a wider dtype (optimal_dtype(vocab_size))"
            )
    return np.ascontiguousarray(tokens, dtype)


def _checked_floats(tokens: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    if tokens.dtype.kind not in "iuf":
        raise InputError(f"{where}: values must be numbers, not {tokens.dtype}")
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(tokens, dtype)
    lost = np.flatnonzero(np.isinf(converted) & np.isfinite(tokens))
    if len(lost):
        raise InputError(f"{where}: value {tokens[lost[0]]} does not fit into {dtype.name}; choose a wider dtype")
    return converted
