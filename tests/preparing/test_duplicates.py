"""The first of equal texts is told from the rest: against a Python set, and where the hashes are as bad as can be."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import InputError, StoreError
from headrace.preparing import duplicates
from headrace.preparing.duplicates import HashArray, SeenHashes, hash_texts

MAX = (1 << 64) - 1
EXTREMES = st.sampled_from([0, 1, 2, MAX, MAX - 1, 1 << 63, (1 << 63) - 1, 0x7FF0000000000001])
HALVES = EXTREMES | st.integers(0, MAX)
FEW = st.tuples(st.sampled_from([0, 5, MAX]), st.integers(0, 40) | EXTREMES)


def array(pairs: list[tuple[int, int]]) -> HashArray:
    return np.array(pairs, np.uint64).reshape(-1, 2)


def check(batches: list[HashArray]) -> SeenHashes:
    """Compare with a set, batch by batch."""
    seen = SeenHashes()
    known: set[tuple[int, ...]] = set()
    for batch in batches:
        before = batch.copy()
        wanted = []
        for pair in map(tuple, batch.tolist()):
            wanted.append(pair not in known)
            known.add(pair)
        assert seen.add(batch).tolist() == wanted
        assert np.array_equal(batch, before)
        assert len(seen) == len(known)
        lengths = [len(run) for run in seen._runs]
        assert all(longer >= 8 * shorter for longer, shorter in itertools.pairwise(lengths))
    return seen


@given(batches=st.lists(st.lists(st.tuples(HALVES, HALVES) | FEW, max_size=40), max_size=12))
@settings(max_examples=cases(20, 5000), deadline=None)
def test_as_a_set(batches: list[list[tuple[int, int]]]) -> None:
    check([array(batch) for batch in batches])


@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.integers(0, 700), max_size=12),
    high=st.sampled_from([1, 3, 300, MAX]),
    low=st.sampled_from([0, 1, 50, MAX]),
    chunk=st.sampled_from([1, 7, 64, 1 << 16]),
)
@settings(max_examples=cases(24, 2000), deadline=None)
def test_merges_in_any_pieces(seed: int, sizes: list[int], high: int, low: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_CHUNK", chunk)
        draw = [
            np.stack([rng.integers(0, top, size, np.uint64, endpoint=True) for top in (high, low)], axis=1)
            for size in sizes
        ]
        check(draw)


@pytest.mark.parametrize(
    "columns",
    [
        ([7], [7]),
        ([7], range(6000)),
        ([7], range(6000, 0, -1)),
        (range(6000), [7]),
        (range(6000, 0, -1), [0]),
        ([MAX], range(MAX - 6000, MAX)),
    ],
    ids=["all equal", "equal high", "equal high, falling", "equal low, small high", "falling", "at the end"],
)
def test_hashes_that_are_not_random(columns: tuple[list[int], list[int]]) -> None:
    high, low = columns
    pairs = array(list(itertools.islice(zip(itertools.cycle(high), itertools.cycle(low), strict=False), 6000)))
    check([pairs[at : at + 500] for at in (*range(0, 6000, 500), 0, 3000)])


def test_the_place_behind_the_last_is_not_looked_at() -> None:
    """The hash (5, 5) belongs behind (0, 5), whose last half is 5 as well."""
    check([array([(0, 5)]), array([(5, 5)]), array([(5, 5)])])


def test_memory() -> None:
    rng = np.random.default_rng(0)
    seen = SeenHashes()
    total = 300_000
    for _ in range(30):
        seen.add(rng.integers(0, MAX, (total // 30, 2), np.uint64, endpoint=True))
    assert 16 * total <= seen.num_bytes < 17 * total


@given(texts=st.lists(st.text(max_size=8), max_size=20))
def test_the_hash_of_one_field_is_that_of_its_utf8(texts: list[str]) -> None:
    hashes = hash_texts([texts])
    assert (hashes.shape, hashes.dtype) == ((len(texts), 2), np.uint64)
    found = [high << 64 | low for high, low in hashes.tolist()]
    assert found == [xxhash.xxh3_128_intdigest(text.encode()) for text in texts]


@given(
    st.lists(st.tuples(st.text("ab\0", max_size=3), st.text("ab\0", max_size=3)), min_size=1, max_size=30),
    st.booleans(),
)
def test_several_fields_are_not_mixed_up(rows: list[tuple[str, str]], as_tuples: bool) -> None:
    columns = [[row[0] for row in rows], [row[1] for row in rows]]
    hashes = hash_texts(tuple(map(tuple, columns)) if as_tuples else columns)
    assert hashes.shape == (len(rows), 2)
    assert len(set(map(tuple, hashes.tolist()))) == len(set(rows))


def test_fields_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        hash_texts([["a", "b"], ["c"]])


def test_no_texts() -> None:
    assert hash_texts([[]]).shape == hash_texts([]).shape == (0, 2)
    assert SeenHashes().add(hash_texts([[]])).shape == (0,)


@pytest.mark.parametrize("size", [0, 1, 10, 25])
def test_load(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_LOAD", 10)
    hashes = np.random.default_rng(1).integers(0, MAX, (size + 3, 2), np.uint64, endpoint=True)
    path = tmp_path / "hashes"
    path.write_bytes(hashes.tobytes() + b"torn")
    seen = SeenHashes.load(path, size)
    assert len(seen) == size
    assert seen.add(hashes).tolist() == [False] * size + [True] * 3
    path.write_bytes(hashes.tobytes())
    assert len(SeenHashes.load(path)) == size + 3


def test_load_what_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "hashes"
    with pytest.raises(InputError, match="the hashes cannot be read: No such file"):
        SeenHashes.load(path, 1)
    path.write_bytes(array([(1, 2), (3, 4)]).tobytes()[:-1])
    with pytest.raises(StoreError, match=r"2 hashes of 16 bytes should be there, found 1; the file was cut short"):
        SeenHashes.load(path, 2)
    with pytest.raises(StoreError, match=r"2 hashes of 16 bytes should be there, found 1"):
        SeenHashes.load(path)
    assert len(SeenHashes.load(path, 1)) == 1
    path.write_bytes(array([(1, 2), (3, 4), (1, 2)]).tobytes())
    with pytest.raises(StoreError, match="a hash is there twice"):
        SeenHashes.load(path, 3)
