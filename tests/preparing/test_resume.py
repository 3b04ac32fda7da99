"""A run that is ended at any moment, and continued, ends in the bytes of one that was not."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import headrace
from counts import FULL, cases
from headrace.errors import HeadraceError, OutputError, StoreError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    output_folder,
)
from headrace.preparing.output_folder import RUN_NAME, WORK_NAME, OutputFolder

TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
SKIP = ErrorOptions(on_error="skip")
CASES = {
    "plain": TextOptions(tokens=TOKENS, task_bytes=6000, output=OutputOptions(shard_tokens=9000)),
    "keyed": TextOptions(
        tokens=TOKENS,
        task_bytes=6000,
        records=RecordOptions(fields=("text", "title"), id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=9000),
    ),
    "two fields, no duplicates": TextOptions(
        tokens=TOKENS,
        task_bytes=4000,
        deduplicate=True,
        records=RecordOptions(fields=("text", "title"), id_field="id"),
        output=OutputOptions(shard_tokens=6000),
    ),
    "no duplicates, keyed, ids": TextOptions(
        tokens=TOKENS,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=None),
    ),
    "filtered, bad records skipped": TextOptions(
        tokens=TOKENS, filters=FilterSpec(min_chars=3, max_tokens=250), errors=SKIP, task_bytes=6000
    ),
    "bad records skipped, keyed": TextOptions(
        tokens=TOKENS, errors=SKIP, task_bytes=6000, output=OutputOptions(format="keyed", shard_tokens=9000)
    ),
}


class Runs:
    """The inputs, and what an undisturbed run makes of them."""

    def __init__(self, kit: Any, folder: Path) -> None:
        self._kit = kit
        self._folder = folder
        self._wanted: dict[str, dict[str, bytes]] = {}
        for with_bad in (False, True):
            faults.write_inputs(folder / str(with_bad), with_bad=with_bad)

    def inputs(self, case: str) -> Path:
        return self._folder / str(CASES[case].errors == SKIP)

    def action(self, case: str, folder: Path, workers: int, **changes: Any) -> Callable[[], object]:
        return lambda: faults.prepare(
            self.inputs(case), folder, self._kit.tokenizer, CASES[case], workers=workers, **changes
        )

    def wanted(self, case: str) -> dict[str, bytes]:
        if case not in self._wanted:
            output = self._folder / f"wanted {case}"
            self.action(case, output, 2)()
            self._wanted[case] = faults.content(output)
        return self._wanted[case]


@pytest.fixture(scope="module", autouse=True)
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


@pytest.fixture(scope="module")
def runs(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(kit, tmp_path_factory.mktemp("runs"))


def check_nothing_opens(output: Path) -> None:
    """Unless all is there: the kill came at the very end."""
    if (output / "headrace.json").exists():
        try:
            headrace.open(output, key=None).close()
        except HeadraceError:
            return
        wanted = json.loads((output / "headrace.json").read_bytes())["outputs"]
        for shard in wanted:
            for file in shard["files"]:
                folder = output / shard["prefix"] if shard["format"] == "keyed" else output
                assert (folder / file["name"]).stat().st_size == file["size"]
    else:
        with pytest.raises(StoreError):
            headrace.open(output)


def run_again(action: Callable[[], object], output: Path) -> None:
    """Continue; where the last kill came after all was done, nothing is done any more, and that is no error."""
    is_over = (output / "headrace.json").exists() and not (output / WORK_NAME / "commit.json").exists()
    if is_over:
        assert {path.name for path in output.glob(f"{WORK_NAME}/*")} <= {"lock"}
    action()


@pytest.mark.parametrize("case", CASES)
def test_the_corpus_is_what_these_tests_need(runs: Runs, case: str) -> None:
    """Several tasks, pieces, checkpoints and shards, and the same for other numbers of workers."""
    wanted = runs.wanted(case)
    manifest = json.loads(wanted["headrace.json"])
    num_shards = len(manifest["outputs"])
    assert num_shards > 2 or "shard_tokens" not in str(manifest["options"]) or CASES[case].output.shard_tokens != 9000
    documents = manifest["ledger"]["documents"]
    assert documents["read"] == documents["kept"] + sum(documents["dropped"].values())
    assert ("duplicate" in documents["dropped"]) == CASES[case].deduplicate
    assert (documents["dropped"].get("bad") == len(faults.broken_lines())) == (CASES[case].errors == SKIP)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_another_number_of_workers(runs: Runs, tmp_path: Path, case: str, workers: int) -> None:
    runs.action(case, tmp_path / "out", workers)()
    assert faults.content(tmp_path / "out") == runs.wanted(case)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_change_on_disk(runs: Runs, tmp_path: Path, case: str) -> None:
    """Killed once, at moments of the whole run, and continued by another number of workers."""
    wanted = runs.wanted(case)
    moments = len(faults.list_changes(runs.action(case, tmp_path / "count", 2)))
    assert faults.content(tmp_path / "count") == wanted
    chance = random.Random(case)
    for moment in _chosen(moments, chance, cases(7, 150)):
        output = tmp_path / "out"
        workers = 1 + moment % 3
        is_done = faults.run_killed(runs.action(case, output, workers), moment)
        check_nothing_opens(output)
        if not is_done:
            run_again(runs.action(case, output, faults.ANOTHER_NUMBER[workers]), output)
        assert faults.content(output) == wanted, f"killed before change {moment:,} of {moments:,}"
        shutil.rmtree(output)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again(runs: Runs, tmp_path: Path, case: str) -> None:
    wanted = runs.wanted(case)
    chance = random.Random(case)
    for _ in range(cases(1, 60)):
        output = tmp_path / "out"
        for life in itertools.count():
            action = functools.partial(run_again, runs.action(case, output, chance.choice([1, 2, 4])), output)
            is_done = faults.run_killed(action, chance.randint(5, 60 + 20 * life))
            check_nothing_opens(output)
            if is_done:
                break
        assert life > 2
        assert faults.content(output) == wanted
        shutil.rmtree(output)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["plain", "keyed"])
def test_an_interrupt_at_any_change_loses_no_checkpoint(runs: Runs, tmp_path: Path, case: str) -> None:
    """Unlike a kill all that cleans up sees it; ``names`` are where a file has its name, and the folder is synced."""
    wanted, output = runs.wanted(case), tmp_path / "out"
    work = output / WORK_NAME
    moments = faults.list_changes(runs.action(case, tmp_path / "count", 2))
    names = [
        moment + 1 for moment, kind in enumerate(moments[:-1]) if (kind, moments[moment + 1]) == ("rename", "fsync")
    ]
    chance = random.Random(case)
    for moment in sorted({*chance.sample(names, cases(2, 30)), *chance.sample(range(len(moments)), cases(2, 100))}):
        had_state: list[bool] = []
        note = functools.partial(lambda had: had.append((work / "state").exists()), had_state)
        with faults.interrupted(moment, note):
            runs.action(case, output, 2)()
        if had_state == [True]:
            is_committed = (work / "commit.json").exists() or (output / "headrace.json").exists()
            assert is_committed or (work / "state").exists(), moment
        run_again(runs.action(case, output, 1), output)
        assert faults.content(output) == wanted, moment
        shutil.rmtree(output)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["plain", "keyed"])
def test_an_overwrite_that_is_killed_never_mixes_old_and_new(runs: Runs, tmp_path: Path, case: str) -> None:
    old, new = runs.wanted("bad records skipped, keyed"), runs.wanted(case)
    output = tmp_path / "out"

    def put_old() -> None:
        shutil.rmtree(output, ignore_errors=True)
        for name, data in old.items():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_bytes(data)

    put_old()
    moments = len(faults.list_changes(runs.action(case, output, 2, overwrite=True)))
    assert faults.content(output) == new
    # What is interesting is at the end: the old goes, the new comes, the work folder goes.
    end = range(moments - 90, moments)
    for moment in end if FULL else random.Random(1).sample(end, 3):
        put_old()
        faults.run_killed(runs.action(case, output, 2, overwrite=True), moment)
        names = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
        names = {name for name in names if not name.startswith(WORK_NAME)}
        indices = {name for name in names if name.endswith((".idx", "meta.json"))}
        is_old = {name for name in indices if (output / name).read_bytes() == old.get(name)}
        assert is_old in (set(), indices), "indices of old and new stand side by side"
        if is_old != {name for name in old if name.endswith((".idx", "meta.json"))}:
            check_nothing_opens(output)
        # Any next run completes the move, whatever it is asked for; before there was one, the old output stays.
        other = msgspec.structs.replace(CASES[case].output, shard_tokens=77)
        is_committed = (output / WORK_NAME / "commit.json").exists()
        is_over = not is_committed and set(names) == set(new)
        with pytest.raises(OutputError, match="holds the output of an earlier run"):
            runs.action(case, output, 1, output=other)()
        if not is_committed and not is_over:
            assert all((output / name).read_bytes() == data for name, data in old.items())
            runs.action(case, output, 1, overwrite=True)()
        assert faults.content(output) == new, moment


def _chosen(moments: int, chance: random.Random, count: int) -> list[int]:
    """So many moments, spread over the whole run; the last ones, where files get their names, more densely."""
    if count >= moments:
        return list(range(moments))
    late = range(moments - moments // 4, moments)
    return sorted(chance.sample(range(moments - len(late)), count // 2) + chance.sample(late, count - count // 2))


# What an unfinished run may be continued with.


@pytest.fixture
def unfinished(runs: Runs, tmp_path: Path, kit: Any) -> Path:
    """A run of the case "plain" that was killed after its first checkpoints, in its own copy of the inputs."""
    shutil.copytree(runs.inputs("plain"), tmp_path / "in")
    shutil.copy(kit.tokenizer, tmp_path / "tokenizer.json")
    output = tmp_path / "out"
    assert not faults.run_killed(lambda: continued(tmp_path), 150)
    assert (output / WORK_NAME / "state").exists()
    return tmp_path


def continued(folder: Path, **changes: Any) -> object:
    options = msgspec.structs.replace(CASES["plain"], **{"filters": FilterSpec(min_chars=1), **changes})
    return faults.prepare(folder / "in", folder / "out", folder / "tokenizer.json", options, workers=2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": RecordOptions(fields=("title",))}, r"records\.fields\[0\] was 'text', is 'title'"),
        ({"records": RecordOptions(id_field="id")}, r"records\.id_field was None, is 'id'"),
        ({"tokens": msgspec.structs.replace(TOKENS, append_eod=False)}, r"tokens\.append_eod was True, is False"),
        (
            {"tokens": msgspec.structs.replace(TOKENS, special_tokens_in_text="encode")},
            r"tokens\.special_tokens_in_text was 'literal', is 'encode'",
        ),
        ({"filters": FilterSpec(min_chars=2)}, r"filters\.min_chars was 1, is 2"),
        ({"deduplicate": True}, "deduplicate was False, is True"),
        ({"output": OutputOptions(shard_tokens=8000)}, r"output\.shard_tokens was 9000, is 8000"),
        ({"output": OutputOptions(shard_tokens=9000, format="keyed")}, r"output\.format was 'indexed', is 'keyed'"),
        ({"task_bytes": 7000}, "task_bytes was 6000, is 7000"),
    ],
)
def test_other_options_are_refused(unfinished: Path, changes: dict[str, Any], message: str) -> None:
    before = sorted((unfinished / "out").rglob("*"))
    with pytest.raises(OutputError, match=f"an unfinished run with other options is in this folder: .*{message}.*rest"):
        continued(unfinished, **changes)
    assert sorted((unfinished / "out").rglob("*")) == before
    continued(unfinished, **changes, restart=True)
    faults.content(unfinished / "out")


def test_other_inputs_are_refused(unfinished: Path) -> None:
    (unfinished / "in/a.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(OutputError, match=r"inputs\[0\]\.mtime_ns was \d+, is \d+; inputs\[0\]\.size was \d+, is 20"):
        continued(unfinished)
    (unfinished / "in/a.jsonl").unlink()
    with pytest.raises(OutputError, match="number of inputs was 5, is 4"):
        continued(unfinished)


def test_another_tokeniser_is_refused(unfinished: Path) -> None:
    path = unfinished / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(OutputError, match=r"tokenizer was '[0-9a-f]{32}', is '[0-9a-f]{32}'\. Give the same command"):
        continued(unfinished)


def test_a_run_of_a_backend_that_is_no_more_is_refused_by_its_name(unfinished: Path) -> None:
    """As Headrace left it while it had a search for Unigram of its own, whose name was numba."""
    path = unfinished / "out" / WORK_NAME / RUN_NAME
    run = json.loads(path.read_bytes())
    run["backend"] = "numba 0.68.1"
    run["tokens"]["backend"] = "numba"
    path.write_text(json.dumps(run))
    message = r"backend was 'numba 0\.68\.1', is 'tokenizers [\d.]+'; tokens\.backend was 'numba', is 'tokenizers'"
    with pytest.raises(OutputError, match=rf"other options is in this folder: {message}\. Give the same command"):
        continued(unfinished)
    continued(unfinished, restart=True)
    faults.content(unfinished / "out")


def test_a_work_folder_of_another_version_is_refused_by_its_number(unfinished: Path) -> None:
    path = unfinished / "out" / WORK_NAME / RUN_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "version": 9}))
    before = sorted((unfinished / "out").rglob("*"))
    with pytest.raises(
        OutputError, match=r"another version of Headrace .*are of version 9, .*of version 1\. Finish .*--res"
    ):
        continued(unfinished)
    assert sorted((unfinished / "out").rglob("*")) == before
    continued(unfinished, restart=True)
    faults.content(unfinished / "out")


def test_a_restart_that_is_killed(unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it discards the old run, there is none, or it is whole."""
    shutil.copytree(unfinished / "out", tmp_path / "before")
    # The table of origins goes before run.json, if nobody takes care.
    in_order = lambda path: sorted(os.scandir(path), key=lambda entry: entry.name)  # noqa: E731
    monkeypatch.setattr(output_folder, "os", types.SimpleNamespace(**{**vars(os), "scandir": in_order}))
    for moment in range(0, 60, cases(20, 1)):
        shutil.rmtree(unfinished / "out")
        shutil.copytree(tmp_path / "before", unfinished / "out")
        assert not faults.run_killed(lambda: continued(unfinished, restart=True), moment)
        continued(unfinished)
        if not moment:
            wanted = faults.content(unfinished / "out")
        assert faults.content(unfinished / "out") == wanted, moment


def test_another_source_of_the_filter_is_refused(
    unfinished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "a_filter_of_this_test.py"
    module.write_text("def keep(record):\n    return True\n")
    filters = FilterSpec(function="a_filter_of_this_test:keep")
    assert not faults.run_killed(lambda: continued(unfinished, filters=filters, restart=True), 200)
    module.write_text("def keep(record):\n    return False\n")
    with pytest.raises(OutputError, match=r"folder: filter was '[0-9a-f]+', is '[0-9a-f]+'\. Give"):
        continued(unfinished, filters=filters)


def test_what_happens_to_errors_may_be_changed(kit: Any, runs: Runs, tmp_path: Path) -> None:
    case = "filtered, bad records skipped"
    error = faults.error_of(runs.action(case, tmp_path / "out", 2, errors=ErrorOptions()))
    assert "a.jsonl, line 8: " in str(error)
    assert "Nothing was written; correct or remove this " in str(error)
    few = msgspec.structs.replace(SKIP, max_errors=2)
    error = faults.error_of(runs.action(case, tmp_path / "out", 2, errors=few))
    assert "--max-errors allows 2" in str(error)
    # It had left out some, and now may not.
    assert (tmp_path / "out" / WORK_NAME / "run.json").exists()
    runs.action(case, tmp_path / "out", 4)()
    assert faults.content(tmp_path / "out") == runs.wanted(case)


def test_records_that_were_skipped_stop_a_run_that_is_continued_without(runs: Runs, tmp_path: Path) -> None:
    case, output = "filtered, bad records skipped", tmp_path / "out"
    moments = len(faults.list_changes(runs.action(case, tmp_path / "count", 2)))
    for moment in (moments // 3, moments // 2):
        assert not faults.run_killed(runs.action(case, output, 2), moment)
        error = faults.error_of(runs.action(case, output, 2, errors=ErrorOptions()))
        assert "a.jsonl, line 8: " in str(error)
        assert "--on-error skip" in str(error)
        shutil.rmtree(output)


def test_a_mistake_in_the_command_does_not_discard_what_is_done(unfinished: Path) -> None:
    before = sorted((unfinished / "out").rglob("*"))
    (unfinished / "in").rename(unfinished / "away")
    with pytest.raises(HeadraceError, match="in"):
        continued(unfinished)
    (unfinished / "away").rename(unfinished / "in")
    with pytest.raises(HeadraceError, match="no_such_module"):
        continued(unfinished, filters=FilterSpec(function="no_such_module_here:keep"))
    assert sorted((unfinished / "out").rglob("*")) == before


def test_two_runs_at_once(unfinished: Path) -> None:
    with (
        OutputFolder(unfinished / "out", overwrite=False, restart=False),
        pytest.raises(OutputError, match="another headrace prepare is writing to this folder"),
    ):
        continued(unfinished)
    continued(unfinished)


def test_a_checkpoint_of_another_version(unfinished: Path) -> None:
    (unfinished / "out" / WORK_NAME / "state").write_bytes(b"\x81\xa5other\x01")
    with pytest.raises(OutputError, match=r"state: damaged, or of another version .*; --restart starts over"):
        continued(unfinished)
    continued(unfinished, restart=True)
