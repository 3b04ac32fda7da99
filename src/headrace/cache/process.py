"""`CacheProcess`: what belongs to one process in the folder of a cache.

These are its connection to the index, the file that it holds locked while it lives, the blocks that it has open, and
those that its threads fetch. A process that was forked needs another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, Literal, NamedTuple

import xxhash

from headrace.cache.eviction import SCHEMA, Wanted, file_name
from headrace.errors import StoreError
from headrace.io import FilePool, output_errors, unique_name
from headrace.io.readers import OpenFile

_BUSY_S: Final = 60.0
_OPEN_BLOCKS: Final = 64
"""The most blocks that a process has open. One that was evicted takes room on the disk until it is closed."""

_READ_BYTES: Final = 1 << 20
_FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the other one for a message with a damaged name."""

_log = logging.getLogger("headrace")
_C: Final = ctypes.PyDLL(None)
_C.pread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong
_C.pread.restype = ctypes.c_ssize_t


class IndexFaultError(Exception):
    """The index cannot be changed, or not any more."""


class IndexFullError(IndexFaultError):
    """The disk has no room for a change of the index, which was undone."""


def _pread(descriptor: int, view: memoryview, at: int) -> int:
    """Read into ``view`` from a byte on, and return how many bytes came; less than 0 if the system reports an error.

    It keeps the interpreter lock, unlike `os.preadv`. A thread that lets go of it for each of some hundred small pieces
    that lie in the page cache gets it back late each time, from a loop that launches kernels after milliseconds.
    """
    target = ctypes.c_char.from_buffer(view)
    count: int = _C.pread(descriptor, ctypes.addressof(target), len(view), at)
    return count


class OpenBlock(NamedTuple):
    """An open file of a part of a block, and the byte of the block where it begins."""

    file: OpenFile
    first: int

    def has(self, wanted: Wanted) -> bool:
        """Return whether all that is wanted is in the part."""
        return self.first <= wanted.begin and wanted.end <= self.first + self.file.size

    def read(self, pieces: Iterable[tuple[int, memoryview]]) -> bool:
        """Read pieces, see `BlockStore.read`, and return whether the file had all of their bytes."""
        descriptor, first = self.file.fd, self.first
        for begin, view in pieces:
            at, count = begin - first, 0
            while count < len(view):
                more = _pread(descriptor, view[count:], at + count)
                if more <= 0:
                    return False
                count += more
        return True


def _mark(file: str, descriptor: int) -> int:
    """Return a hash of what tells an open file of a block from others."""
    status = os.fstat(descriptor)
    return hash((file, status.st_ino, status.st_size, status.st_mtime_ns))


def _digest(block: OpenBlock) -> str:
    """Return the hash of an open file of a block, as far as the disk can read it."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    at = 0
    with contextlib.suppress(OSError):
        while count := os.preadv(block.file.fd, [buffer], at):
            hasher.update(buffer[:count])
            at += count
    return hasher.hexdigest()


def _connected(place: str | Path) -> sqlite3.Connection:
    return sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from entering the folder meanwhile: SQLite does not wait for a change of journal mode."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class CacheProcess:
    """Enters this process into the folder of a cache.

    Args:
        folder: the folder, as `make_folder` makes it.

    Attributes:
        lock: is held by a thread that uses the index.
        owner: the name of the process in the index and in ``owners``.
        index: the connection; to an empty index in memory, if that of the folder cannot be used.
        index_fault: why the index of the folder cannot be used; empty if it can.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self.owner = unique_name()
        self._folder = folder
        self._files = FilePool(_OPEN_BLOCKS)
        self._claimed: dict[str, Event] = {}
        # Hashes of file, inode, size and time: a file that another process has written anew is verified anew.
        self._verified: set[int] = set()
        self.index_fault = ""
        path = folder / "owners" / self.owner
        with output_errors(path, "create"):
            path.parent.mkdir(exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # The lock is gone when the process is, and the processes that it forked.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            self.index = _connected(folder / "index.sqlite")
            with _alone(folder):
                self.index.execute("PRAGMA journal_mode=WAL")
                self.index.execute("PRAGMA synchronous=NORMAL")
                self.index.executescript(SCHEMA)
        except _FAULTS as error:
            self._lose_index(error)

    def leave(self) -> None:
        """Let go of the lock of the process that forked this one; its connection must stay as it is."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """A transaction that nobody else writes in; it is undone by any exception.

        Raises:
            IndexFullError: the disk is full.
            IndexFaultError: the index is damaged, and is not used from now on.
        """
        with self.lock:
            try:
                self.index.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # SQLite undoes some failures by itself
                        self.index.execute("ROLLBACK")
                    raise
                self.index.execute("COMMIT")
            except _FAULTS as error:
                if "full" in str(error):
                    raise IndexFullError(str(error)) from error
                self._lose_index(error)
                raise IndexFaultError(str(error)) from error

    def ask(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query of the index, as of an empty one if it is damaged."""
        with self.lock:
            try:
                return self.index.execute(query, values).fetchall()
            except _FAULTS as error:
                self._lose_index(error)
                return self.index.execute(query, values).fetchall()

    def _lose_index(self, error: Exception) -> None:
        """Go on as with an empty cache that keeps nothing."""
        self.index_fault = (
            f"{self._folder / 'index.sqlite'}: the index of the cache cannot be used: {error}: if it is damaged, remove"
            f" {self._folder} and everything in it, while no run uses it"
        )
        _log.warning("%s; this process reads without the cache", self.index_fault)
        self.index = _connected(":memory:")
        self.index.executescript(SCHEMA)

    def claim(self, name: str) -> None:
        """Note that a thread of this process fetches a block."""
        self._claimed[name] = Event()

    @contextlib.contextmanager
    def waking(self, name: str) -> Iterator[None]:
        """When the block is finished, wake the threads that wait for it."""
        try:
            yield
        finally:
            if (event := self._claimed.pop(name, None)) is not None:
                event.set()

    def fetched(self, name: str) -> Event | None:
        """Return what is set when a thread of this process is done with a block; None if no thread fetches it."""
        return self._claimed.get(name)

    def is_claimed(self, name: str, owner: str | None) -> bool:
        """Return whether a living process, or another thread of this one, fetches a block of this owner."""
        return name in self._claimed if owner == self.owner else self.lives(owner)

    def lives(self, owner: str | None) -> bool:
        """Return whether the process of this name lives."""
        if not owner:
            return False
        path = self._folder / "owners" / owner
        try:
            with path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        with contextlib.suppress(OSError):
            path.unlink()
        return False

    def path(self, file: str) -> Path:
        """Return the path of a file of a block."""
        return self._folder / "blocks" / file[:2] / file

    def open(self, wanted: Wanted) -> OpenBlock | Literal["torn"] | None:
        """Open the file that has what is wanted of a block, and compare all of it with its hash, once in this process.

        This takes about a millisecond for 8 MiB in the page cache. Return None if there is no file, and ``"torn"`` if
        it holds other bytes than were written.
        """
        name = wanted.name
        block: OpenBlock | None = self._files.get(name)
        if block is not None:
            if block.has(wanted):
                return block
            self._files.drop(name)
        found = self._open_file(name, 0)
        if found is None or _mark(name, found.file.fd) not in self._verified:
            rows = self.ask(
                "SELECT file, first, bytes, digest FROM blocks WHERE name = ? AND owner IS NULL"
                " UNION ALL SELECT file, first, bytes, digest FROM leaving WHERE name = ?",
                name,
                name,
            )
            if not rows or not (rows[0][1] <= wanted.begin and wanted.end <= rows[0][1] + rows[0][2]):
                return None
            file, first, num_bytes, digest = rows[0]
            found = self._open_file(file, first)
            if found is None:
                return None
            # The name says where the part begins, too, so that the index cannot be wrong about it alone.
            if file != file_name(name, wanted.size, first, first + num_bytes) or _digest(found) != digest:
                return "torn"
            self._verified.add(_mark(file, found.file.fd))
        self._files.make_room()
        self._files.put(name, found)
        return found

    def note_written(self, file: str, descriptor: int) -> None:
        """Take an open file for verified, which this process has written."""
        self._verified.add(_mark(file, descriptor))

    def _open_file(self, file: str, first: int) -> OpenBlock | None:
        path = self.path(file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        return OpenBlock(OpenFile(os.fstat(descriptor).st_size, fd=descriptor), first)

    def unlink(self, name: str, file: str) -> None:
        """Remove the file of a block."""
        self._files.drop(name)
        with contextlib.suppress(FileNotFoundError):
            self.path(file).unlink()
