"""Waits for stores: a wait within another one is a part of that, and each thread has its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from headrace.io import waits


def test_waits_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr(waits, "monotonic", now.__next__)
    told: list[bool] = []

    @contextlib.contextmanager
    def tell(for_more: bool) -> Iterator[None]:
        told.append(for_more)
        yield

    found: list[float] = []

    def work() -> None:
        waits.tell_of_waits(tell)
        with waits.waiting(for_more=False), waits.waiting():
            pass
        with contextlib.suppress(OSError), waits.waiting():
            raise OSError
        found.append(waits.waited_s())

    thread = threading.Thread(target=work)
    before = waits.waited_s()
    thread.start()
    thread.join()
    assert found == [7.0]
    assert told == [False, True], "a wait within another one is not told"
    assert waits.waited_s() == before, "waits of other threads are theirs"
