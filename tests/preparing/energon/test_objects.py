"""Datasets in a store in memory, prepared in place: the files of the local run, whatever ends it on the way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from obstore import delete

import headrace
import media_made
from counts import cases
from energon_made import PNG, PRIMARY, write_files, write_shards, write_tar
from energon_objects import FEW, INDEX, MEDIA, local, remote, upload
from headrace.engine.job import Show, TaskProgress
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import FetchStats, ObjectReader, Reader, cache_folder
from headrace.kinds import open_job
from headrace.preparing import ErrorOptions
from headrace.preparing.energon import (
    DatasetChoice,
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    plan as energon_plan,
    plan_energon,
    prepare_energon,
    scanning as energon_media,
)
from headrace.stores.energon import FilesystemStore, JsonlSamplesStore
from headrace.stores.energon.jsonl import scan_lines
from headrace.stores.tar import scan as tar_scan
from memory_stores import MemoryBucket, Stopped, scratch, stop_at, watched

SPLIT = SplitChoice(ratio=(2, 1, 1))
IMAGES = MediaFilter(strategy="EXTENSION")


def prepare(place: str | Path, **options: Any) -> EnergonReport:
    return prepare_energon(place, options=EnergonOptions(**{"split": SPLIT, "workers": 1, **options}))


def same(bucket: MemoryBucket, root: Path, name: str = "", **options: Any) -> EnergonReport:
    """Prepare here and there, and compare the files and the reports; return that of the store."""
    wanted, made = prepare(root / name, **options), prepare(f"{bucket.url}/ds/{name}".rstrip("/"), **options)
    assert remote(bucket) == local(root)
    assert str_of(made).replace(f"{bucket.url}/ds", str(root)) == str_of(wanted)
    assert scratch() == []
    return made


def without_job(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without the plan, and what the tasks have read."""
    return {name: data for name, data in files.items() if not name.startswith(".nv-meta/.headrace/")}


def str_of(report: EnergonReport) -> str:
    return msgspec.json.encode(report).decode()


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
    with pytest.raises(InputError, match=rf"{url}/shards/02.tar.*0.*1024"):
        prepare(url)
    assert not remote(bucket)
    skip = ErrorOptions(on_error="skip")
    with pytest.raises(InputError, match=rf"'0_1'.*0.*{url}/shards/00.tar"):
        prepare(url, errors=skip)
    assert not without_job(remote(bucket))
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
    whole = energon_plan.scan_tar

    def scan(root: Any, tar: Any, *rest: Any, **options: Any) -> Any:
        read.append(tar.name)
        return whole(root, tar, *rest, **options)

    monkeypatch.setattr(energon_plan, "scan_tar", scan)
    same(bucket, tmp_path)
    assert sorted(read) == ["shards/01.tar"] * 2 + ["shards/09.tar"] * 2, "here and there"
    # What others have changed is made again.
    bucket.put("ds/shards/00.tar.idx", bytes(16))
    bucket.put("ds/.nv-meta/index.sqlite", b"broken")
    assert prepare(url).read == 4
    assert remote(bucket) == local(tmp_path)


def cut_off() -> None:
    """Forget all that this host knows, as another one does not know it."""
    folder = cache_folder("outputs")
    shutil.rmtree(folder.parent)


def stopped(bucket: MemoryBucket, options: dict[str, Any], moment: int, wanted: dict[str, bytes]) -> bool:
    """Whether a run was ended at a change of this number, at each of which the dataset is as it was, new, or closed."""
    before = without_job(remote(bucket))

    def stop(number: int, kind: str) -> None:
        found = without_job(remote(bucket))
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
    moment = cases(2 * is_first + is_same_host, 0)  # each moment is in one of the variants
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
        moment += cases(4, 1)
    assert moment > 8


def test_a_run_that_was_not_ended_is_discarded(bucket: MemoryBucket, tmp_path: Path) -> None:
    """Where it puts its files into place, which only the same run continues."""
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    moment = 0
    while not any(name.endswith(".tar.idx") for name in bucket.content("ds")):
        with pytest.raises(Stopped), watched(stop_at(moment := moment + 1)):
            prepare(url)
    before = bucket.content("ds")
    with pytest.raises(OutputError, match=rf"{url}.*unfinished"):
        prepare(url, media=IMAGES)
    write_tar(tmp_path / "shards/09.tar", [("9.txt", b"nine")])
    upload(bucket, tmp_path, "09.tar")
    with pytest.raises(OutputError, match=rf"{url}.*unfinished"):
        prepare(url)
    assert {name: data for name, data in bucket.content("ds").items() if not name.endswith("09.tar")} == before
    prepare(url, media=IMAGES, restart=True, overwrite=True)
    wanted = remote(bucket)
    assert prepare(url, media=IMAGES).written == ()
    prepare(tmp_path, media=IMAGES)
    assert remote(bucket) == wanted == local(tmp_path)
    assert scratch() == []


def test_another_run_that_was_faster(bucket: MemoryBucket, tmp_path: Path) -> None:
    """A run that was planned meanwhile takes the place of the first, and is not disturbed by it."""
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    plan_energon(url, options=EnergonOptions(split=SPLIT))
    job = open_job(url)
    plan_energon(url, options=EnergonOptions(split=SplitChoice(ratio=(1,))))
    with pytest.raises(OutputError, match="another run"):
        job.finish(Show())
    assert not without_job(remote(bucket))
    for place in (url, tmp_path):
        prepare(place, split=SplitChoice(ratio=(1,)))
    assert remote(bucket) == local(tmp_path)
    del job
    assert scratch() == []


def test_a_shard_that_changes_during_the_run(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, dict(FEW))
    url = upload(bucket, tmp_path)
    whole = energon_plan.scan_tar

    def scan(*given: Any, **options: Any) -> Any:
        bucket.put("ds/shards/02.tar", (tmp_path / "shards/01.tar").read_bytes())
        return whole(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(energon_plan, "scan_tar", scan)
        with pytest.raises(StoreError, match=rf"{url}/shards/02.tar"):
            prepare(url)
    assert not remote(bucket)


def stats_of_reading(monkeypatch: pytest.MonkeyPatch) -> FetchStats:
    """What the tasks of the next run fetch."""
    reader = ObjectReader()
    monkeypatch.setattr(energon_plan, "reader_at", lambda *given: reader)
    return reader.stats


@pytest.mark.parametrize("member_bytes", [3000, 300_000])
def test_large_contents_are_not_fetched(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member_bytes: int
) -> None:
    write_tar(tmp_path / "a.tar", [(f"{n}.bin", bytes(member_bytes)) for n in range(40)])
    url = upload(bucket, tmp_path)
    monkeypatch.setattr(tar_scan, "OF_OBJECTS", tar_scan.WindowSteps(near=20_000, after_gap=2000, far=5000))
    stats = stats_of_reading(monkeypatch)
    prepare(url)
    size = (tmp_path / "a.tar").stat().st_size
    assert stats.bytes < 0.02 * size if member_bytes > 5000 else stats.bytes >= 0.9 * size
    assert stats.gets <= (45 if member_bytes > 5000 else 12)


def test_what_is_not_prepared_at_a_url(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("ds/a.jsonl", b"{}\n")
    bucket.put("text/a.txt", b"x")
    bucket.put("tars/a.tar", b"x")
    media = {"media": IMAGES, "media_only": True}
    for url, options, kind, message in (
        ("http://host/ds", {}, ConfigError, "server"),
        (f"{bucket.url}/ds/a.jsonl", {}, ConfigError, "split"),
        (f"{bucket.url}/ds/no.jsonl", {}, InputError, "objects"),
        (f"{bucket.url}/ds/m.yaml", {}, ConfigError, "load_dataset"),
        (f"{bucket.url}/text", media, InputError, "medium"),
        (f"{bucket.url}/tars", media, ConfigError, "--media-only"),
        (f"{bucket.url}/none", {}, InputError, "objects"),
        (f"{bucket.url}/text", {}, InputError, r"\.tar"),
        ("hf://org/data", {}, ConfigError, "hf://"),
    ):
        with pytest.raises(kind, match=message):
            prepare(url, **options)
        planned = (ConfigError, "planned") if url.endswith(("a.jsonl", "m.yaml")) else (kind, message)
        with pytest.raises(planned[0], match=planned[1]):
            plan_energon(url, options=EnergonOptions(**{"split": SPLIT, **options}))
    assert bucket.content().keys() == {"ds/a.jsonl", "text/a.txt", "tars/a.tar"}
    assert scratch() == []


LINES = b'\n{"i": 0}\n\n' + b"".join(b'{"i": %d, "text": "%s"}\r\n' % (n, b"x" * n) for n in range(300)) + b" \n"


@pytest.mark.parametrize("chunk", [1 << 24, 100])
def test_lines(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("headrace.stores.foreign._CHUNK_BYTES", chunk)
    (tmp_path / "x.jsonl").write_bytes(LINES)
    url = upload(bucket, tmp_path, "*.jsonl")
    for _ in range(2):  # the second run replaces the index
        made = same(bucket, tmp_path, "x.jsonl", split=SplitChoice())
    assert (made.kind, made.samples, made.written) == ("jsonl", 301, (f"{url}/x.jsonl.idx",))
    with JsonlSamplesStore(f"{url}/x.jsonl") as store:
        assert store[7].parts["json"] == b'{"i": 6, "text": "xxxxxx"}'


def test_lines_that_are_none_or_change(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("ds/x.jsonl", LINES + b"[1]\n")
    with pytest.raises(InputError, match=r"s3://\S+/ds/x.jsonl.*305.*JSON"):
        prepare(f"{bucket.url}/ds/x.jsonl", split=SplitChoice())
    with pytest.raises(ConfigError, match="gathered"):
        prepare(f"{bucket.url}/ds/x.jsonl", split=SplitChoice(), media=IMAGES)
    monkeypatch.setattr("headrace.stores.foreign._CHUNK_BYTES", 100)

    def scan(path: str, using: Reader) -> Any:
        using.size(path)  # looked up before it changes, as by a longer pass
        bucket.put("ds/x.jsonl", LINES)
        return scan_lines(path, using)

    monkeypatch.setattr("headrace.stores.energon.jsonl.scan_lines", scan)
    with pytest.raises(StoreError, match=r"ds/x.jsonl"):
        prepare(f"{bucket.url}/ds/x.jsonl", split=SplitChoice())
    assert not remote(bucket).keys() - {"x.jsonl"}


FILTERS = {
    "extension": IMAGES,
    "header": MediaFilter(strategy="HEADER"),
    "glob": MediaFilter(strategy="GLOB", patterns=("*.mp4", "A/*", "named.*")),
}


@pytest.mark.parametrize("wanted", FILTERS.values(), ids=FILTERS)
def test_a_folder_of_files(bucket: MemoryBucket, tmp_path: Path, wanted: MediaFilter) -> None:
    url = upload(bucket, write_files(tmp_path, MEDIA), "*")
    made = same(bucket, tmp_path, split=SplitChoice(), media=wanted, media_only=True)
    assert (made.kind, made.written) == ("media", (f"{url}/{INDEX}",))
    seen: list[TaskProgress] = []
    options = EnergonOptions(media=wanted, media_only=True)
    assert prepare_energon(url, options=options, on_progress=seen.append).media == made.media
    assert [one.counts["samples"] for one in seen if one.done == one.num_tasks][-1] == made.samples
    with headrace.open(url) as ours, headrace.open(tmp_path) as theirs:
        assert isinstance(ours, FilesystemStore)
        assert isinstance(theirs, FilesystemStore)
        assert ours.media_metadata("a/image.PNG") == theirs.media_metadata("a/image.PNG")
        assert ours.fingerprint == theirs.fingerprint


def test_what_is_fetched_of_files(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files at once, and of large ones the first bytes, if these decide."""
    url = upload(bucket, write_files(tmp_path, MEDIA), "*")
    for wanted, heads in ((IMAGES, []), (FILTERS["header"], ["large.bin", "large.mp4"])):
        names = energon_media.find_files(tmp_path, wanted)
        stats = stats_of_reading(monkeypatch)
        prepare(url, split=SplitChoice(), media=wanted, media_only=True)
        whole = [len(MEDIA[name]) for name in names if name != "large.bin"]
        assert stats.gets == len(whole) + len(heads)
        assert stats.bytes == sum(whole) + len(heads) * energon_media.HEAD_BYTES


def test_a_second_run_over_files(bucket: MemoryBucket, tmp_path: Path) -> None:
    """Rows of files that are gone stay, as they do on a disk, and the state of tars that were there knows the index."""
    write_shards(tmp_path, dict(FEW))
    upload(bucket, tmp_path)
    same(bucket, tmp_path)
    for name in (".info.json", "split.yaml", "dataset.yaml"):
        (tmp_path / ".nv-meta" / name).unlink()
        delete(bucket.store, [f"ds/.nv-meta/{name}"])
    upload(bucket, write_files(tmp_path, MEDIA), "*")
    options: dict[str, Any] = {"split": SplitChoice(), "media_only": True}
    same(bucket, tmp_path, media=IMAGES, **options)
    (tmp_path / "sound.wav").unlink()
    delete(bucket.store, ["ds/sound.wav"])
    made = same(bucket, tmp_path, media=FILTERS["header"], **options)
    assert made.samples == len(MEDIA) - 1 + 4 + 4  # with the tars and their indexes


def test_files_that_change_and_stores_that_are_away(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(bucket, write_files(tmp_path, MEDIA), "*")
    options: dict[str, Any] = {"split": SplitChoice(), "media": IMAGES, "media_only": True}
    whole = energon_plan.reader_at

    def reading(*given: Any) -> Any:
        bucket.put("ds/video.mp4", PNG)
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(energon_plan, "reader_at", reading)
        with pytest.raises(StoreError, match=rf"{url}/video.mp4"):
            prepare(url, **options)
    assert not any(name.startswith(".nv-meta") for name in bucket.content("ds"))
    assert scratch() == []


@pytest.mark.parametrize("is_same_host", [True, False])
def test_runs_over_files_that_end_at_any_change_go_on(bucket: MemoryBucket, tmp_path: Path, is_same_host: bool) -> None:
    options: dict[str, Any] = {"split": SplitChoice(), "media_only": True}
    write_files(tmp_path, MEDIA)
    prepare(tmp_path, media=IMAGES, **options)
    before = local(tmp_path)
    prepare(tmp_path, media=FILTERS["header"], **options)
    wanted = local(tmp_path)
    moment = cases(int(is_same_host), 0)
    while True:
        delete(bucket.store, [f"ds/{name}" for name in bucket.content("ds")])
        url = upload(bucket, tmp_path, "*[!e]")  # without the index
        prepare(url, media=IMAGES, **options)
        assert remote(bucket) == before
        if not stopped(bucket, {"media": FILTERS["header"], **options}, moment, wanted):
            break
        if not is_same_host:
            cut_off()
        prepare(url, media=FILTERS["header"], **options)
        assert remote(bucket) == wanted, moment
        assert scratch() == []
        moment += cases(2, 1)
    assert moment > 8
