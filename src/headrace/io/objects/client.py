"""The asynchronous client of a process: requests to object stores, tried again, hedged, bounded and counted.

`submit` sends a `FetchRequest` and returns a future of its `FetchReply`. One thread runs the loop in which all requests
of a process are made, so that many are in flight at once whoever waits for them. A client does not survive a fork: a
forked process sends its requests to a process of its own, see `headrace.io.objects.forked`.

How a GET of one range goes:

    attempt     at most ``attempt_s``; if it takes longer than 99 of 100 such GETs did, a second one is sent beside it
                (a hedge), and the first answer counts
    failure     429, 503, other server errors, lost connections, cut bodies and time-outs may pass: wait, twice as long
                each time and at random between half of that and all of it, and try again
    deadline    after ``deadline_s`` in all, the last failure is an error that names the object and the range; time for
                which the process was stopped does not count
    identity    an answer with another size or ETag than expected is an error at once: the object was changed

PUTs and DELETEs are tried in the same way, see `headrace.io.objects.writer`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock, Thread, current_thread
from time import monotonic, sleep
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from headrace.errors import ConfigError, HeadraceError, OutputError, StoreAwayError, StoreError
from headrace.io.objects.failures import NO_BUCKET, advice_for, is_silent, words_of
from headrace.io.remote import Status, bucket_of
from headrace.io.storage import Secrets, Storage, connect

FETCH_THREAD: Final = "headrace-fetch"
"""Name of the thread of a process through which all answers come."""

MAX_IN_FLIGHT: Final = 128
"""The most requests of a process that are under way at once."""

_BIG_BYTES: Final = 1 << 18
"""GETs from this size on are compared with each other, and smaller ones among themselves, for hedging."""

_KNOWN: Final = 100
"""The fewest GETs whose time must be known before any is hedged."""

_REMEMBERED: Final = 512
_LEAST_HEDGE_S: Final = 0.05
_PARTS_AT_ONCE: Final = 8
_END_S: Final = 2.0
_LOOK_S: Final = 0.001
_HEDGED_SHARE: Final = 0.05
"""The most GETs that are hedged: if a whole store becomes slow, twice the requests would not help it."""

_SAY_EVERY_S: Final = 1.0
"""If a store is away, hundreds of ranges fail at the same time, of which one is named."""

_SLASH: Final = re.compile("/")
_ENVIRONMENT: Final = ("AWS_", "AZURE_", "GOOGLE_")
_log = logging.getLogger("headrace")
T = TypeVar("T")


class FetchPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long requests to object stores are tried.

    Attributes:
        deadline_s: how long one range is tried in all, with all attempts and waits. The default bridges a store that
            is away for a minute.
        attempt_s: how long one attempt may take.
        first_delay_s: the wait before the second attempt; each later one is twice as long, and each is cut at random
            to between half of it and all of it.
        most_delay_s: the longest wait before any attempt.

    Raises:
        ConfigError: a value is not a number of seconds above 0.

    Example:
        >>> reader = headrace.io.ObjectReader(policy=headrace.io.FetchPolicy(deadline_s=600))
        >>> reader.policy.attempt_s
        30.0
    """

    deadline_s: float = 150.0
    attempt_s: float = 30.0
    first_delay_s: float = 0.1
    most_delay_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError unless all values are positive and finite."""
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a number of seconds above 0")

    def delay(self, attempt: int) -> float:
        """Return how long to wait after attempt number ``attempt``, counted from 1; at random, so callers disperse."""
        longest: float = min(self.most_delay_s, self.first_delay_s * 2.0 ** min(attempt - 1, 60))
        return longest * (0.5 + random.random() / 2)

    @property
    def retries(self) -> dict[str, Any]:
        """How obstore tries the parts of an upload again, in its words."""
        first, most = timedelta(seconds=self.first_delay_s), timedelta(seconds=self.most_delay_s)
        backoff = {"init_backoff": first, "max_backoff": most, "base": 2}
        return {"max_retries": 100, "retry_timeout": timedelta(seconds=self.deadline_s), "backoff": backoff}


class FetchStats(msgspec.Struct, kw_only=True):
    """What was asked of object stores so far.

    Attributes:
        gets: GETs of ranges that were sent, with those that were sent again and those that were hedged.
        heads: HEADs, which ask for size and identity of one object.
        lists: LISTs, each of which may take several pages.
        puts: PUTs of whole objects that were sent, with those that were sent again.
        uploads: uploads in several parts that were begun, with those that were begun again. Parts are sent, and sent
            again, by obstore, which does not count them.
        deletes: DELETEs, each of which removes one object, or in S3 up to a thousand.
        retries: requests of any kind that were sent again after a failure.
        hedges: GETs that were sent beside one that took long.
        bytes: bytes that GETs returned, without those of attempts that failed or were outrun.
        sent_bytes: bytes that PUTs and uploads have written, without those of attempts that failed.
        waited_s: seconds between attempts, in all.
        damaged_files: kept files that held other bytes than were fetched, and were fetched again.
    """

    gets: int = 0
    heads: int = 0
    lists: int = 0
    puts: int = 0
    uploads: int = 0
    deletes: int = 0
    retries: int = 0
    hedges: int = 0
    bytes: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0
    damaged_files: int = 0

    def add(self, other: FetchStats) -> None:
        """Add the numbers of another."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Get(msgspec.Struct, frozen=True, tag=True):
    """Ranges of one object, each fetched by a GET of its own.

    Attributes:
        url: the object.
        ranges: begin and end of each range, which is not empty.
        expected: what the object must be.
    """

    url: str
    ranges: list[tuple[int, int]]
    expected: Status


class Head(msgspec.Struct, frozen=True, tag=True):
    """Size and identity of one object."""

    url: str


class List(msgspec.Struct, frozen=True, tag=True):
    """The objects whose URLs begin with ``url`` and a slash: those right below, or with ``deep`` all of them."""

    url: str
    deep: bool = False


class Put(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Write one object.

    Attributes:
        url: the object.
        data: its content.
        path: a local file with its content, in place of ``data``.
        part_bytes: how large the parts are in which it is sent; 0 sends it whole.
        create: whether an object that is there stays as it is. Only an object that is sent whole can be created.
    """

    url: str
    data: bytes = b""
    path: str = ""
    part_bytes: int = 0
    create: bool = False


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Remove objects of one bucket, those that are there; ``url`` is for messages.

    Several only in stores where one that is not there is no failure, which would end the request.
    """

    url: str
    urls: list[str]


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, of which store, how long it is tried, and for what, see `headrace.io.readers.reading_for`."""

    what: Get | Head | List | Put | Delete
    storage: Storage
    policy: FetchPolicy
    read_for: str = ""


class FetchReply(msgspec.Struct, kw_only=True):
    """The answer to a request. One that failed has an error, and still says what it took.

    Attributes:
        stats: what it took.
        data: the bytes of each range of a `Get`.
        status: of the object of a `Head`, None if there is no such object; or of the object that a `Put` wrote, None if
            an object was there that it was not to replace.
        objects: what a `List` found: URL and status of each object.
        folders: URLs of the folders that a `List` found.
        error: why the request failed; `FileNotFoundError`, or an error of Headrace.
    """

    stats: FetchStats
    data: Sequence[Any] = ()
    status: Status | None = None
    objects: list[tuple[str, Status]] = msgspec.field(default_factory=list)
    folders: list[str] = msgspec.field(default_factory=list)
    error: Exception | None = None


class _Passing(Exception):  # noqa: N818 -- it never leaves this module
    """A failure that the next attempt may not meet."""


class _Loop(asyncio.SelectorEventLoop):
    """A loop that knows its futures until nobody holds them any more, no thread of obstore either."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: WeakSet[asyncio.Future[Any]] = WeakSet()

    def create_future(self) -> asyncio.Future[Any]:
        future = super().create_future()
        self.futures.add(future)
        return future


class Client:
    """Makes requests in a thread of its own. There is one a process; `submit` makes it."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._stores: dict[tuple[str, bytes], _Store] = {}
        self._storages: dict[bytes, Storage] = {}
        self._secrets = Secrets(self._storages.values())
        self._said, self._num_silent = -_SAY_EVERY_S, 0
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._lock = Lock()
        self._is_over = False
        self.num_open = 0
        """Requests that were asked for, a GET of each range, and have no answer yet."""
        self._thread = Thread(target=self._loop.run_forever, name=FETCH_THREAD, daemon=True)
        self._thread.start()
        atexit.register(self._end, os.getpid())

    def submit(self, request: FetchRequest) -> Future[FetchReply]:
        """Begin a request. Its future always has a reply; a failure is in it."""
        if self._is_over:
            refused: Future[FetchReply] = Future()
            error = StoreError(f"{request.what.url}: cannot be asked for, since the program ends")
            refused.set_result(FetchReply(stats=FetchStats(), error=error))
            return refused
        self._count(request, 1)
        return asyncio.run_coroutine_threadsafe(self._answered(request), self._loop)

    def _count(self, request: FetchRequest, sign: int) -> None:
        with self._lock:
            self.num_open += sign * (len(request.what.ranges) if isinstance(request.what, Get) else 1)

    def _end(self, process: int) -> None:
        """Give up what is under way, end the loop, and wait until obstore has done with it.

        A thread of obstore that comes back to Python when the interpreter has ended aborts the process. It holds the
        future of its request until it has left Python for the last time, also if that is answered, or was given up.
        """
        if os.getpid() != process:
            return  # the loop does not survive a fork
        self._is_over = True

        async def give_up() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(give_up(), self._loop).result(timeout=_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_END_S)
        deadline = monotonic() + _END_S
        while self._loop.futures and monotonic() < deadline:
            sleep(_LOOK_S)
            # What a thread drops outside of Python is dropped in the next call of obstore by anyone, such as this one.
            resolve_name("obstore.store:MemoryStore")()

    async def _answered(self, request: FetchRequest) -> FetchReply:
        reply = FetchReply(stats=FetchStats())
        try:
            await self._answer(request, reply)
        except (HeadraceError, OSError) as error:
            reply.error = error
        except Exception as error:
            # Never with the error as the cause: it could hold credentials.
            reply.error = StoreError(f"{request.what.url}: {type(error).__name__}: {self._secrets.hidden(str(error))}")
        finally:
            self._count(request, -1)
        return reply

    async def _answer(self, request: FetchRequest, reply: FetchReply) -> None:
        what, stats = request.what, reply.stats
        bucket = bucket_of(what.url)
        store = self._store(bucket.root, bucket.scheme, request.storage)
        obstore = import_module("obstore")  # `connect` has checked that it is installed
        if isinstance(what, Get):
            tasks = [self._range(store, bucket.key, request, what.expected, one, stats) for one in what.ranges]
            reply.data = await _all(tasks)
            return
        if isinstance(what, Head):

            async def head() -> Status | None:
                stats.heads += 1
                try:
                    return _status(await obstore.head_async(store.store, bucket.key))
                except FileNotFoundError:
                    return None
                except Exception as error:
                    if is_silent(error):
                        await explain(error)
                    raise

            async def explain(refused: Exception) -> None:
                """Raise what a GET is answered, which says why it is refused."""
                stats.gets += 1
                try:
                    await obstore.get_range_async(store.store, bucket.key, start=0, end=1)
                except FileNotFoundError:
                    raise refused from None

            reply.status = await self._tried(head, request, "cannot be looked up", stats)
            return
        if isinstance(what, Put):
            reply.status = await self._put(store, bucket.key, request, what, stats)
            return
        if isinstance(what, Delete):

            async def delete() -> None:
                stats.deletes += 1
                with contextlib.suppress(FileNotFoundError):
                    await obstore.delete_async(store.store, [bucket_of(url).key for url in what.urls])

            await self._tried(delete, request, "cannot be removed", stats)
            return

        async def listed() -> tuple[list[tuple[str, Status]], list[str]]:
            stats.lists += 1
            try:
                if what.deep:
                    objects = await obstore.list(store.store, bucket.key or None, chunk_size=1000).collect_async()
                    return _without_folders([(f"{bucket.root}/{one['path']}", _status(one)) for one in objects]), []
                found = await obstore.list_with_delimiter_async(store.store, bucket.key or None)
            except FileNotFoundError as error:
                words = words_of(error, self._secrets)
                raise StoreAwayError(f"{what.url}: cannot be listed: {words}; {NO_BUCKET}") from None
            objects = [(f"{bucket.root}/{one['path']}", _status(one)) for one in found["objects"]]
            # What stands for the folder itself.
            objects = [one for one in objects if bucket_of(one[0]).key != bucket.key]
            return objects, [f"{bucket.root}/{name}" for name in found["common_prefixes"]]

        reply.objects, reply.folders = await self._tried(listed, request, "cannot be listed", stats)

    async def _put(self, store: _Store, key: str, request: FetchRequest, what: Put, stats: FetchStats) -> Status | None:
        obstore = import_module("obstore")
        size = Path(what.path).stat().st_size if what.path else len(what.data)
        parts = -(-size // what.part_bytes) if what.part_bytes else 1

        async def put() -> Status | None:
            try:
                if what.part_bytes:
                    stats.uploads += 1
                    written = await obstore.put_async(
                        store.in_parts(request.policy),
                        key,
                        Path(what.path),
                        use_multipart=True,
                        chunk_size=what.part_bytes,
                        max_concurrency=_PARTS_AT_ONCE,
                    )
                else:
                    stats.puts += 1
                    content = Path(what.path).read_bytes() if what.path else what.data
                    mode = "create" if what.create else "overwrite"
                    written = await obstore.put_async(store.store, key, content, mode=mode, use_multipart=False)
            except FileNotFoundError as error:
                words = words_of(error, self._secrets)
                if what.part_bytes and "NoSuchBucket" not in words:
                    raise _Passing(f"the upload was aborted: {words}") from None
                raise OutputError(f"{what.url}: cannot be written: {words}; {NO_BUCKET}") from None
            except Exception as error:
                if what.create and type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                    return None
                raise
            return Status(size, _plain_etag(written["e_tag"]), 0)

        status = await self._tried(put, request, "cannot be written", stats, parts)
        stats.sent_bytes += size if status is not None else 0
        return status

    def _unsaid(self) -> int | None:
        """Return how many warnings were left out since the last one; None if another one would come too soon."""
        now = monotonic()
        if now - self._said < _SAY_EVERY_S:
            self._num_silent += 1
            return None
        self._said, silent, self._num_silent = now, self._num_silent, 0
        return silent

    def _store(self, root: str, scheme: str, storage: Storage) -> _Store:
        # What the environment says may change, as credentials do.
        around = sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT))
        known = msgspec.msgpack.encode((storage, around))
        found = self._stores.get((root, known))
        if found is None:
            self._storages[known] = storage
            found = self._stores[root, known] = _Store(root, scheme, storage)
        return found

    async def _range(
        self,
        store: _Store,
        key: str,
        request: FetchRequest,
        expected: Status,
        span: tuple[int, int],
        stats: FetchStats,
    ) -> Any:
        obstore = import_module("obstore")
        begin, end = span
        url = request.what.url
        times = store.big if end - begin >= _BIG_BYTES else store.small

        async def get() -> Any:
            stats.gets += 1
            began = monotonic()
            try:
                result = await obstore.get_async(store.store, key, options={"range": span})
            except FileNotFoundError:
                raise StoreError(f"{url}: the object was removed while it was in use") from None
            found = _status(result.meta)
            if not expected.is_same(found):
                raise changed(url, expected, found)
            data = await result.bytes_async()
            if len(data) != end - begin:
                raise _Passing(f"{len(data):,} bytes came instead of {end - begin:,}")
            times.add(monotonic() - began)
            return data

        async def hedged() -> Any:
            return await _hedged(get, times, stats)

        where = f"bytes {begin:,} to {end:,} of {expected.size:,} cannot be read"
        data = await self._tried(hedged, request, where, stats)
        stats.bytes += len(data)
        return data

    async def _tried(
        self,
        attempt: Callable[[], Awaitable[T]],
        request: FetchRequest,
        what: str,
        stats: FetchStats,
        parts: int = 1,
    ) -> T:
        """Return the result of an attempt, or of the next ones if a failure may pass, until the deadline.

        What is sent in several parts has so many times the time of one. The time for which the process was stopped, as
        a scheduler stops a job for another one, does not count: nothing was tried meanwhile.
        """
        url, policy = request.what.url, request.policy
        began = started = limit_s = 0.0
        deadline_s, attempt_s = policy.deadline_s * parts, policy.attempt_s * parts
        number = 0
        while True:
            number += 1
            try:
                async with self._in_flight:
                    # The time for which it waited behind other requests does not count.
                    started = monotonic()
                    began = began or started
                    limit_s = max(0.001, min(attempt_s, deadline_s - (started - began)))
                    async with asyncio.timeout(limit_s):
                        return await attempt()
            except (HeadraceError, FileNotFoundError):
                raise
            except TimeoutError:
                words = f"no answer came within {limit_s:.3g} s"
            except Exception as error:
                words = words_of(error, self._secrets)
                advice = None if isinstance(error, _Passing) else advice_for(error)
                if advice is not None:
                    raise StoreAwayError(f"{url}: {what}: {words}{advice}") from None
            began += max(0.0, monotonic() - started - limit_s)
            delay, waited = policy.delay(number), monotonic() - began
            if waited + delay >= deadline_s:
                raise StoreAwayError(
                    f"{url}: {what}: {words} ({number} attempts in {waited:.0f} s; the deadline is {deadline_s:g} s)"
                ) from None
            if (silent := self._unsaid()) is not None:
                more = f"; and {silent:,} others meanwhile" if silent else ""
                _log.warning(
                    "%s: %s%s: %s; trying again in %.3g s (attempt %d; the deadline is %g s)%s",
                    *(url, what, request.read_for, words, delay, number + 1, deadline_s, more),
                )
            stats.retries += 1
            stats.waited_s += delay
            started = monotonic()
            await asyncio.sleep(delay)
            began += max(0.0, monotonic() - started - delay)


class _Times:
    """How long GETs took, and from when on one of them is hedged."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._num_gets = 0
        self._num_hedges = 0
        self._limit = float("inf")

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._num_gets += 1
        if len(self._seconds) >= _KNOWN and self._num_gets % 16 == 0:
            ranked = sorted(self._seconds)
            self._limit = max(_LEAST_HEDGE_S, ranked[len(ranked) * 99 // 100])

    @property
    def limit_s(self) -> float | None:
        """How long to wait before a second GET is sent; None to send none."""
        if self._num_hedges >= _HEDGED_SHARE * self._num_gets or self._limit == float("inf"):
            return None
        return self._limit

    def hedge(self) -> None:
        self._num_hedges += 1


class _Store:
    """A bucket, and how long GETs from it took."""

    def __init__(self, root: str, scheme: str, storage: Storage) -> None:
        self._how = (root, scheme, storage)
        self._in_parts: dict[FetchPolicy, Any] = {}
        self.store = connect(root, scheme, storage)
        self.small, self.big = _Times(), _Times()

    def in_parts(self, policy: FetchPolicy) -> Any:
        """Return obstore's store for uploads in several parts, each of which it tries again itself."""
        if policy not in self._in_parts:
            self._in_parts[policy] = connect(*self._how, retries=policy.retries)
        return self._in_parts[policy]


async def _hedged(get: Callable[[], Awaitable[T]], times: _Times, stats: FetchStats) -> T:
    """Return the result of ``get``, or of a second one that is sent if the first takes unusually long."""
    limit_s = times.limit_s
    if limit_s is None:
        return await get()
    tasks = {asyncio.ensure_future(get())}
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s)
        if not done and times.limit_s is not None:
            stats.hedges += 1
            times.hedge()
            tasks.add(asyncio.ensure_future(get()))
        while True:
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            best = next((task for task in done if task.exception() is None), None)
            if best is not None or not waiting:
                return (best or next(iter(done))).result()
            tasks = waiting
    finally:
        for task in tasks:
            task.cancel()


async def _all(attempts: Sequence[Awaitable[T]]) -> list[T]:
    """Return all results in order; the first failure ends the others."""
    if len(attempts) == 1:
        return [await attempts[0]]
    tasks = [asyncio.ensure_future(one) for one in attempts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def changed(url: str, expected: Status, found: Status) -> StoreError:
    """Return the error for an object that is not what it was when its store was opened."""
    return StoreError(
        f"{url}: the object changed while it was in use: it had {expected.size:,} bytes and ETag {expected.etag!r} at"
        f" first, and now has {found.size:,} bytes and ETag {found.etag!r}; open the store again"
    )


def _status(meta: Any) -> Status:
    modified = meta["last_modified"]
    nanoseconds = int(modified.timestamp() * 1e9) if isinstance(modified, datetime) else 0
    return Status(int(meta["size"]), _plain_etag(meta["e_tag"]), nanoseconds)


def _without_folders(objects: list[tuple[str, Status]]) -> list[tuple[str, Status]]:
    """Leave out empty objects that stand for a folder with others in it, which consoles and other tools make."""
    empty = {url for url, status in objects if not status.size}
    if not empty:
        return objects
    folders = {url[: slash.start()] for url, _ in objects for slash in _SLASH.finditer(url)}
    return [one for one in objects if one[0] not in empty or one[0] not in folders]


def _plain_etag(found: str | None) -> str:
    return (found or "").removeprefix("W/").strip('"')


_FORKED: Final = "headrace.io.objects.forked:ForkedClient"


class _Process:
    """The client of this process, made when it is first needed, and a lock that is held for moments only."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.client: Any = None
        self.is_copy = False

    def forked(self) -> None:
        """Called in a forked process: a client of the process before cannot be used here."""
        self.is_copy = self.is_copy or self.client is not None
        self.client = None
        self.lock = Lock()


_PROCESS: Final = _Process()
os.register_at_fork(after_in_child=_PROCESS.forked)


def process_lock() -> Lock:
    """Return a lock of this process for what takes no time; a forked process has another one, which is not held."""
    return _PROCESS.lock


def submit(request: FetchRequest) -> Future[FetchReply]:
    """Begin a request, from any thread and any process. The future always has a reply."""
    with _PROCESS.lock:
        if _PROCESS.client is None:
            _PROCESS.client = resolve_name(_FORKED)() if _PROCESS.is_copy else Client()
        client = _PROCESS.client
    future: Future[FetchReply] = client.submit(request)
    return future


def refuse_own_thread(url: str) -> None:
    """Raise StoreError in the thread through which answers come: to wait for one there would never end."""
    if current_thread().name == FETCH_THREAD:
        raise StoreError(
            f"{url}: cannot be read in the thread {FETCH_THREAD}, since its own answer would have to come through it: a"
            " handler of logging, or a finalizer, that reads from object stores must do so in another thread"
        )


def is_full() -> bool:
    """Return whether this process has asked for as many requests as may be under way, so that more would only wait."""
    client = _PROCESS.client
    return isinstance(client, Client) and client.num_open >= MAX_IN_FLIGHT
