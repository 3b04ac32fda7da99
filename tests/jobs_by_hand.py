"""Does planned jobs as unlucky processes on several hosts would, with workers inside this process."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import faults
import killing
import memory_stores
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.job import Job, Phase, Show, TaskResult
from headrace.engine.receipts import Receipt
from headrace.engine.serving import Done
from headrace.engine.shared import remove_files, sync_files
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import OutputError
from headrace.kinds import finish_job, open_job
from headrace.testing.work import InlineWorkers, inline as inline


def attempt(job: Job, phase: Phase, task_index: int, name: str) -> Receipt:
    """Do a task in a folder of this name, up to the moment before its receipt is created."""
    results = job.receipts(phase).folder / name
    results.mkdir(exist_ok=True)
    if phase.is_light:
        with job.doing(phase) as do_task:
            found = do_task(job.tasks(phase)[task_index], results.absolute(), lambda counts: None)
    else:
        with InlineWorkers(1, job.setup(phase, results.absolute()), job.main) as workers:
            workers.send(0, job.tasks(phase)[task_index])
            ((_, reply),) = workers.receive(0.0)
        assert isinstance(reply, Done), reply
        found = reply.read(TaskResult)
    sync_files(results, found.files)
    return Receipt(
        task_index=task_index, attempt=name, host="a", finished_s=0.0, seconds=0.0, files=found.files,
        counts=found.counts, value=found.value,
    )  # fmt: skip


def by_hand(open_job: Callable[[], Job], chooser: random.Random) -> None:
    """Do some tasks of the phase, in any order, by processes of which some die, and some come second."""
    job = open_job()
    phase = job.phase()
    assert phase is not None
    receipts = job.receipts(phase)
    receipts.prepare()
    for number, task_index in enumerate(chooser.choices(receipts.tasks, k=len(receipts.tasks))):
        receipt = attempt(open_job(), phase, task_index, f"host-{chooser.randrange(3)}-{number}")
        if chooser.random() < 0.7 and not receipts.create(receipt):
            remove_files(receipts.folder / receipt.attempt, receipt.files)


def do(job: Job, phase: Phase, wanted: Sequence[int] | None = None) -> None:
    """Do tasks of the phase by a process that has no misfortune."""
    doer = Doer(job, phase, wanted=wanted, workers=1, waits=True, limits=Limits(), on_progress=lambda progress: None)
    doer.run()


def do_all(open_job: Callable[[], Job], chooser: random.Random) -> Any:
    """Do a whole job, with all that can happen on the way."""
    quiet = Show()
    while (phase := open_job().phase()) is not None:
        by_hand(open_job, chooser)
        some = chooser.sample(range(phase.num_tasks), phase.num_tasks // 2)
        for wanted in (some, None):
            do(open_job(), phase, wanted)
        if chooser.random() < 0.5:
            take_part(open_job(), Limits(), quiet, workers=1)
    if not killing.run(lambda: open_job().finish(quiet), moment=chooser.randrange(60)):
        try:
            job = open_job()
        except OutputError:
            return None  # it was killed at its very end, where the plan was gone
        return drive(job, LocalExecutor(workers=1), quiet)
    return None


@contextlib.contextmanager
def small_jobs() -> Iterator[None]:
    """Small parts, workers inside this process, and no patience with processes that are gone."""
    with faults.small_run():
        yield


def do_some(output: Path, *, seed: int = 0, most: int | None = None, wanted: list[int] | None = None) -> None:
    """One process does tasks, in any order if none are ``wanted``; it ends when none is open."""
    if not (output / WORK_NAME / "plan.json").exists():
        return  # it is complete
    job = open_job(output)
    phase = job.phase()
    if phase is None:
        return
    receipts = job.receipts(phase)
    receipts.refresh()
    order = random.Random(seed).sample(receipts.open_tasks, len(receipts.open_tasks))
    doer = Doer(
        job, phase, wanted=wanted or order, workers=2, waits=False, limits=Limits(most), on_progress=lambda _: None
    )
    doer.run()


def finish(output: Path) -> None:
    """Do what is left, and remove what a kill left."""
    finish_job(output, LocalExecutor(workers=2), Show())


def do_here(job: Job, wanted: list[int]) -> int:
    """Do these tasks, without regard to others; return of how many this process has created the receipt."""
    phase = job.phase()
    if phase is None:
        return 0
    doer = Doer(job, phase, wanted=wanted, workers=1, waits=False, limits=Limits(), on_progress=lambda _: None)
    return doer.run()


class Hosts:
    """Hosts that share no folder, each with a scratch folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def on(self, number: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(self._folder / f"host-{number}"))
            yield

    def end_anywhere(self, chooser: random.Random, steps: Sequence[Callable[[], object]], *, changes: int) -> int:
        """Carry out steps on any of three hosts, each ended at one of its changes in the store, and then on another.

        Returns:
            How many were ended.
        """
        num_ended = 0
        for step in steps:
            for is_last in (False, False, True):
                moment = 1 << 30 if is_last else chooser.randrange(changes)
                with self.on(chooser.randrange(3)), memory_stores.watched(memory_stores.stop_at(moment)):
                    try:
                        step()
                        break
                    except memory_stores.Stopped:
                        num_ended += 1
        return num_ended

    def left(self) -> list[Path]:
        """What lies in the scratch folders of all hosts, once nobody holds a job any more."""
        gc.collect()
        return list(self._folder.glob("host-*/outputs/*"))
