"""Folders that ``Dataset.save_to_disk`` of the library ``datasets`` wrote: `SavedDatasetStore` reads them in place.

    folder/state.json                     names the data files, in order
    folder/dataset_info.json              the features; not read, since the files have a schema
    folder/data-00000-of-00002.arrow      an Arrow stream of record batches

A column of lists of numbers is a key, and each row is a document. Other columns, such as texts, are left out. The files
are mapped: a document is a view, except where a range spans two record batches, and for booleans, which Arrow packs.
Those of a folder at a URL are fetched whole, and kept. `to_datasets` goes the other way.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from headrace.errors import ConfigError, MissingExtraError, StoreError
from headrace.io import AnyPath, Reader, can_list, local_file, path_at, read_small, reader, reader_at
from headrace.stores.arguments import IntArray, read_only
from headrace.stores.segmented import SegmentedStore, cut_at_bounds
from headrace.stores.store import MAIN, Problem, Store, TokenArray

STATE_NAME: Final = "state.json"
INFO_NAME: Final = "dataset_info.json"
DICT_NAME: Final = "dataset_dict.json"
MAIN_NAMES: Final = (MAIN, "input_ids", "sequence", "chosen", "prompts")
"""Names of the main key, as those that write such columns call ids."""


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")


class _Splits(msgspec.Struct):
    splits: list[str]


class _Column(NamedTuple):
    """One key: its Arrow type, its values by record batch, and (batches + 1,) int64, the sums of their numbers."""

    kind: Any
    chunks: list[Any]
    begins: IntArray


def is_saved_dataset(name: str | AnyPath, using: str | Reader = "mmap") -> bool:
    """Return whether a path is a folder of ``Dataset.save_to_disk``, or of ``DatasetDict.save_to_disk``."""
    folder = path_at(name, using)
    if (folder / DICT_NAME).is_file():
        return True
    # Others write a state.json too.
    is_state = all((folder / file).is_file() for file in (STATE_NAME, INFO_NAME))
    return is_state and b'"_data_files"' in read_small(folder / STATE_NAME)


def splits_of(folder: AnyPath) -> list[str]:
    """Return the names of the splits of a folder of ``DatasetDict.save_to_disk``; none for any other folder."""
    if not (folder / DICT_NAME).is_file():
        return []
    if can_list(folder):
        return sorted(file.parent.name for file in folder.glob(f"*/{STATE_NAME}"))
    try:
        return sorted(msgspec.json.decode(read_small(folder / DICT_NAME), type=_Splits).splits)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{folder / DICT_NAME}: does not name the splits of a saved dataset: {error}") from error


class SavedDatasetStore(SegmentedStore):
    """A folder that ``Dataset.save_to_disk`` wrote, in place. Needs pyarrow.

    Opening reads the bounds of all documents, 8 bytes a document and key, and no values.

    Args:
        path: the folder, or the URL of one, whose data files are then fetched whole.
        key: the main key; by default ``"tokens"``, ``"input_ids"``, ``"sequence"``, ``"chosen"``, ``"prompts"``, or
            the first.
        using: ``"mmap"``, or for a URL a reader of objects. Local files are always mapped.

    Raises:
        StoreError: a file is missing or malformed, a list or a number is null, or no column has lists of numbers.
        ConfigError: there is no such key.
        MissingExtraError: pyarrow is not installed.
    """

    format = "datasets"
    _main_names = MAIN_NAMES

    def __init__(self, path: str | os.PathLike[str], *, key: str | None = None, using: str | Reader = "mmap") -> None:
        using = reader_at(path, using)
        self._reader = reader(using)
        self._using = using
        self.folder = self._reader.path_at(os.fspath(path))
        if using != "mmap" and isinstance(self.folder, Path):
            raise StoreError(f"{path}: a saved dataset can only be mapped: leave reader and cache out")
        if (self.folder / DICT_NAME).is_file():
            splits = ", ".join(splits_of(self.folder))
            raise StoreError(f"{self.folder}: this is a DatasetDict: open one of its folders, {splits}")
        self._names = data_files(self.folder)
        load_pyarrow(str(self.folder))  # before anything is fetched
        self._mapped = self._places()
        self._columns: dict[str, _Column] | None = None
        columns, bounds = self._read_columns()
        dtypes = {name: dtype_of(column.kind) for name, column in columns.items()}
        super().__init__(os.fspath(path), bounds, dtypes, key)
        self._columns = columns

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The data files, then the state."""
        return (*(self.folder / name for name in self._names), self.folder / STATE_NAME)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the keys, their dtypes and lengths, and the first and last 4 KiB of each key. O(documents)."""
        return self._ends_fingerprint()

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Open the files again, and compare the ids of the main key with the size of the vocabulary."""
        try:
            bounds = self._read_columns()[1]
        except StoreError as error:
            yield Problem.of(self.path, error)
            return
        if any(not np.array_equal(bounds.get(key, ()), self._bounds[key]) for key in self._keys):
            yield Problem(path=self.path, place="", message="the files changed since they were opened; open it again")
            return
        yield from self._check_values(self.path, self._keys[0], None, vocab_size)

    def close(self) -> None:
        """Let go of the files. Arrays stay valid, and a later read opens them again."""
        self._columns = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(path=os.fspath(self.folder), key=self._keys[0], using=self._using, dtypes=self._assumed)

    def _places(self) -> list[Path]:
        """Return the data files on this host. A copy of an object has another name for each content of the object."""
        return [local_file(self.folder / name) for name in self._names]

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        columns = self._columns
        if columns is None:
            columns = self._columns = self._read_columns()[0]
        column = columns[key]
        cuts = cut_at_bounds(column.begins, np.array([begin]), end - begin)
        parts = zip(cuts.parts.tolist(), cuts.firsts.tolist(), cuts.lengths.tolist(), strict=True)
        pieces = [
            column.chunks[part].slice(first, count).to_numpy(zero_copy_only=False)
            for part, first, count in parts
            if count
        ]
        if len(pieces) == 1:
            return read_only(pieces[0])
        return read_only(np.concatenate(pieces) if pieces else np.empty(0, self._dtypes[key]))

    def _read_columns(self) -> tuple[dict[str, _Column], dict[str, IntArray]]:
        """Map the files, and return the columns with lists of numbers, and where their documents begin."""
        pyarrow = load_pyarrow(str(self.folder))
        if self._places() != self._mapped:
            raise StoreError(f"{self.folder}: the objects changed since they were opened; open it again")
        try:
            table = pyarrow.concat_tables(
                pyarrow.ipc.open_stream(pyarrow.memory_map(str(place))).read_all() for place in self._mapped
            )
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreError(f"{self.folder}: the files cannot be read as Arrow streams: {error}") from error
        columns: dict[str, _Column] = {}
        bounds: dict[str, IntArray] = {}
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            if is_of_numbers(pyarrow.types, kind):
                lists = table.column(name).chunks
                chunks = [values_in(some, str(self.folder), name) for some in lists]
                counts = [lengths_in(some) for some in lists]
                lengths = np.concatenate([np.zeros(1, np.int64), *counts])
                bounds[name] = np.cumsum(lengths, dtype=np.int64)
                sizes = np.array([0, *map(len, chunks)], dtype=np.int64)
                columns[name] = _Column(kind, chunks, np.cumsum(sizes))
        if not columns:
            raise StoreError(
                f"{self.folder}: no column has lists of numbers; the columns are {', '.join(table.schema.names)}. Use"
                " headrace prepare to make tokens from text and messages"
            )
        return columns, bounds


def load_pyarrow(name: str) -> Any:
    """Import pyarrow with its IPC; raise MissingExtraError, which names what needs it."""
    try:
        importlib.import_module("pyarrow.ipc")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError(f"{name}: a saved dataset needs pyarrow: pip install 'headrace[parquet]'") from error


def data_files(folder: AnyPath) -> list[str]:
    """Return the names of the data files of a saved dataset, in order; raise StoreError if its state is damaged."""
    try:
        state = msgspec.json.decode(read_small(folder / STATE_NAME), type=_State)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{folder / STATE_NAME}: does not name the data files of a saved dataset: {error}") from error
    names = [file.filename for file in state.data_files]
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise StoreError(f"{folder / STATE_NAME}: names {name!r}, which is no file of this folder")
    if not names:
        raise StoreError(f"{folder / STATE_NAME}: names no data files")
    return names


def is_of_numbers(types: Any, kind: Any) -> bool:
    """Return whether a type of Arrow is a list of numbers or booleans; ``types`` is the module pyarrow.types."""
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and any(test(kind.value_type) for test in (types.is_integer, types.is_floating, types.is_boolean))


def values_in(lists: Any, path: str, name: str) -> Any:
    """Return the values of an Arrow array of lists, one after another; raise StoreError if there is a null."""
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise StoreError(f"{path}: column {name!r} holds null, which is neither a list nor a number of one")
    return values


def lengths_in(lists: Any) -> IntArray:
    """Return (n,) the lengths of the lists in an Arrow array."""
    if hasattr(lists, "offsets"):
        lengths: IntArray = np.diff(lists.offsets.to_numpy())
        return lengths
    return np.full(len(lists), lists.type.list_size, dtype=np.int64)


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Return the dtype of the numbers in an Arrow type of lists."""
    dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
    return dtype


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
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError("to_datasets needs the package datasets: pip install datasets") from error
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
