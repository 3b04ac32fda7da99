"""Datasets in a store in memory, prepared in place: the files of the local run, whatever ends it on the way."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore import delete

import media_made
from energon_made import PNG, PRIMARY, write_shards, write_tar
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import cache_folder
from headrace.preparing import ErrorOptions
from headrace.preparing.energon import (
    DatasetChoice,
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    plan_energon,
    prepare_energon,
)
from headrace.preparing.energon import objects as energon_objects
from headrace.stores.energon import EnergonStore
from headrace.stores.tar import scan as tar_scan
from memory_stores import MemoryBucket, Stopped, memory_bucket, watched

SPLIT = SplitChoice(ratio=(2, 1, 1))
IMAGES = MediaFilter(strategy="EXTENSION")
FEW = {f"shards/{shard:02d}.tar": [(f"{shard}_{n}.txt", b"text" * n) for n in range(1, 5)] for shard in range(4)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def bucket() -> Iterator[MemoryBucket]:
    with memory_bucket() as made:
        yield made


def upload(bucket: MemoryBucket, root: Path, pattern: str = "*.tar") -> str:
    for path in root.rglob(pattern):
        bucket.put(f"ds/{path.relative_to(root).as_posix()}", path.read_bytes())
    return f"{bucket.url}/ds"


STATE, INDEX = ".nv-meta/headrace.json", ".nv-meta/index.sqlite"


def made_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """All files but the tars, without what tells shards from later ones, when media were gathered, and hashes of these.

    That is times and ETags in the state, and the time in the index.
    """
    found = {name: data for name, data in files.items() if not name.endswith(".tar")}
    if STATE in found:
        known = rb'"mtime_ns": \d+|"etag": "[^"]*"|"xxh3_128": "\w+"|"xxh3_64": \[[^]]*\]|[ ,\n]'
        found[STATE] = re.sub(known, b"", found[STATE])
    if b"media_filters" in found.get(INDEX, b""):
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.deserialize(found[INDEX])
            rows = "\n".join(base.iterdump()).encode()
        found[INDEX] = re.sub(rb"'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d'", b"", rows)
    return found


def local(root: Path) -> dict[str, bytes]:
    paths = [path for path in root.rglob("*") if path.is_file()]
    return made_of({path.relative_to(root).as_posix(): path.read_bytes() for path in paths})


def remote(bucket: MemoryBucket) -> dict[str, bytes]:
    return made_of(bucket.content("ds"))


def prepare(place: str | Path, **options: Any) -> EnergonReport:
    return prepare_energon(place, options=EnergonOptions(**{"split": SPLIT, "workers": 1, **options}))


def same(bucket: MemoryBucket, root: Path, **options: Any) -> None:
    """Prepare here and there, and compare the files and the reports."""
    wanted, made = prepare(root, **options), prepare(f"{bucket.url}/ds", **options)
    assert remote(bucket) == local(root)
    assert made.path == f"{bucket.url}/ds"
    names = set(wanted.__struct_fields__) - {"path"}
    assert {name: getattr(made, name) for name in names} == {name: getattr(wanted, name) for name in names}
    assert scratch() == []


def scratch() -> list[Path]:
    """What is left of the work folders on this host."""
    folder = cache_folder("outputs")
    assert folder is not None
    return list(folder.iterdir()) if folder.exists() else []


TYPED = DatasetChoice(sample_type="CaptioningSample", field_map={"image": "jpg", "caption": "txt"})
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "typed": {"dataset": TYPED},
    "only the tar index": {"index_only": True},
    "some": {"exclude": "b00[12]", "split": SplitChoice(parts=(("train", ".*"),))},
}


@pytest.mark.parametrize("name", CASES)
def test_the_files_of_the_local_run(bucket: MemoryBucket, tmp_path: Path, name: str) -> None:
    write_shards(tmp_path, dict(PRIMARY))
    upload(bucket, tmp_path)
    bucket.put("ds/.hidden/x.tar", b"")
    same(bucket, tmp_path, **CASES[name])


def test_it_opens(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    same(bucket, tmp_path, split=SplitChoice(ratio=(1,)))
    with EnergonStore(url, split_part="train") as ours, EnergonStore(tmp_path, split_part="train") as theirs:
        numbers = np.arange(len(theirs))
        assert [sample.parts for sample in ours.read(numbers)] == [sample.parts for sample in theirs.read(numbers)]


def test_media_of_all_kinds(bucket: MemoryBucket, tmp_path: Path) -> None:
    images = media_made.images()
    members = [
        (f"{n}.{name}", data) for n in range(20) for name, data in (("grey.jpg", images["grey.jpg"]), ("x", PNG))
    ]
    write_tar(tmp_path / "a.tar", [*members, ("v.mp4", media_made.video("mp4", "mpeg4")), ("z.jpg", b"\xff\xd8\xff")])
    upload(bucket, tmp_path)
    for wanted in (IMAGES, MediaFilter(strategy="HEADER"), MediaFilter(strategy="GLOB", patterns=("*.x",))):
        same(bucket, tmp_path, media=wanted)


def test_damaged_shards_and_keys_that_come_twice(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_shards(tmp_path, {**FEW, "shards/04.tar": FEW["shards/00.tar"]})
    (tmp_path / "shards/02.tar").write_bytes((tmp_path / "shards/02.tar").read_bytes()[:2000])
    url = upload(bucket, tmp_path)
    with pytest.raises(InputError, match=rf"{url}/shards/02.tar: sample 0: byte 1024: cut short"):
        prepare(url)
    assert not remote(bucket)
    skip = ErrorOptions(on_error="skip")
    with pytest.raises(InputError, match=rf"key '0_1' comes twice: sample 0 of {url}/shards/00.tar"):
        prepare(url, errors=skip)
    assert not remote(bucket)
    same(bucket, tmp_path, errors=skip, duplicates="drop")
    same(bucket, tmp_path, errors=skip, duplicates="keep")


def test_what_is_new_changed_or_removed(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is copied from, and only what must be is read."""
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    same(bucket, tmp_path)
    again = prepare(url)
    assert (again.read, again.unchanged, again.written) == (0, 4, ())
    write_tar(tmp_path / "shards/01.tar", [("new.txt", b"new")])
    write_tar(tmp_path / "shards/09.tar", [("9.txt", b"nine")])
    upload(bucket, tmp_path, "01.tar")
    upload(bucket, tmp_path, "09.tar")
    (tmp_path / "shards/02.tar").unlink()
    (tmp_path / "shards/02.tar.idx").unlink()
    delete(bucket.store, ["ds/shards/02.tar", "ds/shards/02.tar.idx"])
    read: list[str] = []
    whole = energon_objects.scan_tar

    def scan(root: Any, scans: Path, tar: Any, *rest: Any, **options: Any) -> Any:
        read.append(tar.name)
        return whole(root, scans, tar, *rest, **options)

    monkeypatch.setattr(energon_objects, "scan_tar", scan)
    same(bucket, tmp_path)
    assert sorted(read) == ["shards/01.tar", "shards/09.tar"]
    # What others have changed is made again.
    bucket.put("ds/shards/00.tar.idx", bytes(16))
    bucket.put("ds/.nv-meta/index.sqlite", b"broken")
    assert prepare(url).read == 4
    assert remote(bucket) == local(tmp_path)


def cut_off() -> None:
    """Forget all that this host knows, as another one does not know it."""
    folder = cache_folder("outputs")
    assert folder is not None
    shutil.rmtree(folder.parent)


def stopped(bucket: MemoryBucket, options: dict[str, Any], moment: int, wanted: dict[str, bytes]) -> bool:
    """Whether a run was ended at a change of this number, at each of which the dataset is as it was, new, or closed."""
    before = remote(bucket)

    def stop(number: int, kind: str) -> None:
        found = {name: data for name, data in remote(bucket).items() if name != ".nv-meta/.headrace/run.json"}
        assert ".nv-meta/.info.json" not in found or found in (before, wanted)
        if number == moment:
            raise Stopped

    try:
        with watched(stop):
            prepare(f"{bucket.url}/ds", **options)
    except Stopped:
        return True
    return False


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_same_host", [True, False])
def test_runs_that_end_at_any_change_go_on(
    bucket: MemoryBucket, tmp_path: Path, is_first: bool, is_same_host: bool
) -> None:
    options: dict[str, Any] = {"duplicates": "drop"}
    old, new = tmp_path / "old", tmp_path / "new"
    write_shards(old, {**FEW, "shards/08.tar": FEW["shards/00.tar"]})
    prepare(old, **options)
    shutil.copytree(old, new)
    write_tar(new / "shards/09.tar", [("9.txt", b"nine"), ("1_1.txt", b"again")])
    prepare(new, **options)
    wanted = local(old if is_first else new)
    moment = 0
    while True:
        delete(bucket.store, [f"ds/{name}" for name in bucket.content("ds")])
        url = upload(bucket, old)
        if not is_first:
            prepare(url, **options)
            upload(bucket, new, "09.tar")
        if not stopped(bucket, options, moment, wanted):
            break
        if not is_same_host:
            cut_off()
        prepare(url, **options)
        assert remote(bucket) == wanted, moment
        assert scratch() == []
        moment += 1
    assert moment > 8


def test_a_run_that_was_not_ended_is_continued_or_discarded(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)

    def stop(number: int, kind: str) -> None:
        if number == 4:
            raise Stopped

    with pytest.raises(Stopped), watched(stop):
        prepare(url)
    cut_off()  # other options, on another host
    before = bucket.content("ds")
    with pytest.raises(OutputError, match=f"{url}: an unfinished run with other options, or other shards"):
        prepare(url, media=IMAGES)
    assert bucket.content("ds") == before
    prepare(url, media=IMAGES, restart=True, overwrite=True)
    prepare(tmp_path, media=IMAGES)
    assert remote(bucket) == local(tmp_path)


def test_what_is_left_of_a_discarded_run_changes_nothing(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)

    def stop(number: int, kind: str) -> None:
        if number == 4:
            raise Stopped

    with pytest.raises(Stopped), watched(stop):
        prepare(url)
    with monkeypatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("elsewhere")))
        prepare(url, media=IMAGES, restart=True, overwrite=True)
    wanted = remote(bucket)
    assert prepare(url, media=IMAGES).written == ()
    assert remote(bucket) == wanted
    assert scratch() == []


def test_another_run_that_was_faster(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    whole = energon_objects.ObjectWork.commit

    def commit(self: Any, **steps: Any) -> None:
        bucket.put("ds/.nv-meta/split.yaml", b"another")
        whole(self, **steps)

    with monkeypatch.context() as patch:
        patch.setattr(energon_objects.ObjectWork, "commit", commit)
        with pytest.raises(OutputError, match="another run has written to this dataset meanwhile; run again"):
            prepare(url)
    assert ".nv-meta/.info.json" not in remote(bucket)
    delete(bucket.store, ["ds/.nv-meta/split.yaml"])
    same(bucket, tmp_path)


def test_a_shard_that_changes_during_the_run(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    whole = energon_objects.scan_tar

    def scan(*given: Any, **options: Any) -> Any:
        bucket.put("ds/shards/02.tar", (tmp_path / "shards/01.tar").read_bytes())
        return whole(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(energon_objects, "scan_tar", scan)
        with pytest.raises(StoreError, match=f"{url}/shards/02.tar: the object changed while it was in use"):
            prepare(url)
    assert not remote(bucket)


@pytest.mark.parametrize("member_bytes", [3000, 300_000])
def test_large_contents_are_not_fetched(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member_bytes: int
) -> None:
    write_tar(tmp_path / "a.tar", [(f"{n}.bin", bytes(member_bytes)) for n in range(40)])
    url = upload(bucket, tmp_path)
    monkeypatch.setattr(tar_scan, "OF_OBJECTS", tar_scan.WindowSteps(near=20_000, after_gap=2000, far=5000))
    dataset = energon_objects.ObjectShards(url, None)
    monkeypatch.setattr(energon_objects, "ObjectShards", lambda given, storage: dataset)
    prepare(url)
    fetched = dataset._reader.stats.bytes
    size = (tmp_path / "a.tar").stat().st_size
    assert fetched < 0.02 * size if member_bytes > 5000 else fetched >= 0.9 * size
    assert dataset._reader.stats.gets <= (45 if member_bytes > 5000 else 12)


def test_what_is_not_prepared_at_a_url(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("ds/a.jsonl", b"{}\n")
    bucket.put("text/a.txt", b"x")
    for url, options, kind, message in (
        ("http://host/ds", {}, ConfigError, "objects are written to s3://, gs:// and az://, not to a web server"),
        (f"{bucket.url}/ds/a.jsonl", {}, ConfigError, "a .jsonl, or the .yaml of a metadataset, is prepared on a disk"),
        (f"{bucket.url}/ds/m.yaml", {}, ConfigError, "a .jsonl, or the .yaml of a metadataset, is prepared on a disk"),
        (f"{bucket.url}/ds", {"media": IMAGES, "media_only": True}, ConfigError, "plain media is prepared on a disk"),
        (f"{bucket.url}/none", {}, InputError, "there are no objects below this URL"),
        (f"{bucket.url}/text", {}, InputError, "the folder holds no .tar"),
        ("hf://org/data", {}, ConfigError, "the scheme hf:// is not supported"),
    ):
        with pytest.raises(kind, match=message):
            prepare(url, **options)
    with pytest.raises(ConfigError, match="the scheme s3:// is not supported"):
        plan_energon(f"{bucket.url}/ds")
    assert bucket.content().keys() == {"ds/a.jsonl", "text/a.txt"}
    assert scratch() == []
