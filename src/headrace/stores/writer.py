"""The bases of writers: `Writer`, and `KeysWriter` for documents of several keys; and checks of their input.

`TokenFile` is what is on disk of one key while a shard with a ``.bin`` for each key is written: the tokens, whose file
gets its name when the store is complete, and the lengths of the documents, from which the index is made.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile, FileSum, check_local, commit, output_errors, write_all
from headrace.stores.keyed.layout import check_key, key_dtype
from headrace.stores.written import Format, KeyInfo, OutputShard

CheckedDocuments = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
"""For each key the values of documents, one after another and in the dtype on disk, and their lengths."""


class Writer(ABC):
    """Writes one shard, whose files appear together at `finish`, or not at all. Files of the same names are replaced.

    The writer is a context manager that removes its temporary files unless `finish` was called. A shard whose writer
    was killed is written again from its beginning; the same documents make the same bytes.

    Attributes:
        prefix: the path by which a manifest names the shard.
    """

    format: ClassVar[Format]

    def __init__(self, prefix: str, dtypes: Mapping[str, np.dtype[Any]], values: Collection[str]) -> None:
        self.prefix = prefix
        self._dtypes = dict(dtypes)
        self._values = frozenset(values)
        self._num_documents = dict.fromkeys(self._dtypes, 0)
        self._num_tokens = dict.fromkeys(self._dtypes, 0)
        self._is_open = True

    @property
    def num_documents(self) -> int:
        """Number of documents of the first key added so far."""
        return next(iter(self._num_documents.values()))

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far, over all keys."""
        return sum(self._num_tokens.values())

    def finish(self) -> OutputShard:
        """Bring all files to the disk and give them their final names, the index last.

        Raises:
            ConfigError: the writer is no longer open, or the format needs a document and none was added.
            OutputError: the system reports an error; nothing that opens as a new store is left behind.
        """
        self._check_open("finish")
        try:
            files = self._commit()
        finally:
            self.discard()  # files that have their final names stay
        return OutputShard(
            format=self.format,
            prefix=self.prefix,
            documents=self.num_documents,
            keys={
                key: KeyInfo(dtype=dtype.name, tokens=self._num_tokens[key], ids=key not in self._values)
                for key, dtype in self._dtypes.items()
            },
            contiguous=True,
            files=files,
        )

    def discard(self) -> None:
        """Remove the temporary files. After `finish` this does nothing."""
        if self._is_open:
            self._is_open = False
            self._remove()

    @abstractmethod
    def _write(self, documents: CheckedDocuments) -> None:
        """Write documents to the temporary files."""

    @abstractmethod
    def _commit(self) -> tuple[FileSum, ...]:
        """Complete the files and give them their final names; return their checksums."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the temporary files, as far as there are any."""

    def _add(self, documents: CheckedDocuments) -> None:
        self._write(documents)
        for key, (values, lengths) in documents.items():
            self._num_documents[key] += len(lengths)
            self._num_tokens[key] += len(values)

    def _check_open(self, action: str) -> None:
        if not self._is_open:
            raise ConfigError(f"{self.prefix}: cannot {action}: the writer was finished or discarded")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class KeysWriter(Writer):
    """Writes one shard of documents of several keys.

    Args:
        path: the file, or the folder, of the shard.
        dtypes: dtype of each key.
        values: keys whose values are not ids of a vocabulary.
        offsets: the keys whose documents have lengths; all by default. All values of another key are one document.
        suffixes: the endings that the name of the file may have; none for a folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtypes: Mapping[str, DTypeLike],
        values: Collection[str],
        *,
        offsets: Collection[str] | None = None,
        suffixes: tuple[str, ...] = (),
    ) -> None:
        check_local(path)
        self._path = Path(path)
        if suffixes and self._path.suffix not in suffixes:
            raise ConfigError(
                f"{self._path}: the name of a file of the {self.format} format must end in {' or '.join(suffixes)}"
            )
        prefix = self._path.with_suffix("") if suffixes else self._path
        super().__init__(str(prefix), checked_keys(self._path, dtypes, offsets=offsets or (), values=values), values)
        self._with_offsets = tuple(key for key in dtypes if offsets is None or key in offsets)

    def add_documents(self, tokens: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Append documents. It is faster to add many at once.

        Args:
            tokens: for each key the (sum of its lengths,) values of the documents, one after another.
            lengths: for each key with offsets the (n,) lengths of the documents, in ``[0, 2^31)``; n is the same for
                all.

        Raises:
            ConfigError: the writer is no longer open, or the shard would have more documents than the format allows.
            InputError: the keys differ from the writer's, the format or the dtype cannot hold a value, or the lengths
                do not add up to the number of values. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        self._check_open("add documents")
        self._add(checked_documents(self._path, self._dtypes, tokens, lengths, self._with_offsets))


class ShardFilling:
    """How full the open shard of a series is.

    A shard ends before the document that would bring it above a number of tokens. A document that is longer than that
    gets a shard of its own.
    """

    def __init__(self) -> None:
        self._tokens = self._documents = 0

    def cut(
        self,
        lengths: NDArray[np.int64],
        max_tokens: int | None,
        max_documents: int | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield the ranges of the next documents that go into the same shard, and whether the shard ends after each.

        Args:
            lengths: (n,) int64, tokens of each document, summed over all keys.
            max_tokens: the most tokens in a shard; None sets no limit.
            max_documents: the most documents in a shard; None sets no limit.
            counts: (n,) int64, how many documents each one stands for; None if each stands for itself.
        """
        ends, numbers = np.cumsum(lengths), np.arange(1, len(lengths) + 1) if counts is None else np.cumsum(counts)
        first = begin = before = 0
        while first < len(lengths):
            last = len(lengths)
            if max_tokens is not None:
                last = int(np.searchsorted(ends, begin + max_tokens - self._tokens, side="right"))
            if max_documents is not None:
                most = before + max_documents - self._documents
                last = min(last, int(np.searchsorted(numbers, most, side="right")))
            last = max(last, first if self._documents else first + 1)
            if last > first:
                self._tokens += int(ends[last - 1]) - begin
                self._documents += int(numbers[last - 1]) - before
                begin, before = int(ends[last - 1]), int(numbers[last - 1])
            is_full = last < len(lengths)
            if is_full:
                self._tokens = self._documents = 0
            yield first, last, is_full
            first = last


def checked_keys(path: Path, dtypes: Mapping[str, DTypeLike], **named: Collection[str]) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each key.

    Raises:
        ConfigError: there are no keys, a name cannot be a key, a dtype is not known, or one of the named arguments
            names an unknown key.
    """
    if not dtypes:
        raise ConfigError(f"{path}: dtypes names no key; a store needs at least one")
    for key in dtypes:
        check_key(key)
    for name, keys in named.items():
        if unknown := set(keys) - dtypes.keys():
            raise ConfigError(
                f"{path}: {name} names {', '.join(map(repr, sorted(unknown)))}; the keys are"
                f" {', '.join(map(repr, dtypes))}"
            )
    return {key: key_dtype(dtype) for key, dtype in dtypes.items()}


def checked_documents(
    path: Path,
    dtypes: Mapping[str, np.dtype[Any]],
    tokens: Mapping[str, NDArray[Any]],
    lengths: Mapping[str, NDArray[np.int64]],
    with_lengths: Collection[str],
) -> CheckedDocuments:
    """Return the values of each key in its dtype, and the lengths of its documents.

    Args:
        path: path of the writer, for messages.
        dtypes: the dtype of each key.
        tokens: the values of each key.
        lengths: the lengths for each key that has them; all values of another key are one document.
        with_lengths: the keys that must have lengths.

    Raises:
        InputError: a key is missing or unknown, values do not fit into the dtype, the lengths do not add up, or the
            keys have different numbers of documents.
    """
    for name, found, wanted in (("tokens", tokens.keys(), dtypes), ("lengths", lengths.keys(), with_lengths)):
        if found != set(wanted):
            raise InputError(
                f"{path}: {name} has the keys {', '.join(map(repr, found))}, but the writer needs"
                f" {', '.join(map(repr, wanted))}"
            )
    checked = {}
    for key, dtype in dtypes.items():
        count = len(tokens[key])
        counts = checked_lengths(lengths.get(key, np.array([count], np.int64)), count)
        checked[key] = checked_tokens(tokens[key], dtype, f"{path}: key {key!r}"), counts
    numbers = {key: len(checked[key][1]) for key in with_lengths}
    if len(set(numbers.values())) > 1:
        shown = ", ".join(f"{number} for {key!r}" for key, number in numbers.items())
        raise InputError(f"{path}: the keys have different numbers of documents: {shown}")
    return checked


CHUNK = 1 << 17
"""How many of the integers of an index are in memory at a time while it is written."""

MAX_LENGTH = 2**31 - 1


class NumbersFile:
    """Integers that wait on disk until they go into an index, in a file without a name: a kill leaves nothing behind.

    Args:
        path: the file beside which they wait.
        dtype: dtype of the integers on disk.

    Attributes:
        count: number of integers added so far.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.count = 0
        self._path = path
        self._dtype = np.dtype(dtype)
        with output_errors(path, "create a temporary file beside"):
            self._file = TemporaryFile(dir=path.parent, buffering=0)  # noqa: SIM115 - it lives on

    def append(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Append (n,) integers, which the dtype can hold."""
        with output_errors(self._path, "write a temporary file beside"):
            self._file.seek(0, os.SEEK_END)
            write_all(self._file.write, numbers.astype(self._dtype).tobytes())
        self.count += len(numbers)

    def chunks(self) -> Iterator[NDArray[np.integer[Any]]]:
        """Yield all integers, in order, `CHUNK` at a time."""
        self._file.seek(0)
        while len(found := np.fromfile(self._file, self._dtype, CHUNK)):
            yield found

    def discard(self) -> None:
        """Remove the file."""
        self._file.close()


class TokenFile:
    """The files of one key. Memory does not depend on the number of documents: each takes 4 bytes on disk.

    Args:
        path: the final path of the ``.bin``.
        dtype: dtype of the tokens on disk.

    Attributes:
        data: the tokens.
        lengths: int32, the lengths of the documents.

    Raises:
        OutputError: the system reports an error.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.data = AtomicFile(path)
        try:
            self.lengths = NumbersFile(path, "<i4")
        except BaseException:
            self.data.discard()
            raise

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far."""
        return self.data.size // self.dtype.itemsize

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents whose arguments were checked: contiguous tokens in `dtype`, and the documents' lengths."""
        self.data.write(tokens.data)
        self.lengths.append(lengths)

    def discard(self) -> None:
        """Remove the temporary files. A ``.bin`` that has its final name stays."""
        self.data.discard()
        self.lengths.discard()


def commit_shard(
    files: Collection[TokenFile], index: Path, write_index: Callable[[AtomicFile], None]
) -> tuple[FileSum, ...]:
    """Write the index, and give the ``.bin`` files and then the index their final names; return their checksums.

    Raises:
        OutputError: the system reports an error; then the index is not there.
    """
    last = AtomicFile(index)
    try:
        write_index(last)
    except BaseException:
        last.discard()
        raise
    named = [*(file.data for file in files), last]
    commit(named)
    return tuple(file.sum for file in named)


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
