"""What the tests themselves stand on: counted walks of tools/walk.py, forked children, and warm processes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import programs
import warm
from children import results_of
from counts import PATIENCE_S


def test_calls_and_changes_of_file_are_counted(tmp_path: Path) -> None:
    walk = programs.load(Path(__file__).parents[1] / "tools" / "walk.py")
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("def outer(inner):\n    helper()\n    return inner()\n\n\ndef helper(): ...\n")
    (package / "b.py").write_text("def inner():\n    return 1\n")
    names: dict[str, object] = {}
    for file in ("a.py", "b.py"):
        exec(compile((package / file).read_text(), str(package / file), "exec"), names)
    outer, inner = names["outer"], names["inner"]
    assert callable(outer)
    walk.follow(package, lambda: outer(inner), tmp_path / "log")
    found = walk.figures(tmp_path / "log")
    # Into b.py and back; the call that begins the walk comes from nowhere.
    assert found == {
        "files": 2,
        "calls": 3,
        "changes_of_file": 2,
        "threads": [["a.py outer", "a.py helper", "b.py inner"]],
    }


def _made(value: int) -> int:
    if value == 3:
        raise ValueError("no threes")
    if value == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return value * 2


def test_results_come_in_order() -> None:
    assert results_of(_made, [(1,), (2,), (5,)]) == [2, 4, 10]


def test_a_child_that_fails_or_is_killed_is_told() -> None:
    with pytest.raises(AssertionError, match=r"(?s)1.*ValueError"):
        results_of(_made, [(1,), (3,)])
    with pytest.raises(AssertionError, match=r"0.*-9.*nothing"):
        results_of(_made, [(4,), (1,)])


def test_it_ends_although_a_fork_of_this_process_lives() -> None:
    """As a worker of a loader does that nobody has collected yet: it has the socket too."""
    process = warm.Warm(["json"])
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    closing = threading.Thread(target=process.close)
    closing.start()
    closing.join(PATIENCE_S)
    was_open = closing.is_alive()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    closing.join()
    assert not was_open
