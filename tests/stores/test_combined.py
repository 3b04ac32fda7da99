"""The store contract over keys with shards of their own, and what only such a store has."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, StoreError
from headrace.stores import CombinedStore, IndexedWriter, OutputShard, ShardedStore, Store, save_manifest
from headrace.testing.shards import manifest_of, write_shard
from headrace.testing.stores import Documents, StoreContract, numbered_documents


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


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
        with pytest.raises(StoreError, match="not the shard that the manifest lists"):
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
            with pytest.raises(
                ConfigError, match="key 'rewards' has 12 values, but the main key 'tokens' has 338: the streams"
            ):
                ask()


class TestRead(TestMapped):
    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


def test_a_key_of_its_own_opens_alone(tmp_path: Path) -> None:
    ids = numbered_documents([2, 3], "uint16")
    folder = write_keys(tmp_path, {"chosen": ("uint16", [ids]), "rejected": ("uint16", [ids[::-1]])})
    assert stores.open(folder).keys == ("chosen", "rejected")
    assert stores.open(folder, key="rejected").keys == ("tokens",)
    assert stores.open(folder, key="rejected").lengths.tolist() == [3, 2]
    assert {key: type(store).__name__ for key, store in stores.open_keys(folder).items()} == {
        "chosen": "IndexedStore",
        "rejected": "IndexedStore",
    }
    with pytest.raises(ConfigError, match="no key 'tokens'; its keys are 'chosen', 'rejected'"):
        stores.open(folder, key="tokens")


def test_names_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / name, numbered_documents([2], "uint16"))
    one, other = stores.open(tmp_path / "a"), stores.open(tmp_path / "b")
    prints = {CombinedStore(keys, "p").fingerprint for keys in ({"x": one, "y": other}, {"x": one, "z": other})}
    assert len(prints) == 2


def test_equal_totals_are_not_enough(tmp_path: Path) -> None:
    ids = numbered_documents([2, 3, 4], "uint16")
    folder = write_keys(tmp_path, {"chosen": ("uint16", [ids]), "rejected": ("uint16", [ids[::-1]])})
    store = stores.open(folder)
    assert store.document(0, "rejected").tolist() == [6, 7, 8, 9]
    with pytest.raises(ConfigError, match="key 'rejected' has documents of other lengths than the main key 'chosen'"):
        store.fetch(0, 2, "rejected")


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
            with pytest.raises(ConfigError, match="other lengths"):
                store.fetch(0, 0, "b")


def test_keys_of_different_documents(tmp_path: Path) -> None:
    write_shard(tmp_path / "a", numbered_documents([2, 3], "uint16"))
    write_shard(tmp_path / "b", numbered_documents([2], "uint16"))
    with pytest.raises(
        StoreError, match=r"p: the keys have different numbers of documents: 'a' has 2, 'b' has 1; open them one"
    ):
        CombinedStore({"a": stores.open(tmp_path / "a"), "b": stores.open(tmp_path / "b")}, "p")
    with pytest.raises(StoreError, match="no keys"):
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
    with pytest.raises(ConfigError, match="dtype float32 cannot hold tokens in the indexed format"):
        IndexedWriter(tmp_path / "x", dtype="float32")
    with pytest.raises(ConfigError, match="dtype bool cannot hold values in the indexed format; allowed are uint8"):
        IndexedWriter(tmp_path / "x", dtype="bool", ids=False)


def test_datasets_over_it(tmp_path: Path) -> None:
    ids = numbered_documents([5, 3, 4], "uint16")
    mask = [(document % 2).astype("uint8") for document in ids]
    folder = write_keys(
        tmp_path,
        {"tokens": ("uint16", [ids[:2], ids[2:]]), "loss_mask": ("uint8", [mask])},
        values=("loss_mask",),
    )
    store = headrace.open(folder)
    windows = headrace.WindowDataset(store, seq_len=4)
    assert [sample["input_ids"].tolist() for sample in (windows[0], windows[1])] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    packed = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=8), loss_mask_key="loss_mask")
    for number in range(len(packed)):
        sample = packed[number]
        trained = sample["labels"][sample["loss_mask"]]
        assert len(trained)
        assert (trained % 2 == 1).all()
    assert pickle.loads(pickle.dumps(packed)).fingerprint == packed.fingerprint
    sharded = store.stores["tokens"]  # type: ignore[attr-defined]
    assert isinstance(sharded, ShardedStore)
