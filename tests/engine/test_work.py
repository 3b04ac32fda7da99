"""What the engine does for any kind of work, with one that only adds numbers."""

from __future__ import annotations

import copy
import json
import os
import platform
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toy_work
from headrace.engine import doing
from headrace.engine.doing import Doer, FailedTaskError, Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.heartbeat import host_and_process
from headrace.engine.job import Show, TaskProgress
from headrace.engine.planning import JobPlace, NewPlan, load_plan
from headrace.engine.receipts import Receipt
from headrace.engine.shared import Shared
from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import InputError, OutputError, WorkerError
from headrace.io import unique_name
from headrace.kinds import open_job
from headrace.preparing import plan_shards
from headrace.testing.work import inline
from nfs import OnHosts
from toy_work import RESULT, ToyPlan

TOY = ToyPlan(7, 3)


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    with toy_work.known():
        yield


class TestToy(OnHosts):
    file_limit = 8

    def plan(self, output: str) -> None:
        toy_work.plan(output, TOY)

    def plan_poisoned(self, output: str) -> str:
        toy_work.plan(output, ToyPlan(7, 3, wrong=5))
        return "number 5"


def planned(tmp_path: Path, toy: ToyPlan = TOY) -> toy_work.ToyJob:
    toy_work.plan(str(tmp_path / "out"), toy)
    job = open_job(tmp_path / "out")
    assert isinstance(job, toy_work.ToyJob)
    return job


def doer(job: toy_work.ToyJob, limits: Limits | None = None, *, waits: bool = True) -> Doer:
    phase = job.phase()
    assert phase is not None
    return Doer(job, phase, wanted=None, workers=1, waits=waits, limits=limits or Limits(), on_progress=lambda _: None)


def test_real_workers(tmp_path: Path) -> None:
    job = planned(tmp_path)
    seen: list[TaskProgress] = []
    assert drive(job, LocalExecutor(workers=2), Show(tasks=seen.append)) == (tmp_path / "out" / RESULT).read_bytes()
    assert {(one.phase, one.num_tasks) for one in seen} == {("square", 7), ("sum", 3)}
    assert not toy_work.WORK(tmp_path / "out").exists()


def test_processes_that_end_without_a_word(tmp_path: Path) -> None:
    """The task that they had begun is named, and is not begun for ever."""
    job = planned(tmp_path)
    phase = job.phase()
    assert phase is not None
    receipts = job.receipts(phase)
    receipts.prepare()
    for number in range(doing.MAX_ATTEMPTS):
        assert receipts.claim(3, f"gone.{number}", number)
    with inline(), pytest.raises(WorkerError, match=r"9.*task 3.*'square'.*numbers \(3,\).*gone\.8"):
        doer(job).run()
    assert receipts.open_tasks == [3]


def test_tasks_of_others_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is at work keeps its task, as long as it says so."""
    job = planned(tmp_path)
    phase = job.phase()
    assert phase is not None
    receipts = job.receipts(phase)
    receipts.prepare()
    other = unique_name()  # a name of this process, which lives
    receipts.claim(2, other, 0)
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            receipts.create(
                Receipt(
                    task_index=2, attempt=other, host="b", finished_s=0.0, seconds=0.0, counts={"bytes": 1}, value=4
                )
            )

    with inline(), monkeypatch.context() as patch:
        patch.setattr("headrace.engine.heartbeat.Nodes.alive", lambda nodes: {other})
        patch.setattr(time, "sleep", wait)
        assert doer(job).run() == 6
    assert len(looks) == 3
    assert receipts.claims(2) == [other]
    assert job.receipts(phase).counts["bytes"] == 7


def test_limits(tmp_path: Path) -> None:
    job = planned(tmp_path)
    with inline():
        assert doer(job, Limits(2), waits=False).run() == 2
        assert doer(job, Limits(end_s=time.time() + 5), waits=False).run() == 0, "a task may take longer"
        assert take_part(job, Limits(end_s=time.time() + 1e6), Show(), workers=1) == 5 + 3
    assert job.phase() is None
    limits = Limits()
    assert limits.allow(10**9, 10**9)


def test_a_task_that_failed_on_another_host(tmp_path: Path) -> None:
    """No process does any further task, until the plan is made again."""
    job = planned(tmp_path, ToyPlan(7, 3, wrong=5))
    phase = job.phase()
    assert phase is not None
    with inline():
        with pytest.raises(InputError, match="number 5"):
            doer(job).run()
        with pytest.raises(FailedTaskError, match=r"task 5.*number 5"):
            doer(planned(tmp_path)).run()
        with pytest.raises(OutputError, match="number 5"):
            drive(planned(tmp_path), LocalExecutor(workers=1), Show())
        again = planned(tmp_path)
        again.receipts(phase).refresh()
        again.receipts(phase).forget_failed()
        drive(again, LocalExecutor(workers=1), Show())
    assert (tmp_path / "out" / RESULT).read_text().splitlines()[::3] == [
        f"the sum of these is {sum(n * n for n in numbers)}" for numbers in ((0, 1, 2), (3, 4, 5), (6,))
    ]


def test_plans_of_kinds_that_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(tmp_path)
    monkeypatch.setitem(toy_work.KINDS, "other", toy_work.KINDS["toy"])
    monkeypatch.delitem(toy_work.KINDS, "toy")
    with pytest.raises(OutputError, match="'toy'"):
        open_job(tmp_path / "out")


# What a folder shows.


def test_results_and_their_names_are_on_the_disk_once_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "phase" / "me" / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (tmp_path / "phase" / "me" / name).write_bytes(b"result")
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    Shared(tmp_path).publish("phase/me", ["a", "deep/b"])
    assert [str(path.relative_to(tmp_path / "phase")) for path in synced] == ["me/a", "me/deep/b", "me/deep", "me"]


def test_names_of_processes() -> None:
    assert host_and_process(unique_name()) == (platform.node(), os.getpid())
    assert host_and_process("a.host.with.dots.12.abcd") == ("a.host.with.dots", 12)
    assert host_and_process("nobody")[1] == 0


def test_a_folder_shows_what_was_written(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    shared.make(["some", "nodes"])
    names = [f"some/{number}" for number in random.Random(1).sample(range(9), 9)]
    for name in names:
        assert shared.create(name, name.encode())
        assert not shared.create(name, b"second")
    (tmp_path / "some" / "torn").write_bytes(b"half of it")
    assert sorted(shared.names("some")) == sorted([*(name.rpartition("/")[2] for name in names), "torn"])
    assert shared.read_all([*names, "some/torn", "some/none"]) == {name: name.encode() for name in names}
    shared.remove(names[0])
    assert shared.read(names[0]) is None
    assert shared.names("nowhere") == []
    shared.note("nodes/a.json", b"1")
    before = shared.versions("nodes")
    shared.note("nodes/a.json", b"2")
    assert shared.notes("nodes") == {"a.json": b"2"} != before
    shared.remove("nodes/a.json")
    assert not shared.notes("nodes")


# ``plan.json`` of a job: what is damaged or forged is an error of Headrace, whatever was changed.


FORGED = (None, -1, "x", 2**70, [], {}, 1.5, "\ud800")


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The path of each value in JSON."""
    yield path
    if isinstance(value, dict | list):
        for at, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, *path, at)


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for at in path[:-1]:
        inner = inner[at]
    inner[path[-1]] = new
    return value


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = {"é": [1, -2.5, None, "a\nb"], "big": 2**60}
    JobPlace(tmp_path).save(NewPlan("copy", plan))
    assert json.loads(bytes(load_plan(tmp_path).plan)) == plan


def test_a_plan_in_which_anything_was_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"\xff\xd8\xff")
    plan_shards([tmp_path / "in"], tmp_path / "out")
    path = tmp_path / "out" / ".headrace" / PLAN_NAME
    plan = json.loads(path.read_text())
    num_changed = 0
    for place in places(plan["plan"], "plan"):
        for new in FORGED:
            forged = changed(plan, place, new)
            if forged != plan:
                path.write_text(json.dumps(forged))
                with pytest.raises(OutputError, match="Headrace"):
                    open_job(tmp_path / "out")
                num_changed += 1
    assert num_changed > 200
    path.write_text(json.dumps(plan))
    assert open_job(tmp_path / "out").phase() is not None


@pytest.mark.parametrize(
    ("version", "message"), [(2, "version 2; this"), (10**9, "version 1000000000"), ("3", "damaged"), (None, "damaged")]
)
def test_other_versions_of_plans(tmp_path: Path, version: Any, message: str) -> None:
    JobPlace(tmp_path).save(NewPlan("copy", {}))
    path = tmp_path / PLAN_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    with pytest.raises(OutputError, match=message):
        load_plan(tmp_path)
