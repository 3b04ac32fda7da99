"""The asynchronous client of a process: requests to object stores, tried again, hedged, bounded and counted.

`submit` sends a `FetchRequest` and returns a future of its `FetchReply`. One thread runs the loop in which all requests
of a process are made, so that many are in flight at once whoever waits for them. A client does not survive a fork: a
forked process sends its requests to a process of its own, see `headrace.io.objects.forked`.

How a GET of one range goes:

    attempt     at most ``attempt_s``; if it takes longer than 99 of the last 100 GETs did, a second one is sent beside
                it (a hedge), and the first answer counts
    failure     429, 503, other server errors, lost connections, cut bodies and time-outs may pass: wait, twice as long
                each time and at random between half of that and all of it, and try again
    deadline    after ``deadline_s`` in all, the last failure is an error that names the object and the range; time for
                which the process was stopped does not count
    identity    an answer with another size or ETag than expected is an error at once: the object was changed

PUTs and DELETEs are tried in the same way, see `headrace.io.objects.writer`. obstore tries only the parts of an upload
again itself. Of other requests it would do so without a word or a count, also where no attempt can succeed (an unknown
host, no TLS, 501), and not where an object is created or several are removed and the connection is lost.

Which failures of requests to object stores may pass, and what to do about those that do not.

`words_of` says what a failed request answered, on one line and without credentials; `advice_for` whether to try again.
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
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from headrace.errors import ConfigError, HeadraceError, OutputError, StoreAwayError, StoreError
from headrace.io.remote import Bucket, Status, bucket_of
from headrace.io.storage import Secrets, Storage, connect

_STATUS: Final = re.compile(r"status code: (\d{3})")
_PASSING_STATUS: Final = frozenset((408, 425, 429))
_LASTING_STATUS: Final = frozenset((501, 505))
"""Errors of a server that does not know the request, and will not know it the next time."""

_SILENT: Final = re.compile(r"status code: (?:400|401|403)[^:]*:\s*$")
_XML_ERROR: Final = re.compile(r"(?:<\?xml|<Error)\s*.*?<Code>\s*([^<]*?)\s*</Code>(.*)", re.DOTALL)
_XML_MESSAGE: Final = re.compile(r"<Message>\s*([^<]*?)\s*</Message>")
_REASON: Final = re.compile(r'(?:message|error): "([^"]+)"')
_LASTING: Final = re.compile(
    r"http://169\.254\.169\.254|http://metadata\.google|redirect without LOCATION|non-partial response"
    r"|InvalidContentType|corrupt message|wrong version number|record overflow"
    r"|UnknownIssuer|invalid peer certificate|certificate verify failed"
    r"|Name or service not known|nodename nor servname"
)
"""Words of obstore on what the next attempt meets too: no credentials but those that a machine of the cloud would have,
a bucket in another region, a server without ranges or without TLS, an unknown certificate, an unknown host."""

_PERMISSION: Final = (
    "; check the credentials, and what they are allowed to do. A store whose objects may be read but not listed"
    " says the same of an object that is not there: allow listing, too"
)
NO_BUCKET: Final = "there is no such bucket: check URL and endpoint"


def words_of(error: Exception, secrets: Secrets) -> str:
    """Return what a failed request says, on one line and without credentials; of an XML document its code and message.

    >>> words_of(OSError("status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>"), Secrets([]))
    'status code: 404 Not Found: NoSuchKey'
    """
    return secrets.hidden(_XML_ERROR.sub(_in_words, _without_source(error)))


def _in_words(found: re.Match[str]) -> str:
    message = _XML_MESSAGE.search(found[2])
    return found[1] if message is None else f"{found[1]}: {message[1]}"


def _without_source(error: Exception) -> str:
    """Return the words of an error; of a connection that failed they do not say why, but what obstore adds does."""
    words, _, source = str(error).partition("\n\nDebug source")
    reason = _REASON.findall(source) if words.endswith("error sending request") else []
    return f"{words}: {reason[-1]}" if reason else words


def is_silent(error: Exception) -> bool:
    """Return whether a request was refused without any reason, as a HEAD is, whose answer has no content."""
    return _SILENT.search(_without_source(error)) is not None


def advice_for(error: Exception) -> str | None:
    """Return advice, which may be empty, for a failure that does not pass; None for one that may."""
    kind, words = type(error).__name__, str(error)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return _PERMISSION
    if kind in ("NotSupportedError", "InvalidPathError", "AlreadyExistsError", "PreconditionError"):
        return ""
    status = _STATUS.search(words)
    code = 0 if status is None else int(status[1])
    if code == 404:  # of an object it is a FileNotFoundError
        return f"; {NO_BUCKET}"
    if code in _LASTING_STATUS or (300 <= code < 500 and code not in _PASSING_STATUS):
        return ""
    return "; check the endpoint, the region and the credentials" if not code and _LASTING.search(words) else None


FETCH_THREAD: Final = "headrace-fetch"
"""Name of the thread of a process through which all answers come."""

MAX_IN_FLIGHT: Final = 128
"""The most requests of a process that are under way at once."""

_KNOWN: Final = 100
"""A GET is compared with so many before it."""

_LEAST_HEDGE_S: Final = 0.05
_HEDGED_SHARE: Final = 0.05
"""The most GETs that are hedged: if a whole store becomes slow, twice the requests would not help it."""

_PARTS_AT_ONCE: Final = 8
_RETRIES_OF_PARTS: Final = {"max_retries": 100, "retry_timeout": timedelta(seconds=150)}
_END_S: Final = 2.0
_LOOK_S: Final = 0.001
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
    """What is asked, of which store, and how long it is tried."""

    what: Get | Head | List | Put | Delete
    storage: Storage
    policy: FetchPolicy


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
        self._stores: dict[bytes, _Store] = {}
        self._storages: list[Storage] = []
        self.secrets = Secrets(self._storages)
        self.in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._said, self._num_silent = -_SAY_EVERY_S, 0
        self._is_over = False
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
        return asyncio.run_coroutine_threadsafe(self._answered(request), self._loop)

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
            await _Asked(self, request, reply.stats).answer(reply)
        except (HeadraceError, OSError) as error:
            reply.error = error
        except Exception as error:
            # Never with the error as the cause: it could hold credentials.
            reply.error = StoreError(f"{request.what.url}: {type(error).__name__}: {self.secrets.hidden(str(error))}")
        return reply

    def store(self, bucket: Bucket, storage: Storage, *, in_parts: bool = False) -> _Store:
        """Return the store of a bucket, or the one for uploads in parts, each of which obstore tries again itself."""
        # What the environment says may change, as credentials do.
        around = sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT))
        known = msgspec.msgpack.encode((bucket.root, in_parts, storage, around))
        if known not in self._stores:
            self._storages.append(storage)
            retries = _RETRIES_OF_PARTS if in_parts else None
            self._stores[known] = _Store(connect(bucket.root, bucket.scheme, storage, retries=retries))
        return self._stores[known]

    def say(self, words: str) -> None:
        """Log a warning, unless the last one was logged within the same second; the next one says how many were not."""
        now = monotonic()
        if now - self._said < _SAY_EVERY_S:
            self._num_silent += 1
            return
        more = f"; and {self._num_silent:,} others meanwhile" if self._num_silent else ""
        self._said, self._num_silent = now, 0
        _log.warning("%s%s", words, more)


class _Store:
    """obstore's store of a bucket, and for how many seconds the last GETs from it took."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.seconds: deque[float] = deque(maxlen=_KNOWN)
        self.num_gets = self.num_hedges = 0


class _Asked:
    """A request while it is tried."""

    def __init__(self, client: Client, request: FetchRequest, stats: FetchStats) -> None:
        self._client = client
        self._request = request
        self._stats = stats
        self._bucket = bucket_of(request.what.url)
        self._store = client.store(self._bucket, request.storage)
        self._obstore = import_module("obstore")  # `connect` has checked that it is installed

    async def answer(self, reply: FetchReply) -> None:
        """Make the request, and put what it finds into its reply."""
        what = self._request.what
        if isinstance(what, Get):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._range(what, *span)) for span in what.ranges]
            except ExceptionGroup as failed:  # the first failure has ended the others
                raise failed.exceptions[0] from None
            reply.data = [task.result() for task in tasks]
        elif isinstance(what, Head):
            reply.status = await self._tried(self._head, "cannot be looked up")
        elif isinstance(what, Put):
            reply.status = await self._put(what)
        elif isinstance(what, Delete):
            await self._tried(partial(self._delete, what), "cannot be removed")
        else:
            reply.objects, reply.folders = await self._tried(partial(self._list, what), "cannot be listed")

    async def _range(self, what: Get, begin: int, end: int) -> Any:
        async def get() -> Any:
            self._stats.gets += 1
            try:
                found = await self._obstore.get_async(
                    self._store.store, self._bucket.key, options={"range": (begin, end)}
                )
            except FileNotFoundError:
                raise StoreError(f"{what.url}: the object was removed while it was in use") from None
            # Not by If-Match: servers may ignore it, and it cannot name an ETag of the weak kind.
            status = _status(found.meta)
            if not what.expected.is_same(status):
                raise StoreError(
                    f"{what.url}: the object changed while it was in use: it had {what.expected.size:,} bytes and ETag"
                    f" {what.expected.etag!r} at first, and now has {status.size:,} bytes and ETag {status.etag!r};"
                    " open the store again"
                )
            data = await found.bytes_async()
            if len(data) != end - begin:
                raise ConnectionError(f"{len(data):,} bytes came instead of {end - begin:,}")
            return data

        where = f"bytes {begin:,} to {end:,} of {what.expected.size:,} cannot be read"
        data = await self._tried(partial(_hedged, get, self._store, self._stats), where)
        self._stats.bytes += len(data)
        return data

    async def _head(self) -> Status | None:
        self._stats.heads += 1
        try:
            return _status(await self._obstore.head_async(self._store.store, self._bucket.key))
        except FileNotFoundError:
            return None
        except Exception as refused:
            if is_silent(refused):
                # A GET is answered why.
                self._stats.gets += 1
                with contextlib.suppress(FileNotFoundError):
                    await self._obstore.get_range_async(self._store.store, self._bucket.key, start=0, end=1)
            raise

    async def _list(self, what: List) -> tuple[list[tuple[str, Status]], list[str]]:
        self._stats.lists += 1
        root, key = self._bucket.root, self._bucket.key
        try:
            if what.deep:
                found = await self._obstore.list(self._store.store, key or None, chunk_size=1000).collect_async()
                return _without_folders([(f"{root}/{one['path']}", _status(one)) for one in found]), []
            right_below = await self._obstore.list_with_delimiter_async(self._store.store, key or None)
        except FileNotFoundError as error:
            words = words_of(error, self._client.secrets)
            raise StoreAwayError(f"{what.url}: cannot be listed: {words}; {NO_BUCKET}") from None
        # But not what stands for the folder itself.
        objects = [one for one in right_below["objects"] if one["path"].strip("/") != key]
        folders = [f"{root}/{name}" for name in right_below["common_prefixes"]]
        return [(f"{root}/{one['path']}", _status(one)) for one in objects], folders

    async def _delete(self, what: Delete) -> None:
        self._stats.deletes += 1
        with contextlib.suppress(FileNotFoundError):
            await self._obstore.delete_async(self._store.store, [bucket_of(url).key for url in what.urls])

    async def _put(self, what: Put) -> Status | None:
        content: bytes | Path = Path(what.path) if what.path else what.data
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        store, parts = self._store, 1
        how: dict[str, Any] = {"use_multipart": False, "mode": "create" if what.create else "overwrite"}
        if what.part_bytes:
            store = self._client.store(self._bucket, self._request.storage, in_parts=True)
            parts = -(-size // what.part_bytes)
            how = {"use_multipart": True, "chunk_size": what.part_bytes, "max_concurrency": _PARTS_AT_ONCE}

        async def put() -> Status | None:
            self._stats.uploads += what.part_bytes > 0
            self._stats.puts += not what.part_bytes
            try:
                written = await self._obstore.put_async(store.store, self._bucket.key, content, **how)
            except FileNotFoundError as error:
                words = words_of(error, self._client.secrets)
                if what.part_bytes and "NoSuchBucket" not in words:
                    raise ConnectionAbortedError("the upload was aborted") from None
                raise OutputError(f"{what.url}: cannot be written: {words}; {NO_BUCKET}") from None
            except Exception as error:
                if what.create and type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                    return None
                raise
            self._stats.sent_bytes += size
            return Status(size, _plain_etag(written["e_tag"]), 0)

        return await self._tried(put, "cannot be written", parts)

    async def _tried(self, attempt: Callable[[], Awaitable[T]], what: str, parts: int = 1) -> T:
        """Return the result of an attempt, or of the next ones if a failure may pass, until the deadline.

        What is sent in several parts has so many times the time of one. The time for which the process was stopped, as
        a scheduler stops a job for another one, does not count: nothing was tried meanwhile.
        """
        url, policy = self._request.what.url, self._request.policy
        deadline_s = policy.deadline_s * parts
        number, waited_s = 0, 0.0
        while True:
            number += 1
            asked = monotonic()
            async with self._client.in_flight:
                started = monotonic()
                if number > 1:  # the time for which the first one waited behind other requests does not count
                    waited_s += started - asked
                limit_s = max(0.001, min(policy.attempt_s * parts, deadline_s - waited_s))
                try:
                    async with asyncio.timeout(limit_s):
                        return await attempt()
                except (HeadraceError, FileNotFoundError):
                    raise
                except TimeoutError:
                    words = f"no answer came within {limit_s:.3g} s"
                except Exception as error:
                    words, advice = words_of(error, self._client.secrets), advice_for(error)
                    if advice is not None:
                        raise StoreAwayError(f"{url}: {what}: {words}{advice}") from None
            delay = policy.delay(number)
            waited_s += min(limit_s, monotonic() - started) + delay
            if waited_s >= deadline_s:
                raise StoreAwayError(
                    f"{url}: {what}: {words} ({number} attempts in {waited_s - delay:.0f} s; the deadline is"
                    f" {deadline_s:g} s)"
                )
            self._client.say(
                f"{url}: {what}: {words}; trying again in {delay:.3g} s (attempt {number + 1};"
                f" the deadline is {deadline_s:g} s)"
            )
            self._stats.retries += 1
            await asyncio.sleep(delay)


async def _hedged(get: Callable[[], Awaitable[T]], store: _Store, stats: FetchStats) -> T:
    """Return the result of ``get``, or of a second one if the first takes longer than 99 of the last 100 took."""
    began = monotonic()
    store.num_gets += 1
    tasks = {asyncio.ensure_future(get())}
    try:
        if len(store.seconds) == _KNOWN:
            done, _ = await asyncio.wait(tasks, timeout=max(_LEAST_HEDGE_S, sorted(store.seconds)[-2]))
            if not done and store.num_hedges < _HEDGED_SHARE * store.num_gets:
                store.num_hedges += 1
                stats.hedges += 1
                tasks.add(asyncio.ensure_future(get()))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        result = min(done, key=lambda task: task.exception() is not None).result()
        store.seconds.append(monotonic() - began)
        return result
    finally:
        for task in tasks:
            task.cancel()


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
