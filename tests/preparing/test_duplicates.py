"""The first of equal texts is told from the rest: against a Python set, and where the hashes are as bad as can be."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

import headrace
from counts import cases
from headrace.errors import OutputError, StoreError
from headrace.io import reader
from headrace.preparing import FilterSpec, PrepareOptions, TokenOptions, duplicates
from headrace.preparing.duplicates import (
    Columns,
    FoundDuplicates,
    HashArray,
    duplicates_path,
    find_duplicates,
    hash_texts,
    ranges_of,
    read_range,
    write_hashes,
    write_ranges,
)
from headrace.preparing.run_plan import FindTask

MAX = (1 << 64) - 1
EXTREMES = st.sampled_from([0, 1, 2, MAX, MAX - 1, 1 << 63, (1 << 63) - 1, 0x7FF0000000000001])
HALVES = EXTREMES | st.integers(0, MAX)
FEW = st.tuples(st.sampled_from([0, 5, MAX]), st.integers(0, 40) | EXTREMES)


def array(pairs: list[tuple[int, int]]) -> HashArray:
    return np.array(pairs, np.uint64).reshape(-1, 2)


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


def plainly(parts: list[HashArray]) -> list[list[bool]]:
    """Whether each document is new, by a set."""
    known: set[tuple[int, ...]] = set()
    found = []
    for hashes in parts:
        is_new = []
        for pair in map(tuple, hashes.tolist()):
            is_new.append(pair not in known)
            known.add(pair)
        found.append(is_new)
    return found


def find(folder: Path, parts: list[HashArray], num_ranges: int) -> tuple[FoundDuplicates, list[int]]:
    """What is found, and the bytes that each task has loaded."""
    names = []
    for number, hashes in enumerate(parts):
        names.append(str(folder / f"{number}.hashes"))
        write_hashes(Path(names[-1]), num_ranges, hashes)
    using = reader("pread")
    found = [find_duplicates(str(folder), names, using, FindTask(number)) for number in range(num_ranges)]
    loaded = [one.counts["bytes"] for one in found]
    return FoundDuplicates([str(duplicates_path(folder, number)) for number in range(num_ranges)], using), loaded


PARTS = st.lists(st.lists(st.tuples(HALVES, HALVES) | FEW, min_size=1, max_size=40), max_size=12)


@settings(deadline=None, max_examples=cases(12, 2000))
@given(data=st.data(), drawn=PARTS, bits=st.integers(0, 3), block=st.integers(1, 4))
def test_as_a_set(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    drawn: list[list[tuple[int, int]]],
    bits: int,
    block: int,
) -> None:
    """Also of hashes that differ in one half alone, and in whatever order the parts are asked for."""
    parts = [array(pairs) for pairs in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "BLOCK_PARTS", block)
        found, _ = find(tmp_path_factory.mktemp("hashes"), parts, 1 << bits)
        order = data.draw(st.permutations(range(len(parts))))
        got = {number: found.is_new(number, parts[number]).tolist() for number in order}
    assert [got[number] for number in range(len(parts))] == plainly(parts)


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
def test_hashes_that_are_not_random(tmp_path: Path, columns: tuple[list[int], list[int]]) -> None:
    high, low = columns
    pairs = array(list(itertools.islice(zip(itertools.cycle(high), itertools.cycle(low), strict=False), 6000)))
    parts = [pairs[at : at + 500] for at in (*range(0, 6000, 500), 0, 3000)]
    found, _ = find(tmp_path, parts, 4)
    assert [found.is_new(number, hashes).tolist() for number, hashes in enumerate(parts)] == plainly(parts)


def test_a_task_loads_the_hashes_of_its_range(tmp_path: Path) -> None:
    """However often a text comes again within a part."""
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 1 << 64, (500, 2), np.uint64) for _ in range(8)]
    parts = [np.concatenate((hashes, np.repeat(hashes[:1], 5000, axis=0))) for hashes in parts]
    found, loaded = find(tmp_path, parts, 16)
    total = 8 * 500
    assert max(loaded) < 2 * total / 16 * 24, "24 bytes for each"
    assert sum(loaded) == total * 24
    assert np.count_nonzero(found.is_new(7, parts[7])) == 500


def drawn(seed: int, count: int) -> Columns:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(0, 1 << 64, count, np.uint64))
    return np.stack((keys, *rng.integers(0, 1 << 64, (2, count), np.uint64)))


@settings(deadline=None, max_examples=cases(12, 200))
@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 60), bits=st.integers(0, 6))
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, bits: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "1.ranges"
    wanted, num_ranges = drawn(seed, count), 1 << bits
    parts = ranges_of(wanted[0], num_ranges)
    write_ranges(path, num_ranges, parts, wanted)
    found = [read_range(reader("pread"), str(path), number, 3) for number in range(num_ranges)]
    assert [columns.shape[1] for columns in found] == np.bincount(parts, minlength=num_ranges).tolist()
    assert np.array_equal(np.concatenate(found, axis=1), wanted)
    assert path.stat().st_size == 8 * (num_ranges + 1) + sum(8 + columns.nbytes for columns in found)


def read_all(path: Path, num_ranges: int) -> int:
    using = reader("pread")
    return sum(read_range(using, str(path), number, 3).shape[1] for number in range(num_ranges))


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    path, written = tmp_path / "1.ranges", drawn(3, 12)
    write_ranges(path, 4, ranges_of(written[0], 4), written)
    data = path.read_bytes()
    assert read_all(path, 4) == 12
    flipped = [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(len(data))]
    for damaged in [*flipped, *(data[:end] for end in range(len(data)))]:
        path.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"1\.ranges.*--restart"):
            read_all(path, 4)
    path.write_bytes(bytes(len(data)))  # as after a loss of power
    with pytest.raises(OutputError, match=r"1\.ranges"):
        read_range(reader("pread"), str(path), 2, 3)
    path.unlink()
    with pytest.raises(StoreError, match=r"1\.ranges"):
        read_range(reader("pread"), str(path), 2, 3)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"1\.ranges"):
        write_ranges(tmp_path / "none" / "1.ranges", 1, np.zeros(3, np.int64), drawn(1, 3))


def test_a_part_without_documents_has_no_hashes(kit: Any, tmp_path: Path) -> None:
    """The parts behind it are told apart by the places of their files of hashes."""
    texts = [f"text {number} of a few words" for number in range(12)]
    (tmp_path / "in").mkdir()
    kit.write(tmp_path / "in" / "a.jsonl", [{"text": "x"}] * 9)
    kit.write(tmp_path / "in" / "b.jsonl", [{"text": text} for text in texts])
    kit.write(tmp_path / "in" / "c.jsonl", [{"text": text} for text in ["new one", *texts[:5], "new two"]])
    options = PrepareOptions(
        tokens=TokenOptions(backend="tokenizers"), filters=FilterSpec(min_chars=2), deduplicate=True, task_bytes=150
    )
    manifest = kit.prepare([tmp_path / "in"], tmp_path / "out", options=options)
    assert manifest.ledger.documents.dropped == {"duplicate": 5, "min_chars": 9}
    tokenizer = Tokenizer.from_file(str(kit.tokenizer))
    wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in [*texts, "new one", "new two"]]
    store = headrace.open(tmp_path / "out")
    assert [store.document(number).tolist() for number in range(len(store))] == wanted
