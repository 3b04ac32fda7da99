"""`BlockStore`: blocks in a folder, shared by all processes of a node, and an index that says which of them are whole.

    folder/headrace-cache.json      what the folder is: its version, and the bytes of a block
    folder/index.sqlite             blocks with their owners and checksums, and who reads what
    folder/blocks/7f/7f3a...-12     block 12 of the file whose identity hashes to 7f3a...
    folder/owners/HOST.PID.RANDOM   a file that its process holds locked for as long as it lives

A block is written under a temporary name, synced and renamed, so that it is there whole or not at all; then the index
says so. A process that wants to fetch a block first enters itself as its owner. If it dies, its lock is gone, and the
next process that wants the block takes its place. Files are removed only if the index lists them, and while nobody else
can change it, so that none goes that was fetched again meanwhile.

A block is kept while there is room, for its *label*: the folder of its file, or a node to which samples are dealt. Each
process says by which labels it reads. Blocks of labels by which no living process reads make room for others, in the
order in which they came; no other block goes.

The index is changed in transactions of SQLite, which a kill cannot tear. A process that was forked opens it anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.cache.process import CacheProcess, IndexFaultError, IndexFullError, make_folder, read_pieces
from headrace.errors import OutputError, StoreError
from headrace.io import write_all

ByteArray = NDArray[np.uint8]

Fetcher = Literal["ours", "theirs", "bypass"]
"""Who fetches a block: this process, another one, or nobody."""

PASSING: Final = ""
"""A label by which nobody reads, for blocks whose samples come together and not again for long."""

_UNUSED: Final = "SELECT label FROM totals WHERE bytes > 0 EXCEPT SELECT label FROM uses ORDER BY label DESC"
_OLDEST: Final = "SELECT name, bytes FROM blocks WHERE label = ? AND owner IS NULL ORDER BY number"

_PAUSE_S: Final = 30.0
"""How long a process keeps no new blocks after a block could not be written."""

_log = logging.getLogger("headrace")


class CacheBlock(NamedTuple):
    """A block of a file: its name and its bytes, and the label for which it is kept; None if it is not to be kept."""

    name: str
    size: int
    label: str | None


def block_name(identity: str, number: int) -> str:
    """Return the name of a block of the file of an identity: a hash of 128 bits, and the number of the block."""
    return f"{xxhash.xxh3_128_hexdigest(identity.encode())}-{number}"


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
        torn_blocks: files of blocks that held other bytes than were written, and were fetched again.
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
        failed += f", {self.torn_blocks:,} damaged blocks fetched again" if self.torn_blocks else ""
        return (
            f"{share}{reads:,} reads of blocks were hits, {self.fetched_bytes:,} bytes fetched for"
            f" {self.read_bytes:,} bytes read, {self.evicted_blocks:,} blocks evicted{failed}"
        )


class CacheContent(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the folder of a cache: whole blocks, blocks that are being fetched, and other processes that read."""

    folder: str
    block_bytes: int
    blocks: int
    num_bytes: int
    fetching: int
    readers: int


class BlockStore:
    """The folder of a cache. It is safe in threads, in processes and across a fork.

    Args:
        folder: the folder; it is created.
        limit_bytes: the most bytes of all blocks.
        block_bytes: the bytes of a block; an existing folder must have the same.

    Raises:
        ConfigError: the folder holds other files, or blocks of another size.
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, limit_bytes: int, block_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.block_bytes = block_bytes
        self._stats = CacheStats()
        self._no_writes_until = 0.0
        # Connections of the process that forked this one stay here: they must not be closed.
        self._processes: dict[int, CacheProcess] = {}
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

    def use(self, label: str) -> None:
        """Say that this process reads by a label, so that blocks that are kept for it stay while this process lives."""
        process = self._process()
        if label not in process.labels:
            process.labels.add(label)
            with contextlib.suppress(IndexFaultError), process.changing() as index:
                index.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (process.owner, label))

    def use_none(self) -> None:
        """Forget by which labels this process reads."""
        process = self._process()
        process.labels.clear()
        with contextlib.suppress(IndexFaultError), process.changing() as index:
            index.execute("DELETE FROM uses WHERE owner = ?", (process.owner,))

    def read(self, name: str, pieces: Iterable[tuple[int, memoryview]]) -> bool:
        """Read pieces of a block, and return whether they were there.

        A piece is the byte of the block where it begins, and where it goes. A block is compared with its hash before a
        process reads its first byte, and dropped if it is damaged.
        """
        file = self._process().open(name)
        if file is None:
            return False
        if file == "torn" or not read_pieces(file.fd, pieces):
            self._drop_torn(name)
            return False
        return True

    def claim(self, blocks: Sequence[CacheBlock]) -> list[Fetcher]:
        """Return for each block that was not there who fetches it.

        If this process does, the room for it is kept, and `put` or `give_up` must follow. If another one does, or has
        done so, it is there soon.
        """
        process = self._process()
        try:
            with process.changing():
                return [self._claimed(process, block) for block in blocks]
        except IndexFaultError as error:
            self._pause(error)
            return ["bypass"] * len(blocks)

    def _claimed(self, process: CacheProcess, block: CacheBlock) -> Fetcher:
        name, owner = block.name, process.owner
        row = process.index.execute("SELECT owner FROM blocks WHERE name = ?", (name,)).fetchone()
        if row is not None:
            # Without an owner it was written since this process looked for it, unless its file was removed.
            is_there = row[0] is None and process.path(name).exists()
            if is_there or (row[0] is not None and process.is_claimed(name, row[0])):
                return "theirs"
            process.index.execute("UPDATE blocks SET owner = ?, digest = NULL WHERE name = ?", (owner, name))
        elif block.label is not None and self._makes_room(process, block.size):
            add = "INSERT INTO blocks (name, bytes, label, owner) VALUES (?, ?, ?, ?)"
            process.index.execute(add, (name, block.size, block.label, owner))
        else:
            return "bypass"
        process.claimed.add(name)
        return "ours"

    def _makes_room(self, process: CacheProcess, num_bytes: int) -> bool:
        """Evict what makes room for a block; return False, and evict nothing, if there is not enough of it."""
        if process.index_fault or time.monotonic() < self._no_writes_until:
            return False
        (used,) = process.index.execute("SELECT COALESCE(SUM(bytes), 0) FROM totals").fetchone()
        missing = used + num_bytes - self.limit_bytes
        victims: list[str] = []
        if missing > 0:
            # Blocks that pass go last, and of each label the oldest first.
            labels = process.index.execute(_UNUSED).fetchall()
            for name, victim_bytes in chain.from_iterable(process.index.execute(_OLDEST, one) for one in labels):
                victims.append(name)
                missing -= victim_bytes
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for name in victims:
            process.remove(name)
        self._stats.evicted_blocks += len(victims)
        return True

    def put(self, name: str, data: ByteArray) -> bool:
        """Write a block that this process has claimed, and return whether it is there. A full disk is survived."""
        process = self._process()
        path = process.path(name)
        temporary = path.with_name(f".{name}.{process.owner}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_all(lambda view: os.write(descriptor, view), data.data)
                os.fsync(descriptor)
                process.note_written(name, descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._pause(error)
            self.give_up(name)
            return False
        digest = xxhash.xxh3_128_hexdigest(data.data)
        try:
            with process.changing() as index:
                change = "UPDATE blocks SET owner = NULL, digest = ? WHERE name = ? AND owner = ?"
                index.execute(change, (digest, name, process.owner))
        except IndexFaultError as error:
            # The index still says that this process fetches it; the file is read nevertheless.
            self._pause(error)
            return False
        finally:
            process.claimed.discard(name)
        return True

    def give_up(self, name: str) -> None:
        """Give back the room of a block that this process has claimed and will not write."""
        process = self._process()
        try:
            with contextlib.suppress(IndexFaultError), process.changing() as index:
                index.execute("DELETE FROM blocks WHERE name = ? AND owner = ?", (name, process.owner))
        finally:
            process.claimed.discard(name)

    def is_being_fetched(self, name: str) -> bool:
        """Return whether a living process has claimed a block, and has not written it yet."""
        process = self._process()
        rows = process.ask("SELECT owner FROM blocks WHERE name = ?", name)
        return bool(rows) and process.is_claimed(name, rows[0][0])

    def content(self) -> CacheContent:
        """Return what is in the cache.

        Raises:
            StoreError: the index is damaged.
        """
        with self._needing_index() as process:
            ((blocks, num_bytes),) = process.ask(
                "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM blocks WHERE owner IS NULL"
            )
            owners = [row[0] for row in process.ask("SELECT owner FROM blocks WHERE owner IS NOT NULL")]
            others = [row[0] for row in process.ask("SELECT DISTINCT owner FROM uses") if row[0] != process.owner]
        return CacheContent(
            folder=str(self.folder),
            block_bytes=self.block_bytes,
            blocks=blocks,
            num_bytes=num_bytes,
            fetching=sum(map(process.lives, owners)),
            readers=sum(map(process.lives, others)),
        )

    def verify(self) -> Iterator[str]:
        """Read every block, remove those that are damaged, and yield what was wrong with each.

        What processes left behind that died, unfinished files and entries, is removed too.

        Raises:
            StoreError: the index is damaged, or a block cannot be read.
        """
        with self._needing_index() as process:
            rows = process.ask("SELECT name, bytes, owner, digest FROM blocks ORDER BY name")
        for name, num_bytes, owner, digest in rows:
            path = process.path(name)
            if owner is not None:
                if not process.lives(owner):
                    self._forget(name)
                    yield f"{path}: was not finished by a process that died"
                continue
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                self._forget(name)
                yield f"{path}: missing"
                continue
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
            if len(data) != num_bytes or xxhash.xxh3_128_hexdigest(data) != digest:
                self._drop_torn(name)
                yield f"{path}: damaged: it has {len(data):,} bytes, or other ones than were written"
        yield from self._unlisted({row[0] for row in rows})

    def clear(self) -> int:
        """Remove all blocks that no living process is fetching, and return how many these were.

        Blocks that are open stay readable.

        Raises:
            OutputError: the disk has no room for the change of the index.
            StoreError: the index is damaged.
        """
        with self._needing_index() as process, self._needing_room(), process.changing() as index:
            rows = index.execute("SELECT name, owner FROM blocks").fetchall()
            names = [name for name, owner in rows if not process.lives(owner)]
            for name in names:
                process.remove(name)
            return len(names)

    def _pause(self, error: Exception) -> None:
        """Keep no new blocks for a while, since one could not be written."""
        self.count(failed_writes=1)
        reason = getattr(error, "strerror", None) or error
        if self._stats.failed_writes == 1:
            _log.warning(
                "%s: a block cannot be written: %s; what is not there is read without being kept", self.folder, reason
            )
        self._no_writes_until = time.monotonic() + _PAUSE_S

    def _process(self) -> CacheProcess:
        found = self._processes.get(os.getpid())
        if found is None:
            # A lock for each process, since a fork may copy one that another thread holds.
            with self._locks.setdefault(os.getpid(), Lock()):
                found = self._processes.get(os.getpid()) or self._entered()
        return found

    def _entered(self) -> CacheProcess:
        """Enter this process."""
        for other in self._processes.values():
            other.leave()
            self._stats = CacheStats()
        process = CacheProcess(self.folder)
        # Without a sound index the process reads nothing of the cache, and writes nothing to it.
        with contextlib.suppress(IndexFaultError), self._needing_room(), process.changing() as index:
            # Of processes that died: blocks that they had claimed, and labels by which they read.
            rows = index.execute("SELECT name, owner FROM blocks WHERE owner IS NOT NULL").fetchall()
            for name in [name for name, owner in rows if not process.lives(owner)]:
                process.remove(name)
            owners = index.execute("SELECT DISTINCT owner FROM uses").fetchall()
            index.executemany("DELETE FROM uses WHERE owner = ?", [one for one in owners if not process.lives(*one)])
        for path in (self.folder / "owners").iterdir():
            process.lives(path.name)
        self._processes[os.getpid()] = process
        return process

    @contextlib.contextmanager
    def _needing_index(self) -> Iterator[CacheProcess]:
        """Raise StoreError if the index is damaged, for what nobody can say without it."""
        process = self._process()
        if not process.index_fault:
            with contextlib.suppress(IndexFaultError):
                yield process
        if process.index_fault:
            raise StoreError(process.index_fault)

    @contextlib.contextmanager
    def _needing_room(self) -> Iterator[None]:
        """Raise OutputError for a change of the index that the caller cannot go on without."""
        try:
            yield
        except IndexFullError as error:
            raise OutputError(
                f"{self.folder}: the index of the cache cannot be changed: {error}: make room on this disk; the folder"
                " may be removed while no run uses it"
            ) from error

    def _drop_torn(self, name: str) -> None:
        self.count(torn_blocks=1)
        _log.warning("%s: the file of a block is damaged; it is removed, and fetched again", self._process().path(name))
        self._forget(name)

    def _forget(self, name: str) -> None:
        process = self._process()
        with contextlib.suppress(IndexFaultError), process.changing():
            process.remove(name)

    def _unlisted(self, listed: set[str]) -> Iterator[str]:
        """Remove temporary files of dead processes and blocks that are in no index, and yield their names."""
        process = self._process()
        for path in sorted((self.folder / "blocks").glob("*/*")):
            if path.name.startswith("."):
                owner = path.name.removesuffix(".tmp").partition(".")[2].partition(".")[2]
                if process.lives(owner):
                    continue
            elif path.name in listed or process.ask("SELECT 1 FROM blocks WHERE name = ?", path.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            yield f"{path}: was left behind by a process that died"
