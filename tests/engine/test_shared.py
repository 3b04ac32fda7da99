"""What a folder shows."""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path

import pytest

from headrace.engine.heartbeat import host_and_process
from headrace.engine.shared import Shared
from headrace.io import unique_name


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
