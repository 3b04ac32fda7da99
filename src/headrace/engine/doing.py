"""Does tasks of a job in worker processes of this host, and creates their receipts."""

from __future__ import annotations

import collections
import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import xxhash

from headrace.engine.heartbeat import Heartbeat, Nodes
from headrace.engine.job import Job, Phase, Show, TaskProgress, TaskResult
from headrace.engine.processes import REPORT_S, AnyTask, Assignment, WorkerProcesses
from headrace.engine.receipts import Receipt, remove_files, sync_files
from headrace.engine.serving import Done, Failed
from headrace.errors import InputError, WorkerError
from headrace.io import output_errors, unique_name

MAX_ATTEMPTS: Final = 9
"""Processes that may begin a task and end without a word, before the task is given up."""

REFRESH_S: Final = 3.0
"""Seconds between two looks at the receipts of others."""


class Doer:
    """One process that does tasks of a phase, in worker processes.

    Args:
        job: the job.
        phase: the phase.
        wanted: the tasks to do; None does all that are open, and takes turns with other processes.
        workers: number of worker processes.
        waits: whether to wait for tasks that other processes have begun, and to do those that these leave undone.
        should_end: asked now and then whether to begin no more tasks.
        on_progress: called a few times a second.
    """

    def __init__(
        self,
        job: Job,
        phase: Phase,
        *,
        wanted: Sequence[int] | None,
        workers: int,
        waits: bool,
        should_end: Callable[[], bool],
        on_progress: Callable[[TaskProgress], None],
    ) -> None:
        self._job = job
        self._phase = phase
        self._workers = workers
        self._waits = waits
        self._should_end = should_end
        self._on_progress = on_progress
        self._attempt = unique_name()
        self._receipts = job.receipts(phase)
        self._results = self._receipts.folder / self._attempt
        self._tasks = job.tasks(phase)
        self._nodes = Nodes(job.work)
        self._heartbeat = Heartbeat(job.work, self._attempt, phase.name)
        self._counts: collections.Counter[str] = collections.Counter()
        self._began_s: dict[int, float] = {}
        self._pieces: dict[int, dict[int, Done]] = {}
        self._refreshed_s = 0.0
        self._wanted = list(self._receipts.tasks) if wanted is None else list(wanted)
        if wanted is None:
            # Processes that begin at the same time begin at different places, so that they seldom try the same claim.
            first = xxhash.xxh3_64_intdigest(self._attempt.encode()) % max(len(self._wanted), 1)
            self._wanted = self._wanted[first:] + self._wanted[:first]
        self._queue: collections.deque[int] = collections.deque()
        self.num_done = 0

    def run(self) -> int:
        """Do the tasks; return how many of them this process has done.

        Raises:
            WorkerError: a task has ended several workers, or several processes that had begun it.
            Exception: the error of a task that failed.
        """
        self._receipts.prepare()
        with output_errors(self._results, "make the folder"):
            self._results.mkdir(exist_ok=True)
        self._refresh()
        with self._heartbeat:
            self._queue.extend(self._unclaimed())
            first = self._next_task()
            while first is not None:
                self._work(first)
                first = self._left_over()
        with contextlib.suppress(OSError):
            self._results.rmdir()  # if there is nothing in it
        return self.num_done

    def _work(self, first: AnyTask) -> None:
        """Start the workers, and do tasks until there is none at the moment."""
        begin: list[AnyTask] = [first]
        setup = self._job.setup(self._phase, self._results.absolute())
        num_workers = max(min(self._workers, len(self._queue) + 1), 1)
        with WorkerProcesses(num_workers, setup, self._job.main) as workers:
            assignment = Assignment(workers, lambda: begin.pop() if begin else self._next_task())
            assignment.assign()
            while assignment.is_running:
                for reply in assignment.receive(REPORT_S):
                    if isinstance(reply, Failed):
                        self._end(reply.task_index, self._job.failure(self._phase, reply))
                    elif isinstance(reply, Done):
                        self._take(reply)
                self._heartbeat.beat({task: time.time() - began for task, began in self._began_s.items()})
                if time.monotonic() - self._refreshed_s > REFRESH_S:
                    self._refresh()
                self._report()
                assignment.assign()

    def _next_task(self) -> AnyTask | None:
        """Claim the next task; None if there is none to begin now."""
        while self._queue and not self._should_end():
            task_index = self._queue.popleft()
            if task_index in self._receipts.done or self._receipts.read(task_index) is not None:
                continue
            if self._receipts.claim(task_index, self._attempt, len(self._receipts.claims(task_index))):
                self._began_s[task_index] = time.time()
                return self._tasks[task_index]
        return None

    def _unclaimed(self) -> list[int]:
        claimed = self._receipts.claimed()
        return [index for index in self._wanted if index not in claimed and index not in self._receipts.done]

    def _left_over(self) -> AnyTask | None:
        """Wait for the tasks that others have begun; claim one that its process has left undone. None at the end."""
        while not self._should_end():
            self._refresh()
            self._report()
            undone = [task_index for task_index in self._wanted if task_index not in self._receipts.done]
            if not undone:
                return None
            alive = self._nodes.alive()
            for task_index in undone:
                claims = self._receipts.claims(task_index)
                if claims and claims[-1] in alive:
                    continue
                if len(claims) >= MAX_ATTEMPTS:
                    raise WorkerError(
                        f"{len(claims)} processes have begun task {task_index} of {self._phase.name!r} and ended without"
                        f" a word, the last one {claims[-1]}: it may need more memory or time than they had"
                    )
                self._queue.append(task_index)
            if (task := self._next_task()) is not None:
                return task
            if not self._waits:
                return None
            self._heartbeat.beat({})
            time.sleep(min(REFRESH_S, 0.1 * (1 + len(undone))))
        return None

    def _take(self, reply: Done) -> None:
        """Note a result; with the last piece of a task, create its receipt."""
        pieces = self._pieces.setdefault(reply.task_index, {})
        pieces[reply.piece] = reply
        if not reply.is_last:
            return
        done = [pieces[number] for number in range(reply.piece + 1)]
        del self._pieces[reply.task_index]
        self._end(reply.task_index, self._job.result(self._phase, done, self._results))

    def _end(self, task_index: int, result: TaskResult) -> None:
        """Create the receipt of a task, or throw its files away if there is one already."""
        began_s = self._began_s.pop(task_index, time.time())
        sync_files(self._results, result.files)
        receipt = Receipt(
            task_index=task_index,
            attempt=self._attempt,
            host=platform.node(),
            finished_s=time.time(),
            seconds=time.time() - began_s,
            files=result.files,
            counts=result.counts,
            value=result.value,
            error=result.error,
        )
        if self._receipts.create(receipt):
            self._counts.update(receipt.counts)
            self.num_done += 1
        else:
            remove_files(self._results, result.files)
        self._check_failed()

    def _refresh(self) -> None:
        for receipt in self._receipts.refresh():
            self._counts.update(receipt.counts)
        self._refreshed_s = time.monotonic()
        self._check_failed()

    def _check_failed(self) -> None:
        """Raise InputError if a task failed, on whatever host: the work cannot be finished."""
        for receipt in self._receipts.failed():
            raise InputError(f"task {receipt.task_index} failed on host {receipt.host}: {receipt.error}")

    def _report(self) -> None:
        self._on_progress(
            TaskProgress(
                phase=self._phase.name,
                done=len(self._receipts.done),
                num_tasks=len(self._receipts.tasks),
                counts=dict(self._counts),
                total_bytes=self._phase.total_bytes,
            )
        )


def complete(job: Job, *, workers: int, show: Show) -> Any:
    """Do all tasks of a job that are open, on this host, together with other processes; then finish it.

    Raises:
        WorkerError: see `Doer.run`.
        Exception: the error of a task that failed, or of the kind of work.
    """
    while (phase := job.phase()) is not None:
        Doer(
            job, phase, wanted=None, workers=workers, waits=True, should_end=lambda: False, on_progress=show.tasks
        ).run()
        job.advance(phase, show)
    return job.finish(show)
