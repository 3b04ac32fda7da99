"""`ObjectReader` reads ranges of objects by URL, behind the face of all readers.

Ranges that lie close to each other are fetched by one GET, and long ones by several, all at the same time. For example,
the ranges [0, 100), [100, 200) and [205, 400) take one GET of [0, 400), since 5 bytes of 400 are not wanted; a range of
20 MiB takes three.

`ObjectFile` reads an object as a file: from any byte on, in order, some blocks at a time.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.errors import OutputError, StoreError
from headrace.io.kept import keep_bytes
from headrace.io.objects.client import FetchPolicy, FetchStats
from headrace.io.objects.lookups import BLOCK_BYTES, Objects, blocks_of
from headrace.io.places import AnyPath, is_url
from headrace.io.readers import (
    NO_ENDS,
    OPEN_FILES,
    ByteArray,
    FilePool,
    FileRanges,
    IntArray,
    MmapReader,
    OpenFile,
    Reader,
)
from headrace.io.remote import RemotePath, Status
from headrace.io.storage import Storage

FIRST_BYTES: Final = 1 << 18
"""The first GET after a jump; each that follows it in order is twice as long, up to `BLOCK_BYTES`."""


class ObjectFile(io.RawIOBase):
    """An object as a file for reading. Every answer must come from the object that is expected, see `Objects`.

    Read in order, [0, 16 MiB) takes GETs of 256 KiB, 512 KiB, 1, 2, 4 and 8 MiB, and the rest. Memory: one block.

    Args:
        url: the object.
        expected: what it is.
        storage: how the store is reached; None goes by the environment.
        end: the byte up to which it is read, as far as that is known; beyond it, GETs are short again.
        in_order: whether it is read in order. Otherwise each read is a GET of its own.
    """

    def __init__(
        self,
        url: str,
        expected: Status,
        storage: Storage | None = None,
        *,
        end: int | None = None,
        in_order: bool = True,
    ) -> None:
        self._url = url
        self._size = expected.size
        self._objects = Objects(storage)
        self._objects.expect(url, expected)
        self._end = self._size if end is None else min(end, self._size)
        self._in_order = in_order
        self._at = 0
        self._step = FIRST_BYTES
        self._first = 0
        self._data = memoryview(b"")
        """What was fetched, from the byte ``_first`` on."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte; this fetches nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as the buffer holds, or as there are.

        Raises:
            StoreError: the object cannot be read, or changed.
        """
        wanted = min(len(buffer), self._size - self._at)
        done = 0
        while done < wanted:
            if not self._first <= self._at < self._first + len(self._data):
                self._fetch(wanted - done)
            begin = self._at - self._first
            found = self._data[begin : begin + wanted - done]
            buffer[done : done + len(found)] = found
            self._at += len(found)
            done += len(found)
        return max(done, 0)

    def _fetch(self, wanted: int) -> None:
        length = wanted
        if self._in_order:
            is_next = len(self._data) > 0 and self._at == self._first + len(self._data)
            self._step = min(2 * self._step, BLOCK_BYTES) if is_next else FIRST_BYTES
            left = self._end - self._at
            length = min(self._step, left) if left > 0 else FIRST_BYTES
        data = self._objects.ranges(self._url, blocks_of(self._at, min(self._at + length, self._size)))
        self._first, self._data = self._at, memoryview(data[0] if len(data) == 1 else b"".join(data))


_AT_ONCE: Final = 32
_LARGE_AT_ONCE: Final = 4
"""The most objects that are fetched whole at the same time: of at most 8 MiB, and of more, 64 MiB of which are in
memory at once. Of either that is 256 MiB."""

_WASTE: Final = 20
"""A GET may fetch at most one byte that nobody wants for this many that somebody does."""


def merged(offsets: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
    """Return the ranges to fetch, which hold all ranges that are asked for: begin and end, sorted, disjoint, not empty.

    What is not wanted is at most a twentieth of what is, and no range is longer than `BLOCK_BYTES`.
    """
    order = np.lexsort((lengths, offsets))
    begins, ends = offsets[order].tolist(), (offsets + lengths)[order].tolist()
    found: list[tuple[int, int]] = []
    first = last = wanted = 0
    for begin, end in zip(begins, ends, strict=True):
        if begin == end:
            continue
        more = end - max(begin, last)
        if wanted and (more <= 0 or (end - first) * _WASTE <= (wanted + more) * (_WASTE + 1)):
            wanted, last = wanted + max(0, more), max(last, end)
            continue
        if wanted:
            found += blocks_of(first, last)
        # What an earlier range has fetched is not fetched again.
        first, last, wanted = max(begin, last), end, more
    return [*found, *blocks_of(first, last)] if wanted else found


def scatter(
    pieces: list[tuple[int, int]], data: Iterable[Any], offsets: IntArray, lengths: IntArray, out: ByteArray
) -> None:
    """Copy the bytes of each range from the pieces, which `merged` has returned, to ``out``."""
    arrays = [np.frombuffer(one, np.uint8) for one in data]
    starts = np.array([begin for begin, _ in pieces], np.int64)
    firsts = (np.searchsorted(starts, offsets, side="right") - 1).tolist()
    at = 0
    for offset, length, piece in zip(offsets.tolist(), lengths.tolist(), firsts, strict=True):
        end = offset + length
        while offset < end:
            begin, last = pieces[piece]
            count = min(end, last) - offset
            out[at : at + count] = arrays[piece][offset - begin : offset - begin + count]
            at, offset, piece = at + count, offset + count, piece + 1


class ObjectReader(Reader):
    """Reads objects by URL, and local files through a mapping, so that it can read whatever a dataset is made of.

    An object that is read as a whole, such as an index, is fetched once and kept as a local file, see `keep`. So are
    the ends of others, by which they are known. All other reads are GETs of ranges, which are tried again, hedged and
    counted, see `FetchPolicy` and `FetchStats`. An answer must come from the object that was there first, by its size
    and ETag: an object that changes under a run is an error.

    Args:
        storage: how the stores are reached; None goes by the environment.
        policy: how long requests are tried.
        pool: the pool of open files.

    Example:
        >>> storage = headrace.Storage(endpoint="http://127.0.0.1:8333", region="us-east-1")
        >>> reader = headrace.io.ObjectReader(storage)
        >>> reader.stats.gets
        0
    """

    name = "object"
    reads_urls = True

    def __init__(
        self, storage: Storage | None = None, *, policy: FetchPolicy | None = None, pool: FilePool = OPEN_FILES
    ) -> None:
        super().__init__(pool=pool)
        self.objects = Objects(storage, policy)
        self._files = MmapReader(pool=pool)
        self._local: dict[str, str] = {}
        self._ends: dict[tuple[str, int], bytes] = {}

    @property
    def policy(self) -> FetchPolicy:
        """How long requests are tried."""
        return self.objects.policy

    @property
    def stats(self) -> FetchStats:
        """What was asked of object stores so far."""
        return self.objects.stats

    def path_at(self, path: str) -> AnyPath:
        """See `Reader.path_at`."""
        return RemotePath(path, self.objects) if is_url(path) else Path(path)

    def identity(self, path: str) -> str:
        """See `Reader.identity`: of an object, its URL, size, ETag and time."""
        if not is_url(path):
            return self._files.identity(path)
        self._open(path)
        return repr((_plain(path), *self.objects.known(_plain(path))))

    def keep(self, path: str) -> None:
        """See `Reader.keep`: fetch an object whole, unless a local file has it, and map that."""
        super().keep(path)
        if is_url(path) and path not in self._local:
            try:
                self._local[path] = str(self.objects.local_file(_plain(path)))
            except FileNotFoundError as error:
                raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error

    def keep_all(self, paths: Sequence[str], ends: Mapping[str, int] = NO_ENDS) -> None:
        """See `Reader.keep_all`: 32 objects at the same time, or 4 of more than 8 MiB, so 256 MiB at most."""
        self.look_up([*paths, *ends])
        large = {path for path in paths if is_url(path) and self._size(path) > BLOCK_BYTES}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-keep") as threads:
            kept_ends = threads.submit(self._keep_ends, ends)
            for _ in threads.map(self.keep, [path for path in paths if path not in large]):
                pass
            kept_ends.result()
        with ThreadPoolExecutor(_LARGE_AT_ONCE, thread_name_prefix="headrace-keep") as threads:
            for _ in threads.map(self.keep, [path for path in paths if path in large]):
                pass

    def _size(self, path: str) -> int:
        """Return the size of an object; -1 if there is none."""
        status = self.objects.status(_plain(path))
        return -1 if status is None else status.size

    def _keep_ends(self, ends: Mapping[str, int]) -> None:
        """Read the ends of objects that are there and not known yet, all together, unless a kept file has them."""
        files: list[FileRanges] = []
        for path, num_bytes in ends.items():
            Reader.keep(self, path)
            is_new = is_url(path) and path not in self._local and (path, num_bytes) not in self._ends
            if is_new and self._size(path) >= 0:
                # It takes the place of no open file: most are only known by their ends for now.
                file = OpenFile(self._size(path))
                length = min(num_bytes, file.size)
                files.append(FileRanges(file, path, np.array([0, file.size - length]), np.array([length, length])))
        if not files:
            return
        place = self.objects.place_of_ends([(_plain(one.path), ends[one.path]) for one in files])
        if place is not None and place.is_file() and self.objects.is_as_kept(place, "ends of objects"):
            data = place.read_bytes()
        else:
            data = b"".join(piece.tobytes() for pieces in self._read_together(files) for piece in pieces)
            if place is not None:
                # Without room for it the next run fetches them again.
                with contextlib.suppress(OSError, OutputError):
                    keep_bytes(place, data)
        at = 0
        for one in files:
            end = at + int(one.lengths.sum())
            self._ends[one.path, ends[one.path]] = data[at:end]
            at = end

    def ends(self, path: str, num_bytes: int, size: int | None = None) -> bytes:
        """See `Reader.ends`. Those that were fetched with an index are not fetched again."""
        known = self._ends.get((path, num_bytes))
        if known is not None and size in (None, self.size(path)):
            return known
        return super().ends(path, num_bytes, size)

    def look_up(self, paths: Sequence[str], folders: Sequence[str] = ()) -> None:
        """See `Reader.look_up`."""
        asked, listed = ([_plain(path) for path in some if is_url(path)] for some in (paths, folders))
        self.objects.look_up(asked, listed)

    def read_files(self, paths: Sequence[str]) -> list[ByteArray]:
        """See `Reader.read_files`: without a cache, a GET for each block of each object, all at the same time."""
        if self.cache is not None:
            return super().read_files(paths)
        names = list(dict.fromkeys(paths))
        self.look_up(names)
        opened = [(name, self._open(name)) for name in names]
        ranges = [FileRanges(file, name, np.array([0]), np.array([file.size])) for name, file in opened]
        found = dict(zip(names, self._read_together(ranges), strict=True))
        return [found[path][0] for path in paths]

    def view(self, path: str) -> ByteArray | None:
        """Return the mapping of a local file or of an object that is kept; None for any other object."""
        local = self._local_name(path)
        if local is not None:
            return self._files.view(local)
        self._open(path)
        return None

    def release(self, path: str) -> None:
        """See `Reader.release`."""
        local = self._local_name(path)
        if local is None:
            super().release(path)
        else:
            self._files.release(local)

    def close(self) -> None:
        """See `Reader.close`. Objects are looked up again by the next read."""
        super().close()
        self._files.close()
        self._local.clear()
        self._ends.clear()
        self.objects.forget()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache is not None:
            return super().__reduce__()
        return partial(ObjectReader, self.objects.storage, policy=self.objects.policy), ()

    def _local_name(self, path: str) -> str | None:
        return self._local.get(path) if is_url(path) else path

    def _open(self, path: str) -> OpenFile:
        local = self._local_name(path)
        if local is not None:
            return self._files._open(local)
        file: OpenFile | None = self._pool.get((self._mark, path))
        if file is None:
            try:
                status = self.objects.known(_plain(path))
            except FileNotFoundError as error:
                raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error
            self._pool.make_room()
            self._seen[path] = (status.size, status.modified_ns)
            file = OpenFile(status.size)
            self._pool.put((self._mark, path), file)
        return file

    def _take(self, fd: int, size: int) -> OpenFile:
        raise NotImplementedError("objects have no descriptors")

    def _fill(self, file: OpenFile, path: str, offsets: IntArray, lengths: IntArray, out: ByteArray) -> None:
        if file.data is not None:
            self._files._fill(file, path, offsets, lengths, out)
            return
        pieces = merged(offsets, lengths)
        scatter(pieces, self.objects.ranges(_plain(path), pieces), offsets, lengths, out)

    def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
        asked = [[] if one.file.data is not None else merged(one.offsets, one.lengths) for one in files]
        answers = self._answers([(_plain(one.path), pieces) for one, pieces in zip(files, asked, strict=True)])
        found = []
        for (file, path, offsets, lengths), pieces in zip(files, asked, strict=True):
            data = answers.popleft()
            if pieces and pieces == list(zip(offsets.tolist(), (offsets + lengths).tolist(), strict=True)):
                # Each is an answer of its own, which need not be copied.
                found.append([np.frombuffer(answer, np.uint8) for answer in data])
                continue
            out = np.empty(int(lengths.sum()), np.uint8)
            if file.data is not None:
                self._files._fill(file, path, offsets, lengths, out)
            else:
                scatter(pieces, data, offsets, lengths, out)
            found.append(np.split(out, np.cumsum(lengths)[:-1]))
        return found

    def _answers(self, asked: list[tuple[str, list[tuple[int, int]]]]) -> deque[Sequence[Any]]:
        """Return the bytes of ranges of objects, which are fetched at the same time.

        All are waited for, also after a failure, so that what they took is counted.
        """
        begun = [(url, self.objects.begin_ranges(url, ranges) if ranges else None) for url, ranges in asked]
        found: deque[Sequence[Any]] = deque()
        failed: StoreError | None = None
        for url, future in begun:
            try:
                found.append([] if future is None else self.objects.finish(url, future).data)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return found


def reader_for(paths: Sequence[object], storage: Storage | None) -> ObjectReader:
    """Return a reader for some paths: of a storage, or else of that by which the first `RemotePath` was found."""
    known = next((path.objects for path in paths if isinstance(path, RemotePath)), None)
    if storage is None and isinstance(known, Objects):
        return ObjectReader(known.storage, policy=known.policy)
    return ObjectReader(storage)


def _plain(path: str) -> str:
    """Return the URL as `RemotePath` writes it, so that all look-ups of an object share their answer."""
    scheme, _, rest = path.partition("://")
    return f"{scheme.lower()}://{'/'.join(part for part in rest.split('/') if part not in ('', '.'))}"
