"""Writes the indexed format, byte for byte as Megatron's ``IndexedDatasetBuilder``, in constant memory.

`IndexedWriter` writes documents of one sequence each, `SequenceFiles` documents of any number of them. Until the index
is written, its arrays are in temporary files beside the ``.bin``:

    lengths     (sequences,) int32   tokens of each sequence
    bounds      (documents,) int64   sequences up to the end of each document
    modes       (sequences,) int8    modes, if multimodal
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import OutputError
from headrace.io import AtomicFile, FileSum, check_local
from headrace.stores.indexed.layout import IdxLayout, dtype_code
from headrace.stores.writer import (
    CheckedDocuments,
    NumbersFile,
    TokenFile,
    Writer,
    checked_lengths,
    checked_tokens,
    commit_shard,
)
from headrace.stores.written import KeyInfo, OutputShard

_KEY = "tokens"


class IndexedWriter(Writer):
    """Writes one shard: ``<prefix>.bin`` and ``<prefix>.idx``.

    Each document is one sequence. A document without tokens gets an entry in the document indices but no sequence, as
    in Megatron's ``preprocess_data.py``.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        dtype: dtype of the tokens on disk.
        ids: False for values that are not ids of a vocabulary (masks, lengths, rewards). The manifest records this,
            float32 and float64 are then allowed, and `check` does not treat the values as ids.

    Raises:
        ConfigError: the format does not have the dtype.
        OutputError: the system reports an error.

    Example:
        >>> with headrace.stores.IndexedWriter("pair", dtype="uint16") as writer:
        ...     writer.add_documents(np.array([5, 6, 7]), lengths=np.array([1, 2]))
        ...     shard = writer.finish()
        >>> headrace.open("pair").document(1).tolist()
        [6, 7]
    """

    format = "indexed"

    def __init__(self, prefix: str | os.PathLike[str], *, dtype: DTypeLike, ids: bool = True) -> None:
        check_local(prefix)
        layout = IdxLayout(dtype_code(dtype, ids=ids), 0, 1)
        self.dtype = layout.dtype
        """The dtype of the tokens on disk."""
        super().__init__(os.fspath(prefix), {_KEY: self.dtype}, () if ids else (_KEY,))
        self._files = SequenceFiles(Path(self.prefix + ".bin"), layout)

    def add_documents(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents. It is faster to add many at once.

        Args:
            tokens: (sum of lengths,) integers, the documents one after another.
            lengths: (n,) number of tokens in each document, in ``[0, 2^31)``.

        Raises:
            ConfigError: the writer is no longer open.
            InputError: the tokens are not integers or do not fit into the dtype, or the lengths do not add up to the
                number of tokens. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        self._check_open("add documents")
        lengths = checked_lengths(lengths, len(tokens))
        self._add({_KEY: (checked_tokens(tokens, self.dtype, self.prefix), lengths)})

    def _write(self, documents: CheckedDocuments) -> None:
        tokens, lengths = documents[_KEY]
        is_sequence = lengths > 0  # an empty document has none
        bounds = np.cumsum(is_sequence) + self._files.num_sequences
        self._files.add(tokens, lengths[is_sequence], bounds, np.zeros(0, np.int8))

    def _commit(self) -> tuple[FileSum, ...]:
        return self._files.finish(Path(self.prefix + ".idx")).files

    def _remove(self) -> None:
        self._files.discard()


class WrittenArrays(NamedTuple):
    """What `SequenceFiles` holds: ``lengths`` and ``modes`` of the sequences, and ``bounds`` of the documents."""

    lengths: list[int]
    bounds: list[int]
    modes: list[int]


class SequenceFiles:
    """The files of one pair while it is written sequence by sequence.

    Memory does not depend on the number of sequences.

    Args:
        path: final path of the ``.bin``.
        layout: dtype code, dialect and mode bytes; its counts are ignored.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(self, path: Path, layout: IdxLayout) -> None:
        self._layout = layout
        self._tokens = TokenFile(path, layout.dtype)
        try:
            self._bounds, self._modes = NumbersFile(path, "<i8"), NumbersFile(path, "i1")
        except BaseException:
            self._tokens.discard()
            raise

    @property
    def num_sequences(self) -> int:
        """Number of sequences added so far."""
        return self._tokens.lengths.count

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], bounds: NDArray[np.int64], modes: NDArray[np.int8]
    ) -> None:
        """Append sequences whose arguments were checked.

        Args:
            tokens: (sum of lengths,) in the dtype of the layout, contiguous.
            lengths: (n,) number of tokens in each sequence.
            bounds: (m,) for each document that ends here, the number of sequences in the file up to its end.
            modes: (n,) mode of each sequence, or (0,) if the layout has no modes.
        """
        self._tokens.add(tokens, lengths)
        self._bounds.append(bounds)
        self._modes.append(modes)

    def arrays(self) -> WrittenArrays:
        """Return what was added, read back from the temporary files in O(sequences)."""
        files = self._tokens.lengths, self._bounds, self._modes
        return WrittenArrays(*([number for chunk in one.chunks() for number in chunk.tolist()] for one in files))

    def finish(self, idx_path: Path) -> OutputShard:
        """Write the index, and give both files their final names, the index last.

        Raises:
            OutputError: the system reports an error; then neither file is there.
        """
        num_sequences = self.num_sequences
        num_documents = self._bounds.count if self._layout.has_documents else num_sequences
        num_bounds = num_documents + 1 if self._layout.has_documents else 0
        layout = IdxLayout(
            self._layout.dtype_code, num_sequences, num_bounds, self._layout.dialect, self._layout.mode_bytes
        )
        try:
            files = commit_shard([self._tokens], idx_path, partial(self._write_index, layout))
        finally:
            self.discard()  # files that have their final names stay
        return OutputShard(
            format="indexed",
            prefix=str(idx_path).removesuffix(".idx"),
            documents=num_documents,
            keys={"tokens": KeyInfo(dtype=layout.dtype.name, tokens=self._tokens.num_tokens)},
            contiguous=True,
            files=files,
        )

    def _write_index(self, layout: IdxLayout, index: AtomicFile) -> None:
        """Write an ``.idx`` whose sequences lie one after another in the ``.bin``."""
        index.write(layout.header())
        for lengths in self._tokens.lengths.chunks():
            index.write(lengths.data)
        begin = 0
        for lengths in self._tokens.lengths.chunks():
            ends = np.cumsum(lengths, dtype=np.int64) * layout.dtype.itemsize + begin
            index.write(np.concatenate(([begin], ends))[:-1].astype("<i8").data)
            begin = int(ends[-1])
        if layout.has_documents:
            index.write(bytes(8))
            for bounds in self._bounds.chunks():
                index.write(bounds.data)
        for modes in self._modes.chunks():
            index.write(modes.data)
        if index.size != layout.end:
            raise OutputError(f"{index.path}: {index.size} bytes were written, but {layout.end} are expected")

    def discard(self) -> None:
        """Remove all temporary files."""
        for file in (self._tokens, self._bounds, self._modes):
            file.discard()
