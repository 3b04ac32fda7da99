"""A kind of work that only adds numbers: squares are written by tasks, and summed in a second phase."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.job import Job, Phase, Show, TaskResult
from headrace.engine.planning import KindOfWork, NewPlan, job_at
from headrace.engine.serving import Done, Failed, Reply, attempted, serve
from headrace.engine.shared import Shared
from headrace.engine.work_folder import beside, remove_work
from headrace.errors import InputError, OutputError
from headrace.io import path_at, read_whole, replace_file
from headrace.kinds import KINDS

WORK = beside("adding")
RESULT = "sums.txt"


class ToyPlan(msgspec.Struct, frozen=True):
    """The squares of 0 to ``count`` - 1, of which ``wrong`` cannot be computed; sums of ``step`` squares."""

    count: int
    step: int
    wrong: int = -1

    @property
    def phases(self) -> list[Phase]:
        """Its phases."""
        return [Phase(name="square", num_tasks=self.count), Phase(name="sum", num_tasks=-(-self.count // self.step))]


class ToyTask(msgspec.Struct, frozen=True):
    """A square, or a sum."""

    task_index: int
    numbers: tuple[int, ...]
    is_sum: bool

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return f"numbers {self.numbers}"


class ToySetup(msgspec.Struct, frozen=True):
    """The first message to a worker."""

    parent: int
    results: str
    wrong: int


def plan(output: str, toy: ToyPlan) -> None:
    """Plan work for an output."""
    job_at(WORK(path_at(output))).save(NewPlan("toy", toy))


class ToyJob(Job):
    """See the module."""

    kind = "toy"
    main = "toy_work:main"

    def __init__(self, output: Any, shared: Shared, content: msgspec.Raw) -> None:
        super().__init__(output, shared)
        self.plan = msgspec.json.decode(content, type=ToyPlan)

    def phase(self) -> Phase | None:
        for phase in self.plan.phases:
            receipts = self.receipts(phase)
            receipts.refresh()
            if receipts.open_tasks or receipts.failed:
                return phase if self.is_planned else None
        return None

    def tasks(self, phase: Phase) -> Sequence[ToyTask]:
        squares, count, step = self.receipts(self.plan.phases[0]), self.plan.count, self.plan.step
        if phase.name == "square":
            return [ToyTask(number, (number,), is_sum=False) for number in range(count)]
        found = [squares.done[number].value for number in range(count)]
        return [ToyTask(index, tuple(found[index * step :][:step]), is_sum=True) for index in range(phase.num_tasks)]

    def setup(self, phase: Phase, results: Path) -> ToySetup:
        return ToySetup(os.getpid(), str(results), self.plan.wrong)

    def failure(self, phase: Phase, failed: Failed) -> TaskResult:
        return TaskResult(error=str(failed.error()))

    def finish(self, show: Show) -> bytes:
        if not self.is_planned:
            return read_whole(self.output / RESULT)
        for phase in self.plan.phases:
            receipts = self.receipts(phase)
            receipts.refresh()
            if receipts.failed:
                raise OutputError(next(iter(receipts.failed.values())).error)
        sums = self.receipts(self.plan.phases[1])
        data = b""
        for index in sums.tasks:
            try:
                data += read_whole(path_at(self.shared.place(sums.away(sums.done[index], f"sum-{index}"))))
            except FileNotFoundError:
                raise OutputError(f"{self.output}: sum-{index} is lost") from None
        if self.shared.is_folder:
            Path(self.output).mkdir(exist_ok=True)
        replace_file(self.output / RESULT, data)
        job_at(WORK(self.output)).clear()
        if self.shared.is_folder:
            remove_work(self.work)
        return data


def main(descriptor: int) -> None:
    """Run a worker."""

    def handler(parent: Any, setup: ToySetup) -> Any:
        def do(task: ToyTask) -> TaskResult:
            if not task.is_sum:
                (number,) = task.numbers
                if number == setup.wrong:
                    raise InputError(f"number {number} has no square")
                return TaskResult(counts={"bytes": 1}, value=number * number)
            name = f"sum-{task.task_index}"
            Path(setup.results, name).write_text(f"the sum of these is {sum(task.numbers)}\n" * 3)
            return TaskResult(files=(name,))

        def handle(task: ToyTask) -> Reply:
            return attempted(task.task_index, lambda: Done.of(task.task_index, do(task)))

        return handle

    serve(descriptor, ToySetup, ToyTask, handler)


@contextmanager
def known() -> Iterator[None]:
    """Until the end of the block it is one of the kinds of work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "toy", KindOfWork("toy_work:ToyJob", WORK))
        yield
