"""AstrAI's own storage tests as black boxes, its golden bytes, and where this reader does better."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from headrace.compat.astrai import (
    H5Store,
    JsonlStore,
    MmapStore,
    Store,
    StoreFactory,
    detect_format,
    load_bin,
    load_h5,
    save_bin,
    save_h5,
)
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.testing.shards import write_shard

torch = pytest.importorskip("torch")
pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

GOLDEN = Path(__file__).parents[2] / "golden" / "keyed"
Save = Callable[[Path, dict[str, list[Any]]], None]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def ids(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int64)


def h5(folder: Path, tensors: dict[str, list[Any]]) -> None:
    save_h5(folder, "data", tensors)


@pytest.fixture(params=["h5", "bin"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def save(name: str) -> Save:
    return {"h5": h5, "bin": save_bin}[name]


def loaded(name: str, folder: Path, **options: Any) -> Store:
    store = StoreFactory.create(name, **options)
    store.load(folder)
    return store


class TestDetectFormat:
    def test_what_there_is(self, tmp_path: Path) -> None:
        save_bin(tmp_path / "a" / "domain" / "shard_0000", {"sequence": [ids(1)]})
        assert detect_format(tmp_path / "a") == "bin"
        h5(tmp_path / "a" / "other", {"sequence": [ids(1)]})
        assert detect_format(tmp_path / "a") == "h5"
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "x.jsonl").touch()
        assert detect_format(tmp_path / "b") == detect_format(tmp_path / "b" / "x.jsonl") == "jsonl"
        (tmp_path / "y.HDF5").touch()
        assert detect_format(tmp_path / "y.HDF5") == "h5"
        (tmp_path / "c").mkdir()
        write_shard(tmp_path / "c" / "x", [np.array([1])])
        assert detect_format(tmp_path / "c") == "bin"

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=f"No supported data files found at {tmp_path}/no"):
            detect_format(tmp_path / "no")
        (tmp_path / "x.bin").touch()
        (tmp_path / ".hidden").mkdir()
        (tmp_path / ".hidden" / "x.h5").touch()
        with pytest.raises(FileNotFoundError, match="No supported"):
            detect_format(tmp_path)
        for name in ("x.txt", "x.json", "x.bin"):
            (tmp_path / name).touch()
            with pytest.raises(ValueError, match=r"Unsupported file format: '.*'"):
                detect_format(tmp_path / name)


class TestFactory:
    def test_names(self) -> None:
        assert StoreFactory.list_registered() == ["bin", "h5", "jsonl"]
        assert StoreFactory.is_registered("h5")
        assert not StoreFactory.is_registered("parquet")
        assert StoreFactory.get_component_class("bin") is MmapStore
        assert isinstance(StoreFactory.create("h5", window_size=4, unknown=1), H5Store)
        with pytest.raises(
            ValueError, match=r"Unknown component: 'parquet'. Supported types: \['bin', 'h5', 'jsonl'\]"
        ):
            StoreFactory.create("parquet")

    def test_one_of_your_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(StoreFactory, "_kinds", dict(StoreFactory._kinds))

        @StoreFactory.register("mine")
        class Mine(MmapStore):
            pass

        assert type(StoreFactory.create("mine")) is Mine
        with pytest.raises(ValueError, match="the name 'mine' is already used by Mine"):
            StoreFactory.register("mine")(Mine)
        with pytest.raises(TypeError, match="not a subclass of Store"):
            StoreFactory.register("other")(int)  # type: ignore[arg-type]


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"sequence": [torch.arange(100)], "mask": [torch.arange(100) % 7]}
    save_bin(tmp_path / "b", tensors)
    h5(tmp_path / "h", tensors)
    for found in (load_bin(tmp_path / "b"), load_h5(tmp_path / "h"), load_h5(tmp_path / "h", share_memory=False)):
        assert found.keys() == tensors.keys()
        for key, (tensor,) in tensors.items():
            assert found[key][0].dtype == torch.int64
            assert torch.equal(found[key][0], tensor)
    assert load_h5(tmp_path / "h")["mask"][0].is_shared()
    assert not load_h5(tmp_path / "h", share_memory=False)["mask"][0].is_shared()


def test_segments(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [ids(1, 2, 3), ids(4, 5, 6, 7), ids(8, 9)]})
    store = loaded(name, tmp_path / "d")
    assert len(store) == store.token_count == 9
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
            with pytest.raises(ValueError, match=f"Index out of bounds: begin={begin}.*end={end}, length=9") as caught:
                store.fetch(begin, end, "sequence")
            assert isinstance(caught.value, ConfigError)


def test_several_keys(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [torch.arange(50)], "mask": [torch.arange(50) % 2]})
    store = loaded(name, tmp_path / "d")
    found = store.fetch(10, 20, ["sequence", "mask"])
    assert {key: len(tensor) for key, tensor in found.items()} == {"sequence": 10, "mask": 10}
    for begin, end in ((-1, 10), (0, 51), (50, 50)):
        with pytest.raises(ValueError, match="out of bounds"):
            store.fetch(begin, end, "sequence")
    assert len(store.fetch(10, 10, "sequence")) == 0
    with pytest.raises(KeyError, match="other; the keys are sequence, mask"):
        store.fetch(0, 1, ["sequence", "other"])
    found["sequence"][:] = 0  # a copy
    assert store.fetch(10, 12, "sequence").tolist() == [10, 11]


@pytest.mark.parametrize("kind", [H5Store, MmapStore, JsonlStore])
def test_before_it_is_loaded(kind: type[Store]) -> None:
    store = kind(window_size=4)
    assert (len(store), store.keys, store.token_count, store.num_records) == (0, [], 0, 0)
    for use in (lambda: store.fetch(0, 1, "a"), lambda: store.fetch_record(0, "a")):
        with pytest.raises(RuntimeError, match="Store not loaded"):
            use()
    with pytest.raises(IndexError):
        store[0]


def test_empty_keys(tmp_path: Path, name: str, save: Save) -> None:
    save(tmp_path / "d", {"sequence": [ids()]})
    store = loaded(name, tmp_path / "d")
    assert (len(store), store.keys) == (0, ["sequence"])
    save(tmp_path / "e", {"sequence": [ids(1, 2)], "mask": [ids()]})
    store = loaded(name, tmp_path / "e")
    assert (len(store), store.keys) == (0, ["sequence", "mask"])
    if name == "bin":
        assert {key: tensor.tolist() for key, (tensor,) in load_bin(tmp_path / "e").items()} == {
            "sequence": [1, 2],
            "mask": [],
        }


class TestRecords:
    def test_offsets(self, tmp_path: Path) -> None:
        records = {"sequence": [torch.arange(64), torch.arange(64) + 100]}
        save_bin(tmp_path, records, record_keys=["sequence"])
        store = loaded("bin", tmp_path)
        assert (store.token_count, store.num_records, len(store)) == (128, 2, 2)
        assert store.fetch_record(0, "sequence").shape == (64,)
        assert store.fetch(0, 10, "sequence").tolist() == list(range(10))
        windows = loaded("bin", tmp_path, window_size=64, stride=64)
        assert len(windows) == 1
        assert windows.sample_window(0) == (0, 64)
        assert [len(values) for values in windows[-1].values()] == [64]
        for wrong in (-1, 2):
            with pytest.raises(ValueError, match=f"Record index out of bounds: index={wrong}, num_records=2"):
                store.fetch_record(wrong, "sequence")

    def test_without_offsets(self, tmp_path: Path) -> None:
        save_bin(tmp_path, {"sequence": [torch.arange(64), torch.arange(64)]})
        store = loaded("bin", tmp_path, window_size=0)
        assert (store.num_records, len(store)) == (0, 0)
        assert len(store.fetch(0, 10, "sequence")) == 10
        assert len(loaded("bin", tmp_path)) == 128  # as in the first versions

    def test_over_shards(self, tmp_path: Path) -> None:
        """AstrAI gives up records where there are several shards, and reads these in the order of the file system."""
        for number in (10, 9, 1):
            save_bin(tmp_path / f"shard_{number}", {"a": [ids(number), ids(number, 0)]}, record_keys=["a"])
        store = loaded("bin", tmp_path)
        assert [store.fetch_record(at, "a").tolist() for at in range(len(store))] == [
            [1], [1, 0], [9], [9, 0], [10], [10, 0]
        ]  # fmt: skip
        assert store[-1]["a"].tolist() == [10, 0]
        with pytest.raises(IndexError, match="record 6 of 6"):
            store[6]

    def test_keys_of_different_lengths(self, tmp_path: Path) -> None:
        tensors = {"chosen": [ids(1, 2), ids(3)], "rejected": [ids(4), ids(5, 6, 7)]}
        save_bin(tmp_path / "b", tensors, record_keys=tensors)
        h5(tmp_path / "h", tensors)
        for name, folder in (("bin", "b"), ("h5", "h")):
            store = loaded(name, tmp_path / folder, window_size=0)
            assert len(store) == 2
            assert {key: value.tolist() for key, value in store[1].items()} == {"chosen": [3], "rejected": [5, 6, 7]}
            # For parity: the same places of both streams, cut at the shorter one.
            assert store.token_count == 3
            assert store.fetch(1, 3, "rejected").tolist() == [5, 6]

    def test_jsonl(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text('{"sequence": [1, 2], "r": [0.5]}\n{"sequence": [3], "r": [1]}\n')
        store = loaded("jsonl", tmp_path)
        assert (len(store), store.token_count) == (2, 2)
        assert store.fetch_record(0, ["sequence", "r"])["r"].dtype == torch.float64
        (tmp_path / "y").mkdir()
        (tmp_path / "y" / "a.json").write_text(json.dumps({"sequence": [[1, 2], [3]]}))
        with pytest.raises(StoreError, match="`headrace convert"):
            loaded("jsonl", tmp_path / "y")
        (tmp_path / "z.jsonl").write_text('{"messages": []}\n{"messages": [{"role": "user"}]}\n')
        with pytest.raises(StoreError, match=r"z\.jsonl: line 2: not a record of tokens.*headrace prepare"):
            loaded("jsonl", tmp_path / "z.jsonl")


def test_windows(tmp_path: Path) -> None:
    save_bin(tmp_path, {"a": [torch.arange(9)]})
    for size, stride, wanted in (
        (4, 4, [(0, 4), (4, 8)]),
        (4, 2, [(0, 4), (2, 6), (4, 8)]),
        (8, 8, [(0, 8)]),
        (9, 9, []),
    ):
        store = loaded("bin", tmp_path, window_size=size, stride=stride)
        assert [store.sample_window(at) for at in range(len(store))] == wanted
        assert [store[at]["a"].tolist() for at in range(len(store))] == [list(range(*window)) for window in wanted]
        for wrong in (-1, len(wanted)):
            with pytest.raises(IndexError, match=f"window {wrong} of {len(wanted)}"):
                store.sample_window(wrong)
    with pytest.raises(RuntimeError, match="window_size above 0"):
        loaded("bin", tmp_path).sample_window(0)


def test_more_datasets_than_ten(tmp_path: Path) -> None:
    h5(tmp_path, {"sequence": [ids(number) for number in range(12)]})
    assert loaded("h5", tmp_path).fetch(0, 12, "sequence").tolist() == list(range(12))
    old = H5Store()
    old.load(tmp_path / "data.h5", dataset_order="name")
    assert old.fetch(0, 12, "sequence").tolist() == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [int(part[0]) for part in load_h5(tmp_path, order="name")["sequence"]][:3] == [0, 1, 10]


def test_what_is_not_its_own(tmp_path: Path) -> None:
    for kind, wanted in ((MmapStore, "meta.json"), (H5Store, ".h5 or .hdf5"), (JsonlStore, ".jsonl")):
        for place in (tmp_path / "no", tmp_path):
            with pytest.raises(FileNotFoundError, match=f"No {wanted} found under {place}"):
                kind().load(place)
    save_bin(tmp_path / "b", {"a": [ids(1)]})
    with pytest.raises(ValueError, match=r"H5Store reads .* have the format 'keyed'; detect_format says which"):
        H5Store().load(tmp_path / "b")
    (tmp_path / "b" / "a.bin").write_bytes(b"123")
    with pytest.raises(StoreError, match=r"a\.bin: cut short"):
        MmapStore().load(tmp_path / "b")
    with pytest.raises(StoreError, match=r"a\.bin: cut short"):
        load_bin(tmp_path / "b")
    (tmp_path / "x.txt").touch()
    with pytest.raises(StoreError, match="the format is unknown"):
        MmapStore().load(tmp_path / "x.txt")


def test_a_key_that_a_shard_lacks(tmp_path: Path) -> None:
    """AstrAI joins what there is, and the keys are shifted against each other from there on."""
    save_bin(tmp_path / "shard_0000", {"sequence": [ids(1, 2)], "loss_mask": [ids(0, 1)]})
    save_bin(tmp_path / "shard_0001", {"sequence": [ids(3)]})
    with pytest.raises(StoreError, match=r"shard_0000 has .* loss_mask .*shard_0001 has sequence of int64"):
        loaded("bin", tmp_path)


def test_memory_is_shared_already(tmp_path: Path) -> None:
    save_bin(tmp_path, {"a": [ids(1, 2)]})
    store = loaded("bin", tmp_path)
    assert store.share_memory_() is store
    again = pickle.loads(pickle.dumps(store))
    assert again.fetch(0, 2, "a").tolist() == [1, 2]
    assert repr(again) == "<MmapStore: 2 tokens of a>"


class TestSaveBin:
    def test_golden(self, tmp_path: Path) -> None:
        tensors = {
            "sequence": [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([258], dtype=torch.int32)],
            "loss_mask": [torch.tensor([True, False]), torch.tensor([True])],
            "f": [torch.tensor([1.5])],
        }
        save_bin(tmp_path / "some", tensors, record_keys=["sequence"])
        assert (tmp_path / "some" / "sequence.bin").read_bytes().hex() == "010000000200000002010000"
        assert (tmp_path / "some" / "loss_mask.bin").read_bytes().hex() == "010001"
        assert (tmp_path / "some" / "f.bin").read_bytes().hex() == "0000c03f"
        del tensors["f"]
        save_bin(tmp_path / "none", tensors)
        for name in ("some", "none"):
            for file in (GOLDEN / name).iterdir():
                assert (tmp_path / name / file.name).read_bytes() == file.read_bytes(), file

    def test_what_is_loaded_may_be_written_to(self, tmp_path: Path) -> None:
        save_bin(tmp_path, {"a": [ids(1, 2)]})
        (tensor,) = load_bin(tmp_path)["a"]
        tensor[0] = 7
        assert tensor.tolist() == [7, 2]
        assert load_bin(tmp_path)["a"][0].tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("tensors", "records", "error", "message"),
        [
            ({"a": []}, (), InputError, "key 'a' needs tensors of one dtype, found none"),
            ({"a": [torch.zeros(1), torch.zeros(1).long()]}, (), InputError, "found float32, int64"),
            ({"a": [torch.zeros(1, 1)]}, (), InputError, "expected one-dimensional tensors"),
            ({"a": [[1, 2]]}, (), InputError, "expected one-dimensional tensors, found list"),
            ({"a": [torch.zeros(1).bfloat16()]}, (), InputError, "no format can hold bfloat16"),
            ({"a": [torch.zeros(1)]}, ("b",), ConfigError, "offsets names 'b'"),
            ({"a/b": [torch.zeros(1)]}, (), ConfigError, "'a/b' cannot be a key"),
            ({"a": [ids(1)], "b": [ids(1), ids(2)]}, ("a", "b"), InputError, "different numbers of documents"),
        ],
    )
    def test_what_cannot_be_saved(
        self, tmp_path: Path, tensors: Any, records: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            save_bin(tmp_path / "d", tensors, records)
        assert not list((tmp_path / "d").glob("*"))

    def test_places_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        with pytest.raises(OutputError, match="cannot make the folder"):
            save_bin(tmp_path / "x" / "y", {"a": [ids(1)]})
        with pytest.raises(ConfigError, match=r"'../x' is not the name of a file"):
            save_h5(tmp_path, "../x", {"a": [ids(1)]})


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    dtypes=st.dictionaries(st.sampled_from(["sequence", "mask", "r"]), st.sampled_from(DTYPES), min_size=1),
)
def test_any_tensors(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], dtypes: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("t")
    tensors = {
        key: [torch.arange(length).to(getattr(torch, dtype)) for length in lengths] for key, dtype in dtypes.items()
    }
    save_bin(folder / "b", tensors, record_keys=tensors)
    h5(folder / "h", tensors)
    for name, place in (("bin", folder / "b"), ("h5", folder / "h")):
        store = loaded(name, place, window_size=0)
        assert len(store) == len(lengths)
        for key, parts in tensors.items():
            found = [store.fetch_record(at, key) for at in range(len(lengths))]
            assert all(
                torch.equal(one, part) and one.dtype == part.dtype for one, part in zip(found, parts, strict=True)
            )
            if sum(lengths):
                assert torch.equal(store.fetch(0, sum(lengths), key), torch.cat(parts))
    assert all(torch.equal(load_bin(folder / "b")[key][0], torch.cat(parts)) for key, parts in tensors.items())
    assert [list(map(len, parts)) for parts in load_h5(folder / "h", share_memory=False).values()] == [lengths] * len(
        tensors
    )
    assert set(stores.open(folder / "h").keys) == set(tensors)
