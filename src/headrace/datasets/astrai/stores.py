"""AstrAI's stores: the streams of several keys, addressed alike, as tensors."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

from headrace.datasets.astrai.files import FormatName, NoDataError, detect_format
from headrace.errors import ConfigError, StoreError
from headrace.stores import KeyedStore, ShardedStore, open_keys
from headrace.stores import Store as HeadraceStore
from headrace.stores.arguments import KeyList

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

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
