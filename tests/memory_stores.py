"""Object stores in the memory of this process, in place of those that obstore would reach over the network."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from headrace.errors import StoreAwayError
from headrace.io import ObjectReader, cache_folder
from headrace.io.objects import lookups
from headrace.io.objects.client import FetchReply, FetchRequest, FetchStats
from headrace.io.objects.writer import ObjectWriter
from headrace.io.remote import Status

_NUMBERS = itertools.count()
"""The client of a process keeps the stores that it has made, so each bucket has a name of its own."""


class MemoryBucket:
    """A bucket.

    Attributes:
        url: its URL.
        store: obstore's store.
    """

    def __init__(self, url: str, store: MemoryStore) -> None:
        self.url = url
        self.store = store

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self.store, key, data)

    def upload(self, folder: Path, key: str, pattern: str = "*") -> str:
        """Upload the files below a folder whose names match, and return the URL of the folder."""
        for file in sorted(folder.rglob(pattern)):
            if file.is_file():
                self.put(f"{key}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return f"{self.url}/{key}"

    def content(self, key: str = "") -> dict[str, bytes]:
        """All objects below a folder, by their names there, but those that are removed meanwhile."""
        names = [str(one["path"]) for batch in obstore.list(self.store, key or None) for one in batch]
        below = f"{key}/" if key else ""
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name.removeprefix(below)] = bytes(obstore.get(self.store, name).bytes())
        return found


@contextlib.contextmanager
def memory_bucket() -> Iterator[MemoryBucket]:
    """A bucket that s3:// reaches until the end of the block."""
    name = f"memory{next(_NUMBERS)}"
    bucket = MemoryBucket(f"s3://{name}", MemoryStore())

    def connect(root: str, scheme: str, storage: Any, *, retries: Any = None) -> MemoryStore:
        assert root == bucket.url
        return bucket.store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.io.objects.client.connect", connect)
        yield bucket


def scratch() -> list[Path]:
    """What is left on this host of the folders in which files are made before they are uploaded, and no job holds."""
    gc.collect()
    folder = cache_folder("outputs")
    assert folder is not None
    return list(folder.iterdir()) if folder.exists() else []


CHANGES = ("create", "put", "put_files", "delete")


@contextlib.contextmanager
def watched(act: Callable[[int, str], None]) -> Iterator[None]:
    """Call ``act`` with the number and the kind of each change before it is made in a store."""
    count = itertools.count()

    def counted(name: str) -> Callable[..., Any]:
        whole = getattr(ObjectWriter, name)

        def call(*args: Any) -> Any:
            act(next(count), name)
            return whole(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(ObjectWriter, name, counted(name))
        yield


@contextlib.contextmanager
def sent_files() -> Iterator[list[str]]:
    """The URLs to which files are uploaded."""
    sent: list[str] = []
    whole = ObjectWriter.put_files

    def put_files(self: ObjectWriter, files: Mapping[str, Path]) -> dict[str, Status]:
        sent.extend(files)
        return whole(self, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectWriter, "put_files", put_files)
        yield sent


class Stopped(BaseException):
    """Stands for whatever ends a process."""


def stop_at(moment: int) -> Callable[[int, str], None]:
    """What `watched` calls to end the process at a change."""

    def stop(number: int, kind: str) -> None:
        if number == moment:
            raise Stopped

    return stop


class Away:
    """What lets stores go away: ``away(n)`` after n answers to reads, and ``away(n, 1)`` for one read after these.

    Attributes:
        num_failed: how many reads have failed since then.
    """

    def __init__(self) -> None:
        self.num_failed = 0
        self._number = self._first = self._end = 0
        self._submit = lookups.submit

    def __call__(self, num_answers: int, num_failures: int = 1 << 60) -> None:
        self.num_failed = self._number = 0
        self._first, self._end = num_answers, num_answers + num_failures

    def submit(self, request: FetchRequest) -> Future[FetchReply]:
        self._number += 1
        if not self._first < self._number <= self._end:
            return self._submit(request)
        self.num_failed += 1
        error = StoreAwayError(f"{request.what.url}: cannot be read: the store is away")
        future: Future[FetchReply] = Future()
        future.set_result(FetchReply(stats=FetchStats(), error=error))
        return future


@contextlib.contextmanager
def going_away() -> Iterator[Away]:
    """Stores that answer until they are told not to."""
    found = Away()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "submit", found.submit)
        yield found


class RoundTrips:
    """How often a store is asked while no other request is under way.

    Requests that one call of `keep_all` or `look_up` makes are one round trip, though threads may make them, and so are
    requests that are all sent before the first answer is waited for.

    Attributes:
        number: how many there were.
        requests: how many requests there were.
    """

    def __init__(self) -> None:
        self.number = self.requests = 0
        self._under_way = 0
        self._is_counted = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._lock:
            self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def sent(self) -> None:
        with self._lock:
            self._begin()
            self.requests += 1
            self.number += not self._is_counted
            self._is_counted = True

    def answered(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _begin(self) -> None:
        if not self._under_way:
            self._is_counted = False
        self._under_way += 1


@contextlib.contextmanager
def round_trips(*together: tuple[Any, str]) -> Iterator[RoundTrips]:
    """Count the round trips of reading in the block; what a call of other functions asks may be one too."""
    found = RoundTrips()
    submit, finish = lookups.submit, lookups.Objects.finish

    def sent(request: Any) -> Any:
        found.sent()
        return submit(request)

    def answered(self: Any, url: str, future: Any) -> Any:
        try:
            return finish(self, url, future)
        finally:
            found.answered()

    def as_one(whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with found.together():
                return whole(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "submit", sent)
        patch.setattr(lookups.Objects, "finish", answered)
        for where, name in ((ObjectReader, "keep_all"), (lookups.Objects, "look_up"), *together):
            patch.setattr(where, name, as_one(getattr(where, name)))
        yield found
