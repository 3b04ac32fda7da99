"""`BlockStore`: blocks in a folder, shared by all processes of a node, and an index that says which of them are whole.

    folder/headrace-cache.json      what the folder is: its version, and the bytes of a block
    folder/index.sqlite             blocks with their owners and checksums, and their next uses by run
    folder/blocks/7f/7f3a...-12     block 12 of the file whose identity hashes to 7f3a...
    folder/owners/HOST.PID.RANDOM   a file that its process holds locked for as long as it lives

A block is written under a temporary name, synced and renamed, so that it is there whole or not at all; then the index
says so. A process that wants to fetch a block first enters itself as its owner. If it dies, its lock is gone, and the
next process that wants the block takes its place. Files are removed only if the index lists them.

The index is changed in transactions of SQLite, which a kill cannot tear. A process that was forked opens it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, StoreError
from headrace.io import FilePool, atomic_write, json_bytes, output_errors, unique_name, write_all
from headrace.io.readers import OpenFile

ByteArray = NDArray[np.uint8]
Policy = Literal["plan", "pin"]
Claim = Literal["ours", "theirs", "bypass"]

FOLDER_NAME: Final = "headrace-cache.json"
NEVER: Final = 1 << 62
"""The next use of a block that is not used again."""

_VERSION: Final = 1
_BUSY_S: Final = 60.0
_PAUSE_S: Final = 30.0
"""How long a process keeps no new blocks after a block could not be written."""

_OPEN_BLOCKS: Final = 64
"""The most blocks that a process has open. One that was evicted takes room on the disk until it is closed."""

_CANDIDATES: Final = 16
_NO_RUN: Final = ""
"""Stands for a run in the uses of blocks that no run has told of."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS blocks (
    name TEXT PRIMARY KEY, bytes INTEGER NOT NULL, owner TEXT, digest TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (id INTEGER PRIMARY KEY CHECK (id = 0), bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO totals VALUES (0, 0);
CREATE TRIGGER IF NOT EXISTS more AFTER INSERT ON blocks BEGIN
    UPDATE totals SET bytes = bytes + NEW.bytes; END;
CREATE TRIGGER IF NOT EXISTS fewer AFTER DELETE ON blocks BEGIN
    UPDATE totals SET bytes = bytes - OLD.bytes; END;
CREATE TABLE IF NOT EXISTS runs (
    owner TEXT NOT NULL, run TEXT NOT NULL, step INTEGER NOT NULL, step_s REAL NOT NULL,
    PRIMARY KEY (owner, run)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uses (
    run TEXT NOT NULL, name TEXT NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_next ON uses (run, next);
CREATE INDEX IF NOT EXISTS by_name ON uses (name);
"""

_log = logging.getLogger("headrace")


class CacheStats(msgspec.Struct, kw_only=True):
    """What a process, and the workers of its loaders, have read through a cache so far.

    Attributes:
        hits: reads of a block that was there.
        fetched_blocks: blocks that were fetched whole and kept.
        waited_blocks: blocks that another process fetched meanwhile.
        bypassed_blocks: reads of a block of which only ranges were fetched.
        evicted_blocks: blocks that made room for others.
        fetched_bytes: bytes that were fetched.
        read_bytes: bytes that were asked for.
        torn_blocks: files of blocks that were damaged, and were fetched again.
        failed_writes: blocks that could not be written, since the disk was full or had another fault.
    """

    hits: int = 0
    fetched_blocks: int = 0
    waited_blocks: int = 0
    bypassed_blocks: int = 0
    evicted_blocks: int = 0
    fetched_bytes: int = 0
    read_bytes: int = 0
    torn_blocks: int = 0
    failed_writes: int = 0

    @property
    def misses(self) -> int:
        """Reads of a block that was not there."""
        return self.fetched_blocks + self.waited_blocks + self.bypassed_blocks

    def describe(self) -> str:
        """Return all of it that matters in a line."""
        reads = self.hits + self.misses
        share = f"{100 * self.hits / reads:.1f} % of " if reads else ""
        failed = f", {self.failed_writes:,} blocks not written" if self.failed_writes else ""
        return (
            f"{share}{reads:,} reads of blocks were hits, {self.fetched_bytes:,} bytes fetched for"
            f" {self.read_bytes:,} bytes read, {self.evicted_blocks:,} blocks evicted{failed}"
        )


class CacheContent(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the folder of a cache: whole blocks, blocks that are being fetched, runs that use it now."""

    folder: str
    block_bytes: int
    blocks: int
    num_bytes: int
    fetching: int
    runs: int


class _Folder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``headrace-cache.json``."""

    kind: Literal["headrace.cache"] = "headrace.cache"
    version: int = _VERSION
    block_bytes: int


class _FullError(Exception):
    """The disk has no room for a change of the index, which was undone."""


class _Process:
    """What belongs to one process: its connection, its locked file, and the blocks that it has open."""

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self.owner = unique_name()
        self.files = FilePool(_OPEN_BLOCKS)
        self.claimed: set[str] = set()
        path = folder / "owners" / self.owner
        with output_errors(path, "create"):
            path.parent.mkdir(exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # The lock is gone when the process is, and the processes that it forked.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.index = sqlite3.connect(
            folder / "index.sqlite", timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self.index.execute("PRAGMA journal_mode=WAL")
        self.index.execute("PRAGMA synchronous=NORMAL")
        self.index.executescript(_SCHEMA)

    def leave(self) -> None:
        """Let go of the lock of the process that forked this one; its connection must stay as it is."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class BlockStore:
    """The folder of a cache. It is safe in threads, in processes and across a fork.

    Args:
        folder: the folder; it is created.
        limit_bytes: the most bytes of all blocks.
        block_bytes: the bytes of a block; an existing folder must have the same.
        policy: ``"plan"`` evicts by next use, ``"pin"`` evicts nothing.

    Raises:
        ConfigError: the folder holds other files, or blocks of another size.
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, limit_bytes: int, block_bytes: int, policy: Policy) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.block_bytes = block_bytes
        self.policy = policy
        self._stats = CacheStats()
        self._no_writes_until = 0.0
        # Connections of the process that forked this one stay here: they must not be closed.
        self._processes: dict[int, _Process] = {}
        self._locks: dict[int, Lock] = {}
        _make_folder(folder, block_bytes)

    @property
    def stats(self) -> CacheStats:
        """What this process alone has read so far."""
        self._process()
        return self._stats

    def count(self, **more: int) -> None:
        """Add to some numbers of ``stats``."""
        with self._process().lock:
            for name, number in more.items():
                setattr(self._stats, name, getattr(self._stats, name) + number)

    def read(self, name: str, size: int, begin: int, out: ByteArray) -> bool:
        """Read bytes of a block of ``size`` bytes into ``out``, and return whether it was there.

        A file that is damaged is dropped.
        """
        file = self._open(name, size)
        if file is None:
            return False
        done, view = 0, out.data
        while done < len(out):
            count = os.preadv(file.fd, [view[done:]], begin + done)
            if not count:
                self._drop_torn(name)
                return False
            done += count
        return True

    def claim(self, name: str, size: int) -> Claim:
        """Return who fetches a block that was not there: this process, whole; another one, or has done so; or nobody.

        If this process does, the room for the block is kept, and `put` or `give_up` must follow.
        """
        try:
            return self._claim(name, size)
        except _FullError as error:
            self._pause(str(error))
            return "bypass"

    def _claim(self, name: str, size: int) -> Claim:
        process = self._process()
        with process.lock, self._changing(process) as index:
            row = index.execute("SELECT owner FROM blocks WHERE name = ?", (name,)).fetchone()
            if row is not None:
                # Without an owner it was written since this process looked for it, unless its file was removed.
                is_there = row[0] is None and self._path(name).exists()
                if is_there or self._is_claimed(process, name, row[0]):
                    return "theirs"
                index.execute("UPDATE blocks SET owner = ?, digest = NULL WHERE name = ?", (process.owner, name))
                process.claimed.add(name)
                return "ours"
            if time.monotonic() < self._no_writes_until:
                return "bypass"
            victims = self._victims(index, name, size)
            if victims is None:
                # Uses are noted for blocks that are there; this one's are noted anew before it is read again.
                index.execute("DELETE FROM uses WHERE name = ?", (name,))
                return "bypass"
            # Files go while nobody else can change the index, so that none goes that was fetched again meanwhile.
            for victim in victims:
                self._remove(process, index, victim)
            index.execute("INSERT INTO blocks VALUES (?, ?, ?, NULL)", (name, size, process.owner))
            if self.policy == "plan":
                known = index.execute("SELECT 1 FROM uses WHERE name = ?", (name,)).fetchone()
                if known is None:
                    index.execute("INSERT INTO uses VALUES (?, ?, ?)", (_NO_RUN, name, NEVER))
            self._stats.evicted_blocks += len(victims)
            process.claimed.add(name)
        return "ours"

    def put(self, name: str, data: ByteArray) -> bool:
        """Write a block that this process has claimed, and return whether it is there: a full disk is survived."""
        process = self._process()
        path = self._path(name)
        temporary = path.with_name(f".{name}.{process.owner}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_all(lambda view: os.write(descriptor, view), data.data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._pause(error.strerror or str(error))
            self.give_up(name)
            return False
        with process.lock, self._changing(process) as index:
            process.claimed.discard(name)
            change = "UPDATE blocks SET owner = NULL, digest = ? WHERE name = ? AND owner = ?"
            index.execute(change, (xxhash.xxh3_128_hexdigest(data.data), name, process.owner))
        return True

    def give_up(self, name: str) -> None:
        """Give back the room of a block that this process has claimed and will not write."""
        process = self._process()
        with process.lock, self._changing(process) as index:
            process.claimed.discard(name)
            index.execute("DELETE FROM blocks WHERE name = ? AND owner = ?", (name, process.owner))

    def is_being_fetched(self, name: str) -> bool:
        """Return whether a living process has claimed a block, and has not written it yet."""
        process = self._process()
        with process.lock:
            row = process.index.execute("SELECT owner FROM blocks WHERE name = ?", (name,)).fetchone()
        return row is not None and self._is_claimed(process, name, row[0])

    def expect(self, run: str, step: int, step_s: float, next_uses: Mapping[str, int]) -> None:
        """Note that a run has come to a step, and when it uses some blocks next: name -> step, or ``NEVER``.

        ``step_s`` is about how long a step takes, by which the uses of several runs are compared.
        """
        process = self._process()
        # What finds no room is not known, and its block is the first to go.
        with contextlib.suppress(_FullError), process.lock, self._changing(process) as index:
            index.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", (process.owner, run, step, step_s))
            rows = [(run, name, use) for name, use in next_uses.items()]
            index.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", rows)
            index.executemany("DELETE FROM uses WHERE run = ? AND name = ?", [(_NO_RUN, name) for name in next_uses])

    def content(self) -> CacheContent:
        """Return what is in the cache."""
        process = self._process()
        with process.lock:
            index = process.index
            blocks, num_bytes = index.execute(
                "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM blocks WHERE owner IS NULL"
            ).fetchone()
            owners = [row[0] for row in index.execute("SELECT owner FROM blocks WHERE owner IS NOT NULL")]
            runs = {run for owner, run in index.execute("SELECT owner, run FROM runs") if self._lives(owner)}
        return CacheContent(
            folder=str(self.folder),
            block_bytes=self.block_bytes,
            blocks=blocks,
            num_bytes=num_bytes,
            fetching=sum(map(self._lives, owners)),
            runs=len(runs),
        )

    def verify(self) -> Iterator[str]:
        """Read every block, remove those that are damaged, and yield what was wrong with each.

        What processes left behind that died, unfinished files and entries, is removed too.
        """
        process = self._process()
        with process.lock:
            rows = process.index.execute("SELECT name, bytes, owner, digest FROM blocks ORDER BY name").fetchall()
        for name, size, owner, digest in rows:
            if owner is not None:
                if not self._lives(owner):
                    self._forget(name)
                    yield f"{self._path(name)}: was not finished by a process that died"
                continue
            try:
                data = self._path(name).read_bytes()
            except FileNotFoundError:
                self._forget(name)
                yield f"{self._path(name)}: missing"
                continue
            except OSError as error:
                raise StoreError(f"{self._path(name)}: cannot be read: {error.strerror or error}") from error
            if len(data) != size or xxhash.xxh3_128_hexdigest(data) != digest:
                self._drop_torn(name)
                yield f"{self._path(name)}: damaged: it has {len(data):,} bytes, or other ones than were written"
        yield from self._unlisted({name for name, *_ in rows})

    def clear(self) -> int:
        """Remove all blocks that no living process is fetching, and return how many these were.

        Blocks that are open stay readable.
        """
        process = self._process()
        with process.lock, self._changing(process) as index:
            rows = index.execute("SELECT name, owner FROM blocks").fetchall()
            names = [name for name, owner in rows if not self._lives(owner)]
            for name in names:
                self._remove(process, index, name)
        return len(names)

    def _is_claimed(self, process: _Process, name: str, owner: str | None) -> bool:
        """Return whether a living process, or another thread of this one, fetches a block of this owner."""
        return name in process.claimed if owner == process.owner else self._lives(owner)

    def _pause(self, reason: str) -> None:
        """Keep no new blocks for a while, since one could not be written."""
        self.count(failed_writes=1)
        if self._stats.failed_writes == 1:
            _log.warning(
                "%s: a block cannot be written: %s; what is not there is read without being kept", self.folder, reason
            )
        self._no_writes_until = time.monotonic() + _PAUSE_S

    def _process(self) -> _Process:
        found = self._processes.get(os.getpid())
        if found is None:
            # A lock for each process, since a fork may copy one that another thread holds.
            with self._locks.setdefault(os.getpid(), Lock()):
                found = self._processes.get(os.getpid()) or self._entered()
        return found

    def _entered(self) -> _Process:
        """Enter this process."""
        for other in self._processes.values():
            other.leave()
            self._stats = CacheStats()
        process = _Process(self.folder)
        self._tidy(process)
        self._processes[os.getpid()] = process
        return process

    def _tidy(self, process: _Process) -> None:
        """Remove what processes left behind that died: blocks that they had claimed, and the runs that they fed."""
        with process.lock, self._changing(process) as index:
            rows = index.execute("SELECT name, owner FROM blocks WHERE owner IS NOT NULL").fetchall()
            for name, owner in rows:
                if not self._lives(owner):
                    self._remove(process, index, name)
            self._runs(index)
        for path in (self.folder / "owners").iterdir():
            self._lives(path.name)

    def _remove(self, process: _Process, index: sqlite3.Connection, name: str) -> None:
        """Remove a block within a transaction."""
        index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        index.execute("DELETE FROM uses WHERE name = ?", (name,))
        process.files.drop(name)
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()

    @contextlib.contextmanager
    def _changing(self, process: _Process) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes in; it is undone by any exception."""
        try:
            process.index.execute("BEGIN IMMEDIATE")
            try:
                yield process.index
            except BaseException:
                process.index.execute("ROLLBACK")
                raise
            process.index.execute("COMMIT")
        except sqlite3.Error as error:
            if "full" in str(error):
                raise _FullError(str(error)) from error
            raise StoreError(
                f"{self.folder / 'index.sqlite'}: the index of the cache cannot be changed: {error}; if it is damaged,"
                f" remove {self.folder} and everything in it"
            ) from error

    def _victims(self, index: sqlite3.Connection, name: str, size: int) -> list[str] | None:
        """Return the blocks that make room for a block; None if it is not to be kept."""
        (used,) = index.execute("SELECT bytes FROM totals").fetchone()
        missing = used + size - self.limit_bytes
        if self.policy == "pin":
            return [] if missing <= 0 else None
        runs = self._runs(index)
        due = self._due(index, name, runs)
        if due == NEVER:
            return None
        if missing <= 0:
            return []
        found: list[str] = []
        for victim, victim_bytes, victim_due in self._last_used(index, runs):
            if due is None or (victim_due is not None and victim_due <= due):
                return None
            found.append(victim)
            missing -= victim_bytes
            if missing <= 0:
                return found
        return None

    def _runs(self, index: sqlite3.Connection) -> dict[str, tuple[int, float]]:
        """Return each run that a living process feeds, with its step and the seconds of a step; forget the others."""
        found: dict[str, tuple[int, float]] = {}
        gone = set()
        for owner, run, step, step_s in index.execute("SELECT owner, run, step, step_s FROM runs").fetchall():
            if not self._lives(owner):
                index.execute("DELETE FROM runs WHERE owner = ?", (owner,))
                gone.add(run)
            elif run not in found or step < found[run][0]:
                found[run] = step, step_s
        for run in gone - found.keys():
            # Their blocks belong to no run now, and are the first to go.
            index.execute("INSERT OR IGNORE INTO uses SELECT ?, name, ? FROM uses WHERE run = ?", (_NO_RUN, NEVER, run))
            index.execute("DELETE FROM uses WHERE run = ?", (run,))
        return found

    def _due(self, index: sqlite3.Connection, name: str, runs: Mapping[str, tuple[int, float]]) -> float | None:
        """Return the seconds until some run uses a block, ``NEVER`` if none does; None if no run knows it.

        With a single run these are steps, which are exact.
        """
        found: float | None = None
        for run, (step, step_s) in runs.items():
            row = index.execute("SELECT next FROM uses WHERE run = ? AND name = ?", (run, name)).fetchone()
            if row is not None:
                unit = step_s if len(runs) > 1 else 1.0
                due = NEVER if row[0] >= NEVER else max(0, row[0] - step) * unit
                found = due if found is None else min(found, due)
        return found

    def _last_used(
        self, index: sqlite3.Connection, runs: Mapping[str, tuple[int, float]]
    ) -> Iterator[tuple[str, int, float | None]]:
        """Yield blocks with their sizes, and when they are used next; those first that no run knows, then the last."""
        order = (
            "SELECT blocks.name, bytes FROM uses CROSS JOIN blocks ON blocks.name = uses.name"
            " WHERE run = ? AND owner IS NULL ORDER BY next DESC LIMIT ?"
        )
        wanted = _CANDIDATES
        seen: set[str] = set()
        while True:
            rows: dict[str, int] = {}
            for run in (_NO_RUN, *runs):
                rows |= dict(index.execute(order, (run, wanted)).fetchall())
            dues = [(self._due(index, name, runs), name) for name in sorted(rows.keys() - seen)]
            if not dues:
                return
            for due, name in sorted(dues, key=lambda one: NEVER + 1 if one[0] is None else one[0], reverse=True):
                seen.add(name)
                yield name, rows[name], due
            wanted *= 4

    def _lives(self, owner: str | None) -> bool:
        """Return whether the process of this name lives."""
        if not owner:
            return False
        path = self.folder / "owners" / owner
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

    def _open(self, name: str, size: int) -> OpenFile | None:
        files = self._process().files
        file: OpenFile | None = files.get(name)
        if file is not None:
            return file
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path(name)}: cannot be read: {error.strerror or error}") from error
        file = OpenFile(os.fstat(descriptor).st_size, fd=descriptor)
        if file.size != size:
            self._drop_torn(name)
            return None
        files.make_room()
        files.put(name, file)
        return file

    def _drop_torn(self, name: str) -> None:
        self.count(torn_blocks=1)
        _log.warning("%s: the file of a block is damaged; it is removed, and fetched again", self._path(name))
        self._forget(name)

    def _forget(self, name: str) -> None:
        process = self._process()
        with process.lock, self._changing(process) as index:
            self._remove(process, index, name)

    def _unlisted(self, listed: set[str]) -> Iterator[str]:
        """Remove temporary files of dead processes and blocks that are in no index, and yield their names."""
        for path in sorted((self.folder / "blocks").glob("*/*")):
            if path.name.startswith("."):
                owner = path.name.removesuffix(".tmp").partition(".")[2].partition(".")[2]
                if self._lives(owner):
                    continue
            elif path.name in listed or not self._is_unlisted(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            yield f"{path}: was left behind by a process that died"

    def _is_unlisted(self, name: str) -> bool:
        process = self._process()
        with process.lock:
            return process.index.execute("SELECT 1 FROM blocks WHERE name = ?", (name,)).fetchone() is None

    def _path(self, name: str) -> Path:
        return self.folder / "blocks" / name[:2] / name


def block_name(identity: str, number: int) -> str:
    """Return the name of a block of the file of an identity: a hash of 128 bits, and the number of the block."""
    return f"{xxhash.xxh3_128_hexdigest(identity.encode())}-{number}"


def read_folder(folder: Path) -> int | None:
    """Return the bytes of the blocks in the folder of a cache; None if there is nothing yet.

    Raises:
        ConfigError: the folder is none of a cache, or of another version.
    """
    try:
        data = (folder / FOLDER_NAME).read_bytes()
    except FileNotFoundError:
        try:
            found = next(folder.iterdir(), None)
        except FileNotFoundError:
            return None
        if found is not None and not found.name.startswith(f".{FOLDER_NAME}."):
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


def _make_folder(folder: Path, block_bytes: int) -> None:
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
