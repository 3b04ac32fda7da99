"""The folder of the output: claimed by one run, replaced only when asked, never half."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import faults
import headrace
from counts import cases
from damage import endured
from headrace.engine.planning import NewPlan
from headrace.engine.serving import save
from headrace.engine.work_folder import PLAN_NAME, RUN_NAME, WORK_NAME
from headrace.errors import OutputError, StoreError
from headrace.preparing import ErrorOptions, FilterSpec, OutputOptions, PrepareOptions, TokenOptions
from headrace.preparing.outputs.folder import COMMIT_NAME, Commit, OutputFolder

pytestmark = pytest.mark.usefixtures("small_run")
PLAIN = PrepareOptions(tokens=TokenOptions(backend="tokenizers"), workers=1)
OVERWRITE = PrepareOptions(tokens=PLAIN.tokens, workers=1, overwrite=True)
RUN = {"inputs": ["a"], "options": {"eod": None}}
NOT_MADE = bool  # nothing is there that might have been made


@pytest.fixture
def output(kit: Any, tmp_path: Path) -> Path:
    kit.write(tmp_path / "old.jsonl", [{"text": "old"}])
    kit.write(tmp_path / "new.jsonl", [{"text": "new, and longer"}])
    kit.prepare([tmp_path / "old.jsonl"], tmp_path / "deep/er/out", options=PLAIN)
    return tmp_path / "deep/er/out"


@pytest.fixture
def new(kit: Any, output: Path, tmp_path: Path) -> dict[str, bytes]:
    kit.prepare([tmp_path / "new.jsonl"], tmp_path / "new", options=PLAIN)
    return faults.content(tmp_path / "new")


def test_a_folder_with_something_else_is_refused(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "in.jsonl", [{"text": "a"}])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"'notes\.txt'"):
        kit.prepare([tmp_path / "in.jsonl"], tmp_path / "out", options=PLAIN)
    assert faults.content(tmp_path / "out") == {"notes.txt": b"mine"}


def test_overwrite_replaces_our_files_and_no_others(
    kit: Any, output: Path, tmp_path: Path, new: dict[str, bytes]
) -> None:
    (output / "notes.txt").write_text("mine")
    (output / "provenance/notes.txt").write_text("mine too")
    kit.prepare([tmp_path / "new.jsonl"], output, options=OVERWRITE)
    assert faults.content(output) == {**new, "notes.txt": b"mine", "provenance/notes.txt": b"mine too"}


def test_overwrite_works_on_a_damaged_manifest(kit: Any, output: Path, tmp_path: Path, new: dict[str, bytes]) -> None:
    (output / "headrace.json").write_text("{}")
    kit.prepare([tmp_path / "new.jsonl"], output, options=OVERWRITE)
    assert faults.content(output) == new


def test_files_of_another_program_are_not_overwritten(kit: Any, output: Path, tmp_path: Path) -> None:
    (output / "headrace.json").unlink()
    before = faults.content(output)
    with pytest.raises(OutputError, match=r"headrace\.json"):
        kit.prepare([tmp_path / "new.jsonl"], output, options=OVERWRITE)
    assert faults.content(output) == before


def are_of_complete_output(notices: list[str]) -> list[bool]:
    return [notice.startswith("the output is complete already") for notice in notices]


def test_killed_between_any_two_changes_of_the_finish(kit: Any, tmp_path: Path) -> None:
    """Also behind the last one, where the process dies before it could say that it succeeded: the same call does."""
    kit.write(tmp_path / "in.jsonl", [{"text": f"text {number % 20}"} for number in range(40)])
    options = PrepareOptions(tokens=PLAIN.tokens, deduplicate=True, workers=1, task_bytes=500)
    notices: list[str] = []

    def action() -> None:
        given, output = [tmp_path / "in.jsonl"], tmp_path / "out"
        kit.prepare(given, output, options=options, on_notice=notices.append)

    kinds = faults.list_changes(action)
    wanted = faults.content(tmp_path / "out")
    complete = 0
    for moment in range(len(kinds) - cases(6, len(kinds)), len(kinds) + 1):
        shutil.rmtree(tmp_path / "out")
        assert faults.run_killed(action, moment) == (moment == len(kinds))
        notices.clear()
        action()
        assert faults.content(tmp_path / "out") == wanted, f"killed before change {moment} of {len(kinds)}"
        complete += are_of_complete_output(notices) == [True]
    assert complete, "a kill came behind the last change that counts"


def test_output_of_the_same_run_is_told_from_any_other(kit: Any, output: Path, tmp_path: Path) -> None:
    """Only where inputs, options and files are what they were does a run find that it has nothing to do."""
    old = tmp_path / "old.jsonl"
    before, content = faults.content(output), old.read_bytes()
    notices: list[str] = []

    def again(**changes: Any) -> Any:
        options = msgspec.structs.replace(PLAIN, **changes)
        return kit.prepare([old], output, options=options, on_notice=notices.append)

    assert again().ledger.documents.kept == 1
    assert again(workers=2, restart=True).ledger.documents.kept == 1
    assert are_of_complete_output(notices) == [True] * 2
    for changes in (
        {"deduplicate": True},
        {"errors": ErrorOptions(on_error="skip")},
        {"tokens": TokenOptions(backend="tokenizers", append_eod=True)},
    ):
        with pytest.raises(OutputError, match="--overwrite"):
            again(**changes)
    old.write_bytes(content.replace(b"old", b"odd"))  # as long as it was
    with pytest.raises(OutputError, match="earlier"):
        again()
    old.write_bytes(content)
    again()
    assert faults.content(output) == before
    (output / "text_document.idx").unlink()
    with pytest.raises(OutputError, match="earlier"):
        again()


def test_a_filter_whose_code_has_changed_is_another_run(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.write(tmp_path / "in.jsonl", [{"text": "a"}])
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "which_records_stay.py"
    code.write_text("def keep(record):\n    return True\n")
    options = msgspec.structs.replace(PLAIN, filters=FilterSpec(function="which_records_stay:keep"))

    def action() -> None:
        kit.prepare([tmp_path / "in.jsonl"], tmp_path / "out", options=options)

    action()
    action()
    code.write_text("def keep(record):\n    return bool(record)\n")
    with pytest.raises(OutputError, match="earlier"):
        action()


@pytest.mark.parametrize("moves", [0, 1, 2, 5])
def test_old_and_new_never_mix(
    kit: Any, output: Path, tmp_path: Path, new: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    real_rename = Path.rename
    left = moves

    def rename(self: Path, target: Path) -> Path:
        nonlocal left
        if WORK_NAME not in Path(target).parts:
            # Whatever happens now, no index is there to open the folder by.
            assert not (output / "text_document.idx").exists()
            if left == 0:
                raise OSError(5, "Input/output error")
            left -= 1
        return real_rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        for _ in range(2):  # the second run goes on with the move, and meets the same disk
            with pytest.raises(OutputError, match="Input/output"):
                kit.prepare([tmp_path / "new.jsonl"], output, options=OVERWRITE)
            with pytest.raises(StoreError):
                headrace.open(output)
    notices: list[str] = []
    kit.prepare([tmp_path / "new.jsonl"], output, options=OVERWRITE, on_notice=notices.append)
    assert ["move" in notice for notice in notices] == [True]
    assert faults.content(output) == new


def claim(path: Path, *, restart: bool = False) -> OutputFolder:
    return OutputFolder(path, overwrite=False, restart=restart)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with claim(tmp_path / "out"):
        with pytest.raises(OutputError, match="another run"), claim(tmp_path / "out", restart=True):
            pass
        assert (tmp_path / "out" / WORK_NAME / "lock").exists()
    assert not (tmp_path / "out").exists()


def test_a_lock_that_vanishes_while_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before ends between the opening of the lock and its locking: its lock is one on nothing."""
    real_flock = fcntl.flock
    calls = 0

    def flock(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / "out" / WORK_NAME / "lock").unlink()
            (tmp_path / "out" / WORK_NAME).rmdir()
        if calls == 2:
            (tmp_path / "out" / WORK_NAME / "lock").unlink()
            (tmp_path / "out" / WORK_NAME / "lock").touch()
        real_flock(*args)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim(tmp_path / "out"), pytest.raises(OutputError, match="another run"), claim(tmp_path / "out"):
        pass
    assert calls == 4


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(37, os.strerror(37))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claim(tmp_path / "out") as folder:
        assert not folder.begin(RUN, is_made=NOT_MADE)
    assert not (tmp_path / "out").exists()


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(OutputError, match="folder"), claim(path):
            pass


def leave_unfinished(path: Path) -> None:
    with claim(path) as folder:
        assert not folder.begin(RUN, is_made=NOT_MADE)
        (folder.work / "state").write_text("far")
        folder.save_plan(NewPlan("text", {}))


def test_an_unfinished_run_stays_whatever_goes_wrong_before_it_is_known(tmp_path: Path) -> None:
    leave_unfinished(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), claim(tmp_path / "out"):
        raise KeyboardInterrupt
    with claim(tmp_path / "out") as folder:
        assert not folder.begin(RUN, is_made=NOT_MADE)
        assert (folder.work / "state").read_text() == "far"


def test_another_run_is_refused_and_told_the_first_differences(tmp_path: Path) -> None:
    leave_unfinished(tmp_path / "out")
    other = {"inputs": [str(number) for number in range(10)], "options": {"eod": 5, "bos": None}}
    with pytest.raises(OutputError) as caught, claim(tmp_path / "out") as folder:
        folder.begin(other, is_made=NOT_MADE)
    assert "number of inputs was 1, is 10; inputs[0] was 'a', is '0'; inputs[1] was not" in str(caught.value)
    assert re.search(r" and \d more\..*--restart", str(caught.value))
    assert (folder.work / "state").exists()


def test_a_restart_that_ends_before_it_has_done_anything_leaves_nothing(tmp_path: Path) -> None:
    leave_unfinished(tmp_path / "out")
    with claim(tmp_path / "out", restart=True) as folder:
        assert not folder.begin(RUN, is_made=NOT_MADE)
        assert sorted(path.name for path in folder.work.iterdir()) == ["lock", RUN_NAME]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_commit_names_nothing_outside(tmp_path: Path) -> None:
    leave_unfinished(tmp_path / "out")
    (tmp_path / "victim").touch()
    save(tmp_path / "out" / WORK_NAME / COMMIT_NAME, Commit(run=RUN, remove=["../victim"], moves=[]))
    with pytest.raises(StoreError, match=r"\.\./victim"), claim(tmp_path / "out"):
        pass
    assert (tmp_path / "victim").exists()


# What an earlier run left, and was damaged since: the same bytes in the end, or an error by name.

SHARDS = PrepareOptions(
    tokens=TokenOptions(append_eod=True, backend="tokenizers"), task_bytes=6000, output=OutputOptions(shard_tokens=9000)
)


def stopped(tmp_path: Path, run: Any, name: str) -> Path:
    """The output folder of a run that was ended when the file ``name`` was in its work folder."""
    is_there: list[bool] = []
    with faults.watched(
        faults.Changes(lambda *change: is_there.append((tmp_path / "whole" / WORK_NAME / name).exists()))
    ):
        run(tmp_path / "whole")
    for moment in reversed(np.flatnonzero(is_there).tolist()):
        output = tmp_path / f"stopped-{moment}"
        with faults.interrupted(moment, lambda: None):
            run(output)
        if (output / WORK_NAME / name).exists():
            return output
        shutil.rmtree(output, ignore_errors=True)
    raise AssertionError(f"no run ends with {name}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [RUN_NAME, PLAN_NAME, COMMIT_NAME])
def test_what_a_run_left_is_not_believed(tmp_path: Path, inputs: Path, kit: Any, name: str) -> None:
    """Of 261 damaged states 17 went on with other data."""

    def run(output: Path) -> None:
        faults.prepare(inputs, output, kit.tokenizer, SHARDS, workers=1)

    output = stopped(tmp_path, run, name)

    def use() -> dict[str, bytes]:
        again = tmp_path / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(output, again)
        run(again)
        return faults.content(again)

    assert endured(output / WORK_NAME / name, use, count=cases(2, 500), vouched=True) == {}
