"""Where the large files that a cooker asks for wait until they are used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from headrace.datasets.media.file_stores import FileStore
from headrace.samples.media import SourceInfo, add_sources


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
