"""AstrAI's stores, which read streams of several keys as tensors, and its functions for whole files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import check_local, natural_key
from headrace.stores import KeyedStore, KeyedWriter, ShardedStore, open_keys, write_hdf5
from headrace.stores import Store as HeadraceStore
from headrace.stores.arguments import KeyList

if TYPE_CHECKING:
    from torch import Tensor

FormatName = Literal["h5", "bin", "jsonl"]


class NoDataError(StoreError, FileNotFoundError):
    """Raised if there is nothing to load at a path."""


def detect_format(path: str | os.PathLike[str]) -> FormatName:
    """Find out which of AstrAI's formats lies at a path.

    If a folder holds several formats, ``"h5"`` comes before ``"bin"``, and ``"bin"`` before ``"jsonl"``. Hidden files
    and folders are ignored. A pair of ``.bin`` and ``.idx`` is ``"bin"``, too.

    Raises:
        ConfigError: the file has another suffix. It is a ValueError.
        NoDataError: nothing is there. It is a FileNotFoundError.
    """
    check_local(path)
    place = Path(path)
    if place.is_file():
        suffix = place.suffix.lower()
        if suffix in (".h5", ".hdf5"):
            return "h5"
        if suffix == ".jsonl":
            return "jsonl"
        raise ConfigError(f"Unsupported file format: {suffix or place.name!r}; allowed are .h5, .hdf5 and .jsonl")
    found = set()
    for _, folders, files in os.walk(place, followlinks=False):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        found |= {name if name == "meta.json" else Path(name).suffix.lower() for name in files if name[0] != "."}
    if found & {".h5", ".hdf5"}:
        return "h5"
    if ".bin" in found and found & {"meta.json", ".idx"}:
        return "bin"
    if ".jsonl" in found:
        return "jsonl"
    raise NoDataError(f"No supported data files found at {place}; looked for .h5, .bin with meta.json, and .jsonl")


def save_h5(folder: str | os.PathLike[str], name: str, tensors: Mapping[str, Sequence[Tensor]]) -> None:
    """Write ``folder/name.h5``, where each tensor is a dataset of its key.

    The folder is created if it is missing. The file appears only when it is complete.

    Raises:
        ConfigError: the name is not a plain file name, there are no keys, or the format does not have the dtype.
        InputError: the tensors of a key have several dtypes, or a tensor has more than one dimension.
        OutputError: the system refuses a file.
        MissingExtraError: h5py is not installed.
    """
    check_local(folder)
    if Path(name).name != name:
        raise ConfigError(f"{name!r} is not the name of a file in {os.fspath(folder)}")
    _make(Path(folder))
    write_hdf5(Path(folder) / f"{name}.h5", {key: _arrays(key, parts) for key, parts in tensors.items()})


def load_h5(
    path: str | os.PathLike[str], share_memory: bool = True, *, order: Literal["number", "name"] = "number"
) -> dict[str, list[Tensor]]:
    """Read all datasets below a path into memory: the tensors of each key, with files in natural order.

    Args:
        path: a folder or a file.
        share_memory: move the tensors to shared memory, as ``Tensor.share_memory_`` does.
        order: the order of the datasets in a file. ``"name"`` is AstrAI's, with data_10 before data_2.

    Raises:
        StoreError: there are no such files, they are damaged, or they have different keys.
        MissingExtraError: h5py is not installed.
    """
    check_local(path)
    import torch

    tensors = {}
    for key, store in open_keys(path, dataset_order=order).items():
        parts = [torch.from_numpy(store.document(number).copy()) for number in range(len(store))]
        tensors[key] = [part.share_memory_() if share_memory else part for part in parts]  # type: ignore[no-untyped-call]
    return tensors


def save_bin(
    folder: str | os.PathLike[str], tensors: Mapping[str, Sequence[Tensor]], record_keys: Iterable[str] | None = None
) -> None:
    """Write ``folder/<key>.bin`` and ``folder/meta.json``, byte for byte as AstrAI does.

    Args:
        folder: the folder to write to; it is created if it is missing.
        tensors: the tensors of each key, which are joined.
        record_keys: the keys whose tensors are records; ``meta.json`` holds their offsets.

    Raises:
        ConfigError: a key is unknown or impossible, or the format does not have the dtype.
        InputError: a key has no tensors or several dtypes, or keys have different numbers of records.
        OutputError: the system refuses a file.
    """
    check_local(folder)
    arrays = {key: _arrays(key, parts) for key, parts in tensors.items()}
    for key, parts in arrays.items():
        if len({part.dtype for part in parts}) != 1:
            found = ", ".join(dict.fromkeys(str(part.dtype) for part in parts)) or "none"
            raise InputError(f"{os.fspath(folder)}: key {key!r} needs tensors of one dtype, found {found}")
    records: Collection[str] = tuple(record_keys or ())
    _make(Path(folder))
    dtypes = {key: parts[0].dtype for key, parts in arrays.items()}
    with KeyedWriter(folder, dtypes=dtypes, offsets=records) as writer:
        writer.add_documents(
            {key: np.concatenate(parts) for key, parts in arrays.items()},
            {key: np.array([len(part) for part in arrays[key]], np.int64) for key in records},
        )
        writer.finish()


def load_bin(folder: str | os.PathLike[str]) -> dict[str, list[Tensor]]:
    """Map the file of each key as one tensor. Writes to a tensor stay in this process, and do not reach the disk.

    Raises:
        StoreError: there is no ``meta.json``, or the folder is damaged.
    """
    check_local(folder)
    import torch

    store = KeyedStore(folder)
    tensors = {}
    for key, dtype in store.dtypes.items():
        count = store.with_main(key).num_tokens
        # An empty file cannot be mapped.
        values = np.memmap(Path(folder) / f"{key}.bin", dtype, "c", shape=(count,)) if count else np.empty(0, dtype)
        tensors[key] = [torch.from_numpy(values)]
    return tensors


def _arrays(key: str, tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The tensors of a key as arrays.

    Raises:
        InputError: a value is not a one-dimensional tensor, or has a dtype that NumPy does not have, such as bfloat16.
    """
    import torch

    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 1:
            raise InputError(f"key {key!r}: expected one-dimensional tensors, found {type(tensor).__name__} {tensor!r}")
        if tensor.dtype == torch.bfloat16:
            raise InputError(f"key {key!r}: no format can hold bfloat16; convert the tensor to float32 first")
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make the folder: {error.strerror}") from error


class TensorStream:
    """The tensors of one key in memory, one for each record, with the face of the streams that a `Store` reads.

    A *nested* key has a list of tensors for each record, such as the responses of a group. It has no stream of tokens.
    """

    format = "tensors"

    def __init__(self, key: str, rows: Sequence[Any]) -> None:
        self.key = key
        self.is_nested = bool(rows) and isinstance(rows[0], list)
        self._whole: NDArray[Any] | None = None
        self._rows: list[Any]
        if self.is_nested:
            self._rows = [[part.numpy() for part in row] for row in rows]
        else:
            self._whole = np.concatenate([row.numpy() for row in rows]) if rows else np.empty(0)
            self._rows = np.split(self._whole, np.cumsum([len(row) for row in rows])[:-1]) if rows else []

    @property
    def num_documents(self) -> int:
        """The number of records."""
        return len(self._rows)

    @property
    def num_tokens(self) -> int:
        """The number of values of all records; 0 for a nested key."""
        return 0 if self._whole is None else len(self._whole)

    def document(self, number: int) -> Any:
        """The array of a record, or its list of arrays."""
        return self._rows[number]

    def fetch(self, begin: int, end: int) -> NDArray[Any]:
        """(end - begin,) values of the records one after another."""
        if self._whole is None:
            raise ConfigError(f"the key {self.key!r} holds lists of sequences: read it with fetch_record")
        return self._whole[begin:end]


Kind = type["Store"]


class Store:
    """The data at a path; empty until `load` is called. It is pickled as its paths, so workers can receive it.

    Tensors are copies. Files are mapped and read by ranges, so that all processes of a machine share one copy in the
    page cache.

    ``len(store)`` is the number of windows if ``window_size`` is above 0, and the number of records if it is 0. With
    None it is the number of records if the files say what a record is (``offsets``, or lines of JSON), and otherwise
    the number of tokens of the shortest key, as in the first versions of AstrAI.

    Args:
        window_size: tokens of a window.
        stride: tokens from the begin of one window to the next, by default the window size.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    """The formats of `headrace.stores` that this class reads."""

    wanted: ClassVar[str] = ""
    """The files that this class looks for, for messages."""

    def __init__(self, window_size: int | None = None, stride: int | None = None) -> None:
        self.window_size = window_size
        self.stride = stride or window_size
        self._streams: dict[str, HeadraceStore | TensorStream] = {}

    def load(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Open the data at a path; ``options`` are those of `headrace.open`.

        Raises:
            NoDataError: nothing is there. It is a FileNotFoundError.
            ConfigError: the data have another format.
            StoreError: the data are damaged, or their shards have different keys.
        """
        try:
            streams = open_keys(path, **options)
        except StoreError as error:
            if _is_empty(Path(path)):
                raise NoDataError(f"No {self.wanted} found under {os.fspath(path)}: {error}") from error
            raise
        for stream in streams.values():
            found = shards_of(stream)[0].format
            if found not in self.formats:
                raise ConfigError(
                    f"{os.fspath(path)}: {type(self).__name__} reads {self.wanted}, but the data there have the"
                    f" format {found!r}; detect_format says which store to use"
                )
        self._streams = dict(streams)

    @property
    def keys(self) -> list[str]:
        """The keys; empty before it is loaded."""
        return list(self._streams)

    @property
    def token_count(self) -> int:
        """The number of tokens of the shortest key; 0 before it is loaded."""
        return min((self._streams[key].num_tokens for key in self._flat_keys), default=0)

    @property
    def num_records(self) -> int:
        """The number of records that every key has: documents with offsets, datasets, or lines.

        It is 0 if the files do not say what a record is.
        """
        return min((_num_records(self._streams[key]) for key in self._flat_keys), default=0)

    @overload
    def fetch(self, begin: int, end: int, keys: str) -> Tensor: ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyList) -> dict[str, Tensor]: ...
    def fetch(self, begin: int, end: int, keys: str | KeyList) -> Tensor | dict[str, Tensor]:
        """(end - begin,) tokens of the stream of one key, or of several; empty if ``begin == end``.

        As in AstrAI, every key is read at the same places, whether the keys are parallel or not. `headrace.open`
        refuses keys whose places do not correspond.

        Raises:
            RuntimeError: nothing is loaded.
            ConfigError: the range exceeds the shortest key. It is a ValueError.
            KeyError: there is no such key.
        """
        self._check_loaded()
        length = self.token_count
        if not (0 <= begin < length and 0 <= end <= length):
            raise ConfigError(f"Index out of bounds: begin={begin}, end={end}, length={length}")
        if begin > end:
            raise ConfigError(f"Index out of bounds: begin={begin} is after end={end}, length={length}")
        return self._by_keys(keys, lambda stream: stream.fetch(begin, end))

    @overload
    def fetch_record(self, index: int, keys: str) -> Tensor: ...
    @overload
    def fetch_record(self, index: int, keys: KeyList) -> dict[str, Tensor]: ...
    def fetch_record(self, index: int, keys: str | KeyList) -> Tensor | dict[str, Tensor]:
        """(length,) tokens of one record; its length may differ between keys.

        Raises:
            RuntimeError: nothing is loaded.
            ConfigError: there is no such record, or the index is negative. It is a ValueError.
            KeyError: there is no such key.
        """
        self._check_loaded()
        if not 0 <= index < self.num_records:
            raise ConfigError(f"Record index out of bounds: index={index}, num_records={self.num_records}")
        return self._by_keys(keys, lambda stream: stream.document(index))

    def sample_window(self, index: int) -> tuple[int, int]:
        """The tokens at which a window begins and ends. The token at the end exists too, as the last target.

        Raises:
            RuntimeError: there is no window size.
            IndexError: there is no such window.
        """
        if not self.window_size or not self.stride:
            raise RuntimeError("sample_window needs a store with a window_size above 0")
        if not 0 <= index < self._num_windows:
            short = (
                "" if self._num_windows else f": Data too short, {self.token_count} tokens for {self.window_size} + 1"
            )
            raise IndexError(f"window {index} of {self._num_windows}{short}")
        begin = index * self.stride
        return begin, begin + self.window_size

    def share_memory_(self) -> Self:
        """Return the store itself, since mapped files are shared already."""
        return self

    def __len__(self) -> int:
        if self.window_size:
            return self._num_windows
        if self.window_size == 0 or (self._streams and all(map(_says_records, self._streams.values()))):
            return self.num_records
        return self.token_count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """A window of every key, or a record if there is no window size; negative indices count from the end."""
        count = self._num_windows if self.window_size else self.num_records
        if not -count <= index < count:
            raise IndexError(f"{'window' if self.window_size else 'record'} {index} of {count}")
        if self.window_size:
            return self.fetch(*self.sample_window(index % count), self._flat_keys)
        return self.fetch_record(index % count, self.keys)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.token_count:,} tokens of {', '.join(self.keys) or 'nothing'}>"

    @property
    def _flat_keys(self) -> list[str]:
        """The keys that hold one sequence for each record."""
        return [key for key, one in self._streams.items() if not (isinstance(one, TensorStream) and one.is_nested)]

    @property
    def _num_windows(self) -> int:
        slack = self.token_count - 1 - (self.window_size or 0)
        return slack // (self.stride or 1) + 1 if slack >= 0 else 0

    def _check_loaded(self) -> None:
        if not self._streams:
            raise RuntimeError("Store not loaded")

    def _by_keys(
        self, keys: str | KeyList, read: Callable[[HeadraceStore | TensorStream], Any]
    ) -> Tensor | dict[str, Tensor]:
        for key in [keys] if isinstance(keys, str) else keys:
            if key not in self._streams:
                raise KeyError(f"{key}; the keys are {', '.join(self._streams)}")
        if isinstance(keys, str):
            tensor: Tensor = _copied(read(self._streams[keys]))
            return tensor
        return {key: _copied(read(self._streams[key])) for key in keys}


class StoreFactory:
    """Makes a `Store` by the name of its format: ``"bin"``, ``"h5"``, ``"jsonl"``, or a registered one.

    Example:
        >>> store = headrace.compat.astrai.StoreFactory.create("bin", window_size=128)
        >>> store.load("stores/web")
        >>> store[0][store.keys[0]].shape
        torch.Size([128])
    """

    _kinds: ClassVar[dict[str, Kind]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[Kind], Kind]:
        """A decorator that registers a subclass of `Store` under a name.

        Raises:
            TypeError: it is not a subclass of `Store`.
            ConfigError: the name is in use.
        """

        def registered(kind: Kind) -> Kind:
            if not (isinstance(kind, type) and issubclass(kind, Store)):
                raise TypeError(f"{kind!r} is not a subclass of Store")
            if name in cls._kinds:
                raise ConfigError(f"the name {name!r} is already used by {cls._kinds[name].__name__}; choose another")
            cls._kinds[name] = kind
            return kind

        return registered

    @classmethod
    def create(cls, name: str, **options: Any) -> Store:
        """Make a store that is not loaded yet. As in AstrAI, options that its constructor does not have are ignored."""
        kind = cls.get_component_class(name)
        known = inspect.signature(kind).parameters
        return kind(**{option: value for option, value in options.items() if option in known})

    @classmethod
    def get_component_class(cls, name: str) -> Kind:
        """The class that is registered under a name. Raises ConfigError, a ValueError, if there is none."""
        if name not in cls._kinds:
            raise ConfigError(f"Unknown component: {name!r}. Supported types: {cls.list_registered()}")
        return cls._kinds[name]

    @classmethod
    def is_registered(cls, name: str) -> bool:
        """Whether a class is registered under the name."""
        return name in cls._kinds

    @classmethod
    def list_registered(cls) -> list[str]:
        """All registered names, sorted."""
        return sorted(cls._kinds)


def _builtin(name: FormatName) -> Callable[[Kind], Kind]:
    return StoreFactory.register(name)


@_builtin("h5")
class H5Store(Store):
    """Reads ``.h5`` files. A record is a dataset."""

    formats = ("hdf5",)
    wanted = ".h5 or .hdf5"


@_builtin("bin")
class MmapStore(Store):
    """Reads ``.bin`` files with a ``meta.json`` or an ``.idx``. A record is a document.

    Example:
        >>> store = headrace.compat.astrai.MmapStore()
        >>> store.load("stores/chats")
        >>> record = store.fetch_record(0, store.keys)
        >>> len(record["loss_mask"]) == len(record[store.keys[0]])
        True
    """

    formats = ("keyed", "indexed", "tntidx", "aleph-alpha")
    wanted = "meta.json"


@_builtin("jsonl")
class JsonlStore(Store):
    """Reads ``.jsonl`` files, of a folder only those at its top, in natural order.

    Without ``transform`` and ``processor`` the records must be tokens already, as `headrace prepare` writes them. Raw
    records are all kept in memory:

    - ``transform`` makes the tensors of all records when they are loaded, see `TokenizeTransform`;
    - ``processor`` makes those of one record when it is read, see `PreferenceProcessor`. Such a store has records only.
    """

    formats = ("jsonl",)
    wanted = ".jsonl"

    def __init__(self, window_size: int | None = None, stride: int | None = None) -> None:
        super().__init__(window_size, stride)
        self._raw: list[dict[str, Any]] = []
        self._processor: Processor | None = None

    def load(
        self,
        path: str | os.PathLike[str],
        transform: Transform | None = None,
        processor: Processor | None = None,
        **options: Any,
    ) -> None:
        """Open the data at a path; ``options`` are those of `headrace.open`, for records of tokens.

        Args:
            path: a file or a folder.
            transform: an object whose ``apply(records)`` returns, for each key, a list with a tensor for each record.
            processor: a function that makes a dict of tensors from a record.

        Raises:
            InputError: a line is not a JSON object. AstrAI leaves such lines out.
            NoDataError, ConfigError, StoreError: as `Store.load`; and ConfigError for ``transform`` or ``processor``
                together with each other, or with options.
        """
        if transform is None and processor is None:
            return super().load(path, **options)
        if options or (transform is not None and processor is not None):
            raise ConfigError(
                f"{os.fspath(path)}: give either transform, or processor, or options of headrace.open; found"
                f" {[name for name, one in (('transform', transform), ('processor', processor)) if one]} {options}"
            )
        records = read_records(path)
        if transform is not None:
            self._streams = {key: TensorStream(key, rows) for key, rows in transform.apply(records).items()}
            return None
        self._raw, self._processor = records, processor
        return None

    @property
    def keys(self) -> list[str]:
        """The keys; with a processor, those that it makes of the first record."""
        return list(self._processor(self._raw[0])) if self._processor and self._raw else super().keys

    @property
    def num_records(self) -> int:
        """The number of records."""
        return len(self._raw) if self._processor else super().num_records

    def fetch(self, begin: int, end: int, keys: str | KeyList) -> Any:
        """As `Store.fetch`.

        Raises:
            RuntimeError: there is a processor, and so no stream of tokens.
        """
        if self._processor:
            raise RuntimeError("a JsonlStore with a processor reads records: use fetch_record")
        return super().fetch(begin, end, keys)

    def fetch_record(self, index: int, keys: str | KeyList) -> Any:
        """As `Store.fetch_record`; keys that hold lists of sequences give a list of tensors."""
        if not self._processor:
            return super().fetch_record(index, keys)
        if not 0 <= index < self.num_records:
            raise ConfigError(f"Record index out of bounds: index={index}, num_records={self.num_records}")
        made = self._processor(self._raw[index])
        return made[keys] if isinstance(keys, str) else {key: made[key] for key in keys}

    def __len__(self) -> int:
        return self.num_records if self._processor else super().__len__()


class Transform(Protocol):
    """What `JsonlStore` takes as ``transform``: `TokenizeTransform`, or AstrAI's own."""

    def apply(self, records: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """Return, for each key, a list with the tensor of each record, or with its list of tensors."""


Processor = Callable[[dict[str, Any]], dict[str, Any]]
"""What `JsonlStore` takes as ``processor``."""


def record_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file itself, or the ``.jsonl`` files at the top of a folder, in natural order.

    Raises:
        NoDataError: there are none.
    """
    check_local(path)
    place = Path(path)
    found = [place] if place.is_file() else sorted(place.glob("*.jsonl"), key=lambda one: natural_key(one.name))
    if not found:
        raise NoDataError(f"No .jsonl found under {place}")
    return found


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All records of a file, or of the files at the top of a folder; blank lines are left out.

    Raises:
        NoDataError: there are no files.
        InputError: a line is not a JSON object.
    """
    records = []
    for file in record_files(path):
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            if line.strip():
                try:
                    records.append(msgspec.json.decode(line, type=dict[str, Any]))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise InputError(
                        f"{file}: line {number}: not a JSON object: {error}; correct or remove the line (AstrAI leaves"
                        " it out)"
                    ) from error
    return records


def holds_texts(path: str | os.PathLike[str]) -> bool:
    """Whether the first record holds texts or messages, and not tokens."""
    for file in record_files(path):
        with file.open("rb") as lines:
            for line in lines:
                if line.strip():
                    try:
                        record = msgspec.json.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        return False  # whoever reads it names the fault
                    values = list(record.values()) if isinstance(record, dict) else []
                    firsts = [value[0] if isinstance(value, list) and value else value for value in values]
                    return any(isinstance(first, str | dict) for first in firsts)
    return False


def _copied(value: Any) -> Any:
    import torch

    return (
        [torch.from_numpy(part.copy()) for part in value] if isinstance(value, list) else torch.from_numpy(value.copy())
    )


def shards_of(stream: HeadraceStore) -> tuple[HeadraceStore, ...]:
    """Return the shards of a store, or the store itself if it has none."""
    return stream.shards if isinstance(stream, ShardedStore) else (stream,)


def lacks_offsets(shard: HeadraceStore) -> bool:
    """Return whether a shard is of the keyed format and does not say where its records begin."""
    return isinstance(shard, KeyedStore) and not shard.has_offsets


def _says_records(stream: HeadraceStore | TensorStream) -> bool:
    """Whether the files say what a record is. A dataset of HDF5 may hold one record or all of them."""
    if isinstance(stream, TensorStream):
        return True
    return not any(lacks_offsets(shard) or shard.format == "hdf5" for shard in shards_of(stream))


def _num_records(stream: HeadraceStore | TensorStream) -> int:
    if isinstance(stream, TensorStream):
        return stream.num_documents
    return 0 if any(map(lacks_offsets, shards_of(stream))) else stream.num_documents


def _is_empty(place: Path) -> bool:
    try:
        detect_format(place)
    except NoDataError:
        return True
    except ConfigError:
        return False
    return False
