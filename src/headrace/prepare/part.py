"""A part: what one task leaves on disk for the parent to append to the store, and then to delete."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OutputError


def part_path(folder: str | Path, number: int) -> Path:
    """Where the part of a task lies."""
    return Path(folder) / f"{number}.part"


class PartWriter:
    """Writes the ids of documents one after another, and at the end the int64 lengths.

    Raises:
        OutputError: the disk refuses.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._dtype = dtype
        self._lengths: list[NDArray[np.int64]] = []
        try:
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise self._refused(error) from error

    def add(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Append documents: their ids in a row, and the length of each."""
        self._lengths.append(lengths)
        self._write(ids.astype(self._dtype))

    def finish(self) -> None:
        """Append the lengths."""
        for lengths in self._lengths:
            self._write(lengths)

    def _write(self, array: NDArray[Any]) -> None:
        view = array.view(np.uint8).data
        try:
            while len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OutputError:
        return OutputError(f"{self._path}: a temporary part cannot be written: {error.strerror or error}")

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_part(
    path: Path, dtype: np.dtype[Any], *, num_tokens: int, num_documents: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The ids and lengths of a part.

    Raises:
        OutputError: it is not the size its worker said.
    """
    try:
        found = path.stat().st_size
        wanted = num_tokens * dtype.itemsize + num_documents * 8
        if found != wanted:
            raise OutputError(f"{path}: a temporary part has {found:,} bytes, its worker wrote {wanted:,}")
        with path.open("rb") as file:
            return np.fromfile(file, dtype, num_tokens), np.fromfile(file, np.int64, num_documents)
    except OSError as error:
        raise OutputError(f"{path}: a temporary part cannot be read back: {error.strerror or error}") from error
