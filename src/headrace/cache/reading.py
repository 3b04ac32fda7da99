"""`Cache`, the description of a cache of blocks, and `CachedReader`, which reads files through it."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash

from headrace.cache.block_store import BlockStore, ByteArray, CacheContent, CacheStats
from headrace.cache.folder import read_folder
from headrace.cache.transaction import PASSING, CacheBlock, block_name
from headrace.errors import ConfigError
from headrace.io import MmapReader, Reader, parse_size, reader
from headrace.io.readers import NO_ENDS, FileRanges, IntArray, OpenFile, read_for
from headrace.io.waits import Wait, waiting

if TYPE_CHECKING:
    from headrace.io import RemotePath

FETCH_BYTES: Final = 64 << 20
"""The most bytes of blocks that a read fetches at a time."""

WAIT_S: Final = 60.0
"""How long a read waits for a block that another process fetches, before it fetches what it needs itself."""

Counts = Callable[[], Sequence[int]]
"""Returns numbers in the order of the fields of `CacheStats`."""

_log = logging.getLogger("headrace")


class _Homes(NamedTuple):
    """Which blocks of a file have their home on a node: those of which ``(first + number) % num_nodes`` is ``node``."""

    first: int
    num_nodes: int
    node: int
    label: str


class Cache:
    """Blocks of files that are far away, on a local disk: one cache for all processes of a node, and for many runs.

    Open the data through it:

        cache = headrace.Cache("/nvme/headrace", limit="2TB")
        store = headrace.open("s3://bucket/web", cache=cache)

    In the order ``full``, and without a loader, the first blocks that come are kept, while there is room. In all other
    orders the samples of a block come together, and blocks make room in the order in which they came. Blocks go, too,
    whose folder no living process reads any more. If a loader deals its samples to nodes, see `headrace.Dealing`, each
    node keeps only the blocks that it is the home of.

    Blocks are named by a hash of the identity of their file: its path or URL, its size, and its time of change or ETag.
    A file that changes is another file. A block that is not kept is not fetched whole: only what is read of it is. A
    full disk is survived: what finds no room is read without being kept, which is counted and logged.

    Args:
        folder: a folder of its own on a local disk; it is created.
        limit: the most bytes of all blocks, such as ``"2TB"``.
        block: the bytes of a block.

    Raises:
        ConfigError: a size is not allowed.

    Example:
        >>> cache = headrace.Cache("cache", limit="100MB", block="64KiB")
        >>> store = headrace.open("stores/web", cache=cache)
        >>> first, again = store.document(0), store.document(0)
        >>> cache.stats.fetched_blocks, cache.stats.hits >= 1
        (2, True)
    """

    def __init__(self, folder: str | os.PathLike[str], *, limit: str | int, block: str | int = "8MiB") -> None:
        self.folder = Path(folder)
        self.limit_bytes = parse_size(limit, "limit")
        self.block_bytes = parse_size(block, "block")
        if self.limit_bytes < self.block_bytes:
            raise ConfigError(f"limit {limit} has no room for a block of {self.block_bytes:,} bytes")
        self._store: BlockStore | None = None
        self._identities: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._homes: dict[str, _Homes] = {}
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
            self._store = BlockStore(self.folder, limit_bytes=self.limit_bytes, block_bytes=self.block_bytes)
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
        """Return folder, limit and ``stats`` in a line."""
        return f"{self.folder}, {self.limit_bytes:,} bytes: {self.stats.describe()}"

    def reader(self, inner: str | Reader) -> CachedReader:
        """Return a reader that reads files through the cache, and what is not there by another reader.

        Raises:
            ConfigError: the inner reader is unknown, or maps files, so that nothing goes through a cache.
        """
        return CachedReader(self, reader(inner))

    def keep_homes(self, files: Sequence[str], firsts: Sequence[int], *, num_nodes: int, node: int) -> None:
        """From now on keep only those blocks of some files that have their home on this node.

        Args:
            files: the paths of the files.
            firsts: the number of the first block of each file, of which the ones after it follow.
            num_nodes: the number of nodes; the home of a block is its number modulo this.
            node: this node.
        """
        label = xxhash.xxh3_64_hexdigest(repr((tuple(files), tuple(firsts), num_nodes, node)).encode())
        self._homes |= {path: _Homes(first, num_nodes, node, label) for path, first in zip(files, firsts, strict=True)}
        # What was kept of these files for another number of nodes may make room now.
        self.store.use_none()
        self.store.use(label)

    def use(self, path: str) -> str:
        """Return the label for which blocks of a file are kept, and note that this process reads by it."""
        label = self._labels.get(path)
        if label is None:
            label = self._labels[path] = xxhash.xxh3_64_hexdigest(path.rpartition("/")[0].encode())
        if path in self._homes:
            label = self._homes[path].label
        self.store.use(label)
        return label

    def is_home(self, path: str, number: int) -> bool:
        """Return whether this node is the home of a block, or no other one is."""
        homes = self._homes.get(path)
        return homes is None or (homes.first + number) % homes.num_nodes == homes.node

    def __reduce__(self) -> tuple[Any, ...]:
        return _cache, (str(self.folder), {"limit": self.limit_bytes, "block": self.block_bytes}, self._homes)

    def __repr__(self) -> str:
        return f"<Cache: {self.folder}, {self.limit_bytes:,} bytes>"


def _counts_of(stats: CacheStats) -> tuple[int, ...]:
    return msgspec.structs.astuple(stats)


def _cache(folder: str, options: dict[str, Any], homes: dict[str, _Homes]) -> Cache:
    cache = Cache(folder, **options)
    cache._homes |= homes
    return cache


class _Piece(NamedTuple):
    """A part of a range that lies in one block, and where it goes in the output."""

    begin: int
    length: int
    at: int


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
        self.cache.use(path)
        self.inner.keep(path)

    def keep_all(self, paths: Sequence[str], ends: Mapping[str, int] = NO_ENDS) -> None:
        """Keep whole files, and the ends of others, as the inner reader does."""
        for path in (*paths, *ends):
            self.cache.use(path)
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
        return _cached, (self.cache, self.inner, self.blocks_pass)

    def _open(self, path: str) -> OpenFile:
        file = self.inner._open(path)
        if path not in self.cache._identities:
            self.cache._identities[path] = self.inner.identity(path)
        self.cache.use(path)
        return file

    def _take(self, fd: int, size: int) -> OpenFile:
        return self.inner._take(fd, size)

    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        if file.data is not None:
            self.inner._fill(file, path, offsets, lengths, out)
            return
        store = self.cache.store
        missing: dict[int, list[_Piece]] = {}
        num_hits = 0
        for number, pieces in _by_block(offsets, lengths, store.block_bytes).items():
            if store.read(self._name(path, number), _views(pieces, out)):
                num_hits += 1
            else:
                missing[number] = pieces
        store.count(hits=num_hits, read_bytes=len(out))
        at_a_time = max(1, FETCH_BYTES // store.block_bytes)
        numbers = sorted(missing)
        for first in range(0, len(numbers), at_a_time):
            self._fetch(file, path, {number: missing[number] for number in numbers[first : first + at_a_time]}, out)

    def _fetch(self, file: OpenFile, path: str, missing: dict[int, list[_Piece]], out: ByteArray) -> None:
        """Fetch blocks that are not there, to keep them or only as far as they are read; fill what is read of them."""
        claims = self.cache.store.claim([self._block(file, path, number) for number in missing])
        by: dict[str, list[int]] = {"ours": [], "theirs": [], "bypass": []}
        for number, claim in zip(missing, claims, strict=True):
            by[claim].append(number)
        self._fetch_claimed(file, path, by["ours"], by["bypass"], missing, out)
        late = [number for number in by["theirs"] if not self._waited(path, number, missing[number], out)]
        self.cache.store.count(waited_blocks=len(by["theirs"]) - len(late))
        if late:
            self._fetch_claimed(file, path, [], late, missing, out)

    def _fetch_claimed(
        self,
        file: OpenFile,
        path: str,
        ours: list[int],
        bypassed: list[int],
        missing: dict[int, list[_Piece]],
        out: ByteArray,
    ) -> None:
        """Fetch blocks that this process has claimed, and at the same time what is read of those that nobody keeps."""
        store, size = self.cache.store, self.cache.block_bytes
        pieces = [piece._replace(begin=number * size + piece.begin) for number in bypassed for piece in missing[number]]
        wanted = [(number * size, self._block(file, path, number).size) for number in ours], [one[:2] for one in pieces]
        num_kept = 0
        try:
            with self._waiting():
                blocks, ranges = self.inner._read_together([FileRanges(file, path, *_columns(one)) for one in wanted])
            # Without ranges there is one empty array.
            for number, block in zip(ours, blocks, strict=False):
                for piece in missing[number]:
                    out[piece.at : piece.at + piece.length] = block[piece.begin : piece.begin + piece.length]
                num_kept += store.put(self._name(path, number), block)
        except BaseException:
            # Blocks that are there by now are not given up: they have no owner any more.
            for number in ours:
                store.give_up(self._name(path, number))
            raise
        for piece, data in zip(pieces, ranges, strict=False):
            out[piece.at : piece.at + piece.length] = data
        fetched_bytes = sum(length for one in wanted for _, length in one)
        store.count(fetched_blocks=num_kept, bypassed_blocks=len(bypassed), fetched_bytes=fetched_bytes)

    def _waiting(self) -> Wait:
        """Say that this thread waits for files, which may lie on slow disks. A reader of objects says so itself."""
        return contextlib.nullcontext() if self.inner.reads_urls else waiting()

    def _waited(self, path: str, number: int, pieces: list[_Piece], out: ByteArray) -> bool:
        """Wait for a block that another process or thread fetches, and return whether it came."""
        store, name = self.cache.store, self._name(path, number)
        until = time.monotonic() + WAIT_S
        while True:
            is_coming = store.is_being_fetched(name)
            if store.read(name, _views(pieces, out)):
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
                store.wait(name, 1.0)

    def _block(self, file: OpenFile, path: str, number: int) -> CacheBlock:
        size = min(self.cache.block_bytes, file.size - number * self.cache.block_bytes)
        label = PASSING if self.blocks_pass else self.cache.use(path)
        return CacheBlock(self._name(path, number), size, label if self.cache.is_home(path, number) else None)

    def _name(self, path: str, number: int) -> str:
        return block_name(self.cache._identities[path], number)


def _cached(cache: Cache, inner: Reader, blocks_pass: bool) -> CachedReader:
    found = CachedReader(cache, inner)
    found.blocks_pass = blocks_pass
    return found


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


def _columns(ranges: Sequence[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    """Return where ranges begin, and their lengths."""
    begins, lengths = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(begins), np.ascontiguousarray(lengths)


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
    return BlockStore(Path(folder), limit_bytes=block_bytes, block_bytes=block_bytes)
