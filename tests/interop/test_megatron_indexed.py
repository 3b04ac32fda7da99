"""The indexed format against Megatron-Core's own reader and builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.stores as stores
from copies_made import pair_bytes
from counts import cases
from interop import golden_scripts, megatron_peer
from interop.megatron_peer import DTYPES
from token_shards import write_shard

pytestmark = pytest.mark.interop

INTEGERS = [name for name in DTYPES if not name.startswith("float")]
SEEDS = range(cases(25, 300))


def drawn(seed: int) -> tuple[np.random.Generator, str, list[np.ndarray]]:
    """Documents of one sequence each, some empty, in a dtype that takes turns."""
    rng = np.random.default_rng(seed)
    name = INTEGERS[seed % len(INTEGERS)]
    limits = np.iinfo(name)
    lengths = rng.integers(0, 30, rng.integers(1, 40)) * (rng.random() < 0.9)
    lengths[0] += 1  # Megatron maps no empty file
    return rng, name, [rng.integers(limits.min, limits.max, n, name, endpoint=True) for n in lengths]


@pytest.mark.parametrize("seed", SEEDS)
def test_ours_is_byte_equal_and_read_by_megatron(tmp_path: Path, megatron: Any, seed: int) -> None:
    _, name, documents = drawn(seed)
    write_shard(tmp_path / "ours", documents, name)
    # As tools/preprocess_data.py: an empty text is a document without sequences.
    given = [(document.tolist(), [len(document)] if len(document) else []) for document in documents]
    megatron_peer.write(tmp_path / "theirs", given, getattr(np, name))
    assert pair_bytes(tmp_path / "ours") == pair_bytes(tmp_path / "theirs")

    peer = megatron_peer.indexed(tmp_path / "ours")
    bounds = peer.document_indices
    assert len(bounds) - 1 == len(documents)
    for number, document in enumerate(documents):
        sequences = [peer[int(at)] for at in range(bounds[number], bounds[number + 1])]
        np.testing.assert_array_equal(np.concatenate([np.zeros(0, name), *sequences]), document)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("seed", SEEDS)
def test_theirs_is_read_by_us(tmp_path: Path, megatron: Any, seed: int, reader: str) -> None:
    """Several sequences a document, empty sequences, empty documents, every dtype."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[seed % len(DTYPES)])
    lengths = [rng.integers(0, 9, rng.integers(0, 5)).tolist() for _ in range(rng.integers(0, 30))]
    documents = [rng.integers(0, 127, sum(some)).astype(dtype) for some in lengths]
    given = [(document.tolist(), some) for document, some in zip(documents, lengths, strict=True)]
    megatron_peer.write(tmp_path / "x", given, dtype.type)

    store = stores.open(tmp_path / "x", reader=reader)
    stream = np.concatenate([np.zeros(0, dtype), *documents])
    assert store.lengths.tolist() == [len(document) for document in documents]
    for number, document in enumerate(documents):
        found = store.document(number)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, document)
    np.testing.assert_array_equal(store.fetch(0, store.num_tokens), stream)
    numbers = np.repeat(np.arange(len(documents)), store.lengths)
    np.testing.assert_array_equal(store.find_documents(np.arange(len(stream))), numbers)
    begins = rng.integers(0, max(1, len(stream) - 5), 7 if len(stream) >= 5 else 0)
    wanted = np.array([stream[begin : begin + 5] for begin in begins], dtype).reshape(-1, 5)
    np.testing.assert_array_equal(store.gather(begins, 5), wanted)
    assert list(store.check()) == []


def test_the_golden_files_are_what_megatron_writes(tmp_path: Path, megatron: Any) -> None:
    golden_scripts.check_made_again("indexed", tmp_path)


@pytest.mark.parametrize(("size", "name"), [(1, "uint16"), (65_499, "uint16"), (65_500, "int32"), (None, "int32")])
def test_optimal_dtype(megatron: Any, size: int | None, name: str) -> None:
    assert megatron.DType.optimal_dtype(size) is getattr(np, name)
    assert stores.optimal_dtype(size) == np.dtype(name)
