"""AstrAI's stores, the streams of several keys as tensors, and its functions of whole files.

AstrAI's functions of whole files: which format lies at a path, and tensors into it and out of it.
"""

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
    """There is nothing to load at a path."""


def detect_format(path: str | os.PathLike[str]) -> FormatName:
    """Which of AstrAI's formats lies at a path; of several in a folder ``"h5"`` is before ``"bin"`` before ``"jsonl"``.

    Hidden files and folders are left out, and a pair of ``.bin`` and ``.idx`` is ``"bin"``, too.

    Raises:
        ConfigError: a file of another suffix; it is a ValueError.
        NoDataError: nothing is there; it is a FileNotFoundError.
    """
    check_local(path)
    place = Path(path)
    if place.is_file():
        suffix = place.suffix.lower()
        if suffix in (".h5", ".hdf5"):
            return "h5"
        if suffix == ".jsonl":
            return "jsonl"
        raise ConfigError(f"Unsupported file format: {suffix or place.name!r}; a file is .h5, .hdf5 or .jsonl")
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
    """Write ``folder/name.h5``, each tensor a dataset of its key; the folder is made. The file appears whole.

    Raises:
        ConfigError: a name that leaves the folder, no keys, or a dtype that the format does not have.
        InputError: tensors of several dtypes in a key, or of more dimensions than one.
        OutputError: the system refuses.
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
    """Every dataset below a path, in memory: for each key its tensors, files in natural order.

    Args:
        path: a folder or a file.
        share_memory: move the tensors to shared memory, as ``Tensor.share_memory_`` does.
        order: of the datasets in a file; ``"name"`` is AstrAI's own, data_10 before data_2.

    Raises:
        StoreError: no such files, or they are damaged, or of different keys.
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
    """Write ``folder/<key>.bin`` and ``folder/meta.json``, byte for byte as AstrAI; the folder is made.

    Args:
        folder: where.
        tensors: for each key its tensors, which are joined.
        record_keys: the keys whose tensors are records: ``meta.json`` gets their offsets.

    Raises:
        ConfigError: an unknown or impossible key, or a dtype that the format does not have.
        InputError: a key without tensors or with several dtypes, or keys with different numbers of records.
        OutputError: the system refuses.
    """
    check_local(folder)
    arrays = {key: _arrays(key, parts) for key, parts in tensors.items()}
    for key, parts in arrays.items():
        if len({part.dtype for part in parts}) != 1:
            found = ", ".join(dict.fromkeys(str(part.dtype) for part in parts)) or "none"
            raise InputError(f"{os.fspath(folder)}: key {key!r} needs tensors of one dtype; found {found}")
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
    """For each key one tensor over its mapped file. What is written into it stays in this process, and off the disk.

    Raises:
        StoreError: no ``meta.json``, or the folder is damaged.
    """
    check_local(folder)
    import torch

    store = KeyedStore(folder)
    tensors = {}
    for key, dtype in store.dtypes.items():
        count = store.with_main(key).num_tokens
        # A file of no bytes cannot be mapped.
        values = np.memmap(Path(folder) / f"{key}.bin", dtype, "c", shape=(count,)) if count else np.empty(0, dtype)
        tensors[key] = [torch.from_numpy(values)]
    return tensors


def _arrays(key: str, tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The tensors of a key as arrays.

    Raises:
        InputError: something else, or a dtype that NumPy does not have, as bfloat16.
    """
    import torch

    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 1:
            raise InputError(f"key {key!r}: expected one-dimensional tensors, found {type(tensor).__name__} {tensor!r}")
        if tensor.dtype == torch.bfloat16:
            raise InputError(f"key {key!r}: bfloat16 is in none of the formats; convert it to float32 first")
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make the folder: {error.strerror}") from error


Kind = type["Store"]


class Store:
    """What lies at a path; empty until it is loaded. Safe to hand to workers: it pickles as its paths.

    Tensors are copies of their own. Files are mapped, so that all processes of a machine share one copy in the page
    cache, and are read by ranges.

    ``len(store)`` is the number of windows with a ``window_size`` above 0, and of records with 0. Without one it is
    the number of records where the files say what a record is (``offsets``, or lines of JSON), else the tokens of the
    shortest key, as in the first versions.

    Args:
        window_size: tokens of a window.
        stride: from one window to the next, by default the window.
    """

    formats: ClassVar[tuple[str, ...]] = ()
    """Of `headrace.stores`, that a store of this class may have."""

    wanted: ClassVar[str] = ""
    """What it looks for, for messages."""

    def __init__(self, window_size: int | None = None, stride: int | None = None) -> None:
        self.window_size = window_size
        self.stride = stride or window_size
        self._streams: dict[str, HeadraceStore] = {}

    def load(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Open what lies at a path; ``options`` are those of `headrace.open`.

        Raises:
            NoDataError: nothing is there; it is a FileNotFoundError.
            ConfigError: it is of another format.
            StoreError: it is damaged, or its shards have different keys.
        """
        try:
            streams = open_keys(path, **options)
        except StoreError as error:
            if _is_empty(Path(path)):
                raise NoDataError(f"No {self.wanted} found under {os.fspath(path)}: {error}") from error
            raise
        for stream in streams.values():
            found = _shards(stream)[0].format
            if found not in self.formats:
                raise ConfigError(
                    f"{os.fspath(path)}: {type(self).__name__} reads {self.wanted}, and what lies there is of the"
                    f" format {found!r}; detect_format says which store to take"
                )
        self._streams = streams

    @property
    def keys(self) -> list[str]:
        """The keys; none before it is loaded."""
        return list(self._streams)

    @property
    def token_count(self) -> int:
        """Tokens of the shortest key; 0 before it is loaded."""
        return min((stream.num_tokens for stream in self._streams.values()), default=0)

    @property
    def num_records(self) -> int:
        """Records that every key has: documents with offsets, datasets, or lines; 0 where the files say of none."""
        return min(map(_num_records, self._streams.values()), default=0)

    @overload
    def fetch(self, begin: int, end: int, keys: str) -> Tensor: ...
    @overload
    def fetch(self, begin: int, end: int, keys: KeyList) -> dict[str, Tensor]: ...
    def fetch(self, begin: int, end: int, keys: str | KeyList) -> Tensor | dict[str, Tensor]:
        """(end - begin,) tokens of the stream of a key, or of several; empty where ``begin == end``.

        Every key is read at the same places, parallel or not, as AstrAI does: for parity. `headrace.open` refuses keys
        whose places do not belong together.

        Raises:
            RuntimeError: nothing is loaded.
            ConfigError: outside of the shortest key; it is a ValueError.
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
        """(length,) tokens of one record, of each key as many as it has there.

        Raises:
            RuntimeError: nothing is loaded.
            ConfigError: there is no such record, negative ones among them; it is a ValueError.
            KeyError: there is no such key.
        """
        self._check_loaded()
        if not 0 <= index < self.num_records:
            raise ConfigError(f"Record index out of bounds: index={index}, num_records={self.num_records}")
        return self._by_keys(keys, lambda stream: stream.document(index))

    def sample_window(self, index: int) -> tuple[int, int]:
        """Where a window begins and ends; the token at its end is there, too, for the last target.

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
        """The store itself: its files are mapped, and mapped memory is shared already."""
        return self

    def __len__(self) -> int:
        if self.window_size:
            return self._num_windows
        if self.window_size == 0 or (self._streams and all(map(_says_records, self._streams.values()))):
            return self.num_records
        return self.token_count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Of every key a window, or without a window size a record; negative indices count from the end."""
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
    """Makes a `Store` by the name of its format: ``"bin"``, ``"h5"``, ``"jsonl"``, or one that was registered."""

    _kinds: ClassVar[dict[str, Kind]] = {}

    @classmethod
    def register(cls, name: str) -> Callable[[Kind], Kind]:
        """A decorator for a store of one's own. Raises TypeError for another class, ConfigError for a name in use."""

        def registered(kind: Kind) -> Kind:
            if not (isinstance(kind, type) and issubclass(kind, Store)):
                raise TypeError(f"{kind!r} is no subclass of Store")
            if name in cls._kinds:
                raise ConfigError(f"the name {name!r} is that of {cls._kinds[name].__name__} already")
            cls._kinds[name] = kind
            return kind

        return registered

    @classmethod
    def create(cls, name: str, **options: Any) -> Store:
        """A store that is not loaded; options that its constructor does not name are left out, as AstrAI does."""
        kind = cls.get_component_class(name)
        known = inspect.signature(kind).parameters
        return kind(**{option: value for option, value in options.items() if option in known})

    @classmethod
    def get_component_class(cls, name: str) -> Kind:
        """The class of a name. Raises ConfigError, which is a ValueError, where there is none."""
        if name not in cls._kinds:
            raise ConfigError(f"Unknown component: {name!r}. Supported types: {cls.list_registered()}")
        return cls._kinds[name]

    @classmethod
    def is_registered(cls, name: str) -> bool:
        """Whether there is one."""
        return name in cls._kinds

    @classmethod
    def list_registered(cls) -> list[str]:
        """All names, sorted."""
        return sorted(cls._kinds)


def _builtin(name: FormatName) -> Callable[[Kind], Kind]:
    return StoreFactory.register(name)


@_builtin("h5")
class H5Store(Store):
    """Of ``.h5`` files. A record is a dataset."""

    formats = ("hdf5",)
    wanted = ".h5 or .hdf5"


@_builtin("bin")
class MmapStore(Store):
    """Of ``.bin`` files with a ``meta.json``, or with an ``.idx``. A record is a document."""

    formats = ("keyed", "indexed", "tntidx", "aleph-alpha")
    wanted = "meta.json"


@_builtin("jsonl")
class JsonlStore(Store):
    """Of ``.jsonl`` files of records that are tokens already; `headrace prepare` makes them of text."""

    formats = ("jsonl",)
    wanted = ".jsonl"


def _shards(stream: HeadraceStore) -> tuple[HeadraceStore, ...]:
    return stream.shards if isinstance(stream, ShardedStore) else (stream,)


def _says_records(stream: HeadraceStore) -> bool:
    """Whether the files say what a record is; a dataset of HDF5 may be one, or all of them."""
    return all(
        shard.has_offsets if isinstance(shard, KeyedStore) else shard.format != "hdf5" for shard in _shards(stream)
    )


def _num_records(stream: HeadraceStore) -> int:
    without = any(isinstance(shard, KeyedStore) and not shard.has_offsets for shard in _shards(stream))
    return 0 if without else stream.num_documents


def _is_empty(place: Path) -> bool:
    try:
        detect_format(place)
    except NoDataError:
        return True
    except ConfigError:
        return False
    return False
