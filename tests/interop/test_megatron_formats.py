"""Builder, reader and merge under Megatron's names against Megatron-Core's own: C1 to C6 of the formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
import headrace.stores as stores
from copies_made import pair_bytes
from counts import cases
from headrace.compat.megatron.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from headrace.copying import CopyOptions
from interop import golden_scripts, megatron_peer
from interop.megatron_peer import DTYPES
from token_shards import write_raw, write_shard

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


INTEGERS = [name for name in DTYPES if not name.startswith("float")]
INDEX_SEEDS = range(cases(25, 300))


def drawn(seed: int) -> tuple[np.random.Generator, str, list[np.ndarray]]:
    """Documents of one sequence each, some empty, in a dtype that takes turns."""
    rng = np.random.default_rng(seed)
    name = INTEGERS[seed % len(INTEGERS)]
    limits = np.iinfo(name)
    lengths = rng.integers(0, 30, rng.integers(1, 40)) * (rng.random() < 0.9)
    lengths[0] += 1  # Megatron maps no empty file
    return rng, name, [rng.integers(limits.min, limits.max, n, name, endpoint=True) for n in lengths]


@pytest.mark.parametrize("seed", INDEX_SEEDS)
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
@pytest.mark.parametrize("seed", INDEX_SEEDS)
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
