"""Executors: where the tasks of a job are done. `drive` takes a job from its plan to its output with one of them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from headrace.engine.doing import Doer, Limits
from headrace.engine.job import Job, Phase, Show
from headrace.errors import HeadraceError


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """A job that goes on without this process."""

    output: str
    phase: str
    num_tasks: int
    """Tasks that are open."""

    jobs: tuple[str, ...] = ()
    """Names of what the scheduler runs."""

    notes: tuple[str, ...]
    """What a user should know, a line each."""


class Executor(Protocol):
    """Does the open tasks of a phase."""

    def run(self, job: Job, phase: Phase, show: Show) -> bool:
        """Do the tasks; return whether all of them have a receipt now.

        False means that the work goes on without this process, which may end.
        """

    def describe(self, job: Job) -> Handed:
        """Return what goes on without this process, if `run` returned False."""


class LocalExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """Does the tasks in worker processes of this host, and waits for those that other processes do."""

    workers: int

    def run(self, job: Job, phase: Phase, show: Show) -> bool:
        """See `Executor`."""
        doer = Doer(
            job,
            phase,
            wanted=None,
            workers=self.workers,
            waits=True,
            limits=Limits(),
            on_progress=show.tasks,
        )
        doer.run()
        return True

    def describe(self, job: Job) -> Handed:
        """See `Executor`; `run` never returns False."""
        return handed(job, notes=())


class PlanOnly(msgspec.Struct, frozen=True):
    """Does nothing: others do the tasks."""

    def run(self, job: Job, phase: Phase, show: Show) -> bool:
        """See `Executor`."""
        return False

    def describe(self, job: Job) -> Handed:
        """See `Executor`."""
        return handed(
            job,
            notes=(
                f"on any number of hosts that share this folder: headrace prepare task {job.output}",
                f"on one of them, at the end: headrace prepare finish {job.output}",
                f"to see how far it is: headrace prepare status {job.output}",
            ),
        )


def handed(job: Job, *, notes: tuple[str, ...], jobs: tuple[str, ...] = ()) -> Handed:
    """Return the description of a job that goes on without this process."""
    phase = job.phase()
    num_open = 0
    if phase is not None:
        receipts = job.receipts(phase)
        receipts.refresh()
        num_open = len(receipts.open_tasks)
    name = "" if phase is None else phase.name
    plan = f"planned: {num_open:,} open tasks"
    return Handed(output=str(job.output), phase=name, num_tasks=num_open, jobs=jobs, notes=(plan, *notes))


def drive(job: Job, executor: Executor, show: Show) -> Any:
    """Take a job to its end: all phases that are left, what is done between them, and the output.

    Returns:
        The report of the work; None if it goes on without this process.

    Raises:
        Exception: the error of a task that failed, of the executor, or of the kind of work.
    """
    while (phase := job.phase()) is not None:
        receipts = job.receipts(phase)
        receipts.refresh()
        if receipts.open_tasks and not executor.run(job, phase, show):
            return None
        job.advance(phase, show)
        following = job.phase()
        if following is not None and following.name == phase.name and not receipts.open_tasks:
            raise HeadraceError(f"phase {phase.name!r} is over, and no other begins. Please report this defect.")
    return job.finish(show)
