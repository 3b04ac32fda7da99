"""The dialects of Megatron's layout: what the bytes tell, what has to be said, and what is refused."""

from __future__ import annotations

import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.io import reader
from headrace.stores.indexed.index import ArrayPlace, IntegerColumn
from headrace.stores.indexed.layout import IdxLayout
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.store import Store
from headrace.testing.stores import Documents, StoreContract, numbered_documents
from token_shards import vouch_for, write_keyed, write_raw, write_shard

GOLDEN = Path(__file__).parents[1] / "golden"
DIALECTS = GOLDEN / "indexed_dialects"
SEQUENCES = [[1, 2, 3], [4, 5], [], [6]]
DOCUMENTS = [[1, 2, 3, 4, 5], [], [], [6]]


def documents_of(store: Store) -> list[list[int]]:
    return [store.document(number).tolist() for number in range(len(store))]


def write_code(prefix: Path, code: int, dtype: str, *, tail: bytes = b"", count: int = 5) -> Path:
    """One document of so many numbers under any dtype code."""
    numbers = np.arange(1, count + 1, dtype=dtype)
    arrays = struct.pack("<iqqq", count, 0, 0, 1)
    prefix.with_suffix(".idx").write_bytes(IdxLayout(code, 1, 2).header() + arrays)
    prefix.with_suffix(".bin").write_bytes(numbers.tobytes() + tail)
    return prefix


def write_fairseq(prefix: Path, documents: Documents, code: int, dtype: str) -> Path:
    sizes = np.array([len(document) for document in documents], "<i4")
    pointers = (np.cumsum(sizes, dtype=np.int64) - sizes) * np.dtype(dtype).itemsize
    header = IdxLayout(code, len(sizes), 0, "fairseq").header()
    prefix.with_name(prefix.name + ".idx").write_bytes(header + sizes.tobytes() + pointers.astype("<i8").tobytes())
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(document.tobytes() for document in documents))
    return prefix


class TestFairseqLayout(StoreContract):
    dtype = "uint32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_fairseq(folder / "shard", documents, 9, self.dtype)

    def open(self, path: Path) -> Store:
        return stores.open(path)


class TestSequencesAsDocuments(StoreContract):
    """The index says nothing of documents; mapped and read must not matter, so this one is read."""

    def write(self, folder: Path, documents: Documents) -> Path:
        ends = np.cumsum([0, *(len(document) for document in documents)]) * 2
        data = b"".join(document.tobytes() for document in documents)
        sizes = [len(document) for document in documents]
        # One document of everything: it is not looked at.
        write_raw(folder / "shard", self.dtype, sizes, ends[:-1].tolist(), [0, len(sizes)], data)
        return folder / "shard"

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread", documents="sequences")


@pytest.mark.parametrize(
    ("code", "dialect", "name"),
    [
        (6, "megatron", "float64"), (7, "megatron", "float32"),
        (6, "deepspeed", "float64"), (7, "deepspeed", "float64"),
        (6, "neox", "float32"), (7, "neox", "float64"),
    ],
)  # fmt: skip
def test_codes_6_and_7(tmp_path: Path, code: int, dialect: Any, name: str) -> None:
    """By the size of the .bin where that tells, else as the dialect has them."""
    wanted = [1.0, 2.0, 3.0, 4.0, 5.0]
    write_code(tmp_path / "x", code, name)
    for asked in (None, dialect):
        store = stores.open(tmp_path / "x", dialect=asked)
        assert (store.dtypes["tokens"].name, store.document(0).tolist()) == (name, wanted)
    write_code(tmp_path / "x", code, name, tail=b"more")
    store = stores.open(tmp_path / "x", dialect=dialect)
    assert (store.dtypes["tokens"].name, store.document(0).tolist()) == (name, wanted)
    with pytest.raises(StoreError, match=rf"{code}.*5"):
        stores.open(tmp_path / "x")


@pytest.mark.parametrize(("code", "name", "wrong"), [(6, "float32", "megatron"), (7, "float64", "megatron"),
                                                     (7, "float32", "neox"), (6, "float64", "neox")])  # fmt: skip
def test_a_dialect_that_the_size_speaks_against(tmp_path: Path, code: int, name: str, wrong: Any) -> None:
    write_code(tmp_path / "x", code, name)
    with pytest.raises(StoreError, match=rf"dialect='{wrong}'.*5.*{name}"):
        stores.open(tmp_path / "x", dialect=wrong)


def test_no_numbers_have_no_size(tmp_path: Path) -> None:
    write_code(tmp_path / "x", 6, "float64", count=0)
    assert stores.open(tmp_path / "x").lengths.tolist() == [0]
    assert stores.open(tmp_path / "x", dialect="neox").dtypes["tokens"].name == "float32"


def test_many_numbers_are_counted_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.indexed.layout.CHUNK", 3)
    sizes = [3, 1, 0, 2, 5, 1, 1]
    pointers = ((np.cumsum(sizes) - sizes) * 4).tolist()
    write_raw(tmp_path / "x", "int32", sizes, pointers, [0, 7], bytes(13 * 4))
    idx = bytearray((tmp_path / "x.idx").read_bytes())
    idx[17] = 6
    (tmp_path / "x.idx").write_bytes(idx)
    assert stores.open(tmp_path / "x").dtypes["tokens"].name == "float32"


@pytest.mark.parametrize("name", ["neox-float32", "neox-float64"])
@pytest.mark.parametrize("dialect", [None, "neox"])
def test_golden_codes_of_neox(name: str, dialect: Any) -> None:
    store = stores.open(DIALECTS / name, dialect=dialect)
    assert store.dtypes["tokens"].name == name[5:]
    assert documents_of(store) == DOCUMENTS
    assert list(store.check()) == []


@pytest.mark.parametrize("using", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["uint32", "uint64"])
def test_golden_fairseq(name: str, using: str) -> None:
    store = stores.open(DIALECTS / f"fairseq-{name}", reader=using)
    assert store.dtypes["tokens"].name == name
    assert documents_of(store) == SEQUENCES
    assert list(store.check(vocab_size=7)) == []
    assert stores.open(DIALECTS / f"fairseq-{name}", dialect="fairseq").fingerprint == store.fingerprint


@pytest.mark.parametrize("code", [6, 7])
def test_fairseq_has_one_meaning_of_6_and_7(tmp_path: Path, code: int) -> None:
    write_fairseq(tmp_path / "x", [np.array([1.5, 2.5]), np.array([3.5])], code, "float64")
    assert stores.open(tmp_path / "x").document(0).tolist() == [1.5, 2.5]


def test_fairseq_without_sequences_and_cut_short(tmp_path: Path) -> None:
    write_fairseq(tmp_path / "x", [], 8, "uint16")
    store = stores.open(tmp_path / "x")
    assert (len(store), store.num_tokens) == (0, 0)
    write_fairseq(tmp_path / "x", numbered_documents([3, 2], "uint16"), 8, "uint16")
    idx = (tmp_path / "x.idx").read_bytes()
    for size in range(len(idx)):
        (tmp_path / "x.idx").write_bytes(idx[:size])
        with pytest.raises(StoreError, match=r"x\.idx"):
            stores.open(tmp_path / "x")


def test_an_index_of_megatron_cut_to_the_size_of_fairseqs(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", numbered_documents([3, 2, 4], "uint16"))
    idx = (tmp_path / "x.idx").read_bytes()
    (tmp_path / "x.idx").write_bytes(idx[: 26 + 12 * 3])
    with pytest.raises(StoreError, match="fairseq's"):
        stores.open(tmp_path / "x")


def test_a_bin_that_fairseqs_sequences_do_not_fill(tmp_path: Path) -> None:
    write_fairseq(tmp_path / "x", numbered_documents([3, 2], "uint16"), 8, "uint16")
    with (tmp_path / "x.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match=r"0.*10.*another"):
        stores.open(tmp_path / "x")


@pytest.mark.parametrize("dialect", ["megatron", "deepspeed", "neox"])
def test_a_dialect_with_the_other_layout(tmp_path: Path, dialect: Any) -> None:
    with pytest.raises(StoreError, match=rf"dialect='{dialect}'.*dialect='fairs"):
        stores.open(DIALECTS / "fairseq-uint32", dialect=dialect)
    with pytest.raises(StoreError, match="dialect='fairseq'"):
        stores.open(GOLDEN / "indexed" / "uint16", dialect="fairseq")


def test_codes_of_fairseq_in_megatrons_layout(tmp_path: Path) -> None:
    for code in (9, 10):
        write_code(tmp_path / "x", code, "uint32")
        with pytest.raises(StoreError, match=rf"{code}.*9.*10"):
            stores.open(tmp_path / "x")


@pytest.mark.parametrize("using", ["mmap", "pread"])
def test_documents_that_a_merge_lost(using: str) -> None:
    path = DIALECTS / "neox-merged"
    with pytest.raises(StoreError, match=r"0.*1.*GPT-NeoX"):
        stores.open(path, reader=using)
    with pytest.warns(UserWarning, match="documents='sequences'"):
        store = stores.open(path, reader=using, documents="sequences")
    assert documents_of(store) == SEQUENCES
    assert store.lengths.tolist() == [3, 2, 0, 1]
    assert store.find_documents(np.arange(6)).tolist() == [0, 0, 0, 1, 1, 3]
    with pytest.warns(UserWarning, match="lost"):
        assert list(store.check()) == []


def test_sequences_of_a_whole_file_need_no_warning(tmp_path: Path) -> None:
    whole = stores.open(GOLDEN / "indexed" / "uint16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = stores.open(GOLDEN / "indexed" / "uint16", documents="sequences")
        again = pickle.loads(pickle.dumps(store))
    assert documents_of(store) == documents_of(again) == [[1, 2, 3], [4, 5], [6, 7], [], [8, 9]]
    assert store.fetch(0, 9).tolist() == whole.fetch(0, 9).tolist()
    assert store.fingerprint != whole.fingerprint
    assert again.fingerprint == store.fingerprint


def test_other_faults_are_not_forgiven_with_the_documents(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2, 2], [0, 4], [0], bytes(7))
    with pytest.raises(StoreError, match=r"7.*bytes"):
        stores.open(tmp_path / "x", documents="sequences")
    write_raw(tmp_path / "y", "uint16", [2, -1, 2], [0, 4, 8], [0], bytes(12))
    with pytest.warns(UserWarning, match="lost"):
        store = stores.open(tmp_path / "y", documents="sequences")
    with pytest.raises(StoreError, match=r"-1.*tokens"):
        store.num_tokens  # noqa: B018


def test_a_manifest_goes_on_to_vouch_for_the_tokens(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", "uint16", [2, 2, 2], [0, 4, 8], [0, 2, 3], np.arange(6, dtype="<u2").tobytes())
    vouch_for(tmp_path, [IndexedStore(tmp_path / "x")])
    for path in (tmp_path, tmp_path / "x"):
        store = stores.open(path, documents="sequences")
        assert documents_of(store) == [[0, 1], [2, 3], [4, 5]]
        assert list(store.check()) == []
    (tmp_path / "x.bin").write_bytes(bytes(12))
    assert "xxh3" in str(next(iter(stores.open(tmp_path, documents="sequences").check())))


@pytest.mark.parametrize("using", ["mmap", "pread"])
@pytest.mark.parametrize(
    ("path", "name", "modes", "documents"),
    [
        (DIALECTS / "modes-int8", "int8", [0, 1, 0, -1], DOCUMENTS),
        (DIALECTS / "modes-int32", "int32", [0, 1, 0, -1], DOCUMENTS),
        (GOLDEN / "indexed" / "multimodal", "int8", [0, 1], [[1, 2, 3, 4, 5]]),
    ],
)
def test_modes_are_told_by_size(path: Path, name: str, modes: list[int], documents: Any, using: str) -> None:
    store = stores.open(path, reader=using)
    assert isinstance(store, IndexedStore)
    assert store.modes is not None
    assert (store.modes.dtype.name, store.modes.tolist()) == (name, modes)
    assert documents_of(store) == documents
    assert list(store.check()) == []


def test_bytes_behind_the_index_are_tolerated_and_reported(tmp_path: Path) -> None:
    for name in ("uint16.idx", "uint16.bin"):
        (tmp_path / name).write_bytes((GOLDEN / "indexed" / name).read_bytes())
    assert IndexedStore(tmp_path / "uint16").modes is None
    with (tmp_path / "uint16.idx").open("ab") as file:
        file.write(b"abc")  # neither 5 modes of one byte nor of four
    store = IndexedStore(tmp_path / "uint16")
    assert store.modes is None
    assert [problem.place for problem in store.check()] == ["byte 142"]


def test_unknown_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nemo'.*'neox'.*'megatron'"):
        stores.open(tmp_path / "nothing", dialect="nemo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'none'.*'indices'.*'sequences'"):
        stores.open(tmp_path / "nothing", documents="none")  # type: ignore[arg-type]
    write_keyed(tmp_path / "k", a=("uint16", [np.array([1])]))
    for options in ({"dialect": "neox"}, {"documents": "sequences"}):
        with pytest.raises(ConfigError, match="format"):
            stores.open(tmp_path / "k", **options)  # type: ignore[arg-type]


def test_options_reach_every_shard_of_a_folder(tmp_path: Path) -> None:
    for number in range(3):
        write_raw(tmp_path / f"s{number}", "uint16", [1, 1], [0, 2], [0], np.array([1, 2], "<u2").tobytes())
    with pytest.raises(StoreError, match="documents='sequences'"):
        stores.open(tmp_path)
    with pytest.warns(UserWarning, match="lost"):
        assert documents_of(stores.open(tmp_path, documents="sequences")) == [[1], [2]] * 3
    with pytest.warns(UserWarning, match="lost"):
        assert len(stores.open_keys(tmp_path, documents="sequences")["tokens"]) == 6


@settings(deadline=None, max_examples=cases(16, 1000))
@given(
    dtype=st.sampled_from(["<i4", "<i8", "<u4"]),
    gap=st.integers(0, 5),
    scale=st.sampled_from([1, 2, 8]),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    name=st.sampled_from(["mmap", "pread"]),
)
def test_columns_with_steps_and_scales(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, gap: int, scale: int, steps: list[int], name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "column"
    entries = np.cumsum(steps) - steps[0]
    item = np.dtype(dtype).itemsize
    path.write_bytes(b"odd" + b"".join(entry.astype(dtype).tobytes() + bytes(gap) for entry in entries))
    column = IntegerColumn(
        reader(name), str(path), ArrayPlace("", 3, dtype, len(entries), stride=item + gap, scale=scale)
    )
    assert column.read(0, len(entries)).tolist() == (entries * scale).tolist()
    assert column.read(0, 0).tolist() == []
    at = np.array([len(entries) - 1, 0, len(entries) // 2])
    assert column.take(at).tolist() == (entries[at] * scale).tolist()
    assert column.array().tolist() == entries.tolist()
    assert not column.array().flags.writeable
    values = np.arange(int(entries[-1]) * scale + 3)
    wanted = np.searchsorted(entries * scale, values, side="right") - 1
    assert column.last_at_most(values).tolist() == wanted.tolist()


def test_a_pointer_that_overflows_when_scaled(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(np.array([0, 2**62, -(2**62)], "<i8").tobytes())
    column = IntegerColumn(reader("mmap"), str(tmp_path / "x"), ArrayPlace("", 0, "<i8", 3, scale=4))
    assert column.read(0, 1).tolist() == [0]
    for at in (1, 2):
        with pytest.raises(StoreError, match="4611686018427387904"):
            column.take(np.array([at]))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ["mmap", "pread"])
@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("repeats", [1, 3, 700])
def test_search(tmp_path: Path, name: str, count: int, repeats: int) -> None:
    """Against NumPy, at an odd offset, with runs of equal entries."""
    entries = np.arange(count) // repeats * 5
    (tmp_path / "x").write_bytes(b"odd" + entries.astype("<i8").tobytes() + b"rest")
    column = IntegerColumn(reader(name), str(tmp_path / "x"), ArrayPlace("", 3, "<i8", count))
    values = np.unique(np.concatenate([entries - 1, entries, entries + 1, [2**62]]).clip(0))
    np.testing.assert_array_equal(column.last_at_most(values), np.searchsorted(entries, values, side="right") - 1)
    assert column.last_at_most(values[:0]).tolist() == []
    np.testing.assert_array_equal(column.read(0, count), entries)
    at = np.array([count - 1, 0])
    np.testing.assert_array_equal(column.take(at), entries[at])


def test_what_bytes_hold() -> None:
    layout = IdxLayout(8, 5, 6)
    assert layout.describe(0, 34) == "header"
    assert layout.describe(33, 35) == "header, sizes of sequences 0 to 0"
    assert layout.describe(62, 95) == "pointers of sequences 1 to 4, document indices 0 to 0"
    assert layout.describe(0, 142) == (
        "header, sizes of sequences 0 to 4, pointers of sequences 0 to 4, document indices 0 to 5"
    )
    assert layout.describe(142, 150) == "unused bytes"
    with_modes = IdxLayout(8, 5, 6, "megatron", 1).arrays()
    assert with_modes.describe(140, 144) == "document indices 5 to 5, modes of sequences 0 to 1"
    assert IdxLayout(9, 2, 0, "fairseq").describe(20, 30) == "header, sizes of sequences 0 to 0"
