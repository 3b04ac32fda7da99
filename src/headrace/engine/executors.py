"""Executors: where the tasks of a job are done. `drive` takes a job from its plan to its output with one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from headrace.engine.doing import REFRESH_S, Doer, FailedTaskError, Limits
from headrace.engine.job import Job, Phase, Show
from headrace.engine.work_folder import BusyError
from headrace.errors import HeadraceError, OutputError, StoreError


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

    @classmethod
    def of(cls, job: Job, phase: Phase, *, notes: tuple[str, ...], jobs: tuple[str, ...] = ()) -> Handed:
        """Return the description of a job whose tasks of a phase others do."""
        num_open = len(job.receipts(phase).open_tasks)
        plan = f"planned: {num_open:,} open tasks"
        return cls(output=str(job.output), phase=phase.name, num_tasks=num_open, jobs=jobs, notes=(plan, *notes))


class Executor(Protocol):
    """Does the open tasks of a phase."""

    def run(self, job: Job, phase: Phase, show: Show) -> Handed | None:
        """Do the tasks, until all of them have a receipt; or return what goes on without this process, which may end.

        Raises:
            FailedTaskError: a task fails on every host.
        """


class LocalExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """Does the tasks on this host, and waits for those that other processes do."""

    workers: int
    """Number of worker processes; with 0 this process does the tasks itself."""

    def run(self, job: Job, phase: Phase, show: Show) -> None:
        """See `Executor`."""
        Doer(
            job,
            phase,
            wanted=None,
            workers=self.workers,
            waits=True,
            in_order=True,
            limits=Limits(),
            on_progress=show.tasks,
        ).run()


def planned(job: Job) -> Handed | None:
    """Return what others have to do for a job that was only planned; None if all of its tasks are done."""
    phase = job.phase()
    if phase is None:
        return None
    job.receipts(phase).refresh()
    hosts = "hosts that share this folder" if job.shared.is_folder else "hosts"
    return Handed.of(
        job,
        phase,
        notes=(
            f"on any number of {hosts}: headrace job task {job.output}",
            f"on one of them, at the end: headrace job finish {job.output}",
            f"to see how far it is: headrace job status {job.output}",
        ),
    )


def drive(job: Job, executor: Executor, show: Show) -> Any:
    """Take a job to its end: all phases that are left, and the output.

    Returns:
        The report of the work; `Handed` if it goes on without this process.

    Raises:
        Exception: the error of a task that failed, of the executor, or of the kind of work.
    """
    while (phase := job.phase()) is not None:
        receipts = job.refreshed(phase)
        try:
            if not receipts.failed and receipts.open_tasks and (handed := executor.run(job, phase, show)) is not None:
                return handed
        except FailedTaskError:
            receipts.refresh()
        if receipts.failed:
            break  # the end tells of the fault in the words of the kind of work
        job.tell(phase, show)
        following = job.phase()
        if following is not None and following.name == phase.name and not receipts.open_tasks:
            raise HeadraceError(f"phase {phase.name!r} is over, and no other begins. Please report this defect.")
    is_told = False
    while True:
        try:
            return job.finish(show)
        except BusyError as error:
            # At a URL, the next try takes the place of a process that has ended, or has said nothing for a minute. In a
            # shared folder another process may hold the lock for any time, so that this is left to the user.
            if job.shared.is_folder:
                raise
            if not is_told:
                show.notice(f"{error}: waiting for it")
                is_told = True
            time.sleep(max(REFRESH_S, job.shared.pause_s))
        except (OutputError, StoreError):
            if job.is_planned:
                raise
            # Another process has completed the job meanwhile, and has removed what this one was reading.
            return job.finish(show)


def take_part(
    job: Job, limits: Limits, show: Show, *, workers: int, wanted: Sequence[int] | None = None, waits: bool = True
) -> int:
    """Do the open tasks of all phases, together with other processes; only the output is left to `drive`.

    Args:
        job: the job.
        limits: when to begin no more tasks.
        show: what tells how far it is.
        workers: number of worker processes.
        wanted: the tasks to do, of this phase alone; None does all that are open.
        waits: whether to wait for tasks that other processes have begun; otherwise only this phase is done.

    Returns:
        Of how many tasks this process has created the receipt.

    Raises:
        Exception: see `Doer.run`.
    """
    num_done = 0
    while (phase := job.phase()) is not None:
        doer = Doer(job, phase, wanted=wanted, workers=workers, waits=waits, limits=limits, on_progress=show.tasks)
        num_done += doer.run()
        receipts = job.refreshed(phase)
        if wanted is not None or not waits or receipts.open_tasks:
            break  # this process has to end, or was asked for no more
    return num_done
