"""Many objects that are fetched whole and kept: all of their bytes, and few of them in memory at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.io import ObjectReader
from headrace.io.objects import lookups, reader
from headrace.io.objects.lookups import ByteRoom, Objects
from memory_stores import memory_bucket

BLOCK_BYTES, NUM_BLOCKS, NUM_OBJECTS = 20, 2, 8


class Watched(ByteRoom):
    """Lets nobody leave before all threads have asked for room, so that all are in who can be."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.lock = threading.Lock()
        self.all_asked = threading.Event()
        self.num_asked = self.now = self.most = 0
        self.inside: set[int] = set()

    @contextlib.contextmanager
    def take(self, num_bytes: int) -> Iterator[None]:
        with self.lock:
            self.num_asked += 1
            if self.num_asked == NUM_OBJECTS:
                self.all_asked.set()
        with super().take(num_bytes):
            with self.lock:
                self.now += num_bytes
                self.most = max(self.most, self.now)
                self.inside.add(threading.get_ident())
            assert self.all_asked.wait(120)
            yield
            with self.lock:
                self.now -= num_bytes
                self.inside.remove(threading.get_ident())


@pytest.mark.parametrize(("limit_bytes", "most"), [(1000, 320), (100, 80), (30, 40)])
def test_few_bytes_are_in_memory_at_once(limit_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object has 80 bytes, which are fetched 40 at a time; these are let in alone where they are too many."""
    rooms: list[Watched] = []
    fetched: list[int] = []
    ranges = Objects.ranges

    def made(limit_bytes: int) -> Watched:
        rooms.append(Watched(limit_bytes))
        return rooms[-1]

    def watched(self: Objects, url: str, wanted: list[tuple[int, int]]) -> Sequence[Any]:
        assert threading.get_ident() in rooms[0].inside
        fetched.append(sum(end - begin for begin, end in wanted))
        return ranges(self, url, wanted)

    monkeypatch.setattr(lookups, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(lookups, "_AT_ONCE", NUM_BLOCKS)
    monkeypatch.setattr(reader, "ByteRoom", made)
    monkeypatch.setattr(reader, "_BYTES_AT_ONCE", limit_bytes)
    monkeypatch.setattr(Objects, "ranges", watched)
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{number}": bytes([number] * 80) for number in range(NUM_OBJECTS)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)
        using = ObjectReader()
        using.keep_all(list(content))
        kept = {url: bytes(using.view(url)) for url in content}  # type: ignore[arg-type]
    assert kept == content
    assert fetched == [40] * 2 * NUM_OBJECTS
    assert rooms[0].most == most
