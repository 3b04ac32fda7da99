"""Writers of formats of other programs: `JsonlWriter`, `Hdf5Writer` and `write_hdf5`; and `to_datasets`."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError, load_extra
from headrace.io import AtomicFile, FileSum, file_sum, output_errors, sync_folder, temporary_path, write_all
from headrace.stores.foreign import load_pyarrow
from headrace.stores.foreign_ranges import Hdf5Store, load_h5py
from headrace.stores.store import Store
from headrace.stores.writer import CheckedDocuments, KeysWriter, checked_tokens
from headrace.stores.written import OutputShard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class JsonlWriter(KeysWriter):
    """Writes one ``.jsonl``, in which each document is a record, ``{"tokens":[1,2,3],"loss_mask":[0,1,1]}``.

    JSON lines are for small data.

    Truth values are written as ``true`` and ``false``, and a float as the shortest decimal that its dtype reads back as
    the same number, so the float32 0.8 is ``0.8``. Writing takes about 1 us a document and 50 ns a number.

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
        >>> shard.documents, shard.tokens
        (2, 3)
    """

    format = "jsonl"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        super().__init__(path, dtypes, values, suffixes=(".jsonl",))
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

    def _commit(self) -> tuple[FileSum, ...]:
        if not self.num_documents:
            raise ConfigError(f"{self._path}: no document was added, and a file without records is not a store")
        self._file.commit()
        return (self._file.sum,)

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


class Hdf5Writer(KeysWriter):
    """Writes one ``.h5``, in which each document is a dataset of each key.

    Each dataset takes 50 us and 800 bytes of the file, so use it for a few thousand documents a file, or for long ones.

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
        super().__init__(path, dtypes, values, suffixes=Hdf5Store.suffixes)
        h5py = load_h5py(str(self._path))
        self._temporary = temporary_path(self._path)
        with output_errors(self._path, "create"):
            self._output = _Output(self._temporary)
        self._file = h5py.File(self._output, "w")
        self._groups = {key: self._file.create_group(key) for key in self._dtypes}

    def _write(self, documents: CheckedDocuments) -> None:
        arrays = {
            key: np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
            for key, (values, lengths) in documents.items()
        }
        # One document after another, so that the bytes do not depend on how many are added at a time.
        for at in range(max(map(len, arrays.values()))):
            for key, parts in arrays.items():
                if at < len(parts):
                    name = f"data_{self._num_documents[key] + at}"
                    self._groups[key].create_dataset(name, data=parts[at], track_times=False)
        with output_errors(self._path, "write"):
            self._output.raise_error()

    def _commit(self) -> tuple[FileSum, ...]:
        with output_errors(self._path, "write"):
            self._file.close()
            self._output.raise_error()
            os.fsync(self._output.fileno())
            self._output.close()
            self._temporary.rename(self._path)
        sync_folder(self._path)
        return (file_sum(self._path),)

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


def write_hdf5(path: str | os.PathLike[str], arrays: Mapping[str, Sequence[NDArray[Any]]]) -> OutputShard:
    """Write each array as a dataset of its key, in one call. Keys may have different numbers of arrays.

    Raises:
        ConfigError: as in `Hdf5Writer`.
        InputError: the arrays of a key have different dtypes, or an array has more than one dimension.
        OutputError: the system reports an error.
        MissingExtraError: h5py is not installed.
    """
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


def to_datasets(store: Store) -> Any:
    """Return a store as a ``datasets.Dataset`` for what takes nothing else: a row for each document.

    The main key is the column ``input_ids``; the other keys keep their names. The values have the dtypes of the store.
    They are not copied where the store is one mapped file; otherwise the whole store is read into memory.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: a key has another number of documents than the main one.

    Example:
        >>> dataset = headrace.to_datasets(headrace.open("stores/web"))  # doctest: +SKIP
        >>> dataset.column_names, dataset.num_rows  # doctest: +SKIP
        (['input_ids'], 400)
    """
    datasets = load_extra("datasets", "to_datasets needs the package datasets: pip install datasets")
    pyarrow = load_pyarrow(store.path)
    columns = {}
    for key in store.keys:
        one = store.with_main(key)
        if one is None or len(one) != len(store):
            raise ConfigError(f"{store.path}: key {key!r} cannot be a column beside {store.keys[0]!r}: open it alone")
        view = one.stream_view()
        values = one.fetch(0, one.num_tokens) if view is None else view
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(one.lengths)])
        name = "input_ids" if key == store.keys[0] else key
        columns[name] = pyarrow.LargeListArray.from_arrays(offsets, pyarrow.array(values))
    return datasets.Dataset(pyarrow.table(columns))
