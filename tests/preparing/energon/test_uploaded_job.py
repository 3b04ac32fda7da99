"""Datasets in a store in memory, whose shards are read by hosts that share nothing else; the files of the local run."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from obstore import delete

import jobs_by_hand
from energon_made import PNG, write_files, write_shards, write_tar
from energon_objects import FEW, MEDIA, local, made_of, remote, upload
from headrace.engine.doing import Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Show
from headrace.errors import InputError, OutputError, StoreError
from headrace.io import is_url
from headrace.kinds import finish_job, open_job
from headrace.preparing import ErrorOptions
from headrace.preparing.energon import (
    EnergonOptions,
    MediaFilter,
    SplitChoice,
    plan,
    plan_energon,
    prepare_energon,
)
from memory_stores import MemoryBucket
from nfs import OnHosts

SPLIT = SplitChoice(ratio=(2, 1, 1))
CASES = {
    "new": EnergonOptions(split=SPLIT),
    "media": EnergonOptions(split=SPLIT, media=MediaFilter(strategy="EXTENSION")),
    "indices": EnergonOptions(index_only=True),
    "files": EnergonOptions(media=MediaFilter(strategy="HEADER"), media_only=True),
    "again": EnergonOptions(split=SPLIT, overwrite=True, duplicates="drop", errors=ErrorOptions(on_error="skip")),
}
LOCAL = LocalExecutor(workers=1)


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plan, "TASK_FILES", 3)
    for name in ("TASK_BYTES", "MEDIA_TASK_BYTES", "TARS_AT_ONCE"):
        monkeypatch.setattr(plan, name, 1)
    with jobs_by_hand.inline():
        yield


def begun(bucket: MemoryBucket, root: Path, case: str) -> str:
    """A dataset as it is before the run, there and here."""
    if case == "files":
        return upload(bucket, write_files(root, MEDIA), "*")
    write_shards(root, dict(FEW))
    if case == "again":
        for place in (root, upload(bucket, root)):
            prepare_energon(place, options=EnergonOptions(split=SPLIT))
        write_tar(root / "shards/01.tar", [("0_1.txt", b"a key that comes twice"), ("other.txt", b"x")])
        (root / "shards/02.tar").write_bytes((root / "shards/02.tar").read_bytes()[:-1500] + b"broken" * 250)
        (root / "shards/03.tar").unlink()
        (root / "shards/03.tar.idx").unlink()
        delete(bucket.store, ["ds/shards/03.tar", "ds/shards/03.tar.idx"])
    return upload(bucket, root)


def left(bucket: MemoryBucket) -> list[str]:
    return [name for name in bucket.content() if "/.headrace/" in name]


def some_tasks(url: str, chooser: random.Random) -> None:
    job = open_job(url)
    if (phase := job.phase()) is not None:
        jobs_by_hand.do_here(job, chooser.choices(job.receipts(phase).tasks, k=2))


class Prepared(OnHosts):
    """A dataset is prepared in place."""

    case: ClassVar[str]

    def plan(self, output: str) -> None:
        begun_at(self.bucket, output, self.case)
        plan_energon(output, options=CASES[self.case])

    def run_plainly(self, url: str) -> None:
        prepare_energon(url, options=CASES[self.case])

    def plan_poisoned(self, output: str) -> str:
        begun_at(self.bucket, output, self.case)
        data = b"no tar at all" * 200
        if is_url(output):
            self.bucket.put(f"{output.rpartition('/')[2]}/shards/03.tar", data)
        else:
            Path(output, "shards/03.tar").write_bytes(data)
        plan_energon(output, options=CASES[self.case])
        return "shards/03.tar"

    def content(self, output: str) -> dict[str, bytes]:
        return local(Path(output))

    def made(self, output: str) -> dict[str, bytes]:
        return made_of(super().made(output)) if self.bucket else self.content(output)


class TestNew(Prepared):
    case = "new"


@pytest.mark.soak
class TestMedia(Prepared):
    case = "media"


class TestFiles(Prepared):
    case = "files"

    def plan_poisoned(self, output: str) -> str:
        pytest.skip("a file that is no medium has no metadata")


def begun_at(bucket: MemoryBucket | None, output: str, case: str) -> None:
    """A dataset as it is before the run, in a folder or at a URL."""
    key = output.rpartition("/")[2]
    if bucket is None or not is_url(output):
        if not Path(output).exists():
            write_files(Path(output), MEDIA) if case == "files" else write_shards(Path(output), dict(FEW))
    elif not bucket.content(key):
        with tempfile.TemporaryDirectory() as folder:
            begun_at(None, f"{folder}/{key}", case)
            bucket.upload(Path(folder, key), key)


@pytest.mark.parametrize("case", CASES)
def test_tasks_on_hosts_that_share_nothing(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path, case: str
) -> None:
    url = begun(bucket, tmp_path / "ds", case)
    told = prepare_energon(tmp_path / "ds", options=CASES[case])
    before = remote(bucket)
    with hosts.on(0):
        plan_energon(url, options=CASES[case])
        plan_energon(url, options=CASES[case])  # again changes nothing
    assert not hosts.left()
    assert {name: data for name, data in remote(bucket).items() if "/.headrace/" not in name} == before
    with hosts.on(1):
        some_tasks(url, random.Random(1))
        done = len(open_job(url).known_receipts().done)  # type: ignore[attr-defined]
        assert 0 < done < len(open_job(url).receipts(open_job(url).phase()).tasks)  # type: ignore[arg-type]
    with hosts.on(2):
        take_part(open_job(url), Limits(), Show(), workers=1)
        assert open_job(url).phase() is None
    with hosts.on(3):
        late = open_job(url)
        report = finish_job(url, LOCAL, Show())
    assert remote(bucket) == local(tmp_path / "ds")
    fields = set(told.__struct_fields__) - {"path", "written"}
    assert [one.replace(url, str(tmp_path / "ds")) for one in report.written] == list(told.written)
    assert {name: getattr(report, name) for name in fields} == {name: getattr(told, name) for name in fields}
    with hosts.on(4):
        assert late.finish(Show()).samples == report.samples
        with pytest.raises(OutputError, match=r"/ds: nothing is planned"):
            open_job(url)
    del late
    assert remote(bucket) == local(tmp_path / "ds")
    assert not hosts.left()


def test_a_shard_that_changes_or_comes_is_read_at_the_end_or_named(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path
) -> None:
    url = begun(bucket, tmp_path / "ds", "new")
    with hosts.on(0):
        plan_energon(url, options=CASES["new"])
        job = open_job(url)
        jobs_by_hand.do_here(job, [0, 1])
    write_tar(tmp_path / "ds/shards/00.tar", [("again.txt", b"another")])
    write_tar(tmp_path / "ds/shards/02.tar", [("2_7.txt", b"another")])
    write_tar(tmp_path / "ds/shards/09.tar", [("9.txt", b"nine")])
    for name in ("00.tar", "02.tar", "09.tar"):
        upload(bucket, tmp_path / "ds", name)
    with hosts.on(1):
        with pytest.raises(StoreError, match=r"02\.tar"):
            finish_job(url, LOCAL, Show())
        plan_energon(url, options=CASES["new"])
        phase = open_job(url).phase()
        assert phase is not None
        assert phase.num_tasks == 5, "of another plan, nothing is kept at a URL"
        with pytest.raises(OutputError, match="another run"):
            job.finish(Show())  # its plan was replaced
        finish_job(url, LOCAL, Show())
    del job
    prepare_energon(tmp_path / "ds", options=CASES["new"])
    assert remote(bucket) == local(tmp_path / "ds")
    assert not left(bucket)


def test_files_that_change_or_were_read_by_others(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the plan are read, each as it was then; another plan, or a run with other files, reads all again."""
    url = begun(bucket, tmp_path / "ds", "files")
    options = CASES["files"]
    with hosts.on(0):
        plan_energon(url, options=options)
        job = open_job(url)
        tasks = len(job.receipts(job.phase()).tasks)  # type: ignore[arg-type]
        jobs_by_hand.do_here(job, range(tasks - 1))
    read: list[str] = []
    whole = plan.read_medium

    def row(root: Any, name: str, *rest: Any) -> Any:
        read.append(name)
        return whole(root, name, *rest)

    monkeypatch.setattr(plan, "read_medium", row)
    last = sorted(MEDIA, key=lambda name: Path(name).parts)[-1]
    bucket.put(f"ds/{last}", PNG + b"another")
    write_files(tmp_path / "ds", {last: PNG + b"another"})
    with hosts.on(1), pytest.raises(StoreError, match=rf"{last}"):
        finish_job(url, LOCAL, Show())
    assert {*read} <= {*sorted(MEDIA, key=lambda name: Path(name).parts)[3 * (tasks - 1) :]}
    with hosts.on(1):
        plan_energon(url, options=options)
        assert open_job(url).receipts(open_job(url).phase()).done == {}  # type: ignore[arg-type]
        jobs_by_hand.do_here(open_job(url), [0])
        read.clear()
        # What is planned is read by a run without an executor, too.
        prepare_energon(url, options=options)
    assert len(read) == len(MEDIA) - 3
    prepare_energon(tmp_path / "ds", options=options)
    assert remote(bucket) == local(tmp_path / "ds")
    assert not left(bucket)
    with hosts.on(2):
        plan_energon(url, options=options)
        jobs_by_hand.do_here(open_job(url), [0])
        bucket.put("ds/z.png", PNG)
        write_files(tmp_path / "ds", {"z.png": PNG})
        read.clear()
        prepare_energon(url, options=options)
    assert len(read) == len(MEDIA) + 1
    prepare_energon(tmp_path / "ds", options=options)
    assert remote(bucket) == local(tmp_path / "ds")
    assert not left(bucket)
    del job


def test_a_plain_run_goes_on_with_what_others_have_read(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path
) -> None:
    url = begun(bucket, tmp_path / "ds", "new")
    with hosts.on(0):
        plan_energon(url, options=CASES["new"])
        jobs_by_hand.do_here(open_job(url), [0, 3])
    notices: list[str] = []
    with hosts.on(1):
        prepare_energon(url, options=CASES["new"], on_notice=notices.append)
    assert any("2 shards are read" in notice for notice in notices)
    prepare_energon(tmp_path / "ds", options=CASES["new"])
    assert remote(bucket) == local(tmp_path / "ds")
    assert not left(bucket)


def test_a_malformed_shard_is_named(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path) -> None:
    write_shards(tmp_path / "ds", dict(FEW))
    whole = (tmp_path / "ds/shards/01.tar").read_bytes()
    (tmp_path / "ds/shards/01.tar").write_bytes(whole[:2000])
    url = upload(bucket, tmp_path / "ds")
    with hosts.on(0):
        plan_energon(url, options=CASES["new"])
        with pytest.raises(InputError, match=r"/shards/01\.tar.*0.*1024"):
            finish_job(url, LOCAL, Show())
        bucket.put("ds/shards/01.tar", whole)
        plan_energon(url, options=CASES["new"])
        finish_job(url, LOCAL, Show())
    (tmp_path / "ds/shards/01.tar").write_bytes(whole)
    prepare_energon(tmp_path / "ds", options=CASES["new"])
    assert remote(bucket) == local(tmp_path / "ds")
