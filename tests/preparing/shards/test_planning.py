"""Keys, duplicates, order and cuts: pure, and held against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.preparing.shards.listing import BadNameError, checked_key, image_part, numbered
from headrace.preparing.shards.messages import FoundPart, FoundSample
from headrace.preparing.shards.options import ShardOutput
from headrace.preparing.shards.planning import (
    BAD,
    DUPLICATE,
    GOOD,
    Gathered,
    cut,
    cut_shards,
    output_order,
    split_ends,
)
from headrace.stores.tar.members import sample_part
from headrace.stores.tar.writer import member_bytes


def plain_cut(sizes: list[int], max_samples: int | None, max_bytes: int | None) -> list[int]:
    ends, held, held_bytes = [], 0, 0
    for number, size in enumerate(sizes):
        is_full = max_samples is not None and held >= max_samples
        if held and (is_full or (max_bytes is not None and held_bytes + size > max_bytes)):
            ends.append(number)
            held, held_bytes = 0, 0
        held, held_bytes = held + 1, held_bytes + size
    return [*ends, len(sizes)] if sizes else []


@given(
    st.lists(st.integers(1, 50), max_size=60),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 120),
    st.integers(0, 5),
)
def test_shards_are_as_full_as_they_may_be(
    sizes: list[int], max_samples: int | None, max_bytes: int | None, begin: int
) -> None:
    found = cut(np.array(sizes, np.int64), begin, max_samples=max_samples, max_bytes=max_bytes)
    assert found == [begin + end for end in plain_cut(sizes, max_samples, max_bytes)]


@given(st.integers(0, 10**12), st.lists(st.integers(0, 1000) | st.sampled_from([0.1, 0.7]), min_size=1, max_size=3))
def test_splits_take_all(num_samples: int, shares: list[float]) -> None:
    if not sum(shares):
        return
    ends = split_ends(num_samples, shares)
    assert ends[-1] == num_samples
    assert ends == sorted(ends)
    for share, begin, end in zip(shares, [0, *ends], ends, strict=False):
        assert abs((end - begin) - num_samples * share / sum(shares)) <= 1 + num_samples * 1e-12


def test_a_plan() -> None:
    sizes = np.full(10, 4, np.int64)
    plan = cut_shards(sizes, ShardOutput(samples_per_shard=None, shard_bytes=10, split_ratio=(8, 1, 1)))
    assert plan.bounds == (0, 2, 4, 6, 8, 9, 10)
    assert plan.splits == {"train": (0, 4), "val": (4, 5), "test": (5, 6)}
    plan = cut_shards(sizes, ShardOutput(samples_per_shard=7, shard_bytes=None))
    assert plan.bounds == (0, 7, 10)
    assert plan.splits == {"train": (0, 2), "val": (2, 2), "test": (2, 2)}
    plan = cut_shards(sizes[:1], ShardOutput(split_ratio=(1, 1)))
    assert plan.splits == {"train": (0, 0), "val": (0, 1), "test": (1, 1)}


KEYS = st.sampled_from(["a", "b", "c", "d", "", "bad"])


@given(st.lists(KEYS, max_size=30))
def test_first_of_a_key_stays(keys: list[str]) -> None:
    gathered = Gathered()
    wanted, seen = [], {}
    for number, key in enumerate(keys):
        is_bad = key == "bad"
        parts = (FoundPart("jpg", 700), FoundPart("txt", 3, 0, "x/y"))
        gathered.add(FoundSample(number, "" if is_bad else key, parts, "broken" if is_bad else ""))
        name = key or numbered(number)
        wanted.append(BAD if is_bad else DUPLICATE if name in seen else GOOD)
        if not is_bad:
            seen.setdefault(name, number)
    fates, firsts = gathered.fates()
    assert fates.tolist() == wanted
    for number, (key, fate) in enumerate(zip(keys, wanted, strict=True)):
        assert firsts[number] == (seen[key or numbered(number)] if fate == DUPLICATE else number)
    sizes = [
        0 if key == "bad" else sum(member_bytes(f"{key or numbered(at)}.{part}", size) for part, size in PARTS)
        for at, key in enumerate(keys)
    ]
    assert gathered.tar_bytes.tolist() == sizes
    assert gathered.content_bytes.tolist() == [703] * len(keys)


PARTS = (("jpg", 700), ("txt", 3))


def test_order_is_a_permutation() -> None:
    kept = np.array([1, 2, 5, 6, 9])
    assert output_order(kept, None) is kept
    orders = {tuple(output_order(kept, seed).tolist()) for seed in range(30)}
    assert len(orders) > 20
    assert {tuple(sorted(order)) for order in orders} == {tuple(kept)}
    assert output_order(np.zeros(0, np.int64), 1).tolist() == []


@given(st.text(st.characters(codec="utf-8"), max_size=12) | st.from_regex(r"[a_./\\-]{0,8}", fullmatch=True))
def test_keys_are_read_back(text: str) -> None:
    for dots in ("error", "replace"):
        try:
            key = checked_key(text, dots)
        except BadNameError:
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
    with pytest.raises(BadNameError, match=message):
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
