"""Writes JSON lines of tokens, one record a line, in which each key has a list of numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile
from headrace.stores.token_file import checked_lengths, checked_tokens
from headrace.stores.writer import check_given, checked_keys
from headrace.stores.written import KeyInfo, WrittenShard

_SUFFIX = ".jsonl"


class JsonlWriter:
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
        self._path = Path(path)
        if self._path.suffix != _SUFFIX:
            raise ConfigError(f"{self._path}: the name of a file of JSON lines must end in {_SUFFIX}")
        self._dtypes, self._values = checked_keys(self._path, dtypes, values)
        for key, dtype in self._dtypes.items():
            try:
                check_jsonl_dtype(dtype)
            except ConfigError as error:
                raise ConfigError(f"{self._path}: key {key!r}: {error}") from None
        self._num_tokens = dict.fromkeys(self._dtypes, 0)
        self.num_documents = 0
        self._encoder = msgspec.json.Encoder()
        self._file = AtomicFile(self._path)
        self._is_open = True

    @property
    def prefix(self) -> str:
        """The path without the suffix."""
        return str(self._path.with_suffix(""))

    @property
    def num_tokens(self) -> int:
        """Number of values added so far, over all keys."""
        return sum(self._num_tokens.values())

    def add_documents(self, tokens: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Append documents.

        Args:
            tokens: for each key the (sum of its lengths,) values of the documents, one after another.
            lengths: for each key the (n,) lengths of the documents; n is the same for all keys.

        Raises:
            ConfigError: the writer is no longer open.
            InputError: the keys differ from the writer's, values do not fit into the dtype or are not finite, or the
                lengths do not add up to the number of values. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        self._check_open()
        check_given(self._path, self._dtypes, tokens=tokens, lengths=lengths)
        numbers: dict[str, list[Any]] = {}
        ends: dict[str, list[int]] = {}
        for key, dtype in self._dtypes.items():
            counts = checked_lengths(lengths[key], len(tokens[key]))
            numbers[key] = _numbers(checked_tokens(tokens[key], dtype, f"{self._path}: key {key!r}"), self._path, key)
            ends[key] = [0, *np.cumsum(counts).tolist()]
        found = {key: len(bounds) - 1 for key, bounds in ends.items()}
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{number} for {key!r}" for key, number in found.items())
            raise InputError(f"{self._path}: the keys have different numbers of documents: {shown}")
        count = next(iter(found.values()))
        records = [
            {key: numbers[key][bounds[at] : bounds[at + 1]] for key, bounds in ends.items()} for at in range(count)
        ]
        self._file.write(self._encoder.encode_lines(records))
        self.num_documents += count
        for key, values in numbers.items():
            self._num_tokens[key] += len(values)

    def finish(self) -> WrittenShard:
        """Bring the file to the disk and give it its final name.

        Raises:
            ConfigError: the writer is no longer open, or no document was added, since a file without records names no
                keys.
            OutputError: the system reports an error; nothing is left behind, and an older file of this name is kept.
        """
        self._check_open()
        if not self.num_documents:
            self.discard()
            raise ConfigError(f"{self._path}: no document was added, and a file without records is not a store")
        self._is_open = False
        file = self._file.sum
        self._file.commit()
        return WrittenShard(
            format="jsonl",
            prefix=self.prefix,
            num_documents=self.num_documents,
            keys={
                key: KeyInfo(dtype=dtype.name, tokens=self._num_tokens[key], ids=key not in self._values)
                for key, dtype in self._dtypes.items()
            },
            contiguous=True,
            files=(file,),
        )

    def discard(self) -> None:
        """Remove the temporary file. After `finish` this does nothing."""
        if self._is_open:
            self._is_open = False
            self._file.discard()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(f"{self._path}: the writer was finished or discarded; it accepts no more documents")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


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
