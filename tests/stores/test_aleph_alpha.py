"""Aleph Alpha's ``.bin``, ``.idx`` and ``.meta.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import StoreError
from headrace.stores.indexed.pairs import AlephAlphaStore
from headrace.stores.store import Store
from headrace.testing.stores import Documents, StoreContract
from token_shards import write_shard

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed_dialects"


def write_triple(prefix: Path, documents: Documents, dtype: str, index_dtype: str = "int64") -> Path:
    lengths = np.array([len(document) for document in documents], np.int64)
    pairs = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).astype(index_dtype)
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(document.tobytes() for document in documents))
    prefix.with_name(prefix.name + ".idx").write_bytes(pairs.tobytes())
    meta = {"dtype": dtype, "index_dtype": index_dtype, "document_count": len(documents)}
    prefix.with_name(prefix.name + ".meta.json").write_text(json.dumps(meta))
    return prefix


class TestAlephAlpha(StoreContract):
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_triple(folder / "shard", documents, self.dtype)

    def open(self, path: Path) -> Store:
        return stores.open(path)


class TestAlephAlphaRead(StoreContract):
    """With a narrow index, and read."""

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_triple(folder / "shard", documents, self.dtype, "uint32")

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx", ".meta.json"])
def test_golden(suffix: str) -> None:
    store = stores.open(f"{GOLDEN}/aleph-alpha{suffix}")
    assert isinstance(store, AlephAlphaStore)
    assert store.format == "aleph-alpha"
    assert [store.document(number).tolist() for number in range(4)] == [[1, 2, 3], [4, 5], [], [6]]
    assert [file.name for file in store.files] == ["aleph-alpha.bin", "aleph-alpha.idx", "aleph-alpha.meta.json"]
    assert list(store.check(vocab_size=7)) == []


def test_documents_in_any_place(tmp_path: Path) -> None:
    write_triple(tmp_path / "x", [np.arange(9, dtype="int32")], "int32")
    (tmp_path / "x.idx").write_bytes(np.array([[5, 3], [0, 2], [4, 1]], "<i8").tobytes())
    meta = {"dtype": "int32", "index_dtype": "int64", "document_count": 3, "more": 1}
    (tmp_path / "x.meta.json").write_text(json.dumps(meta))
    store = stores.open(tmp_path / "x")
    assert [store.document(number).tolist() for number in range(3)] == [[5, 6, 7], [0, 1], [4]]
    assert store.fetch(0, 6).tolist() == [5, 6, 7, 0, 1, 4]
    assert store.find_documents(np.arange(6)).tolist() == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_a_length_whose_bytes_overflow(tmp_path: Path, reader: Literal["mmap", "pread"]) -> None:
    """(2**62 + 5) * 4 is 20 in 64 bits, which would fit."""
    documents = [np.arange(5, dtype="int32")] * 5
    write_triple(tmp_path / "x", documents, "int32")
    pairs = np.fromfile(tmp_path / "x.idx", "<i8")
    pairs[7] = 2**62 + 5
    pairs.tofile(tmp_path / "x.idx")
    store = stores.open(tmp_path / "x", reader=reader)
    asked = (lambda: store.lengths, lambda: store.document(3), lambda: store.num_tokens, lambda: store.fetch(0, 20))
    for ask in asked:
        with pytest.raises(StoreError, match="4611686018427387909"):
            ask()
    assert next(iter(store.check())).place == "document 3, sequence 3"


def test_megatrons_files_beside_such_a_name_stay_megatrons(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", [np.array([1, 2])])
    (tmp_path / "x.meta.json").write_text("{}")
    assert type(stores.open(tmp_path / "x")) is stores.IndexedStore


META = {"dtype": "int32", "index_dtype": "int64", "document_count": 4}


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("", r"meta\.json"),
        ("[1]", "index_dtype"),
        (json.dumps({"dtype": "int32"}), "index_dtype"),
        (json.dumps({**META, "dtype": "object"}), "'object'.*uint8"),
        (json.dumps({**META, "index_dtype": "float64"}), "index_dtype.*'float64'.*int32"),
        (json.dumps({**META, "document_count": -1}), "document_count.*-1"),
        (json.dumps({**META, "document_count": 3}), "3.*48.*64"),
        (json.dumps({**META, "index_dtype": "int32"}), "4.*32.*int32.*64"),
        (json.dumps({**META, "dtype": "int64"}), "48.*24"),
    ],
)
def test_what_aleph_alpha_does_not_write(tmp_path: Path, meta: str, message: str) -> None:
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").write_bytes((GOLDEN / f"aleph-alpha{suffix}").read_bytes())
    (tmp_path / "x.meta.json").write_text(meta)
    with pytest.raises(StoreError, match=message):
        stores.open(tmp_path / "x")


@pytest.mark.parametrize("start", [-1, 2**62, 2**63 - 1])
def test_pointers_that_lie_nowhere(tmp_path: Path, start: int) -> None:
    write_triple(tmp_path / "x", [np.arange(4, dtype="int32")] * 3, "int32")
    pairs = np.array([[0, 4], [start, 4], [8, 4]], "<i8")
    (tmp_path / "x.idx").write_bytes(pairs.tobytes())
    store = stores.open(tmp_path / "x")
    for read in (lambda: store.document(1), lambda: store.fetch(0, 12)):
        with pytest.raises(StoreError, match=r"x\.(bin|idx)"):
            read()
    assert list(store.check())
