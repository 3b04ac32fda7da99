"""Plans that are kept: mapped at the second start, whatever ended the first one."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
import killing
from headrace import ConfigError, PackedSequenceDataset, Packing, StoreError
from headrace.datasets import packed_sequences
from headrace.datasets.packed_sequences import StoreLengths, make_plan, plan_name
from headrace.errors import OutputError
from headrace.io import cache_folder
from headrace.plan.packing import PackPlan
from headrace.stores import Store, check_arrays, keep_arrays

PACKINGS = [
    Packing(seq_len=20, over_long="split"),
    Packing(seq_len=20, over_long="split", repack=True),
    Packing(seq_len=20, strategy="wrapped"),
    Packing(seq_len=60, strategy="greedy"),
    Packing(seq_len=1, over_long="split"),  # packs of full pieces alone: arrays without elements
]


@pytest.fixture
def store(corpus: list[corpora.Corpus]) -> Store:
    return corpus[1].store


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Packing]:
    """Each packing that was planned, not found."""
    calls = []
    plan_packs = packed_sequences.plan_packs

    def counted(lengths: Any, packing: Packing) -> PackPlan:
        calls.append(packing)
        return plan_packs(lengths, packing)

    monkeypatch.setattr(packed_sequences, "plan_packs", counted)
    return calls


def same(one: PackedSequenceDataset, other: PackedSequenceDataset) -> bool:
    indices = np.arange(len(one))
    keys = np.full(len(one), 5, dtype=np.uint64)
    return all(
        np.array_equal(mine, theirs)
        for some in (None, keys)
        for mine, theirs in zip(
            one.read(one.locate(indices, some)).values(), other.read(other.locate(indices, some)).values(), strict=True
        )
    )


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_second_time_it_is_mapped(store: Store, planned: list[Packing], tmp_path: Path, packing: Packing) -> None:
    held = PackedSequenceDataset(store, packing)
    first = PackedSequenceDataset(store, packing, plan_folder=tmp_path / "plans")
    assert planned == [packing, packing]
    second = PackedSequenceDataset(store, packing, plan_folder=str(tmp_path / "plans"))
    assert len(planned) == 2
    name = plan_name(store, packing)
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [name]
    assert check_arrays(tmp_path / "plans", name) == []
    for dataset in (first, second):
        assert same(held, dataset)
        assert dataset.plan.meta == held.plan.meta
        assert dataset.fingerprint == held.fingerprint
        assert dataset.ledger == held.ledger
        # Both read the file: the processes of a machine share one copy.
        assert all(not array.flags.owndata and not array.flags.writeable for array in _filled(dataset))
    assert len(_filled(first)) == len(_filled(held))


def _filled(dataset: PackedSequenceDataset) -> list[np.ndarray]:
    return [array for array in dataset.plan.arrays.values() if array.size]


def test_a_name_for_each_store_and_packing(tmp_path: Path) -> None:
    """Also where two stores have the same number of documents, and of tokens; not where one lies in another place."""
    lengths = ([5, 6, 7], [7, 6, 5], [5, 6, 7])
    for number, some in enumerate(lengths):
        corpora.write(tmp_path / str(number), [np.arange(length) for length in some])
    opened = [headrace.open(str(tmp_path / str(number))) for number in range(len(lengths))]
    names = [[plan_name(store, packing) for packing in PACKINGS] for store in opened]
    assert len({*names[0], *names[1]}) == 2 * len(PACKINGS)
    assert names[0] == names[2]


def test_small_plans_are_not_kept_unless_asked_for(
    store: Store, planned: list[Packing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    PackedSequenceDataset(store, PACKINGS[0])
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", store.num_documents)
    PackedSequenceDataset(store, PACKINGS[0])
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", store.num_documents - 1)
    first = PackedSequenceDataset(store, PACKINGS[0])
    name = plan_name(store, PACKINGS[0])
    assert check_arrays(tmp_path / "cache" / "packs", name) == []
    assert len(planned) == 3
    assert same(first, PackedSequenceDataset(store, PACKINGS[0]))
    assert len(planned) == 3


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder("packs") == Path("/h/.cache/headrace/packs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder("packs") == Path("/x/headrace/packs")
    monkeypatch.setenv("HEADRACE_CACHE", "/c")
    assert cache_folder("packs") == Path("/c/packs")


@pytest.fixture
def cached(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a run in which every plan is kept."""
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packs"


def test_a_cache_that_cannot_be_written(cached: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs time, and nothing else; a folder that was asked for is an error."""
    wanted = PackedSequenceDataset(store, PACKINGS[1])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setenv("HEADRACE_CACHE", str(cached.parent / "read-only"))
    found = PackedSequenceDataset(store, PACKINGS[1])
    assert same(wanted, found)
    assert all(array.flags.owndata or array.base.flags.owndata for array in _filled(found))
    with pytest.raises(OutputError, match="read-only/"):
        PackedSequenceDataset(store, PACKINGS[1], plan_folder=cached.parent / "read-only")


def test_a_cache_that_cannot_be_read(cached: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where HOME belongs to another user: nobody asked for a cache there."""
    wanted = PackedSequenceDataset(store, PACKINGS[0])
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "kept.json":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert same(wanted, PackedSequenceDataset(store, PACKINGS[0]))
    with pytest.raises(StoreError, match=r"kept\.json"):
        PackedSequenceDataset(store, PACKINGS[0], plan_folder=cached)


def test_no_home(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in the list of users, as containers have them, and without a HOME."""
    monkeypatch.setattr(packed_sequences, "KEPT_DOCUMENTS", 0)
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert len(PackedSequenceDataset(store, PACKINGS[0]))


@pytest.mark.parametrize("asked", [True, False])
def test_a_torn_plan_is_made_anew_with_a_warning(
    cached: Path, store: Store, planned: list[Packing], asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = {"plan_folder": cached} if asked else {}
    wanted = PackedSequenceDataset(store, PACKINGS[1], plan_folder=cached / "another")  # it stays mapped
    PackedSequenceDataset(store, PACKINGS[1], **folder)  # type: ignore[arg-type]
    place = cached / plan_name(store, PACKINGS[1])
    for path in sorted(place.iterdir()):
        content = path.read_bytes()
        flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
        header = content.replace(b"'shape': (", b"'shape': ((") if path.suffix == ".npy" else b"{}"
        for damage in (content[: len(content) // 2], flipped, header, b""):
            path.write_bytes(damage)
            caplog.clear()
            planned.clear()
            assert same(wanted, PackedSequenceDataset(store, PACKINGS[1], **folder))  # type: ignore[arg-type]
            assert planned == [PACKINGS[1]]
            (record,) = caplog.records
            assert record.levelname == "WARNING"
            assert record.getMessage().startswith(f"{path}: ")
            assert record.getMessage().endswith("it is made again")
            assert path.read_bytes() == content
    planned.clear()
    assert same(wanted, PackedSequenceDataset(store, PACKINGS[1], **folder))  # type: ignore[arg-type]
    assert not planned


def test_a_plan_that_says_something_else(cached: Path, store: Store) -> None:
    """Whole, and of another store, or not what this version knows: nobody's damage, but a defect of somebody."""
    arrays = PackedSequenceDataset(store, PACKINGS[0]).plan.arrays
    name = plan_name(store, PACKINGS[0])
    meta = json.loads(json.loads((cached / name / "kept.json").read_text())["meta"])

    def say(other: dict[str, Any]) -> None:
        shutil.rmtree(cached / name)
        keep_arrays(cached, name, arrays, json.dumps(other).encode())

    say(meta)
    assert len(PackedSequenceDataset(store, PACKINGS[0]))
    say({**meta, "num_documents": 41})
    with pytest.raises(StoreError, match=r"41.*documents.*40"):
        PackedSequenceDataset(store, PACKINGS[0])
    for other in ({}, {**meta, "unknown": 1}, {**meta, "packing": {"seq_len": 0}}):
        say(other)
        with pytest.raises(StoreError, match=rf"{cached / name}"):
            PackedSequenceDataset(store, PACKINGS[0])


def test_killed_at_any_moment(store: Store, planned: list[Packing], tmp_path: Path) -> None:
    wanted = PackedSequenceDataset(store, PACKINGS[1])
    lengths = StoreLengths(store)

    def make(folder: Path) -> None:
        make_plan(store, lengths, PACKINGS[1], folder)

    moment = 0
    while not killing.run(partial(make, tmp_path / str(moment)), moment=moment):
        for _ in range(2):
            assert same(wanted, PackedSequenceDataset(store, PACKINGS[1], plan_folder=tmp_path / str(moment)))
        moment += 1
    assert moment > 6
    # The plan was made once more after each kill, but for those that came after the rename.
    assert moment - 2 <= len(planned) - 1 <= moment


def test_the_errors_of_planning_are_its_own(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ConfigError, match="seq_len=20"):
        PackedSequenceDataset(store, Packing(seq_len=20), plan_folder=tmp_path / "plans")
    assert not (tmp_path / "plans").exists()
    assert not caplog.records
