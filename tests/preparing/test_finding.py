"""What tasks find in ranges of hashes is what one process finds that remembers all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.preparing import duplicates
from headrace.preparing.duplicates import (
    DuplicateFinder,
    FoundDuplicates,
    HashArray,
    SeenHashes,
    duplicates_path,
    write_hashes,
)
from headrace.preparing.messages import FindTask


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
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
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


def test_nothing_was_kept(tmp_path: Path) -> None:
    found, names, loaded = find(tmp_path, [], 2)
    assert (names, loaded) == ([], [0, 0])
    assert found._pieces.size == 0
