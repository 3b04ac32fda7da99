"""The files below the root of an input: those of a local folder, or the objects below a URL.

A `NamedFile` is a file as it was found. It is opened where its first bytes decide something, and read as a whole when
its shard is written, see `filling`.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import xxhash

from headrace.errors import InputError, OutputError, StoreError
from headrace.io import AnyPath, Storage, etag_of, file_sum, is_url, path_at, read_whole, reader_of, safe_relative
from headrace.io.remote import Status
from headrace.preparing.shards.listing import ListedFile

_MAX_KEY_BYTES: Final = 1024
"""The longest name of an object."""


class NamedFile(NamedTuple):
    """An existing file below a root."""

    name: str
    size: int
    mtime_ns: int
    etag: str
    files: FilesBelow

    def open(self, *, num_bytes: int | None) -> BinaryIO:
        """Open the file, see `FilesBelow.open`."""
        return self.files.open(self, num_bytes=num_bytes)


class FilesBelow(ABC):
    """The files below a root.

    Args:
        root: absolute path of the folder, or its URL.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    @abstractmethod
    def find(self, name: str) -> NamedFile | None:
        """Return the file of a relative name; None if what has this name is not a file.

        Raises:
            OSError, ValueError: there is none.
            StoreError: the store cannot be reached.
        """

    @abstractmethod
    def holds(self, value: str) -> bool:
        """Return whether any text is the relative name of a file.

        Raises:
            StoreError: the store cannot be reached.
        """

    @abstractmethod
    def as_listed(self, file: ListedFile) -> NamedFile:
        """Return a file that was listed when the run began.

        Raises:
            InputError: it has changed since. Of an object, the reads say so.
        """

    @abstractmethod
    def open(self, file: NamedFile, *, num_bytes: int | None) -> BinaryIO:
        """Open a file.

        Args:
            file: the file.
            num_bytes: how many bytes will be read, from the first on; None if that is not known.

        Raises:
            OSError: it cannot be opened.
        """


class LocalFiles(FilesBelow):
    """The files below a local folder."""

    def find(self, name: str) -> NamedFile | None:
        """See `FilesBelow.find`."""
        path = Path(self.root, name)
        status = path.stat()
        return NamedFile(name, status.st_size, status.st_mtime_ns, "", self) if path.is_file() else None

    def holds(self, value: str) -> bool:
        """See `FilesBelow.holds`."""
        return Path(self.root, value).is_file()

    def as_listed(self, file: ListedFile) -> NamedFile:
        """See `FilesBelow.as_listed`."""
        try:
            status = Path(self.root, file.name).stat()
        except OSError as error:
            raise InputError(f"{self.root}/{file.name}: cannot be read: {error.strerror or error}") from error
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise InputError(f"{self.root}/{file.name}: the file changed during the run; run again when it is complete")
        return NamedFile(file.name, file.size, file.mtime_ns, "", self)

    def open(self, file: NamedFile, *, num_bytes: int | None) -> BinaryIO:
        """See `FilesBelow.open`."""
        return Path(self.root, file.name).open("rb")


class ObjectFiles(FilesBelow):
    """The objects below a URL. Nothing is remembered of them, since there may be any number.

    Args:
        root: the URL.
        storage: how the store is reached; None goes by the environment.
    """

    def __init__(self, root: str, storage: Storage | None) -> None:
        super().__init__(root)
        self._storage = storage

    def find(self, name: str) -> NamedFile:
        """See `FilesBelow.find`: one HEAD."""
        path = self._at(name)
        status, etag = path.stat(), etag_of(path)
        return NamedFile(name, status.st_size, 0 if etag else status.st_mtime_ns, etag, self)

    def holds(self, value: str) -> bool:
        """See `FilesBelow.holds`."""
        if len(value.encode(errors="replace")) > _MAX_KEY_BYTES or not _is_plain(value):
            return False
        try:
            self.find(value)
        except FileNotFoundError:
            return False
        return True

    def as_listed(self, file: ListedFile) -> NamedFile:
        """See `FilesBelow.as_listed`."""
        return NamedFile(file.name, file.size, file.mtime_ns, file.etag, self)

    def open(self, file: NamedFile, *, num_bytes: int | None) -> BinaryIO:
        """See `FilesBelow.open`."""
        expected = Status(file.size, file.etag, file.mtime_ns)
        files = import_module("headrace.io.objects.files")
        return io.BufferedReader(files.ObjectFile(url_of(self.root, file.name), expected, self._storage, end=num_bytes))

    def _at(self, name: str) -> AnyPath:
        # Each path has look-ups of its own.
        return path_at(url_of(self.root, name), reader_of(self._storage))


def files_below(root: str, storage: Storage | None) -> FilesBelow:
    """Return the files below the root of an input."""
    return ObjectFiles(root, storage) if is_url(root) else LocalFiles(root)


def url_of(root: str, name: str) -> str:
    """Return the URL of an object below a root."""
    return str(path_at(root) / name)


def digests(root: str, listed: Sequence[ListedFile], storage: Storage | None) -> Iterator[bytes]:
    """Yield the xxh3_128 of each file of a folder; objects are fetched several at a time.

    Raises:
        StoreError: a file cannot be read.
    """
    if not is_url(root):
        for file in listed:
            yield bytes.fromhex(file_sum(Path(root, file.name)).xxh3_128)
        return
    files = import_module("headrace.io.objects.files")
    urls = ((url_of(root, file.name), Status(file.size, file.etag, file.mtime_ns)) for file in listed)
    data = files.fetched((part for url, expected in urls for part in files.parts_of(url, expected)), storage)
    for file in listed:
        hasher = xxhash.xxh3_128()
        left = file.size
        while left:
            piece = next(data)
            hasher.update(piece)
            left -= len(piece)
        yield hasher.digest()


def at(base: str, name: str) -> str:
    """Return the place of a file in a folder, or below a URL."""
    return url_of(base, name) if is_url(base) else str(Path(base, name))


def read_at(place: str) -> bytes:
    """Read a whole file of the run, which lies on this host or at a URL.

    Raises:
        OutputError: the file cannot be read back.
        StoreError: the object is not there any more, or cannot be read.
    """
    path = path_at(place)
    try:
        return read_whole(path)
    except OSError as error:
        kind = StoreError if is_url(place) else OutputError
        raise kind(f"{path}: cannot be read back: {error.strerror or error}") from error


def _is_plain(name: str) -> bool:
    try:
        safe_relative(name)
    except StoreError:
        return False
    return True
