"""``headrace merge``, ``convert`` and ``split``; ``headrace job`` of copies, facts, checks and texts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from copies_made import content, documents, drawn, files, pair
from energon_made import write_tar
from headrace.cli import COMMANDS, main, progress
from headrace.cli.command import Command
from headrace.cli.job import PLANNED
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.engine.work_folder import beside
from headrace.errors import OutputError, StoreError
from headrace.inspect import decoding, sample_checks
from headrace.kinds import finish_job
from measured_made import numbers

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_what_can_be_planned(run: Any) -> None:
    """Each command that has executors, with its usage; its own help is without them."""
    root = click.Context(main)
    commands = {name: main.get_command(root, name) for name in COMMANDS}
    with_job = {name for name, command in commands.items() if isinstance(command, Command) and command.has_job}
    assert {*with_job, "prepare"} == set(PLANNED)
    shown = " ".join(run("job", "plan", "--help").stdout.split())
    for name, usage in PLANNED.items():
        assert f" {name} {usage}" in shown
        own = run("job", "plan", name, "--help").stdout
        assert own.startswith(f"Usage: main job plan {name} [OPTIONS]")
        assert "--executor" not in own


@pytest.mark.parametrize(
    "command",
    [
        ("merge", "a", "b", "--shard-tokens", "60", "--output"),
        ("convert", "a", "--format", "keyed"),
        ("split", "a", "--split", "2"),
    ],
    ids=lambda command: command[0],
)
def test_a_copy_from_its_plan_to_its_output(
    of_json: Any, run: Any, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commands run elsewhere, with real worker processes; the manifest has relative paths nevertheless."""
    drawn(Path("a"), 1, 60)
    drawn(Path("b"), 2, 40)
    arguments = (command[0], *command[1:2], "local", *command[2:]) if command[0] != "merge" else (*command, "local")
    local = of_json(*arguments)
    arguments = tuple("out" if argument == "local" else argument for argument in arguments)
    assert "nothing was written" in run("job", "plan", *arguments, "--dry-run").stdout
    refused = run("job", "plan", *arguments, "--workers", "2")
    assert (refused.exit_code, "--workers" in refused.stderr) == (2, True)
    planned = of_json("job", "plan", *arguments)
    assert any("headrace job task out" in note for note in planned["notes"])
    assert names("out") == [".headrace"]
    monkeypatch.chdir(tmp_path)
    status = of_json("job", "status", "work/out")
    assert (status["kind"], status["done"], status["num_tasks"]) == ("copy", 0, planned["num_tasks"])
    assert of_json("job", "task", "work/out", "--workers", "2")["done"] == planned["num_tasks"]
    found = of_json("job", "finish", "work/out", "--workers", "1")
    assert {**found, "output": "", "seconds": 0, "stores": []} == {**local, "output": "", "seconds": 0, "stores": []}
    assert files(Path("work/out")) == files(Path("work/local"))
    assert names("work") == ["a.bin", "a.idx", "b.bin", "b.idx", "local", "out"]


def test_measure(of_json: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(Path("ds"), 150, (3, 77))
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    command = ("measure", "ds", "--encoder", "measured_made:Grouped", "--set", "draw=3", "--output")
    local = of_json(*command, "local")
    planned = of_json("job", "plan", *command, "facts")
    monkeypatch.chdir(tmp_path)
    place = f"work/{planned['output']}"
    assert of_json("job", "task", place, "--workers", "2", "--num", "2")["done"] == 2
    assert of_json("job", "finish", place) == {**local, "path": place}
    assert files(Path(place)) == files(Path("work", local["path"]))
    assert names("work/facts") == [Path(place).name]
    monkeypatch.chdir(tmp_path / "work")
    assert of_json("job", "plan", *command, "facts")["were_there"], "there is nothing to plan"


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that check twenty samples: some cannot be decoded. A task has three of them."""
    monkeypatch.setattr(decoding, "TASK_SAMPLES", 3)
    Path("ds").mkdir()
    write_tar(Path("ds/x.tar"), [(f"{number:02d}.json", b"{}" if number % 5 else b"{bad") for number in range(20)])
    return ["check", "ds", "--decode"]


def test_check(run: Any, of_json: Any, damaged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = run(*damaged, "--workers", "1")
    planned = of_json("job", "plan", *damaged)
    assert planned["num_tasks"] == 7
    assert names(".") == [".ds.checking", "ds"]
    monkeypatch.chdir(tmp_path)
    assert of_json("job", "task", "work/ds", "--tasks", "1-3,6", "--workers", "2")["done"] == 4
    assert of_json("job", "status", "work/ds")["counts"] == {"samples": 11, "faulty": 2}
    monkeypatch.chdir(tmp_path / "work")
    found = run("job", "finish", "ds", "--workers", "1")
    assert (found.exit_code, local.exit_code) == (1, 1)
    assert found.stdout.splitlines()[:-1] == local.stdout.splitlines()[:-1]
    assert names(".ds.checking") == ["verdict.json"]
    again = run("job", "finish", "ds")
    assert (again.exit_code, again.stdout) == (1, found.stdout), "for whom the process that finished could not tell"
    of_json("job", "plan", *damaged)
    assert names(".ds.checking") == ["plan.json"]


def test_check_and_leave_out(run: Any, of_json: Any, damaged: list[str]) -> None:
    """What ends it on the way is in `test_job_at_urls.py`. A check that is planned anew looks anew."""
    run("job", "plan", *damaged, "--quarantine")
    done = run("job", "finish", "ds", "--workers", "1")
    assert "ds: 4 samples left out from now on" in done.stdout
    assert of_json("quarantine", "ds")["left_out"] == 4
    run("job", "plan", *damaged)
    report = finish_job("ds", LocalExecutor(workers=1), Show())
    assert (report.left_out, report.verdict.ok) == ("", True)


def test_a_dataset_that_changes_is_noticed(damaged: list[str]) -> None:
    sample_checks.plan_check("ds", {"decode": True})
    write_tar(Path("ds/x.tar"), [("other.json", b"{}")])
    with pytest.raises(StoreError, match="planned"):
        finish_job("ds", LocalExecutor(workers=1), Show())


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that prepare twelve files of 260 kB, which are several tasks."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save("tokenizer.json")
    for number in range(12):
        Path(f"{number}.jsonl").write_text(json.dumps({"text": "a b " * (64_000 + number)}) + "\n")
    return ["*.jsonl", "--tokenizer", "tokenizer.json", "-o", "out"]


def test_a_job_from_its_plan_to_its_output(run: Any, of_json: Any, text: list[str]) -> None:
    """In four phases, of which the last three have one task each: duplicates, the cut, and the only shard."""
    planned = of_json("job", "plan", "prepare", *text, "--deduplicate")
    assert planned["num_tasks"] > 2
    assert any("headrace job task out" in note for note in planned["notes"])
    status = of_json("job", "status", "out")
    assert (status["done"], status["num_tasks"], status["kind"]) == (0, planned["num_tasks"], "text")
    assert of_json("job", "task", "out", "--tasks", "0", "--workers", "1")["done"] == 1
    assert of_json("job", "status", "out")["counts"]["documents"] > 0
    first = of_json("job", "task", "out", "--workers", "1", "--num", str(planned["num_tasks"] - 1))
    assert (first["phase"].partition("-")[0], first["done"]) == ("duplicates", planned["num_tasks"] - 1)
    assert first["open"] == 1
    assert of_json("job", "task", "out", "--workers", "1")["done"] == 3
    assert of_json("job", "task", "out") == {"output": "out", "phase": None, "done": 0, "open": 0}
    assert "all tasks are done" in run("job", "status", "out").output
    assert "all tasks are done" in run("job", "plan", "prepare", *text, "--deduplicate").output, (
        "planning finishes nothing"
    )
    assert of_json("job", "finish", "out")["documents"] == 12
    assert "complete already" in run("job", "finish", "out").stderr
    assert not Path("out", ".headrace").exists()
    missing = run("job", "status", "out")
    assert (missing.exit_code, "nothing is planned" in missing.output) == (6, True)


SBATCH = """#!/bin/sh
echo "$@" >> submitted
wc -l < submitted
"""


def test_slurm_is_asked_for_an_array_and_what_is_behind_it(
    run: Any, of_json: Any, text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/preparing/test_machines.py` has a real Slurm; this one only notes what is submitted."""
    programs = {"sbatch": SBATCH, "squeue": "#!/bin/sh\n", "scontrol": "#!/bin/sh\necho 'MaxArraySize = 3'\n"}
    for name, program in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm = ["--executor", "slurm,time=1:00:00,tasks_per_job=1,array_parallel=7"]
    assert of_json("prepare", *text, *slurm)["jobs"] == ["1", "2"]
    array, behind = Path("submitted").read_text().splitlines()
    assert "--array=0-1%7" in array
    assert "--time=1:00:00" in array
    assert "--dependency=afterany:1" in behind
    logs = (tmp_path / "out" / ".headrace" / "slurm").resolve()
    assert f"--output={logs}/%x-%A-%a.log" in array.split()
    assert f"--output={logs}/%x-%j.log" in behind.split(), "outside of an array, %a is no number of it"
    script = Path("out", ".headrace", "slurm", "finish.sh").read_text()
    assert "--executor slurm,time=1:00:00,array_parallel=7,tasks_per_job=1,cpus_per_job=1" in script
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text('#!/bin/sh\ncase "$*" in *jobs=1) echo RUNNING; echo PENDING; echo PENDING;; esac\n')
    assert of_json("job", "status", "out")["slurm"] == [
        {"name": "1", "is_array": True, "states": {"PENDING": 2, "RUNNING": 1}},
        {"name": "2", "is_array": False, "states": {}},
    ]
    shown = run("job", "status", "out").output
    assert "array 1: 2 pending, 1 running" in shown
    assert "behind it, job 2: ended, or no Slurm here" in shown
    squeue.write_text("#!/bin/sh\n")
    # The array ended and did nothing: a user may mend what was wrong and submit again, the job behind it may not.
    assert of_json("prepare", *text, *slurm)["jobs"] == ["3", "4"]
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    again = run("job", "finish", "out", *slurm)
    assert again.exit_code == 7
    assert "array 3 have ended and done none of" in " ".join(again.output.split())


def test_merge_prints_a_summary(run: Any, tmp_path: Path) -> None:
    a, b = drawn(tmp_path / "a", 1, 20), drawn(tmp_path / "b", 2, 30)
    result = run("merge", a, b, "--output", tmp_path / "out")
    assert result.exit_code == 0
    for line in ("format     indexed, uint16", "documents  50", "2 stores, 4 files", "read back and compared"):
        assert line in result.stdout
    assert documents(tmp_path / "out") == documents(a) + documents(b)
    assert run("merge", a, "-o", tmp_path / "quiet", "--quiet").output == ""


def test_what_a_copy_loses_is_said(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1], [2]], [[3]]])
    result = run("convert", source, tmp_path / "out", "--format", "keyed", "--json")
    [warning] = json.loads(result.stdout)["warnings"]
    assert "the result lacks 1 inner borders" in warning
    assert f"note: {warning}" in result.stderr


@pytest.mark.parametrize("how", [("--split", "2,1,1"), ("--split", "3", "--names", "train,valid,test")])
def test_split_dry_run_then_run(run: Any, of_json: Any, tmp_path: Path, how: tuple[str, ...]) -> None:
    arguments = ("split", drawn(tmp_path / "a", 1, 40), tmp_path / "out", *how)
    plan = of_json(*arguments, "--dry-run")
    shown = run(*arguments, "--dry-run").stdout
    assert "nothing was written" in shown
    assert not (tmp_path / "out").exists()
    assert plan["is_dry_run"]
    made = of_json(*arguments)
    for planned, store in zip(plan["stores"], made["stores"], strict=True):
        assert {**planned, "shards": (), "bytes": 0} == {**store, "shards": (), "bytes": 0}
        assert f"{store['path']}: {store['documents']} documents, {store['tokens']} tokens, 1 shard, about" in shown
        assert len(documents(Path(store["path"]))) == store["documents"]
    assert [store["name"] for store in made["stores"]] == ["train", "valid", "test"]


def test_many_parts_are_shortened(run: Any, tmp_path: Path) -> None:
    shown = run("split", drawn(tmp_path / "a", 1, 40), tmp_path / "out", "--split", "20").stdout
    assert "part_00011: " in shown
    assert shown.endswith("and 8 more\n")


def test_options_reach_the_copy(run: Any, of_json: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1, 0]], [[1]], [[0, 1]]])
    arguments = ("--format", "keyed", "--dtype", "uint32", "--shard-tokens", "3", "--documents", "sequences")
    run("convert", source, tmp_path / "out", *arguments)
    found = of_json("info", tmp_path / "out")
    assert (found["shards"], found["keys"][0]["dtype"], found["format"]) == (2, "uint32", "keyed")
    run(
        "convert",
        tmp_path / "out",
        tmp_path / "one",
        "--format",
        "keyed",
        "--shard-tokens",
        "single",
        "--dtype",
        "sequence=bool",
    )
    assert content(tmp_path / "one") == {"sequence": [[True, False], [True], [False, True]]}


def test_overwrite(run: Any, tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    assert run("merge", source, "-o", tmp_path / "out").exit_code == 0
    refused = run("merge", source, source, "-o", tmp_path / "out")
    assert (refused.exit_code, "--overwrite replaces it" in refused.stderr) == (6, True)
    told = run("merge", source, source, "-o", tmp_path / "out", "--dry-run")
    assert (told.exit_code, "--overwrite replaces it" in told.stderr) == (0, True), told.stderr
    assert run("merge", source, source, "-o", tmp_path / "out", "--overwrite").exit_code == 0
    assert documents(tmp_path / "out") == [[1], [1]]


def test_progress_says_how_far_it_is(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0)
    result = run("merge", drawn(tmp_path / "a", 1, 20), "-o", tmp_path / "out")
    assert "100.0%  20 documents, 1 of 1 task" in result.stderr


def test_names_that_are_too_long(run: Any, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="261 bytes"):
        beside("measuring")(tmp_path / ("a" * 250))
    result = run("info", tmp_path / ("a" * 300))
    assert (result.exit_code, "too long" in result.stderr) == (2, True), result.stderr
