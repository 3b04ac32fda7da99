"""Writes the indexed format, byte for byte as Megatron's ``IndexedDatasetBuilder``, in memory that does not grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import OutputError, StoreError
from headrace.io import AtomicFile, check_local, reader
from headrace.stores.indexed_layout import Layout, dtype_code
from headrace.stores.indexed_opening import open_index
from headrace.stores.token_file import CHUNK, LengthChunks, checked_lengths, checked_tokens
from headrace.stores.writer import Writer
from headrace.stores.written import WriterState

_KEY = "tokens"


class IndexedWriter(Writer):
    """Writes one shard: ``<prefix>.bin`` and ``<prefix>.idx``.

    Each document is one sequence; one without tokens is an empty document (an entry in the document indices, no
    sequence), as Megatron's ``preprocess_data.py`` writes it.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        dtype: of the tokens on disk.
        ids: False for values that are no ids of a vocabulary (masks, lengths, rewards): the manifest says so, their
            dtype may be float32 or float64, and `check` takes them for what they are.
        state: continue from here; the writer is then resumable.
        resumable: leave the temporary files, so that a killed writer can be continued; see `Writer`.

    Raises:
        ConfigError: a dtype that the format does not have.
        StateError: the state is another writer's.
        StoreError: the temporary files are not what the state says.
        OutputError: the system refuses a file.
    """

    format = "indexed"

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        dtype: DTypeLike,
        ids: bool = True,
        state: WriterState | None = None,
        resumable: bool = False,
    ) -> None:
        check_local(prefix)
        self._prefix = os.fspath(prefix)
        self._code = dtype_code(dtype, ids=ids)
        self._dtype = Layout(self._code, 0, 1).dtype
        super().__init__(
            {_KEY: Path(self._prefix + ".bin")},
            {_KEY: self._dtype},
            Path(self._prefix + ".idx"),
            state=state,
            resumable=resumable,
            values=() if ids else (_KEY,),
        )
        self._file = self._files[_KEY]
        # Counted again where it goes on: the lengths are there, and one more number in the state could be wrong.
        self._num_sequences = sum(int(np.count_nonzero(lengths)) for lengths in self._file.chunks())

    @property
    def prefix(self) -> str:
        """Path without ``.bin`` and ``.idx``."""
        return self._prefix

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens on disk."""
        return self._dtype

    def add_documents(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents; the more at once, the faster.

        Args:
            tokens: (sum of lengths,) integers, the documents one after another.
            lengths: (n,) tokens of each document, in ``[0, 2^31)``.

        Raises:
            ConfigError: the writer is no longer open.
            InputError: tokens that are not integers or do not fit into the dtype, or lengths that do not fit the
                tokens. Nothing of this call is written then.
            OutputError: the system refuses the write; the writer is of no further use.
        """
        self._check_open("add documents")
        lengths = checked_lengths(lengths, len(tokens))
        self._file.add(checked_tokens(tokens, self._dtype, self._prefix), lengths)
        self._num_sequences += int(np.count_nonzero(lengths))

    def _write_index(self, index: AtomicFile) -> None:
        layout = Layout(self._code, self._num_sequences, self.num_documents + 1)
        index.write(layout.header())
        for lengths in self._file.chunks():
            index.write(lengths[lengths > 0].data)
        begin = 0
        for lengths in self._file.chunks():
            ends = np.cumsum(lengths[lengths > 0], dtype=np.int64) * self._dtype.itemsize + begin
            index.write(np.concatenate(([begin], ends[:-1])).astype("<i8")[: len(ends)].data)
            begin = int(ends[-1]) if len(ends) else begin
        index.write(bytes(8))
        sequences = 0
        for lengths in self._file.chunks():
            bounds = np.cumsum(lengths > 0, dtype=np.int64) + sequences
            index.write(bounds.astype("<i8").data)
            sequences = int(bounds[-1])
        if index.size != layout.end:
            raise OutputError(f"{index.path}: {index.size} bytes were written, {layout.end} were due")

    def _lengths_in(self, key: str) -> LengthChunks:
        with_files = reader("pread")
        try:
            index = open_index(with_files, str(self._index), with_files.size(self._prefix + ".bin"))
            for begin in range(0, index.num_documents, CHUNK):
                bounds = index.bounds.read(begin, min(begin + CHUNK, index.num_documents) + 1)
                sequences = np.diff(bounds)
                if ((sequences < 0) | (sequences > 1)).any():
                    raise StoreError(
                        f"{index.path}: not of this writer, which makes one sequence a document: begin anew"
                    )
                lengths = np.zeros(len(sequences), np.int64)
                lengths[sequences == 1] = index.sizes.read(int(bounds[0]), int(bounds[-1]))
                yield lengths
        finally:
            with_files.close()
