"""Builder and reader under Megatron's names against Megatron-Core's own: C1 to C6 of the formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.stores as stores
from copies_made import pair_bytes
from counts import cases
from headrace.compat.megatron.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from interop import golden_scripts, megatron_peer
from interop.megatron_peer import DTYPES
from token_shards import write_raw

pytestmark = pytest.mark.interop

SEEDS = range(cases(10, 300))


class Drawn:
    """Documents of several sequences, empty ones of both kinds included, in a dtype and a kind that take turns."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(DTYPES[seed % len(DTYPES)])
        self.multimodal = seed % 3 == 0
        self.documents = []
        for _ in range(rng.integers(0, 30)):
            lengths = rng.integers(0, 9, rng.integers(0, 5))
            tokens = rng.integers(0, 127, int(lengths.sum()))
            self.documents.append((tokens, lengths.tolist(), rng.integers(0, 3, len(lengths)).tolist()))

    def write(self, builder: Any, prefix: Path, *, how: np.random.Generator) -> None:
        """Through any of the ways to add, which must not show."""
        for tokens, lengths, modes in self.documents:
            # Ours refuses modes that would not be written.
            given = {"modes": modes} if self.multimodal else {}
            if how.random() < 0.5:
                builder.add_document(tokens.tolist() if how.random() < 0.5 else tokens, lengths, **given)
                continue
            for part, mode in zip(np.split(tokens, np.cumsum(lengths))[: len(lengths)], modes, strict=True):
                builder.add_item(torch.tensor(part), **({"mode": mode} if self.multimodal else {}))
            builder.end_document()
        builder.finalize(str(prefix) + ".idx")

    def both(self, megatron: Any, folder: Path, seed: int) -> tuple[Path, Path]:
        """The prefixes of ours and theirs."""
        for name, kind in (("ours", IndexedDatasetBuilder), ("theirs", megatron.IndexedDatasetBuilder)):
            builder = kind(str(folder / f"{name}.bin"), dtype=self.dtype.type, multimodal=self.multimodal)
            self.write(builder, folder / name, how=np.random.default_rng(seed + len(name)))
        return folder / "ours", folder / "theirs"


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_and_readers(tmp_path: Path, megatron: Any, seed: int) -> None:
    drawn = Drawn(seed)
    ours, theirs = drawn.both(megatron, tmp_path, seed)
    assert pair_bytes(ours) == pair_bytes(theirs)
    has_tokens = ours.with_suffix(".bin").stat().st_size > 0
    for mmap in (True, False):
        dataset = IndexedDataset(theirs, multimodal=drawn.multimodal, mmap=mmap)
        if has_tokens or not mmap:  # Megatron maps no empty file
            same_items(dataset, megatron_peer.indexed(ours, multimodal=drawn.multimodal, mmap=mmap), drawn)
    store = stores.open(theirs)
    assert [store.document(number).tolist() for number in range(len(store))] == [
        tokens.tolist() for tokens, _, _ in drawn.documents
    ]
    # C4: without the flag, too.
    if has_tokens:
        plain = megatron_peer.indexed(ours)
        assert [item.tolist() for item in IndexedDataset(theirs)] == [plain[i].tolist() for i in range(len(plain))]


def same_items(dataset: IndexedDataset, other: Any, drawn: Drawn) -> None:
    assert len(dataset) == len(other)
    assert dataset.dtype == other.index.dtype
    for name in ("sequence_lengths", "document_indices"):
        mine, theirs = getattr(dataset, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    for number in range(len(other)):
        size = int(other.sequence_lengths[number])
        offset = int(drawn.rng.integers(0, size + 1))
        for mine, theirs in (
            (dataset[number], other[number]),
            (dataset.get(number, offset), other.get(number, offset)),
            (dataset.get(number, 0, size - offset), other.get(number, 0, size - offset)),
        ):
            same(mine, theirs, drawn.multimodal)
    if len(other):
        begin, end = sorted(drawn.rng.integers(0, len(other), 2).tolist())
        mine, theirs = dataset[begin : end + 1], other[begin : end + 1]
        if drawn.multimodal:
            np.testing.assert_array_equal(mine[1], theirs[1])
            mine, theirs = mine[0], theirs[0]
        for one, another in zip(mine, theirs, strict=True):
            same(one, another, False)


def same(mine: Any, theirs: Any, multimodal: bool) -> None:
    if multimodal:
        assert mine[1] == theirs[1]
        assert mine[1].dtype == theirs[1].dtype
        mine, theirs = mine[0], theirs[0]
    assert mine.dtype == theirs.dtype
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_joined(tmp_path: Path, megatron: Any, seed: int) -> None:
    """C3, by ``add_index``: documents of both before, between and after."""
    drawn = Drawn(seed)
    prefixes = drawn.both(megatron, tmp_path, seed)
    for name, kind in (("o", IndexedDatasetBuilder), ("t", megatron.IndexedDatasetBuilder)):
        builder = kind(str(tmp_path / f"{name}.bin"), dtype=drawn.dtype.type, multimodal=drawn.multimodal)
        for number, prefix in enumerate([*prefixes, prefixes[0]]):
            builder.add_document([number], [1], **({"modes": [1]} if drawn.multimodal else {}))
            builder.add_index(str(prefix))
        builder.end_document()
        builder.finalize(str(tmp_path / f"{name}.idx"))
    assert pair_bytes(tmp_path / "o") == pair_bytes(tmp_path / "t")


@pytest.mark.parametrize("seed", SEEDS)
def test_permuted_pointers(tmp_path: Path, megatron: Any, seed: int) -> None:
    """C6: single reads of Megatron follow them, and so do all of ours."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, rng.integers(1, 20))
    begins = rng.integers(0, 41, len(sizes))
    data = rng.integers(0, 60_000, 50).astype("<u2")
    write_raw(tmp_path / "x", "uint16", sizes.tolist(), (2 * begins).tolist(), [0, len(sizes)], data.tobytes())
    other = megatron_peer.indexed(tmp_path / "x")
    wanted = [other[number].tolist() for number in range(len(other))]
    dataset = IndexedDataset(tmp_path / "x")
    assert [item.tolist() for item in dataset] == [item.tolist() for item in dataset[:]] == wanted
    assert stores.open(tmp_path / "x").fetch(0, int(sizes.sum())).tolist() == sum(wanted, [])  # noqa: RUF017


@pytest.mark.parametrize("code", [6, 7])
def test_codes_of_floating_point_numbers(tmp_path: Path, megatron: Any, code: int) -> None:
    """C5: what Megatron-Core says of a code is what ours says with its dialect."""
    dtype = np.dtype(megatron.DType.dtype_from_code(code))
    builder = IndexedDatasetBuilder(tmp_path / "x.bin", dtype=dtype)
    builder.add_document([0.5, 1.5, -2.0], [1, 2])
    builder.finalize(tmp_path / "x.idx")
    assert (tmp_path / "x.idx").read_bytes()[17] == code
    assert IndexedDataset(tmp_path / "x", dialect="megatron").dtype == megatron_peer.indexed(tmp_path / "x").index.dtype


def test_the_golden_files_of_the_dialects(tmp_path: Path) -> None:
    golden_scripts.check_made_again("indexed_dialects", tmp_path)
