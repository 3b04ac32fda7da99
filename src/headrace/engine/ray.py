"""Ray: batches of tasks as plain Ray tasks, whose arguments and results are a few numbers.

The object store stays empty: inputs, tokeniser and results lie in the shared folder of the job. The driver may die and
be started again, since what is done lies in receipts. Ray retries a batch whose worker died, and the tasks of it that
have receipts are not done again.

Ray's documentation: https://docs.ray.io/en/latest/ray-core/tasks.html and its pages on fault tolerance and on patterns
(limit pending tasks).
"""

from __future__ import annotations

import collections
import statistics
import time
from typing import Any, Final

import msgspec

from headrace.engine.doing import Doer, Limits
from headrace.engine.job import Job, Phase, Show, TaskProgress
from headrace.engine.planning import job_at, reopened
from headrace.errors import ConfigError, WorkerError, load_extra
from headrace.io import path_at

MAX_RETRIES: Final = 8
"""Times that Ray starts a batch again whose worker or node was lost."""

BATCH_S: Final = 30.0
"""A batch takes about so long: starting a worker process takes a second of it."""

LEAST_S: Final = 5.0
"""Towards the end batches become shorter, so that all CPUs have work, but not shorter than this."""

AHEAD: Final = 2
"""Batches for each CPU of the cluster that are given to Ray ahead of time, at most."""

_LOOK_S: Final = 1.0


class RayExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """Does the tasks on a Ray cluster, one CPU for each batch."""

    address: str | None = None
    """As for ``ray.init``; None finds a running cluster by ``RAY_ADDRESS``, or starts one on this host."""

    memory_bytes: int = 1 << 30
    """What Ray is told that a batch needs, so that it does not place too many on a node."""

    def run(self, job: Job, phase: Phase, show: Show) -> None:
        """Do the tasks; see `Executor`.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: the cluster cannot be reached, or its nodes have other software than the plan.
            WorkerError: a batch was lost too often.
            Exception: the error of a task that failed.
        """
        ray = load_extra("ray", "--executor ray needs Ray: pip install 'headrace[ray]'")
        if not ray.is_initialized():
            try:
                ray.init(address=self.address)
            except Exception as error:
                where = self.address or "that ray.init finds without address"
                raise ConfigError(f"the Ray cluster {where} cannot be reached: {error}") from error
        remote = ray.remote(num_cpus=1, memory=self.memory_bytes, max_retries=MAX_RETRIES)(do_batch)
        _Driver(ray, remote, job, phase, show).run()


def do_batch(output: str, work: str, kind: str, phase: str, tasks: list[int]) -> list[float]:
    """Do a batch in a Ray worker; return the seconds that each of its tasks took there."""
    job = reopened(path_at(output), job_at(path_at(work)).shared(), kind)
    now = job.phase()
    if now is None or now.name != phase:
        return []  # others have done the phase
    doer = Doer(
        job, now, wanted=tasks, workers=1, claims=False, waits=False, limits=Limits(), on_progress=lambda progress: None
    )
    doer.run()
    return doer.seconds


class _Driver:
    """Gives batches to Ray, and keeps to a bounded number of them."""

    def __init__(self, ray: Any, remote: Any, job: Job, phase: Phase, show: Show) -> None:
        self._ray = ray
        self._remote = remote
        self._job = job
        self._phase = phase
        self._show = show
        self._receipts = job.receipts(phase)
        self._receipts.prepare()
        self._receipts.refresh()
        self._waiting = collections.deque(self._receipts.open_tasks)
        self._pending: dict[Any, list[int]] = {}
        self._seconds: collections.deque[float] = collections.deque(maxlen=200)

    def run(self) -> None:
        """Do all tasks."""
        try:
            while self._waiting or self._pending:
                most = max(int(self._ray.cluster_resources().get("CPU", 1)), 1) * AHEAD
                while self._waiting and len(self._pending) < most:
                    self._submit(most)
                self._collect()
        except BaseException:
            for reference in self._pending:
                self._ray.cancel(reference, force=True)
            raise

    def _submit(self, most: int) -> None:
        usual_s = statistics.median(self._seconds) if self._seconds else BATCH_S
        fair = max(-(-len(self._waiting) // most), round(LEAST_S / max(usual_s, 1e-3)))
        size = max(1, min(int(BATCH_S / max(usual_s, 1e-3)), fair))
        batch = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
        job = self._job
        arguments = (
            str(job.output.absolute()),
            job.shared.address,
            f"{type(job).__module__}:{type(job).__name__}",
        )
        self._pending[self._remote.remote(*arguments, self._phase.name, batch)] = batch

    def _collect(self) -> None:
        """Wait for a batch to end, or a moment."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=_LOOK_S)
        for reference in ready:
            batch = self._pending.pop(reference)
            try:
                self._seconds.extend(self._ray.get(reference))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError as error:
                raise WorkerError(
                    f"Ray lost a batch of tasks, {batch[0]} to {batch[-1]}, too often: {error}"
                ) from error
        self._receipts.refresh()
        if ready and not self._pending and not self._waiting:
            # Tasks that another process had begun and left undone.
            self._waiting.extend(self._receipts.open_tasks)
            if self._waiting:
                time.sleep(_LOOK_S)
        self._show.tasks(TaskProgress.of(self._phase, self._receipts))
