"""The store contract over the keyed format, and what only it has: several keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import ConfigError, StoreError
from headrace.stores import KeyedStore, ShardedStore, Store
from headrace.testing.shards import vouch_for_keyed, write_keyed, write_raw_keyed
from headrace.testing.stores import Documents, StoreContract, numbered_documents

GOLDEN = Path(__file__).parents[1] / "golden" / "keyed"


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


class TestMapped(StoreContract):
    def write(self, folder: Path, documents: Documents) -> Path:
        write_keyed(folder / "shard", tokens=(self.dtype, documents))
        return folder / "shard"

    def open(self, path: Path) -> Store:
        return stores.open(path)

    def vouch(self, path: Path) -> None:
        vouch_for_keyed(path.parent, [self.open(path)])


class TestRead(TestMapped):
    test_check_finds_every_flipped_bit = None  # which is dear, and no other for another way of reading

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


class TestInt32(TestMapped):
    test_check_finds_every_flipped_bit = None

    dtype = "int32"


class TestSharded(TestMapped):
    """Every four documents a shard, in folders of several depths, and empty shards between."""

    def write(self, folder: Path, documents: Documents) -> Path:
        parts = [documents[at : at + 4] for at in range(0, len(documents), 4)]
        for number, part in enumerate([*parts[:1], [], *parts[1:], []], start=8):
            shard = folder / "data" / f"domain{number // 10}" / f"shard_{number}"  # shard_10 comes after shard_9
            shard.parent.mkdir(parents=True, exist_ok=True)
            write_keyed(shard, tokens=(self.dtype, part))
        return folder / "data"

    def vouch(self, path: Path) -> None:
        vouch_for_keyed(path, self.open(path).shards)

    def open(self, path: Path) -> Store:
        store = stores.open(path)
        assert isinstance(store, ShardedStore)
        return store


class TestShardedRead(TestSharded):
    test_check_finds_every_flipped_bit = None

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden(reader: str) -> None:
    store = stores.open(GOLDEN / "some", reader=reader)
    assert isinstance(store, KeyedStore)
    assert store.keys == ("sequence", "loss_mask", "f")
    assert {key: dtype.name for key, dtype in store.dtypes.items()} == {
        "sequence": "int32",
        "loss_mask": "bool",
        "f": "float32",
    }
    assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (2, 3, [2, 1])
    # The mask has no offsets of its own, and as many values: those of the sequence are its, too.
    found = store.document(1, ["sequence", "loss_mask"])
    assert {key: values.tolist() for key, values in found.items()} == {"sequence": [258], "loss_mask": [True]}
    assert store.fetch(1, 3, "loss_mask").tolist() == [False, True]
    assert store.gather(np.array([1, 0]), 2).tolist() == [[2, 258], [1, 2]]
    assert list(store.check(vocab_size=259)) == []
    assert stores.open(GOLDEN / "some", key="f").document(0).tolist() == [1.5]


def test_golden_without_offsets() -> None:
    store = stores.open(GOLDEN / "none")
    assert store.lengths.tolist() == [3]
    assert store.document(0).tolist() == [1, 2, 258]
    assert store.find_documents(np.array([0, 2])).tolist() == [0, 0]
    assert list(store.check()) == []


def test_golden_with_offsets_for_all() -> None:
    store = stores.open(GOLDEN / "all")
    assert [store.document(number).tolist() for number in range(3)] == [[1, 2], [], [258]]
    assert [store.document(number, "loss mask").tolist() for number in range(3)] == [[], [1, 0], [1]]


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int64", "float16", "float32", "float64"])
def test_golden_dtypes(name: str) -> None:
    store = stores.open(GOLDEN / name)
    assert store.dtypes["k"] == np.dtype(name)
    assert store.fetch(0, 3).tolist() == [1, 2, 3]


class TestKeys:
    """Three streams: ids, a parallel mask, and answers of other lengths."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        ids = numbered_documents([3, 0, 2], "int32")
        mask = [document % 2 for document in ids]
        answers = numbered_documents([1, 4, 2], "int32")
        write_keyed(tmp_path / "s", ids=("int32", ids), mask=("bool", mask), answers=("int32", answers))
        return tmp_path / "s"

    def test_the_first_is_the_main_one(self, folder: Path) -> None:
        store = stores.open(folder)
        assert store.keys == ("ids", "mask", "answers")
        for keys in (None, "ids", "tokens"):
            assert store.document(2, keys).tolist() == [4, 5]
            assert store.fetch(2, 4, keys).tolist() == [3, 4]
        assert {key: values.tolist() for key, values in store.document(2, ["tokens", "mask"]).items()} == {
            "tokens": [4, 5],
            "mask": [False, True],
        }

    def test_another_may_be_chosen(self, folder: Path) -> None:
        store = stores.open(folder, key="answers")
        assert store.keys == ("answers", "ids", "mask")
        assert (store.num_tokens, store.lengths.tolist()) == (7, [1, 4, 2])
        assert store.document(1).tolist() == [2, 3, 4, 5]
        assert store.gather(np.array([3]), 4).tolist() == [[4, 5, 6, 7]]
        assert store.fingerprint != stores.open(folder).fingerprint
        with pytest.raises(ConfigError, match=r"no key 'other'; its keys are 'ids', 'mask', 'answers'"):
            stores.open(folder, key="other")

    def test_documents_of_any_key_the_stream_of_parallel_ones(self, folder: Path) -> None:
        store = stores.open(folder)
        assert store.document(1, "answers").tolist() == [2, 3, 4, 5]
        assert store.fetch(1, 4, "mask").tolist() == [False, True, False]
        with pytest.raises(
            ConfigError, match=r"key 'answers' has 7 values, but the main key 'ids' has 5: the streams are not"
        ):
            store.fetch(0, 1, ["ids", "answers"])

    def test_a_key_that_is_called_tokens_is_the_main_one(self, tmp_path: Path) -> None:
        part = numbered_documents([2], "int32")
        write_keyed(tmp_path / "s", prompt=("int32", [part[0] + 10]), tokens=("int32", part))
        assert stores.open(tmp_path / "s").keys == ("tokens", "prompt")
        chosen = stores.open(tmp_path / "s", key="prompt")
        assert chosen.document(0).tolist() == chosen.gather(np.array([0]), 2)[0].tolist() == [11, 12]
        assert chosen.document(0, "tokens").tolist() == [1, 2]

    def test_one_without_documents_of_its_own(self, tmp_path: Path) -> None:
        meta = b'{"a": {"shape": [3], "dtype": "uint8", "offsets": [0, 1, 3]}, "b": {"shape": [4], "dtype": "uint8"}}'
        write_raw_keyed(tmp_path / "s", meta, {"a": b"\1\2\3", "b": b"\4\5\6\7"})
        with pytest.raises(
            ConfigError, match=r"key 'b' has 1 documents, but the main key 'a' has 2; open the store with key='b'"
        ):
            stores.open(tmp_path / "s").document(0, "b")
        assert stores.open(tmp_path / "s", key="b").document(0).tolist() == [4, 5, 6, 7]

    def test_shards_whose_keys_are_in_another_order(self, folder: Path) -> None:
        part = numbered_documents([2], "int32")
        write_keyed(folder.parent / "t", mask=("bool", part), answers=("int32", part), ids=("int32", part))
        store = stores.open(folder.parent)
        assert [shard.keys[0] for shard in store.shards] == ["ids", "ids"]
        assert store.document(3).tolist() == [1, 2]
        assert store.fetch(3, 7, "mask").tolist() == [False, True, True, True]
        assert store.fetch(4, 4, "mask").dtype == np.bool_
        with pytest.raises(ConfigError, match="not parallel"):
            store.fetch(0, 7, "answers")
        assert stores.open(folder.parent, key="answers").num_tokens == 9

    def test_shards_with_other_keys(self, folder: Path) -> None:
        write_keyed(folder.parent / "t", ids=("int32", []))
        with pytest.raises(
            StoreError, match=r"s has ids of int32, mask of bool, answers of int32, .*t has ids of int32"
        ):
            stores.open(folder.parent)

    def test_every_key(self, folder: Path) -> None:
        assert {key: store.num_tokens for key, store in stores.open_keys(folder).items()} == {
            "ids": 5,
            "mask": 5,
            "answers": 7,
        }


def test_empty_keys(tmp_path: Path) -> None:
    meta = b'{"a": {"shape": [0], "dtype": "int32"}, "b": {"shape": [0], "dtype": "bool", "offsets": [0]}}'
    store = stores.open(write_raw_keyed(tmp_path / "s", meta, {"a": b"", "b": b""}))
    assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (0, 0, [])
    assert store.fetch(0, 0, "b").tolist() == []
    assert list(store.check(vocab_size=1)) == []


def test_offsets_are_parsed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list(range(60))
    write_keyed(tmp_path / "s", tokens=("int32", numbered_documents(lengths, "int32")))
    for size in (1, 2, 7, 200, 10_000):
        monkeypatch.setattr("headrace.stores.keyed.layout._PIECE_BYTES", size)
        assert stores.open(tmp_path / "s").lengths.tolist() == lengths


def test_spaces_and_null_are_json_too(tmp_path: Path) -> None:
    meta = b' {"a":\n{"dtype":"uint8","offsets":[ 0 ,1,\t3 ] ,"shape":[3]},'
    meta += b'"b":{"offsets":null,"dtype":"uint8","shape":[1]}}'
    store = stores.open(write_raw_keyed(tmp_path / "s", meta, {"a": b"\1\2\3", "b": b"\4"}))
    assert store.lengths.tolist() == [1, 2]
    assert stores.open(tmp_path / "s", key="b").lengths.tolist() == [1]


def test_opening_parses_no_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keyed(tmp_path / "s", tokens=("int32", numbered_documents([1, 2], "int32")))

    def refuse(*_: object) -> None:
        raise AssertionError("the offsets were to be left alone")

    monkeypatch.setattr("headrace.stores.keyed.store.parse_bounds", refuse)
    store = stores.open(tmp_path / "s")
    assert (store.num_documents, store.num_tokens, store.fetch(0, 2).tolist()) == (2, 3, [1, 2])
    assert store.gather(np.array([1]), 2).tolist() == [[2, 3]]
    with pytest.raises(AssertionError, match="left alone"):
        store.lengths  # noqa: B018
