"""AstrAI's HDF5 layout, documents of several keys in one file: `Hdf5Store` reads it, `Hdf5Writer` writes it atomically.

    /<key>/              a group for each key
    /<key>/data_<i>      1-D, contiguous, no filters, no attributes: the values of one document, or of many

Every dataset is one range of bytes of the file. So h5py is only used when the file is opened, to find where each
dataset begins. Values are then read as from any other file, by mapping or ``preadv``.

Source: AstrAI 1.3.7 to 1.3.11, ``save_h5`` and ``load_h5``. The page ``docs/formats/hdf5.md`` lists what is refused.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from headrace.config import check_choice
from headrace.errors import InputError, MissingExtraError, StoreError
from headrace.io import (
    AnyPath,
    FileSum,
    Reader,
    file_sum,
    local_file,
    natural_key,
    output_errors,
    reader,
    reader_at,
    sync_folder,
    temporary_path,
    write_all,
)
from headrace.stores.arguments import read_only
from headrace.stores.checking import check_file
from headrace.stores.keyed.layout import DTYPE_NAMES, key_dtype
from headrace.stores.manifest import entry_beside
from headrace.stores.segmented import SegmentedStore, cut_at_bounds, tokens_at
from headrace.stores.store import IntArray, Problem, TokenArray
from headrace.stores.token_file import checked_tokens
from headrace.stores.writer import CheckedDocuments, KeysWriter
from headrace.stores.written import OutputShard, WrittenShard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HDF5_SUFFIXES: Final = (".h5", ".hdf5")
DatasetOrder = Literal["number", "name"]


class Segments(msgspec.Struct, frozen=True):
    """The datasets of one key, in order.

    Attributes:
        names: names of the datasets.
        dtype: the dtype of all of them.
        offsets: (n,) int64, the byte of the file where each dataset begins.
        bounds: (n + 1,) int64, prefix sums of their numbers of values.
    """

    names: tuple[str, ...]
    dtype: np.dtype[Any]
    offsets: IntArray
    bounds: IntArray


def load_h5py(path: str) -> Any:
    """Import h5py and return it.

    Raises:
        MissingExtraError: h5py is not installed; the message names the file that needs it.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(f"{path}: HDF5 needs h5py: pip install 'headrace[hdf5]'") from error
    return h5py


def check_order(order: str) -> None:
    """Raise ConfigError if there is no such order of datasets."""
    check_choice("order", order, get_args(DatasetOrder))


def read_layout(path: str, using: Reader, order: DatasetOrder) -> dict[str, Segments]:
    """Return the segments of each key; keys are sorted by name, as HDF5 lists them. About 40 us a dataset.

    Raises:
        StoreError: the file is not a complete HDF5 file, or does not have this layout; the message names the group or
            dataset.
        MissingExtraError: h5py is not installed.
    """
    h5py = load_h5py(path)
    file_bytes = using.size(path)
    try:
        with h5py.File(local_file(using.path_at(path)), "r", locking=False) as file:
            root = file.id
            keys = [name.decode() for name in root]
            found = {key: _segments(h5py, path, _child(h5py, path, root, key, "/"), key, order) for key in keys}
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not a complete HDF5 file: {error}") from error
    if not found:
        raise StoreError(f"{path}: has no key; a store has a group for each key, with datasets data_0, data_1, ...")
    for key, segments in found.items():
        num_bytes = np.diff(segments.bounds) * segments.dtype.itemsize
        outside = np.flatnonzero(segments.offsets > file_bytes - num_bytes)
        if len(outside):
            at = int(outside[0])
            raise StoreError(
                f"{path}: /{key}/{segments.names[at]}: {num_bytes[at]} bytes from byte {segments.offsets[at]} on are"
                f" expected, but the file has only {file_bytes} bytes: it was cut short"
            )
    return found


def missing_numbers(segments: Segments) -> list[str]:
    """Return the names that are missing in the numbering of the datasets."""
    numbers = [name.removeprefix("data_") for name in segments.names]
    if not all(number.isdecimal() and number.isascii() for number in numbers):
        return []
    found = {int(number) for number in numbers}
    return [f"data_{number}" for number in range(len(found)) if number not in found]


def _child(h5py: Any, path: str, parent: Any, name: str, where: str) -> Any:
    """Open the object of a name in its group. Soft and external links are not followed, as they could name any file."""
    if parent.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise StoreError(f"{path}: {where}{name} is a link; only objects in the file itself are read")
    return h5py.h5o.open(parent, name.encode())


def _segments(h5py: Any, path: str, group: Any, key: str, order: DatasetOrder) -> Segments:
    if not isinstance(group, h5py.h5g.GroupID):
        raise StoreError(
            f"{path}: /{key} is a dataset; a key is a group, with its values in /{key}/data_0, data_1, ..."
        )
    names = sorted((name.decode() for name in group), key=None if order == "name" else natural_key)
    dtype: np.dtype[Any] | None = None
    offsets = np.zeros(len(names), np.int64)
    bounds = np.zeros(len(names) + 1, np.int64)
    for at, name in enumerate(names):
        where = f"{path}: /{key}/{name}"
        dataset = _child(h5py, path, group, name, f"/{key}/")
        if not isinstance(dataset, h5py.h5d.DatasetID):
            raise StoreError(f"{where} is a group; a key may hold only datasets")
        if len(dataset.shape or ()) != 1:
            raise StoreError(f"{where} has the shape {dataset.shape}; a document must be one-dimensional")
        if dtype is None:
            dtype = _dtype(where, dataset.dtype)
        if dataset.dtype != dtype:
            raise StoreError(
                f"{where} is of {dataset.dtype}, but the datasets before it are of {dtype}; a key must have one dtype"
            )
        (bounds[at + 1],) = dataset.shape
        offset = dataset.get_offset()
        if offset is None and bounds[at + 1]:
            raise StoreError(
                f"{where} is chunked, compressed, external or was never written; only contiguous values can be read:"
                " convert the file with h5repack --layout CONTI --filter NONE"
            )
        offsets[at] = offset or 0
    np.cumsum(bounds, out=bounds)
    return Segments(tuple(names), np.dtype(np.int64) if dtype is None else dtype, offsets, bounds)


def _dtype(where: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.name not in DTYPE_NAMES or dtype.newbyteorder("<") != dtype:
        raise StoreError(f"{where} is of {dtype.str}; allowed are {', '.join(DTYPE_NAMES)}, little-endian")
    return dtype


_ENDS_BYTES = 4096


class Hdf5Store(SegmentedStore):
    """A ``.h5`` file. A document is a dataset of a key; the main key and parallel keys are as in `SegmentedStore`.

    Opening it costs about 40 us a dataset, with h5py. Values are then read without h5py, as views if the file is
    mapped.

    Args:
        path: the file.
        key: the main key; None for the default.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        order: order of the datasets: ``"number"``, with data_2 before data_10, or ``"name"``, with data_10 before
            data_2, as AstrAI read files with more than ten datasets.
        vouched: the file's entry in a manifest.

    Raises:
        StoreError: the file is missing or incomplete, or does not have this layout; the message says what was found and
            where.
        ConfigError: there is no such key or order.
        MissingExtraError: h5py is not installed.

    Example:
        >>> arrays = {"sequence": [np.array([5]), np.array([6, 7])]}
        >>> shard = headrace.stores.write_hdf5("pair.h5", arrays)
        >>> headrace.stores.Hdf5Store("pair.h5").document(1).tolist()
        [6, 7]
    """

    format = "hdf5"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        order: DatasetOrder = "number",
        vouched: OutputShard | None = None,
    ) -> None:
        using = reader_at(path, using)
        check_order(order)
        self.file = os.fspath(path)
        self._reader = reader(using)
        self._order: DatasetOrder = order
        self._vouched = vouched
        self._reader.keep(self.file)
        self._segments = read_layout(self.file, self._reader, order)
        super().__init__(
            self.file,
            {name: segments.bounds for name, segments in self._segments.items()},
            {name: segments.dtype for name, segments in self._segments.items()},
            key,
        )
        if vouched is not None:  # only the manifest knows the dtype of a key without datasets
            empty = [name for name, segments in self._segments.items() if not segments.names and name in vouched.keys]
            self._assumed = {name: key_dtype(vouched.keys[name].dtype) for name in empty}
            self._dtypes.update(self._assumed)
        for fault in self._disagreements():
            raise StoreError(f"{self.file}: not the shard that the manifest lists: {fault}")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The HDF5 file."""
        return (self._reader.path_at(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the keys, their dtypes and lengths, and the first and last 4 KiB of each key. O(documents)."""
        hasher = xxhash.xxh3_128(self.format.encode())
        for key in self._keys:
            segments = self._segments[key]
            hasher.update(repr((key, self._dtypes[key].str)).encode())
            hasher.update(segments.bounds.tobytes())
            total = int(segments.bounds[-1])
            length = min(total, _ENDS_BYTES // segments.dtype.itemsize)
            for begin in (0, total - length) if length else ():
                hasher.update(self._read(begin, begin + length, key).tobytes())
        return hasher.hexdigest()

    def stream_view(self, key: str | None = None) -> TokenArray | None:
        """Return the mapped values of a key whose values are all in one dataset, as AstrAI's pipeline wrote them."""
        name = self._known(key)
        segments = self._segments[name]
        total = int(segments.bounds[-1])
        if np.count_nonzero(np.diff(segments.bounds)) > 1 or self._reader.view(self.file) is None:
            return None
        return self._read(0, total, name) if total else read_only(np.empty(0, self._dtypes[name]))

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) values of the main key in a new array, with one call of the reader."""
        checked = self._checked_begins(begins, length)
        values = self._read_parts(checked, length, self._keys[0])
        return values.reshape(len(checked), length)

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Return True for the key's own dtype, and for any dtype if the key has no datasets."""
        return self._dtypes[key] == dtype or not self._segments[key].names

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Check every rule of the layout, bools, ids, and all bytes if a manifest beside the file lists it.

        Ids are checked in the main key, or in all integer keys that hold ids according to the manifest. The file is
        opened again, so the state of this store does not matter.
        """
        place = self._reader.path_at(self.file)
        vouched, problems = entry_beside(place.with_suffix(""), "hdf5", self._vouched)
        yield from problems
        if vouched is not None:
            for file in vouched.files:
                yield from check_file(place.with_name(file.name), file)
        try:
            store = Hdf5Store(
                self.file, key=self._keys[0], using=copy.copy(self._reader), order=self._order, vouched=vouched
            )
        except StoreError as error:
            yield Problem.of(self.file, error)
            return
        with store:
            for key in store.keys:
                yield from store._check_key(key, vouched, vocab_size)

    def close(self) -> None:
        """Close the file. Arrays stay valid, and a later read opens it again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = {"key": self._keys[0], "using": self._reader, "order": self._order, "vouched": self._vouched}
        return self._reduced(path=self.file, dtypes=self._assumed, **how)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        segments = self._segments[key]
        first = int(np.searchsorted(segments.bounds, begin, side="right")) - 1
        if end > segments.bounds[first + 1]:
            return read_only(self._read_parts(np.array([begin]), end - begin, key))
        item = segments.dtype.itemsize
        offset = int(segments.offsets[first]) + (begin - int(segments.bounds[first])) * item
        return tokens_at(self._reader, self.file, segments.dtype, offset, (end - begin) * item)

    def _read_parts(self, begins: IntArray, length: int, key: str) -> TokenArray:
        segments = self._segments[key]
        item = self._dtypes[key].itemsize
        cuts = cut_at_bounds(segments.bounds, begins, length)
        offsets = segments.offsets[cuts.parts] + cuts.firsts * item
        found = self._reader.read_ranges(self.file, offsets, cuts.lengths * item)
        return found.view(self._dtypes[key])

    def _check_key(self, key: str, vouched: OutputShard | None, vocab_size: int | None) -> Iterator[Problem]:
        segments = self._segments[key]
        for name in missing_numbers(segments)[:1]:
            message = f"{name} is missing among {len(segments.names)} datasets"
            yield Problem(path=self.file, place=f"/{key}", message=message)
        yield from self._check_values(self.file, key, vouched, vocab_size)

    def _disagreements(self) -> Iterator[str]:
        """Yield a message for each difference from the manifest's entry."""
        if self._vouched is None:
            return
        found = {key: (dtype.name, int(self._bounds[key][-1])) for key, dtype in self.dtypes.items()}
        listed = {key: (info.dtype, info.tokens) for key, info in self._vouched.keys.items()}
        if (found, self.num_documents) != (listed, self._vouched.documents):
            yield (
                f"found {self.num_documents} documents with {found}, but the manifest lists {self._vouched.documents}"
                f" with {listed}"
            )
        sizes = [file.size for file in self._vouched.files]
        if sizes != [self._reader.size(self.file)]:
            yield f"the file has {self._reader.size(self.file)} bytes, but the manifest lists {sizes[0]}"


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
        super().__init__(path, dtypes, values, suffixes=HDF5_SUFFIXES)
        h5py = load_h5py(str(self._path))
        self._temporary = temporary_path(self._path)
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


def write_hdf5(path: str | os.PathLike[str], arrays: Mapping[str, Sequence[NDArray[Any]]]) -> WrittenShard:
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
