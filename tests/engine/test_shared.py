"""Results that are fetched ahead of their use, and what a folder shows."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import threading
from pathlib import Path

import pytest

from headrace.engine.heartbeat import host_and_process
from headrace.engine.shared import AHEAD, Shared, fetched_ahead
from headrace.errors import StoreError
from headrace.io import unique_name


class Fetching(Shared):
    """Makes files as if it fetched them, and knows how many more were fetched than used."""

    def __init__(self, here: Path) -> None:
        super().__init__(here)
        self.used = self.fetched = self.most_ahead = 0
        self.second = threading.Event()
        self._lock = threading.Lock()

    def fetch(self, name: str, path: Path) -> None:
        if name == "lost":
            raise StoreError("lost: is not there any more")
        if name == "name-0":
            self.second.wait(60)  # it is fetched meanwhile
        if name == "name-1":
            self.second.set()
        path.write_text(name)
        with self._lock:
            self.fetched += 1
            self.most_ahead = max(self.most_ahead, self.fetched - self.used)


def test_results_come_in_order_and_a_few_ahead(tmp_path: Path) -> None:
    shared = Fetching(tmp_path)
    wanted = {tmp_path / f"{number}": f"name-{number}" for number in range(30)}
    with contextlib.closing(fetched_ahead(shared, wanted)) as fetched:
        for path, name in zip(fetched, wanted.values(), strict=True):
            assert shared.second.is_set()
            assert path == tmp_path / name.removeprefix("name-")
            assert path.read_text() == name
            path.unlink()
            shared.used += 1
    assert shared.fetched == 30
    assert shared.most_ahead <= AHEAD + 1


def test_one_who_leaves_early_fetches_no_more(tmp_path: Path) -> None:
    shared = Fetching(tmp_path)
    fetched = fetched_ahead(shared, {tmp_path / f"{number}": f"{number}" for number in range(30)})
    next(fetched)
    fetched.close()
    assert shared.fetched <= AHEAD + 1


def test_an_error_comes_with_the_result_that_is_lost(tmp_path: Path) -> None:
    fetched = fetched_ahead(Fetching(tmp_path), {tmp_path / "a": "a", tmp_path / "b": "lost"})
    assert next(fetched) == tmp_path / "a"
    with pytest.raises(StoreError, match="there"):
        next(fetched)


def test_results_and_their_names_are_on_the_disk_once_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "phase" / "me" / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (tmp_path / "phase" / "me" / name).write_bytes(b"result")
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    Shared(tmp_path).publish("phase/me", ["a", "deep/b"])
    assert [str(path.relative_to(tmp_path / "phase")) for path in synced] == ["me/a", "me/deep/b", "me/deep", "me"]


def test_names_of_processes() -> None:
    assert host_and_process(unique_name()) == (platform.node(), os.getpid())
    assert host_and_process("a.host.with.dots.12.abcd") == ("a.host.with.dots", 12)
    assert host_and_process("nobody")[1] == 0


def test_a_folder_shows_what_was_written(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
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
    shared.remove("nodes/a.json")
    assert not shared.notes("nodes")
