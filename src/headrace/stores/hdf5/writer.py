"""Writes the HDF5 layout of AstrAI: what its own ``save_h5`` would, and atomically."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError
from headrace.io import check_local, file_sum, output_errors, sync_folder
from headrace.stores.hdf5.store import HDF5_SUFFIXES, load_h5py
from headrace.stores.token_file import checked_lengths, checked_tokens
from headrace.stores.writer import check_given, checked_keys
from headrace.stores.written import KeyInfo, WrittenShard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Hdf5Writer:
    """Writes one ``.h5``, each document a dataset of each key; it appears whole at `finish`, or not at all.

    A context manager that removes its temporary file unless `finish` was called. A killed one leaves it (a hidden
    ``.tmp``), and its shard is begun anew: HDF5 cannot be continued in the middle. Each dataset costs 50 us and 800
    bytes of the file, so it is for some thousand documents a file, or for long ones.

    Args:
        path: ends in ``.h5`` or ``.hdf5``; its folder must be there. A file that is there is replaced at `finish`.
        dtypes: dtype of each key.
        values: the keys that hold no ids of a vocabulary but masks, lengths, rewards; for the manifest.

    Raises:
        ConfigError: another suffix, no keys, a name that cannot be a key, or a dtype that the format does not have.
        OutputError: the system refuses the file.
        MissingExtraError: h5py is not installed.
    """

    format = "hdf5"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        self._path = Path(path)
        if self._path.suffix not in HDF5_SUFFIXES:
            raise ConfigError(f"{self._path}: an HDF5 store ends in {' or '.join(HDF5_SUFFIXES)}")
        self._dtypes, self._values = checked_keys(self._path, dtypes, values)
        self._counts = dict.fromkeys(self._dtypes, 0)
        self._num_tokens = dict.fromkeys(self._dtypes, 0)
        h5py = load_h5py(str(self._path))
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        with output_errors(self._path, "create"):
            self._output = _Output(self._temporary)
        self._is_open = True
        self._file = h5py.File(self._output, "w")
        self._groups = {key: self._file.create_group(key) for key in self._dtypes}

    @property
    def prefix(self) -> str:
        """Path without the suffix."""
        return str(self._path.with_suffix(""))

    @property
    def num_documents(self) -> int:
        """Documents added so far, of the first key."""
        return next(iter(self._counts.values()))

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
            InputError: other keys than the writer's, values that do not fit into the dtype, or lengths that do not
                fit the values. Nothing of this call is written then.
            OutputError: the system refuses the write; the writer is of no further use.
        """
        checked: dict[str, list[NDArray[Any]]] = {}
        check_given(self._path, self._dtypes, tokens=tokens, lengths=lengths)
        for key, dtype in self._dtypes.items():
            counts = checked_lengths(lengths[key], len(tokens[key]))
            data = checked_tokens(tokens[key], dtype, f"{self._path}: key {key!r}")
            checked[key] = np.split(data, np.cumsum(counts)[:-1]) if len(counts) else []
        if len({len(documents) for documents in checked.values()}) > 1:
            found = ", ".join(f"{len(documents)} for {key!r}" for key, documents in checked.items())
            raise InputError(f"{self._path}: different numbers of documents: {found}")
        self._append(checked)

    def finish(self) -> WrittenShard:
        """Bring the file to the disk and give it its name.

        Raises:
            ConfigError: the writer is no longer open.
            OutputError: the system refuses; nothing is left behind, and a file that was there is there still.
        """
        self._check_open()
        try:
            with output_errors(self._path, "write"):
                self._file.close()
                self._output.raise_error()
                os.fsync(self._output.fileno())
                self._output.close()
                self._temporary.rename(self._path)
            sync_folder(self._path)
        except BaseException:
            self.discard()
            raise
        self._is_open = False
        return WrittenShard(
            format="hdf5",
            prefix=self.prefix,
            num_documents=self.num_documents,
            keys={
                key: KeyInfo(dtype=dtype.name, tokens=self._num_tokens[key], ids=key not in self._values)
                for key, dtype in self._dtypes.items()
            },
            contiguous=True,
            files=(file_sum(self._path),),
        )

    def discard(self) -> None:
        """Remove the temporary file. Nothing happens after `finish`."""
        if self._is_open:
            self._is_open = False
            self._file.close()
            with contextlib.suppress(OSError):
                self._output.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()

    def _append(self, documents: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        self._check_open()
        for key, arrays in documents.items():
            for array in arrays:
                self._groups[key].create_dataset(f"data_{self._counts[key]}", data=array, track_times=False)
                self._counts[key] += 1
                self._num_tokens[key] += len(array)
        with output_errors(self._path, "write"):
            self._output.raise_error()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(f"{self._path}: the writer was finished or discarded; it takes no more")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class _Output(io.FileIO):
    """The temporary file, which never fails in front of HDF5: it could not close its file then, and would crash.

    The first error is kept for `raise_error`, and what is written after it is thrown away.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None

    def raise_error(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        try:
            done = 0
            while done < len(view) and self._error is None:
                done += super().write(view[done:])
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Make it as long as HDF5 says."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0


def write_hdf5(path: str | os.PathLike[str], arrays: Mapping[str, Sequence[NDArray[Any]]]) -> WrittenShard:
    """Write each array as a dataset of its key, in one call; keys may have different numbers of them.

    Raises:
        ConfigError: as `Hdf5Writer`.
        InputError: arrays of a key with different dtypes, or of more dimensions than one.
        OutputError: the system refuses.
        MissingExtraError: h5py is not installed.
    """
    check_local(path)
    dtypes = {}
    for key, parts in arrays.items():
        found = dict.fromkeys(part.dtype for part in parts)
        if len(found) > 1:
            raise InputError(
                f"{os.fspath(path)}: key {key!r} has arrays of {', '.join(map(str, found))}; a key has one dtype"
            )
        dtypes[key] = next(iter(found), np.dtype(np.int64))
    with Hdf5Writer(path, dtypes=dtypes) as writer:
        writer._append(
            {
                key: [
                    checked_tokens(part, dtypes[key].newbyteorder("<"), f"{os.fspath(path)}: key {key!r}")
                    for part in parts
                ]
                for key, parts in arrays.items()
            }
        )
        return writer.finish()
