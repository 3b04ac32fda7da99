"""Writes JSON lines of tokens, one record a line, in which each key has a list of numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile, FileSum
from headrace.stores.writer import CheckedDocuments, FileWriter


class JsonlWriter(FileWriter):
    """Writes one ``.jsonl``, in which each document is a record, ``{"tokens":[1,2,3],"loss_mask":[0,1,1]}``.

    JSON lines are for small data.

    The file appears whole at `finish`, or not at all: the writer is a context manager that removes its temporary file
    unless `finish` was called. Truth values are written as ``true`` and ``false``, and a float as the shortest decimal
    that its dtype reads back as the same number, so the float32 0.8 is ``0.8``. The same documents make the same bytes,
    however many are added at a time. Writing takes about 1 us a document and 50 ns a number.

    Args:
        path: path that ends in ``.jsonl``; its folder must exist. A file of this name is replaced at `finish`.
        dtypes: dtype of each key, in the order of the keys in a record. The file itself does not hold the dtypes: read
            without a manifest, its numbers are int64, float64 or bool.
        values: keys whose values are not ids of a vocabulary but masks, lengths or rewards; a manifest records this.

    Raises:
        ConfigError: the path has another suffix, there are no keys, a name cannot be a key, or the format does not have
            a dtype.
        OutputError: the system reports an error.

    Example:
        >>> with headrace.stores.JsonlWriter("two.jsonl", dtypes={"tokens": "int32"}) as writer:
        ...     writer.add_documents({"tokens": np.array([5, 6, 7])}, {"tokens": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> shard.num_documents, shard.num_tokens
        (2, 3)
    """

    format = "jsonl"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        super().__init__(path, dtypes, values, ".jsonl")
        for key, dtype in self._dtypes.items():
            try:
                check_jsonl_dtype(dtype)
            except ConfigError as error:
                raise ConfigError(f"{self._path}: key {key!r}: {error}") from None
        self._encoder = msgspec.json.Encoder()
        self._file = AtomicFile(self._path)

    def _write(self, documents: CheckedDocuments) -> None:
        numbers = {key: _numbers(values, self._path, key) for key, (values, _) in documents.items()}
        ends = {key: [0, *np.cumsum(lengths).tolist()] for key, (_, lengths) in documents.items()}
        count = len(next(iter(ends.values()))) - 1
        records = [
            {key: numbers[key][bounds[at] : bounds[at + 1]] for key, bounds in ends.items()} for at in range(count)
        ]
        self._file.write(self._encoder.encode_lines(records))

    def _commit(self) -> FileSum:
        if not self.num_documents:
            raise ConfigError(f"{self._path}: no document was added, and a file without records is not a store")
        self._file.commit()
        return self._file.sum

    def _remove(self) -> None:
        self._file.discard()


def check_jsonl_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ConfigError for uint64, whose numbers `JsonlStore` cannot read: it reads signed integers of 64 bits."""
    if dtype == np.uint64:
        raise ConfigError("uint64 cannot be written as JSON lines, whose integers must be below 2^63: choose int64")


def _numbers(values: NDArray[Any], path: Path, key: str) -> list[Any]:
    """Return the values as Python objects that are written as JSON."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(
            f"{path}: key {key!r}: the value {values[wrong[0]]} cannot be written as JSON; it is not finite"
        )
    # str returns the shortest decimal for the dtype; the float64 of a float32 would have nine more digits.
    return list(values.tolist()) if values.dtype == np.float64 else [float(str(value)) for value in values]
