"""Objects as files, and whole objects that are created, uploaded and removed, in a store in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given, settings, strategies as st
from obstore.store import LocalStore

import headrace
from counts import cases
from headrace.errors import OutputError, StoreError
from headrace.io.objects import client, writer
from headrace.io.objects.lookups import Objects
from headrace.io.objects.reader import ObjectFile
from headrace.io.objects.writer import ObjectWriter, part_bytes
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

    @settings(max_examples=cases(20, 300), deadline=None)
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
