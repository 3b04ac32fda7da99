"""The dialects of Megatron's layout: what the bytes tell, what has to be said, and what is refused."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.io import reader
from headrace.stores.indexed.index import ArrayPlace, IntegerColumn
from headrace.stores.indexed.layout import IdxLayout
from headrace.stores.indexed.pairs import AlephAlphaStore, TntStore
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.store import Store
from headrace.testing.stores import Documents, numbered_documents
from store_contracts import OpenedContract
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


class TestFairseqLayout(OpenedContract):
    dtype = "uint32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_fairseq(folder / "shard", documents, 9, self.dtype)


class TestSequencesAsDocuments(OpenedContract):
    """The index says nothing of documents; mapped and read must not matter, so this one is read."""

    options: ClassVar = {"reader": "pread", "documents": "sequences"}

    def write(self, folder: Path, documents: Documents) -> Path:
        ends = np.cumsum([0, *(len(document) for document in documents)]) * 2
        data = b"".join(document.tobytes() for document in documents)
        sizes = [len(document) for document in documents]
        # One document of everything: it is not looked at.
        write_raw(folder / "shard", self.dtype, sizes, ends[:-1].tolist(), [0, len(sizes)], data)
        return folder / "shard"


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


# Aleph Alpha's ``.bin``, ``.idx`` and ``.meta.json``.


def write_triple(prefix: Path, documents: Documents, dtype: str, index_dtype: str = "int64") -> Path:
    lengths = np.array([len(document) for document in documents], np.int64)
    pairs = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).astype(index_dtype)
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(document.tobytes() for document in documents))
    prefix.with_name(prefix.name + ".idx").write_bytes(pairs.tobytes())
    meta = {"dtype": dtype, "index_dtype": index_dtype, "document_count": len(documents)}
    prefix.with_name(prefix.name + ".meta.json").write_text(json.dumps(meta))
    return prefix


class TestAlephAlpha(OpenedContract):
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_triple(folder / "shard", documents, self.dtype)


class TestAlephAlphaRead(OpenedContract):
    """With a narrow index, and read."""

    options: ClassVar = {"reader": "pread"}

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_triple(folder / "shard", documents, self.dtype, "uint32")


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx", ".meta.json"])
def test_golden_aleph_alpha(suffix: str) -> None:
    store = stores.open(f"{DIALECTS}/aleph-alpha{suffix}")
    assert isinstance(store, AlephAlphaStore)
    assert store.format == "aleph-alpha"
    assert documents_of(store) == SEQUENCES
    assert [file.name for file in store.files] == ["aleph-alpha.bin", "aleph-alpha.idx", "aleph-alpha.meta.json"]
    assert list(store.check(vocab_size=7)) == []


def test_documents_in_any_place(tmp_path: Path) -> None:
    write_triple(tmp_path / "x", [np.arange(9, dtype="int32")], "int32")
    (tmp_path / "x.idx").write_bytes(np.array([[5, 3], [0, 2], [4, 1]], "<i8").tobytes())
    meta = {"dtype": "int32", "index_dtype": "int64", "document_count": 3, "more": 1}
    (tmp_path / "x.meta.json").write_text(json.dumps(meta))
    store = stores.open(tmp_path / "x")
    assert documents_of(store) == [[5, 6, 7], [0, 1], [4]]
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
        (tmp_path / f"x{suffix}").write_bytes((DIALECTS / f"aleph-alpha{suffix}").read_bytes())
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


# The older layout of fairseq and of Megatron-LM, ``TNTIDX``.


IDX = (DIALECTS / "tnt-megatron.idx").read_bytes()
BIN = (DIALECTS / "tnt-megatron.bin").read_bytes()


def write_tnt(prefix: Path, documents: Documents, *, code: int, dtype: str, add: int, has_documents: bool) -> Path:
    sizes = [len(document) for document in documents]
    bounds = range(len(sizes) + 1)
    ends = np.cumsum([0, *sizes])
    idx = struct.pack("<8sQQQQQ", b"TNTIDX", 1, code, np.dtype(dtype).itemsize, len(sizes), len(sizes))
    idx += struct.pack("<Q", len(bounds)) if has_documents else b""
    for numbers in (bounds, ends, sizes, bounds if has_documents else []):
        idx += np.array(numbers, "<i8").tobytes()
    data = b"".join((document + np.dtype(dtype).type(add)).tobytes() for document in documents)
    prefix.with_name(prefix.name + ".idx").write_bytes(idx)
    prefix.with_name(prefix.name + ".bin").write_bytes(data)
    return prefix


class TestFairseq(OpenedContract):
    """Ids + 1 are stored."""

    options: ClassVar = {"dialect": "fairseq"}

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_tnt(folder / "shard", documents, code=8, dtype=self.dtype, add=1, has_documents=False)


class TestMegatronRead(OpenedContract):
    options: ClassVar = {"reader": "pread"}
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        return write_tnt(folder / "shard", documents, code=4, dtype=self.dtype, add=0, has_documents=True)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden_tnt(reader: str) -> None:
    store = stores.open(DIALECTS / "tnt-megatron", reader=reader)
    assert isinstance(store, TntStore)
    assert store.format == "tntidx"
    assert documents_of(store) == DOCUMENTS
    assert store.sequence_lengths.tolist() == [3, 2, 0, 1]
    assert list(store.check(vocab_size=7)) == []
    other = stores.open(DIALECTS / "tnt-megatron", reader=reader, documents="sequences")
    assert documents_of(other) == SEQUENCES
    store = stores.open(DIALECTS / "tnt-fairseq", reader=reader, dialect="fairseq")
    assert documents_of(store) == SEQUENCES
    assert list(store.check(vocab_size=7)) == []
    assert [problem.place for problem in store.check(vocab_size=6)] == ["document 3, value 5 of the stream"]
    assert store.stream_view() is None  # what lies there is not the tokens
    raw = stores.open(DIALECTS / "tnt-fairseq", reader=reader, dialect="megatron")
    assert raw.fetch(0, 6).tolist() == [2, 3, 4, 5, 6, 7]
    assert raw.fingerprint != store.fingerprint


def test_who_wrote_it_has_to_be_said_where_nothing_tells() -> None:
    with pytest.raises(StoreError, match=r"1.*dialect='fairseq'.*dialect='megatron'"):
        stores.open(DIALECTS / "tnt-fairseq")
    with pytest.raises(StoreError, match="dialect='fairseq'"):
        stores.open(DIALECTS / "tnt-megatron", dialect="fairseq")


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_a_stored_0_is_no_id_plus_1(tmp_path: Path, reader: str) -> None:
    write_tnt(tmp_path / "x", [np.array([0, 5], "u2")], code=8, dtype="uint16", add=0, has_documents=False)
    store = stores.open(tmp_path / "x", dialect="fairseq", reader=reader)
    for read in (lambda: store.document(0), lambda: store.fetch(0, 2), lambda: store.gather(np.array([0]), 2)):
        with pytest.raises(StoreError, match=r"x\.bin.*0.*dialect='megatron'"):
            read()
    [problem] = store.check(vocab_size=10)
    assert "holds the number 0" in problem.message


def put(at: int, value: int, idx: bytes = IDX) -> bytes:
    return idx[:at] + struct.pack("<q", value) + idx[at + 8 :]


CASES: dict[str, tuple[bytes, str]] = {
    "version 2": (put(8, 2), "8.*2.*cached"),
    "code 0": (put(16, 0), "16.*0.*uint8"),
    "code 11": (put(16, 11), "11"),
    "an element of another size": (put(24, 2), "2.*int32.*4"),
    "float numbers of half the size": (put(16, 6), "4.*float64.*8"),
    "items of two dimensions": (put(40, 8), "8.*4.*dimensions"),
    "half a header": (IDX[:40], "40.*48"),
    "cut short": (IDX[:-1], "short.*207"),
    "too long": (IDX + b"!", "209"),
    "more items than bytes": (put(32, 2**60, put(40, 2**60)), "short"),
    "documents that end early": (put(200, 3), "0.*4.*0.*3.*documents='sequences'"),
    "offsets that end elsewhere": (put(128, 7), "128.*28.*24"),
    "a last item behind the file": (put(120, 6), "28.*24"),
    "an offset that overflows": (put(120, 2**62), "beyond"),
    "a negative offset": (put(120, -3), "negative"),
}


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path: Path, name: str, reader: str) -> None:
    idx, message = CASES[name]
    (tmp_path / "x.idx").write_bytes(idx)
    (tmp_path / "x.bin").write_bytes(BIN)
    with pytest.raises(StoreError, match=message) as caught:
        stores.open(tmp_path / "x", reader=reader)
    assert str(tmp_path / "x") in str(caught.value)


def test_check_finds_items_of_several_dimensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.indexed.pairs.CHUNK", 2)
    (tmp_path / "x.bin").write_bytes(BIN)
    (tmp_path / "x.idx").write_bytes(put(56 + 8 * 3, 2))
    assert [problem.place for problem in stores.open(tmp_path / "x").check()] == ["sequence 3"]
