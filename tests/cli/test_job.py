"""``--executor plan`` of the commands that copy, measure and check, and ``headrace job`` behind it."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

import jobs_by_hand
from copies_made import drawn, files
from counts import cases
from energon_made import write_tar
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.errors import OutputError, StoreError
from headrace.inspect import decode_job, sample_checks
from headrace.kinds import finish_job, open_job
from measured_made import numbers

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def of_json(run: Any, *arguments: Any, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ("merge", "a", "b", "--shard-tokens", "60", "--output"),
        ("convert", "a", "--format", "keyed"),
        ("split", "a", "--parts", "2"),
    ],
    ids=lambda command: command[0],
)
def test_a_copy_from_its_plan_to_its_output(
    run: Any, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commands run elsewhere, with real worker processes; the manifest has relative paths nevertheless."""
    drawn(Path("a"), 1, 60)
    drawn(Path("b"), 2, 40)
    arguments = (command[0], *command[1:2], "local", *command[2:]) if command[0] != "merge" else (*command, "local")
    local = of_json(run, *arguments)
    arguments = tuple("out" if argument == "local" else argument for argument in arguments)
    assert "nothing was written" in run(*arguments, "--dry-run", "--executor", "plan").stdout
    planned = of_json(run, *arguments, "--executor", "plan")
    assert any("headrace job task out" in note for note in planned["notes"])
    assert not Path("out").exists()
    monkeypatch.chdir(tmp_path)
    status = of_json(run, "job", "status", "work/out")
    assert (status["kind"], status["done"], status["num_tasks"]) == ("copy", 0, planned["num_tasks"])
    assert of_json(run, "job", "task", "work/out", "--workers", "2")["done"] == planned["num_tasks"]
    found = of_json(run, "prepare", "finish", "work/out", "--workers", "1")
    assert {**found, "output": "", "seconds": 0, "stores": []} == {**local, "output": "", "seconds": 0, "stores": []}
    assert files(Path("work/out")) == files(Path("work/local"))
    assert names("work") == ["a.bin", "a.idx", "b.bin", "b.idx", "local", "out"]


def test_measure(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers(Path("ds"), 150, (3, 77))
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    command = ("measure", "ds", "--encoder", "measured_made:Grouped", "--set", "draw=3", "--output")
    local = of_json(run, *command, "local")
    refused = run(*command, "facts", "--executor", "plan", "--faults", "faults.jsonl")
    assert (refused.exit_code, "once the facts are there" in refused.output) == (2, True)
    planned = of_json(run, *command, "facts", "--executor", "plan")
    monkeypatch.chdir(tmp_path)
    place = f"work/{planned['output']}"
    assert of_json(run, "job", "task", place, "--workers", "2", "--most", "2")["done"] == 2
    found = of_json(run, "job", "finish", place)
    assert found == {**local, "path": place}
    assert files(Path(place)) == files(Path("work", local["path"]))
    assert names("work/facts") == [Path(place).name]
    monkeypatch.chdir(tmp_path / "work")
    assert of_json(run, *command, "facts", "--executor", "plan")["were_there"], "there is nothing to plan"


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that check twenty samples: some cannot be decoded. A task has three of them."""
    for module in (sample_checks, decode_job):
        monkeypatch.setattr(module, "TASK_SAMPLES", 3)
    Path("ds").mkdir()
    write_tar(Path("ds/x.tar"), [(f"{number:02d}.json", b"{}" if number % 5 else b"{bad") for number in range(20)])
    return ["check", "ds", "--decode"]


def test_check(run: Any, damaged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = run(*damaged, "--workers", "1")
    planned = of_json(run, *damaged, "--executor", "plan")
    assert planned["num_tasks"] == 7
    assert names(".") == [".ds.checking", "ds"]
    monkeypatch.chdir(tmp_path)
    assert of_json(run, "job", "task", "work/ds", "--tasks", "1-3,6", "--workers", "2")["done"] == 4
    assert of_json(run, "job", "status", "work/ds")["counts"] == {"samples": 11, "faulty": 2}
    monkeypatch.chdir(tmp_path / "work")
    found = run("job", "finish", "ds", "--workers", "1")
    assert (found.exit_code, local.exit_code) == (1, 1)
    assert found.stdout.splitlines()[:-1] == local.stdout.splitlines()[:-1]
    assert names(".ds.checking") == ["verdict.json"]
    again = run("job", "finish", "ds")
    assert (again.exit_code, again.stdout) == (1, found.stdout), "for whom the process that finished could not tell"
    of_json(run, *damaged, "--executor", "plan")
    assert names(".ds.checking") == ["plan.json"]


def test_check_in_any_order(run: Any, damaged: list[str]) -> None:
    write_tar(Path("ds/y.tar"), [("no unicode \udcff.json", b"{bad"), ("z.json", b"{}")])
    local = of_json(run, *damaged, "--workers", "1", code=1)
    for seed in range(cases(3, 100)):
        decode_job.plan_check("ds", {"decode": True})
        # The process may die after the verdict was there, and the plan was gone.
        with jobs_by_hand.inline(), contextlib.suppress(OutputError):
            jobs_by_hand.do_all(lambda: open_job("ds"), random.Random(seed))
        report = decode_job.last_report("ds")
        assert report is not None
        assert {**report.verdict.to_dict(), "seconds": 0} == {**local, "seconds": 0}


def test_check_and_leave_out(run: Any, damaged: list[str]) -> None:
    run(*damaged, "--quarantine", "--executor", "plan")
    done = run("job", "finish", "ds", "--workers", "1")
    assert "ds: 4 samples left out from now on" in done.stdout
    assert json.loads(run("quarantine", "ds", "--json").stdout)["left_out"] == 4


@pytest.fixture
def killed_while_leaving_out(run: Any, damaged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned check was killed after it had listed the bad samples."""
    run(*damaged, "--quarantine", "--executor", "plan")
    whole = decode_job.leave_out_bad

    def killed(*given: Any) -> str:
        whole(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decode_job, "leave_out_bad", killed)
        with pytest.raises(KeyboardInterrupt):
            finish_job("ds", LocalExecutor(workers=1), Show())


@pytest.mark.usefixtures("killed_while_leaving_out")
def test_a_process_that_is_killed_while_it_leaves_out(run: Any) -> None:
    done = run("job", "finish", "ds", "--workers", "1")
    assert "ds: 4 samples left out from now on" in done.stdout
    assert json.loads(run("quarantine", "ds", "--json").stdout)["left_out"] == 4


@pytest.mark.usefixtures("killed_while_leaving_out")
def test_a_check_that_is_planned_anew_looks_anew(run: Any, damaged: list[str]) -> None:
    run(*damaged, "--executor", "plan")
    report = finish_job("ds", LocalExecutor(workers=1), Show())
    assert report.left_out == ""
    assert report.verdict.decoded is not None
    assert report.verdict.decoded.faulty_samples == 0


def test_a_dataset_that_changes_is_noticed(damaged: list[str]) -> None:
    decode_job.plan_check("ds", {"decode": True})
    write_tar(Path("ds/x.tar"), [("other.json", b"{}")])
    with pytest.raises(StoreError, match="the dataset changed since the check was planned"):
        finish_job("ds", LocalExecutor(workers=1), Show())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check ds --executor plan", "add --decode, or leave the executor out"),
        ("check a --decode --executor plan", "--decode is for samples"),
        ("check mix.yaml --decode --executor ray", "is a metadataset"),
        ("convert a out --format keyed --executor slurm --address x", "--address is for --executor ray"),
        ("convert a out --format keyed --partition x", "--partition is for --executor slurm, not for local"),
        ("job finish out --executor plan", "--executor plan only plans"),
    ],
)
def test_refusals(run: Any, arguments: str, message: str, damaged: list[str]) -> None:
    drawn(Path("a"), 1, 10)
    Path("mix.yaml").write_text("__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: ds}}\n")
    done = run(*arguments.split())
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert not Path("out").exists()


def test_help_shows_where_the_work_is_done(run: Any) -> None:
    for command in (["merge"], ["convert"], ["split"], ["measure"], ["check"], ["job", "finish"], ["prepare"]):
        assert "Where the work is done" in run(*command, "--help").stdout
