"""`BlockStore`: blocks in a folder, shared by all processes of a node, and an index that says which of them are whole.

    folder/headrace-cache.json      what the folder is: its version, and the bytes of a block
    folder/index.sqlite             blocks with their owners and checksums, and their next uses by run
    folder/blocks/7f/7f3a...-12     block 12 of the file whose identity hashes to 7f3a...
    folder/blocks/7f/7f3a...-13@64-96   bytes 64 to 96 of block 13, where no more of it will be read in time
    folder/owners/HOST.PID.RANDOM   a file that its process holds locked for as long as it lives

A block is written under a temporary name, synced and renamed, so that it is there whole or not at all; then the index
says so. A process that wants to fetch a block first enters itself as its owner. If it dies, its lock is gone, and the
next process that wants the block takes its place. Files are removed only if the index lists them.

A loader plans its reads in order, see `BlockStore.plan`. A block that is to be kept is then reserved: its room is kept,
and whoever needs it first fetches it. Blocks that planned reads need are pinned until these are done: one that makes
room for others meanwhile leaves the index at once, as the plan says, and the disk when no pin is left.

The index is changed in transactions of SQLite, which a kill cannot tear. A process that was forked opens it anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.cache.eviction import (
    NEVER,
    NO_RUN,
    SCHEMA,
    Claim,
    Eviction,
    KeptBlock,
    PlannedBlock,
    Policy,
    Wanted,
    block_of,
    file_name,
    is_pinned,
)
from headrace.cache.folder import make_folder
from headrace.errors import StoreError
from headrace.io import FilePool, output_errors, unique_name, write_all
from headrace.io.readers import OpenFile

ByteArray = NDArray[np.uint8]

_BUSY_S: Final = 60.0
_PAUSE_S: Final = 30.0
"""How long a process keeps no new blocks after a block could not be written."""

_OPEN_BLOCKS: Final = 64
"""The most blocks that a process has open. One that was evicted takes room on the disk until it is closed."""

_C: Final = ctypes.PyDLL(None)
_C.pread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong
_C.pread.restype = ctypes.c_ssize_t

_LOOK_S: Final = 0.005
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


def _pread(descriptor: int, view: memoryview, at: int) -> int:
    """Read into ``view`` from a byte on, and return how many bytes came; less than 0 if the system reports an error.

    It keeps the interpreter lock, unlike `os.preadv`. A thread that lets go of it for each of some hundred small pieces
    that lie in the page cache gets it back late each time, from a loop that launches kernels after milliseconds.
    """
    target = ctypes.c_char.from_buffer(view)
    count: int = _C.pread(descriptor, ctypes.addressof(target), len(view), at)
    return count


class _OpenBlock(NamedTuple):
    """An open file, and where in the block it begins."""

    file: OpenFile
    first: int


class _FullError(Exception):
    """The disk has no room for a change of the index, which was undone."""


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from entering the folder meanwhile: SQLite does not wait for a change of journal mode."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Process:
    """What belongs to one process: its connection, its locked file, and the blocks that it has open."""

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self.owner = unique_name()
        self.files = FilePool(_OPEN_BLOCKS)
        self.claimed: dict[str, Event] = {}
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

    @contextlib.contextmanager
    def waking(self, name: str) -> Iterator[None]:
        """When the block is finished, wake the threads that wait for it."""
        try:
            yield
        finally:
            if (event := self.claimed.pop(name, None)) is not None:
                event.set()

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
        self._spans = itertools.count()
        # Connections of the process that forked this one stay here: they must not be closed.
        self._processes: dict[int, _Process] = {}
        self._locks: dict[int, Lock] = {}
        make_folder(folder, block_bytes)

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

    def read(self, wanted: Wanted, pieces: Iterable[tuple[int, memoryview]]) -> bool:
        """Read pieces of a block, which lie in what is wanted, and return whether they were there.

        A piece is the byte of the block where it begins, and where it goes. A file that is damaged is dropped.
        """
        block = self._open(wanted)
        if block is None:
            return False
        descriptor, first = block.file.fd, block.first
        for begin, view in pieces:
            at, count = begin - first, 0
            while count < len(view):
                more = _pread(descriptor, view[count:], at + count)
                if more <= 0:
                    self._drop_torn(wanted.name)
                    return False
                count += more
        return True

    def plan(
        self, run: str, step: int, step_s: float, *, span: int, blocks: Sequence[PlannedBlock], done: Sequence[int]
    ) -> set[str]:
        """Decide what is kept of the blocks that a span of samples is going to read.

        Spans are planned in the order of the run, and read at any time after that. What is to be kept and is not there
        is reserved, so that `claim` gives it to whoever reads it first. All blocks are pinned until the span is done.
        Return the names of the blocks that were reserved.

        Args:
            run: the name of the run.
            step: its step.
            step_s: about how long a step takes, by which the uses of several runs are compared.
            span: the number of the span, which no other one of this process has.
            blocks: the blocks.
            done: the numbers of planned spans that were read, or will not be.
        """
        process = self._process()
        reserved: set[str] = set()
        # What finds no room is not known, and its block is the first to go.
        with contextlib.suppress(_FullError), process.lock, self._changing(process) as index:
            self._release(process, index, done)
            index.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", (process.owner, run, step, step_s))
            names = [block.wanted.name for block in blocks]
            rows = [(run, block.wanted.name, block.next_use) for block in blocks]
            index.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", rows)
            index.executemany("DELETE FROM uses WHERE run = ? AND name = ?", [(NO_RUN, name) for name in names])
            missing = [block for block in blocks if self._is_missing(index, block.wanted)]
            # Before room is made, since a block of this span may have to go.
            pins = [(process.owner, span, name) for name in names]
            index.executemany("INSERT OR IGNORE INTO pins VALUES (?, ?, ?)", pins)
            runs = self._eviction(index).runs()
            for block in missing:
                if self._reserve(process, index, block, run, runs):
                    reserved.add(block.wanted.name)
        return reserved

    def next_span(self) -> int:
        """Return a number for the next span that is planned."""
        return next(self._spans)

    def finish(self, done: Sequence[int]) -> None:
        """Unpin the blocks of spans that were read, or will not be, and give up what was reserved for these only."""
        process = self._process()
        with contextlib.suppress(_FullError), process.lock, self._changing(process) as index:
            self._release(process, index, done)

    def _is_missing(self, index: sqlite3.Connection, wanted: Wanted) -> bool:
        """Return whether a block is neither there nor coming; or is without what is wanted, and nobody reads it."""
        row = block_of(index, wanted.name)
        if row is None:
            return True
        return row.owner is None and not row.has(wanted) and not is_pinned(index, wanted.name)

    def _reserve(
        self,
        process: _Process,
        index: sqlite3.Connection,
        block: PlannedBlock,
        run: str,
        runs: Mapping[str, tuple[int, float]],
    ) -> bool:
        """Keep room for a block that is to be kept, and return whether it is to be fetched.

        Of two files of the same block the one before is removed.
        """
        wanted, name = block.wanted, block.wanted.name
        begin, end = wanted.begin, wanted.end
        if block.next_use != NEVER:
            patience = self._eviction(index).patience(wanted.size, run, runs)
            more = (0, wanted.size) if patience is None else block.part(patience)
            begin, end = min(begin, more[0]), min(max(end, more[1]), wanted.size)
        if time.monotonic() < self._no_writes_until:
            return False
        before = block_of(index, name)
        room = 0 if before is None else before.num_bytes
        row = index.execute("SELECT first, bytes, digest, file FROM leaving WHERE name = ?", (name,)).fetchone()
        is_left = row is not None and row[0] <= wanted.begin and wanted.end <= row[0] + row[1]
        victims = self._eviction(index).victims(name, row[1] if is_left else end - begin - room)
        if victims is None:
            # Uses are noted for blocks that are there; this one's are noted anew before it is read again.
            if before is None:
                index.execute("DELETE FROM uses WHERE name = ?", (name,))
            return False
        for victim in victims:
            self._evict(process, index, victim)
        self._stats.evicted_blocks += len(victims)
        if before is not None:
            self._remove(process, index, name)
        if row is not None:
            index.execute("DELETE FROM leaving WHERE name = ?", (name,))
        if is_left:
            first, num_bytes, digest, file = row
            kept = KeptBlock(name, num_bytes, None, digest, first, file, 1)
        else:
            if row is not None:
                self._unlink(process, name, row[3])
            file = file_name(name, wanted.size, begin, end)
            kept = KeptBlock(name, end - begin, process.owner, None, begin, file, 0)
        index.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
        index.execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (run, name, block.next_use))
        return not is_left

    def _release(self, process: _Process, index: sqlite3.Connection, spans: Sequence[int]) -> None:
        """Within a transaction, remove the pins of spans, what is left of them, and what left for them."""
        for span in spans:
            which = (process.owner, span)
            names = [name for (name,) in index.execute("SELECT name FROM pins WHERE owner = ? AND span = ?", which)]
            index.execute("DELETE FROM pins WHERE owner = ? AND span = ?", which)
            for name in names:
                self._let_go(process, index, name)

    def _let_go(self, process: _Process, index: sqlite3.Connection, name: str) -> None:
        """Within a transaction, remove what was kept of a block only for those who pinned it."""
        if is_pinned(index, name):
            return
        row = index.execute("SELECT file FROM leaving WHERE name = ?", (name,)).fetchone()
        if row is not None:
            index.execute("DELETE FROM leaving WHERE name = ?", (name,))
            self._unlink(process, name, row[0])
        # What was reserved, and nobody has read.
        reserved = "DELETE FROM blocks WHERE name = ? AND owner = ? AND is_begun = 0"
        index.execute(reserved, (name, process.owner))

    def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        """Return for each part that was not there who fetches it.

        If this process does, the room for it is kept, and `put` or `give_up` must follow. If another one does, or has
        done so, it is there soon.
        """
        try:
            process = self._process()
            with process.lock, self._changing(process) as index:
                return [self._claim(process, index, one) for one in wanted]
        except _FullError as error:
            self._pause(str(error))
            return [Claim("bypass", one.begin, one.end) for one in wanted]

    def _claim(self, process: _Process, index: sqlite3.Connection, wanted: Wanted) -> Claim:
        name, size = wanted.name, wanted.size
        bypass = Claim("bypass", wanted.begin, wanted.end)
        row = block_of(index, name)
        if row is not None:
            # Without an owner it was written since this process looked for it, unless its file was removed.
            is_there = row.owner is None and self._path(row.file).exists()
            if is_there or (row.is_begun and self._is_claimed(process, name, row.owner)):
                return Claim("theirs", 0, 0) if row.has(wanted) else bypass
            begin, end = min(row.first, wanted.begin), max(row.first + row.num_bytes, wanted.end)
            (used,) = index.execute("SELECT bytes FROM totals").fetchone()
            if used + (end - begin) - row.num_bytes > self.limit_bytes:
                return bypass
            index.execute(
                "UPDATE blocks SET owner = ?, digest = NULL, is_begun = 1, first = ?, bytes = ?, file = ?"
                " WHERE name = ?",
                (process.owner, begin, end - begin, file_name(name, size, begin, end), name),
            )
            process.claimed[name] = Event()
            return Claim("ours", begin, end)
        if time.monotonic() < self._no_writes_until or is_pinned(index, name):
            return bypass
        victims = self._eviction(index).victims(name, size)
        if victims is None:
            # Uses are noted for blocks that are there; this one's are noted anew before it is read again.
            index.execute("DELETE FROM uses WHERE name = ?", (name,))
            return bypass
        # Files go while nobody else can change the index, so that none goes that was fetched again meanwhile.
        for victim in victims:
            self._evict(process, index, victim)
        kept = KeptBlock(name, size, process.owner, None, 0, name, 1)
        index.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
        if self.policy == "plan":
            known = index.execute("SELECT 1 FROM uses WHERE name = ?", (name,)).fetchone()
            if known is None:
                index.execute("INSERT INTO uses VALUES (?, ?, ?)", (NO_RUN, name, NEVER))
        self._stats.evicted_blocks += len(victims)
        process.claimed[name] = Event()
        return Claim("ours", 0, size)

    def put(self, name: str, size: int, begin: int, data: ByteArray) -> bool:
        """Write the part of a block that this process has claimed, and return whether it is there.

        A full disk is survived.
        """
        process = self._process()
        path = self._path(file_name(name, size, begin, begin + len(data)))
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
        digest = xxhash.xxh3_128_hexdigest(data.data)
        with process.waking(name), process.lock, self._changing(process) as index:
            change = "UPDATE blocks SET owner = NULL, digest = ? WHERE name = ? AND owner = ?"
            index.execute(change, (digest, name, process.owner))
        return True

    def give_up(self, name: str) -> None:
        """Give back the room of a block that this process has claimed and will not write."""
        process = self._process()
        with process.waking(name), process.lock, self._changing(process) as index:
            index.execute("DELETE FROM blocks WHERE name = ? AND owner = ? AND is_begun = 1", (name, process.owner))

    def is_being_fetched(self, name: str) -> bool:
        """Return whether a living process has claimed a block, and has not written it yet."""
        process = self._process()
        with process.lock:
            row = block_of(process.index, name)
        return row is not None and bool(row.is_begun) and self._is_claimed(process, name, row.owner)

    def wait(self, name: str, limit_s: float) -> None:
        """Wait for a moment for a block that is being fetched: if another thread does so, until it is there."""
        event = self._process().claimed.get(name)
        if event is not None:
            event.wait(limit_s)
        else:
            time.sleep(min(_LOOK_S, limit_s))

    def content(self) -> CacheContent:
        """Return what is in the cache."""
        process = self._process()
        with process.lock:
            index = process.index
            blocks, num_bytes = index.execute(
                "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM blocks WHERE owner IS NULL"
            ).fetchone()
            begun = "SELECT owner FROM blocks WHERE owner IS NOT NULL AND is_begun = 1"
            owners = [row[0] for row in index.execute(begun)]
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
            rows = [KeptBlock(*row) for row in process.index.execute("SELECT * FROM blocks ORDER BY name")]
        for row in rows:
            path = self._path(row.file)
            if row.owner is not None:
                if not self._lives(row.owner):
                    self._forget(row.name)
                    yield f"{path}: was not finished by a process that died"
                continue
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                self._forget(row.name)
                yield f"{path}: missing"
                continue
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
            if len(data) != row.num_bytes or xxhash.xxh3_128_hexdigest(data) != row.digest:
                self._drop_torn(row.name)
                yield f"{path}: damaged: it has {len(data):,} bytes, or other ones than were written"
        yield from self._unlisted({row.file for row in rows})

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
            for name, file in index.execute("SELECT name, file FROM leaving").fetchall():
                self._unlink(process, name, file)
            index.execute("DELETE FROM leaving")
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
            for (owner,) in index.execute("SELECT DISTINCT owner FROM pins").fetchall():
                if not self._lives(owner):
                    index.execute("DELETE FROM pins WHERE owner = ?", (owner,))
            for (name,) in index.execute("SELECT name FROM leaving").fetchall():
                self._let_go(process, index, name)
            self._eviction(index).runs()
        for path in (self.folder / "owners").iterdir():
            self._lives(path.name)

    def _remove(self, process: _Process, index: sqlite3.Connection, name: str) -> None:
        """Remove a block within a transaction."""
        row = block_of(index, name)
        index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        index.execute("DELETE FROM uses WHERE name = ?", (name,))
        if row is not None:
            self._unlink(process, name, row.file)

    def _evict(self, process: _Process, index: sqlite3.Connection, name: str) -> None:
        """Within a transaction, remove a block that makes room; its file stays while somebody is to read it."""
        row = block_of(index, name)
        if row is None or not row.is_begun or not is_pinned(index, name):
            # What was only reserved is read by ranges then.
            self._remove(process, index, name)
            return
        take = "INSERT OR REPLACE INTO leaving SELECT name, bytes, digest, first, file FROM blocks WHERE name = ?"
        index.execute(take, (name,))
        index.execute("DELETE FROM blocks WHERE name = ?", (name,))
        index.execute("DELETE FROM uses WHERE name = ?", (name,))

    def _unlink(self, process: _Process, name: str, file: str) -> None:
        process.files.drop(name)
        with contextlib.suppress(FileNotFoundError):
            self._path(file).unlink()

    def _eviction(self, index: sqlite3.Connection) -> Eviction:
        return Eviction(index, policy=self.policy, limit_bytes=self.limit_bytes, lives=self._lives)

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

    def _open(self, wanted: Wanted) -> _OpenBlock | None:
        process = self._process()
        name = wanted.name
        block: _OpenBlock | None = process.files.get(name)
        if block is not None:
            if block.first <= wanted.begin and wanted.end <= block.first + block.file.size:
                return block
            process.files.drop(name)
        found = self._open_file(name, 0, wanted.size)
        if found is None:
            with process.lock:
                row = process.index.execute(
                    "SELECT file, first, bytes FROM blocks WHERE name = ? AND owner IS NULL"
                    " UNION ALL SELECT file, first, bytes FROM leaving WHERE name = ?",
                    (name, name),
                ).fetchone()
            if row is None or not (row[1] <= wanted.begin and wanted.end <= row[1] + row[2]):
                return None
            found = self._open_file(*row)
        if found is None or isinstance(found, _OpenBlock):
            if found is not None:
                process.files.make_room()
                process.files.put(name, found)
            return found
        self._drop_torn(name)
        return None

    def _open_file(self, file: str, first: int, num_bytes: int) -> _OpenBlock | Literal["torn"] | None:
        try:
            descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path(file)}: cannot be read: {error.strerror or error}") from error
        found = OpenFile(os.fstat(descriptor).st_size, fd=descriptor)
        return _OpenBlock(found, first) if found.size == num_bytes else "torn"

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
            elif path.name in listed or self._is_listed(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            yield f"{path}: was left behind by a process that died"

    def _is_listed(self, file: str) -> bool:
        process = self._process()
        name = file.partition("@")[0]
        with process.lock:
            row = process.index.execute(
                "SELECT 1 FROM blocks WHERE name = ? AND file = ? UNION ALL SELECT 1 FROM leaving WHERE file = ?",
                (name, file, file),
            ).fetchone()
        return row is not None

    def _path(self, file: str) -> Path:
        return self.folder / "blocks" / file[:2] / file
