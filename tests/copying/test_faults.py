"""A copy that is killed, meets a full disk, or another copy: nothing half is ever at the destination."""

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
from headrace.copying import CopyOptions, CopyReport, Destination
from headrace.errors import OutputError, StoreError

OPTIONS = CopyOptions(shards=30, overwrite=True)


def splitting(folder: Path, source: str = "a") -> Callable[[], object]:
    return lambda: headrace.split(folder / source, folder / "out", into="8,2", options=OPTIONS)


def moments(action: Callable[[], object], seed: str) -> list[int]:
    """Some of the changes that an action makes on disk, and the renames at its end."""
    found = faults.list_changes(action)
    some = random.Random(seed).sample(range(len(found)), cases(10, len(found)))
    return sorted({*some, *renames(found), len(found) - 1})


def renames(kinds: list[str]) -> list[int]:
    """The last changes that give names; each is met twice, once for each of Python's two ways to rename."""
    return [number for number, kind in enumerate(kinds) if kind == "rename"][-4:]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # a kill loses nothing that was not synced


def test_killed_at_any_moment(tmp_path: Path) -> None:
    drawn(tmp_path / "a", 1, 40)
    action = splitting(tmp_path)
    tried = moments(action, "kill")
    wanted = files(tmp_path / "out")
    for moment in tried:
        shutil.rmtree(tmp_path / "out")
        finished = faults.run_killed(action, moment)
        if (tmp_path / "out").exists():
            assert files(tmp_path / "out") == wanted, f"killed at {moment}"
        else:
            assert not finished
            with pytest.raises(StoreError, match="nothing"):
                headrace.open(tmp_path / "out")
        action()
        assert files(tmp_path / "out") == wanted, f"killed at {moment}"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "out"]


def test_killed_behind_the_rename_that_completes_it(tmp_path: Path) -> None:
    """The process dies before it could say that it succeeded: the same call finds that it did, and no other one."""
    drawn(tmp_path / "a", 1, 40)

    def action(into: str = "8,2") -> object:
        return headrace.split(tmp_path / "a", tmp_path / "out", into=into, options=CopyOptions(shards=30))

    kinds = faults.list_changes(action)
    wanted = files(tmp_path / "out")
    for moment in (renames(kinds)[-1] + 1, len(kinds) - 1, len(kinds)):
        shutil.rmtree(tmp_path / "out")
        assert faults.run_killed(action, moment) == (moment == len(kinds))
        assert files(tmp_path / "out") == wanted
        with pytest.raises(OutputError, match="exists"):
            action("7,3")
        report = action()
        assert isinstance(report, CopyReport)
        assert "the output is already complete" in report.warnings[-1]
        assert files(tmp_path / "out") == wanted
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "out"]
    with (tmp_path / "a.bin").open("r+b") as file:
        file.write(b"\7")
    with pytest.raises(OutputError, match="exists"):
        action()


def test_killed_while_it_replaces(tmp_path: Path) -> None:
    """Either output is there afterwards, whole, or in the hidden folder, and the next run puts that right."""
    drawn(tmp_path / "a", 1, 40)
    drawn(tmp_path / "b", 2, 30)
    old, new = splitting(tmp_path, "b"), splitting(tmp_path)
    old()
    before = files(tmp_path / "out")
    tried = moments(new, "replace")
    after = files(tmp_path / "out")
    num_hidden = 0
    for moment in tried:
        old()
        faults.run_killed(new, moment)
        if not (tmp_path / "out").exists():
            num_hidden += 1
            # Any next copy puts it back first, also one that is refused.
            with pytest.raises(OutputError, match="out"):
                headrace.merge([tmp_path / "a"], tmp_path / "out")
            assert files(tmp_path / "out") == before
        assert files(tmp_path / "out") in (before, after)
        new()
        assert files(tmp_path / "out") == after
    assert num_hidden, "the moment between the two renames was tried"


HIDDEN = ".out.headrace-copying"


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
        left = {path.name for path in tmp_path.iterdir()}
        assert left - {HIDDEN} == {"a.bin", "a.idx"}, f"full from change {moment} on"
        action()
        assert files(tmp_path / "out") == wanted
        assert HIDDEN not in {path.name for path in tmp_path.iterdir()}


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
        assert files(tmp_path / "out") == before, f"interrupted at {moment}"
        action()
        assert files(tmp_path / "out") == wanted
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "b.bin", "b.idx", "out"]


def test_nothing_is_lost_where_not_even_the_old_output_can_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    headrace.merge([source], tmp_path / "out")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if Path(target).name == "out":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    replace = CopyOptions(overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(OutputError, match="Input/output"):
            headrace.merge([source, source], tmp_path / "out", options=replace)
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError, match="out"):
        headrace.merge([source, source], tmp_path / "out")
    assert documents(tmp_path / "out") == [[1]]
    headrace.merge([source, source], tmp_path / "out", options=replace)
    assert documents(tmp_path / "out") == [[1], [1]]


def test_two_copies_to_one_place(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    first = Destination(tmp_path / "out", overwrite=False, sources=[])
    with first, pytest.raises(OutputError, match="destination"):
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
