"""Ranges of the streams of several keys; and the store contract over keys with shards of their own."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace
import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.io import PreadReader
from headrace.plan import IntArray
from headrace.stores import CombinedStore, IndexedWriter, OutputShard, Store, save_manifest
from headrace.testing.stores import Documents, StoreContract, numbered_documents
from token_shards import manifest_of, write_keyed, write_shard

LENGTHS = [5, 0, 3, 7, 0, 2, 4]
CUT = 3
"""The first so many documents are the first shard."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, in a folder of their own, of ids, marks parallel to them, and answers that are not."""
    ids = numbered_documents(LENGTHS, "int32")
    marks = [document % 3 == 0 for document in ids]
    answers = numbered_documents([1] * len(LENGTHS), "int16")
    (tmp_path / "keyed").mkdir()
    for shard, part in (("s0", slice(0, CUT)), ("s1", slice(CUT, None))):
        write_keyed(
            tmp_path / "keyed" / shard,
            ids=("int32", ids[part]),
            marks=("bool", marks[part]),
            answers=("int16", answers[part]),
        )
    return tmp_path / "keyed"


@pytest.mark.parametrize("reader", ["mmap", "pread"])
@pytest.mark.parametrize("place", ["", "s1"])
def test_any_parallel_key(folder: Path, reader: str, place: str) -> None:
    store = stores.open(folder / place, reader=reader)
    first = 0 if place == "" else sum(LENGTHS[:CUT])
    ids = np.arange(first + 1, sum(LENGTHS) + 1)
    total = len(ids)
    begins = np.array([begin for begin in range(total + 1) for _ in range(begin, total + 1)])
    lengths = np.array([end - begin for begin in range(total + 1) for end in range(begin, total + 1)])
    for key, stream in ((None, ids), ("ids", ids), ("tokens", ids), ("marks", ids % 3 == 0)):
        found = store.pieces(begins, lengths, key)
        wanted = [stream[begin : begin + length].tolist() for begin, length in zip(begins, lengths, strict=True)]
        assert [piece.tolist() for piece in found] == wanted
        assert {piece.dtype for piece in found} == {store.dtypes["marks" if key == "marks" else "ids"]}
    for wrong in ("mask", "answers"):
        with pytest.raises(ConfigError, match=f"'{wrong}'"):
            store.pieces(np.array([0]), np.array([total]), wrong)


def test_mapped_streams_are_not_copied(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    write_shard(folder.parent / "other" / "indexed", numbered_documents(LENGTHS, "uint16"))
    begins, lengths = np.array([0, 4, 2]), np.array([3, 5, 1])
    for store, key in (
        (stores.open(folder / "s1"), None),
        (stores.open(folder / "s1"), "marks"),
        (stores.open(folder.parent / "other" / "indexed"), None),
    ):
        view = store.stream_view(key)
        assert view is not None
        assert all(np.shares_memory(piece, view) for piece in store.pieces(begins, lengths, key))
    for store in (stores.open(folder / "s1", reader="pread"), stores.open(folder, reader="mmap")):
        assert store.stream_view() is None
    # Of shards, what crosses from one to the next is a copy, and nothing else is.
    sharded = stores.open(folder)
    own = sharded.pieces(np.array([6, 6, 8]), np.array([2, 4, 2]))
    whole = [shard.stream_view() for shard in sharded.shards]  # type: ignore[attr-defined]
    assert [[np.shares_memory(piece, one) for one in whole] for piece in own] == [
        [True, False], [False, False], [False, True]
    ]  # fmt: skip


def test_ranges_that_are_not_mapped_are_read_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store then fetches them all at the same time."""
    (folder.parent / "other").mkdir()
    write_shard(folder.parent / "other" / "indexed", numbered_documents(LENGTHS, "uint16"))
    calls: list[int] = []
    whole = PreadReader.read_ranges

    def counted(self: PreadReader, path: str, offsets: IntArray, *rest: Any) -> Any:
        calls.append(len(offsets))
        return whole(self, path, offsets, *rest)

    begins, lengths = np.array([0, 4, 2, 4]), np.array([3, 5, 0, 1])
    for path, key in ((folder / "s1", None), (folder / "s1", "marks"), (folder.parent / "other" / "indexed", None)):
        store, mapped = stores.open(path, reader="pread"), stores.open(path)
        wanted = [piece.tolist() for piece in mapped.pieces(begins, lengths, key)]
        store.pieces(begins, lengths, key)  # looks at the index
        with monkeypatch.context() as patch:
            patch.setattr(PreadReader, "read_ranges", counted)
            calls.clear()
            assert [piece.tolist() for piece in store.pieces(begins, lengths, key)] == wanted
        assert calls == [4]
        with pytest.raises(IndexError, match="range"):
            store.pieces(np.array([0, store.num_tokens]), np.array([1, 1]), key)


def write_keys(folder: Path, keys: dict[str, tuple[str, list[Documents]]], *, values: tuple[str, ...] = ()) -> Path:
    """For each key its dtype and the documents of each of its shards; keys may have different numbers of shards."""
    outputs = []
    for key, (dtype, shards) in keys.items():
        for number, documents in enumerate(shards):
            with IndexedWriter(folder / f"{key}_{number}", dtype=dtype, ids=key not in values) as writer:
                if documents:
                    writer.add_documents(np.concatenate(documents), np.array([len(one) for one in documents]))
                outputs.append(OutputShard.of(writer.finish(), folder, key=key))
    save_manifest(folder, manifest_of(outputs))
    return folder


class TestMapped(StoreContract):
    test_check_finds_every_flipped_bit = None  # which those of the indexed format find; it has the same files

    keys = ("tokens", "rewards", "loss_mask")

    def write(self, folder: Path, documents: Documents) -> Path:
        mask = [(document % 2).astype("uint8") for document in documents]
        rewards = [np.array([0.5, 2], "float32")[: number % 3] for number in range(len(documents))]
        half = len(documents) // 2
        return write_keys(
            folder,
            {
                "rewards": ("float32", [rewards]),
                "tokens": (self.dtype, [documents[:half], [], documents[half:]]),
                "loss_mask": ("uint8", [mask[:1], mask[1:]]),
            },
            values=("rewards", "loss_mask"),
        )

    def open(self, path: Path) -> Store:
        store = stores.open(path)
        assert isinstance(store, CombinedStore)
        return store

    def test_a_pickled_store_that_changed_is_refused(self, tmp_path: Path, path: Path, documents: Documents) -> None:
        data = pickle.dumps(self.open(path))
        shutil.rmtree(tmp_path / "one")
        (tmp_path / "one").mkdir()
        self.write(tmp_path / "one", documents[::-1])
        with pytest.raises(StoreError, match="manifest"):
            pickle.loads(data)

    def test_every_key_of_a_document(self, store: Store, documents: Documents) -> None:

        for number, document in enumerate(documents):
            found = store.document(number, ["loss_mask", "rewards", "tokens"])
            assert list(found) == ["loss_mask", "rewards", "tokens"]
            assert found["tokens"].tolist() == document.tolist()
            assert found["loss_mask"].tolist() == (document % 2).tolist()
            assert (found["rewards"].dtype, found["rewards"].tolist()) == (np.float32, [0.5, 2][: number % 3])

    def test_parallel_keys_are_read_alike(self, store: Store, documents: Documents) -> None:
        stream = np.concatenate(documents)
        begins, lengths = np.array([0, 20, 3, 7]), np.array([30, 0, 5, 331])
        found = store.pieces(begins, lengths, "loss_mask")
        assert [piece.tolist() for piece in found] == [
            (stream[begin : begin + length] % 2).tolist() for begin, length in zip(begins, lengths, strict=True)
        ]
        assert store.fetch(3, 40, ["tokens", "loss_mask"])["loss_mask"].tolist() == (stream[3:40] % 2).tolist()
        for ask in (
            lambda: store.fetch(0, 1, "rewards"),
            lambda: store.pieces(begins, lengths, "rewards"),
            lambda: store.stream_view("rewards"),
        ):
            with pytest.raises(ConfigError, match=r"'rewards'.*12.*'tokens'"):
                ask()


def test_names_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / name, numbered_documents([2], "uint16"))
    one, other = stores.open(tmp_path / "a"), stores.open(tmp_path / "b")
    prints = {CombinedStore(keys, "p").fingerprint for keys in ({"x": one, "y": other}, {"x": one, "z": other})}
    assert len(prints) == 2


@settings(max_examples=cases(16, 40), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    moved=st.integers(0, 29),
    sampled=st.integers(1, 50),
)
def test_what_is_sampled_of_the_borders(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], moved: int, sampled: int
) -> None:
    """A key with as many values is parallel where the sampled documents begin alike; of few documents all do."""
    folder = tmp_path_factory.mktemp("c")
    at = moved % len(lengths)
    others = list(lengths)
    if at + 1 < len(lengths) and lengths[at]:
        others[at], others[at + 1] = lengths[at] - 1, lengths[at + 1] + 1
    write_shard(folder / "a", numbered_documents(lengths, "uint16"))
    write_shard(folder / "b", numbered_documents(others, "uint16"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.stores.combined._SAMPLED_DOCUMENTS", sampled)
        store = CombinedStore({"a": stores.open(folder / "a"), "b": stores.open(folder / "b")}, "both")
        step = max(1, len(lengths) // sampled)
        looked_at = set(range(0, len(lengths) + 1, step))
        if others == lengths or at + 1 not in looked_at:
            assert store.fetch(0, sum(lengths), "b").tolist() == store.fetch(0, sum(lengths)).tolist()
        else:
            with pytest.raises(ConfigError, match="lengths"):
                store.fetch(0, 0, "b")


def test_keys_of_different_documents(tmp_path: Path) -> None:
    write_shard(tmp_path / "a", numbered_documents([2, 3], "uint16"))
    write_shard(tmp_path / "b", numbered_documents([2], "uint16"))
    with pytest.raises(StoreError, match=r"'a'.*2.*'b'"):
        CombinedStore({"a": stores.open(tmp_path / "a"), "b": stores.open(tmp_path / "b")}, "p")
    with pytest.raises(StoreError, match="keys"):
        CombinedStore({}, "p")


def test_ids_are_looked_for_only_where_there_are_ids(tmp_path: Path) -> None:
    keys = {
        "tokens": ("uint16", [[np.array([1, 2])]]),
        "response_lengths": ("int32", [[np.array([90_000])]]),
        "rewards": ("float64", [[np.array([0.25])]]),
    }
    folder = write_keys(tmp_path, keys, values=("response_lengths", "rewards"))
    assert list(stores.open(folder).check(vocab_size=3)) == []
    assert list(stores.open(folder, key="rewards").check(vocab_size=3)) == []
    assert ["id 2 is" in problem.message for problem in stores.open(folder).check(vocab_size=2)] == [True]
    listed = {key: info.ids for shard in stores.load_manifest(folder).outputs for key, info in shard.keys.items()}
    assert listed == {"tokens": True, "response_lengths": False, "rewards": False}
    with pytest.raises(ConfigError, match="float32"):
        IndexedWriter(tmp_path / "x", dtype="float32")
    with pytest.raises(ConfigError, match="uint8"):
        IndexedWriter(tmp_path / "x", dtype="bool", ids=False)


def test_a_dataset_over_it(tmp_path: Path) -> None:
    ids = numbered_documents([5, 3, 4], "uint16")
    mask = [(document % 2).astype("uint8") for document in ids]
    keys = {"tokens": ("uint16", [ids[:2], ids[2:]]), "loss_mask": ("uint8", [mask])}
    store = headrace.open(write_keys(tmp_path, keys, values=("loss_mask",)))
    packed = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=8), loss_mask_key="loss_mask")
    for sample in map(packed.__getitem__, range(len(packed))):
        trained = sample["labels"][sample["loss_mask"]]
        assert len(trained)
        assert (trained % 2 == 1).all()
    assert pickle.loads(pickle.dumps(packed)).fingerprint == packed.fingerprint
