"""Parts of many objects, which are fetched ahead: in their order, and never more of them than allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from headrace.errors import StoreError
from headrace.io.objects import lookups
from headrace.io.objects.lookups import ObjectPart, Objects, parts_of
from headrace.io.remote import Status
from memory_stores import MemoryBucket, memory_bucket

AHEAD, AHEAD_BYTES, BLOCK_BYTES = 4, 100, 40


@pytest.fixture(scope="module")
def bucket() -> Iterator[MemoryBucket]:
    with memory_bucket() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "AHEAD", AHEAD)
        patch.setattr(lookups, "AHEAD_BYTES", AHEAD_BYTES)
        patch.setattr(lookups, "BLOCK_BYTES", BLOCK_BYTES)
        for size in range(130):
            made.put(f"{size}", bytes(range(size)))
        yield made


def status(bucket: MemoryBucket, size: int) -> Status:
    found = Objects().status(f"{bucket.url}/{size}")
    assert found is not None
    return found


@given(sizes=st.lists(st.integers(0, 129), max_size=12))
def test_parts_come_in_order_and_few_ahead(bucket: MemoryBucket, sizes: list[int]) -> None:
    asked: list[ObjectPart] = []
    num_yielded = 0

    def parts() -> Iterator[ObjectPart]:
        for size in sizes:
            for part in parts_of(f"{bucket.url}/{size}", status(bucket, size)):
                under_way = [*asked[num_yielded:], part]
                # The next part may wait for room, in addition to those that are under way.
                assert len(under_way) <= AHEAD + 1
                assert sum(one.end - one.begin for one in under_way[:-1]) <= AHEAD_BYTES
                asked.append(part)
                yield part

    found = []
    for data in Objects().in_turn(parts()):
        found.append(bytes(data))
        num_yielded += 1
    assert b"".join(found) == b"".join(bytes(range(size)) for size in sizes)
    assert all(0 < len(data) <= BLOCK_BYTES for data in found)


def test_an_object_that_is_another_one(bucket: MemoryBucket) -> None:
    parts = [
        ObjectPart(f"{bucket.url}/7", status(bucket, 7), 0, 7),
        ObjectPart(f"{bucket.url}/9", Status(9, "other", 0), 0, 9),
    ]
    found = Objects().in_turn(parts)
    assert bytes(next(found)) == bytes(range(7))
    with pytest.raises(StoreError, match="/9"):
        next(found)
