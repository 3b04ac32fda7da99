"""Objects as files, and whole objects that are created, uploaded and removed, in a store in memory."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given, settings, strategies as st
from obstore.store import LocalStore

import headrace
from counts import PATIENCE_S, cases
from headrace.errors import OutputError, StoreError
from headrace.io import ObjectReader
from headrace.io.objects import client, lookups, reader, writer
from headrace.io.objects.lookups import ObjectPart, Objects
from headrace.io.objects.reader import ObjectFile
from headrace.io.objects.writer import ObjectWriter, part_bytes
from headrace.io.remote import Status
from memory_stores import MemoryBucket, memory_bucket

CONTENT = np.random.default_rng(1).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()


@pytest.fixture(scope="module")
def bucket() -> Iterator[MemoryBucket]:
    with memory_bucket() as made:
        made.put("content", CONTENT)
        yield made


@pytest.mark.parametrize("in_order", [True, False])
def test_an_object_as_a_file(bucket: MemoryBucket, in_order: bool) -> None:
    url = f"{bucket.url}/content"
    expected = Objects().known(url)

    @settings(max_examples=cases(12, 300), deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, len(CONTENT) + 9), st.integers(0, 900_000)), min_size=1, max_size=6),
        st.none() | st.integers(0, len(CONTENT) + 9),
    )
    def check(reads: list[tuple[int, int]], end: int | None) -> None:
        ours, wanted = ObjectFile(url, expected, end=end, in_order=in_order), io.BytesIO(CONTENT)
        for offset, count in reads:
            assert ours.seek(offset) == wanted.seek(offset)
            assert ours.read(count) == wanted.read(count)
            assert ours.read(7) == wanted.read(7)
            assert ours.tell() == wanted.tell()
        assert ours.seek(-5, io.SEEK_END) == len(CONTENT) - 5
        assert ours.read() == CONTENT[-5:]

    check()


def test_an_object_that_is_read_in_order_takes_few_gets(bucket: MemoryBucket) -> None:
    url = f"{bucket.url}/content"
    file = ObjectFile(url, Objects().known(url))
    while file.read(1000):
        pass
    assert file._objects.stats.gets == 4  # 256 KiB, 512 KiB, 1 MiB, and the rest
    assert file._objects.stats.bytes == len(CONTENT)
    assert file._objects.stats.heads == 0
    short = ObjectFile(url, Objects().known(url), end=1000)
    assert short.read(1000) == CONTENT[:1000]
    assert short._objects.stats.bytes == 1000


def test_an_object_that_changed_is_named(bucket: MemoryBucket) -> None:
    url = f"{bucket.url}/changing"
    bucket.put("changing", b"before")
    file = ObjectFile(url, Objects().known(url))
    bucket.put("changing", b"after!")
    with pytest.raises(StoreError, match="changing"):
        file.read(3)


@given(st.integers(0, 50 << 40))
def test_parts(size: int) -> None:
    found = part_bytes(size)
    assert (found == 0) == (size < writer.WHOLE_BYTES)
    if found:
        assert found >= writer.PART_BYTES
        assert -(-size // found) <= writer.MAX_PARTS
        assert found == writer.PART_BYTES or size > found // 2 * writer.MAX_PARTS


def test_an_object_is_created_once(bucket: MemoryBucket) -> None:
    ours, url = ObjectWriter(), f"{bucket.url}/once"
    assert ours.read(url) is None
    assert ours.create(url, b"first") is None
    assert ours.create(url, b"first") is None, "the same content, whoever wrote it"
    assert ours.create(url, b"second") == b"first"
    assert ours.read(url) == b"first"
    assert ours.create(f"{url}-empty", b"") is None
    assert ours.read(f"{url}-empty") == b""
    ours.delete([url, f"{url}-empty"])
    assert ours.read(url) is None
    assert (ours.stats.puts, ours.stats.deletes, ours.stats.sent_bytes) == (4, 1, 5)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_objects_that_are_not_there_do_not_keep_others(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder fails, as GCS does, where there is nothing to remove."""
    store = LocalStore(tmp_path)
    monkeypatch.setattr("headrace.io.objects.client.connect", lambda root, scheme, storage, retries=None: store)
    url = f"{scheme}://{tmp_path.name}"
    ours, there = ObjectWriter(), {f"{url}/{number}": b"content" for number in range(30)}
    ours.put(there)
    ours.delete([f"{url}/missing", *there, f"{url}/missing too"])
    assert ours.statuses(url) == {}
    assert (ours.stats.deletes, ours.stats.retries) == (32, 0)


def test_time_for_which_the_process_was_stopped_does_not_count(
    bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, took = 1.0, [1000.0]
    whole: Any = obstore.put_async

    async def put_async(*args: Any, **options: Any) -> Any:
        nonlocal now
        if not took:
            return await whole(*args, **options)
        now += took.pop()
        raise ConnectionError("the server has closed the connection meanwhile")

    monkeypatch.setattr(client, "monotonic", lambda: now)
    monkeypatch.setattr(obstore, "put_async", put_async)
    ours = ObjectWriter(policy=headrace.io.FetchPolicy(first_delay_s=0.001))
    ours.put({f"{bucket.url}/stopped": b"content"})
    assert (ours.stats.puts, ours.stats.retries) == (2, 1)
    # As long as it is not stopped, an attempt takes no more than 30 s, and the last one what is left.
    took += [29.0] * 99
    with pytest.raises(OutputError, match=r"6.*150.*150"):
        ours.put({f"{bucket.url}/away": b"content"})


def test_an_object_that_another_is_about_to_create(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores answer with a conflict before the other's object can be seen."""
    bucket.put("conflict", b"other")
    seen: list[bytes | None] = [None, None, b"other"]
    monkeypatch.setattr(ObjectWriter, "read", lambda self, url: seen.pop(0))
    policy = headrace.io.FetchPolicy(first_delay_s=0.001)
    assert ObjectWriter(policy=policy).create(f"{bucket.url}/conflict", b"mine") == b"other"
    seen += [None] * 8
    with pytest.raises(OutputError, match=r"conflict.*8"):
        ObjectWriter(policy=policy).create(f"{bucket.url}/conflict", b"mine")


def test_files_are_uploaded_whole_and_in_parts(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(writer, "PART_BYTES", 1 << 19)
    (tmp_path / "large").write_bytes(CONTENT)
    (tmp_path / "small").write_bytes(CONTENT[:1000])
    ours = ObjectWriter()
    folder = f"{bucket.url}/uploaded"
    ours.put_files({f"{folder}/a/large": tmp_path / "large", f"{folder}/small": tmp_path / "small"})
    found = {name: status.size for name, status in ours.statuses(folder).items()}
    assert found == {"a/large": len(CONTENT), "small": 1000}
    assert ours.read(f"{folder}/a/large") == CONTENT
    assert (ours.stats.puts, ours.stats.uploads, ours.stats.sent_bytes) == (1, 1, len(CONTENT) + 1000)
    ours.put_files({f"{folder}/small": tmp_path / "large"})
    assert ours.read(f"{folder}/small") == CONTENT, "a file replaces what was there"


def test_a_file_that_vanished_is_named(bucket: MemoryBucket, tmp_path: Path) -> None:
    with pytest.raises((OutputError, OSError), match="vanished"):
        ObjectWriter().put_files({f"{bucket.url}/x": tmp_path / "vanished"})


def test_what_is_sent_whole_has_time_for_its_size(bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[client.FetchPolicy] = []

    def noted(request: client.FetchRequest) -> Any:
        policies.append(request.policy)
        return client.submit(request)

    monkeypatch.setattr(writer, "submit", noted)
    monkeypatch.setattr(writer, "PART_BYTES", 10)
    usual = client.FetchPolicy(attempt_s=7, deadline_s=70)
    ObjectWriter(policy=usual).put({f"{bucket.url}/long": b"x" * 25, f"{bucket.url}/empty": b""})
    assert [(policy.attempt_s, policy.deadline_s) for policy in policies] == [(21, 210), (7, 70)]


# Many objects that are fetched whole and kept: all of their bytes, and few of them in memory at once.


def test_few_bytes_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects of one block, 4 at a time; of larger ones 2, of each of which 40 bytes are in memory at once."""
    sizes = [10] * 8 + [80] * 8
    fetch_whole = Objects._fetch_whole
    together = {10: threading.Barrier(4), 80: threading.Barrier(2)}
    now: dict[int, int] = {}
    most: list[int] = []
    under_way: list[int] = []
    in_turn = Objects.in_turn

    def watched(self: Objects, url: str, status: Status, file: Path) -> Path:
        now[threading.get_ident()] = min(status.size, 40)
        most.append(sum(now.values()))
        together[status.size].wait(PATIENCE_S)
        try:
            return fetch_whole(self, url, status, file)
        finally:
            together[status.size].wait(PATIENCE_S)
            del now[threading.get_ident()]
            together[status.size].wait(PATIENCE_S)

    def counted(self: Objects, parts: Iterable[ObjectPart]) -> Iterator[memoryview]:
        num_asked = num_yielded = 0

        def asked() -> Iterator[ObjectPart]:
            nonlocal num_asked
            for part in parts:
                # The next one waits for room, in addition to those that are under way.
                under_way.append(num_asked - num_yielded)
                num_asked += part.end - part.begin
                yield part

        for data in in_turn(self, asked()):
            num_yielded += len(data)
            yield data

    monkeypatch.setattr(lookups, "BLOCK_BYTES", 20)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 20)
    monkeypatch.setattr(lookups, "AHEAD_BYTES", 40)
    monkeypatch.setattr(reader, "_AT_ONCE", 4)
    monkeypatch.setattr(reader, "_LARGE_AT_ONCE", 2)
    monkeypatch.setattr(Objects, "_fetch_whole", watched)
    monkeypatch.setattr(Objects, "in_turn", counted)
    with memory_bucket() as bucket:
        content = {f"{bucket.url}/{number}": bytes([number] * size) for number, size in enumerate(sizes)}
        for url, data in content.items():
            bucket.put(url.rpartition("/")[2], data)
        using = ObjectReader()
        using.keep_all(list(content))
        kept = {url: bytes(using.view(url)) for url in content}  # type: ignore[arg-type]
        assert using.stats.gets == 8 + 8 * 4
    assert kept == content
    assert max(most) == 80
    assert max(under_way) == 40


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
