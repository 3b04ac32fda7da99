"""Keys, duplicates, order and cuts: pure, and held against plain loops."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.preparing.shards.listing import BadEntryError, checked_key, image_part, numbered
from headrace.preparing.shards.options import ShardOutput
from headrace.preparing.shards.plan import (
    FEW_SAMPLES,
    HASH_BITS,
    SampleList,
    key_hash,
    num_shards,
    split_borders,
)
from headrace.stores.tar.members import sample_part
from headrace.stores.writer import ShardFilling


def plain_cut(items: list[tuple[int, int]], max_samples: int | None, max_bytes: int | None) -> list[int]:
    ends, held, held_bytes = [], 0, 0
    for number, (size, count) in enumerate(items):
        is_full = max_samples is not None and held + count > max_samples
        if held and (is_full or (max_bytes is not None and held_bytes + size > max_bytes)):
            ends.append(number)
            held, held_bytes = 0, 0
        held, held_bytes = held + count, held_bytes + size
    return [*ends, len(items)] if items else []


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 3)), max_size=60),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 120),
)
def test_shards_are_as_full_as_they_may_be(
    items: list[tuple[int, int]], max_samples: int | None, max_bytes: int | None
) -> None:
    sizes, counts = np.array(items, np.int64).reshape(-1, 2).T
    found = [last for _, last, _ in ShardFilling().cut(sizes, max_bytes, max_samples, counts)]
    assert found == plain_cut(items, max_samples, max_bytes)


@pytest.mark.parametrize(
    ("limits", "wanted"), [((None, None), 1), ((10, None), 3), ((None, 2), 4), ((10, 2), 4), ((99, 99), 1)]
)
def test_shards_of_a_task(limits: tuple[int | None, int | None], wanted: int) -> None:
    shard_bytes, samples = limits
    assert num_shards(25, 7, ShardOutput(shard_bytes=shard_bytes, samples_per_shard=samples)) == wanted


@given(
    st.integers(0, 3 * FEW_SAMPLES),
    st.lists(st.integers(0, 1000) | st.sampled_from([0.1, 0.7]), min_size=1, max_size=3),
)
def test_splits_take_all(num_samples: int, shares: list[float]) -> None:
    if not sum(shares):
        return
    hashes = np.array([key_hash(f"k{number}") for number in range(num_samples)], np.uint64)
    borders = split_borders(hashes, shares)
    assert list(borders) == sorted(borders)
    assert all(0 <= border <= 1 << HASH_BITS for border in borders)
    parts = np.searchsorted(np.array(borders, np.uint64), hashes, side="right")
    counts = np.bincount(parts, minlength=len(shares)).tolist()
    few = num_samples < FEW_SAMPLES
    for share, count in zip(shares, counts, strict=True):
        wanted = num_samples * share / sum(shares)
        assert abs(count - wanted) <= (3 if few else 5 * num_samples**0.5)
        assert count or not share or not few or num_samples < sum(map(bool, shares)), "no part is empty"
        assert share or not count


def test_splits_are_stable() -> None:
    """Samples stay in their part when others come."""
    hashes = np.array([key_hash(f"k{number}") for number in range(2 * FEW_SAMPLES)], np.uint64)
    assert split_borders(hashes, (8, 1, 1)) == split_borders(hashes[:FEW_SAMPLES], (8, 1, 1))
    assert split_borders(hashes[:10], (8, 1, 1)) != split_borders(hashes[:FEW_SAMPLES], (8, 1, 1))


KEYS = st.sampled_from(["a", "b", "c", "d", "", "bad"])


@given(st.lists(KEYS, max_size=30))
def test_first_of_a_key_stays(keys: list[str]) -> None:
    listed = SampleList(io.BytesIO())  # type: ignore[arg-type]
    wanted: list[int] = []
    seen: dict[str, int] = {}
    for number, key in enumerate(keys):
        is_bad = key == "bad"
        name = key or numbered(number)
        listed.add_sample(name, is_bad=is_bad)
        wanted.append(-1 if is_bad else seen.setdefault(name, number))
    is_new, twice = listed.new()
    assert is_new.tolist() == [first == number for number, first in enumerate(wanted)]
    assert twice.tolist() == [number for number, first in enumerate(wanted) if -1 < first < number]
    assert [listed.first_like(number) for number in twice.tolist()] == [wanted[number] for number in twice.tolist()]


@given(st.text(st.characters(codec="utf-8"), max_size=12) | st.from_regex(r"[a_./\\-]{0,8}", fullmatch=True))
def test_keys_are_read_back(text: str) -> None:
    for dots in ("error", "replace"):
        try:
            key = checked_key(text, dots)
        except BadEntryError:
            continue
        assert sample_part(f"{key}.jpg") == (key, "jpg")
        assert ".." not in key.split("/")
        assert dots == "replace" or key == text


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a.b", "--key-dots"),
        (".a", "--key-dots"),
        ("../a", "plain"),
        ("/a", "plain"),
        ("a//b", "plain"),
        ("a/", "plain"),
        ("a\udc80", "UTF-8"),
        ("__meta__/a", "__"),
    ],
)
def test_names_that_cannot_be_keys(key: str, message: str) -> None:
    assert checked_key("a\nb/c\nd", "error") == "a\nb/c\nd"
    with pytest.raises(BadEntryError, match=message):
        checked_key(key, "error")


def test_images_by_their_first_bytes() -> None:
    heads = {
        b"\xff\xd8\xff\xe0": "jpg",
        b"\x89PNG\r\n\x1a\n": "png",
        b"RIFF\x00\x00\x00\x00WEBPVP8 ": "webp",
        b"GIF89a": "gif",
        b"text": None,
        b"": None,
    }
    assert {head: image_part(head) for head in heads} == heads
