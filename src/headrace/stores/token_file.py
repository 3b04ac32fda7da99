"""One key's tokens on their way to disk, with the lengths of its documents; and how a killed writer is continued.

    <stem>.bin         the tokens; gets this name when the store is complete
    <stem>.lengths     (documents,) int32 beside it, until the index is made of them; never gets a name

A resumable writer keeps both under `headrace.io.partial_path`. Where `finish` was killed, a ``.bin`` may have its name
already, and the lengths may be gone because the index is there: both are taken back before the writer goes on.
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
"""Documents whose lengths are in memory at a time when an index is written."""

MAX_LENGTH = 2**31 - 1

LengthChunks = Iterator[NDArray[np.integer[Any]]]


class TokenFile:
    """The two files of one key. Memory does not depend on the number of documents.

    Args:
        path: the final path of the ``.bin``.
        dtype: of the tokens on disk.
        resumable: give the temporary files names that another process finds.
        written: continue behind what these hashers have taken of the tokens and of the lengths.

    Raises:
        OutputError: the system refuses a file.
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
        if not resumable:  # only this process needs the lengths: without a name, no kill leaves them behind
            with contextlib.suppress(OSError):
                self.lengths.temporary.unlink()

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return self.data.size // self.dtype.itemsize

    @property
    def num_documents(self) -> int:
        """Documents so far."""
        return self.lengths.size // 4

    @property
    def info(self) -> KeyInfo:
        """What a manifest says of the key."""
        return KeyInfo(dtype=self.dtype.name, tokens=self.num_tokens)

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents that were checked: contiguous tokens in `dtype`, and how many belong to each document."""
        self.data.write(tokens.data)
        self.lengths.write(lengths.astype("<i4").data)

    def chunks(self) -> LengthChunks:
        """The lengths of all documents, in order, `CHUNK` at a time."""
        for data in self.lengths.pieces(4 * CHUNK):
            yield np.frombuffer(data, "<i4")

    def flush(self) -> dict[str, FileState]:
        """Bring both files to the disk and say what is there now."""
        states = {}
        for file in (self.data, self.lengths):
            file.flush()
            states[file.path.name] = FileState(size=file.size, xxh3_128=file.sum.xxh3_128)
        return states

    def close(self) -> None:
        """Close both files, and leave them as they are."""
        self.data.close()
        self.lengths.close()

    def discard(self) -> None:
        """Remove both temporary files."""
        self.data.discard()
        self.lengths.discard()


def lengths_path(path: Path) -> Path:
    """The name that the temporary file of the lengths is made of."""
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
    """The files of each key of a writer, new ones or, with a state, those that it speaks of.

    Args:
        paths: the ``.bin`` of each key.
        dtypes: of the tokens of each key.
        resumable: as for `TokenFile`.
        state: from `WriterState`; None begins anew.
        layout: name of the format.
        index: the file that appears last, and says that the store is complete.
        lengths_in: reads the lengths of a key's documents from the index, where that is complete.

    Raises:
        StateError: the state is another writer's.
        StoreError: a temporary file is missing, shorter than the state says, or has other bytes. Nothing is changed.
        OutputError: the system refuses.
    """
    written = None if state is None else _find(paths, dtypes, state, layout, index, lengths_in)
    files: dict[str, TokenFile] = {}
    try:
        for key, path in paths.items():
            if resumable:  # a kill within `_restore_lengths` may have left it
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
    """Put the files back as they were before `finish`, where it had begun; what they hold up to the state."""
    has = {key: dtype.name for key, dtype in dtypes.items()}
    says = {key: info.dtype for key, info in state.keys.items()}
    if (state.format, says) != (layout, has):
        raise StateError(
            f"{index.parent}: the state is that of a writer of the {state.format} format with {says}, and not of the"
            f" {layout} format with {has}; continue with the same options, or begin anew"
        )
    # All of it is looked at before any of it is changed.
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
        raise StateError(f"{place}: the state speaks of {', '.join(state.files)} only; it is another writer's")
    wanted = state.files[name]
    if not place.exists():
        raise StoreError(f"{place}: missing, the state says that it has {wanted.size} bytes; begin anew")
    found_bytes = place.stat().st_size
    if found_bytes < wanted.size:
        raise StoreError(f"{place}: has {found_bytes} bytes, the state says {wanted.size}; it was cut: begin anew")
    hasher = hash_file(place, size=wanted.size)
    found = hasher.sum(name).xxh3_128
    if found != wanted.xxh3_128:
        raise StoreError(
            f"{place}: the first {wanted.size} bytes have the xxh3_128 {found}, the state says {wanted.xxh3_128}; they"
            " were changed: begin anew"
        )
    return hasher


def _restore_lengths(path: Path, chunks: LengthChunks) -> None:
    """Write the temporary file of the lengths again, from the index that was made of it."""
    with AtomicFile(partial_path(lengths_path(path)), resumable=True) as file:
        for chunk in chunks:
            file.write(chunk.astype("<i4").data)


def checked_lengths(lengths: NDArray[np.int64], num_tokens: int) -> NDArray[np.int64]:
    """The lengths as int64.

    Raises:
        InputError: not one-dimensional integers in ``[0, MAX_LENGTH]`` that add up to ``num_tokens``.
    """
    if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
        raise InputError(f"lengths must be one-dimensional integers, not {lengths.dtype} of shape {lengths.shape}")
    if len(lengths):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > MAX_LENGTH:
            wrong = low if low < 0 else high
            raise InputError(f"a document of {wrong} tokens; the format holds 0 to {MAX_LENGTH} in a document")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_tokens:
        raise InputError(f"the lengths add up to {total} tokens, {num_tokens} were given")
    return lengths.astype(np.int64, copy=False)


def checked_tokens(tokens: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """The tokens in this dtype, contiguous; one pass where they might not fit.

    Raises:
        InputError: not one-dimensional, of another kind of number, or values that do not fit.
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
        made = np.ascontiguousarray(tokens, dtype)
    lost = np.flatnonzero(np.isinf(made) & np.isfinite(tokens))
    if len(lost):
        raise InputError(f"{where}: value {tokens[lost[0]]} does not fit into {dtype.name}; choose a wider dtype")
    return made
