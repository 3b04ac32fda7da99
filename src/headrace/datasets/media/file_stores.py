"""Files by name, for cookers: other parts of a dataset, or another dataset beside it; large ones wait until used.

aux={"pages": "pages/", "scans": "filesystem://scans"}     cook(crude, *, pages, scans)
pages["book/0017.png"]                                     (image, SourceInfo)
scans.get("0017.tif", crude)                               image; its source is added to those of the sample

Where the large files that a cooker asks for wait until they are used.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError, SampleError
from headrace.samples.media import SampleDecoder, SourceInfo, add_sources
from headrace.stores import EnergonStore, FilesystemStore, JsonlSamplesStore, SampleStore
from headrace.stores import open as open_store
from headrace.stores.quarantine import QuarantinedStore
from headrace.stores.tar.names import sample_part

FILESYSTEM: Final = "filesystem://"
"""Before the path of a folder whose files are meant, whatever is in it."""


class FileStore(ABC):
    """Files by name. Safe in threads and across a fork; pickles."""

    @abstractmethod
    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        """The content of a file, and where it was read.

        Raises:
            KeyError: there is no such file.
            StoreError: it cannot be read, or its name leads elsewhere.
            SampleError: it cannot be decoded.
        """

    def get(self, name: str, sample: Any = None) -> Any:
        """The content of a file; where it was read is added to the sources of ``sample``, if one is given."""
        value, info = self[name]
        if sample is not None:
            add_sources(sample, info)
        return value

    @abstractmethod
    def get_path(self) -> str:
        """The path of the dataset that holds the files."""

    @abstractmethod
    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """Facts of a media file without reading it: ``{"type": "image", "width": 640, ...}``.

        Raises:
            KeyError: there are none of this file.
            StoreError: none were gathered for this dataset.
        """

    @property
    def fingerprint(self) -> str | None:
        """What tells this content from another; None where that would take a pass over all files."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.get_path()!r}>"


class WebdatasetFileStore(FileStore):
    """Members of tar shards by their full names, ``"cats/0017.jpg"``; one of Energon's in whichever split part.

    About 60 us a file where the dataset has an ``index.sqlite`` of parts; else the first one takes a pass over all
    headers. Shards stay open.
    """

    def __init__(self, store: SampleStore) -> None:
        self.store = store
        self._names = tuple(store.info.shard_counts) if isinstance(store, EnergonStore) else ()

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        split = sample_part(name)
        if split is None:
            raise KeyError(f"{self.store.path}: {name!r} is no name of a part: KEY.PART, as cats/0017.jpg")
        shard, data = self._found(name, *split)
        return data, SourceInfo(dataset_path=self.store.path, index=name, shard_name=shard, file_names=(name,))

    def _found(self, name: str, key: str, part: str) -> tuple[str, bytes]:
        store = self.store
        if isinstance(store, EnergonStore) and store.index is not None and store.index.has_parts:
            data = store.part(name)  # which raises for a row that is of other shards
            row = store.index.part(key, part)
            return "" if row is None else self._names[row.shard], data
        try:
            number = store.find(key)
        except KeyError:
            raise KeyError(f"{store.path}: no sample {key!r}") from None
        raw = store.read(np.array([number]), (part,))[0]
        if part not in raw.parts:
            raise KeyError(f"{store.path}: sample {key!r} has no part {part!r}")
        return raw.shard, raw.parts[part]

    def get_path(self) -> str:
        """The path of the dataset."""
        return self.store.path

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """See `FileStore`; only what Energon prepared has any."""
        return _metadata(self.store, name)

    @property
    def fingerprint(self) -> str:
        """That of the store."""
        return self.store.fingerprint


class SystemFileStore(FileStore):
    """The files of a folder by their names in it; none that leads out of it."""

    def __init__(self, folder: str | os.PathLike[str] | FilesystemStore) -> None:
        self.store = folder if isinstance(folder, FilesystemStore) else FilesystemStore(folder)

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        path = self.store.path
        return self.store.part(name), SourceInfo(dataset_path=path, index=name, shard_name=path, file_names=(name,))

    def get_path(self) -> str:
        """The path of the folder."""
        return self.store.path

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """See `FileStore`."""
        return _metadata(self.store, name)


class JsonlFileStore(FileStore):
    """The records of a ``.jsonl`` by number, ``"17.json"``."""

    def __init__(self, store: JsonlSamplesStore) -> None:
        self.store = store

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        if not name.endswith(".json"):
            raise KeyError(f"{self.store.path}: {name!r} is no name of a record; they are 0.json, 1.json ...")
        raw = self.store.read(np.array([self.store.find(name.removesuffix(".json"))]))[0]
        info = SourceInfo(dataset_path=self.store.path, index=raw.index, shard_name=raw.shard, file_names=(name,))
        return raw.parts["json"], info

    def get_path(self) -> str:
        """The path of the file."""
        return self.store.path

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """None: raises KeyError."""
        return _metadata(self.store, name)

    @property
    def fingerprint(self) -> str:
        """That of the store."""
        return self.store.fingerprint


class _Wrapped(FileStore):
    """Files of another store."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner

    def get_path(self) -> str:
        """The path of the dataset."""
        return self.inner.get_path()

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """See `FileStore`."""
        return self.inner.get_media_metadata(name)

    @property
    def fingerprint(self) -> str | None:
        """That of the store within."""
        return self.inner.fingerprint


class DecodeFileStore(_Wrapped):
    """The files of another store, decoded by their extensions."""

    def __init__(self, inner: FileStore, *, decoder: SampleDecoder) -> None:
        super().__init__(inner)
        self.decoder = decoder

    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        data, info = self.inner[name]
        try:
            return self.decoder.decode(_extension(name), data), info
        except SampleError as error:
            placed = error.at(shard=str(Path(info.dataset_path, info.shard_name)), key=name)
            raise placed from placed.__cause__


class PrimaryFileStore(_Wrapped):
    """The files of the dataset of a sample: a name that begins with a dot, ``".jpg"``, is a part of the sample."""

    def __init__(self, inner: FileStore, current_key: str) -> None:
        super().__init__(inner)
        self.current_key = current_key

    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        return self.inner[self._full(name)]

    def get_media_metadata(self, name: str) -> dict[str, Any]:
        """See `FileStore`."""
        return self.inner.get_media_metadata(self._full(name))

    def _full(self, name: str) -> str:
        return f"{self.current_key}{name}" if name.startswith(".") else name


def file_store(place: FileStore | SampleStore | str | os.PathLike[str]) -> FileStore:
    """The files of a dataset: a path as `headrace.open` takes it, ``filesystem://FOLDER``, or a store that is open.

    Raises:
        ConfigError: it holds no samples, or is a join.
        StoreError: it cannot be opened.
    """
    if isinstance(place, FileStore):
        return place
    if isinstance(place, str) and place.startswith(FILESYSTEM):
        return SystemFileStore(place.removeprefix(FILESYSTEM))
    store = place if isinstance(place, SampleStore) else open_store(place)
    if isinstance(store, FilesystemStore):
        return SystemFileStore(store)
    if isinstance(store, QuarantinedStore):
        # Files are asked for by name: what no run is to be trained on may be beside what it is.
        store = store.inner
    if isinstance(store, JsonlSamplesStore):
        return JsonlFileStore(store)
    if not isinstance(store, SampleStore) or store.format == "joined":
        raise ConfigError(
            f"{place}: is no dataset of files; give tar shards, a dataset of Energon, a .jsonl of samples, or a folder"
            f" as {FILESYSTEM}FOLDER"
        )
    return WebdatasetFileStore(store)


def _metadata(store: SampleStore, name: str) -> dict[str, Any]:
    if not isinstance(store, EnergonStore | FilesystemStore):
        raise KeyError(f"{store.path}: has no media metadata, {store.format} keeps none")
    found = store.media_metadata(name)
    if found is None:
        raise KeyError(f"{store.path}: no media metadata of {name!r}; energon prepare-media gathers it")
    return found


def _extension(name: str) -> str:
    """What a decoder goes by: ``jpg``, ``json.gz``; the file itself where it has none."""
    stem, _, last = name.rpartition("/")[2].rpartition(".")
    inner = stem.rpartition(".")[2] if last == "gz" and "." in stem else ""
    return f"{inner}.{last}" if inner else last


class Lazy:
    """A file that is read when it is first asked for; equal to any other of the same store and name."""

    __slots__ = ("_found", "_read", "fname", "source")

    def __init__(self, read: Callable[[], tuple[Any, SourceInfo | None]], fname: str, source: object) -> None:
        self._read = read
        self._found: tuple[Any, SourceInfo | None] | None = None
        self.fname = fname
        self.source = source

    def get(self, sample: Any = None) -> Any:
        """The content; where it was read is added to the sources of ``sample``, if one is given."""
        if self._found is None:
            self._found = self._read()
        value, info = self._found
        if sample is not None and info is not None:
            add_sources(sample, info)
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self.source is other.source and self.fname == other.fname

    def __hash__(self) -> int:
        return hash((id(self.source), self.fname))

    def __repr__(self) -> str:
        return f"<Lazy {self.fname!r}>"


class CachePool(ABC):
    """What a cooker under ``@cooker(need_cache=True)`` gets as ``cache=``."""

    @abstractmethod
    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """The content of a file at once; adds its source to ``sample``."""

    @abstractmethod
    def get_lazy(self, ds: FileStore, fname: str) -> Lazy:
        """The content of a file later, by `Lazy.get`."""

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy:
        """Hand over something that is made already, to be asked for later."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class NoCachePool(CachePool):
    """Keeps nothing: a file is read when its `Lazy` is used, however often others ask for it."""

    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """Reads it."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore, fname: str) -> Lazy:
        """Reads nothing."""
        return Lazy(lambda: ds[fname], fname, ds)

    def to_cache(self, data: Any, name: str) -> Lazy:
        """Holds it in memory as long as the `Lazy` lives."""
        return Lazy(lambda: (data, None), name, object())

    def close(self) -> None:
        """Nothing to do."""
