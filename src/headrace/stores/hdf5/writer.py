"""Writes AstrAI's HDF5 layout, as its own ``save_h5`` does, but atomically."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import InputError
from headrace.io import FileSum, check_local, file_sum, output_errors, sync_folder, write_all
from headrace.stores.hdf5.store import HDF5_SUFFIXES, load_h5py
from headrace.stores.token_file import checked_tokens
from headrace.stores.writer import CheckedDocuments, FileWriter
from headrace.stores.written import WrittenShard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Hdf5Writer(FileWriter):
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
        super().__init__(path, dtypes, values, *HDF5_SUFFIXES)
        h5py = load_h5py(str(self._path))
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        with output_errors(self._path, "create"):
            self._output = _Output(self._temporary)
        self._file = h5py.File(self._output, "w")
        self._groups = {key: self._file.create_group(key) for key in self._dtypes}

    def _write(self, documents: CheckedDocuments) -> None:
        for key, (values, lengths) in documents.items():
            arrays = np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
            for number, array in enumerate(arrays, self._num_documents[key]):
                self._groups[key].create_dataset(f"data_{number}", data=array, track_times=False)
        with output_errors(self._path, "write"):
            self._output.raise_error()

    def _commit(self) -> FileSum:
        with output_errors(self._path, "write"):
            self._file.close()
            self._output.raise_error()
            os.fsync(self._output.fileno())
            self._output.close()
            self._temporary.rename(self._path)
        sync_folder(self._path)
        return file_sum(self._path)

    def _remove(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            self._output.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


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
        if self._error is None:
            try:
                write_all(super().write, view)
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
        documents = {}
        for key, parts in arrays.items():
            dtype = writer._dtypes[key]
            checked = [checked_tokens(part, dtype, f"{os.fspath(path)}: key {key!r}") for part in parts]
            lengths = np.array([len(part) for part in checked], np.int64)
            documents[key] = np.concatenate([np.empty(0, dtype), *checked]), lengths
        writer._add(documents)
        return writer.finish()
