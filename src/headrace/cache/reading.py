"""`Cache`, the description of a cache of blocks, and `CachedReader`, which reads files through it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from headrace.cache.block_store import BlockStore, ByteArray, CacheContent, CacheStats
from headrace.cache.eviction import BlockPart, Claim, MissingBlock, Policy, Wanted, block_name
from headrace.cache.folder import read_folder
from headrace.config import check_choice
from headrace.errors import ConfigError, StoreError
from headrace.io import MmapReader, Reader, parse_size, reader
from headrace.io.readers import NO_ENDS, FileRanges, IntArray, OpenFile, ReadFailure, read_for
from headrace.io.waits import Wait, waiting

if TYPE_CHECKING:
    from headrace.io import RemotePath

FETCH_BYTES: Final = 64 << 20
"""The most bytes of blocks that a read fetches at a time."""

WAIT_S: Final = 60.0
"""How long a read waits for a block that another process fetches, before it fetches what it needs itself."""

Counts = Callable[[], Sequence[int]]
"""Returns numbers in the order of the fields of `CacheStats`."""

P = TypeVar("P", BlockPart, MissingBlock)

HeldParts = dict[tuple[str, int], list[tuple[int, ByteArray]]]
"""By file and number of a block: its parts, sorted, each with the byte of the block where it begins."""

_log = logging.getLogger("headrace")


class Cache:
    """Blocks of files that are far away, on a local disk: one cache for all processes of a node, and for many runs.

    Open the data through it:

        cache = headrace.Cache("/nvme/headrace", limit="2TB")
        store = headrace.open("s3://bucket/web", cache=cache)

    A loader of these data then says when each block is used next on this node. A block is kept if it is used again
    before the last one of those that are there; that one goes. Blocks of which no loader has told are kept while there
    is room, and go first. With ``policy="pin"`` the first blocks that come stay, and no others are kept; no loader is
    needed.

    Blocks are named by a hash of the identity of their file: its path or URL, its size, and its time of change or ETag.
    A file that changes is another file. A block that is not kept is not fetched whole: only what is read of it is. A
    full disk is survived: what finds no room is read without being kept, which is counted and logged.

    Args:
        folder: a folder of its own on a local disk; it is created.
        limit: the most bytes of all blocks, such as ``"2TB"``.
        block: the bytes of a block.
        policy: ``"plan"`` or ``"pin"``.

    Raises:
        ConfigError: a size or the policy is not allowed.

    Example:
        >>> cache = headrace.Cache("cache", limit="100MB", block="64KiB")
        >>> store = headrace.open("stores/web", cache=cache)
        >>> first, again = store.document(0), store.document(0)
        >>> cache.stats.fetched_blocks, cache.stats.hits >= 1
        (2, True)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limit: str | int,
        block: str | int = "8MiB",
        policy: Policy = "plan",
    ) -> None:
        check_choice("policy", policy, ("plan", "pin"))
        self.folder = Path(folder)
        self.limit_bytes = parse_size(limit, "limit")
        self.block_bytes = parse_size(block, "block")
        self.policy = policy
        if self.limit_bytes < self.block_bytes:
            raise ConfigError(f"limit {limit} has no room for a block of {self.block_bytes:,} bytes")
        self._store: BlockStore | None = None
        self._identities: dict[str, str] = {}
        self._owners: dict[str, CachedReader] = {}
        self._readers: list[CachedReader] = []
        self._held: HeldParts = {}
        # Of the workers of this process: numbers of those that have ended, and functions that return those of others.
        self._pid = os.getpid()
        self._ended = _counts_of(CacheStats())
        self._living: list[Counts] = []

    @property
    def store(self) -> BlockStore:
        """The folder, which is created by the first use.

        Raises:
            ConfigError: it holds other files, or blocks of another size.
            OutputError: it cannot be written.
        """
        if self._store is None:
            self._store = BlockStore(
                self.folder, limit_bytes=self.limit_bytes, block_bytes=self.block_bytes, policy=self.policy
            )
        return self._store

    @property
    def stats(self) -> CacheStats:
        """What this process, and the workers of its loaders, have read through the cache so far."""
        others = [self._ended, *(counts() for counts in list(self._living))] if self._pid == os.getpid() else []
        sums = map(sum, zip(self.own_counts(), *others, strict=True))
        return CacheStats(**dict(zip(CacheStats.__struct_fields__, sums, strict=True)))

    def own_counts(self) -> tuple[int, ...]:
        """Return the fields of `CacheStats` of this process alone."""
        return _counts_of(self.store.stats)

    def follow(self, counts: Counts) -> Callable[[], None]:
        """Add to ``stats`` what other processes have read, as ``counts`` returns it, until what this returns is called.

        The numbers of that moment stay. A process that was forked does not follow those of its parent.
        """
        self._living.append(counts)

        def ended() -> None:
            self._living.remove(counts)
            self._ended = tuple(map(sum, zip(self._ended, counts(), strict=True)))

        return ended

    def describe(self) -> str:
        """Return folder, policy and ``stats`` in a line."""
        return f"{self.folder}, {self.policy}, {self.limit_bytes:,} bytes: {self.stats.describe()}"

    def reader(self, inner: str | Reader) -> CachedReader:
        """Return a reader that reads files through the cache, and what is not there by another reader.

        Raises:
            ConfigError: the inner reader is unknown, or maps files, so that nothing goes through a cache.
        """
        return CachedReader(self, reader(inner))

    def identity(self, path: str) -> str | None:
        """Return the identity of a file that a reader of this cache can open; None if there is none."""
        if path not in self._identities:
            for one in self._readers:
                with contextlib.suppress(StoreError):
                    self._identities[path] = one.inner.identity(path)
                    self._owners[path] = one
                    break
        return self._identities.get(path)

    def fetch(self, blocks: Sequence[MissingBlock]) -> None:
        """Fetch blocks that are not there, those of objects all at the same time, unless others do; see `BlockStore`.

        Raises:
            StoreError: an object cannot be read, or has changed.
        """
        for one, some in self._by_reader(blocks):
            one.fetch(some)

    @contextlib.contextmanager
    def holding(self, parts: Sequence[BlockPart]) -> Iterator[None]:
        """Hold parts of blocks in memory until the end of the block, for reads of them, without keeping the blocks.

        Parts are sorted, and those of a block do not touch. What is not there is fetched, of all objects at the same
        time.

        Raises:
            StoreError: as `fetch`.
        """
        held: HeldParts = {}
        for one, some in self._by_reader(parts):
            held |= one.fetch_parts(some)
        self._held |= held
        try:
            yield
        finally:
            for key in held:
                self._held.pop(key, None)

    def held(self, path: str, number: int) -> list[tuple[int, ByteArray]]:
        """Return the parts of a block that are held, sorted, each with the byte of the block where it begins."""
        return self._held.get((path, number), [])

    def _by_reader(self, places: Sequence[P]) -> Iterable[tuple[CachedReader, list[P]]]:
        found: dict[CachedReader, list[P]] = {}
        for place in places:
            if self.identity(place.path) is not None:
                found.setdefault(self._owners[place.path], []).append(place)
        return found.items()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"limit": self.limit_bytes, "block": self.block_bytes, "policy": self.policy}
        return _cache, (str(self.folder), options)

    def __repr__(self) -> str:
        return f"<Cache: {self.folder}, {self.limit_bytes:,} bytes, {self.policy}>"


def _counts_of(stats: CacheStats) -> tuple[int, ...]:
    return msgspec.structs.astuple(stats)


def _cache(folder: str, options: dict[str, Any]) -> Cache:
    return Cache(folder, **options)


class _Piece(NamedTuple):
    """A part of a range that lies in one block, and where it goes in the output."""

    begin: int
    length: int
    at: int


class _Claimed(NamedTuple):
    """A block of an open file that this process has claimed."""

    file: OpenFile
    path: str
    number: int
    claim: Claim


class CachedReader(Reader):
    """Reads files through a cache of blocks; opened by `Cache.reader`.

    Args:
        cache: the cache.
        inner: reads what is not in the cache.
    """

    name = "cached"
    cache: Cache

    def __init__(self, cache: Cache, inner: Reader) -> None:
        if isinstance(inner, MmapReader | CachedReader):
            raise ConfigError(
                f"a {inner.name} reader cannot be read through a cache: mapped files are read page by page by the"
                " system; use 'pread' for local files and file systems"
            )
        super().__init__(pool=inner._pool, retries=inner.retries)
        self.cache = cache
        self.inner = inner
        self.reads_urls = inner.reads_urls
        cache._readers.append(self)
        # The folder is made here, before threads and workers use it.
        _ = cache.store

    def identity(self, path: str) -> str:
        """Return that of the inner reader."""
        return self.inner.identity(path)

    def path_at(self, path: str) -> Path | RemotePath:
        """Return that of the inner reader."""
        return self.inner.path_at(path)

    def keep(self, path: str) -> None:
        """Keep a whole file, such as an index, as the inner reader does."""
        self.inner.keep(path)

    def keep_all(self, paths: Sequence[str], ends: Mapping[str, int] = NO_ENDS) -> None:
        """Keep whole files, and the ends of others, as the inner reader does."""
        self.inner.keep_all(paths, ends)

    def look_up(self, paths: Sequence[str], folders: Sequence[str] = ()) -> None:
        """Ask as the inner reader does."""
        self.inner.look_up(paths, folders)

    def ends(self, path: str, num_bytes: int, size: int | None = None) -> bytes:
        """Return the ends of a file, by which it is known, without the blocks around them."""
        return self.inner.ends(path, num_bytes, size)

    def view(self, path: str) -> ByteArray | None:
        """Return what the inner reader maps, such as an index that it keeps; usually None."""
        return self.inner.view(path)

    def for_pass(self) -> Reader:
        """Return that of the inner reader: a pass over all bytes would only push out what comes again."""
        return self.inner.for_pass()

    def release(self, path: str) -> None:
        """Drop one file from the pool of the inner reader."""
        self.inner.release(path)

    def close(self) -> None:
        """Drop the files of the inner reader from its pool."""
        self.inner.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cache, self.inner)

    def _open(self, path: str) -> OpenFile:
        file = self.inner._open(path)
        if path not in self.cache._identities:
            self.cache._identities[path] = self.inner.identity(path)
            self.cache._owners[path] = self
        return file

    def _take(self, fd: int, size: int) -> OpenFile:
        return self.inner._take(fd, size)

    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        if file.data is not None:
            self.inner._fill(file, path, offsets, lengths, out)
            return
        store = self.cache.store
        missing: dict[int, list[_Piece]] = {}
        num_hits = num_held = 0
        for number, pieces in _by_block(offsets, lengths, store.block_bytes).items():
            if store.read(self._wanted(file, path, number, pieces), _views(pieces, out)):
                num_hits += 1
            elif _copied(self.cache.held(path, number), pieces, out):
                num_held += 1
            else:
                missing[number] = pieces
        store.count(hits=num_hits, bypassed_blocks=num_held, read_bytes=len(out))
        at_a_time = max(1, FETCH_BYTES // store.block_bytes)
        numbers = sorted(missing)
        for first in range(0, len(numbers), at_a_time):
            self._fetch(file, path, {number: missing[number] for number in numbers[first : first + at_a_time]}, out)

    def fetch(self, blocks: Sequence[MissingBlock]) -> None:
        """Fetch blocks of files that this reader reads, unless others do; raises StoreError as `Cache.fetch` does."""
        at_a_time = max(1, FETCH_BYTES // self.cache.block_bytes)
        for first in range(0, len(blocks), at_a_time):
            some = blocks[first : first + at_a_time]
            files = [self._open(block.path) for block in some]
            claims = self.cache.store.claim([block.wanted for block in some])
            ours = [
                _Claimed(file, block.path, block.number, claim)
                for file, block, claim in zip(files, some, claims, strict=True)
                if claim.who == "ours"
            ]
            # Who reads such a block meets the fault again, and tries again.
            with contextlib.suppress(ReadFailure):
                self._fetch_claimed(ours, [], _unused)

    def fetch_parts(self, parts: Sequence[BlockPart]) -> HeldParts:
        """Return those of some parts whose blocks are not there; raises StoreError as `Cache.fetch` does."""
        store = self.cache.store
        places, ranges = [], []
        for (path, number), group in groupby(parts, attrgetter("path", "number")):
            file = self._open(path)
            begins, ends = (
                np.array(column, dtype=np.int64) for column in zip(*(one[2:] for one in group), strict=True)
            )
            wanted = Wanted(self._name(path, number), self._size(file, number), int(begins[0]), int(ends[-1]))
            if not store.read(wanted, ()):
                places.append((path, number, begins))
                ranges.append(FileRanges(file, path, number * store.block_bytes + begins, ends - begins))
        # Who reads a part that is not there meets the fault again, and tries again.
        with contextlib.suppress(ReadFailure):
            found = self._fetch_claimed([], ranges, _unused) if ranges else []
            return {
                (path, number): list(zip(begins.tolist(), data, strict=True))
                for (path, number, begins), data in zip(places, found, strict=True)
            }
        return {}

    def _fetch(self, file: OpenFile, path: str, missing: dict[int, list[_Piece]], out: ByteArray) -> None:
        """Fetch blocks that are not there, to keep them or only as far as they are read; fill what is read of them."""
        store = self.cache.store
        wanted = {number: self._wanted(file, path, number, pieces) for number, pieces in missing.items()}
        claims = dict(zip(missing, store.claim(list(wanted.values())), strict=True))

        def fill(one: _Claimed, block: ByteArray) -> None:
            for piece in missing[one.number]:
                begin = piece.begin - one.claim.begin
                out[piece.at : piece.at + piece.length] = block[begin : begin + piece.length]

        def fetch(ours: list[_Claimed], bypassed: list[int]) -> None:
            pieces = [piece for number in bypassed for piece in _placed(number, missing, store)]
            ranges = [FileRanges(file, path, *_columns(pieces))] if pieces else []
            for data in self._fetch_claimed(ours, ranges, fill):
                for piece, found in zip(pieces, data, strict=True):
                    out[piece.at : piece.at + piece.length] = found
            if bypassed:
                store.count(bypassed_blocks=len(bypassed))

        fetch(
            [_Claimed(file, path, number, claim) for number, claim in claims.items() if claim.who == "ours"],
            [number for number, claim in claims.items() if claim.who == "bypass"],
        )
        late = []
        for number in [number for number, claim in claims.items() if claim.who == "theirs"]:
            if self._waited(path, number, wanted[number], missing[number], out):
                store.count(waited_blocks=1)
            else:
                late.append(number)
        if late:
            fetch([], late)

    def _fetch_claimed(
        self, ours: Sequence[_Claimed], ranges: Sequence[FileRanges], use: Callable[[_Claimed, ByteArray], None]
    ) -> list[list[ByteArray]]:
        """Fetch blocks that this process has claimed and ranges of others at the same time, and return the ranges.

        ``use`` gets each block before it is written to the cache.
        """
        store = self.cache.store
        files = []
        for _, group in groupby(ours, attrgetter("path")):
            some = list(group)
            firsts = [one.number * store.block_bytes + one.claim.begin for one in some]
            sizes = [one.claim.end - one.claim.begin for one in some]
            files.append(FileRanges(some[0].file, some[0].path, *map(np.array, (firsts, sizes))))
        num_kept = 0
        try:
            with self._waiting():
                found = self.inner._read_together([*files, *ranges])
            for one, block in zip(ours, chain.from_iterable(found[: len(files)]), strict=True):
                use(one, block)
                size = self._size(one.file, one.number)
                num_kept += store.put(self._name(one.path, one.number), size, one.claim.begin, block)
        except BaseException:
            # Blocks that are there by now are not given up: they have no owner any more.
            for one in ours:
                store.give_up(self._name(one.path, one.number))
            raise
        fetched = sum(int(one.lengths.sum()) for one in (*files, *ranges))
        store.count(fetched_blocks=num_kept, fetched_bytes=fetched)
        return found[len(files) :]

    def _waiting(self) -> Wait:
        """Say that this thread waits for files, which may lie on slow disks. A reader of objects says so itself."""
        return contextlib.nullcontext() if self.inner.reads_urls else waiting()

    def _waited(self, path: str, number: int, wanted: Wanted, pieces: list[_Piece], out: ByteArray) -> bool:
        """Wait for a block that another process or thread fetches, and return whether it came."""
        store = self.cache.store
        until = time.monotonic() + WAIT_S
        while True:
            is_coming = store.is_being_fetched(wanted.name)
            if store.read(wanted, _views(pieces, out)):
                return True
            if not is_coming:
                return False
            if time.monotonic() > until:
                _log.warning(
                    "%s: byte %d: another process has fetched this block for %.0f s; reading it without the cache%s",
                    path,
                    number * self.cache.block_bytes,
                    WAIT_S,
                    read_for(),
                )
                return False
            with waiting():
                store.wait(wanted.name, 1.0)

    def _wanted(self, file: OpenFile, path: str, number: int, pieces: list[_Piece]) -> Wanted:
        begin = min(piece.begin for piece in pieces)
        end = max(piece.begin + piece.length for piece in pieces)
        return Wanted(self._name(path, number), self._size(file, number), begin, end)

    def _name(self, path: str, number: int) -> str:
        return block_name(self.cache._identities[path], number)

    def _size(self, file: OpenFile, number: int) -> int:
        block_bytes = self.cache.block_bytes
        return min(block_bytes, file.size - number * block_bytes)


def _by_block(offsets: IntArray, lengths: IntArray, block_bytes: int) -> dict[int, list[_Piece]]:
    """Return the pieces of ranges by the number of their block, each with its place in the output."""
    found: dict[int, list[_Piece]] = {}
    numbers, begins = np.divmod(offsets, block_bytes)
    places = np.cumsum(lengths) - lengths
    rows = zip(numbers.tolist(), begins.tolist(), lengths.tolist(), places.tolist(), strict=True)
    for number, begin, length, at in rows:
        while length > block_bytes - begin:
            count = block_bytes - begin
            found.setdefault(number, []).append(_Piece(begin, count, at))
            number, begin, length, at = number + 1, 0, length - count, at + count
        if length:
            found.setdefault(number, []).append(_Piece(begin, length, at))
    return found


def _views(pieces: list[_Piece], out: ByteArray) -> Iterator[tuple[int, memoryview]]:
    """Yield where each piece of a block begins, and where it goes."""
    view = out.data
    for begin, length, at in pieces:
        yield begin, view[at : at + length]


def _copied(held: list[tuple[int, ByteArray]], pieces: list[_Piece], out: ByteArray) -> bool:
    """Copy pieces of a block from parts of it that are held, and return whether all lie in these."""
    for piece in pieces:
        at = bisect_right(held, piece.begin, key=itemgetter(0)) - 1
        if at < 0 or piece.begin + piece.length > held[at][0] + len(held[at][1]):
            return False
        begin = piece.begin - held[at][0]
        out[piece.at : piece.at + piece.length] = held[at][1][begin : begin + piece.length]
    return True


def _unused(_: _Claimed, __: ByteArray) -> None:
    """Leave a block that is only written to the cache."""


def _columns(pieces: list[_Piece]) -> tuple[IntArray, IntArray]:
    """Return where pieces begin, and their lengths."""
    begins, lengths, _ = zip(*pieces, strict=True)
    return np.array(begins, dtype=np.int64), np.array(lengths, dtype=np.int64)


def _placed(number: int, missing: dict[int, list[_Piece]], store: BlockStore) -> Iterator[_Piece]:
    """Yield the pieces of a block with their places in the file."""
    begin = number * store.block_bytes
    for piece in missing[number]:
        yield piece._replace(begin=begin + piece.begin)


def describe_cache(folder: str | os.PathLike[str]) -> CacheContent:
    """Return what is in the folder of a cache.

    Raises:
        ConfigError: it is none of a cache.
    """
    return _existing(folder).content()


def check_cache(folder: str | os.PathLike[str]) -> list[str]:
    """Read every block of a cache, remove those that are damaged, and return what was wrong with each.

    Raises:
        ConfigError: the folder is none of a cache.
    """
    return list(_existing(folder).verify())


def clear_cache(folder: str | os.PathLike[str]) -> int:
    """Remove all blocks of a cache that nobody is fetching, and return how many these were.

    Raises:
        ConfigError: the folder is none of a cache.
    """
    return _existing(folder).clear()


def _existing(folder: str | os.PathLike[str]) -> BlockStore:
    block_bytes = read_folder(Path(folder))
    if block_bytes is None:
        raise ConfigError(f"{folder}: there is no cache here; expected a folder that headrace.Cache has made")
    return BlockStore(Path(folder), limit_bytes=block_bytes, block_bytes=block_bytes, policy="pin")
