"""A copy that is killed, meets a full disk, or another copy: the output changes only once all of it is complete."""

from __future__ import annotations

import errno
import fcntl
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import faults
import headrace
from copies_made import documents, drawn, files, pair
from counts import cases
from headrace.copying import CopyOptions, CopyReport
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import OutputError
from headrace.preparing.outputs.folder import COMMIT_NAME, OutputFolder

OPTIONS = CopyOptions(shards=30, overwrite=True)


def splitting(folder: Path, source: str = "a") -> Callable[[], object]:
    return lambda: headrace.split(folder / source, folder / "out", into="8,2", options=OPTIONS)


def moments(action: Callable[[], object], seed: str) -> list[int]:
    """Some of the changes that an action makes on disk, and the renames at its end."""
    found = faults.list_changes(action)
    some = random.Random(seed).sample(range(len(found)), cases(5, len(found)))
    return sorted({*some, *renames(found), len(found) - 1})


def renames(kinds: list[str]) -> list[int]:
    """The last changes that give names; each is met twice, once for each of Python's two ways to rename."""
    return [number for number, kind in enumerate(kinds) if kind == "rename"][-4:]


def output(folder: Path) -> dict[str, bytes]:
    """The files of an output, without those of a run that writes it."""
    if not folder.exists():
        return {}
    return {name: data for name, data in files(folder).items() if not name.startswith(f"{WORK_NAME}/")}


def is_moving(folder: Path) -> bool:
    """Whether all is complete, and is being moved into the folder."""
    return (folder / WORK_NAME / COMMIT_NAME).exists()


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # a kill loses nothing that was not synced


def test_killed_at_any_moment(tmp_path: Path) -> None:
    drawn(tmp_path / "a", 1, 40)
    action = splitting(tmp_path)
    tried = moments(action, "kill")
    wanted = files(tmp_path / "out")
    num_moving = 0
    for moment in tried:
        shutil.rmtree(tmp_path / "out")
        finished = faults.run_killed(action, moment)
        num_moving += is_moving(tmp_path / "out")
        if not is_moving(tmp_path / "out"):
            found = output(tmp_path / "out")
            assert found == (wanted if found or finished else {}), f"killed at {moment}"
        action()
        assert files(tmp_path / "out") == wanted, f"killed at {moment}"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "out"]
    assert num_moving, "a moment between two moves was tried"


def test_killed_behind_the_move_that_completes_it(tmp_path: Path) -> None:
    """The process dies before it could say that it succeeded: the same call finds that it did, and no other one."""
    drawn(tmp_path / "a", 1, 40)

    def action(into: str = "8,2") -> object:
        return headrace.split(tmp_path / "a", tmp_path / "out", into=into, options=CopyOptions(shards=30))

    kinds = faults.list_changes(action)
    wanted = files(tmp_path / "out")
    for moment in (renames(kinds)[-1] + 1, len(kinds) - 1, len(kinds)):
        shutil.rmtree(tmp_path / "out")
        assert faults.run_killed(action, moment) == (moment == len(kinds))
        assert output(tmp_path / "out") == wanted
        with pytest.raises(OutputError, match="earlier run"):
            action("7,3")
        report = action()
        assert isinstance(report, CopyReport)
        assert "the output is complete already" in report.warnings[-1]
        assert files(tmp_path / "out") == wanted
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "out"]
    with (tmp_path / "a.bin").open("r+b") as file:
        file.write(b"\7")
    with pytest.raises(OutputError, match="earlier run"):
        action()


def test_killed_while_it_replaces(tmp_path: Path) -> None:
    """The old output is there until the new one is complete; then any next copy moves that into place first."""
    drawn(tmp_path / "a", 1, 40)
    drawn(tmp_path / "b", 2, 30)
    old, new = splitting(tmp_path, "b"), splitting(tmp_path)
    old()
    before = files(tmp_path / "out")
    tried = moments(new, "replace")
    after = files(tmp_path / "out")
    num_moving = 0
    for moment in tried:
        old()
        faults.run_killed(new, moment)
        if is_moving(tmp_path / "out"):
            num_moving += 1
            with pytest.raises(OutputError, match="out"):  # also one that is refused
                headrace.merge([tmp_path / "a"], tmp_path / "out")
            assert files(tmp_path / "out") == after
        assert output(tmp_path / "out") in (before, after)
        new()
        assert files(tmp_path / "out") == after
    assert num_moving, "a moment between two moves was tried"


def test_a_full_disk_keeps_what_is_done(tmp_path: Path) -> None:
    drawn(tmp_path / "a", 1, 40)
    action = splitting(tmp_path)
    kinds = faults.list_changes(action)
    wanted = files(tmp_path / "out")
    found = [moment for moment, kind in enumerate(kinds) if kind in faults.TAKING_SPACE]
    for moment in random.Random("full").sample(found, cases(8, len(found))):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with faults.full_disk(moment), pytest.raises(OutputError, match="device"):
            action()
        assert {path.name for path in tmp_path.iterdir()} - {"out"} == {"a.bin", "a.idx"}, (
            f"full from change {moment} on"
        )
        assert is_moving(tmp_path / "out") or not output(tmp_path / "out")
        action()
        assert files(tmp_path / "out") == wanted


def test_an_old_output_survives_an_interrupt(tmp_path: Path) -> None:
    drawn(tmp_path / "a", 1, 40)
    drawn(tmp_path / "b", 2, 30)
    splitting(tmp_path, "b")()
    before = files(tmp_path / "out")
    action = splitting(tmp_path)
    kinds = faults.list_changes(action)
    wanted = files(tmp_path / "out")
    last = renames(kinds)[-1]
    for moment in [*random.Random("old").sample(range(last), cases(6, last)), last]:
        splitting(tmp_path, "b")()
        with faults.interrupted(moment, bool):
            action()
        assert is_moving(tmp_path / "out") or output(tmp_path / "out") == before, f"interrupted at {moment}"
        action()
        assert files(tmp_path / "out") == wanted
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "b.bin", "b.idx", "out"]


def test_two_copies_to_one_place(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    first = OutputFolder(tmp_path / "out", overwrite=False, restart=None)
    with first, pytest.raises(OutputError, match="another run"):
        headrace.merge([source], tmp_path / "out")
    headrace.merge([source], tmp_path / "out")
    assert documents(tmp_path / "out") == [[1]]


def test_no_locks_on_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    headrace.merge([pair(tmp_path / "a", [[[1]]])], tmp_path / "out")
    assert documents(tmp_path / "out") == [[1]]


def test_copies_to_places_side_by_side(tmp_path: Path) -> None:
    """In threads of one process: each has its own readers and its own hidden folder."""
    sources = [drawn(tmp_path / f"in-{number}", number, 40) for number in range(4)]
    threads = [
        threading.Thread(target=headrace.merge, args=([source], tmp_path / "out" / source.name)) for source in sources
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for source in sources:
        assert documents(tmp_path / "out" / source.name) == documents(source)
