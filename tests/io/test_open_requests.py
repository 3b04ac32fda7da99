"""The client of object stores: few requests at once, failures, its own thread, and its end."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import obstore
import pytest

from counts import PATIENCE_S
from headrace.errors import StoreError
from headrace.io.objects import client
from headrace.io.objects.client import MAX_IN_FLIGHT, FetchPolicy, FetchRequest, Head, submit
from headrace.io.objects.lookups import Objects
from headrace.io.storage import Storage
from memory_stores import MemoryBucket, memory_bucket

NUM_BYTES = 2 * MAX_IN_FLIGHT
PATIENT = FetchPolicy(deadline_s=PATIENCE_S, attempt_s=PATIENCE_S)


class Gate:
    """Holds what the client asks of obstore until somebody lets it through."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[None]] = []
        self._arrived = threading.Semaphore(0)

    async def passed(self) -> None:
        self.held.append(asyncio.get_running_loop().create_future())
        self._arrived.release()
        await self.held[-1]

    def wait_for(self, number: int) -> None:
        """Wait until so many more are held."""
        for _ in range(number):
            assert self._arrived.acquire(timeout=PATIENCE_S)

    def turn(self) -> None:
        """Let the client do all that it can do."""

        async def turns() -> None:
            for _ in range(100):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(turns(), self.held[0].get_loop()).result(PATIENCE_S)

    def let(self, error: Exception | None = None) -> None:
        """Let all through that are held, to an answer or to this error."""

        def end(future: asyncio.Future[None]) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        held, self.held = self.held, []
        for future in held:
            future.get_loop().call_soon_threadsafe(end, future)


@pytest.fixture
def bucket() -> Iterator[MemoryBucket]:
    with memory_bucket() as made:
        made.put("x", bytes(NUM_BYTES))
        yield made


@pytest.fixture
def gate(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    get, head = obstore.get_async, obstore.head_async

    async def get_async(*args: Any, **options: Any) -> Any:
        await gate.passed()
        return await get(*args, **options)

    async def head_async(*args: Any, **options: Any) -> Any:
        await gate.passed()
        return await head(*args, **options)

    # Nothing is sent beside what takes long, and nothing again, however long the gate is shut.
    monkeypatch.setattr(client, "_KNOWN", sys.maxsize)
    monkeypatch.setattr(obstore, "get_async", get_async)
    monkeypatch.setattr(obstore, "head_async", head_async)
    return gate


@pytest.fixture
def objects(bucket: MemoryBucket) -> Objects:
    """What has looked the object up already."""
    found = Objects(policy=PATIENT)
    found.known(f"{bucket.url}/x")
    return found


def test_few_requests_are_under_way_at_once(objects: Objects, bucket: MemoryBucket, gate: Gate) -> None:
    url = f"{bucket.url}/x"
    many = objects.begin_ranges(url, [(at, at + 1) for at in range(MAX_IN_FLIGHT - 1)])
    one = submit(FetchRequest(what=Head(url), storage=Storage(), policy=PATIENT))
    gate.wait_for(MAX_IN_FLIGHT)
    more = objects.begin_ranges(url, [(0, 1), (1, 2)])
    gate.turn()
    assert len(gate.held) == MAX_IN_FLIGHT, "the next ones wait for these"
    gate.let()
    assert [objects.finish(url, one).error for one in (many, one)] == [None, None]
    gate.wait_for(2)
    gate.let()
    assert [bytes(data) for data in objects.finish(url, more).data] == [bytes(1)] * 2


def test_a_range_that_fails_ends_the_others(objects: Objects, bucket: MemoryBucket, gate: Gate) -> None:
    url = f"{bucket.url}/x"
    failed = objects.begin_ranges(url, [(0, 1), (1, 2), (2, 3)])
    gate.wait_for(3)
    others = gate.held[1:]
    gate.held = gate.held[:1]
    gate.let(FileNotFoundError())
    with pytest.raises(StoreError, match="removed"):
        objects.finish(url, failed)
    gate.held = others
    gate.turn()
    assert all(one.cancelled() for one in others)


def test_the_thread_of_the_client_does_not_wait_for_itself(objects: Objects, bucket: MemoryBucket, gate: Gate) -> None:
    """Only code of others can come there: a handler of the warning that a request is tried again."""
    url = f"{bucket.url}/x"
    said: list[str] = []

    class Reads(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                objects.known(f"{bucket.url}/other")
            except StoreError as error:
                said.append(str(error))

    handler = Reads()
    logging.getLogger("headrace").addHandler(handler)
    try:
        one = objects.begin_ranges(url, [(0, 1)])
        gate.wait_for(1)
        gate.let(ConnectionError("lost"))
        gate.wait_for(2)  # the second attempt, and what the handler has asked for
        gate.let()
        assert bytes(objects.finish(url, one).data[0]) == bytes(1)
    finally:
        logging.getLogger("headrace").removeHandler(handler)
    assert said == [f"{bucket.url}/other: cannot be read in the thread headrace-fetch{said[0].partition('fetch')[2]}"]
    assert "in another thread" in said[0]


def test_a_client_that_has_ended_answers_at_once(bucket: MemoryBucket) -> None:
    """A thread that still reads when the program ends would wait for ever for a loop that has stopped."""
    ended = client.Client()
    ended._end(os.getpid())
    atexit.unregister(ended._end)
    future = ended.submit(FetchRequest(what=Head(f"{bucket.url}/x"), storage=Storage(), policy=PATIENT))
    assert future.done()
    assert str(future.result().error) == f"{bucket.url}/x: cannot be asked for, since the program ends"
    ended._loop.close()
