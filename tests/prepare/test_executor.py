"""Dealing of tasks, with workers that exist only in the test: order, bounds, failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import WorkerError
from headrace.prepare.executor import RUN_AHEAD, run_tasks
from headrace.prepare.inputs import SourceFile
from headrace.prepare.messages import Failed, HashDone, HashTask, Order, Progress, Reply, TextDone, TextTask
from headrace.prepare.tasks import Task

FILE = SourceFile(name="a", path="/a", size_bytes=1, mtime_ns=0)


class FakeWorkers:
    """Answers in an order that a seed decides."""

    def __init__(self, number: int, seed: int) -> None:
        self._number = number
        self._chance = random.Random(seed)
        self._is_uneven = seed % 2 == 1
        self.running: dict[int, Order] = {}
        self.most_ahead = 0
        self.turn = 0

    def __len__(self) -> int:
        return self._number

    def send(self, worker: int, order: Order) -> None:
        assert worker not in self.running, "a worker has one order at a time"
        self.running[worker] = order
        if isinstance(order, TextTask):
            self.most_ahead = max(self.most_ahead, order.task.number - self.turn)

    def receive(self, timeout_s: float) -> list[tuple[int, Reply]]:
        busy = sorted(self.running)
        if self._is_uneven and len(busy) > 1:  # the task whose turn it is comes last
            busy.remove(min(busy, key=lambda worker: _number(self.running[worker])))
        count = self._chance.randint(0 if timeout_s == 0 else min(1, len(busy)), len(busy))
        replies: list[tuple[int, Reply]] = []
        for worker in self._chance.sample(busy, count):
            if self._chance.random() < 0.3:
                replies.append((worker, Progress(0, 1, 1, 1)))
            else:
                replies.append((worker, answer(self.running.pop(worker))))
        return replies


def _number(order: Order) -> int:
    return order.task.number if isinstance(order, TextTask) else 1000


def answer(order: Order) -> TextDone | HashDone | Failed:
    if isinstance(order, HashTask):
        return HashDone(order.number, "")
    if order.task.number % 5 == 3:
        return Failed(order.task.number, "input", "bad")
    return TextDone(order.task.number, (), 0, 0, 0, 0)


@given(seed=st.integers(0, 1 << 32), num_workers=st.integers(1, 5), kinds=st.lists(st.booleans(), max_size=40))
def test_results_in_order_and_workers_not_far_ahead(seed: int, num_workers: int, kinds: list[bool]) -> None:
    orders: list[Order] = []
    for number, is_text in enumerate(kinds):
        text = sum(kinds[:number])
        orders.append(TextTask(Task(text, ()), ()) if is_text else HashTask(number, FILE))
    workers: Any = FakeWorkers(num_workers, seed)
    reports: list[Progress | None] = []
    texts, hashes = [], []
    for result in run_tasks(workers, orders, on_progress=reports.append, interval_s=1.0):
        if isinstance(result, HashDone):
            hashes.append(result.number)
        else:
            texts.append(result.number)
            workers.turn = result.number + 1
            assert isinstance(result, Failed) == (result.number % 5 == 3)
    assert texts == list(range(sum(kinds)))
    assert sorted(hashes) == [number for number, is_text in enumerate(kinds) if not is_text]
    assert workers.most_ahead <= RUN_AHEAD * num_workers
    assert workers.running == {}


def test_a_dead_worker_ends_it_all() -> None:
    class Dead:
        def __len__(self) -> int:
            return 2

        def send(self, worker: int, order: Order) -> None:
            pass

        def receive(self, timeout_s: float) -> Iterator[Any]:
            raise WorkerError("dead")

    workers: Any = Dead()
    with pytest.raises(WorkerError, match="dead"):
        list(run_tasks(workers, [HashTask(0, FILE)], on_progress=lambda progress: None, interval_s=1.0))
