"""`Writer`, the base of the writers that can be continued, and checks of the keys that a writer gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile, commit
from headrace.stores.keyed.layout import check_key, key_dtype
from headrace.stores.token_file import LengthChunks, open_files
from headrace.stores.written import Format, KeyInfo, WriterState, WrittenShard


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


def checked_keys(
    path: Path, dtypes: Mapping[str, DTypeLike], values: Collection[str]
) -> tuple[dict[str, np.dtype[Any]], frozenset[str]]:
    """Return the dtype of each key, and the keys whose values are not ids of a vocabulary.

    Raises:
        ConfigError: there are no keys, a name cannot be a key, a dtype is not known, or ``values`` names an unknown
            key.
    """
    if not dtypes:
        raise ConfigError(f"{path}: dtypes names no key; a store needs at least one")
    for key in dtypes:
        check_key(key)
    known = {key: key_dtype(dtype) for key, dtype in dtypes.items()}
    if unknown := frozenset(values) - known.keys():
        raise ConfigError(f"{path}: values names the unknown keys {sorted(unknown)}; the keys are {', '.join(known)}")
    return known, frozenset(values)


def check_given(path: Path, keys: Collection[str], **given: Mapping[str, object]) -> None:
    """Raise InputError unless each of the named arguments has exactly the keys of the writer."""
    for name, found in given.items():
        if found.keys() != set(keys):
            raise InputError(
                f"{path}: {name} has the keys {', '.join(map(repr, found))}, but the writer has"
                f" {', '.join(map(repr, keys))}"
            )
