"""``IndexedDataset``: Megatron's names; each fault of Megatron's reader has a test that ours does not have it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.compat.megatron.indexed_dataset import IndexedDataset
from headrace.errors import ConfigError, StoreError
from token_shards import write_raw

GOLDEN = Path(__file__).parents[2] / "golden"
SEQUENCES = [[1, 2, 3], [4, 5], [6, 7], [], [8, 9]]


@pytest.fixture(params=[True, False], ids=["mapped", "read"])
def dataset(request: pytest.FixtureRequest) -> IndexedDataset:
    return IndexedDataset(str(GOLDEN / "indexed" / "uint16"), mmap=request.param)


def test_items(dataset: IndexedDataset) -> None:
    assert len(dataset) == 5
    assert [dataset[number].tolist() for number in range(5)] == SEQUENCES
    assert [dataset[number - 5].tolist() for number in range(5)] == SEQUENCES
    assert [item.tolist() for item in dataset] == SEQUENCES
    item = dataset[np.int64(1)]  # type: ignore[index]
    assert (item.dtype, item.flags.writeable) == (np.uint16, False)
    assert dataset.dtype == np.uint16
    for wrong in (5, -6, 2**63):
        with pytest.raises(IndexError, match=rf"{wrong}.*5"):
            dataset[wrong]
    for word in ("1", 1.0, None, [1]):
        with pytest.raises(TypeError):
            dataset[word]  # type: ignore[index]


def test_what_the_index_says(dataset: IndexedDataset) -> None:
    assert (dataset.sequence_lengths.dtype, dataset.sequence_lengths.tolist()) == (np.int32, [3, 2, 2, 0, 2])
    assert (dataset.document_indices.dtype, dataset.document_indices.tolist()) == (np.int64, [0, 1, 3, 4, 4, 5])
    assert dataset.sequence_modes is None
    for array in (dataset.sequence_lengths, dataset[1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@settings(deadline=None, max_examples=cases(20, 5000))
@given(st.slices(8))
def test_slices_of_any_step(cut: slice) -> None:
    dataset = IndexedDataset(GOLDEN / "indexed" / "uint16")
    assert [item.tolist() for item in dataset[cut]] == SEQUENCES[cut]


@settings(deadline=None, max_examples=cases(12, 2000))
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    cut=st.slices(8),
    mmap=st.booleans(),
)
def test_slices_follow_permuted_pointers(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int, cut: slice, mmap: bool
) -> None:
    """Megatron's slices assume that the sequences lie one after another."""
    prefix = tmp_path_factory.getbasetemp() / "permuted"
    stored = np.arange(40, dtype="<u2")
    begins = np.random.default_rng(seed).integers(0, 35, len(sizes))
    write_raw(prefix, "uint16", sizes, (2 * begins).tolist(), [0, len(sizes)], stored.tobytes())
    dataset = IndexedDataset(prefix, mmap=mmap)
    wanted = [stored[begin : begin + size].tolist() for begin, size in zip(begins, sizes, strict=True)]
    assert [item.tolist() for item in dataset] == wanted
    assert [item.tolist() for item in dataset[cut]] == wanted[cut]
    for number, sequence in enumerate(wanted):
        for offset in range(len(sequence) + 1):
            assert dataset.get(number, offset).tolist() == sequence[offset:]
            for length in range(len(sequence) - offset + 1):
                assert dataset.get(number, offset, length).tolist() == sequence[offset : offset + length]


@pytest.mark.parametrize(
    ("offset", "length"), [(2, 5), (4, None), (4, 0), (0, 4), (-1, None), (-1, 2), (0, -1), (3, 1)]
)
def test_get_stays_within_the_sequence(dataset: IndexedDataset, offset: int, length: int | None) -> None:
    """Megatron's reads into the next sequences, or the whole rest of the file."""
    with pytest.raises(IndexError, match=r"sequence.*0.*3"):
        dataset.get(0, offset, length)
    assert dataset.get(0, 3).tolist() == dataset.get(0, 1, 0).tolist() == []


_OUTLIVE = """
import gc, sys
from headrace.compat.megatron.indexed_dataset import IndexedDataset
dataset = IndexedDataset(sys.argv[1])
views = [dataset[0], dataset.get(1, 1), *dataset[1:3], dataset.sequence_lengths]
dataset.close()
del dataset
gc.collect()
print([view.tolist() for view in views])
"""


def test_views_outlive_the_dataset() -> None:
    """Megatron's end the process with SIGSEGV."""
    command = [sys.executable, "-c", _OUTLIVE, str(GOLDEN / "indexed" / "uint16")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[[1, 2, 3], [5], [4, 5], [6, 7], [3, 2, 2, 0, 2]]\n"), done.stderr


@pytest.mark.parametrize("mmap", [True, False])
def test_a_bin_that_is_cut_short(tmp_path: Path, mmap: bool) -> None:
    """Megatron's file reader returns memory that nobody wrote."""
    write_raw(tmp_path / "x", "uint16", [2, 2, 2], [0, 4, 8], [0, 3], bytes(11))
    with pytest.raises(StoreError, match=r"12.*11.*bytes"):
        IndexedDataset(tmp_path / "x", mmap=mmap)
    write_raw(tmp_path / "y", "uint16", [2, 2, 2], [0, 10, 8], [0, 3], bytes(12))
    dataset = IndexedDataset(tmp_path / "y", mmap=mmap)
    for read in (lambda: dataset[1], lambda: dataset[0:3], lambda: dataset.get(1, 1)):
        with pytest.raises(StoreError, match=r"1.*1[02].*14"):
            read()


def test_a_bin_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2, 2], [0, 4], [0, 2], bytes(8))
    dataset = IndexedDataset(tmp_path / "x", mmap=False)
    with (tmp_path / "x.bin").open("r+b") as file:
        file.truncate(6)
    with pytest.raises(StoreError, match="opened"):
        dataset[1]


def test_a_negative_size(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2, -2, 2], [0, 4, 4], [0, 3], bytes(8))
    dataset = IndexedDataset(tmp_path / "x")
    with pytest.raises(StoreError, match=r"sequence.*1.*-2"):
        dataset[1]
    with pytest.raises(StoreError, match=r"sequence.*1"):
        dataset[:: 2 - 1]


@pytest.mark.parametrize("mmap", [True, False])
def test_modes(mmap: bool) -> None:
    path = GOLDEN / "indexed" / "multimodal"
    dataset = IndexedDataset(path, multimodal=True, mmap=mmap)
    modes: Any = dataset.sequence_modes
    assert modes.tolist() == [0, 1]  # which always fails in Megatron's
    tokens, mode = dataset[-1]
    assert (tokens.tolist(), mode) == ([3, 4, 5], 1)
    parts, modes = dataset[::-1]
    assert ([part.tolist() for part in parts], modes.tolist()) == ([[3, 4, 5], [1, 2]], [1, 0])
    tokens, mode = dataset.get(1, 2)
    assert (tokens.tolist(), mode) == ([5], 1)
    without = IndexedDataset(path, mmap=mmap)
    assert [item.tolist() for item in without] == [[1, 2], [3, 4, 5]]
    assert without.sequence_modes is not None
    with pytest.raises(StoreError, match="multimodal=True"):
        IndexedDataset(GOLDEN / "indexed" / "uint16", multimodal=True)


def test_pickled_and_replaced(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2], [0], [0, 1], bytes(4))
    data = pickle.dumps(IndexedDataset(tmp_path / "x"))
    write_raw(tmp_path / "x", "uint16", [2], [0], [0, 1], bytes([1, 2, 3, 4]))
    with pytest.raises(StoreError, match="changed"):
        pickle.loads(data)


def test_exists(tmp_path: Path) -> None:
    assert IndexedDataset.exists(str(GOLDEN / "indexed" / "uint16"))
    (tmp_path / "x.bin").touch()
    assert not IndexedDataset.exists(tmp_path / "x")
    with pytest.raises(StoreError, match=r"x\.idx"):
        IndexedDataset(tmp_path / "x")


def test_no_documents_opens() -> None:
    dataset = IndexedDataset(GOLDEN / "indexed" / "empty")
    assert (len(dataset), dataset[:], list(dataset), dataset.document_indices.tolist()) == (0, [], [], [0])
    tokens, modes = IndexedDataset(GOLDEN / "indexed" / "empty", multimodal=True)[:]
    assert (tokens, modes.tolist()) == ([], [])


def test_dialects_and_other_formats() -> None:
    folder = GOLDEN / "indexed_dialects"
    sequences = [[1, 2, 3], [4, 5], [], [6]]
    for name, options in {
        "tnt-fairseq": {"dialect": "fairseq"},
        "tnt-megatron": {},
        "aleph-alpha": {},
        "fairseq-uint32": {},
        "neox-float32": {"dialect": "neox"},
    }.items():
        dataset = IndexedDataset(folder / name, **options)  # type: ignore[arg-type]
        assert [item.tolist() for item in dataset] == [item.tolist() for item in dataset[:]] == sequences, name
        assert dataset.get(1, 1, 1).tolist() == [5]
        assert dataset.sequence_lengths.tolist() == [3, 2, 0, 1]
    with pytest.raises(StoreError, match="documents='sequences'"):
        IndexedDataset(folder / "neox-merged")
    with pytest.warns(UserWarning, match="lost"):
        dataset = IndexedDataset(folder / "neox-merged", documents="sequences")
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4]


def test_the_index_as_megatrons_code_asks_for_it(dataset: IndexedDataset) -> None:
    """``merge_datasets.py`` asks for ``index.dtype``, the test suite for the rest."""
    index = dataset.index
    assert index.dtype is np.uint16
    assert (len(index), index.sequence_count, index.document_count) == (5, 5, 6)
    assert index.sequence_lengths.tolist() == dataset.sequence_lengths.tolist()
    assert index.document_indices.tolist() == dataset.document_indices.tolist()
    assert (index.sequence_pointers.dtype, index.sequence_pointers.tolist()) == (np.int64, [0, 6, 10, 14, 14])
    assert index[1] == (6, 2, None)
    assert index.sequence_modes is None
    modal = IndexedDataset(GOLDEN / "indexed" / "multimodal", multimodal=True)
    assert modal.index.sequence_modes.tolist() == modal.sequence_modes.tolist()  # type: ignore[union-attr]
    assert modal.index[1][2] == 1
    assert IndexedDataset(GOLDEN / "indexed" / "multimodal").index.sequence_modes is None


def test_options_of_megatrons_fast_start(dataset: IndexedDataset) -> None:
    """They change nothing but that the counts are compared; Megatron believes them, and guesses the dtype."""
    path = dataset.path_prefix
    fast = IndexedDataset(
        path, multimodal=False, mmap=False, fast_cache_load=True, sequences_per_dataset=(5, 6), dtype_code=4
    )
    assert (fast.mmap, fast.dtype, [item.tolist() for item in fast]) == (False, np.uint16, SEQUENCES)
    with pytest.raises(StoreError, match=r"5.*6.*sequences_per_dataset"):
        IndexedDataset(path, sequences_per_dataset=[5, 5])
    for option in ("object_storage_config", "s3_config"):
        with pytest.raises(ConfigError, match=r"object_storage_config.*Megatron's"):
            IndexedDataset(path, **{option: object()})
