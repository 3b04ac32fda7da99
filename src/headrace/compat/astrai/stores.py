"""AstrAI's stores, which read streams of several keys as tensors, and its functions for whole files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import check_local
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
        self._streams: dict[str, HeadraceStore] = {}

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
        self._streams = streams

    @property
    def keys(self) -> list[str]:
        """The keys; empty before it is loaded."""
        return list(self._streams)

    @property
    def token_count(self) -> int:
        """The number of tokens of the shortest key; 0 before it is loaded."""
        return min((stream.num_tokens for stream in self._streams.values()), default=0)

    @property
    def num_records(self) -> int:
        """The number of records that every key has: documents with offsets, datasets, or lines.

        It is 0 if the files do not say what a record is.
        """
        return min(map(_num_records, self._streams.values()), default=0)

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
            raise IndexError(f"window {index} of {self._num_windows}")
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
            return self.fetch(*self.sample_window(index % count), self.keys)
        return self.fetch_record(index % count, self.keys)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.token_count:,} tokens of {', '.join(self.keys) or 'nothing'}>"

    @property
    def _num_windows(self) -> int:
        slack = self.token_count - 1 - (self.window_size or 0)
        return slack // (self.stride or 1) + 1 if slack >= 0 else 0

    def _check_loaded(self) -> None:
        if not self._streams:
            raise RuntimeError("Store not loaded")

    def _by_keys(
        self, keys: str | KeyList, read: Callable[[HeadraceStore], NDArray[Any]]
    ) -> Tensor | dict[str, Tensor]:
        import torch

        for key in [keys] if isinstance(keys, str) else keys:
            if key not in self._streams:
                raise KeyError(f"{key}; the keys are {', '.join(self._streams)}")
        if isinstance(keys, str):
            return torch.from_numpy(read(self._streams[keys]).copy())
        return {key: torch.from_numpy(read(self._streams[key]).copy()) for key in keys}


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
    """Reads ``.jsonl`` files of records that are already tokens; `headrace prepare` makes them from text."""

    formats = ("jsonl",)
    wanted = ".jsonl"


def shards_of(stream: HeadraceStore) -> tuple[HeadraceStore, ...]:
    """Return the shards of a store, or the store itself if it has none."""
    return stream.shards if isinstance(stream, ShardedStore) else (stream,)


def lacks_offsets(shard: HeadraceStore) -> bool:
    """Return whether a shard is of the keyed format and does not say where its records begin."""
    return isinstance(shard, KeyedStore) and not shard.has_offsets


def _says_records(stream: HeadraceStore) -> bool:
    """Whether the files say what a record is. A dataset of HDF5 may hold one record or all of them."""
    return not any(lacks_offsets(shard) or shard.format == "hdf5" for shard in shards_of(stream))


def _num_records(stream: HeadraceStore) -> int:
    return 0 if any(map(lacks_offsets, shards_of(stream))) else stream.num_documents


def _is_empty(place: Path) -> bool:
    try:
        detect_format(place)
    except NoDataError:
        return True
    except ConfigError:
        return False
    return False
