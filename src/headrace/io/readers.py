"""Readers return bytes of files by path, offset and length, and keep a bounded number of files open.

`MmapReader` maps files and `PreadReader` reads them with ``preadv``; both share the interface of `Reader`. Open files
are kept in a `FilePool`, which drops the least recently used one first. A `RetryPolicy` says how often a read is tried
again after an error that may pass, such as a time-out, a lost connection or a faulty read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import mmap
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, StoreError
from headrace.io.paths import check_kind

if TYPE_CHECKING:
    from headrace.io.remote import RemotePath


@contextlib.contextmanager
def reading_for(words: Callable[[], str]) -> Iterator[None]:
    """Say in a note of a StoreError what the block reads: "samples at positions 8 to 15 of step 1 on rank 0 of 2"."""
    try:
        yield
    except StoreError as error:
        error.add_note(f"while reading {words()}")
        raise


class FilePool:
    """Keeps at most ``max_open`` files open. A dropped file closes when its last user (a read, a view) is done.

    The pool has no lock: each step is one operation on a dict, whose newest entry is the most recently used one. So a
    fork in the middle of another thread's call leaves nothing locked in the child, and a finaliser may enter the pool
    again. If two threads miss the same file, both open it, and one of the two is dropped. (An OrderedDict would need
    the interpreter lock, up to Python 3.13.)

    Args:
        max_open: the largest number of open files; it may be changed at any time.

    Example:
        >>> reader = headrace.io.PreadReader(pool=headrace.io.FilePool(max_open=16))
        >>> headrace.open("stores/web", reader=reader).keys
        ('tokens',)
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._files: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: Hashable) -> Any:
        """Return the open file of this key and mark it as the most recently used; None if there is none."""
        file = self._files.get(key)
        if file is not None and 2 * len(self._files) > self.max_open:
            # While nothing will be dropped soon, the order does not matter. A thread that misses the file between these
            # two operations opens it again.
            self._files.pop(key, None)
            self._files[key] = file
        return file

    def make_room(self) -> None:
        """Drop the least recently used files until one more may be opened."""
        keys = list(self._files)
        for key in keys[: max(0, len(keys) - self.max_open + 1)]:
            self._files.pop(key, None)

    def put(self, key: Hashable, file: Any) -> None:
        """Add an open file under this key, as the most recently used one."""
        self._files.pop(key, None)
        self._files[key] = file

    def drop(self, key: Hashable) -> None:
        """Remove the file of this key, if it is there."""
        self._files.pop(key, None)


OPEN_FILES = FilePool(256)
"""The open files of all readers of this process. Set its ``max_open`` to allow more or fewer."""

_PASSING: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EBUSY", "EINTR", "ESTALE", "EREMOTEIO", "ECOMM", "ETIMEDOUT", "ETIME", "EPROTO"),
        *("ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENOTCONN", "ESHUTDOWN", "EPIPE", "ENOLINK"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)
"""Errors that the next attempt may not meet. A missing file or a missing permission is not among them."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a read is attempted, and how long Headrace waits in between: twice as long each time.

    With the defaults it waits 1.5 s in all. The delays are not random, so a run does the same each time, apart from the
    timing.

    Attributes:
        attempts: number of attempts in all, at least 1; 1 means that nothing is tried again.
        first_delay_s: seconds to wait before the second attempt.
        most_delay_s: the longest wait before any attempt, in seconds.

    Example:
        >>> list(headrace.stores.RetryPolicy(attempts=4, first_delay_s=0.5, most_delay_s=1.5).delays())
        [0.5, 1.0, 1.5]
    """

    attempts: int = 5
    first_delay_s: float = 0.1
    most_delay_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError if ``attempts`` is below 1, or if a delay is negative or not finite."""
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; it must be at least 1, which means no second attempt")
        for name in ("first_delay_s", "most_delay_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a number of seconds, at least 0")

    def delays(self) -> Iterator[float]:
        """Yield the seconds to wait before the second attempt, the third, and so on."""
        delay = self.first_delay_s
        for _ in range(self.attempts - 1):
            yield min(delay, self.most_delay_s)
            delay = min(2 * delay, self.most_delay_s)


def may_pass(error: BaseException | None) -> bool:
    """Return whether an error comes from the system and is of a kind that the next attempt may not meet."""
    if not isinstance(error, OSError):
        return False
    if isinstance(error, TimeoutError | ConnectionError) or error.errno in _PASSING:
        return True
    # urllib puts the error of the connection here.
    reason = getattr(error, "reason", None)
    return isinstance(reason, OSError) and reason is not error and may_pass(reason)


IntArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]
T = TypeVar("T")

MAX_KEPT: Final = 64
"""The most derived objects that are kept with one open file; then all of them are dropped, to be made again."""

_log = logging.getLogger("headrace")


class ReadFailure(Exception):  # noqa: N818 -- it never leaves the readers
    """The system could not read a file from byte ``at`` on."""

    def __init__(self, at: int, error: OSError) -> None:
        super().__init__(at, error)
        self.at = at
        self.error = error


class OpenFile:
    """One open file in the pool; it closes when the last reference to it goes.

    Attributes:
        size: size in bytes when the file was opened.
        data: the mapped file as (size,) uint8, if the reader maps.
        fd: the file descriptor, or -1 if the file is mapped.
        kept: what `Reader.kept` derived from the file's mapping; it is dropped together with the file.
    """

    __slots__ = ("__weakref__", "data", "fd", "kept", "size")

    def __init__(self, size: int, *, data: ByteArray | None = None, fd: int = -1) -> None:
        self.size = size
        self.data = data
        self.fd = fd
        self.kept: dict[Hashable, Any] = {}

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


NO_ENDS: Final[Mapping[str, int]] = MappingProxyType({})


class FileRanges(NamedTuple):
    """Ranges of an open file, (n,) int64: the byte where each begins, and how many bytes it has."""

    file: OpenFile
    path: str
    offsets: IntArray
    lengths: IntArray


class Reader(ABC):
    """Reads ranges of files. It is safe in threads and across a fork, and only its configuration is pickled.

    All readers of a process share one bounded pool of open files, so any number of sources may be in use. If a file was
    dropped from the pool and is opened again, it must have the size and the modification time that this reader saw
    first: data that changes under a run is an error, never a silent mixture.

    After an error that may pass, the reader opens the file again and repeats the read, since another rank reads the
    same bytes and may have had no error. Each retry is logged and counted in ``num_retries``. An error in a page of a
    mapping cannot be handled so: it ends the process. Use ``"pread"`` on network file systems.

    Args:
        pool: the pool of open files.
        retries: how often a read is tried again; None for the default of `RetryPolicy`.
    """

    name: ClassVar[str]
    reads_urls: bool = False
    """Whether it reads objects by URL, as well as local files."""
    cache: Any = None
    """The `headrace.Cache` through which it reads ranges; None for a reader without one. Its ``fill`` is called."""
    blocks_pass: bool = False
    """Whether samples that lie together are read together, so that what a cache holds of them may go after that."""

    _direct: Self | None = None

    def __init__(self, *, pool: FilePool = OPEN_FILES, retries: RetryPolicy | None = None) -> None:
        self._pool = pool
        self.retries = RetryPolicy() if retries is None else retries
        self.num_retries = 0
        self._waits = itertools.count(1)
        # Stands for this reader in the keys of the pool.
        self._mark = object()
        self._seen: dict[str, tuple[int, int]] = {}
        weakref.finalize(self, _let_go, pool, self._mark, self._seen).atexit = False

    def through(self, cache: Any, blocks_pass: bool = False) -> Self:
        """Return the same reader, with the same open files, which reads ranges through a cache."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.cache, twin.blocks_pass, twin._direct = cache, blocks_pass, self
        return twin

    @property
    def direct(self) -> Self:
        """The same reader without its cache."""
        return self._direct or self

    def size(self, path: str) -> int:
        """Return the size of the file in bytes.

        Raises:
            StoreError: there is no such file, or it cannot be opened.
        """
        return self._open(path).size

    def identity(self, path: str) -> str:
        """Return what tells the file from every other one, and from itself after a change: path, size and time.

        Raises:
            StoreError: as `size`.
        """
        self._open(path)
        return repr((str(Path(path).absolute()), *self._seen[path]))

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """Return the bytes of several ranges, one after another.

        Args:
            path: the file.
            offsets: (n,) int64, the byte where each range begins.
            lengths: (n,) int64, the number of bytes in each range.
            out: (sum of lengths,) uint8, contiguous: the array to fill; a new one by default.

        Raises:
            StoreError: the file is missing, a range is not inside the file, the read was short, or all attempts to
                read failed.
        """
        file = self._open(path)
        if len(offsets):
            # The two comparisons cannot overflow, whatever the index of a broken store says.
            outside = (offsets < 0) | (lengths < 0) | (lengths > file.size) | (offsets > file.size - lengths)
            if outside.any():
                at = int(np.argmax(outside))
                offset, length = int(offsets[at]), int(lengths[at])
                found = max(0, min(length, file.size - offset)) if offset >= 0 else 0
                raise StoreError(
                    f"{path}: byte {offset}: wanted {length} bytes, found {found}; the file has {file.size} bytes"
                )
        total = int(lengths.sum())
        if out is None:
            out = np.empty(total, np.uint8)
        elif out.shape != (total,) or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise ValueError(f"out must be contiguous uint8 of shape ({total},), not {out.dtype} of shape {out.shape}")
        try:
            self._fill_through(file, path, offsets, lengths, out)
        except ReadFailure as failure:
            self._fill_again(failure, path, offsets, lengths, out)
        return out

    def read(self, path: str, begin: int, length: int) -> ByteArray:
        """Return the bytes of one range; raises as `read_ranges` does."""
        return self.read_ranges(path, np.array([begin]), np.array([length]))

    def peek(self, path: str, begin: int, length: int) -> bytes:
        """Return some bytes of a file of which nothing else may be read: a local one is not kept open.

        Raises:
            OSError: a local file cannot be read.
            StoreError: as `read_ranges`, of an object.
        """
        place = self.path_at(path)
        if not isinstance(place, Path):
            return self.read(path, begin, length).tobytes()
        with place.open("rb") as file:
            return os.pread(file.fileno(), length, begin)

    def read_files(self, paths: Sequence[str]) -> list[ByteArray]:
        """Return all bytes of each of some files; objects in stores are fetched at the same time.

        Raises:
            StoreError: a file is missing, or cannot be read.
        """
        return [self.read(path, 0, self.size(path)) for path in paths]

    def ends(self, path: str, num_bytes: int, size: int | None = None) -> bytes:
        """Return the first and the last ``num_bytes`` of a file, or of its first ``size`` bytes, by which it is known.

        If there are fewer bytes, all of them are returned twice. A cache has no part in it, which would fetch blocks.
        """
        size = self.size(path) if size is None else size
        length = min(size, num_bytes)
        return self.direct.read_ranges(path, np.array([0, size - length]), np.array([length, length])).tobytes()

    def whole(self, path: str) -> ByteArray:
        """Return all bytes of a file, (size,) uint8, read-only: a view if this reader maps, otherwise a copy."""
        data = self.view(path)
        if data is None:
            data = self.read(path, 0, self.size(path))
            data.flags.writeable = False
        return data

    def path_at(self, path: str) -> Path | RemotePath:
        """Return a path with methods, for questions about files and folders: a `Path`, or a `RemotePath` of a URL."""
        return Path(path)

    def keep(self, path: str) -> None:
        """Prepare for reads all over a file, such as an index: fetch it whole if it is remote.

        Raises:
            StoreError: there is no such object, or it cannot be read.
        """
        if self.cache is not None:
            self.cache.use(path)

    def keep_all(self, paths: Sequence[str], ends: Mapping[str, int] = NO_ENDS) -> None:
        """Do the same as `keep` for many files, several of them at the same time if they are remote.

        With them fetch the ends of remote files, by path: so many bytes as `ends` will be asked for.
        """
        for path in paths:
            self.keep(path)
        for path in ends:
            Reader.keep(self, path)  # which fetches nothing

    def look_up(self, paths: Sequence[str], folders: Sequence[str] = ()) -> None:
        """Ask at the same time whether remote files are there, and what is in remote folders; later asks know it."""
        return

    @abstractmethod
    def view(self, path: str) -> ByteArray | None:
        """Return the whole file mapped, as (size,) uint8, read-only; None if this reader cannot map.

        The view stays valid, and the file mapped, for as long as the view lives, even if the reader is closed. If a
        file is cut short under a live mapping, touching the lost part ends the process; Headrace cannot prevent this.
        """

    def kept(self, path: str, key: Hashable, make: Callable[[ByteArray], T]) -> T | None:
        """Return ``make(view(path))``, made once and kept while the file stays open; None if this reader cannot map.

        This is for typed views that are expensive to make and used in every read. They are dropped together with the
        file, so that they do not keep open a file that the pool has dropped. ``key`` tells apart several views of one
        file.
        """
        file = self._open(path)
        if file.data is None:
            return None
        try:
            return file.kept[key]  # type: ignore[no-any-return]
        except KeyError:
            value = make(file.data)
            if len(file.kept) >= MAX_KEPT:
                file.kept.clear()
            file.kept[key] = value
            return value

    def for_pass(self) -> Reader:
        """Return the fastest reader for one pass over all bytes of the same files; by default this one.

        It reads through no cache: a pass would only push out what comes again.
        """
        return self.direct

    def release(self, path: str) -> None:
        """Drop one file from the pool, after a pass that touched all of it. A later read opens it again."""
        self._pool.drop((self._mark, path))

    def close(self) -> None:
        """Drop this reader's files from the pool. Views stay valid, and a later read opens a file again."""
        _let_go(self._pool, self._mark, self._seen)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache is not None:
            return self.direct.through, (self.cache, self.blocks_pass)
        is_usual = self.retries == RetryPolicy()
        return type(self) if is_usual else partial(type(self), retries=self.retries), ()

    def __repr__(self) -> str:
        return f"<{self.name} reader{'' if self.cache is None else f' through {self.cache!r}'}>"

    def _open(self, path: str) -> OpenFile:
        key = (self._mark, path)
        file: OpenFile | None = self._pool.get(key)
        if file is not None:
            return file
        self._pool.make_room()
        delays = self.retries.delays()
        while True:
            try:
                file = self._opened(path)
                break
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or the file shrank before mmap
                delay = next(delays, None) if may_pass(error) else None
                if delay is None:
                    raise StoreError(f"{path}: cannot be opened: {_words(error, self.retries)}") from error
                self._wait(f"{path}: cannot be opened", error, delay)
        self._pool.put(key, file)
        return file

    def _opened(self, path: str) -> OpenFile:
        check_kind(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            stamp = (status.st_size, status.st_mtime_ns)
            if self._seen.setdefault(path, stamp) != stamp:
                raise StoreError(
                    f"{path}: the file changed while it was in use: it had {self._seen[path][0]} bytes at first and now"
                    f" has {status.st_size}, or its modification time differs; open the store again"
                )
            return self._take(fd, status.st_size)
        except BaseException:
            os.close(fd)
            raise

    def _fill_again(
        self, failure: ReadFailure, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray
    ) -> None:
        """After a failure, repeat the whole read until it succeeds or no attempt is left."""
        for delay in self.retries.delays():
            if not may_pass(failure.error):
                break
            self._wait(f"{path}: byte {failure.at}: cannot be read", failure.error, delay)
            # A stale file handle does not recover; the file has to be opened again.
            self.release(path)
            try:
                self._fill_through(self._open(path), path, offsets, lengths, out)
            except ReadFailure as again:
                failure = again
            else:
                return
        words = _words(failure.error, self.retries)
        raise StoreError(f"{path}: byte {failure.at}: cannot be read: {words}") from failure.error

    def _fill_through(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        """Do as `_fill`, through the cache if there is one and the file is not mapped."""
        if self.cache is None or file.data is not None:
            self._fill(file, path, offsets, lengths, out)
        else:
            self.cache.fill(self, file, path, offsets, lengths, out)

    def _wait(self, what: str, error: Exception, delay: float) -> None:
        self.num_retries = next(self._waits)
        words = getattr(error, "strerror", None) or error
        _log.warning("%s: %s; trying again in %.3g s", what, words, delay)
        sleep(delay)

    @abstractmethod
    def _take(self, fd: int, size: int) -> OpenFile:
        """Return the open file of a descriptor. This method then owns the descriptor, unless it raises."""

    @abstractmethod
    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        """Read ranges, which are known to lie inside ``file.size``, into ``out``.

        Raises:
            ReadFailure: the system reports an error; if it may pass, the caller tries again.
            StoreError: the file has changed since it was opened.
        """

    def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
        """Read ranges of several files as `_fill` does, of objects all at the same time.

        For each file, return the bytes of each range, which may be memory of the reader's own.
        """
        found = []
        for file, path, offsets, lengths in files:
            data = np.empty(int(lengths.sum()), np.uint8)
            self._fill(file, path, offsets, lengths, data)
            found.append(np.split(data, np.cumsum(lengths)[:-1]))
        return found


class MmapReader(Reader):
    """Reads through a mapping of the whole file: the page cache is the buffer, and views cost no copy.

    Up to Python 3.12 each live mapping holds a file descriptor, including mappings that only a view keeps alive.

    Example:
        >>> reader = headrace.io.MmapReader(retries=headrace.stores.RetryPolicy(attempts=1))
        >>> store = headrace.open("stores/web", reader=reader)
        >>> reader.size("tokenizer.json") == len(reader.view("tokenizer.json"))
        True
    """

    name = "mmap"

    def view(self, path: str) -> ByteArray:
        """Return the mapping itself as (size,) uint8, without a copy."""
        data = self._open(path).data
        return np.empty(0, np.uint8) if data is None else data

    def for_pass(self) -> Reader:
        """Return a `PreadReader`: copying a page that is used once costs less than mapping it, and takes no memory."""
        passing = PreadReader(pool=self._pool, retries=self.retries)
        passing._seen |= self._seen
        return passing

    def _take(self, fd: int, size: int) -> OpenFile:
        if size == 0:  # mmap refuses empty files
            data = np.empty(0, np.uint8)
            data.flags.writeable = False
        elif sys.version_info >= (3, 13):
            data = np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False), np.uint8)
        else:
            data = np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ), np.uint8)
        os.close(fd)
        return OpenFile(size, data=data)

    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        data = file.data
        if data is None:
            raise StoreError(f"{path}: the file is not mapped")
        at = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            out[at : at + length] = data[offset : offset + length]
            at += length


class PreadReader(Reader):
    """Reads with ``preadv``, for file systems where mmap is slow or not allowed.

    It makes no mapping and shares no file offset between threads.

    Example:
        >>> reader = headrace.io.PreadReader()
        >>> reader.read_ranges("tokenizer.json", np.array([0]), np.array([1])).tobytes()
        b'{'
    """

    name = "pread"

    def view(self, path: str) -> None:
        """Return None, since nothing is mapped; the file is opened."""
        self._open(path)

    def _take(self, fd: int, size: int) -> OpenFile:
        return OpenFile(size, fd=fd)

    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        offsets, lengths = _joined(offsets, lengths)
        buffer = out.data
        at = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            done = 0
            while done < length:
                try:
                    count = os.preadv(file.fd, [buffer[at + done : at + length]], offset + done)
                except OSError as error:
                    raise ReadFailure(offset + done, error) from error
                if count == 0:
                    raise StoreError(
                        f"{path}: byte {offset}: wanted {length} bytes, found {done}; the file was cut short since it"
                        " was opened"
                    )
                done += count
            at += length


_READERS: dict[str, type[Reader]] = {"mmap": MmapReader, "pread": PreadReader}


def reader(name: str | Reader) -> Reader:
    """Return the reader of a name, ``"mmap"`` or ``"pread"``. A `Reader` is returned as it is.

    Raises:
        ConfigError: there is no reader of this name.
    """
    if isinstance(name, Reader):
        return name
    if name not in _READERS:
        raise ConfigError(f"reader={name!r} is unknown; the readers are {', '.join(map(repr, _READERS))}")
    return _READERS[name]()


def _joined(offsets: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Join ranges that follow each other in the file, as they also do in the output, to save reads."""
    if len(offsets) < 2:
        return offsets, lengths
    firsts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1] + lengths[:-1])))
    return offsets[firsts], np.add.reduceat(lengths, firsts)


def _words(error: Exception, retries: RetryPolicy) -> str:
    tried = f" ({retries.attempts} attempts)" if may_pass(error) else ""
    return f"{getattr(error, 'strerror', None) or error}{tried}"


def _let_go(pool: FilePool, mark: object, seen: dict[str, tuple[int, int]]) -> None:
    for path in list(seen):
        pool.drop((mark, path))
    seen.clear()
