"""Copies as jobs: the contract of kinds of work, and what is theirs alone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import headrace
import jobs_by_hand
import killing
from copies_made import drawn, files, pair
from headrace.copying import CopyOptions, CopyReport
from headrace.copying.sources import StoreSource
from headrace.engine.doing import FailedTaskError
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.kinds import KINDS, finish_job, open_job
from nfs import OnHosts

AnyOutput = str | Path
Copy = Callable[..., CopyReport]


def merged(output: AnyOutput, **how: Any) -> CopyReport:
    return headrace.merge(["a", "b", "keyed"], output, options=CopyOptions(format="indexed", shards=50), **how)


def merged_whole(output: AnyOutput, **how: Any) -> CopyReport:
    return headrace.merge(["a", "b"], output, **how)


def split(output: AnyOutput, **how: Any) -> CopyReport:
    return headrace.split("a", output, into=3, options=CopyOptions(shards=30), **how)


def converted(output: AnyOutput, **how: Any) -> CopyReport:
    return headrace.convert("many", output, format="keyed", options=CopyOptions(dtype="int64"), **how)


def overwritten(output: AnyOutput, **how: Any) -> CopyReport:
    options = CopyOptions(format="keyed", shards=40, overwrite=True)
    return headrace.merge(["b", "a"], output, options=options, **how)


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sources at relative paths, and workers inside this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    drawn(Path("a"), 1, 60)
    drawn(Path("b"), 2, 40)
    headrace.convert("b", "keyed", format="keyed")
    headrace.merge(["a", "b", "a"], "many", options=CopyOptions(shards="source"))
    with jobs_by_hand.inline():
        yield


def begun(output: Path, copy: Copy) -> None:
    """The destination as it is before the copy."""
    if copy is overwritten:
        headrace.merge(["a"], output)


def finished(output: Path) -> Any:
    return finish_job(output, LocalExecutor(workers=1), Show())


class Copied(OnHosts):
    """A copy."""

    copy: ClassVar[Copy]

    def plan(self, output: str) -> None:
        assert self.copy(output, plan_only=True).is_dry_run

    def run_plainly(self, url: str) -> None:
        self.copy(url)

    def plan_poisoned(self, output: str) -> str:
        pair(Path("wide"), [[[1]], [[700]]])
        headrace.convert("wide", output, format="keyed", options=CopyOptions(dtype="uint8"), plan_only=True)
        return "wide"


class TestMerged(Copied):
    copy = staticmethod(merged)


class TestSplit(Copied):
    copy = staticmethod(split)


@pytest.mark.soak
class TestConverted(Copied):
    copy = staticmethod(converted)


@pytest.mark.parametrize("copy", [split, overwritten])
def test_finish_is_killed_at_any_change(copy: Copy) -> None:
    copy(Path("local"))
    begun(Path("out"), copy)
    copy(Path("out"), plan_only=True)
    job = open_job("out")
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    moment = 0
    while not killing.run(lambda: finished(Path("out")), moment=moment):
        moment += 3
        with contextlib.suppress(OutputError):
            open_job("out")
            continue
        break  # complete, and the plan is gone
    left = files(Path("out"))
    left.pop(".headrace/lock", None)  # empty, and the last that goes
    assert left == files(Path("local"))
    copy(Path("out"))
    assert not Path("out/.headrace").exists()


def test_a_local_run_adopts_what_others_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = split(Path("local"))
    split(Path("out"), plan_only=True)
    job = open_job("out")
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase, [0, 2])
    written = []
    write = headrace.copying.jobs.Copier.write

    def counted(self: Any, place: Path, folder: Any, number: int) -> Any:
        written.append((folder.name, number))
        return write(self, place, folder, number)

    monkeypatch.setattr(headrace.copying.jobs.Copier, "write", counted)
    report = split(Path("out"))
    assert report.stores[0].shards == copied.stores[0].shards
    assert len(written) == sum(len(store.shards) for store in copied.stores) - 2
    assert files(Path("out")) == files(Path("local"))


@pytest.mark.parametrize(("copy", "num_hashing"), [(converted, 0), (merged_whole, 0), (merged, 6)])
def test_each_file_is_hashed_by_a_task(copy: Copy, num_hashing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By that which copies all its documents, if there is one."""
    told = copy(Path("local"))
    copy(Path("out"), plan_only=True)
    job = open_job("out")
    phase = job.phase()
    assert phase is not None
    assert phase.num_tasks == sum(store.num_shards for store in told.stores) + num_hashing
    jobs_by_hand.do(job, phase)
    assert job.receipts(phase).counts["bytes"] == phase.total_bytes
    monkeypatch.setattr(StoreSource, "input", None)
    assert finished(Path("out")).inputs == told.inputs


def test_a_shard_that_is_cut_before_the_end_is_noticed() -> None:
    merged(Path("out"), plan_only=True)
    job = open_job("out")
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    (shard,) = job.receipts(phase).folder.glob("*/*_00003.bin")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(OutputError, match=r"_00003\.bin"):
        finished(Path("out"))
    with pytest.raises(OutputError, match=r"_00003\.bin.*out/\.headrace") as told:
        merged(Path("out"))
    assert "is kept" not in str(told.value), "the same copy would meet the same"
    assert [path.name for path in Path("out").iterdir()] == [".headrace"]


def test_a_complete_copy_is_not_planned_again() -> None:
    split(Path("out"))
    report = split(Path("out"), plan_only=True)
    assert "the output is complete already" in report.warnings[-1]
    assert not report.is_dry_run
    with pytest.raises(OutputError, match="earlier run"):
        merged(Path("out"), plan_only=True)
    assert not Path("out/.headrace").exists()


def test_the_output_that_a_copy_finds_at_its_end_is_its_own() -> None:
    merged(Path("out"), plan_only=True)
    job = open_job("out")
    shutil.rmtree("out")
    converted(Path("out"))
    with pytest.raises(OutputError, match="out: the copy that was planned is not there any more"):
        job.finish(Show())
    shutil.rmtree("out")
    told = merged(Path("out"))
    report = job.finish(Show())
    assert (report.stores, report.warnings[-1]) == (told.stores, "another process has completed the copy")


def test_another_copy_is_refused_where_one_is_planned(tmp_path: Path) -> None:
    split(Path("out"), plan_only=True)
    split(Path("out"), plan_only=True)  # the same one goes on
    for how in ({"plan_only": True}, {}):
        with pytest.raises(OutputError, match="headrace"):
            merged(Path("out"), **how)
    assert open_job("out").phase() is not None


def test_sources_that_change_are_noticed() -> None:
    merged_whole(Path("out"), plan_only=True)
    os.utime("b.bin", ns=(1, 1))
    with pytest.raises(StoreError, match=r"b\.bin.*remove .*/out/\.headrace, and plan again"):
        finished(Path("out"))
    with pytest.raises(OutputError, match=r"files.*status.*remove out/\.headrace"):
        merged_whole(Path("out"), plan_only=True)


def test_a_value_that_does_not_fit_ends_the_job_on_every_host() -> None:
    """The receipt says so, and no other process tries the task again."""
    pair(Path("wide"), [[[1]], [[700]]])
    headrace.convert("wide", "out", format="keyed", options=CopyOptions(dtype="uint8"), plan_only=True)
    phase = open_job("out").phase()
    assert phase is not None
    for _ in range(2):
        with pytest.raises(FailedTaskError, match=r"wide.*700"):
            jobs_by_hand.do(open_job("out"), phase)
    with pytest.raises(InputError, match=r"wide.*700"):
        finished(Path("out"))
    assert [path.name for path in Path("out").iterdir()] == [".headrace"]


def test_the_table_names_what_there_is() -> None:
    for name, kind in KINDS.items():
        module, _, job = kind.job.partition(":")
        assert getattr(__import__(module, fromlist=[job]), job).kind == name


@pytest.mark.parametrize("tool", ["merge", "convert", "split"])
def test_an_argument_that_no_tool_has_is_refused_before_anything_is_written(tool: str, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1, 2]]])
    asked: dict[str, dict[str, Any]] = {"merge": {}, "convert": {"format": "keyed"}, "split": {"into": 2}}
    sources: Any = [source] if tool == "merge" else source
    with pytest.raises(ConfigError, match="dryrun is unknown; did you mean 'dry_run'"):
        getattr(headrace.copying, tool)(sources, tmp_path / "out", **asked[tool], dryrun=True)
    assert not (tmp_path / "out").exists()
