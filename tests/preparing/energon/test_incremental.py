"""A second run reads what is new or has changed, whatever ended the first; it ends in what one run makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import faults
import killing
from counts import cases
from energon_made import PNG, write_tar
from energon_objects import local
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.preparing.energon import (
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    prepare_energon,
    scanning,
)
from headrace.stores.energon import EnergonStore, read_info, read_splits, write_splits

Members = list[tuple[str, bytes]]
IMAGES = MediaFilter(strategy="EXTENSION")
SPLIT = SplitChoice(ratio=(2, 1, 1))


def members(shard: int, count: int = 3) -> Members:
    return [
        (f"{shard:02d}_{number}.{part}", content)
        for number in range(count)
        for part, content in (("png", PNG), ("txt", b"text" * number))
    ]


def make(root: Path, shards: range | list[int]) -> Path:
    for shard in shards:
        write_tar(root / f"shards/{shard:02d}.tar", members(shard))
    return root


def prepare(root: Path, **options: Any) -> tuple[EnergonReport, list[str]]:
    notices: list[str] = []
    report = prepare_energon(
        root, options=EnergonOptions(**{"split": SPLIT, "workers": 1, **options}), on_notice=notices.append
    )
    assert not (root / ".nv-meta/.headrace").exists()
    return report, notices


def again(root: Path, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    """What a first run makes of the same tars."""
    copy = tmp_path / "again"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    prepare(copy, **options)
    return local(copy)


def without_split(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if name != ".nv-meta/split.yaml"}


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tars whose headers are read."""
    names: list[str] = []
    real = scanning.scan_shard

    def scan(path: Path, **options: Any) -> Any:
        names.append(path.name)
        return real(path, **options)

    monkeypatch.setattr(scanning, "scan_shard", scan)
    return names


def test_nothing_new(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", range(4))
    first, _ = prepare(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    scanned.clear()
    second, notices = prepare(root)
    assert (second.read, second.unchanged, second.written, scanned, notices) == (0, 4, (), [], [])
    assert (second.samples, second.uuid, second.split) == (first.samples, first.uuid, first.split)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path != root / ".nv-meta"} == {
        path: time for path, time in before.items() if path != root / ".nv-meta"
    }


def test_new_changed_and_removed_shards(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", [1, 2, 3, 5, 6])
    prepare(root)
    write_tar(root / "shards/02.tar", members(2, 7))
    (root / "shards/03.tar").unlink()
    make(root, [0, 4])
    scanned.clear()
    report, notices = prepare(root)
    assert scanned == ["00.tar", "02.tar", "04.tar"]
    assert (report.read, report.unchanged, report.new, report.removed) == (3, 3, 2, 1)
    assert without_split(local(root)) | {"shards/03.tar.idx": b""} == without_split(again(root, tmp_path)) | {
        "shards/03.tar.idx": b""
    }
    assert read_splits(root).parts == {
        "train": ("shards/01.tar", "shards/02.tar", "shards/00.tar", "shards/04.tar"),
        "val": (),
        "test": ("shards/05.tar", "shards/06.tar"),
    }
    assert any("2 new shards go to train: shards/00.tar, shards/04.tar" in notice for notice in notices)
    store = EnergonStore(root)
    keys = [store.key(index) for index in range(len(store))]
    assert [store.find(key) for key in keys] == list(range(len(store)))
    assert not list(store.check())


def test_rows_and_media_are_copied(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", [1, 2, 3])
    prepare(root, media=IMAGES)
    make(root, [0])
    scanned.clear()
    report, notices = prepare(root)
    assert scanned == ["00.tar"]
    assert any("gathered as before: by extension" in notice for notice in notices)
    assert report.media == 12
    store = EnergonStore(root)
    assert [row.entry for row in store.index.media()] == [f"{s:02d}_{n}.png" for s in range(4) for n in range(3)]
    scanned.clear()
    prepare(root, media=MediaFilter(strategy="GLOB", patterns=("*_1.PNG",)))
    assert len(scanned) == 4
    assert len(list(EnergonStore(root).index.media())) == 4  # type: ignore[union-attr]


def test_what_others_changed_is_read_again(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", range(3))
    prepare(root)
    wanted = local(root)
    (root / "shards/01.tar.idx").write_bytes(bytes(32))
    scanned.clear()
    prepare(root)
    assert scanned == ["01.tar"]
    assert local(root) == wanted
    os.utime(root / ".nv-meta/index.sqlite")
    scanned.clear()
    prepare(root)
    assert len(scanned) == 3
    (root / ".nv-meta/headrace.json").write_text("{")
    prepare(root)
    assert local(root) == wanted


def test_overwrite_and_what_is_kept(tmp_path: Path) -> None:
    root = make(tmp_path / "d", range(4))
    prepare(root)
    write_splits(root, {"mine": ["shards/01.tar", "shards/01.tar"]}, exclude=["shards/01.tar/01_0", "gone.tar"])
    (root / ".nv-meta/dataset.yaml").write_text("mine: 1\n")
    make(root, [4])
    _, notices = prepare(root)
    found = read_splits(root)
    assert found.parts == {"mine": ("shards/01.tar", "shards/01.tar", "shards/04.tar")}
    assert found.exclude == {"shards/01.tar/01_0"}
    assert any("is kept as it is; to assign all shards by the ratio" in notice for notice in notices)
    prepare(root, split=SplitChoice(), overwrite=True)
    assert read_splits(root).parts == found.parts
    assert (root / ".nv-meta/dataset.yaml").read_text() == "mine: 1\n"
    prepare(root, overwrite=True)
    assert set(read_splits(root).parts) == {"train", "val", "test"}
    new = SplitChoice(parts=(("held", r"shards/0\d"), ("late", "shards/{07..08}")))
    make(root, [7])
    prepare(root, split=new)
    assert read_splits(root).parts["held"] == read_splits(root).parts["late"] == ("shards/07.tar",)


def test_only_the_tar_index(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", range(3))
    report, _ = prepare(root, split=SplitChoice(), index_only=True)
    assert sorted(path.name for path in (root / ".nv-meta").iterdir()) == [".info.json", "headrace.json"]
    assert (report.samples, report.uuid, report.split) == (9, None, {})
    assert len(EnergonStore(root)) == 9
    scanned.clear()
    prepare(root, split=SplitChoice(), index_only=True)
    assert scanned == []
    prepare(root)
    assert local(root) == again(root, tmp_path)
    make(root, [3])
    _, notices = prepare(root, split=SplitChoice(), index_only=True)
    assert any("the old index.sqlite is removed" in notice for notice in notices)
    assert not (root / ".nv-meta/index.uuid").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("media", [None, MediaFilter(strategy="HEADER")])
def test_processes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, media: MediaFilter | None) -> None:
    root = make(tmp_path / "d", range(9))
    prepare(root, media=media)
    one = local(root)
    monkeypatch.setattr("headrace.preparing.energon.plan.TASK_BYTES", 1)
    monkeypatch.setattr("headrace.preparing.energon.plan.MEDIA_TASK_BYTES", 1)
    four = again(root, tmp_path, workers=3, media=media)
    assert one == four
    (root / "shards/04.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(InputError, match=r"shards/04.tar.*0"):
        prepare(root, workers=3, media=media)


def test_the_split_is_asked_for_before_anything_is_read(tmp_path: Path, scanned: list[str]) -> None:
    root = make(tmp_path / "d", range(2))
    with pytest.raises(ConfigError, match=r"--split-ratio.*8,1,1"):
        prepare(root, split=SplitChoice())
    assert scanned == []
    assert not (root / ".nv-meta").exists()


def test_the_info_of_former_versions(tmp_path: Path) -> None:
    root = make(tmp_path / "d", range(2))
    (root / ".nv-meta").mkdir()
    (root / ".nv-meta/.info.yaml").write_text("energon_version: 6.0.1\nshard_counts: {shards/00.tar: 1}\n")
    report, notices = prepare(root)
    assert report.new == 1
    assert ["--sample-type" in notice for notice in notices] == [True]
    counts = {"shards/00.tar": 3, "shards/01.tar": 3}
    assert yaml.safe_load((root / ".nv-meta/.info.yaml").read_text())["shard_counts"] == counts
    assert read_info(root).shard_counts == counts


# Runs that are killed, or meet a full disk: the next one ends as it should.


def prepare_halves(root: Path) -> None:
    prepare_energon(root, options=EnergonOptions(split=SplitChoice(ratio=(1, 1)), workers=1))


def fresh(root: Path) -> None:
    for shard in (0, 1, 2):
        write_tar(root / f"s{shard}.tar", [(f"k{shard}{number}.txt", b"t" * 700) for number in range(3)])


def grown(root: Path) -> None:
    """A dataset of before, with a shard that changed, one that is gone, and one that comes before all."""
    fresh(root)
    prepare_halves(root)
    write_tar(root / "s1.tar", [(f"k1{number}.txt", b"t" * 20) for number in range(5)])
    (root / "s2.tar").unlink()
    write_tar(root / "a.tar", [("a.txt", b"a")])


def samples(root: Path) -> list[tuple[str, bytes]] | None:
    """What a reader sees; None where it is told that there is no dataset."""
    if not (root / ".nv-meta/.info.json").exists():
        with pytest.raises(StoreError, match="headrace"):
            EnergonStore(root)
        return None
    store = EnergonStore(root)
    found = [(sample.key, sample.parts["txt"]) for sample in store.read(range(len(store)))]
    assert [store.find(key) for key, _ in found] == list(range(len(found)))
    return found


@pytest.mark.parametrize("begin", [fresh, grown])
def test_killed_at_every_change(tmp_path: Path, begin: Callable[[Path], None]) -> None:
    whole = tmp_path / "whole"
    begin(whole)
    start = shutil.copytree(whole, tmp_path / "start", copy_function=shutil.copy2)
    prepare_halves(whole)
    wanted, seen = local(whole), samples(whole)
    moment = 0
    is_done = False
    while not is_done:
        root = shutil.copytree(start, tmp_path / "now", copy_function=shutil.copy2)
        is_done = killing.run(lambda root=root: prepare_halves(root), moment=moment)  # type: ignore[misc]
        info = root / ".nv-meta/.info.json"
        # Until the first file is removed there is the dataset of before, whose shards have changed under it.
        if not info.exists() or info.read_bytes() == wanted[".nv-meta/.info.json"]:
            assert samples(root) == (seen if info.exists() else None), moment
        else:
            for path in [*start.glob(".nv-meta/*"), *start.glob("*.idx")]:
                assert (root / path.relative_to(start)).read_bytes() == path.read_bytes(), (moment, path)
        prepare_halves(root)
        assert local(root) == wanted, moment
        shutil.rmtree(root)
        moment += cases(4, 1)
    assert moment > 20


@pytest.mark.parametrize("begin", [fresh, grown])
def test_a_full_disk(tmp_path: Path, begin: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("headrace.preparing.energon.job._INDEXES_AT_ONCE", 1)  # the same changes in each run
    whole = tmp_path / "whole"
    begin(whole)
    start = shutil.copytree(whole, tmp_path / "start", copy_function=shutil.copy2)
    kinds = faults.list_changes(lambda: prepare_halves(whole))
    wanted = local(whole)
    for moment in (at for at, kind in enumerate(kinds) if kind in faults.TAKING_SPACE):
        root = shutil.copytree(start, tmp_path / "now", copy_function=shutil.copy2)
        with faults.full_disk(moment), pytest.raises(OutputError, match="space"):
            prepare_halves(root)
        prepare_halves(root)
        assert local(root) == wanted, moment
        shutil.rmtree(root)


def test_what_is_read_is_not_read_again(tmp_path: Path, scanned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.energon.plan.TASK_BYTES", 1)
    fresh(tmp_path)
    noted = scanning.scan_shard

    def scan(path: Path, **options: Any) -> Any:
        found = noted(path, **options)
        if len(scanned) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(scanning, "scan_shard", scan)
    with pytest.raises(KeyboardInterrupt):
        prepare_halves(tmp_path)
    write_tar(tmp_path / "s0.tar", [("other.txt", b"")])
    notices: list[str] = []
    options = EnergonOptions(split=SplitChoice(ratio=(1,)), workers=1)
    prepare_energon(tmp_path, options=options, on_notice=notices.append)
    assert scanned == ["s0.tar", "s1.tar", "s2.tar", "s0.tar", "s2.tar"]
    assert notices[0] == "continuing the unfinished run in this folder: 1 shards are read"
    assert EnergonStore(tmp_path).key(0) == "other"
    for name in ("s0.tar", "s1.tar"):
        os.utime(tmp_path / name)
    prepare_energon(tmp_path, options=EnergonOptions(workers=1))
    assert scanned[5:] == ["s0.tar", "s1.tar"]
