"""Dealing of tasks, with workers that exist only in the test: deaths and failures."""

from __future__ import annotations

import collections
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.engine import processes
from headrace.engine.processes import MAX_DEATHS, WorkerProcesses, WorkerTasks
from headrace.engine.serving import Done, Failed, Progress, Reply
from headrace.errors import InputError, WorkerError
from headrace.preparing.run_plan import FindTask, HashTask, Order
from headrace.preparing.sources import SourceFile

FILES = [
    SourceFile(name=str(number), path="/a", format="jsonl", size_bytes=1, mtime_ns=0, extent=1) for number in range(60)
]


class FakeWorkers:
    """Answers in an order that a seed decides; some of them die."""

    def __init__(self, number: int, seed: int, *, deadly: float = 0.0) -> None:
        self._number = number
        self._chance = random.Random(seed)
        self._is_uneven = seed % 2 == 1
        self._deadly = deadly
        self._dead: set[int] = set()
        self._deaths: dict[Order, int] = {}
        self.num_replaced = 0
        self.running: dict[int, Order] = {}

    def __len__(self) -> int:
        return self._number

    def send(self, worker: int, order: Order) -> None:
        assert worker not in self.running, "a worker has one order at a time"
        assert worker not in self._dead
        self.running[worker] = order

    def bury(self, worker: int) -> str:
        self._dead.remove(worker)
        self.num_replaced += 1
        return f"worker {worker + 1} died"

    def receive(self, timeout_s: float) -> list[tuple[int, Reply | None]]:
        busy = sorted(self.running)
        if self._is_uneven and len(busy) > 1:  # the next task comes last
            busy.remove(min(busy, key=lambda worker: self.running[worker].task_index % 1000))
        count = self._chance.randint(0 if timeout_s == 0 else min(1, len(busy)), len(busy))
        return [(worker, self._reply(worker)) for worker in self._chance.sample(busy, count)]

    def _reply(self, worker: int) -> Reply | None:
        order = self.running[worker]
        if self._chance.random() < 0.2:
            return Progress(order.task_index, {"bytes": 1})
        if self._chance.random() < self._deadly and self._deaths.get(order, 0) < MAX_DEATHS - 1:
            self._deaths[order] = self._deaths.get(order, 0) + 1
            del self.running[worker]
            self._dead.add(worker)
            return None
        del self.running[worker]
        return answer(order)


def answer(order: Order) -> Done | Failed:
    """Some tasks fail."""
    if order.task_index % 5 == 3:
        return Failed.of(order.task_index, InputError("bad"))
    return Done.of(order.task_index, order.task_index)


def run(workers: Any, orders: list[Order]) -> list[Done | Failed]:
    """Do all orders; return the replies, in the order in which they come."""
    waiting = collections.deque(orders)
    tasks = WorkerTasks(workers, lambda: waiting.popleft() if waiting else None)
    tasks.assign()
    found: list[Done | Failed] = []
    while tasks.is_running:
        found += [reply for reply in tasks.receive(1.0) if not isinstance(reply, Progress)]
        tasks.assign()
    return found


@given(
    seed=st.integers(0, 1 << 32),
    num_workers=st.integers(1, 5),
    num_orders=st.integers(0, 40),
    deadly=st.sampled_from([0.0, 0.3]),
)
def test_each_task_has_one_reply(seed: int, num_workers: int, num_orders: int, deadly: float) -> None:
    orders: list[Order] = [FindTask(number) for number in range(num_orders)]
    workers: Any = FakeWorkers(num_workers, seed, deadly=deadly)
    found = run(workers, orders)
    assert sorted(reply.task_index for reply in found) == list(range(num_orders))
    assert {reply.task_index for reply in found if isinstance(reply, Failed)} == set(range(3, num_orders, 5))
    assert all(reply.read(int) == reply.task_index for reply in found if isinstance(reply, Done))
    assert workers.running == {}


class Mortal:
    """One worker that dies at every order, or before any."""

    def __init__(self, *, idle: bool) -> None:
        self._is_idle = idle
        self.num_deaths = 0
        self._orders: list[Order] = []

    def __len__(self) -> int:
        return 1

    def send(self, worker: int, order: Order) -> None:
        self._orders.append(order)

    def bury(self, worker: int) -> str:
        self.num_deaths += 1
        return "worker 1 of 1 was killed"

    def receive(self, timeout_s: float) -> list[tuple[int, Reply | None]]:
        return [(0, None)] if self._orders or self._is_idle else []


@pytest.mark.parametrize("order", [FindTask(0), HashTask(0, FILES[0], 0)])
def test_a_task_that_kills_each_worker_ends_the_run(order: Order) -> None:
    workers = Mortal(idle=False)
    with pytest.raises(WorkerError, match=r"1.*3rd") as caught:
        run(workers, [order, FindTask(1)])
    assert workers.num_deaths == MAX_DEATHS
    assert "run the same command again, with fewer --workers or more memory" in str(caught.value)


def test_deaths_are_counted_for_each_task_alone() -> None:
    class Unlucky(FakeWorkers):
        def _reply(self, worker: int) -> Reply | None:
            order = self.running[worker]
            if self._deaths.get(order, 0) < MAX_DEATHS - 1:
                self._deaths[order] = self._deaths.get(order, 0) + 1
                del self.running[worker]
                self._dead.add(worker)
                return None
            return super()._reply(worker)

    workers = Unlucky(2, 0)
    orders: list[Order] = [HashTask(number, FILES[number], number) for number in range(5)]
    assert len(run(workers, [*orders, FindTask(5), FindTask(6)])) == 7
    assert workers.num_replaced == 7 * (MAX_DEATHS - 1)


def test_workers_that_cannot_start_end_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(WorkerError, match=r"exit status 1.* 3rd worker .* in the same task"),
        WorkerProcesses(2, FindTask(0), "no_such_module:main") as workers,
    ):
        run(workers, [FindTask(0)])
    assert capfd.readouterr().err.count("No module named 'no_such_module'") == MAX_DEATHS


def test_the_number_of_workers_doubles_while_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(processes, "GROWTH_S", 0.5)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now))
    with WorkerProcesses(5, FindTask(0), "nothing:main") as workers:
        found = []
        for now in (100.0, 100.4, 100.5, 101.0, 101.6, 1e9):  # noqa: B007 - read by the clock
            found.append(len(workers))
    assert found == [1, 1, 2, 4, 5, 5]
    assert not workers._processes, "each is started with its first task"
