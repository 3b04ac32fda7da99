"""What workers are at, in words: for the watchdog, and for the error when one is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from headrace.loader.workers_side import Sent
from headrace.loader.workers_table import Row, State, Table
from headrace.loader.workers_watch import Wait, how_ended, is_alive

DescribeSample = Callable[[Any, int], str]
"""A task, and the address of one of its samples, in words."""


class Reporter:
    """Says what workers do. It holds nothing that keeps them alive."""

    def __init__(
        self,
        table: Table,
        processes: list[BaseProcess],
        sent_now: Callable[[], Sequence[Sent]],
        describe: Callable[[Any], str],
        describe_sample: DescribeSample | None,
    ) -> None:
        self._table = table
        self._processes = processes
        self._sent_now = sent_now
        self._describe = describe
        self._describe_sample = describe_sample

    def __call__(self, wait: Wait) -> str:
        """Of a wait of the loader: for which worker, and what each of them does."""
        waited = f"headrace: waiting {monotonic() - wait.since:.0f} s for worker {wait.worker}"
        lines = [
            f"  worker {at} (process {process.pid}): {self.doing(at) if is_alive(process) else self.ended(at)}"
            for at, process in enumerate(self._processes)
        ]
        return "\n".join([waited, *lines])

    def doing(self, worker: int) -> str:
        """What a worker does, and since when."""
        row = self._table.row(worker)
        if row.state is State.STARTING:
            return "still starting"
        if row.state is State.WAITING:
            return f"{row.since_s:.0f} s without work"
        return f"{row.since_s:.0f} s in read of {self._task(row)}"

    def ended(self, worker: int) -> str:
        """How a worker has ended, and what it did then."""
        row = self._table.row(worker)
        how = how_ended(self._processes[worker])
        if row.state is State.STARTING:
            return f"{how} while it started"
        if row.state is State.WAITING:
            return f"{how} when it had done its work"
        return f"{how} in read of {self._task(row)}"

    def _task(self, row: Row) -> str:
        task = next((one.task for one in list(self._sent_now()) if one.number == row.task), None)
        if task is None:
            return "samples that nobody waits for"
        if row.sample is None or self._describe_sample is None:
            return self._describe(task)
        return self._describe_sample(task, row.sample)
