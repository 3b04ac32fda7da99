"""`Objects` answers what a `RemotePath` asks, and remembers the answers.

What was asked once is not asked again: a store that is open sees the objects as they were when it was opened. If many
objects of a folder are looked up, the folder is listed instead. Files that are read as a whole, such as indexes and
manifests, are fetched once and kept as local files, by a hash of their identity, so that later runs and other processes
find them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from functools import cache
from pathlib import Path
from threading import current_thread
from typing import Any, Final, NamedTuple

import xxhash

from headrace.errors import OutputError, StoreError
from headrace.io.atomic import AtomicFile, output_errors
from headrace.io.kept import is_as_kept, keep_digest
from headrace.io.objects.client import (
    FETCH_THREAD,
    FetchPolicy,
    FetchReply,
    FetchRequest,
    FetchStats,
    Get,
    Head,
    List,
    process_lock,
    submit,
)
from headrace.io.once import unique_name
from headrace.io.paths import cache_folder
from headrace.io.readers import Reader
from headrace.io.remote import RemotePath, Status, bucket_of, missing
from headrace.io.storage import Storage

BLOCK_BYTES: Final = 8 << 20
"""The most bytes of one GET."""

_FEW: Final = 4
"""After this many look-ups of objects in one folder, the folder is listed."""

AHEAD: Final = 32
"""The most parts of objects that are read in turn which are under way, or fetched and not yielded."""

AHEAD_BYTES: Final = 64 << 20
"""The same in bytes."""

_SAY_AFTER_S: Final = 30.0
_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_log = logging.getLogger("headrace")


def blocks_of(begin: int, end: int) -> list[tuple[int, int]]:
    """Return bytes of an object, from one up to another, as ranges of at most `BLOCK_BYTES`."""
    return [(at, min(at + BLOCK_BYTES, end)) for at in range(begin, end, BLOCK_BYTES)]


class ObjectPart(NamedTuple):
    """Some bytes of an object, at least one and at most `BLOCK_BYTES`."""

    url: str
    expected: Status
    begin: int
    end: int


def parts_of(url: str, expected: Status) -> Iterator[ObjectPart]:
    """Yield the bytes of an object in parts of `BLOCK_BYTES`."""
    for block in blocks_of(0, expected.size):
        yield ObjectPart(url, expected, *block)


class Objects:
    """Objects of all stores that one `Storage` reaches, as they were when they were first looked up.

    It is safe in threads and across a fork, and only its configuration is pickled.

    Args:
        storage: how the stores are reached.
        policy: how long requests are tried.

    Attributes:
        stats: what was asked so far.
    """

    def __init__(self, storage: Storage | None = None, policy: FetchPolicy | None = None) -> None:
        self.storage = storage or Storage()
        self.policy = policy or FetchPolicy()
        self.stats = FetchStats()
        self._statuses: dict[str, Status | None] = {}
        self._listings: dict[str, tuple[list[str], list[str]]] = {}
        self._num_heads: Counter[str] = Counter()
        self._kept: dict[str, Path] = {}

    def status(self, url: str) -> Status | None:
        """Return the identity of an object; None if there is none."""
        folder = _folder_of(url)
        if url not in self._statuses and folder not in self._listings and bucket_of(url).key:
            self._num_heads[folder] += 1
            self.look_up([url], [folder] if self._num_heads[folder] > _FEW else [])
        return self._statuses.get(url)

    def expect(self, url: str, status: Status) -> None:
        """Take this for the identity of an object, which is not looked up then."""
        self._statuses[url] = status

    def known(self, url: str) -> Status:
        """Return the identity of an object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        found = self.status(url)
        if found is None:
            missing(url)
        return found

    def look_up(self, urls: Sequence[str], folders: Sequence[str]) -> None:
        """Look up objects and list folders, all at the same time, so that it takes one round trip.

        A folder of which many objects are looked up is listed too.

        Raises:
            StoreError: the store cannot be reached.
        """
        unknown = [url for url in dict.fromkeys(urls) if url not in self._statuses]
        crowded = [folder for folder, number in Counter(map(_folder_of, unknown)).items() if number > _FEW]
        listed = {
            url: List(url)
            for url in (*folders, *crowded)
            if url not in self._listings and not url.lower().startswith("http") and "://" in url[:-1]
        }
        asked: list[Head | List] = list(listed.values())
        for url in unknown:
            folder = _folder_of(url)
            if folder not in listed and folder not in self._listings:
                asked.append(Head(url))
        futures = [self._begin(one) for one in asked]
        for one, future in zip(asked, futures, strict=True):
            reply = self.finish(one.url, future)
            if isinstance(one, Head):
                self._statuses.setdefault(one.url, reply.status)
            else:
                self._take_listing(one.url, reply)

    def listing(self, url: str) -> tuple[list[str], list[str]]:
        """Return the URLs of the folders and of the objects right below a folder.

        Raises:
            StoreError: the server cannot list.
        """
        if (found := self._listings.get(url)) is not None:
            return found
        if url.lower().startswith("http"):
            raise StoreError(
                f"{url}: an HTTP server does not list its files: name files, not a folder; or a folder that has a"
                " headrace.json, a .nv-meta, or the state.json of a saved dataset, with a slash at its end"
            )
        return self._take_listing(url, self._ask(List(url)))

    def _take_listing(self, url: str, reply: FetchReply) -> tuple[list[str], list[str]]:
        for name, status in reply.objects:
            self._statuses.setdefault(name, status)
        return self._listings.setdefault(url, (sorted(reply.folders), sorted(name for name, _ in reply.objects)))

    def below(self, url: str) -> list[str]:
        """Return the URLs of all objects below a folder; raises as `listing` does."""
        if url.lower().startswith("http"):
            self.listing(url)
        reply = self._ask(List(url, deep=True))
        for name, status in reply.objects:
            self._statuses.setdefault(name, status)
        return sorted(name for name, _ in reply.objects)

    def begin_ranges(
        self, url: str, ranges: list[tuple[int, int]], expected: Status | None = None
    ) -> Future[FetchReply]:
        """Begin to fetch ranges of an object, which are not empty; it is looked up unless one says what it is."""
        return self._begin(Get(url, ranges, expected or self.known(url)))

    def ranges(self, url: str, ranges: list[tuple[int, int]]) -> Sequence[Any]:
        """Return the bytes of each range, which are not empty, each by a GET of its own.

        Raises:
            StoreError: the object changed, or cannot be read.
        """
        return self.finish(url, self.begin_ranges(url, ranges)).data if ranges else []

    def in_turn(self, parts: Iterable[ObjectPart]) -> Iterator[memoryview]:
        """Yield the bytes of parts in their order, each by a GET of its own, up to `AHEAD` of them at the same time.

        Raises:
            StoreError: an object cannot be read, or is not what is expected.
        """
        ahead: deque[tuple[ObjectPart, Future[FetchReply]]] = deque()
        for part in parts:
            num_bytes = sum(one.end - one.begin for one, _ in ahead) + part.end - part.begin
            while ahead and (len(ahead) >= AHEAD or num_bytes > AHEAD_BYTES):
                first, future = ahead.popleft()
                num_bytes -= first.end - first.begin
                yield memoryview(self.finish(first.url, future).data[0])
            ahead.append((part, self.begin_ranges(part.url, [(part.begin, part.end)], part.expected)))
        while ahead:
            last, future = ahead.popleft()
            yield memoryview(self.finish(last.url, future).data[0])

    def finish(self, url: str, future: Future[FetchReply]) -> FetchReply:
        """Wait for a request, count what it took, and return its reply; raises its error."""
        if current_thread().name == FETCH_THREAD:
            raise StoreError(
                f"{url}: cannot be read in the thread {FETCH_THREAD}, since its own answer would have to come through"
                " it: a handler of logging, or a finalizer, that reads from object stores must do so in another thread"
            )
        waited_s = 0.0
        while True:
            try:
                reply = future.result(timeout=_SAY_AFTER_S)
                break
            except TimeoutError:
                waited_s += _SAY_AFTER_S
                _log.warning("%s: waiting for %.0f s for the object store", url, waited_s)
        with process_lock():
            self.stats.add(reply.stats)
        if reply.error is not None:
            raise reply.error
        return reply

    def local_file(self, url: str) -> Path:
        """Return a local file with the bytes of an object, which is fetched unless that was done before.

        A kept file is compared with its digest when it is first asked for. At most 64 MiB of an object are in memory
        at once.

        Raises:
            FileNotFoundError: there is no such object.
            StoreError: it cannot be read, or changes meanwhile.
            OutputError: there is no place for it on this host.
        """
        if (found := self._kept.get(url)) is not None and found.is_file():
            return found
        self._kept[url] = found = self._local_file(url, self.known(url))
        return found

    def _local_file(self, url: str, status: Status) -> Path:
        name = _PLAIN.sub("_", url.rpartition("/")[2])[-100:]
        known_by = _known_by(status)
        identity = repr((url, *known_by)) if known_by else f"{url} {os.getpid()} {id(self)}"
        name = f"{xxhash.xxh3_128_hexdigest(identity.encode())}-{name}"
        kept = cache_folder("objects") if known_by else None
        if kept is not None and (kept / name).is_file() and self.is_as_kept(kept / name, url):
            return kept / name
        own = _temporary_folder(os.getpid()) / name
        if own.is_file():
            return own
        if kept is not None:
            # If it cannot be kept, this process has it nevertheless.
            with contextlib.suppress(OutputError):
                return self._fetch_whole(url, status, kept / name)
        return self._fetch_whole(url, status, own)

    def is_as_kept(self, file: Path, what: str) -> bool:
        """Return whether a kept file holds what was fetched; one that does not is counted."""
        if is_as_kept(file, what):
            return True
        with process_lock():
            self.stats.damaged_files += 1
        return False

    def place_of_ends(self, ends: Sequence[tuple[str, int]]) -> Path | None:
        """Return the file in which the ends of objects that are read together are kept; None if they cannot be.

        In a file each, they would take 1.3 to 1.8 times as long.

        Raises:
            FileNotFoundError: there is no such object.
        """
        known = [(url, _known_by(self.known(url)), num_bytes) for url, num_bytes in ends]
        folder = cache_folder("objects")
        if folder is None or not all(known_by for _, known_by, _ in known):
            return None
        return folder / f"{xxhash.xxh3_128_hexdigest(repr(known).encode())}-ends"

    def pieces(self, url: str) -> Iterator[memoryview]:
        """Yield the bytes of an object from its beginning, which are fetched a few blocks ahead and not kept."""
        return self.in_turn(parts_of(url, self.known(url)))

    def forget(self) -> None:
        """Forget what was looked up; the next look-up asks again."""
        self._statuses.clear()
        self._listings.clear()
        self._num_heads.clear()
        self._kept.clear()

    def _fetch_whole(self, url: str, status: Status, file: Path) -> Path:
        with output_errors(file.parent, "create"):
            file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_name(f".{unique_name()}-{file.name}")
        with AtomicFile(own, lasts=False) as out:
            for data in self.in_turn(parts_of(url, status)):
                out.write(data)
        if file.parent == cache_folder("objects"):
            keep_digest(file.name, out.sum.xxh3_128)
        # If another thread or process was first, its file stays, since it may be open already.
        with output_errors(file, "create"):
            try:
                os.link(own, file)
            except FileExistsError:
                if not is_as_kept(file, url):
                    own.rename(file)
            except OSError:  # there are no hard links here
                own.rename(file)
            own.unlink(missing_ok=True)
        return file

    def _ask(self, what: List) -> FetchReply:
        return self.finish(what.url, self._begin(what))

    def _begin(self, what: Get | Head | List) -> Future[FetchReply]:
        return submit(FetchRequest(what=what, storage=self.storage, policy=self.policy))

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, (self.storage, self.policy)

    def __repr__(self) -> str:
        return f"<objects of {self.storage!r}>"


def _known_by(status: Status) -> tuple[Any, ...]:
    """Return by what an object is known: its size and ETag, or else its time; nothing if it may change without a sign.

    Of an object with an ETag, a listing and a look-up may round the time differently.
    """
    found = status.etag or status.modified_ns
    return (status.size, found) if found else ()


def _folder_of(url: str) -> str:
    return url.rpartition("/")[0]


@cache
def _temporary_folder(_process: int) -> Path:
    """Return a folder of this process, which is removed at its end; raises OutputError if it cannot be made."""
    with output_errors(Path("$TMPDIR"), "make a folder in"):
        folder = Path(tempfile.mkdtemp(prefix="headrace-objects-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def remote_path(path: str | os.PathLike[str], using: str | Reader = "mmap") -> RemotePath:
    """Return the path of a URL, which asks through a reader of objects, or else has look-ups of its own."""
    if isinstance(path, RemotePath):
        return path
    url = os.fspath(path)
    bucket_of(url)
    found = None if isinstance(using, str) else using.path_at(url)
    return found if isinstance(found, RemotePath) else RemotePath(url, Objects())
