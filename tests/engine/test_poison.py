"""The search for poison, with workers that exist only in the test: which records are found, and at what cost."""

from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from headrace.engine.poison import MAX_DEATHS, At, Ended, Poison, RecordPlace, Search

ENDED = Ended("worker 1", "was killed")


class Order(msgspec.Struct, frozen=True):
    """A task of some spans of records, or a probe of it."""

    spans: tuple[int, ...]
    most_poison: int = 100
    first: RecordPlace | None = None
    is_alone: bool = False
    poison: tuple[Poison, ...] = ()
    is_cut: bool = False
    task_index: int = 0
    label: str = "a task"

    def probe(self, first: RecordPlace, *, is_alone: bool) -> Order:
        return msgspec.structs.replace(self, first=first, is_alone=is_alone)

    def without(self, poison: list[Poison], *, is_cut: bool) -> Order:
        return msgspec.structs.replace(self, poison=tuple(poison), is_cut=is_cut)

    @property
    def places(self) -> list[RecordPlace]:
        every = [(span, line) for span, count in enumerate(self.spans) for line in range(count)]
        found = every if self.first is None else [place for place in every if place >= self.first]
        return found[:1] if self.is_alone else found


def searched(
    task: Order, deadly: set[RecordPlace], unlucky: set[int], most_records: int = 1 << 30
) -> tuple[Order, int, str]:
    """The task as it is done at the end, how many workers have ended, and why the search was given up.

    Args:
        task: the task.
        deadly: records that end each worker.
        unlucky: workers that end by chance, at the third record that they come to.
        most_records: records after which a worker ends.
    """
    search = Search(task)
    worker = 0
    while True:
        order = search.order
        assert isinstance(order, Order)
        if order.first is None:
            return order, worker, ""
        is_dead = False
        for number, place in enumerate(order.places):
            search.at = At(0, *place)
            if place in deadly or (worker in unlucky and number == 2) or number >= most_records:
                is_dead = True
                break
        why = search.blame(ENDED) if is_dead else search.survive()
        worker += is_dead
        if worker in unlucky and not is_dead:
            worker += 1
        if why:
            return order, worker, why


@given(data=st.data(), spans=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_exactly_the_poison_is_found(data: st.DataObject, spans: list[int]) -> None:
    task = Order(tuple(spans))
    deadly = data.draw(st.sets(st.sampled_from(task.places))) if task.places else set()
    unlucky = data.draw(st.sets(st.integers(0, 20), max_size=2))
    order, num_deaths, why = searched(task, deadly, unlucky)
    assert why == ""
    assert [(record.span, record.line) for record in order.poison] == sorted(deadly)
    assert not order.is_cut
    assert num_deaths <= MAX_DEATHS * len(deadly) + 2 * len(unlucky)
    assert all(record.message.startswith("the worker was killed") for record in order.poison)


@given(most=st.integers(1, 8), number=st.integers(1, 12))
def test_no_more_than_asked_for(most: int, number: int) -> None:
    deadly = {(0, 2 * line) for line in range(number)}
    order, num_deaths, _ = searched(Order((40,), most_poison=most), deadly, set())
    assert len(order.poison) == min(most, number)
    assert order.is_cut == (number >= most)
    assert num_deaths == MAX_DEATHS * len(order.poison)


def test_records_that_are_harmless_alone_are_not_to_blame() -> None:
    """Such as those of a worker whose memory grows until it ends."""
    _, num_deaths, why = searched(Order((100,)), set(), set(), most_records=20)
    assert why == "workers ended at records that other workers did without harm"
    assert num_deaths == MAX_DEATHS


def test_a_worker_that_ends_before_any_record() -> None:
    search = Search(Order((3,)))
    assert search.blame(ENDED) == "it ended before it came to a record"
    search.at = At(0, 0, 0, is_reading=True)
    assert search.blame(ENDED) == "it was reading the file"
