"""The files below the root of an input: those of a local folder, or the objects below a URL.

A file is opened where its first bytes decide something, and read as a whole when its shard is written.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Generator, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

import xxhash

from headrace.errors import InputError, OutputError, StoreAwayError, StoreError
from headrace.io import AnyPath, Storage, holds, path_at, reader_of, safe_relative
from headrace.io.finding import open_found, status_of
from headrace.io.remote import Status
from headrace.preparing.shards.listing import ListedFile, listed

CHUNK_BYTES: Final = 4 << 20
_MAX_KEY_BYTES: Final = 1024
"""The longest name of an object."""


class FilesBelow:
    """The files below a root. Nothing is remembered of them, since there may be any number.

    Args:
        root: absolute path of the folder, or its URL.
        storage: how the store of a URL is reached; None goes by the environment.
    """

    def __init__(self, root: str, storage: Storage | None) -> None:
        self.root = root
        self._storage = storage

    def find(self, name: str) -> ListedFile | None:
        """Return the file of a relative name; None if what has this name is not a file. Of an object: one HEAD.

        Raises:
            OSError, ValueError: there is none.
            StoreError: the store cannot be reached.
        """
        path = self._at(name)
        found = listed(name, path)
        return found if path.is_file() else None

    def holds(self, value: str) -> bool:
        """Return whether any text is the relative name of a file.

        Raises:
            StoreError: the store cannot be reached.
        """
        if not isinstance(path_at(self.root), Path) and not _may_be_key(value):
            return False
        return holds(self._at(value).is_file)

    def check(self, file: ListedFile) -> None:
        """Look whether a file is as it was when it was listed.

        Raises:
            InputError: it has changed since. Of an object with an ETag, the reads say so.
        """
        try:
            found = file if file.etag else self.find(file.name)
        except OSError as error:
            raise InputError(f"{self.root}/{file.name}: cannot be read: {error.strerror or error}") from error
        if found != file:
            raise InputError(f"{self.root}/{file.name}: the file changed during the run; run again when it is complete")

    def open(self, file: ListedFile, *, num_bytes: int | None) -> BinaryIO:
        """Open a file.

        Args:
            file: the file.
            num_bytes: how many bytes will be read, from the first on; None if that is not known.

        Raises:
            OSError: it cannot be opened.
        """
        path = str(self._at(file.name))
        return io.BufferedReader(open_found(path, file.status, self._storage, end=num_bytes))

    def _at(self, name: str) -> AnyPath:
        # Each path has look-ups of its own.
        return path_at(self.root, reader_of(self._storage)) / name


def contents_of(files: Iterable[tuple[str, ListedFile]], storage: Storage | None) -> Generator[Iterator[Any]]:
    """Yield the bytes of each file, in pieces that are used up before the next file; some objects are fetched ahead.

    Args:
        files: the folder, or the URL, of each file, and what it was when it was found.
        storage: how the store of a URL is reached.

    Raises:
        InputError: a file cannot be read, or has changed.
        StoreError: the same of an object.
    """
    places, wanted = itertools.tee((path_at(root) / file.name, file.status) for root, file in files)
    with contextlib.closing(_fetched(wanted, storage)) as objects:
        for path, found in places:
            yield _local_bytes(path, found) if isinstance(path, Path) else _next_bytes(objects, found.size)


def _fetched(files: Iterable[tuple[AnyPath, Status]], storage: Storage | None) -> Generator[Any]:
    objects = import_module("headrace.io.objects.lookups")
    urls = ((str(path), found) for path, found in files if not isinstance(path, Path))
    parts = (part for url, found in urls for part in objects.parts_of(url, found))
    yield from objects.Objects(storage).in_turn(parts)


def _next_bytes(objects: Iterator[Any], size: int) -> Iterator[Any]:
    while size:
        try:
            data = next(objects)
        except StoreAwayError:
            raise
        except StoreError as error:
            raise StoreError(f"{error}. If objects were replaced, run again with --restart.") from None
        size -= len(data)
        yield data


def _local_bytes(path: Path, found: Status) -> Iterator[bytes]:
    left = found.size
    try:
        with path.open("rb", buffering=0) as file:
            while left and (data := file.read(min(left, CHUNK_BYTES))):
                left -= len(data)
                yield data
            changed = bool(left or file.read(1)) or path.stat().st_mtime_ns != found.modified_ns
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}. Nothing was written.") from error
    if changed:
        raise InputError(
            f"{path}: the file changed during the run: it had {found.size:,} bytes. Wait until it is complete, then run"
            " again with --restart."
        )


def digests(files: Iterable[tuple[str, ListedFile]], storage: Storage | None) -> Iterator[bytes]:
    """Yield the xxh3_128 of each file; takes and raises what `contents_of` does."""
    for pieces in contents_of(files, storage):
        hasher = xxhash.xxh3_128()
        for data in pieces:
            hasher.update(data)
        yield hasher.digest()


def read_range(place: str, begin: int, end: int, storage: Storage | None) -> bytes:
    """Read bytes of a file of the run, which lies on this host or at a URL.

    Raises:
        OutputError: they cannot be read back.
        StoreError: the object is not there any more, or cannot be read.
    """
    path = path_at(place, reader_of(storage))
    try:
        with io.BufferedReader(open_found(place, status_of(path), storage, end=end)) as file:
            file.seek(begin)
            return file.read(end - begin)
    except OSError as error:
        kind = OutputError if isinstance(path, Path) else StoreError
        raise kind(f"{place}: cannot be read back: {error.strerror or error}") from error


def _may_be_key(name: str) -> bool:
    try:
        return len(safe_relative(name).encode(errors="replace")) <= _MAX_KEY_BYTES
    except StoreError:
        return False
