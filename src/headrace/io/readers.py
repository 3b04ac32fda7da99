"""Ranged reads behind one face: bytes of files by path, offset and length, from a bounded number of open files.

The files that a process holds open: a bounded number, the least recently used let go first.

What is tried again when the system refuses for a moment: time-outs, lost connections, faulty reads.
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
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from time import sleep
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, StoreError


class FilePool:
    """At most ``max_open`` open files; a file that is let go closes when its last user (a read, a view) is done.

    There is no lock: each step is one operation on the OrderedDict, which is atomic, so a fork in the middle of
    another thread's call leaves nothing locked in the child, and a finaliser may enter the pool again. Two threads
    that miss the same file both open it, and one of the two is let go.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._files: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, key: Hashable) -> Any:
        """The open file of this key, which is now the most recently used, or None."""
        file = self._files.get(key)
        if file is not None:
            # In the path of every read, where `suppress` would cost as much as all the rest.
            try:  # noqa: SIM105
                self._files.move_to_end(key)
            except KeyError:  # another thread has let it go since; our reference keeps it open
                pass
        return file

    def make_room(self) -> None:
        """Let go of the least recently used files until one more may be opened."""
        with contextlib.suppress(KeyError):
            while len(self._files) >= self.max_open:
                self._files.popitem(last=False)

    def put(self, key: Hashable, file: Any) -> None:
        """Keep an open file."""
        self._files[key] = file

    def drop(self, key: Hashable) -> None:
        """Let go of a file, if it is there."""
        self._files.pop(key, None)


OPEN_FILES = FilePool(256)
"""The files of all readers of this process; set its ``max_open`` to allow more or fewer."""

_PASSING: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EBUSY", "EINTR", "ESTALE", "EREMOTEIO", "ECOMM", "ETIMEDOUT", "ETIME", "EPROTO"),
        *("ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENOTCONN", "ESHUTDOWN", "EPIPE", "ENOLINK"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)
"""That a file is not there, or may not be read, does not pass."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often something is tried, and how long is waited in between: twice as long each time. By default 1.5 s.

    Nothing is drawn by chance: what a run does is the same each time, but for when.

    Attributes:
        attempts: in all, at least 1; 1 tries nothing again.
        first_delay_s: before the second attempt.
        most_delay_s: before any.
    """

    attempts: int = 5
    first_delay_s: float = 0.1
    most_delay_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError for no attempts, and for delays below 0 or without an end."""
        if self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; it is at least 1, which tries nothing again")
        for name in ("first_delay_s", "most_delay_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is a number of seconds, at least 0; found {getattr(self, name)}")

    def delays(self) -> Iterator[float]:
        """Seconds before the second attempt, the third, and so on."""
        delay = self.first_delay_s
        for _ in range(self.attempts - 1):
            yield min(delay, self.most_delay_s)
            delay = min(2 * delay, self.most_delay_s)


def may_pass(error: BaseException | None) -> bool:
    """Whether an error is of the system, and of a kind that the next attempt may not meet."""
    if not isinstance(error, OSError):
        return False
    if isinstance(error, TimeoutError | ConnectionError) or error.errno in _PASSING:
        return True
    # urllib tells the error of the connection so.
    reason = getattr(error, "reason", None)
    return isinstance(reason, OSError) and reason is not error and may_pass(reason)


IntArray = NDArray[np.int64]
ByteArray = NDArray[np.uint8]
T = TypeVar("T")

MAX_KEPT: Final = 64
"""Derived objects kept with one open file; past it they are made anew."""

_NUMBERS = itertools.count()
_log = logging.getLogger("headrace")


class ReadFailure(Exception):  # noqa: N818 -- it never leaves the readers
    """The system refused to read a file from a byte on."""

    def __init__(self, at: int, error: OSError) -> None:
        super().__init__(at, error)
        self.at = at
        self.error = error


class OpenFile:
    """One open file in the pool; it closes when the last reference goes.

    Attributes:
        size: bytes, when it was opened.
        kept: what `Reader.kept` derived from the file's mapping; it is let go together with the file.
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


class Reader(ABC):
    """Reads ranges of files. Safe in threads and across a fork; pickles as its configuration.

    All readers of a process share one bounded pool of open files, so any number of sources may be in use. A file
    that was let go and is opened again must have the size and the time of modification that this reader saw first:
    data that changes under a run is an error, never a silent mixture.

    What the system refuses for a moment is tried again, the file opened anew, since another rank reads the same bytes
    and may have met nothing. Each time is logged, and counted in ``num_retries``. A page of a mapping that cannot be
    read is beyond this: it ends the process. On network file systems ``"pread"`` is the reader to take.

    Args:
        pool: of open files.
        retries: how often; None for the default of `RetryPolicy`.
    """

    name: ClassVar[str]

    def __init__(self, *, pool: FilePool = OPEN_FILES, retries: RetryPolicy | None = None) -> None:
        self._pool = pool
        self.retries = RetryPolicy() if retries is None else retries
        self.num_retries = 0
        self._waits = itertools.count(1)
        self._number = next(_NUMBERS)
        self._seen: dict[str, tuple[int, int]] = {}
        weakref.finalize(self, _let_go, pool, self._number, self._seen).atexit = False

    def size(self, path: str) -> int:
        """Bytes of the file.

        Raises:
            StoreError: there is no such file, or it cannot be opened.
        """
        return self._open(path).size

    def read_ranges(self, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray | None = None) -> ByteArray:
        """The bytes of several ranges, one after another.

        Args:
            path: the file.
            offsets: (n,) int64 bytes, where each range begins.
            lengths: (n,) int64 bytes, how long it is.
            out: (sum of lengths,) uint8, contiguous, to be filled; a new array by default.

        Raises:
            StoreError: a missing file, a range that is not inside the file, or a short read; or it cannot be read,
                however often it was tried.
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
            self._fill(file, path, offsets, lengths, out)
        except ReadFailure as failure:
            self._fill_again(failure, path, offsets, lengths, out)
        return out

    @abstractmethod
    def view(self, path: str) -> ByteArray | None:
        """(size,) uint8: the whole file mapped, read-only; None where this reader cannot map.

        The view stays valid, and the file mapped, for as long as the view lives, whatever becomes of the reader.
        A file that is cut short under a live mapping is beyond our power: touching the lost part ends the process.
        """

    def kept(self, path: str, key: Hashable, make: Callable[[ByteArray], T]) -> T | None:
        """``make(view(path))``, made once and kept as long as the file stays open; None where this reader cannot map.

        For typed views that are dear to make and used in every read. They die with the pool's entry, so that
        they do not hold the file open behind the pool's back. ``key`` tells them apart within a file.
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
        """A reader of the same files for one pass over all their bytes: this one, unless another is quicker at it."""
        return self

    def release(self, path: str) -> None:
        """Let go of one file, after a pass that touched all of it; a later read opens it again."""
        self._pool.drop((self._number, path))

    def close(self) -> None:
        """Let go of this reader's files. Views stay valid, and a later read opens the file again."""
        _let_go(self._pool, self._number, self._seen)

    def __reduce__(self) -> tuple[Any, ...]:
        is_usual = self.retries == RetryPolicy()
        return type(self) if is_usual else partial(type(self), retries=self.retries), ()

    def __repr__(self) -> str:
        return f"<{self.name} reader>"

    def _open(self, path: str) -> OpenFile:
        key = (self._number, path)
        file: OpenFile | None = self._pool.get(key)
        if file is not None:
            return file
        self._pool.make_room()
        delays = self.retries.delays()
        while True:
            try:
                file = self._opened(path)
                break
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or a file that shrinks under mmap
                delay = next(delays, None) if may_pass(error) else None
                if delay is None:
                    raise StoreError(f"{path}: cannot be opened: {_words(error, self.retries)}") from error
                self._wait(f"{path}: cannot be opened", error, delay)
        self._pool.put(key, file)
        return file

    def _opened(self, path: str) -> OpenFile:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            stamp = (status.st_size, status.st_mtime_ns)
            if self._seen.setdefault(path, stamp) != stamp:
                raise StoreError(
                    f"{path}: changed while it was in use: {self._seen[path][0]} bytes at first, now"
                    f" {status.st_size} bytes, modified since; open the store again"
                )
            return self._take(fd, status.st_size)
        except BaseException:
            os.close(fd)
            raise

    def _fill_again(
        self, failure: ReadFailure, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray
    ) -> None:
        """After a failure: all of it once more, until it succeeds or is no longer tried."""
        for delay in self.retries.delays():
            if not may_pass(failure.error):
                break
            self._wait(f"{path}: byte {failure.at}: cannot be read", failure.error, delay)
            # A file handle that went stale stays so.
            self.release(path)
            try:
                self._fill(self._open(path), path, offsets, lengths, out)
            except ReadFailure as again:
                failure = again
            else:
                return
        words = _words(failure.error, self.retries)
        raise StoreError(f"{path}: byte {failure.at}: cannot be read: {words}") from failure.error

    def _wait(self, what: str, error: Exception, delay: float) -> None:
        self.num_retries = next(self._waits)
        _log.warning("%s: %s; trying again in %.3g s", what, getattr(error, "strerror", None) or error, delay)
        sleep(delay)

    @abstractmethod
    def _take(self, fd: int, size: int) -> OpenFile:
        """Make the open file of a descriptor, which is now this method's to keep or close, unless it raises."""

    @abstractmethod
    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        """Read ranges, which are known to lie inside ``file.size``, into ``out``.

        Raises:
            ReadFailure: the system refuses; what may pass is tried again.
            StoreError: the file is not what it was.
        """


class MmapReader(Reader):
    """Reads through a mapping of the whole file: the page cache is the buffer, and views cost no copy.

    Up to Python 3.12 each live mapping holds a file descriptor, also one that only a view keeps alive.
    """

    name = "mmap"

    def view(self, path: str) -> ByteArray:
        """(size,) uint8: the mapping itself, no copy."""
        data = self._open(path).data
        return np.empty(0, np.uint8) if data is None else data

    def for_pass(self) -> Reader:
        """With ``preadv``: a page that is looked at once is dearer to map than to copy, and would count as memory."""
        passing = PreadReader(pool=self._pool, retries=self.retries)
        passing._seen |= self._seen
        return passing

    def _take(self, fd: int, size: int) -> OpenFile:
        if size == 0:  # which mmap refuses
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
            raise StoreError(f"{path}: is not mapped")
        at = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            out[at : at + length] = data[offset : offset + length]
            at += length


class PreadReader(Reader):
    """Reads with ``preadv``: no mapping, no shared file offset; for places where mmap is slow or not allowed."""

    name = "pread"

    def view(self, path: str) -> None:
        """None: nothing is mapped."""
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
    """A reader by its name, ``"mmap"`` or ``"pread"``; a reader is returned as it is.

    Raises:
        ConfigError: there is no reader of this name.
    """
    if isinstance(name, Reader):
        return name
    if name not in _READERS:
        raise ConfigError(f"reader={name!r} is unknown; the readers are {', '.join(map(repr, _READERS))}")
    return _READERS[name]()


def _joined(offsets: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Ranges that follow each other in the file also do in the output: one read for each run of them."""
    if len(offsets) < 2:
        return offsets, lengths
    firsts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1] + lengths[:-1])))
    return offsets[firsts], np.add.reduceat(lengths, firsts)


def _words(error: Exception, retries: RetryPolicy) -> str:
    tried = f" ({retries.attempts} attempts)" if may_pass(error) else ""
    return f"{getattr(error, 'strerror', None) or error}{tried}"


def _let_go(pool: FilePool, number: int, seen: dict[str, tuple[int, int]]) -> None:
    for path in list(seen):
        pool.drop((number, path))
    seen.clear()
