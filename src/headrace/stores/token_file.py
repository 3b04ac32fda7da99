"""The files of one key while a shard is written, and how they are restored when a killed writer is continued.

    <stem>.bin         the tokens; the file gets this name when the store is complete
    <stem>.lengths     (documents,) int32, the lengths of the documents; a temporary file from which the index is made

A resumable writer keeps both under `headrace.io.partial_path`. If it was killed in `finish`, a ``.bin`` may already
have its final name, and the lengths may be gone because the index is complete. Both are undone before a writer
continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError, StateError, StoreError
from headrace.io import AtomicFile, FileHasher, hash_file, output_errors, partial_path, sync_folder
from headrace.stores.written import FileState, Format, KeyInfo, WriterState

CHUNK = 1 << 18
"""How many documents' lengths are in memory at a time while an index is written."""

MAX_LENGTH = 2**31 - 1

LengthChunks = Iterator[NDArray[np.integer[Any]]]


class TokenFile:
    """The two files of one key. Memory does not depend on the number of documents.

    Args:
        path: the final path of the ``.bin``.
        dtype: dtype of the tokens on disk.
        resumable: whether the temporary files get names by which another process finds them.
        written: hashers of the tokens and of the lengths, to continue after the bytes that they have seen.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        *,
        resumable: bool = False,
        written: tuple[FileHasher, FileHasher] | None = None,
    ) -> None:
        self.dtype = dtype
        data, lengths = (None, None) if written is None else written
        self.data = AtomicFile(path, resumable=resumable, written=data)
        try:
            self.lengths = AtomicFile(lengths_path(path), resumable=resumable, written=lengths)
        except BaseException:
            self.data.close() if resumable else self.data.discard()
            raise
        self._resumable = resumable
        if not resumable:  # only this process needs the lengths; without a name, a kill does not leave them behind
            with contextlib.suppress(OSError):
                self.lengths.temporary.unlink()

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far."""
        return self.data.size // self.dtype.itemsize

    @property
    def num_documents(self) -> int:
        """Number of documents added so far."""
        return self.lengths.size // 4

    @property
    def info(self) -> KeyInfo:
        """The key's entry in a manifest."""
        return KeyInfo(dtype=self.dtype.name, tokens=self.num_tokens)

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents whose arguments were checked: contiguous tokens in `dtype`, and the documents' lengths."""
        self.data.write(tokens.data)
        self.lengths.write(lengths.astype("<i4").data)

    def chunks(self) -> LengthChunks:
        """Yield the lengths of all documents, in order, `CHUNK` at a time."""
        for data in self.lengths.pieces(4 * CHUNK):
            yield np.frombuffer(data, "<i4")

    def flush(self) -> dict[str, FileState]:
        """Bring both files to the disk and return their sizes and hashes."""
        states = {}
        for file in (self.data, self.lengths):
            file.flush()
            states[file.path.name] = FileState(size=file.size, xxh3_128=file.sum.xxh3_128)
        return states

    def close(self) -> None:
        """Close both files without removing them."""
        self.data.close()
        self.lengths.close()

    def discard(self) -> None:
        """Remove both temporary files."""
        self.data.discard()
        self.lengths.discard()


def lengths_path(path: Path) -> Path:
    """Return the path from which the name of the temporary file of lengths is derived."""
    return path.with_name(path.name.removesuffix(".bin") + ".lengths")


def open_files(
    paths: Mapping[str, Path],
    dtypes: Mapping[str, np.dtype[Any]],
    *,
    resumable: bool,
    state: WriterState | None,
    layout: Format,
    index: Path,
    lengths_in: Callable[[str], LengthChunks],
) -> dict[str, TokenFile]:
    """Open the files of each key of a writer: new ones or, with a state, the files that it describes.

    Args:
        paths: the ``.bin`` of each key.
        dtypes: the dtype of each key's tokens.
        resumable: as in `TokenFile`.
        state: the state to continue from; None begins new files.
        layout: name of the format.
        index: the file that appears last and so shows that the store is complete.
        lengths_in: reads the lengths of a key's documents from the index, if that is complete.

    Raises:
        StateError: the state belongs to another writer.
        StoreError: a temporary file is missing, shorter than the state says, or has other bytes. Nothing is changed.
        OutputError: the system reports an error.
    """
    written = None if state is None else _find(paths, dtypes, state, layout, index, lengths_in)
    files: dict[str, TokenFile] = {}
    try:
        for key, path in paths.items():
            if resumable:  # a kill within `_restore_lengths` may have left this file
                with output_errors(path, "remove a temporary file of"):
                    partial_path(partial_path(lengths_path(path))).unlink(missing_ok=True)
            hashers = None if written is None else written[key]
            files[key] = TokenFile(path, dtypes[key], resumable=resumable, written=hashers)
        if resumable:
            sync_folder(index)
    except BaseException:
        for file in files.values():
            file.close() if resumable else file.discard()
        raise
    return files


def _find(
    paths: Mapping[str, Path],
    dtypes: Mapping[str, np.dtype[Any]],
    state: WriterState,
    layout: Format,
    index: Path,
    lengths_in: Callable[[str], LengthChunks],
) -> dict[str, tuple[FileHasher, FileHasher]]:
    """Undo what a killed `finish` has done to the files, and return hashers of their bytes up to the state."""
    wanted = {key: dtype.name for key, dtype in dtypes.items()}
    found = {key: info.dtype for key, info in state.keys.items()}
    if (state.format, found) != (layout, wanted):
        raise StateError(
            f"{index.parent}: the state belongs to a writer of the {state.format} format with {found}, but this writer"
            f" is of the {layout} format with {wanted}; continue with the same options, or start again"
        )
    # Everything is verified before anything is changed.
    data, lengths, named = {}, {}, []
    for key, path in paths.items():
        if not partial_path(path).exists() and path.exists():
            named.append(path)
        data[key] = _verified(path if path in named else partial_path(path), path.name, state)
    for key, path in paths.items():
        place = partial_path(lengths_path(path))
        if path in named and not place.exists() and index.exists():
            _restore_lengths(path, lengths_in(key))
        lengths[key] = _verified(place, lengths_path(path).name, state)
    if named:
        with output_errors(index, "take back"):
            index.unlink(missing_ok=True)
        sync_folder(index)
        for path in named:
            with output_errors(path, "take back"):
                path.rename(partial_path(path))
    return {key: (data[key], lengths[key]) for key in paths}


def _verified(place: Path, name: str, state: WriterState) -> FileHasher:
    if name not in state.files:
        raise StateError(
            f"{place}: the state names only the files {', '.join(state.files)}; it belongs to another writer"
        )
    wanted = state.files[name]
    if not place.exists():
        raise StoreError(f"{place}: missing; the state says that it has {wanted.size} bytes: start again")
    found_bytes = place.stat().st_size
    if found_bytes < wanted.size:
        raise StoreError(
            f"{place}: has {found_bytes} bytes, but the state says {wanted.size}; it was cut short: start again"
        )
    hasher = hash_file(place, size=wanted.size)
    found = hasher.sum(name).xxh3_128
    if found != wanted.xxh3_128:
        raise StoreError(
            f"{place}: the first {wanted.size} bytes have the xxh3_128 {found}, but the state says {wanted.xxh3_128};"
            " they were changed: start again"
        )
    return hasher


def _restore_lengths(path: Path, chunks: LengthChunks) -> None:
    """Write the temporary file of the lengths again, from the index that was made from it."""
    with AtomicFile(partial_path(lengths_path(path)), resumable=True) as file:
        for chunk in chunks:
            file.write(chunk.astype("<i4").data)


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
