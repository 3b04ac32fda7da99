"""Builder and reader under Megatron's names against Megatron-Core's own: C1, C2, C4, C6, C7 and C10 of the formats."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.stores as stores
import warm
from counts import PATIENCE_S, cases
from headrace.compat.megatron.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from headrace.errors import StoreError
from headrace.testing.shards import write_raw

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[1] / "golden"
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"]
SEEDS = range(cases(10, 300))


@pytest.fixture(scope="module")
def megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def peer(megatron: Any, prefix: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about arrays that are read-only
        return megatron.IndexedDataset(str(prefix), **options)


_TRY = """
import sys, warnings
warnings.simplefilter("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset
for prefix in sys.argv[2:]:
    try:
        IndexedDataset(prefix, multimodal=sys.argv[1] == "True")
    except Exception as error:
        print(prefix, type(error).__name__)
"""


Refused = Callable[..., dict[str, str]]


@pytest.fixture
def refused_by_megatron(warm_torch: warm.Warm, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """The error of each prefix. In a process of its own: what failed to open breaks again when it is collected."""

    def refused(prefixes: list[Path], *, multimodal: bool = False) -> dict[str, str]:
        program = ["-c", _TRY, str(multimodal), *map(str, prefixes)]
        (done,) = warm.together(warm_torch, [program], tmp_path_factory.mktemp("refused"), PATIENCE_S)
        assert done.code == 0, done.errors
        return dict(line.split() for line in done.output.splitlines() if len(line.split()) == 2)

    return refused


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
    for suffix in (".bin", ".idx"):
        assert ours.with_suffix(suffix).read_bytes() == theirs.with_suffix(suffix).read_bytes()
    has_tokens = ours.with_suffix(".bin").stat().st_size > 0
    for mmap in (True, False):
        dataset = IndexedDataset(theirs, multimodal=drawn.multimodal, mmap=mmap)
        if has_tokens or not mmap:  # Megatron maps no empty file
            same_items(dataset, peer(megatron, ours, multimodal=drawn.multimodal, mmap=mmap), drawn)
    store = stores.open(theirs)
    assert [store.document(number).tolist() for number in range(len(store))] == [
        tokens.tolist() for tokens, _, _ in drawn.documents
    ]
    # C4: without the flag, too.
    if has_tokens:
        plain = peer(megatron, ours)
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
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"o{suffix}").read_bytes() == (tmp_path / f"t{suffix}").read_bytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_permuted_pointers(tmp_path: Path, megatron: Any, seed: int) -> None:
    """C6: single reads of Megatron follow them, and so do all of ours."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, rng.integers(1, 20))
    begins = rng.integers(0, 41, len(sizes))
    data = rng.integers(0, 60_000, 50).astype("<u2")
    write_raw(tmp_path / "x", "uint16", sizes.tolist(), (2 * begins).tolist(), [0, len(sizes)], data.tobytes())
    other = peer(megatron, tmp_path / "x")
    wanted = [other[number].tolist() for number in range(len(other))]
    dataset = IndexedDataset(tmp_path / "x")
    assert [item.tolist() for item in dataset] == [item.tolist() for item in dataset[:]] == wanted
    assert stores.open(tmp_path / "x").fetch(0, int(sizes.sum())).tolist() == sum(wanted, [])  # noqa: RUF017


def test_what_megatron_refuses_we_refuse(tmp_path: Path, megatron: Any, refused_by_megatron: Refused) -> None:
    """C7, and where Megatron reads on: bytes behind the index."""
    idx, data = ((GOLDEN / "indexed" / f"uint16{suffix}").read_bytes() for suffix in (".idx", ".bin"))
    for name, wrong in {
        "magic": b"X" + idx[1:],
        "version": idx[:9] + b"\2" + idx[10:],
        "code": idx[:17] + b"\x09" + idx[18:],
        "cut": idx[:-1],
        "last": idx[:-8] + b"\4" + idx[-7:],
        "merged": idx[:26] + b"\1" + idx[27:94] + bytes(8),
        "fairseq": idx[:26] + idx[34:94],
    }.items():
        (tmp_path / f"{name}.idx").write_bytes(wrong)
        (tmp_path / f"{name}.bin").write_bytes(data)
        if name != "fairseq":  # whose layout is one of those that we read
            with pytest.raises(StoreError):
                IndexedDataset(tmp_path / name)
    refused = refused_by_megatron(sorted({path.with_suffix("") for path in tmp_path.iterdir()}))
    assert len(refused) == 7
    assert set(refused.values()) == {"AssertionError", "ValueError"}
    (tmp_path / "tail.idx").write_bytes(idx + b"abc")
    (tmp_path / "tail.bin").write_bytes(data + b"abc")
    other = peer(megatron, tmp_path / "tail")  # which must live as long as its arrays
    assert [item.tolist() for item in other[:]] == [item.tolist() for item in IndexedDataset(tmp_path / "tail")]


def test_no_documents(tmp_path: Path, megatron: Any, refused_by_megatron: Refused) -> None:
    """C10: Megatron cannot open what its builder writes."""
    for multimodal in (False, True):
        builder = megatron.IndexedDatasetBuilder(str(tmp_path / "x.bin"), multimodal=multimodal)
        builder.finalize(str(tmp_path / "x.idx"))
        assert refused_by_megatron([tmp_path / "x"], multimodal=multimodal) == {str(tmp_path / "x"): "ValueError"}
        assert len(IndexedDataset(tmp_path / "x", multimodal=multimodal)) == 0


@pytest.mark.parametrize("code", [6, 7])
def test_codes_of_floating_point_numbers(tmp_path: Path, megatron: Any, code: int) -> None:
    """C5: what Megatron-Core says of a code is what ours says with its dialect."""
    dtype = np.dtype(megatron.DType.dtype_from_code(code))
    builder = IndexedDatasetBuilder(tmp_path / "x.bin", dtype=dtype)
    builder.add_document([0.5, 1.5, -2.0], [1, 2])
    builder.finalize(tmp_path / "x.idx")
    assert (tmp_path / "x.idx").read_bytes()[17] == code
    assert IndexedDataset(tmp_path / "x", dialect="megatron").dtype == peer(megatron, tmp_path / "x").index.dtype


def test_the_golden_files_of_the_dialects(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_indexed_dialects", GOLDEN / "make_indexed_dialects.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (GOLDEN / "indexed_dialects").iterdir()}
