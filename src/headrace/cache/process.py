"""`CacheProcess`: what belongs to one process in the folder of a cache.

These are its connection to the index, the file that it holds locked while it lives, the blocks that it has open, and
those that its threads fetch. A process that was forked needs another one.

The file that says what the folder of a cache is: its version, and the bytes of a block.
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
from threading import Lock
from typing import Any, Final, Literal

import msgspec
import xxhash

from headrace.errors import ConfigError, StoreError
from headrace.io import FilePool, atomic_write, json_bytes, output_errors, read_small, unique_name
from headrace.io.readers import OpenFile
from headrace.io.sqlite import Connection

FOLDER_NAME: Final = "headrace-cache.json"

_VERSION: Final = 3


class _Folder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``headrace-cache.json``."""

    kind: Literal["headrace.cache"] = "headrace.cache"
    version: int = _VERSION
    block_bytes: int


def read_folder(folder: Path) -> int | None:
    """Return the bytes of the blocks in the folder of a cache; None if there is nothing yet.

    Raises:
        ConfigError: the folder is none of a cache, or of another version.
    """
    try:
        data = read_small(folder / FOLDER_NAME)
    except FileNotFoundError:
        try:
            found = next(folder.iterdir(), None)
        except FileNotFoundError:
            return None
        if found is not None and not found.name.startswith(f".{FOLDER_NAME}."):
            if (folder / FOLDER_NAME).exists():
                # Another process has made it meanwhile.
                return read_folder(folder)
            raise ConfigError(
                f"{folder}: holds {found.name} and no {FOLDER_NAME}, so it is no cache: name a folder of its own, since"
                " a cache removes what is in it"
            ) from None
        return None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror or error}") from error
    try:
        return msgspec.json.decode(data, type=_Folder).block_bytes
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{folder / FOLDER_NAME}: {error}: it is damaged, or of another version of Headrace: remove the folder"
        ) from error


def make_folder(folder: Path, block_bytes: int) -> None:
    """Make the folder of a cache, unless it is there.

    Raises:
        ConfigError: it holds other files, or blocks of another size.
        OutputError: it cannot be written.
    """
    with output_errors(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    found = read_folder(folder)
    if found is None:
        atomic_write(folder / FOLDER_NAME, json_bytes(_Folder(block_bytes=block_bytes)))
        found = read_folder(folder)
    if found != block_bytes:
        raise ConfigError(
            f"{folder}: holds blocks of {found:,} bytes, and {block_bytes:,} are asked for: use block={found}, or clear"
            " the cache by removing the folder"
        )
    with output_errors(folder, "write into"):
        (folder / "blocks").mkdir(exist_ok=True)


SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS blocks (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL, label TEXT NOT NULL,
    owner TEXT, digest TEXT);
CREATE INDEX IF NOT EXISTS by_label ON blocks (label);
CREATE TABLE IF NOT EXISTS totals (label TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS more AFTER INSERT ON blocks BEGIN
    INSERT INTO totals VALUES (NEW.label, NEW.bytes) ON CONFLICT (label) DO UPDATE SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER IF NOT EXISTS fewer AFTER DELETE ON blocks BEGIN
    UPDATE totals SET bytes = bytes - OLD.bytes WHERE label = OLD.label; END;
CREATE TABLE IF NOT EXISTS uses (owner TEXT NOT NULL, label TEXT NOT NULL, PRIMARY KEY (owner, label)) WITHOUT ROWID;
"""
"""``blocks`` have an owner while a process fetches them, and a digest after that. ``uses`` says who reads what."""

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


def read_pieces(descriptor: int, pieces: Iterable[tuple[int, memoryview]]) -> bool:
    """Read pieces of an open file, each from a byte on, and return whether it had all of their bytes."""
    for begin, view in pieces:
        count = 0
        while count < len(view):
            more = _pread(descriptor, view[count:], begin + count)
            if more <= 0:
                return False
            count += more
    return True


def _mark(name: str, descriptor: int) -> int:
    """Return a hash of what tells an open file of a block from others."""
    status = os.fstat(descriptor)
    return hash((name, status.st_ino, status.st_size, status.st_mtime_ns))


def _digest(descriptor: int) -> str:
    """Return the hash of an open file, as far as the disk can read it."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    at = 0
    with contextlib.suppress(OSError):
        while count := os.preadv(descriptor, [buffer], at):
            hasher.update(buffer[:count])
            at += count
    return hasher.hexdigest()


def _connected(place: str | Path) -> sqlite3.Connection:
    return sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=Connection)


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
        claimed: the blocks that threads of this process fetch.
        labels: those by which this process reads, as far as the index knows.
        index: the connection; to an empty index in memory, if that of the folder cannot be used.
        index_fault: why the index of the folder cannot be used; empty if it can.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self.owner = unique_name()
        self.labels: set[str] = set()
        self._folder = folder
        self._files = FilePool(_OPEN_BLOCKS)
        self.claimed: set[str] = set()
        # Hashes of name, inode, size and time: a file that another process has written anew is verified anew.
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
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the index that nobody else writes in; it is undone by any exception.

        Raises:
            IndexFullError: the disk is full.
            IndexFaultError: the index is damaged, and is not used from now on.
        """
        with self.lock:
            try:
                self.index.execute("BEGIN IMMEDIATE")
                try:
                    yield self.index
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

    def is_claimed(self, name: str, owner: str | None) -> bool:
        """Return whether a living process, or another thread of this one, fetches a block of this owner."""
        return name in self.claimed if owner == self.owner else self.lives(owner)

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

    def path(self, name: str) -> Path:
        """Return the path of a block."""
        return self._folder / "blocks" / name[:2] / name

    def open(self, name: str) -> OpenFile | Literal["torn"] | None:
        """Open the file of a block, and compare all of it with its hash, once in this process.

        This takes about a millisecond for 8 MiB in the page cache. Return None if there is no file, and ``"torn"`` if
        it holds other bytes than were written.
        """
        file: OpenFile | None = self._files.get(name)
        if file is not None:
            return file
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        file = OpenFile(os.fstat(descriptor).st_size, fd=descriptor)
        if (mark := _mark(name, descriptor)) not in self._verified:
            rows = self.ask("SELECT digest FROM blocks WHERE name = ? AND owner IS NULL", name)
            if not rows:
                return None
            if _digest(descriptor) != rows[0][0]:
                return "torn"
            self._verified.add(mark)
        self._files.make_room()
        self._files.put(name, file)
        return file

    def note_written(self, name: str, descriptor: int) -> None:
        """Take an open file for verified, which this process has written."""
        self._verified.add(_mark(name, descriptor))

    def remove(self, name: str) -> None:
        """Remove a block from the index, within `changing`, and its file."""
        self.index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        self._files.drop(name)
        with contextlib.suppress(FileNotFoundError):
            self.path(name).unlink()
