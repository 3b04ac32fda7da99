"""Dealing of tasks, with workers that exist only in the test: order, bounds, deaths, failures."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.processes import MAX_DEATHS, run_tasks
from headrace.engine.serving import Done, Failed, Progress, Reply
from headrace.errors import HeadraceError, InputError, WorkerError
from headrace.preparing.messages import FindTask, HashTask, Order
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
        self._done: dict[int, int] = {}
        self._dead: set[int] = set()
        self._deaths: dict[Order, int] = {}
        self.num_replaced = 0
        self.running: dict[int, Order] = {}
        self.most_ahead = 0
        self.task_index = 0

    def __len__(self) -> int:
        return self._number

    def send(self, worker: int, order: Order) -> None:
        assert worker not in self.running, "a worker has one order at a time"
        assert worker not in self._dead
        self.running[worker] = order
        self._done[worker] = 0
        self.most_ahead = max(self.most_ahead, order.task_index - self.task_index)

    def replace(self, worker: int) -> str:
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
            return Progress(order.task_index, 1, 1, 1)
        if self._chance.random() < self._deadly and self._deaths.get(order, 0) < MAX_DEATHS - 1:
            self._deaths[order] = self._deaths.get(order, 0) + 1
            del self.running[worker]
            self._dead.add(worker)
            return None
        reply = answer(order, self._done[worker])
        self._done[worker] += 1
        if not isinstance(reply, Done) or reply.is_last:
            del self.running[worker]
        return reply


def answer(order: Order, piece: int) -> Done | Failed:
    """A task has one to four pieces; some fail, at the begin or after two pieces."""
    if isinstance(order, HashTask):
        return Done.of(-1, order.number)
    if order.task_index % 5 == 3 and piece == order.task_index % 3:
        return Failed.of(order.task_index, InputError("bad"))
    return Done(order.task_index, piece, piece == num_pieces(order.task_index) - 1)


def num_pieces(task_index: int) -> int:
    return 1 + task_index % 4


def wanted(task_index: int) -> list[tuple[int, int]]:
    """Turn and piece of what a task yields; -1 is a failure."""
    if task_index % 5 == 3 and task_index % 3 < num_pieces(task_index):
        return [*((task_index, piece) for piece in range(task_index % 3)), (task_index, -1)]
    return [(task_index, piece) for piece in range(num_pieces(task_index))]


@given(
    seed=st.integers(0, 1 << 32),
    num_workers=st.integers(1, 5),
    kinds=st.lists(st.booleans(), max_size=40),
    first=st.integers(0, 9),
    run_ahead=st.integers(0, 3),
    deadly=st.sampled_from([0.0, 0.3]),
    whole=st.sets(st.integers(0, 20)),
)
def test_results_in_order_and_workers_not_far_ahead(
    seed: int, num_workers: int, kinds: list[bool], first: int, run_ahead: int, deadly: float, whole: set[int]
) -> None:
    orders: list[Order] = []
    for number, is_task in enumerate(kinds):
        orders.append(FindTask(first + sum(kinds[:number])) if is_task else HashTask(number, FILES[number]))
    last = first + sum(kinds)
    ready = [
        Done(*at, at == wanted(task_index)[-1])
        for task_index in whole & set(range(first, last))
        for at in wanted(task_index)
    ]
    ready = [piece for piece in ready if all(at[1] >= 0 for at in wanted(piece.task_index))]
    workers: Any = FakeWorkers(num_workers, seed, deadly=deadly)
    workers.task_index = first
    reports: list[Progress | None] = []
    tasks, hashes = [], []
    for result in run_tasks(
        workers,
        orders,
        first_task=first,
        ready=random.Random(seed).sample(ready, len(ready)),
        run_ahead=run_ahead,
        on_progress=reports.append,
        interval_s=1.0,
    ):
        if result.task_index < 0:
            assert isinstance(result, Done)
            hashes.append(result.read(int))
            continue
        tasks.append((result.task_index, result.piece if isinstance(result, Done) else -1))
        if isinstance(result, Failed) or result.is_last:
            workers.task_index = result.task_index + 1
    assert tasks == [at for task_index in range(first, last) for at in wanted(task_index)]
    assert sorted(hashes) == [number for number, is_task in enumerate(kinds) if not is_task]
    assert workers.most_ahead <= run_ahead * num_workers
    assert workers.running == {}
    assert (None in reports) == bool(orders)
    if ready:  # they are not made again
        assert not {piece.task_index for piece in ready} & {
            report.task_index for report in reports if report is not None
        }


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

    def replace(self, worker: int) -> str:
        self.num_deaths += 1
        return "worker 1 of 1 was killed"

    def receive(self, timeout_s: float) -> list[tuple[int, Reply | None]]:
        return [(0, None)] if self._orders or self._is_idle else []


def run(workers: Any, orders: list[Order]) -> list[object]:
    return list(
        run_tasks(workers, orders, first_task=0, ready=(), run_ahead=2, on_progress=lambda report: None, interval_s=1.0)
    )


@pytest.mark.parametrize("order", [FindTask(0), HashTask(0, FILES[0])])
def test_a_task_that_kills_each_worker_ends_the_run(order: Order) -> None:
    workers = Mortal(idle=False)
    with pytest.raises(WorkerError, match=r"1.*3rd") as caught:
        run(workers, [order, FindTask(1)])
    assert workers.num_deaths == MAX_DEATHS
    assert "run the same command again, with fewer --workers or more memory" in str(caught.value)


def test_deaths_are_counted_for_each_task_alone() -> None:
    """Also for files that are hashed, which have no index."""

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
    orders: list[Order] = [HashTask(number, FILES[number]) for number in range(5)]
    assert len(run(workers, [*orders, FindTask(0), FindTask(1)])) == 5 + 1 + 2
    assert workers.num_replaced == 7 * (MAX_DEATHS - 1)


def test_workers_that_die_before_they_have_anything_to_do() -> None:
    class Doomed(Mortal):
        def receive(self, timeout_s: float) -> list[tuple[int, Reply | None]]:
            return [(1, None)]

        def __len__(self) -> int:
            return 2

    workers = Doomed(idle=True)
    with pytest.raises(WorkerError, match="written"):
        run(workers, [FindTask(0)])
    assert workers.num_deaths == 2 * MAX_DEATHS


def test_a_result_that_no_task_gives_is_a_defect_and_no_endless_wait() -> None:
    workers: Any = FakeWorkers(2, 0)
    orders = [FindTask(task_index) for task_index in (0, 1, 9)]
    with pytest.raises(HeadraceError, match=r"returns.*2"):
        list(
            run_tasks(
                workers,
                orders,
                first_task=0,
                ready=[],
                run_ahead=1,
                on_progress=lambda progress: None,
                interval_s=0.0,
            )
        )
