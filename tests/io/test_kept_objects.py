"""Many objects that are fetched whole and kept: all of their bytes, and few of them in memory at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from counts import PATIENCE_S
from headrace.io import ObjectReader
from headrace.io.objects import lookups, reader
from headrace.io.objects.client import FetchReply
from headrace.io.objects.lookups import ByteRoom, Objects
from headrace.io.remote import Status
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
            assert self.all_asked.wait(PATIENCE_S)
            yield
            with self.lock:
                self.now -= num_bytes
                self.inside.remove(threading.get_ident())


@pytest.mark.parametrize(("limit_bytes", "most"), [(1000, 320), (100, 80), (30, 40)])
def test_few_bytes_are_in_memory_at_once(limit_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object has 80 bytes, 40 of which are in memory at once; these are let in alone where they are too many."""
    rooms: list[Watched] = []
    fetched: list[int] = []
    begin_ranges = Objects.begin_ranges

    def made(limit_bytes: int) -> Watched:
        rooms.append(Watched(limit_bytes))
        return rooms[-1]

    def watched(
        self: Objects, url: str, wanted: list[tuple[int, int]], expected: Status | None = None
    ) -> Future[FetchReply]:
        assert threading.get_ident() in rooms[0].inside
        fetched.append(sum(end - begin for begin, end in wanted))
        return begin_ranges(self, url, wanted, expected)

    monkeypatch.setattr(lookups, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(lookups, "AHEAD_BYTES", NUM_BLOCKS * BLOCK_BYTES)
    monkeypatch.setattr(reader, "ByteRoom", made)
    monkeypatch.setattr(reader, "_BYTES_AT_ONCE", limit_bytes)
    monkeypatch.setattr(Objects, "begin_ranges", watched)
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{number}": bytes([number] * 80) for number in range(NUM_OBJECTS)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)
        using = ObjectReader()
        using.keep_all(list(content))
        kept = {url: bytes(using.view(url)) for url in content}  # type: ignore[arg-type]
    assert kept == content
    assert fetched == [BLOCK_BYTES] * 4 * NUM_OBJECTS
    assert rooms[0].most == most


@pytest.mark.parametrize("damage", ["a bit", "cut short", "longer", "empty", "digest", "no digest"])
def test_a_kept_file_is_compared_before_its_first_byte_is_used(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("x.idx", bytes(range(200)))
        url = f"{bucket.url}/x.idx"

        def read() -> tuple[bytes, int, int]:
            using = ObjectReader()
            using.keep(url)
            found = using.whole(url).tobytes()
            assert using.path_at(url).read_bytes() == found  # type: ignore[union-attr]
            return found, using.stats.gets, using.stats.damaged_files

        assert read() == (bytes(range(200)), 1, 0)
        assert read() == (bytes(range(200)), 0, 0)
        [kept] = (tmp_path / "objects").iterdir()
        [digest] = (tmp_path / "digests").iterdir()
        whole, status = kept.read_bytes(), kept.stat()
        changed = {"a bit": bytes([1]) + whole[1:], "cut short": whole[:50], "longer": whole + b"x", "empty": b""}
        if damage in changed:
            kept.write_bytes(changed[damage])
            os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif damage == "digest":
            digest.write_bytes(digest.read_bytes()[::-1])
        else:
            digest.unlink()
        assert read() == (whole, 1, 1)
        assert f"{kept}: is damaged: it is not what was kept of {url}; it is made or fetched again" in caplog.text
        assert read() == (whole, 0, 0)
        kept.unlink()
        assert read() == (whole, 1, 0)


def test_a_kept_file_is_compared_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("x.idx", bytes(range(200)))
        path = ObjectReader().path_at(f"{bucket.url}/x.idx")
        assert path.read_bytes() == bytes(range(200))
        compared: list[Path] = []
        is_as_kept = lookups.is_as_kept
        monkeypatch.setattr(
            lookups, "is_as_kept", lambda file, what: (compared.append(file), is_as_kept(file, what))[1]
        )
        path = ObjectReader().path_at(f"{bucket.url}/x.idx")
        for _ in range(3):
            assert path.read_bytes() == bytes(range(200))
        assert len(compared) == 1


@pytest.mark.parametrize("number", [1, 3])
def test_ends_are_kept_until_their_object_changes(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later process asks only who the objects are; damaged copies are fetched again."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{index}": bytes(range(index, index + 40)) for index in range(number)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)

        def read() -> tuple[list[bytes], int]:
            using = ObjectReader()
            using.keep_all([], {url: 4 + 20 * index for index, url in enumerate(content)})
            return [using.ends(url, 4 + 20 * index) for index, url in enumerate(content)], using.stats.gets

        def expected() -> list[bytes]:
            sizes = [min(40, 4 + 20 * index) for index in range(number)]
            return [data[:size] + data[-size:] for data, size in zip(content.values(), sizes, strict=True)]

        first, gets = read()
        assert first == expected()
        assert gets >= number
        assert read() == (first, 0)
        [kept] = (tmp_path / "objects").glob("*-ends")
        whole = kept.read_bytes()
        for damaged in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], b""):
            kept.write_bytes(damaged)
            assert read() == (first, gets)
            assert kept.read_bytes() == whole
        content[f"{bucket.url}/0"] = bytes(40)
        bucket.put("0", bytes(40))
        assert read() == (expected(), gets)


def test_without_room_ends_are_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("not a folder")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with memory_bucket() as bucket:
        bucket.put("a", bytes(range(40)))
        for _ in range(2):
            using = ObjectReader()
            using.keep_all([], {f"{bucket.url}/a": 4})
            assert using.ends(f"{bucket.url}/a", 4) == bytes([0, 1, 2, 3, 36, 37, 38, 39])
            assert using.stats.gets == 2
