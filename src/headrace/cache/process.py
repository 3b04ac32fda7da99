"""`CacheProcess`: what belongs to one process in the folder of a cache.

These are its connection to the index, the file that it holds locked while it lives, the blocks that it has open, and
those that its threads fetch. A process that was forked needs another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import Final, Literal, NamedTuple

from headrace.cache.eviction import SCHEMA, Wanted
from headrace.errors import StoreError
from headrace.io import FilePool, output_errors, unique_name
from headrace.io.readers import OpenFile

_BUSY_S: Final = 60.0
_OPEN_BLOCKS: Final = 64
"""The most blocks that a process has open. One that was evicted takes room on the disk until it is closed."""

_C: Final = ctypes.PyDLL(None)
_C.pread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong
_C.pread.restype = ctypes.c_ssize_t


class IndexFullError(Exception):
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
        index: the connection.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self.owner = unique_name()
        self._folder = folder
        self._files = FilePool(_OPEN_BLOCKS)
        self._claimed: dict[str, Event] = {}
        path = folder / "owners" / self.owner
        with output_errors(path, "create"):
            path.parent.mkdir(exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # The lock is gone when the process is, and the processes that it forked.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.index = sqlite3.connect(
            folder / "index.sqlite", timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        with _alone(folder):
            self.index.execute("PRAGMA journal_mode=WAL")
            self.index.execute("PRAGMA synchronous=NORMAL")
            self.index.executescript(SCHEMA)

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
            StoreError: SQLite cannot change the index.
        """
        with self.lock:
            try:
                self.index.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    self.index.execute("ROLLBACK")
                    raise
                self.index.execute("COMMIT")
            except sqlite3.Error as error:
                if "full" in str(error):
                    raise IndexFullError(str(error)) from error
                raise StoreError(
                    f"{self._folder / 'index.sqlite'}: the index of the cache cannot be changed: {error}; if it is"
                    f" damaged, remove {self._folder} and everything in it"
                ) from error

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
        """Open the file that has what is wanted of a block.

        Return None if there is none, and ``"torn"`` if it has not as many bytes as the index says.
        """
        name = wanted.name
        block: OpenBlock | None = self._files.get(name)
        if block is not None:
            if block.has(wanted):
                return block
            self._files.drop(name)
        found = self._open_file(name, 0, wanted.size)
        if found is None:
            with self.lock:
                row = self.index.execute(
                    "SELECT file, first, bytes FROM blocks WHERE name = ? AND owner IS NULL"
                    " UNION ALL SELECT file, first, bytes FROM leaving WHERE name = ?",
                    (name, name),
                ).fetchone()
            if row is None or not (row[1] <= wanted.begin and wanted.end <= row[1] + row[2]):
                return None
            found = self._open_file(*row)
        if isinstance(found, OpenBlock):
            self._files.make_room()
            self._files.put(name, found)
        return found

    def _open_file(self, file: str, first: int, num_bytes: int) -> OpenBlock | Literal["torn"] | None:
        path = self.path(file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        found = OpenFile(os.fstat(descriptor).st_size, fd=descriptor)
        return OpenBlock(found, first) if found.size == num_bytes else "torn"

    def unlink(self, name: str, file: str) -> None:
        """Remove the file of a block."""
        self._files.drop(name)
        with contextlib.suppress(FileNotFoundError):
            self.path(file).unlink()
