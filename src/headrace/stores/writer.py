"""The bases of writers: `Writer`, which can be continued, and `FileWriter`, which cannot; and checks of their input."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile, FileSum, commit
from headrace.stores.keyed.layout import check_key, key_dtype
from headrace.stores.token_file import LengthChunks, checked_lengths, checked_tokens, open_files
from headrace.stores.written import Format, KeyInfo, WriterState, WrittenShard

CheckedDocuments = dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
"""For each key the values of documents, one after another and in the dtype on disk, and their lengths."""


class Writer(ABC):
    """Writes one shard, whose files appear together at `finish`, or not at all. Files of the same names are replaced.

    An ordinary writer is a context manager that removes its temporary files unless `finish` was called. A *resumable*
    writer leaves them. Whatever ends it, even SIGKILL and even within `finish`, a new writer with the same arguments
    and the last `WriterState` continues from there and writes the same bytes in the end. It verifies the bytes up to
    the state by their hash (one pass) and cuts off the bytes after them. The temporary files have fixed names
    (``.<name>.partial``), so only one resumable writer may write a shard at a time.

    The lengths of the documents are kept on disk, 4 bytes a document and key, so memory does not depend on their
    number.
    """

    format: ClassVar[Format]

    def __init__(
        self,
        paths: Mapping[str, Path],
        dtypes: Mapping[str, np.dtype[Any]],
        index: Path,
        *,
        state: WriterState | None,
        resumable: bool,
        values: Collection[str] = (),
    ) -> None:
        self._dtypes = dict(dtypes)
        self._values = frozenset(values)
        self._index = index
        self._resumable = resumable or state is not None
        self._is_open = True
        self._files = open_files(
            paths,
            dtypes,
            resumable=self._resumable,
            state=state,
            layout=self.format,
            index=index,
            lengths_in=self._lengths_in,
        )

    @property
    def num_documents(self) -> int:
        """Number of documents added so far."""
        return next(iter(self._files.values())).num_documents

    @property
    def num_tokens(self) -> int:
        """Number of tokens added so far, over all keys."""
        return sum(file.num_tokens for file in self._files.values())

    def checkpoint(self) -> WriterState:
        """Bring everything that was added to the disk, and return the state to continue from.

        Raises:
            ConfigError: the writer is not resumable, or no longer open.
            OutputError: the system reports an error.
        """
        self._check_resumable("checkpoint")
        states = {}
        for file in self._files.values():
            states.update(file.flush())
        return WriterState(
            format=self.format,
            num_documents=self.num_documents,
            keys=self._infos(),
            files=states,
        )

    def suspend(self) -> None:
        """Close all files and keep the temporary ones, for a writer that continues from the last state.

        Raises:
            ConfigError: the writer is not resumable.
        """
        if self._is_open:
            self._check_resumable("suspend")
            self._close()

    def finish(self) -> WrittenShard:
        """Write the index, bring all files to the disk and give them their final names.

        Raises:
            ConfigError: the writer is no longer open.
            OutputError: the system reports an error; nothing that opens as a store is left behind.
        """
        self._check_open("finish")
        try:
            index = AtomicFile(self._index, resumable=self._resumable)
            try:
                self._write_index(index)
            except BaseException:
                index.discard()
                raise
            data = [file.data for file in self._files.values()]
            files = tuple(file.sum for file in [*data, index])
            commit([*data, index], resumable=self._resumable)
        except BaseException:
            self._close() if self._resumable else self.discard()
            raise
        self.discard()  # removes the lengths; all other files have their final names
        return WrittenShard(
            format=self.format,
            prefix=self.prefix,
            num_documents=self.num_documents,
            keys=self._infos(),
            contiguous=True,
            files=files,
        )

    def discard(self) -> None:
        """Remove the temporary files. After `finish` or `suspend` this does nothing."""
        if self._is_open:
            self._is_open = False
            for file in self._files.values():
                file.discard()

    @property
    @abstractmethod
    def prefix(self) -> str:
        """The path by which a manifest names the shard."""

    @abstractmethod
    def _write_index(self, index: AtomicFile) -> None:
        """Write the file that appears last."""

    @abstractmethod
    def _lengths_in(self, key: str) -> LengthChunks:
        """Read the lengths of a key's documents from the complete index."""

    def _infos(self) -> dict[str, KeyInfo]:
        return {
            key: msgspec.structs.replace(file.info, ids=key not in self._values) for key, file in self._files.items()
        }

    def _check_open(self, action: str) -> None:
        if not self._is_open:
            raise ConfigError(f"{self.prefix}: cannot {action}: the writer was finished, suspended or discarded")

    def _check_resumable(self, action: str) -> None:
        self._check_open(action)
        if not self._resumable:
            raise ConfigError(
                f"{self.prefix}: cannot {action}: this writer is not resumable; make it with resumable=True"
            )

    def _close(self) -> None:
        self._is_open = False
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resumable:
            self.suspend()
        else:
            self.discard()


class FileWriter(ABC):
    """Writes one file of documents of several keys, which appears whole at `finish`, or not at all.

    The writer is a context manager that removes its temporary file unless `finish` was called. It cannot be continued.
    """

    format: ClassVar[Format]

    def __init__(
        self, path: str | os.PathLike[str], dtypes: Mapping[str, DTypeLike], values: Collection[str], *suffixes: str
    ) -> None:
        self._path = Path(path)
        if self._path.suffix not in suffixes:
            raise ConfigError(
                f"{self._path}: the name of a file of the {self.format} format must end in {' or '.join(suffixes)}"
            )
        self._dtypes = checked_keys(self._path, dtypes, values=values)
        self._values = frozenset(values)
        self._num_documents = dict.fromkeys(self._dtypes, 0)
        self._num_tokens = dict.fromkeys(self._dtypes, 0)
        self._is_open = True

    @property
    def prefix(self) -> str:
        """The path without the suffix."""
        return str(self._path.with_suffix(""))

    @property
    def num_documents(self) -> int:
        """Number of documents of the first key added so far."""
        return next(iter(self._num_documents.values()))

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
            InputError: the keys differ from the writer's, the format cannot hold a value, or the lengths do not add up
                to the number of values. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        self._check_open()
        self._add(checked_documents(self._path, self._dtypes, tokens, lengths, self._dtypes))

    def finish(self) -> WrittenShard:
        """Bring the file to the disk and give it its final name.

        Raises:
            ConfigError: the writer is no longer open, or the format needs a document and none was added.
            OutputError: the system reports an error; nothing is left behind, and an older file of this name is kept.
        """
        self._check_open()
        try:
            file = self._commit()
        except BaseException:
            self.discard()
            raise
        self._is_open = False
        return WrittenShard(
            format=self.format,
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
            self._remove()

    @abstractmethod
    def _write(self, documents: CheckedDocuments) -> None:
        """Write documents to the temporary file."""

    @abstractmethod
    def _commit(self) -> FileSum:
        """Give the temporary file its final name."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the temporary file."""

    def _add(self, documents: CheckedDocuments) -> None:
        self._write(documents)
        for key, (values, lengths) in documents.items():
            self._num_documents[key] += len(lengths)
            self._num_tokens[key] += len(values)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(f"{self._path}: the writer was finished or discarded; it accepts no more documents")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class ShardFilling:
    """How full the open shard of a series is.

    A shard ends before the document that would bring it above a number of tokens. A document that is longer than that
    gets a shard of its own.

    Attributes:
        tokens: number of tokens in the open shard, all keys together.
        documents: number of documents in it.
    """

    def __init__(self, tokens: int = 0, documents: int = 0) -> None:
        self.tokens = tokens
        self.documents = documents

    def cut(
        self, lengths: NDArray[np.int64], max_tokens: int, max_documents: int | None = None
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield the ranges of the next documents that go into the same shard, and whether the shard ends after each.

        Args:
            lengths: (n,) int64, tokens of each document, summed over all keys.
            max_tokens: the most tokens in a shard.
            max_documents: the most documents in a shard.
        """
        ends = np.cumsum(lengths)
        first = begin = 0
        while first < len(lengths):
            last = int(np.searchsorted(ends, begin + max_tokens - self.tokens, side="right"))
            if max_documents is not None:
                last = min(last, first + max_documents - self.documents)
            last = max(last, first if self.documents else first + 1)
            if last > first:
                self.tokens += int(ends[last - 1]) - begin
                self.documents += last - first
                begin = int(ends[last - 1])
            is_full = last < len(lengths)
            if is_full:
                self.tokens = self.documents = 0
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
