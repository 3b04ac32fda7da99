"""Writes the indexed format, byte for byte as Megatron's ``IndexedDatasetBuilder``, in memory that does not grow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import InputError, OutputError
from headrace.io import AtomicFile, FileSum, commit, output_errors
from headrace.stores.indexed_layout import Layout, dtype_code

_CHUNK = 1 << 18
"""Documents whose lengths are in memory at a time when the ``.idx`` is written."""

_MAX_LENGTH = 2**31 - 1


class WrittenShard(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: everything that a manifest says of a shard.

    Attributes:
        prefix: path without ``.bin`` and ``.idx``.
        num_documents: documents, empty ones included.
        num_tokens: tokens of all documents.
        dtype: name of the dtype of the tokens.
        contiguous: the documents lie one after another in the ``.bin``, from its first byte to its last.
        files: size and checksums of the ``.bin`` and the ``.idx``, in this order.
    """

    prefix: str
    num_documents: int
    num_tokens: int
    dtype: str
    contiguous: bool
    files: tuple[FileSum, ...]


class IndexedWriter:
    """Writes one shard: ``<prefix>.bin`` and ``<prefix>.idx``, which appear together at `finish`, or not at all.

    Each document is one sequence; one without tokens is an empty document (an entry in the document indices, no
    sequence), as Megatron's ``preprocess_data.py`` writes it. The lengths wait on disk, 4 bytes a document, so
    memory does not depend on the number of documents. Files of the same names are replaced.

    As a context manager it removes its temporary files unless `finish` was called.

    Raises:
        ConfigError: a dtype that the format does not have.
        OutputError: the system refuses a file.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, dtype: DTypeLike) -> None:
        self.prefix = os.fspath(prefix)
        self._code = dtype_code(dtype)
        self._dtype = Layout(self._code, 0, 1).dtype
        self._num_documents = 0
        self._num_sequences = 0
        self._num_tokens = 0
        self._bin = AtomicFile(self.prefix + ".bin")
        try:
            with output_errors(self._bin.path, "create a temporary file beside"):
                self._lengths = tempfile.TemporaryFile(dir=self._bin.path.parent)  # noqa: SIM115 - lives as long as we
        except BaseException:
            self._bin.discard()
            raise

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens on disk."""
        return self._dtype

    @property
    def num_documents(self) -> int:
        """Documents added so far."""
        return self._num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens added so far."""
        return self._num_tokens

    def add_documents(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents; the more at once, the faster.

        Args:
            tokens: (sum of lengths,) integers, the documents one after another.
            lengths: (n,) tokens of each document, in ``[0, 2^31)``.

        Raises:
            InputError: tokens that are not integers or do not fit into the dtype, or lengths that do not fit the
                tokens. Nothing of this call is written then.
            OutputError: the system refuses the write; the writer is of no further use.
        """
        lengths = _checked_lengths(lengths, len(tokens))
        data = self._checked_tokens(tokens)
        self._bin.write(data.data)
        with output_errors(self._bin.path, "write the temporary file beside"):
            self._lengths.write(lengths.astype("<i4").data)
        self._num_documents += len(lengths)
        self._num_sequences += int(np.count_nonzero(lengths))
        self._num_tokens += len(data)

    def finish(self) -> WrittenShard:
        """Write the ``.idx``, bring both files to the disk and give them their names.

        Raises:
            OutputError: the system refuses; nothing that opens as a store is left behind.
        """
        layout = Layout(self._code, self._num_sequences, self._num_documents + 1)
        try:
            index = AtomicFile(self.prefix + ".idx")
            try:
                self._write_index(index, layout)
            except BaseException:
                index.discard()
                raise
            files = (self._bin.sum, index.sum)
            commit([self._bin, index])
        except BaseException:
            self.discard()
            raise
        self._lengths.close()
        return WrittenShard(
            prefix=self.prefix,
            num_documents=self._num_documents,
            num_tokens=self._num_tokens,
            dtype=self._dtype.name,
            contiguous=True,
            files=files,
        )

    def discard(self) -> None:
        """Remove the temporary files. Nothing happens after `finish`."""
        self._lengths.close()
        self._bin.discard()

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _checked_tokens(self, tokens: NDArray[Any]) -> NDArray[Any]:
        if tokens.ndim != 1:
            raise InputError(f"tokens must be one-dimensional, not of shape {tokens.shape}")
        if len(tokens) and tokens.dtype.kind not in "iu":
            raise InputError(f"tokens must be integers, not {tokens.dtype}")
        if len(tokens) and not np.can_cast(tokens.dtype, self._dtype, "safe"):
            limits = np.iinfo(self._dtype)
            low, high = int(tokens.min()), int(tokens.max())
            if low < limits.min or high > limits.max:
                wrong = low if low < limits.min else high
                raise InputError(
                    f"{self.prefix}: token id {wrong} does not fit into {self._dtype.name}, which holds {limits.min} to"
                    f" {limits.max}; choose a wider dtype (optimal_dtype(vocab_size))"
                )
        return np.ascontiguousarray(tokens, self._dtype)

    def _write_index(self, index: AtomicFile, layout: Layout) -> None:
        index.write(layout.header())
        for lengths in self._chunks():
            index.write(lengths[lengths > 0].data)
        begin = 0
        for lengths in self._chunks():
            ends = np.cumsum(lengths[lengths > 0], dtype=np.int64) * self._dtype.itemsize + begin
            index.write(np.concatenate(([begin], ends[:-1])).astype("<i8")[: len(ends)].data)
            begin = int(ends[-1]) if len(ends) else begin
        index.write(bytes(8))
        sequences = 0
        for lengths in self._chunks():
            bounds = np.cumsum(lengths > 0, dtype=np.int64) + sequences
            index.write(bounds.astype("<i8").data)
            sequences = int(bounds[-1])
        if index.size != layout.end:
            raise OutputError(f"{index.path}: {index.size} bytes were written, {layout.end} were due")

    def _chunks(self) -> Iterator[NDArray[np.int32]]:
        with output_errors(self._bin.path, "read the temporary file beside"):
            self._lengths.seek(0)
            while data := self._lengths.read(4 * _CHUNK):
                yield np.frombuffer(data, "<i4")


def _checked_lengths(lengths: NDArray[np.int64], num_tokens: int) -> NDArray[np.int64]:
    if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
        raise InputError(f"lengths must be one-dimensional integers, not {lengths.dtype} of shape {lengths.shape}")
    if len(lengths):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > _MAX_LENGTH:
            wrong = low if low < 0 else high
            raise InputError(f"a document of {wrong} tokens; the format holds 0 to {_MAX_LENGTH} in a document")
    total = int(lengths.sum(dtype=np.int64))
    if total != num_tokens:
        raise InputError(f"the lengths add up to {total} tokens, {num_tokens} were given")
    return lengths.astype(np.int64, copy=False)
