"""Does tasks of a job in worker processes of this host, and creates their receipts."""

from __future__ import annotations

import collections
import contextlib
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from types import FrameType
from typing import Any, Final

import xxhash

from headrace.engine.heartbeat import Heartbeat, Nodes
from headrace.engine.job import Job, Phase, TaskProgress, TaskResult
from headrace.engine.poison import AnyTask
from headrace.engine.processes import REPORT_S, WorkerProcesses, WorkerTasks
from headrace.engine.receipts import Receipt
from headrace.engine.serving import Done, Failed
from headrace.errors import HeadraceError, InputError, OutputError, StoreError, WorkerError
from headrace.io import output_errors, unique_name

MAX_ATTEMPTS: Final = 9
"""Processes that may begin a task and end without a word, before the task is given up."""

_MARGIN: Final = 1.5
_MARGIN_S: Final = 20.0
"""A task may take so many times as long as the longest before it, and the process so many seconds to end."""

MAX_SHOWN: Final = 4
"""Tasks of whose results a process may be sending at the same time; they lie on its disk meanwhile."""

REFRESH_S: Final = 3.0
"""Seconds between two looks at the receipts of others."""


class FailedTaskError(InputError):
    """A task fails on every host, so that the job cannot be completed as it is."""


class Limits:
    """When a process begins no more tasks: after a number of them, after SIGTERM, or before its time is over.

    As a context manager it takes SIGTERM for the announcement of a scheduler that the process has to end: the tasks
    that are under way are completed. Slurm says when a job will be ended; a task that might take longer is not begun.

    Args:
        most: number of tasks; None sets no limit.
        end_s: when this process will be ended, in seconds since 1970 by the clock of this host; None if nobody says so.
    """

    def __init__(self, most: int | None = None, end_s: float | None = None) -> None:
        self._most = most
        self._is_told = False
        self._before: Any = None
        self._end_s = end_s

    def allow(self, num_begun: int, longest_s: float) -> bool:
        """Return whether another task may begin, after ``num_begun`` of which the longest took ``longest_s``."""
        if self._is_told or (self._most is not None and num_begun >= self._most):
            return False
        return self._end_s is None or time.time() + _MARGIN * longest_s + _MARGIN_S < self._end_s

    def __enter__(self) -> Limits:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True


class Doer:
    """One process that does tasks of a phase, in worker processes.

    Args:
        job: the job.
        phase: the phase.
        wanted: the tasks to do; None does all that are open, and takes turns with other processes.
        workers: number of worker processes; with 0 this process does the tasks itself, one after another.
        claims: whether to take turns with other processes. A scheduler that assigns tasks itself needs no claims.
        waits: whether to wait for tasks that other processes have begun, and to do those that these leave undone.
        in_order: whether to begin with the first task that is open, so that its error is found first; else anywhere,
            so that processes that begin at the same time seldom try the same claim.
        limits: when to begin no more tasks.
        on_progress: called a few times a second.
    """

    def __init__(
        self,
        job: Job,
        phase: Phase,
        *,
        wanted: Sequence[int] | None,
        workers: int,
        claims: bool = True,
        waits: bool,
        in_order: bool = False,
        limits: Limits,
        on_progress: Callable[[TaskProgress], None],
    ) -> None:
        self._job = job
        self._phase = phase
        self._workers = 0 if phase.is_light else workers
        self._claims = claims
        self._waits = waits
        self._limits = limits
        self._num_begun = 0
        self._longest_s = 0.0
        self._on_progress = on_progress
        self._attempt = unique_name()
        self._receipts = job.receipts(phase)
        self._folder = f"{self._receipts.name}/{self._attempt}"
        self._results = job.shared.here / self._folder
        self._tasks = job.tasks(phase)
        self._shared = job.shared
        self._nodes = Nodes(job.shared)
        self._heartbeat = Heartbeat(job.shared, self._attempt, phase.name)
        self._began_s: dict[int, float] = {}
        self._begun: dict[int, int] = {}
        """The claims of this process on tasks that are under way: how many others have begun each before."""
        self._counts: dict[int, Mapping[str, int]] = {}
        """What tasks that are under way have counted so far."""
        # Where showing results takes round trips, workers go on meanwhile.
        self._threads = None if job.shared.is_folder or not self._workers else futures.ThreadPoolExecutor(MAX_SHOWN)
        self._shown: set[futures.Future[tuple[Receipt, bool]]] = set()
        self._refreshed_s = self._told_s = 0.0
        self._wanted = list(self._receipts.tasks) if wanted is None else list(dict.fromkeys(wanted))
        if wanted is None and not in_order:
            first = xxhash.xxh3_64_intdigest(self._attempt.encode()) % max(len(self._wanted), 1)
            self._wanted = self._wanted[first:] + self._wanted[:first]
        self._queue: collections.deque[tuple[int, int]] = collections.deque()
        """Tasks to begin, and how many others have begun each before."""
        self.seconds: list[float] = []
        """How long each task took that this process has done."""

    def run(self) -> int:
        """Do the tasks; return of how many this process has created the receipt.

        If another process completes or discards the job meanwhile, this ends.

        Raises:
            WorkerError: a task has ended several workers, or several processes that had begun it.
            Exception: the error of a task that failed.
        """
        try:
            self._run()
        except (OutputError, StoreError) as error:
            try:
                is_planned = self._shared.is_planned()
            except StoreError:
                raise error from None  # the store is away
            if is_planned:
                raise
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=True, cancel_futures=True)
            self._shared.sweep()
        return len(self.seconds)

    def _run(self) -> None:
        self._receipts.prepare()
        with output_errors(self._results, "make the folder"):
            self._results.mkdir(parents=True, exist_ok=True)
        self._refresh()
        self._report()
        work = self._work if self._workers else self._work_here
        with self._heartbeat:
            self._queue.extend(self._unclaimed())
            try:
                while (task := self._next_task() or self._left_over()) is not None:
                    work(task)
            except BaseException:
                with contextlib.suppress(HeadraceError):
                    for task_index, number in self._begun.items():
                        self._receipts.give_back(task_index, number)
                raise
        with contextlib.suppress(OSError):
            self._results.rmdir()  # if there is nothing in it

    def _work(self, first: AnyTask) -> None:
        """Start the workers, and do tasks until there is none at the moment."""
        begin: list[AnyTask] = [first]
        setup = self._job.setup(self._phase, self._results.absolute())
        num_workers = max(min(self._workers, len(self._queue) + 1), 1)
        with WorkerProcesses(num_workers, setup, self._job.main, self._job.serve) as workers:
            tasks = WorkerTasks(workers, lambda: begin.pop() if begin else self._next_task())
            tasks.assign()
            while tasks.is_running:
                for reply in tasks.receive(REPORT_S):
                    if isinstance(reply, Failed):
                        self._fail(reply)
                    elif isinstance(reply, Done):
                        self._end(reply.task_index, reply.read(TaskResult))
                    else:
                        self._counts[reply.task_index] = reply.counts
                self._look_around()
                tasks.assign()
            self._note_shown(0)

    def _work_here(self, first: AnyTask) -> None:
        """Do tasks in this process until there is none at the moment."""
        task: AnyTask | None = first
        with self._job.doing(self._phase) as do:
            while task is not None:
                task_index = task.task_index

                def tell(counts: Mapping[str, int], task_index: int = task_index) -> None:
                    if time.monotonic() - self._told_s > REPORT_S:
                        self._told_s = time.monotonic()
                        self._counts[task_index] = counts
                        self._look_around()

                try:
                    result = do(task, self._results.absolute(), tell)
                except HeadraceError as error:
                    self._fail(Failed.of(task_index, error))
                else:
                    self._end(task_index, result)
                self._look_around()
                task = self._next_task()

    def _look_around(self) -> None:
        """Say that this process is at work, and see what others have done."""
        self._heartbeat.beat({task: time.time() - began for task, began in self._began_s.items()})
        self._note_shown(MAX_SHOWN)
        if time.monotonic() - self._refreshed_s > max(REFRESH_S, 5 * self._shared.pause_s):
            self._refresh()
        self._report()

    def _next_task(self) -> AnyTask | None:
        """Claim the next task; None if there is none to begin now."""
        while self._queue and self._limits.allow(self._num_begun, self._longest_s):
            task_index, number = self._queue.popleft()
            if task_index in self._receipts.done or self._is_done_meanwhile(task_index):
                continue
            if not self._claims or self._receipts.claim(task_index, self._attempt, number):
                self._began_s[task_index] = time.time()
                if self._claims:
                    self._begun[task_index] = number
                self._num_begun += 1
                return self._tasks[task_index]
        return None

    def _is_done_meanwhile(self, task_index: int) -> bool:
        """Look whether another has done a task. Where a look costs as much as a claim, the claim tells."""
        is_told_by_claim = self._claims and not self._shared.is_folder
        return not is_told_by_claim and self._receipts.read(task_index) is not None

    def _unclaimed(self) -> list[tuple[int, int]]:
        claimed = self._receipts.claimed() if self._claims else set[int]()
        return [(index, 0) for index in self._wanted if index not in claimed and index not in self._receipts.done]

    def _left_over(self) -> AnyTask | None:
        """Wait for the tasks that others have begun; claim one that its process has left undone. None at the end."""
        while self._claims and self._limits.allow(self._num_begun, self._longest_s):
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
                        f"{len(claims)} processes have begun task {task_index} of {self._phase.name!r}"
                        f" ({self._tasks[task_index].label}) and ended without a word, the last one {claims[-1]}: it"
                        " may need more memory or time than they had"
                    )
                self._queue.append((task_index, len(claims)))
            if (task := self._next_task()) is not None:
                return task
            if not self._waits:
                return None
            self._heartbeat.beat({})
            time.sleep(max(self._shared.pause_s, min(REFRESH_S, 0.1 * (1 + len(undone)))))
        return None

    def _fail(self, failed: Failed) -> None:
        """End a task that has failed: final, or because another process has done it, and has used up what it needs."""
        receipt = self._receipts.read(failed.task_index)
        if receipt is None:
            self._end(failed.task_index, self._job.failure(self._phase, failed))
            return
        self._receipts.add(receipt)
        self._note(receipt, is_ours=False)

    def _end(self, task_index: int, result: TaskResult) -> None:
        """Begin to show the results of a task."""
        began_s = self._began_s.get(task_index, time.time())
        self._longest_s = max(self._longest_s, time.time() - began_s)
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
        if self._threads is None:
            self._note(*self._show(receipt))
            return
        self._shown.add(self._threads.submit(self._show, receipt))
        self._note_shown(MAX_SHOWN)

    def _show(self, receipt: Receipt) -> tuple[Receipt, bool]:
        """Create the receipt of a task, or throw its files away if there is one already; return which it was."""
        receipt = self._job.publish(self._folder, receipt)
        is_ours = self._receipts.create(receipt)
        if not is_ours:
            self._shared.withdraw(self._folder, receipt.files)
        return receipt, is_ours

    def _note_shown(self, most: int) -> None:
        """Note the results that were shown meanwhile, and wait until at most so many are under way."""
        while self._shown:
            done, under_way = futures.wait(self._shown, timeout=0)
            if not done and len(under_way) <= most:
                return
            for shown in done or futures.wait(under_way, return_when=futures.FIRST_COMPLETED).done:
                self._shown.discard(shown)
                self._note(*shown.result())

    def _note(self, receipt: Receipt, is_ours: bool) -> None:
        for under_way in (self._began_s, self._begun, self._counts):
            under_way.pop(receipt.task_index, None)
        if is_ours:
            self._receipts.add(receipt)
            self.seconds.append(receipt.seconds)
            self._job.committed(self._phase, receipt)
        self._check_failed()

    def _refresh(self) -> None:
        self._receipts.refresh()
        self._refreshed_s = time.monotonic()
        self._check_failed()

    def _check_failed(self) -> None:
        """Raise FailedTaskError if a task failed, on whatever host: the work cannot be completed; or as `Job.check`."""
        self._job.check(self._phase, self._receipts)
        for task_index, receipt in self._receipts.failed.items():
            raise FailedTaskError(f"task {task_index} failed on host {receipt.host}: {receipt.error}")

    def _report(self) -> None:
        under_way = (counts for task, counts in self._counts.items() if task not in self._receipts.done)
        self._on_progress(TaskProgress.of(self._phase, self._receipts, under_way))
