"""C3: merged pairs against megatron-core's ``add_index``, as its ``tools/merge_datasets.py`` calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from copies_made import pair_bytes
from counts import cases
from headrace.copying import CopyOptions
from interop import golden_scripts, megatron_peer
from interop.megatron_peer import DTYPES

pytestmark = pytest.mark.interop


def write_theirs(megatron: Any, prefix: Path, rng: np.random.Generator, dtype: str, *, multimodal: bool) -> None:
    """Documents of no, one and several sequences, some empty, with their own builder; at least one token."""
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(np, dtype), multimodal=multimodal)
    for number in range(int(rng.integers(1, 15))):
        lengths = [*rng.integers(0, 6, rng.integers(0, 4)).tolist(), *([1] if number == 0 else [])]
        tokens = rng.integers(0, 120, sum(lengths)).astype(dtype).tolist()
        modes = rng.integers(0, 2, len(lengths)).tolist() if multimodal else None
        builder.add_document(tokens, lengths, modes)
    builder.finalize(f"{prefix}.idx")


def merge_theirs(megatron: Any, folder: Path, output: Path, dtype: str, *, multimodal: bool) -> None:
    """The loop of ``tools/merge_datasets.py``, which is not in the package: pairs sorted by name."""
    builder = megatron.IndexedDatasetBuilder(f"{output}.bin", dtype=getattr(np, dtype), multimodal=multimodal)
    for stem in sorted({path.stem for path in folder.iterdir()}):
        builder.add_index(str(folder / stem))
    builder.finalize(f"{output}.idx")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(cases(10, 200)))
@pytest.mark.filterwarnings("ignore")
def test_c3_a_merge_is_byte_equal(tmp_path: Path, megatron: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, multimodal = DTYPES[seed % len(DTYPES)], seed % 5 == 0
    (tmp_path / "in").mkdir()
    for number in range(8, 8 + int(rng.integers(1, 5))):  # part-10 comes before part-9 by name
        write_theirs(megatron, tmp_path / "in" / f"part-{number}", rng, dtype, multimodal=multimodal)
    merge_theirs(megatron, tmp_path / "in", tmp_path / "theirs", dtype, multimodal=multimodal)
    headrace.merge([tmp_path / "in"], tmp_path / "ours", sort_by="name")
    assert pair_bytes(tmp_path / "ours" / "text_document") == pair_bytes(tmp_path / "theirs")
    if dtype.startswith("float") or multimodal:
        return
    # What the two share of it: through the other format and back, where each document is one sequence.
    flat = headrace.open(tmp_path / "ours")
    headrace.convert(tmp_path / "ours", tmp_path / "keyed", format="keyed")
    headrace.convert(tmp_path / "keyed", tmp_path / "back", format="indexed", options=CopyOptions(shards="single"))
    peer = megatron_peer.indexed(tmp_path / "back" / "text_document")
    found = np.concatenate([np.zeros(0, dtype), *(peer[number] for number in range(len(peer)))])
    np.testing.assert_array_equal(found, flat.fetch(0, flat.num_tokens))
    assert len(peer.document_indices) - 1 == len(flat)


def test_split_parts_are_read_by_megatron(tmp_path: Path, megatron: Any) -> None:
    rng = np.random.default_rng(3)
    write_theirs(megatron, tmp_path / "a", rng, "int32", multimodal=False)
    headrace.split(tmp_path / "a", tmp_path / "out", into=2)
    whole = megatron_peer.indexed(tmp_path / "a")
    parts = [megatron_peer.indexed(tmp_path / "out" / f"part_0000{part}" / "text_document") for part in range(2)]
    assert sum(len(part) for part in parts) == len(whole)
    found = [part[number].tolist() for part in parts for number in range(len(part))]
    assert found == [whole[number].tolist() for number in range(len(whole))]


def test_the_golden_merges_are_what_megatron_writes(tmp_path: Path) -> None:
    golden_scripts.check_made_again("merge", tmp_path)
