"""The indexed format against Megatron-Core's own reader and builder."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.stores as stores
from headrace.testing.shards import write_shard

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[1] / "golden"
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"]
INTEGERS = [name for name in DTYPES if not name.startswith("float")]
SEEDS = range(300 if os.environ.get("HEADRACE_FULL") else 25)


@pytest.fixture(scope="module")
def megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def drawn(seed: int) -> tuple[np.random.Generator, str, list[np.ndarray]]:
    """Documents of one sequence each, some empty, in a dtype that takes turns."""
    rng = np.random.default_rng(seed)
    name = INTEGERS[seed % len(INTEGERS)]
    limits = np.iinfo(name)
    lengths = rng.integers(0, 30, rng.integers(1, 40)) * (rng.random() < 0.9)
    lengths[0] += 1  # Megatron maps no empty file
    return rng, name, [rng.integers(limits.min, limits.max, n, name, endpoint=True) for n in lengths]


def open_peer(megatron: Any, prefix: Path, *, mmap: bool = True) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about arrays that are read-only
        return megatron.IndexedDataset(str(prefix), mmap=mmap)


@pytest.mark.parametrize("seed", SEEDS)
def test_ours_is_byte_equal_and_read_by_megatron(tmp_path: Path, megatron: Any, seed: int) -> None:
    _, name, documents = drawn(seed)
    write_shard(tmp_path / "ours", documents, name)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=getattr(np, name))
    for document in documents:
        # As tools/preprocess_data.py: an empty text is a document without sequences.
        builder.add_document(document.tolist(), [len(document)] if len(document) else [])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()

    peer = open_peer(megatron, tmp_path / "ours")
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
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=dtype.type)
    documents = []
    for _ in range(rng.integers(0, 30)):
        lengths = rng.integers(0, 9, rng.integers(0, 5)).tolist()
        documents.append(rng.integers(0, 127, sum(lengths)).astype(dtype))
        builder.add_document(documents[-1].tolist(), lengths)
    builder.finalize(str(tmp_path / "x.idx"))

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


def test_joined_indices_of_theirs(tmp_path: Path, megatron: Any) -> None:
    """``add_index``, which ``tools/merge_datasets.py`` calls, keeps the documents of both."""
    parts = [[np.arange(3), np.arange(0)], [np.arange(5), np.arange(1)]]
    for number, documents in enumerate(parts):
        write_shard(tmp_path / str(number), documents, "int32")
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "both.bin"), dtype=np.int32)
    for number in range(len(parts)):
        builder.add_index(str(tmp_path / str(number)))
    builder.finalize(str(tmp_path / "both.idx"))
    store = stores.open(tmp_path / "both")
    assert store.lengths.tolist() == [3, 0, 5, 1]
    assert list(store.check()) == []
    write_shard(tmp_path / "ours", [document for part in parts for document in part], "int32")
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"both{suffix}").read_bytes()


def test_the_golden_files_are_what_megatron_writes(tmp_path: Path, megatron: Any) -> None:
    spec = importlib.util.spec_from_file_location("make_indexed", GOLDEN / "make_indexed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (GOLDEN / "indexed").iterdir()}


@pytest.mark.parametrize(("size", "name"), [(1, "uint16"), (65_499, "uint16"), (65_500, "int32"), (None, "int32")])
def test_optimal_dtype(megatron: Any, size: int | None, name: str) -> None:
    assert megatron.DType.optimal_dtype(size) is getattr(np, name)
    assert stores.optimal_dtype(size) == np.dtype(name)
