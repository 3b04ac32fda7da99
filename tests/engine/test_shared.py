"""Results that are fetched ahead of their use, and what a folder shows."""

from __future__ import annotations

import os
import platform
import random
import threading
from pathlib import Path

import pytest

from headrace.engine.heartbeat import host_and_process
from headrace.engine.shared import AHEAD, FetchedAhead, SharedFolder
from headrace.errors import StoreError
from headrace.io import unique_name


class Fetching(SharedFolder):
    """Makes files as if it fetched them, and knows how many more were fetched than used."""

    def __init__(self, here: Path) -> None:
        super().__init__(here)
        self.used = self.fetched = self.most_ahead = 0
        self._lock = threading.Lock()

    def fetch(self, name: str, path: Path) -> None:
        if name == "lost":
            raise StoreError("lost: is not there any more")
        path.write_text(name)
        with self._lock:
            self.fetched += 1
            self.most_ahead = max(self.most_ahead, self.fetched - self.used)


@pytest.mark.parametrize("first", [0, 7])
def test_results_come_in_order_and_a_few_ahead(tmp_path: Path, first: int) -> None:
    shared = Fetching(tmp_path)
    wanted = {tmp_path / f"{number}": f"name-{number}" for number in range(30)}
    ahead = FetchedAhead(shared, wanted)
    shared.used = first
    for path, name in list(wanted.items())[first:]:
        ahead.wait(tmp_path / "another")
        ahead.wait(path)
        assert path.read_text() == name
        path.unlink()
        shared.used += 1
    ahead.close()
    assert shared.fetched == 30 - first
    assert shared.most_ahead <= AHEAD + 1


def test_an_error_comes_with_the_result_that_is_lost(tmp_path: Path) -> None:
    ahead = FetchedAhead(Fetching(tmp_path), {tmp_path / "a": "a", tmp_path / "b": "lost"})
    ahead.wait(tmp_path / "a")
    with pytest.raises(StoreError, match="there"):
        ahead.wait(tmp_path / "b")
    ahead.close()


def test_names_of_processes() -> None:

    assert host_and_process(unique_name()) == (platform.node(), os.getpid())
    assert host_and_process("a.host.with.dots.12.abcd") == ("a.host.with.dots", 12)
    assert host_and_process("nobody")[1] == 0


def test_a_folder_shows_what_was_written(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path)
    shared.make(["some", "nodes"])
    names = [f"some/{number}" for number in random.Random(1).sample(range(9), 9)]
    for name in names:
        assert shared.create(name, name.encode())
        assert not shared.create(name, b"second")
    (tmp_path / "some" / "torn").write_bytes(b"half of it")
    assert sorted(shared.names("some")) == sorted([*(name.rpartition("/")[2] for name in names), "torn"])
    assert shared.read_all([*names, "some/torn", "some/none"]) == {name: name.encode() for name in names}
    shared.remove(names[0])
    assert shared.read(names[0]) is None
    assert shared.names("nowhere") == []
    shared.note("nodes/a.json", b"1")
    before = shared.versions("nodes")
    shared.note("nodes/a.json", b"2")
    assert shared.notes("nodes") == {"a.json": b"2"} != before
    shared.forget("nodes/a.json")
    assert not shared.notes("nodes")
    assert shared.read_replaced("plan") is None
    shared.replace("plan", b"p")
    assert shared.read_replaced("plan") == b"p"
