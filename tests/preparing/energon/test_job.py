"""Datasets whose shards are read in any order, by several processes, with deaths in between."""

from __future__ import annotations

import os
import platform
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jobs_by_hand
from counts import cases
from energon_made import PNG, write_tar
from headrace.engine.doing import Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.heartbeat import Heartbeat, Node
from headrace.engine.job import Show, TaskProgress
from headrace.engine.status import StatusReader
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import unique_name
from headrace.kinds import finish_job, open_job
from headrace.preparing import ErrorOptions
from headrace.preparing.energon import (
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    plan_energon,
    prepare_energon,
)
from headrace.preparing.energon.scanning import scan_tar
from headrace.stores.energon import SqliteIndex

SPLIT = SplitChoice(ratio=(2, 1))
CASES = {
    "new": EnergonOptions(split=SPLIT),
    "media": EnergonOptions(split=SPLIT, media=MediaFilter(strategy="EXTENSION")),
    "indices": EnergonOptions(index_only=True),
    "again": EnergonOptions(split=SPLIT, overwrite=True, duplicates="drop", errors=ErrorOptions(on_error="skip")),
}


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each tar is a task."""
    monkeypatch.setattr("headrace.preparing.energon.plan.TASK_BYTES", 1)
    monkeypatch.setattr("headrace.preparing.energon.plan.MEDIA_TASK_BYTES", 1)
    with jobs_by_hand.inline():
        yield


def make(root: Path, num_shards: int = 7) -> Path:
    root.mkdir()
    for shard in range(num_shards):
        write_tar(root / f"s{shard}.tar", [(f"k{shard}{number}.png", PNG) for number in range(shard % 3)])
    return root


def begun(folder: Path, case: str) -> Path:
    """A dataset as it is before the run."""
    root = make(folder / "begun")
    if case == "again":
        prepare_energon(root, options=EnergonOptions(split=SPLIT))
        write_tar(root / "s1.tar", [("k20.txt", b"a key that comes twice"), ("other.txt", b"x")])
        (root / "s5.tar").write_bytes((root / "s5.tar").read_bytes()[:-1500] + b"broken" * 250)
        (root / "s4.tar").unlink()
        write_tar(root / "a.tar", [("a.txt", b"a")])
    return root


def content(root: Path) -> dict[str, bytes]:
    """All files, without the times within them: SQLite notes when the filters of media were written."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    times = rb'"mtime_ns": \d+|"xxh3_128": "\w+"|"xxh3_64": \[[^]]*\]'
    found[".nv-meta/headrace.json"] = re.sub(times, b"", found[".nv-meta/headrace.json"])
    for name in found.keys() & {".nv-meta/index.sqlite"}:
        found[name] = re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", b"", found[name])
    return found


@pytest.mark.parametrize("case", CASES)
def test_any_history_gives_the_bytes_of_a_local_run(case: str, tmp_path: Path) -> None:
    start = begun(tmp_path, case)
    local = shutil.copytree(start, tmp_path / "local", copy_function=shutil.copy2)
    told = prepare_energon(local, options=CASES[case])
    for seed in range(cases(4, 200)):
        root = shutil.copytree(start, tmp_path / f"{seed}", copy_function=shutil.copy2)
        plan_energon(root, options=CASES[case])
        assert list(root.glob("*.idx")) == [] or case == "again", "tasks write nothing outside of their folder"
        report = jobs_by_hand.do_all(lambda root=root: open_job(root), random.Random(seed))  # type: ignore[misc]
        assert content(root) == content(local), seed
        if isinstance(report, EnergonReport):
            assert (report.samples, report.split, report.faults) == (told.samples, told.split, told.faults)
        with pytest.raises(OutputError, match="complete"):
            open_job(root)


def test_what_is_edited_before_the_new_files_come_into_place_stays(tmp_path: Path) -> None:
    root = make(tmp_path / "root")
    prepare_energon(root, options=EnergonOptions(split=SPLIT))
    write_tar(root / "t.tar", [("new.png", PNG)])
    plan_energon(root, options=EnergonOptions(split=SPLIT))
    job = open_job(root)
    while (phase := job.phase()) is not None:
        jobs_by_hand.do_here(job, list(job.receipts(phase).tasks))
    split = root / ".nv-meta" / "split.yaml"
    assert "t.tar" not in split.read_text()
    split.write_text(split.read_text().replace("exclude: []", "exclude:\n- s1.tar/k10"))
    report = finish_job(root, LocalExecutor(workers=0), Show())
    assert "t.tar" in split.read_text()
    assert "s1.tar/k10" in split.read_text()
    assert report.new == 1
    found = content(root)
    prepare_energon(root, options=EnergonOptions(split=SPLIT))
    assert content(root) == found


# In case 12 the last process is killed while it writes the index.
@pytest.mark.parametrize("seed", sorted({*range(cases(2, 200)), 12}))
def test_a_folder_of_media(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.energon.plan.TASK_FILES", 3)
    options = EnergonOptions(media=MediaFilter(strategy="EXTENSION"), media_only=True)
    for name in ("local", "planned"):
        (tmp_path / name).mkdir()
        for number in range(14):
            (tmp_path / name / f"{number}.png").write_bytes(PNG)
    prepare_energon(tmp_path / "local", options=options)
    root = tmp_path / "planned"
    plan_energon(root, options=options)
    late = open_job(root)
    jobs_by_hand.do_all(lambda: open_job(root), random.Random(seed))
    local, planned = (SqliteIndex(tmp_path / name / ".nv-meta/index.sqlite") for name in ("local", "planned"))
    assert list(planned.media()) == list(local.media())
    assert len(list(planned.media())) == 14
    assert planned.media_filters() == local.media_filters()
    assert drive(late, LocalExecutor(workers=1), Show()).samples == 14
    assert [path.name for path in (root / ".nv-meta").iterdir()] == ["index.sqlite"]


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is repaired after the plan is planned anew, and read alone."""
    read = []

    def scanned(root: Path, tar: Any, *rest: Any, **options: Any) -> Any:
        read.append(tar.name)
        return scan_tar(root, tar, *rest, **options)

    root = make(tmp_path / "d")
    whole = (root / "s5.tar").read_bytes()
    (root / "s5.tar").write_bytes(whole[:-1500] + b"broken" * 250)
    plan_energon(root, options=CASES["new"])
    phase = open_job(root).phase()
    assert phase is not None
    jobs_by_hand.do(open_job(root), phase, [0, 1, 2, 3, 4, 6])
    plan_energon(root, options=CASES["new"])
    assert open_job(root).phase() == phase
    with pytest.raises(InputError, match=r"s5\.tar"):
        drive(open_job(root), LocalExecutor(workers=1), Show())
    (root / "s5.tar").write_bytes(whole)
    with pytest.raises(InputError, match="changed"):
        drive(open_job(root), LocalExecutor(workers=1), Show())
    plan_energon(root, options=CASES["new"])
    phase = open_job(root).phase()
    assert phase is not None
    assert phase.num_tasks == 7
    monkeypatch.setattr("headrace.preparing.energon.plan.scan_tar", scanned)
    report = drive(open_job(root), LocalExecutor(workers=1), Show())
    assert (report.shards, report.read, report.samples) == (4, 7, 6)
    assert read == ["s5.tar"]
    plan_energon(root, options=EnergonOptions())
    assert open_job(root).phase() is None, "there is nothing to read"
    assert drive(open_job(root), LocalExecutor(workers=1), Show()).unchanged == 7


def test_a_local_run_goes_on_with_what_others_read(tmp_path: Path) -> None:
    root = make(tmp_path / "d")
    plan_energon(root, options=CASES["new"])
    job = open_job(root)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase, [0, 3, 4])
    notices: list[str] = []
    prepare_energon(root, options=CASES["new"], on_notice=notices.append)
    assert "continuing the unfinished run in this folder: 3 shards are read" in notices
    assert job.phase() is None
    assert drive(job, LocalExecutor(workers=1), Show()).unchanged == 7
    plan_energon(root, options=EnergonOptions(overwrite=True))
    prepare_energon(root, options=EnergonOptions(restart=True))
    assert not (root / ".nv-meta/.headrace").exists()


def test_what_another_process_has_made_is_put_into_place(tmp_path: Path) -> None:
    """What was decided is told by the process that ends the job."""
    local, root = make(tmp_path / "local"), tmp_path / "d"
    shutil.copytree(local, root, copy_function=shutil.copy2)
    told: list[str] = []
    prepare_energon(local, options=CASES["new"], on_notice=told.append)
    assert any("crude" in notice for notice in told)
    plan_energon(root, options=CASES["new"])
    silent: list[str] = []
    take_part(open_job(root), Limits(), Show(notice=silent.append), workers=1)
    assert silent == []
    assert open_job(root).phase() is None
    assert not (root / ".nv-meta/.info.json").exists()
    before = (root / "s2.tar").stat()
    os.utime(root / "s2.tar", ns=(0, 0))
    with pytest.raises(InputError, match=r"s2\.tar: the file changed"):
        finish_job(root, LocalExecutor(workers=1), Show())
    os.utime(root / "s2.tar", ns=(0, before.st_mtime_ns))
    notices: list[str] = []
    finish_job(root, LocalExecutor(workers=1), Show(notice=notices.append))
    assert notices == told
    assert content(root) == content(local)


def test_faults_that_another_plan_skips_are_found(tmp_path: Path) -> None:
    """What was read where faults are skipped is of no use where they are not."""
    root = make(tmp_path / "d")
    (root / "s5.tar").write_bytes((root / "s5.tar").read_bytes()[:-9000])
    plan_energon(root, options=EnergonOptions(split=SPLIT, errors=ErrorOptions(on_error="skip")))
    job = open_job(root)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase, range(7))
    with pytest.raises(InputError, match=r"s5\.tar"):
        prepare_energon(root, options=CASES["new"])
    report = prepare_energon(root, options=EnergonOptions(split=SPLIT, errors=ErrorOptions(on_error="skip")))
    assert list(report.faults) == ["s5.tar"]


@pytest.mark.parametrize(
    "other", [CASES["indices"], EnergonOptions(split=SPLIT, restart=True)], ids=["other", "restart"]
)
def test_a_run_that_is_at_work_is_not_replaced(tmp_path: Path, other: EnergonOptions) -> None:
    root = make(tmp_path / "d")
    plan_energon(root, options=CASES["new"])
    plan = open_job(root).work / "plan.json"
    before = plan.read_bytes()
    shared = open_job(root).shared
    with Heartbeat(shared, unique_name(), "scan"), subprocess.Popen([sys.executable], stdin=subprocess.PIPE) as process:
        node = Node(host=platform.node(), process=process.pid, phase="scan", beat=1)
        shared.note("nodes/another.json", msgspec.json.encode(node))
        for replace in (plan_energon, prepare_energon):
            with pytest.raises(
                OutputError, match=rf"process {process.pid} of this host.*remove .*/\.nv-meta/\.headrace"
            ):
                replace(root, options=other)
        plan_energon(root, options=CASES["new"])  # the same run may be joined
        assert plan.read_bytes() == before
        process.communicate()
        plan_energon(root, options=other)  # that process has ended, and this one says itself that it is at work
    assert plan.read_bytes() != before or other.restart


def test_a_run_that_was_begun_alone_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended at its fourth tar, it is completed as a planned one is; and it tells how far it is."""
    local, root = make(tmp_path / "local"), tmp_path / "d"
    shutil.copytree(local, root, copy_function=shutil.copy2)
    seen: list[TaskProgress] = []
    prepare_energon(local, options=CASES["new"], on_progress=seen.append)
    ends = {one.phase.partition("-")[0]: one for one in seen}
    assert [(name, one.done, one.num_tasks) for name, one in ends.items()] == [("scan", 7, 7), ("merge", 1, 1)]
    for one in ends.values():
        assert one.counts["bytes"] == one.total_bytes == 7 * 10240
        assert one.counts["samples"] == sum(number % 3 for number in range(7))

    def scanned(root: Path, tar: Any, *rest: Any, **options: Any) -> Any:
        if tar.name == "s3.tar":
            raise KeyboardInterrupt
        return scan_tar(root, tar, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.preparing.energon.plan.scan_tar", scanned)
        with pytest.raises(KeyboardInterrupt):
            prepare_energon(root, options=EnergonOptions(split=SPLIT, workers=1))
    status = StatusReader(open_job(root)).read()
    assert (status.kind, status.done, status.num_tasks) == ("energon", 3, 7)
    assert status.counts == {"bytes": 3 * 10240, "shards": 3, "samples": 3}
    drive(open_job(root), LocalExecutor(workers=1), Show())
    assert content(root) == content(local)


def test_what_cannot_be_planned(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "x.yaml").write_text("splits: {}\n")
    for name in ("x.jsonl", "x.yaml"):
        with pytest.raises(ConfigError, match="prepare"):
            plan_energon(tmp_path / name)
    with pytest.raises(InputError, match="expected"):
        plan_energon(tmp_path / "none")
    with pytest.raises(ConfigError, match="split"):
        plan_energon(make(tmp_path / "d"))
    assert not (tmp_path / "d/.nv-meta").exists()
