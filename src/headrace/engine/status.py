"""How far a job is, read from its folder alone: what is done, under way and failed, how fast, and how long it takes."""

from __future__ import annotations

import heapq
import statistics
from typing import Final

import msgspec

from headrace.engine.heartbeat import Nodes
from headrace.engine.job import Job, Phase
from headrace.engine.receipts import Receipts
from headrace.engine.slurm import job_states, submitted

RECENT: Final = 200
"""Receipts that the rate is taken from."""

STRAGGLING: Final = 3.0
"""A task counts as a straggler after so many times the median of those that are done, and a minute."""


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a process has begun."""

    task: int
    host: str
    process: int
    seconds: float
    is_straggler: bool


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that fails on every host."""

    task: int
    host: str
    error: str


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was submitted to Slurm: the last array that does tasks, or the job behind it."""

    name: str
    """Its number."""

    is_array: bool
    states: dict[str, int]
    """How many of its jobs are in each state; empty if Slurm does not tell, here or any more."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is."""

    output: str
    kind: str
    phase: str
    """The phase whose tasks may be done now; empty if only finishing is left."""

    num_tasks: int
    done: int
    counts: dict[str, int]
    """Sums over the tasks that are done."""

    total_bytes: int
    running: tuple[RunningTask, ...]
    failed: tuple[FailedTask, ...]
    hosts: tuple[str, ...]
    """Hosts of the processes that are at work, as far as their folder shows."""

    tasks_per_s: float
    """0 while fewer than two tasks are done."""

    bytes_per_s: float
    left_s: float | None
    """Seconds until the tasks of the phase are done; None if that cannot be told."""

    slurm: tuple[SlurmJob, ...] = ()
    """What was submitted to Slurm last."""


class StatusReader:
    """Reads how far a job is. A second reading looks only at what is new."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._nodes = Nodes(job.shared)

    def read(self) -> JobStatus:
        """Return how far the job is now.

        Raises:
            OutputError: the folder cannot be read, or the job was completed and its work folder is gone.
        """
        phase = self._job.phase()
        if phase is None:
            phase = Phase(name="", num_tasks=0)
        return self._status(phase, self._job.refreshed(phase))

    def _status(self, phase: Phase, receipts: Receipts) -> JobStatus:
        recent = heapq.nlargest(RECENT, receipts.done.values(), key=lambda receipt: receipt.finished_s)[::-1]
        tasks_per_s = bytes_per_s = 0.0
        if len(recent) > 1 and (span := recent[-1].finished_s - recent[0].finished_s) > 0:
            tasks_per_s = (len(recent) - 1) / span
            bytes_per_s = sum(receipt.counts.get("bytes", 0) for receipt in recent[1:]) / span
        usual_s = statistics.median(receipt.seconds for receipt in recent) if recent else 0.0
        nodes = self._nodes.read()
        running = [
            RunningTask(
                task=task,
                host=node.host,
                process=node.process,
                seconds=round(seconds, 1),
                is_straggler=bool(recent) and seconds > max(STRAGGLING * usual_s, 60.0),
            )
            for node in nodes
            if node.phase == phase.name
            for task, seconds in node.running.items()
            if task not in receipts.done
        ]
        return JobStatus(
            output=str(self._job.output),
            kind=self._job.kind,
            phase=phase.name,
            num_tasks=len(receipts.tasks),
            done=len(receipts.done),
            counts=dict(receipts.counts),
            total_bytes=phase.total_bytes,
            running=tuple(sorted(running, key=lambda task: -task.seconds)),
            failed=tuple(
                FailedTask(task=task_index, host=receipt.host, error=receipt.error)
                for task_index, receipt in sorted(receipts.failed.items())
            ),
            hosts=tuple(sorted({node.host for node in nodes})),
            tasks_per_s=tasks_per_s,
            bytes_per_s=bytes_per_s,
            left_s=(len(receipts.tasks) - len(receipts.done)) / tasks_per_s if tasks_per_s else None,
            slurm=tuple(
                SlurmJob(name=name, is_array=is_array, states=job_states(name))
                for last in submitted(self._job)[-1:]
                for name, is_array in ((last.array, True), (last.finish, False))
            ),
        )
