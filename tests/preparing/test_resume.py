"""A run, over texts or records, that is ended at any moment, and continued, ends in the bytes of one that was not."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import headrace
import recipe_runs
from counts import FULL, cases
from headrace.engine.work_folder import RUN_NAME, WORK_NAME
from headrace.errors import HeadraceError, OutputError, StoreError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    TokenOptions,
)

TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
SKIP = ErrorOptions(on_error="skip")
TEXTS = {
    "plain": PrepareOptions(tokens=TOKENS, task_bytes=6000, output=OutputOptions(shard_tokens=9000)),
    "keyed": PrepareOptions(
        tokens=TOKENS,
        task_bytes=6000,
        records=RecordOptions(fields=("text", "title"), id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=9000),
    ),
    "two fields, no duplicates": PrepareOptions(
        tokens=TOKENS,
        task_bytes=4000,
        deduplicate=True,
        records=RecordOptions(fields=("text", "title"), id_field="id"),
        output=OutputOptions(shard_tokens=6000),
    ),
    "no duplicates, keyed, ids": PrepareOptions(
        tokens=TOKENS,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=None),
    ),
    "filtered, bad records skipped": PrepareOptions(
        tokens=TOKENS, filters=FilterSpec(min_chars=3, max_tokens=250), errors=SKIP, task_bytes=6000
    ),
    "bad records skipped, keyed": PrepareOptions(
        tokens=TOKENS, errors=SKIP, task_bytes=6000, output=OutputOptions(format="keyed", shard_tokens=9000)
    ),
}


RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "conversations without duplicates, a limit, bad records": (
        recipe_runs.SFT_SAID + "errors: {on_error: skip}\n"
        "mask: {unstable: last_turn}\nfilters: {max_records: 33, min_tokens: 20}\n"
        "output: {position_ids: continuous, shard_tokens: 900}\n",
        {"deduplicate": True},
    ),
    "conversations by domain, keyed, positions through the shard": (
        recipe_runs.SFT + "mask: {unstable: last_turn}\n"
        "output: {format: keyed, domain_key: source, position_ids: continuous, shard_tokens: 2500}\n",
        {"id_field": "id"},
    ),
    "conversations in HDF5, by domain, without duplicates": (
        recipe_runs.SFT + "mask: {unstable: split}\noutput: {format: hdf5, domain_key: source, shard_tokens: 2500}\n",
        {"deduplicate": True},
    ),
    "conversations in JSON lines, by domain": (
        recipe_runs.SFT + "mask: {unstable: split}\noutput: {format: jsonl, domain_key: source, shard_tokens: 2500}\n",
        {"id_field": "id"},
    ),
    "conversations that are split, by domain": (
        recipe_runs.SFT + "mask: {unstable: split}\noutput: {domain_key: source, shard_tokens: 1500}\n",
        {"id_field": "id"},
    ),
}
CASES = [*TEXTS, *RECIPES]
BROKEN = {5: "{", 30: '{"messages": []}', 31: '{"messages": 3}', 77: "[]"}
"""Some conversations that are none."""


def has_bad(case: str) -> bool:
    return TEXTS[case].errors == SKIP if case in TEXTS else "errors" in RECIPES[case][0]


class Runs:
    """The inputs, and what an undisturbed run makes of them."""

    def __init__(self, kit: Any, folder: Path) -> None:
        self._kit = kit
        self._folder = folder
        self._wanted: dict[str, dict[str, bytes]] = {}
        for is_bad in (False, True):
            faults.write_inputs(folder / f"texts {is_bad}", with_bad=is_bad)
            records: list[Any] = recipe_runs.conversations(110)
            for number, line in BROKEN.items() if is_bad else ():
                records[number] = line
            data = folder / f"talks {is_bad}" / "data"
            recipe_runs.write_lines(data / "a.jsonl", records[:60])
            recipe_runs.write_lines(data / "b.jsonl", [*records[60:90], ""])
            recipe_runs.write_lines(data / "c.jsonl", records[90:])
            recipe_runs.make_model(data.parent / "model", recipe_runs.THINKING)

    def texts(self, case: str) -> Path:
        return self._folder / f"texts {has_bad(case)}"

    def action(self, case: str, place: Path, workers: int, **changes: Any) -> Callable[[], object]:
        if case in TEXTS:
            tokenizer = self._kit.tokenizer
            return lambda: faults.prepare(self.texts(case), place, tokenizer, TEXTS[case], workers=workers, **changes)
        recipe, options = RECIPES[case]
        options = {"task_bytes": 4000, **options, "workers": workers, **changes}
        return lambda: recipe_runs.prepare(recipe, self._folder / f"talks {has_bad(case)}", place, **options)

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
    """Unless all is there: the kill came at the very end. So it is for each domain."""
    for folder in [output, *(path for path in output.glob("*") if path.name not in ("provenance", WORK_NAME))]:
        if not (folder / "headrace.json").exists():
            if folder == output:
                with pytest.raises(StoreError):
                    headrace.open(output)
            continue
        try:
            headrace.open(folder, key=None).close()
        except HeadraceError:
            continue
        for shard in json.loads((folder / "headrace.json").read_bytes())["outputs"]:
            place = folder / shard["prefix"] if shard["format"] == "keyed" else (folder / shard["prefix"]).parent
            for file in shard["files"]:
                assert (place / file["name"]).stat().st_size == file["size"]


def run_again(action: Callable[[], object], output: Path) -> None:
    """Continue; where the last kill came after all was done, nothing is done any more, and that is no error."""
    is_over = (output / "headrace.json").exists() and not (output / WORK_NAME / "commit").exists()
    if is_over:
        assert {path.name for path in output.glob(f"{WORK_NAME}/*")} <= {"lock"}
    action()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_the_inputs_are_what_these_tests_need(runs: Runs, case: str) -> None:
    """Several shards, and all that is left out."""
    manifest = json.loads(runs.wanted(case)["headrace.json"])
    dropped = manifest["ledger"]["documents"]["dropped"]
    is_text = case in TEXTS
    assert len(manifest["outputs"]) > 2 or (is_text and TEXTS[case].output.shard_tokens != 9000)
    assert ("duplicate" in dropped) == (TEXTS[case].deduplicate if is_text else "deduplicate" in RECIPES[case][1])
    assert (dropped.get("bad") == len(faults.broken_lines() if is_text else BROKEN)) == has_bad(case)
    assert ("max_records" in dropped) == (not is_text and "max_records" in RECIPES[case][0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_another_number_of_workers(runs: Runs, tmp_path: Path, case: str, workers: int) -> None:
    runs.action(case, tmp_path / "out", workers)()
    assert faults.content(tmp_path / "out") == runs.wanted(case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_change_on_disk(runs: Runs, tmp_path: Path, case: str) -> None:
    """Killed once, at moments of the whole run, and continued by another number of workers."""
    wanted = runs.wanted(case)
    moments = len(faults.list_changes(runs.action(case, tmp_path / "count", 2)))
    assert faults.content(tmp_path / "count") == wanted
    chance = random.Random(case)
    for moment in _chosen(moments, chance, cases(3, 150)):
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
    first, last, more = (5, 60, 20) if case in TEXTS else (60, 160, 80)
    for _ in range(cases(1, 60)):
        output = tmp_path / "out"
        for life in itertools.count():
            action = functools.partial(run_again, runs.action(case, output, chance.choice([1, 2, 4])), output)
            is_done = faults.run_killed(action, chance.randint(first, last + more * life))
            check_nothing_opens(output)
            if is_done:
                break
        assert life > 1
        assert faults.content(output) == wanted
        shutil.rmtree(output)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["plain", "keyed"])
def test_an_interrupt_at_any_change_loses_no_receipt(runs: Runs, tmp_path: Path, case: str) -> None:
    """Unlike a kill all that cleans up sees it; ``names`` are where a file has its name, and the folder is synced."""
    wanted, output = runs.wanted(case), tmp_path / "out"
    work = output / WORK_NAME
    moments = faults.list_changes(runs.action(case, tmp_path / "count", 2))
    names = [
        moment + 1 for moment, kind in enumerate(moments[:-1]) if (kind, moments[moment + 1]) == ("rename", "fsync")
    ]
    chance = random.Random(case)
    for moment in sorted({*chance.sample(names, cases(2, 30)), *chance.sample(range(len(moments)), cases(2, 100))}):
        had: list[Path] = []
        with faults.interrupted(moment, functools.partial(lambda had: had.extend(receipts_in(work)), had)):
            runs.action(case, output, 2)()
        is_committed = (work / "commit").exists() or (output / "headrace.json").exists()
        assert is_committed or all(receipt.exists() for receipt in had), moment
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
    assert all(list(path.iterdir()) for path in output.rglob("*") if path.is_dir()), "folders of the old one are left"
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
        other = msgspec.structs.replace(TEXTS[case].output, shard_tokens=77)
        is_committed = (output / WORK_NAME / "commit").exists()
        is_over = not is_committed and set(names) == set(new)
        with pytest.raises(OutputError, match="earlier"):
            runs.action(case, output, 1, output=other)()
        if not is_committed and not is_over:
            assert all((output / name).read_bytes() == data for name, data in old.items())
            runs.action(case, output, 1, overwrite=True)()
        assert faults.content(output) == new, moment


@pytest.mark.soak
def test_an_overwrite_leaves_nothing_of_other_domains(runs: Runs, tmp_path: Path) -> None:
    old, new = "conversations that are split, by domain", "conversations without duplicates, a limit, bad records"
    output = tmp_path / "out"
    runs.action(old, output, 2)()
    moments = len(faults.list_changes(runs.action(new, output, 2, overwrite=True)))
    assert faults.content(output) == runs.wanted(new)
    assert not [path for path in output.iterdir() if path.is_dir() and path.name != "provenance"]
    for moment in random.Random(2).sample(range(moments - 60, moments), cases(1, 60)):
        shutil.rmtree(output)
        runs.action(old, output, 2)()
        faults.run_killed(runs.action(new, output, 2, overwrite=True), moment)
        runs.action(new, output, 1, overwrite=True)()
        assert faults.content(output) == runs.wanted(new), moment


def _chosen(moments: int, chance: random.Random, count: int) -> list[int]:
    """So many moments, spread over the whole run; the last ones, where files get their names, more densely."""
    if count >= moments:
        return list(range(moments))
    late = range(moments - moments // 4, moments)
    return sorted(chance.sample(range(moments - len(late)), count // 2) + chance.sample(late, count - count // 2))


# What an unfinished run may be continued with.


@pytest.fixture
def unfinished(runs: Runs, tmp_path: Path, kit: Any) -> Path:
    """A run of the case "plain" that was killed after its first receipts, in its own copy of the inputs."""
    shutil.copytree(runs.texts("plain"), tmp_path / "in")
    shutil.copy(kit.tokenizer, tmp_path / "tokenizer.json")
    output = tmp_path / "out"
    assert not faults.run_killed(lambda: continued(tmp_path), 150)
    assert receipts_in(output / WORK_NAME)
    return tmp_path


def receipts_in(work: Path) -> list[Path]:
    return list(work.glob("phase-*/receipts/*/*.json"))


def continued(folder: Path, **changes: Any) -> object:
    options = msgspec.structs.replace(TEXTS["plain"], **{"filters": FilterSpec(min_chars=1), **changes})
    return faults.prepare(folder / "in", folder / "out", folder / "tokenizer.json", options, workers=2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"records": RecordOptions(fields=("title",))}, r"records\.fields\[0\].*'text'.*'title'"),
        ({"records": RecordOptions(id_field="id")}, r"records\.id_field.*None.*'id'"),
        ({"tokens": msgspec.structs.replace(TOKENS, append_eod=False)}, r"tokens\.append_eod.*True.*False"),
        ({"filters": FilterSpec(min_chars=2)}, r"filters\.min_chars.*1.*2"),
        ({"deduplicate": True}, r"deduplicate.*False.*True"),
        ({"output": OutputOptions(shard_tokens=8000)}, r"output\.shard_tokens.*9000.*8000"),
        ({"task_bytes": 7000}, r"task_bytes.*6000.*7000"),
    ],
)
def test_other_options_are_refused(unfinished: Path, changes: dict[str, Any], message: str) -> None:
    before = sorted((unfinished / "out").rglob("*"))
    with pytest.raises(OutputError, match=message):
        continued(unfinished, **changes)
    assert sorted((unfinished / "out").rglob("*")) == before
    continued(unfinished, **changes, restart=True)
    faults.content(unfinished / "out")


def test_other_inputs_are_refused(unfinished: Path) -> None:
    (unfinished / "in/a.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(OutputError, match=r"inputs\[0\]\.mtime_ns.*inputs\[0\]\.size.*20"):
        continued(unfinished)
    (unfinished / "in/a.jsonl").unlink()
    with pytest.raises(OutputError, match=r"inputs.*5.*4"):
        continued(unfinished)


def test_another_tokeniser_is_refused(unfinished: Path) -> None:
    path = unfinished / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(OutputError, match=r"'[0-9a-f]{32}'"):
        continued(unfinished)


def test_a_work_folder_of_another_version_is_refused_by_its_number(unfinished: Path) -> None:
    path = unfinished / "out" / WORK_NAME / RUN_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "version": 9}))
    before = sorted((unfinished / "out").rglob("*"))
    with pytest.raises(OutputError, match=r"9.*1.*--res"):
        continued(unfinished)
    assert sorted((unfinished / "out").rglob("*")) == before
    continued(unfinished, restart=True)
    faults.content(unfinished / "out")


def test_a_restart_that_is_killed(unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it discards the old run, there is none, or it is whole."""
    shutil.copytree(unfinished / "out", tmp_path / "before")
    # The table of origins goes before run.json, if nobody takes care.
    in_order = lambda path: sorted(os.scandir(path), key=lambda entry: entry.name)  # noqa: E731
    monkeypatch.setattr(
        "headrace.preparing.outputs.folder.os", types.SimpleNamespace(**{**vars(os), "scandir": in_order})
    )
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
    with pytest.raises(OutputError, match=r"'[0-9a-f]+'"):
        continued(unfinished, filters=filters)


def test_what_happens_to_errors_may_be_changed(kit: Any, runs: Runs, tmp_path: Path) -> None:
    case = "filtered, bad records skipped"
    error = faults.error_of(runs.action(case, tmp_path / "out", 2, errors=ErrorOptions()))
    assert re.search(r"a\.jsonl, line (8|41|42|91): ", str(error))  # whichever is found first
    assert "Nothing was written; correct or remove this " in str(error)
    few = msgspec.structs.replace(SKIP, max_errors=2)
    error = faults.error_of(runs.action(case, tmp_path / "out", 2, errors=few))
    assert "max_errors allows 2" in str(error)
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
        assert re.search(r"a\.jsonl, line (8|41|42|91): ", str(error))  # whichever is found first
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


# A disk that is full: the error names the path, nothing opens, and with space again the same command completes.


@pytest.mark.parametrize("case", ["plain", "two fields, no duplicates"])
@pytest.mark.sampled(1)
def test_no_space_from_any_write_on(runs: Runs, tmp_path: Path, case: str) -> None:
    output = tmp_path / "out"
    action = runs.action(case, output, 2)
    moments = [moment for moment, kind in enumerate(faults.list_changes(action)) if kind in faults.TAKING_SPACE]
    for moment in random.Random(case).sample(moments, cases(4, len(moments))):
        shutil.rmtree(output)
        with faults.full_disk(moment), pytest.raises(OutputError, match=rf"{output}"):
            action()
        with pytest.raises(StoreError):
            headrace.open(output)
        action()
        assert faults.content(output) == runs.wanted(case), f"full from change {moment:,} on"
