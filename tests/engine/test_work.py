"""What the engine does for any kind of work, with one that only adds numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import toy_work
from headrace.engine import doing
from headrace.engine.doing import Doer, FailedTaskError, Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.job import Show, TaskProgress
from headrace.engine.receipts import Receipt
from headrace.errors import InputError, OutputError, WorkerError
from headrace.io import unique_name
from headrace.kinds import open_job
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
