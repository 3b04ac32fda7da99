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
from headrace.errors import InputError, OutputError, StoreError
from headrace.preparing import duplicates
from headrace.preparing.duplicates import (
    Columns,
    DuplicateFinder,
    FoundDuplicates,
    HashArray,
    SeenHashes,
    duplicates_path,
    hash_texts,
    parts_of,
    read_part,
    write_hashes,
    write_parts,
)
from headrace.preparing.messages import FindTask

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
    assert hash_texts([]).shape == (0, 2)


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
    with pytest.raises(InputError, match="cannot"):
        SeenHashes.load(path, 1)
    path.write_bytes(array([(1, 2), (3, 4)]).tobytes()[:-1])
    with pytest.raises(StoreError, match=r"2.*16.*should"):
        SeenHashes.load(path, 2)
    with pytest.raises(StoreError, match=r"2.*16.*should"):
        SeenHashes.load(path)
    assert len(SeenHashes.load(path, 1)) == 1
    path.write_bytes(array([(1, 2), (3, 4), (1, 2)]).tobytes())
    with pytest.raises(StoreError, match="twice"):
        SeenHashes.load(path, 3)


# What tasks find in ranges of hashes, and the files in which they are.


def find(folder: Path, pieces: list[HashArray], num_ranges: int) -> tuple[FoundDuplicates, list[str], list[int]]:
    """What is found; the names of the files of hashes; and the bytes that each task has loaded."""
    names = []
    for number, hashes in enumerate(pieces):
        names.append(f"{number}.0.hashes")
        write_hashes(folder / names[-1], num_ranges, hashes)
    finder = DuplicateFinder(str(folder), [folder / name for name in names])
    loaded = [finder.run(FindTask(number)).read(tuple[int, int, int])[0] for number in range(num_ranges)]
    ranges = [duplicates_path(folder, number) for number in range(num_ranges)]
    return FoundDuplicates(ranges, names), names, loaded


@settings(deadline=None, max_examples=cases(20, 200))
@given(data=st.data(), seed=st.integers(0, 1 << 30), bits=st.integers(0, 3), block=st.integers(1, 4))
def test_as_one_process_that_remembers_all(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, seed: int, bits: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("hashes")
    rng = np.random.default_rng(seed)
    high = rng.integers(0, 1 << 64, 6, np.uint64)  # texts that differ in one half of the hash alone, too
    low = rng.integers(0, 1 << 64, 3, np.uint64)
    sizes = data.draw(st.lists(st.integers(1, 12), max_size=12))
    pieces = [np.stack((rng.choice(high, size), rng.choice(low, size)), axis=1) for size in sizes]
    seen = SeenHashes()
    wanted = [seen.add(hashes).tolist() for hashes in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "BLOCK_PIECES", block)
        found, names, _ = find(folder, pieces, 1 << bits)
        order = data.draw(st.permutations(range(len(pieces))))  # a run that goes on begins in the middle
        got = {number: found.is_new(names[number], pieces[number]).tolist() for number in order}
    assert [got[number] for number in range(len(pieces))] == wanted


def test_a_task_loads_the_hashes_of_its_range(tmp_path: Path) -> None:
    """However often a text comes again within a piece."""
    rng = np.random.default_rng(1)
    pieces = [rng.integers(0, 1 << 64, (500, 2), np.uint64) for _ in range(8)]
    pieces = [np.concatenate((hashes, np.repeat(hashes[:1], 5000, axis=0))) for hashes in pieces]
    found, names, loaded = find(tmp_path, pieces, 16)
    total = 8 * 500
    assert max(loaded) < 2 * total / 16 * 24, "24 bytes for each"
    assert sum(loaded) == total * 24
    assert np.count_nonzero(found.is_new(names[7], pieces[7])) == 500


def drawn(seed: int, count: int) -> Columns:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(0, 1 << 64, count, np.uint64))
    return np.stack((keys, *rng.integers(0, 1 << 64, (2, count), np.uint64)))


@settings(deadline=None, max_examples=cases(20, 200))
@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 60), bits=st.integers(0, 6))
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, bits: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "1.0.parts"
    wanted, num_parts = drawn(seed, count), 1 << bits
    parts = parts_of(wanted[0], num_parts)
    write_parts(path, num_parts, parts, wanted)
    found = [read_part(path, part, 3) for part in range(num_parts)]
    assert [columns.shape[1] for columns in found] == np.bincount(parts, minlength=num_parts).tolist()
    assert np.array_equal(np.concatenate(found, axis=1), wanted)
    assert path.stat().st_size == 8 * (num_parts + 1) + sum(8 + columns.nbytes for columns in found)
    assert [name.name for name in path.parent.iterdir()] == [path.name]


def read_all(path: Path, num_parts: int) -> int:
    return sum(read_part(path, part, 3).shape[1] for part in range(num_parts))


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    path, written = tmp_path / "1.0.parts", drawn(3, 12)
    write_parts(path, 4, parts_of(written[0], 4), written)
    data = path.read_bytes()
    assert read_all(path, 4) == 12
    flipped = [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(len(data))]
    for damaged in [*flipped, *(data[:end] for end in range(len(data)))]:
        path.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"1\.0\.parts.*--restart"):
            read_all(path, 4)
    path.write_bytes(bytes(len(data)))  # as after a loss of power
    with pytest.raises(OutputError, match=r"1\.0\.parts"):
        read_part(path, 2, 3)
    path.unlink()
    with pytest.raises(OutputError, match=r"1\.0\.parts"):
        read_part(path, 2, 3)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"1\.0\.parts"):
        write_parts(tmp_path / "none" / "1.0.parts", 1, np.zeros(3, np.int64), drawn(1, 3))
