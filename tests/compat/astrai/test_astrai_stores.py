"""AstrAI's own tests of its stores as black boxes, and where this reader does better."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.compat.astrai import H5Store, MmapStore, Store, StoreFactory, detect_format
from headrace.errors import ConfigError, StoreError
from headrace.stores import KeyedWriter, write_hdf5
from token_shards import write_shard

torch = pytest.importorskip("torch")
pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

Save = Callable[[Path, dict[str, list[Any]]], None]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def ids(*values: int) -> Any:
    return np.array(values, np.int64)


def save_h5(folder: Path, arrays: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_hdf5(folder / "data.h5", arrays)


def save_bin(folder: Path, arrays: dict[str, list[Any]]) -> None:
    """Write one stream for each key, without the borders of records, as AstrAI's pipeline does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with KeyedWriter(folder, dtypes={key: parts[0].dtype for key, parts in arrays.items()}, offsets=()) as writer:
        writer.add_documents({key: np.concatenate(parts) for key, parts in arrays.items()}, {})
        writer.finish()


@pytest.fixture(params=["h5", "bin"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def save(name: str) -> Save:
    return {"h5": save_h5, "bin": save_bin}[name]


def loaded(name: str, folder: Path) -> Store:
    store = StoreFactory.create(name)
    store.load(folder)
    return store


class TestDetectFormat:
    def test_what_there_is(self, tmp_path: Path) -> None:
        save_bin(tmp_path / "a" / "domain" / "shard_0000", {"sequence": [ids(1)]})
        assert detect_format(tmp_path / "a") == "bin"
        save_h5(tmp_path / "a" / "other", {"sequence": [ids(1)]})
        assert detect_format(tmp_path / "a") == "h5"
        (tmp_path / "y.HDF5").touch()
        assert detect_format(tmp_path / "y.HDF5") == "h5"
        (tmp_path / "c").mkdir()
        write_shard(tmp_path / "c" / "x", [np.array([1])])
        assert detect_format(tmp_path / "c") == "bin"

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/no"):
            detect_format(tmp_path / "no")
        (tmp_path / "x.bin").touch()
        (tmp_path / ".hidden").mkdir()
        (tmp_path / ".hidden" / "x.h5").touch()
        with pytest.raises(FileNotFoundError, match="supported"):
            detect_format(tmp_path)
        for name in ("x.txt", "x.jsonl", "x.bin"):
            (tmp_path / name).touch()
            with pytest.raises(ValueError, match="Unsupported"):
                detect_format(tmp_path / name)


def test_names() -> None:
    assert type(StoreFactory.create("bin")) is MmapStore
    assert type(StoreFactory.create("h5")) is H5Store
    with pytest.raises(ValueError, match=r"'parquet'.*\['bin'.*'h5'"):
        StoreFactory.create("parquet")


def test_segments(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [ids(1, 2, 3), ids(4, 5, 6, 7), ids(8, 9)]})
    store = loaded(name, tmp_path / "d")
    assert len(store) == 9
    assert store.keys == ["sequence"]
    assert store.fetch(2, 7, "sequence").tolist() == [3, 4, 5, 6, 7]


def test_the_truth_table(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [ids(0, 1, 2), ids(3, 4, 5, 6), ids(7, 8)]})
    store = loaded(name, tmp_path / "d")
    for begin in range(-1, 11):
        for end in range(-1, 11):
            if 0 <= begin < 9 and begin <= end <= 9:
                assert store.fetch(begin, end, "sequence").tolist() == list(range(begin, end))
                continue
            with pytest.raises(ValueError, match=rf"begin={begin}.*end={end}.*length=9") as caught:
                store.fetch(begin, end, "sequence")
            assert isinstance(caught.value, ConfigError)


def test_several_keys(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [np.arange(50)], "mask": [np.arange(50) % 2]})
    store = loaded(name, tmp_path / "d")
    found = store.fetch(10, 20, ["sequence", "mask"])
    assert {key: len(tensor) for key, tensor in found.items()} == {"sequence": 10, "mask": 10}
    with pytest.raises(KeyError, match="sequence"):
        store.fetch(0, 1, ["sequence", "other"])
    found["sequence"][:] = 0  # a copy
    assert store.fetch(10, 12, "sequence").tolist() == [10, 11]


@pytest.mark.parametrize("kind", [H5Store, MmapStore])
def test_before_it_is_loaded(kind: type[Store]) -> None:
    store = kind()
    assert (len(store), store.keys) == (0, [])
    with pytest.raises(RuntimeError, match="loaded"):
        store.fetch(0, 1, "a")


def test_empty_keys(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "e", {"sequence": [ids(1, 2)], "mask": [ids()]})
    store = loaded(name, tmp_path / "e")
    assert (len(store), store.keys) == (0, ["sequence", "mask"])


def test_keys_of_different_lengths(tmp_path: Path) -> None:
    """For parity: the same places of both streams, cut at the shorter one."""
    save_h5(tmp_path, {"chosen": [ids(1, 2), ids(3)], "rejected": [ids(4), ids(5, 6, 7)]})
    store = loaded("h5", tmp_path)
    assert len(store) == 3
    assert store.fetch(1, 3, "rejected").tolist() == [5, 6]


def test_shards_and_datasets_come_by_their_numbers(tmp_path: Path) -> None:
    """AstrAI reads shards in the order of the file system, and data_10 before data_2."""
    for number in (10, 9, 1):
        save_bin(tmp_path / "b" / f"shard_{number}", {"a": [ids(number)]})
    assert loaded("bin", tmp_path / "b").fetch(0, 3, "a").tolist() == [1, 9, 10]
    save_h5(tmp_path / "h", {"sequence": [ids(number) for number in range(12)]})
    assert loaded("h5", tmp_path / "h").fetch(0, 12, "sequence").tolist() == list(range(12))


def test_what_is_not_its_own(tmp_path: Path) -> None:
    for kind in (MmapStore, H5Store):
        with pytest.raises(StoreError, match="nothing"):
            kind().load(tmp_path / "no")
    save_bin(tmp_path / "b", {"a": [ids(1)]})
    with pytest.raises(ValueError, match=r"H5Store.*'keyed'.*detect_format"):
        H5Store().load(tmp_path / "b")
    (tmp_path / "b" / "a.bin").write_bytes(b"123")
    with pytest.raises(StoreError, match=r"a\.bin"):
        MmapStore().load(tmp_path / "b")


def test_a_key_that_a_shard_lacks(tmp_path: Path) -> None:
    """AstrAI joins what there is, and the keys are shifted against each other from there on."""
    save_bin(tmp_path / "shard_0000", {"sequence": [ids(1, 2)], "loss_mask": [ids(0, 1)]})
    save_bin(tmp_path / "shard_0001", {"sequence": [ids(3)]})
    with pytest.raises(StoreError, match=r"shard_0000.*loss_mask.*shard_0001"):
        loaded("bin", tmp_path)


def test_memory_is_shared_already(tmp_path: Path) -> None:
    save_bin(tmp_path, {"a": [ids(1, 2)]})
    store = loaded("bin", tmp_path)
    assert store.share_memory_() is store
    again = pickle.loads(pickle.dumps(store))
    assert again.fetch(0, 2, "a").tolist() == [1, 2]
    assert repr(again) == "<MmapStore: 2 tokens of a>"


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=12).filter(sum),
    dtypes=st.dictionaries(st.sampled_from(["sequence", "mask", "r"]), st.sampled_from(DTYPES), min_size=1),
)
def test_any_values(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], dtypes: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("t")
    arrays = {key: [np.arange(length).astype(dtype) for length in lengths] for key, dtype in dtypes.items()}
    save_bin(folder / "b", arrays)
    save_h5(folder / "h", arrays)
    for name, place in (("bin", folder / "b"), ("h5", folder / "h")):
        store = loaded(name, place)
        for key, parts in arrays.items():
            assert torch.equal(store.fetch(0, sum(lengths), key), torch.from_numpy(np.concatenate(parts)))
