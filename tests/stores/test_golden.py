"""Files that Megatron's builder wrote; `tests/golden/README.md` says how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores

GOLDEN = Path(__file__).parents[1] / "golden" / "indexed"


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_documents_of_several_sequences(reader: str) -> None:
    store = stores.open(GOLDEN / "uint16", reader=reader)
    documents = [[1, 2, 3], [4, 5, 6, 7], [], [], [8, 9]]
    assert [store.document(number).tolist() for number in range(len(store))] == documents
    assert store.lengths.tolist() == [3, 4, 0, 0, 2]
    assert store.document_begins(np.arange(6)).tolist() == [0, 3, 7, 7, 7, 9]
    assert store.find_documents(np.arange(9)).tolist() == [0, 0, 0, 1, 1, 1, 1, 4, 4]
    assert store.gather(np.array([5, 0]), 4).tolist() == [[6, 7, 8, 9], [1, 2, 3, 4]]
    assert list(store.check(vocab_size=10)) == []


def test_the_bytes_are_those_of_the_specification() -> None:
    wanted = """4d4d49444944580000 0100000000000000 08 0500000000000000 0600000000000000
        03000000 02000000 02000000 00000000 02000000
        0000000000000000 0600000000000000 0a00000000000000 0e00000000000000 0e00000000000000
        0000000000000000 0100000000000000 0300000000000000 0400000000000000 0400000000000000 0500000000000000"""
    assert (GOLDEN / "uint16.idx").read_bytes() == bytes.fromhex(wanted)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float32", "float64"])
def test_every_dtype(name: str, reader: str) -> None:
    store = stores.open(GOLDEN / name, reader=reader)
    assert store.dtypes["tokens"] == np.dtype(name)
    assert [store.document(number).tolist() for number in range(3)] == [[1, 2, 3], [], [4, 5]]
    assert store.gather(np.array([0, 1]), 4).dtype == np.dtype(name)
    assert list(store.check()) == []


def test_no_documents_opens() -> None:
    store = stores.open(GOLDEN / "empty")
    assert (len(store), store.num_tokens) == (0, 0)
