"""Writes AstrAI's HDF5 layout, as its own ``save_h5`` does, but atomically."""

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
    """Writes one ``.h5``, in which each document is a dataset of each key. It appears whole at `finish`, or not at all.

    The writer is a context manager that removes its temporary file unless `finish` was called. If it is killed, it
    leaves a hidden ``.tmp`` behind, and the shard has to be written again, since HDF5 cannot be continued in the
    middle. Each dataset takes 50 us and 800 bytes of the file, so use it for a few thousand documents a file, or for
    long ones.

    Args:
        path: path that ends in ``.h5`` or ``.hdf5``; its folder must exist. A file of this name is replaced at
            `finish`.
        dtypes: dtype of each key.
        values: keys whose values are not ids of a vocabulary but masks, lengths or rewards; a manifest records this.

    Raises:
        ConfigError: the path has another suffix, there are no keys, a name cannot be a key, or the format does not have
            a dtype.
        OutputError: the system reports an error.
        MissingExtraError: h5py is not installed.

    Example:
        >>> with headrace.stores.Hdf5Writer("two.h5", dtypes={"sequence": "int32"}) as writer:
        ...     writer.add_documents({"sequence": np.array([5, 6, 7])}, {"sequence": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> headrace.open("two.h5").lengths.tolist()
        [1, 2]
    """

    format = "hdf5"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        self._path = Path(path)
        if self._path.suffix not in HDF5_SUFFIXES:
            raise ConfigError(f"{self._path}: the name of an HDF5 store must end in {' or '.join(HDF5_SUFFIXES)}")
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
        """The path without the suffix."""
        return str(self._path.with_suffix(""))

    @property
    def num_documents(self) -> int:
        """Number of documents of the first key added so far."""
        return next(iter(self._counts.values()))

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
            InputError: the keys differ from the writer's, values do not fit into the dtype, or the lengths do not add
                up to the number of values. Then nothing of this call is written.
            OutputError: the system reports an error; the writer cannot be used any more.
        """
        checked: dict[str, list[NDArray[Any]]] = {}
        check_given(self._path, self._dtypes, tokens=tokens, lengths=lengths)
        for key, dtype in self._dtypes.items():
            counts = checked_lengths(lengths[key], len(tokens[key]))
            data = checked_tokens(tokens[key], dtype, f"{self._path}: key {key!r}")
            checked[key] = np.split(data, np.cumsum(counts)[:-1]) if len(counts) else []
        if len({len(documents) for documents in checked.values()}) > 1:
            found = ", ".join(f"{len(documents)} for {key!r}" for key, documents in checked.items())
            raise InputError(f"{self._path}: the keys have different numbers of documents: {found}")
        self._append(checked)

    def finish(self) -> WrittenShard:
        """Bring the file to the disk and give it its final name.

        Raises:
            ConfigError: the writer is no longer open.
            OutputError: the system reports an error; nothing is left behind, and an older file of this name is kept.
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
        """Remove the temporary file. After `finish` this does nothing."""
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
            raise ConfigError(f"{self._path}: the writer was finished or discarded; it accepts no more documents")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class _Output(io.FileIO):
    """The temporary file, which never raises an error to HDF5: HDF5 could not close its file then, and would crash.

    The first error is kept for `raise_error`, and everything that is written after it is discarded.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self._error: OSError | None = None

    def raise_error(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        try:
            done = 0
            while done < len(view) and self._error is None:
                done += super().write(view[done:])
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size of the file."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0


def write_hdf5(path: str | os.PathLike[str], arrays: Mapping[str, Sequence[NDArray[Any]]]) -> WrittenShard:
    """Write each array as a dataset of its key, in one call. Keys may have different numbers of arrays.

    Raises:
        ConfigError: as in `Hdf5Writer`.
        InputError: the arrays of a key have different dtypes, or an array has more than one dimension.
        OutputError: the system reports an error.
        MissingExtraError: h5py is not installed.
    """
    check_local(path)
    dtypes = {}
    for key, parts in arrays.items():
        found = dict.fromkeys(part.dtype for part in parts)
        if len(found) > 1:
            raise InputError(
                f"{os.fspath(path)}: key {key!r} has arrays of {', '.join(map(str, found))}; a key must have one dtype"
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
