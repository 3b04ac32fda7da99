"""AstrAI's names: its own tests of stores as black boxes, its datasets by plain slices, and its samplers' orders."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch.utils.data import DataLoader

import records_made
from counts import cases
from headrace.compat import astrai
from headrace.compat.astrai import (
    DatasetFactory,
    H5Store,
    MmapStore,
    ResumableDistributedSampler,
    SEQDataset,
    Store,
    StoreFactory,
    detect_format,
)
from headrace.errors import ConfigError, StoreError
from headrace.stores import KeyedWriter, write_hdf5
from token_shards import write_raw_keyed, write_shard

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


def load(train_type: str, path: Path, *sizes: int, **options: Any) -> Any:
    return DatasetFactory.load(train_type, path, *sizes, **options)


def flat(folder: Path, num_tokens: int, keys: tuple[str, ...] = ("tokens",)) -> Path:
    records = [{key: [1] * num_tokens if key == "loss_mask" else list(range(num_tokens)) for key in keys}]
    return records_made.write(folder, records)


def raw(folder: Path, **streams: bytes) -> Path:
    """A shard of streams without the borders of records."""
    meta = ", ".join(f'"{key}": {{"shape": [{len(data)}], "dtype": "uint8"}}' for key, data in streams.items())
    return write_raw_keyed(folder, f"{{{meta}}}".encode(), streams)


def test_case_9_segments_of_uneven_lengths(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(10):
        records_made.write(tmp_path / "many" / f"shard_{number:04d}", [{"tokens": [number] * (200 + 20 * number)}])
    dataset = load("seq", tmp_path / "many", 64)
    assert len(dataset) == (dataset.count - 1 - 64) // 64 + 1
    for item in dataset:
        assert {tuple(value.shape) for value in item.values()} == {(64,)}
        assert {value.dtype for value in item.values()} == {torch.int64}


def test_case_10_counts(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 200)
    assert len(load("seq", path, 64)) == 3
    assert len(load("seq", path, 64, 32)) == 5
    short = load("seq", flat(tmp_path / "short", 30), 64)
    assert (len(short), short.count) == (0, 30)
    empty = SEQDataset(64)
    assert (len(empty), empty.count, empty.keys) == (0, 0, [])
    for use in (empty.get_index, empty.__getitem__):
        with pytest.raises(RuntimeError, match="loaded"):
            use(0)
    assert repr(empty) == "<SEQDataset: not loaded>"


GOLDEN = [  # N, window, stride -> windows, the last one
    (9, 4, 4, 2, (4, 8)),
    (9, 4, 2, 3, (4, 8)),
    (9, 8, 8, 1, (0, 8)),
    (9, 9, 9, 0, None),
    (10, 4, 4, 2, (4, 8)),
    (10, 3, 4, 2, (4, 7)),
    (100, 10, 7, 13, (84, 94)),
]


@pytest.mark.parametrize(("num_tokens", "window", "stride", "count", "last"), GOLDEN)
def test_the_golden_counts(
    tmp_path: Path, num_tokens: int, window: int, stride: int, count: int, last: tuple[int, int] | None
) -> None:
    dataset = load("seq", flat(tmp_path / "s", num_tokens), window, stride)
    assert len(dataset) == count
    if last is not None:
        assert dataset.get_index(count - 1) == last
        assert dataset[count - 1]["input_ids"].tolist() == list(range(*last))
        assert dataset[count - 1]["target_ids"].tolist() == list(range(last[0] + 1, last[1] + 1))
    for index in (-1, count, 99):
        with pytest.raises(IndexError, match=rf"{count}"):
            dataset.get_index(index)
        with pytest.raises(IndexError, match=rf"{count}"):
            dataset[index]


@settings(max_examples=cases(12, 300), deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 20))
def test_fine_tuning_windows_by_plain_slices(
    tmp_path_factory: pytest.TempPathFactory, window: int, stride: int, seed: int
) -> None:
    records = records_made.sft(seed, 6, longest=12)
    ids = [token for record in records for token in record["tokens"]]
    marks = [mark for record in records for mark in record["loss_mask"]]
    positions = [place for record in records for place in range(len(record["tokens"]))]
    path = records_made.write(tmp_path_factory.mktemp("sft") / "s", records)
    dataset = pickle.loads(pickle.dumps(load("sft", path, window, stride)))
    slack = len(ids) - 1 - window
    assert len(dataset) == (slack // stride + 1 if slack >= 0 else 0)
    for i in range(len(dataset)):
        item, begin = dataset[i], min(i * stride, slack)
        assert item["input_ids"].tolist() == ids[begin : begin + window]
        assert item["target_ids"].tolist() == ids[begin + 1 : begin + window + 1]
        assert item["loss_mask"].tolist() == [bool(mark) for mark in marks[begin + 1 : begin + window + 1]]
        assert item["position_ids"].tolist() == positions[begin : begin + window]
        assert [value.dtype for value in item.values()] == [torch.int64, torch.int64, torch.bool, torch.int64]


def test_stored_positions_are_used(tmp_path: Path) -> None:
    path = raw(tmp_path / "s", tokens=bytes([1, 2, 3, 4]), loss_mask=bytes(4), position_ids=bytes([7, 8, 9, 10]))
    assert load("sft", path, 3)[0]["position_ids"].tolist() == [7, 8, 9]


def test_case_11_fields(tmp_path: Path) -> None:
    item = load("sft", flat(tmp_path / "sft", 100, ("tokens", "loss_mask")), 64)[0]
    assert {name: tuple(value.shape) for name, value in item.items()} == dict.fromkeys(
        ("input_ids", "target_ids", "loss_mask", "position_ids"), (64,)
    )
    pairs = records_made.preferences(1, 30)
    path = records_made.write(tmp_path / "dpo", pairs)
    record = load("dpo", path)[7]
    assert {name: value.tolist() for name, value in record.items()} == pairs[7]
    assert [value.dtype for value in record.values()] == [torch.int64, torch.int64, torch.bool, torch.bool]
    groups = records_made.groups(2, 30)
    item = load("grpo", records_made.write(tmp_path / "grpo", groups), 8)[5]
    assert (item["prompts"].dtype, item["rewards"].dtype) == (torch.int64, torch.float32)
    assert [len(one) for one in item["responses"]] == groups[5]["response_lengths"]
    assert {one.dtype for one in item["masks"]} == {torch.bool}


def test_case_12_storage_types(tmp_path: Path) -> None:
    path = flat(tmp_path / "flat", 100)
    assert len(load("seq", path, 8, storage_type="bin")) == len(load("seq", path, 8))
    with pytest.raises(ConfigError, match=r"storage_type.*'h5'.*'keyed'"):
        load("seq", path, 8, storage_type="h5")
    with pytest.raises(ValueError, match="'parquet'"):
        load("seq", path, 8, storage_type="parquet")
    with pytest.raises(ValueError, match=r"'ppo'.*'dpo'.*'grpo'"):
        load("ppo", path, 8)
    with pytest.raises(KeyError, match=r"\['loss_mask'\].*\['tokens'\]"):
        load("sft", path, 8)
    with pytest.raises(StoreError, match="nothing"):
        load("seq", tmp_path / "none", 8)
    with pytest.raises(ConfigError, match=r"window_size.*0.*1"):
        load("seq", path)


def test_a_mask_that_is_shifted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3.*2.*'loss_mask'"):
        load("sft", raw(tmp_path / "m", tokens=b"\1\2\3", loss_mask=b"\1\1"), 1)


def test_records_whose_borders_were_not_stored_are_refused(tmp_path: Path) -> None:
    """What AstrAI's own pipeline writes: one stream a shard, in which no pair can be found again."""
    keys = ("chosen", "chosen_mask", "rejected", "rejected_mask")
    path = raw(tmp_path / "dpo", **dict.fromkeys(keys, b"\0\1\1\1"))
    with pytest.raises(ConfigError, match=r"1.*records"):
        load("dpo", path, 2)


def test_a_single_record_with_offsets_is_one(tmp_path: Path) -> None:
    [pair] = records_made.preferences(1, 1)
    dataset = load("dpo", records_made.write(tmp_path / "dpo", [pair]), 8)
    assert len(dataset) == 1
    assert {name: value.tolist() for name, value in dataset[0].items()} == pair
    assert len(load("grpo", records_made.write(tmp_path / "grpo", records_made.groups(2, 1)), 8)) == 1


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets rank and number of ranks."""

    def set_place(rank: int, ranks: int) -> None:
        monkeypatch.setattr(astrai, "_place", lambda group: (rank, ranks))

    return set_place


def test_vectors_of_one_rank() -> None:
    one = ResumableDistributedSampler(range(10))
    assert list(one) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]
    assert (one.epoch, len(one)) == (1, 10)
    assert list(one) == [8, 4, 9, 0, 5, 1, 6, 7, 2, 3]


@pytest.mark.parametrize(
    ("drop_last", "wanted"),
    [(False, [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]), (True, [[0, 4], [1, 5], [2, 6], [3, 7]])],
)
def test_vectors_of_four_ranks(place: Any, drop_last: bool, wanted: list[list[int]]) -> None:
    for rank, indices in enumerate(wanted):
        place(rank, 4)
        one = ResumableDistributedSampler(range(10), shuffle=False, drop_last=drop_last)
        assert len(one) == len(indices)
        assert list(one) == indices


def test_vectors_of_going_on(place: Any) -> None:
    place(0, 2)
    assert list(ResumableDistributedSampler(range(10), seed=1)) == [5, 1, 0, 9, 7]
    for start_iter in (3, 8):
        one = ResumableDistributedSampler(range(10), seed=1, start_iter=start_iter)
        assert len(one) == 2
        assert list(one) == [9, 7]


@settings(max_examples=cases(16, 400), deadline=None)
@example(9, 2**32 - 2, 5)
@given(st.integers(1, 200), st.integers(0, 2**40), st.integers(0, 5))
def test_orders_are_torchs(count: int, seed: int, epoch: int) -> None:
    generator = torch.Generator().manual_seed((seed + epoch) & 0xFFFF_FFFF)
    wanted = torch.randperm(count, generator=generator).tolist()
    assert list(ResumableDistributedSampler(range(count), start_epoch=epoch, seed=seed)) == wanted


def test_more_ranks_than_twice_the_samples(place: Any) -> None:
    """AstrAI's late ranks get nothing here, though ``len`` says 1, and the job hangs."""
    for rank in range(7):
        place(rank, 7)
        one = ResumableDistributedSampler(range(2), shuffle=False)
        assert len(one) == 1
        assert list(one) == [rank % 2]


@pytest.mark.parametrize(("count", "ranks", "drop_last"), [(3, 4, True), (0, 1, False), (0, 2, True)])
def test_an_epoch_without_indices_is_refused(place: Any, count: int, ranks: int, drop_last: bool) -> None:
    place(0, ranks)
    with pytest.raises(ConfigError, match="indices"):
        ResumableDistributedSampler(range(count), drop_last=drop_last)


def batches(one: ResumableDistributedSampler, size: int, drop_last: bool) -> Iterator[list[int]]:
    """What a DataLoader hands out, epoch after epoch."""
    loader: DataLoader[int] = DataLoader(range(one.num_samples), batch_size=size, sampler=one, drop_last=drop_last)  # type: ignore[arg-type]
    while True:
        for batch in loader:
            yield batch.tolist()


@settings(max_examples=cases(12, 600), deadline=None)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(1, 7), st.booleans(), st.integers(0, 30), st.data())
def test_going_on_by_batches_is_exact(
    count: int, ranks: int, size: int, drop_last: bool, done: int, data: st.DataObject
) -> None:
    """Partial batches, ends of epochs and all: what comes is what an uninterrupted run would have had."""
    rank = data.draw(st.integers(0, ranks - 1))
    place = astrai._place
    astrai._place = lambda group: (rank, ranks)  # type: ignore[assignment]
    try:
        each = -(-count // ranks)
        if drop_last and each < size:
            with pytest.raises(ConfigError, match=rf"{size}"):
                ResumableDistributedSampler(range(count), batch_size=size, drop_last_batch=True)
            return
        whole = batches(ResumableDistributedSampler(range(count)), size, drop_last)
        wanted = [next(whole) for _ in range(done + 9)][done:]
        resumed = ResumableDistributedSampler(
            range(count), start_batch=done, batch_size=size, drop_last_batch=drop_last
        )
        rest = batches(resumed, size, drop_last)
        assert [next(rest) for _ in range(9)] == wanted
    finally:
        astrai._place = place


def test_the_fault_that_is_kept_for_parity() -> None:
    """10 samples in batches of 4: three batches count as 12 samples, and AstrAI then skips 2 of the next epoch."""
    theirs = ResumableDistributedSampler(range(10), start_epoch=1, start_iter=3 * 4)
    assert len(theirs) == 8
    ours = ResumableDistributedSampler(range(10), start_batch=3, batch_size=4)
    assert (ours.epoch, len(ours)) == (1, 10)


def test_an_iterator_that_is_left_begins_anew() -> None:
    one = ResumableDistributedSampler(range(10), start_iter=4)
    first = iter(one)
    seen = [next(first) for _ in range(3)]
    assert seen == [4, 5, 0]
    assert len(one) == 6
    assert list(one) == [4, 5, 0, 9, 3, 7]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"start_batch": 3}, "batch_size"),
        ({"drop_last_batch": True}, "batch_size"),
        ({"start_iter": 3, "batch_size": 2}, "samples.*batches"),
        ({"start_epoch": -1}, "0"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ResumableDistributedSampler(range(10), **options)


def test_the_place_is_that_of_the_process_group(tmp_path: Any) -> None:
    import torch.distributed as dist

    assert astrai._place(None) == (0, 1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert astrai._place(None) == (0, 1)
        assert list(ResumableDistributedSampler(range(3), process_group=dist.group.WORLD, shuffle=False)) == [0, 1, 2]
    finally:
        dist.destroy_process_group()
