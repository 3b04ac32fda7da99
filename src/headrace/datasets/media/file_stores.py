"""Files by name, for cookers: other parts of a dataset, or another dataset beside it.

aux={"pages": "pages/", "scans": "filesystem://scans"}     cook(crude, *, pages, scans)
pages["book/0017.png"]                                     (image, SourceInfo)
scans.get("0017.tif", crude)                               image; its source is added to those of the sample

A `CachePool` returns `Lazy` files, which are read when they are used.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, ClassVar, Final

import numpy as np

from headrace.errors import ConfigError, SampleError
from headrace.io import Reader, hash_bytes
from headrace.plan.recipe import CONTENTS
from headrace.samples.media import MediaFacts, SampleDecoder, SourceInfo, add_sources, media_facts
from headrace.stores import EnergonStore, FilesystemStore, JsonlSamplesStore, SampleStore, open as open_store
from headrace.stores.tar.members import sample_part

FILESYSTEM: Final = "filesystem://"
"""Prefix of the path of a folder whose plain files are meant, even if it holds a dataset."""


class FileStore(ABC):
    """Files by name. Safe in threads and across a fork; can be pickled.

    ``FileStore[bytes]`` is the same class; the type of the files is for readers of an annotation.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    @abstractmethod
    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        """Return the content of a file, and where it was read.

        Raises:
            KeyError: there is no such file.
            StoreError: the file cannot be read, or its name leads elsewhere.
            SampleError: the file cannot be decoded.
        """

    def get(self, name: str, sample: Any = None) -> Any:
        """Return the content of a file, and add where it was read to the sources of ``sample``, if one is given."""
        value, info = self[name]
        if sample is not None:
            add_sources(sample, info)
        return value

    @abstractmethod
    def get_path(self) -> str:
        """Return the path of the dataset that holds the files."""

    def get_media_metadata(self, name: str) -> MediaFacts:
        """Return facts about a media file without reading it: ``facts.width``, or ``facts["width"]``.

        Raises:
            KeyError: there are none for this file, or this store has none at all.
            StoreError: none were gathered for this dataset.
        """
        raise KeyError(f"{self!r} has no media metadata of {name!r}; {type(self).__name__} has no get_media_metadata")

    @property
    def fingerprint(self) -> str | None:
        """Identifies the content; None if that would take a pass over all files."""
        return None

    @property
    def layout_fingerprint(self) -> str | None:
        """The same without the contents of files, as `headrace.stores.AnyStore.layout_fingerprint`."""
        return self.fingerprint

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.get_path()!r}>"


def contents_of(store: SampleStore, aux: Sequence[FileStore] = ()) -> dict[str, str]:
    """Return the entry of a recipe for the contents of files that the layouts of stores do not tell."""
    prints = [store.contents_fingerprint, *(files.fingerprint for files in aux)]
    is_told = prints == [store.layout_fingerprint, *(files.layout_fingerprint for files in aux)]
    return {} if is_told else {CONTENTS: hash_bytes(repr(prints).encode())}


class _StoreFiles(FileStore):
    """The files of one store."""

    def __init__(self, store: SampleStore) -> None:
        self.store = store

    def get_path(self) -> str:
        """Return the path of the dataset."""
        return self.store.path

    def get_media_metadata(self, name: str) -> MediaFacts:
        """Return the facts that Energon gathered; other datasets have none."""
        store = self.store
        if not isinstance(store, EnergonStore | FilesystemStore):
            raise KeyError(f"{store.path}: has no media metadata; the format {store.format} has none")
        found = store.media_metadata(name)
        if found is None:
            raise KeyError(f"{store.path}: no media metadata of {name!r}; energon prepare-media gathers it")
        return media_facts(found)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the store."""
        return self.store.fingerprint

    @property
    def layout_fingerprint(self) -> str | None:
        """That of the store."""
        return self.fingerprint and self.store.layout_fingerprint


class WebdatasetFileStore(_StoreFiles):
    """Members of tar shards by their full names, ``"cats/0017.jpg"``; in Energon datasets of any split part.

    About 60 us a file if the dataset has an ``index.sqlite`` of parts; otherwise the first file takes a pass over all
    headers. Shards stay open.
    """

    def __init__(self, store: SampleStore) -> None:
        super().__init__(store)
        self._names = tuple(store.info.shard_counts) if isinstance(store, EnergonStore) else ()

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        split = sample_part(name)
        if split is None:
            raise KeyError(
                f"{self.store.path}: {name!r} is not the name of a part; expected KEY.PART, such as cats/0017.jpg"
            )
        shard, data = self._found(name, *split)
        return data, SourceInfo(dataset_path=self.store.path, index=name, shard_name=shard, file_names=(name,))

    def _found(self, name: str, key: str, part: str) -> tuple[str, bytes]:
        store = self.store
        if isinstance(store, EnergonStore) and store.index is not None and store.index.has_parts:
            data = store.part(name)  # raises if the row belongs to other shards
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


class SystemFileStore(_StoreFiles):
    """The files of a folder by their names in it; names that lead out of the folder are refused."""

    store: FilesystemStore

    def __init__(self, folder: str | os.PathLike[str] | FilesystemStore, *, using: str | Reader = "pread") -> None:
        super().__init__(folder if isinstance(folder, FilesystemStore) else FilesystemStore(folder, using=using))

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        path = self.store.path
        return self.store.part(name), SourceInfo(dataset_path=path, index=name, shard_name=path, file_names=(name,))

    @property
    def fingerprint(self) -> None:
        """None: the files of a folder are not read."""


class JsonlFileStore(_StoreFiles):
    """The records of a ``.jsonl`` by number, ``"17.json"``."""

    def __getitem__(self, name: str) -> tuple[bytes, SourceInfo]:
        if not name.endswith(".json"):
            raise KeyError(f"{self.store.path}: {name!r} is not the name of a record; names are 0.json, 1.json ...")
        raw = self.store.read(np.array([self.store.find(name.removesuffix(".json"))]))[0]
        info = SourceInfo(dataset_path=self.store.path, index=raw.index, shard_name=raw.shard, file_names=(name,))
        return raw.parts["json"], info


class _Wrapped(FileStore):
    """A file store around another one, whose files it returns in another way."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner

    def get_path(self) -> str:
        """Return the path of the inner store's dataset."""
        return self.inner.get_path()

    def get_media_metadata(self, name: str) -> MediaFacts:
        """Return the inner store's facts about a file."""
        return self.inner.get_media_metadata(name)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the inner store."""
        return self.inner.fingerprint

    @property
    def layout_fingerprint(self) -> str | None:
        """That of the inner store."""
        return self.inner.layout_fingerprint


class DecodeFileStore(_Wrapped):
    """The files of another store, decoded by their extensions."""

    def __init__(self, inner: FileStore, *, decoder: SampleDecoder) -> None:
        super().__init__(inner)
        self.decoder = decoder

    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        data, info = self.inner[name]
        return self.decoded(name, data, info), info

    def decoded(self, name: str, data: bytes, info: SourceInfo | None) -> Any:
        """Return the content of a file that was read. Raises SampleError if it cannot be decoded."""
        try:
            return self.decoder.decode_file(name, data)
        except SampleError as error:
            shard = None if info is None else f"{info.dataset_path}/{info.shard_name or ''}".rstrip("/")
            placed = error.at(shard=shard, key=name)
            raise placed from placed.__cause__


class PrimaryFileStore(_Wrapped):
    """The files of a sample's own dataset; a name that begins with a dot, ``".jpg"``, is a part of the sample."""

    def __init__(self, inner: FileStore, current_key: str) -> None:
        super().__init__(inner)
        self.current_key = current_key

    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        return self.inner[self._full(name)]

    def get_media_metadata(self, name: str) -> MediaFacts:
        """Return the inner store's facts about a file, or a part of the sample."""
        return self.inner.get_media_metadata(self._full(name))

    def _full(self, name: str) -> str:
        return f"{self.current_key}{name}" if name.startswith(".") else name


def file_store(place: FileStore | SampleStore | str | os.PathLike[str], remote: Reader | None = None) -> FileStore:
    """Return the files of a dataset: of a path that `headrace.open` accepts, ``filesystem://FOLDER``, or an open store.

    Args:
        place: the dataset.
        remote: what reads it if it is at a URL; None for a reader that goes by the environment.

    Raises:
        ConfigError: the place holds no samples, or is a join.
        StoreError: the place cannot be opened.
    """
    if isinstance(place, FileStore):
        return place
    if isinstance(place, str) and place.startswith(FILESYSTEM):
        folder = place.removeprefix(FILESYSTEM)
        return SystemFileStore(folder, using=remote or "pread")
    store = place if isinstance(place, SampleStore) else open_store(place, reader=remote or "mmap")
    if isinstance(store, FilesystemStore):
        return SystemFileStore(store)
    if isinstance(store, SampleStore):
        # Files are read by name here, also those of samples that no run may be trained on.
        store = store.whole
    if isinstance(store, JsonlSamplesStore):
        return JsonlFileStore(store)
    if not isinstance(store, SampleStore) or store.format == "joined":
        raise ConfigError(
            f"{place}: is not a dataset of files; expected tar shards, an Energon dataset, a .jsonl of samples, or a"
            f" folder as {FILESYSTEM}FOLDER"
        )
    return WebdatasetFileStore(store)


class Lazy:
    """A file that is read when it is first asked for; equal to any other with the same store and name.

    ``Lazy[str]`` is the same class; the type of the content is for readers of an annotation.
    """

    __slots__ = ("_found", "_read", "fname", "source")
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    def __init__(self, read: Callable[[], tuple[Any, SourceInfo | None]], fname: str, source: object) -> None:
        self._read = read
        self._found: tuple[Any, SourceInfo | None] | None = None
        self.fname = fname
        self.source = source

    def get(self, sample: Any = None) -> Any:
        """Return the content; where it was read is added to the sources of ``sample``, if one is given."""
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
    """Hands out files to cookers: what a cooker with ``@cooker(need_cache=True)`` gets as ``cache=``."""

    @abstractmethod
    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """Read a file now and return its content; adds its source to ``sample``."""

    @abstractmethod
    def get_lazy(self, ds: FileStore, fname: str) -> Lazy:
        """Return a file to be read later by `Lazy.get`."""

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy:
        """Store a value that was already computed, to be asked for later."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that is held."""


class NoCachePool(CachePool):
    """Keeps nothing: each `Lazy` reads its file when it is used, however often others read the same file."""

    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """Read the file."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore, fname: str) -> Lazy:
        """Return a `Lazy` that reads the file when it is used."""
        return Lazy(lambda: ds[fname], fname, ds)

    def to_cache(self, data: Any, name: str) -> Lazy:
        """Return a `Lazy` that holds the value in memory as long as it lives."""
        return Lazy(lambda: (data, None), name, object())

    def close(self) -> None:
        """Do nothing: nothing is held."""
