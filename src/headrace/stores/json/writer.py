"""Writes JSON lines of tokens: a record a line, each key a list of numbers; the file appears whole or not at all."""

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
    """Writes one ``.jsonl``: ``{"tokens":[1,2,3],"loss_mask":[0,1,1]}``, one record a document. For small data.

    A context manager that removes its temporary file unless `finish` was called. Truth values are ``true`` and
    ``false``. A float is the shortest decimal that its dtype reads back as the same number, so 0.8 of a float32 is
    ``0.8``. The same documents make the same bytes, however many are added at a time. About 1 us a document and 50 ns
    a number.

    Args:
        path: ends in ``.jsonl``; its folder must be there. A file that is there is replaced at `finish`.
        dtypes: dtype of each key, in the order in which a record has them. A file does not say it: whoever reads the
            file alone has int64, float64 and bool, and only a manifest knows more.
        values: the keys that hold no ids of a vocabulary but masks, lengths, rewards; for the manifest.

    Raises:
        ConfigError: another suffix, no keys, a name that cannot be a key, or a dtype that the format does not have.
        OutputError: the system refuses the file.
    """

    format = "jsonl"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        self._path = Path(path)
        if self._path.suffix != _SUFFIX:
            raise ConfigError(f"{self._path}: JSON lines of tokens end in {_SUFFIX}")
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
        """Path without the suffix."""
        return str(self._path.with_suffix(""))

    @property
    def num_tokens(self) -> int:
        """Values added so far, of all keys."""
        return sum(self._num_tokens.values())

    def add_documents(self, tokens: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Append documents.

        Args:
            tokens: for each key (sum of its lengths,) values, the documents one after another.
            lengths: for each key (n,) values of each document; n is the same for all.

        Raises:
            ConfigError: the writer is no longer open.
            InputError: other keys than the writer's, values that do not fit into the dtype or that are not finite, or
                lengths that do not fit the values. Nothing of this call is written then.
            OutputError: the system refuses the write; the writer is of no further use.
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
            raise InputError(f"{self._path}: different numbers of documents: {shown}")
        count = next(iter(found.values()))
        records = [
            {key: numbers[key][bounds[at] : bounds[at + 1]] for key, bounds in ends.items()} for at in range(count)
        ]
        self._file.write(self._encoder.encode_lines(records))
        self.num_documents += count
        for key, values in numbers.items():
            self._num_tokens[key] += len(values)

    def finish(self) -> WrittenShard:
        """Bring the file to the disk and give it its name.

        Raises:
            ConfigError: the writer is no longer open, or has no document: a file without a record names no keys.
            OutputError: the system refuses; nothing is left behind, and a file that was there is there still.
        """
        self._check_open()
        if not self.num_documents:
            self.discard()
            raise ConfigError(f"{self._path}: no document was added, and a file without a record is no store")
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
        """Remove the temporary file. Nothing happens after `finish`."""
        if self._is_open:
            self._is_open = False
            self._file.discard()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(f"{self._path}: the writer was finished or discarded; it takes no more")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def check_jsonl_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ConfigError for a dtype whose numbers `JsonlStore` could not read: uint64 goes beyond 64 signed bits."""
    if dtype == np.uint64:
        raise ConfigError("uint64 cannot be JSON lines, whose integers are below 2^63: choose int64")


def _numbers(values: NDArray[Any], path: Path, key: str) -> list[Any]:
    """The values as Python has them, to be written as JSON."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(f"{path}: key {key!r}: value {values[wrong[0]]}, which JSON has no number for")
    # str gives the shortest decimal for the dtype; the float64 of a float32 has nine digits more than it says.
    return list(values.tolist()) if values.dtype == np.float64 else [float(str(value)) for value in values]
