"""``IndexedDataset``: a pair of ``.bin`` and ``.idx`` by sequences, under the names that Megatron's users know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import check_local
from headrace.stores.arguments import TokenArray
from headrace.stores.indexed.layout import Dialect, Documents, IndexedOptions
from headrace.stores.indexed.pairs import SUFFIXES, open_pair


class IndexedDataset:
    """Sequences of tokens, by number: ``dataset[i]``, also negative, and slices of any step.

    A document is one or several sequences, or none: ``document_indices`` says which. Items are read-only arrays in the
    dtype on disk; where the file is mapped they are views, and stay valid when the dataset is closed or collected.
    With ``multimodal=True`` an item is a pair of the array and the sequence's mode, a slice a pair of a list and an
    array of modes. Opening is O(1). It pickles as its path, and refuses to be unpickled where the files have changed.

    Args:
        path_prefix: the path without ``.bin`` and ``.idx``.
        multimodal: give the modes with the items.
        mmap: map the files; False reads them.
        dialect: who wrote it, as for `headrace.open`.
        documents: what a document is, as for `headrace.open`.

    Raises:
        StoreError: a file is missing or malformed, or has no modes and ``multimodal`` asks for them.

    Source: Megatron-Core 0.16, ``IndexedDataset``. What it leaves unchecked is an error here: a ``.bin`` that is cut
    short, `get` beyond the sequence; and slices follow the pointers as single items do.
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        multimodal: bool = False,
        mmap: bool = True,
        *,
        dialect: Dialect | None = None,
        documents: Documents = "indices",
    ) -> None:
        check_local(path_prefix)
        options = IndexedOptions(dialect=dialect, documents=documents)
        self.path_prefix = os.fspath(path_prefix)
        self.multimodal = multimodal
        self._store = open_pair(self.path_prefix, using="mmap" if mmap else "pread", options=options)
        if multimodal and self._store.modes is None and len(self):
            raise StoreError(
                f"{path_prefix}.idx: has no modes, which multimodal=True asks for; it was not written multimodal: open"
                " it without"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return self._store.dtypes["tokens"]

    @property
    def sequence_lengths(self) -> NDArray[Any]:
        """(len(self),) int32 (int64 in the oldest formats): tokens of each sequence, a view where mapped."""
        return self._store.sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """(documents + 1,) int64: 0, then the number of sequences up to the end of each document."""
        return self._store.document_indices

    @property
    def sequence_modes(self) -> NDArray[Any] | None:
        """(len(self),) int8 (int32 in files of 2023): the mode of each sequence; None where the file has none."""
        return self._store.modes

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Whether both files are there."""
        check_local(path_prefix)
        return all(Path(f"{os.fspath(path_prefix)}{suffix}").is_file() for suffix in SUFFIXES)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """(length,) tokens of one sequence from ``offset`` on, by default all left; with its mode if multimodal.

        Raises:
            IndexError: no such sequence, or the range is not within it.
        """
        tokens = self._store.sequence(idx, offset, length)
        return (tokens, self._modes()[idx]) if self.multimodal else tokens

    def close(self) -> None:
        """Let go of the files. Arrays stay valid, and a later read opens the files again."""
        self._store.close()

    def __len__(self) -> int:
        return self._store.num_sequences

    def __getitem__(self, idx: int | slice) -> Any:
        if not isinstance(idx, slice):
            return self.get(idx)
        sequences = self._store.sequences(np.arange(*idx.indices(len(self))))
        return (sequences, self._modes()[idx]) if self.multimodal else sequences

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"<IndexedDataset {self.path_prefix!r}: {len(self):,} sequences, {self._store.num_documents:,} documents>"
        )

    def _modes(self) -> TokenArray:
        modes = self._store.modes
        return np.empty(0, np.int8) if modes is None else modes
