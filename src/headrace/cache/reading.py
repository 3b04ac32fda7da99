"""`Cache`, the description of a cache of blocks, through which readers read ranges of files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash

from headrace.cache.block_store import (
    PASSING,
    BlockStore,
    ByteArray,
    CacheBlock,
    CacheContent,
    CacheStats,
    block_name,
)
from headrace.cache.process import read_folder
from headrace.errors import ConfigError
from headrace.io import MmapReader, Reader, parse_size, reader
from headrace.io.readers import FileRanges, IntArray, OpenFile

FETCH_BYTES: Final = 64 << 20
"""The most bytes of blocks that a read fetches at a time."""

WAIT_S: Final = 60.0
"""How long a read waits for a block that another process fetches, before it fetches what it needs itself."""

LOOK_S: Final = 0.005
"""How often it is looked whether that block is there."""

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
        self._ended: tuple[int, ...] = (0,) * len(CacheStats.__struct_fields__)
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
        return msgspec.structs.astuple(self.store.stats)

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

    def reader(self, inner: str | Reader) -> Reader:
        """Return a reader that reads ranges of files through the cache, and what is not there as another one does.

        Raises:
            ConfigError: the inner reader is unknown, or maps files, or reads through a cache already.
        """
        found = reader(inner)
        if found.cache is not None:
            raise ConfigError(f"{found!r} already reads through a cache; open the data with one")
        if isinstance(found, MmapReader):
            raise ConfigError(
                f"a {found.name} reader cannot be read through a cache: mapped files are read page by page by the"
                " system; use 'pread' for local files and file systems"
            )
        # The folder is made here, before threads and workers use it.
        _ = self.store
        return found.through(self)

    def fill(
        self, using: Reader, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray
    ) -> None:
        """Read ranges of an open file into ``out``; what is not there is fetched by a reader."""
        _Fill(self, using, file, path, out).read(offsets, lengths)

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

    def identity(self, path: str, using: Reader) -> str:
        """Return what a reader says tells a file from every other one; it is asked once."""
        if path not in self._identities:
            self._identities[path] = using.identity(path)
        return self._identities[path]

    def is_home(self, path: str, number: int) -> bool:
        """Return whether this node is the home of a block, or no other one is."""
        homes = self._homes.get(path)
        return homes is None or (homes.first + number) % homes.num_nodes == homes.node

    def __reduce__(self) -> tuple[Any, ...]:
        described = partial(Cache, limit=self.limit_bytes, block=self.block_bytes)
        return described, (str(self.folder),), {"_homes": self._homes}

    def __repr__(self) -> str:
        return f"<Cache: {self.folder}, {self.limit_bytes:,} bytes>"


class _Piece(NamedTuple):
    """A part of a range that lies in one block, and where it goes in the output."""

    begin: int
    length: int
    at: int


class _Fill:
    """A read of ranges of one file through a cache.

    Args:
        cache: the cache.
        using: reads what is not there.
        file: the open file, and its path.
        out: where the bytes of the ranges go.
    """

    def __init__(self, cache: Cache, using: Reader, file: OpenFile, path: str, out: ByteArray) -> None:
        self._cache = cache
        self._store = cache.store
        self._using = using
        self._file = file
        self._path = path
        self._out = out
        self._identity = cache.identity(path, using)
        label = cache.use(path)
        self._label = PASSING if using.blocks_pass else label

    def read(self, offsets: IntArray, lengths: IntArray) -> None:
        """Read ranges, which are known to lie inside the file."""
        missing: dict[int, list[_Piece]] = {}
        num_hits = 0
        for number, pieces in _by_block(offsets, lengths, self._store.block_bytes).items():
            if self._store.read(self._name(number), _views(pieces, self._out)):
                num_hits += 1
            else:
                missing[number] = pieces
        self._store.count(hits=num_hits, read_bytes=len(self._out))
        at_a_time = max(1, FETCH_BYTES // self._store.block_bytes)
        numbers = sorted(missing)
        for first in range(0, len(numbers), at_a_time):
            self._fetch({number: missing[number] for number in numbers[first : first + at_a_time]})

    def _fetch(self, missing: dict[int, list[_Piece]]) -> None:
        """Fetch blocks that are not there, to keep them or only as far as they are read; fill what is read of them."""
        claims = self._store.claim([self._block(number) for number in missing])
        by: dict[str, list[int]] = {"ours": [], "theirs": [], "bypass": []}
        for number, claim in zip(missing, claims, strict=True):
            by[claim].append(number)
        self._fetch_claimed(by["ours"], by["bypass"], missing)
        late = [number for number in by["theirs"] if not self._waited(number, missing[number])]
        self._store.count(waited_blocks=len(by["theirs"]) - len(late))
        if late:
            self._fetch_claimed([], late, missing)

    def _fetch_claimed(self, ours: list[int], bypassed: list[int], missing: dict[int, list[_Piece]]) -> None:
        """Fetch blocks that this process has claimed, and at the same time what is read of those that nobody keeps."""
        store, size, out = self._store, self._store.block_bytes, self._out
        pieces = [piece._replace(begin=number * size + piece.begin) for number in bypassed for piece in missing[number]]
        wanted = [(number * size, self._block(number).size) for number in ours], [one[:2] for one in pieces]
        num_kept = 0
        try:
            blocks, ranges = self._using._read_together(
                [FileRanges(self._file, self._path, *_columns(one)) for one in wanted]
            )
            # Without ranges there is one empty array.
            for number, block in zip(ours, blocks, strict=False):
                for piece in missing[number]:
                    out[piece.at : piece.at + piece.length] = block[piece.begin : piece.begin + piece.length]
                num_kept += store.put(self._name(number), block)
        except BaseException:
            # Blocks that are there by now are not given up: they have no owner any more.
            for number in ours:
                store.give_up(self._name(number))
            raise
        for piece, data in zip(pieces, ranges, strict=False):
            out[piece.at : piece.at + piece.length] = data
        fetched_bytes = sum(length for one in wanted for _, length in one)
        store.count(fetched_blocks=num_kept, bypassed_blocks=len(bypassed), fetched_bytes=fetched_bytes)

    def _waited(self, number: int, pieces: list[_Piece]) -> bool:
        """Wait for a block that another process or thread fetches, and return whether it came."""
        store, name = self._store, self._name(number)
        until = time.monotonic() + WAIT_S
        while True:
            is_coming = store.is_being_fetched(name)
            if store.read(name, _views(pieces, self._out)):
                return True
            if not is_coming:
                return False
            if time.monotonic() > until:
                _log.warning(
                    "%s: byte %d: another process has fetched this block for %.0f s; reading it without the cache",
                    self._path,
                    number * store.block_bytes,
                    WAIT_S,
                )
                return False
            time.sleep(LOOK_S)

    def _block(self, number: int) -> CacheBlock:
        size = min(self._store.block_bytes, self._file.size - number * self._store.block_bytes)
        return CacheBlock(self._name(number), size, self._label if self._cache.is_home(self._path, number) else None)

    def _name(self, number: int) -> str:
        return block_name(self._identity, number)


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
