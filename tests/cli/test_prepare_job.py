"""``headrace prepare plan``, ``task``, ``status`` and ``finish``, and the options that choose an executor."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.cli import main


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that prepare twelve files of 130 kB, which are several tasks."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save("tokenizer.json")
    for number in range(12):
        Path(f"{number}.jsonl").write_text(json.dumps({"text": "a b " * (32_000 + number)}) + "\n")
    return ["*.jsonl", "--tokenizer", "tokenizer.json", "-o", "out"]


def prepare(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["prepare", *arguments])


def of_json(*arguments: str) -> Any:
    done = prepare(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_job_from_its_plan_to_its_output(text: list[str]) -> None:
    planned = of_json("plan", *text)
    assert planned["num_tasks"] > 2
    assert any("headrace job task out" in note for note in planned["notes"])
    status = of_json("status", "out")
    assert (status["done"], status["num_tasks"], status["kind"]) == (0, planned["num_tasks"], "text")
    assert of_json("task", "out", "--tasks", "0", "--workers", "1")["done"] == 1
    assert of_json("status", "out")["counts"]["documents"] > 0
    of_json("task", "out", "--workers", "1")
    assert "all tasks are done" in prepare("status", "out").output
    assert "all tasks are done" in prepare("plan", *text).output, "planning finishes nothing"
    assert of_json("finish", "out")["documents"] == 12
    assert "complete already" in prepare("finish", "out").stderr
    assert not Path("out", ".headrace").exists()
    missing = prepare("status", "out")
    assert missing.exit_code == 6
    assert "nothing is planned in this folder, or it is complete" in missing.output


def test_tasks_of_all_phases(text: list[str]) -> None:
    planned = of_json("plan", *text, "--deduplicate")
    first = of_json("task", "out", "--workers", "1", "--most", str(planned["num_tasks"]))
    assert (first["phase"].partition("-")[0], first["done"]) == ("duplicates", planned["num_tasks"])
    assert first["open"] > 0
    rest = of_json("task", "out", "--workers", "1")
    assert rest["done"] == first["open"]
    assert "all tasks are done" in prepare("status", "out").output
    assert of_json("task", "out") == {"output": "out", "phase": None, "done": 0, "open": 0}
    assert of_json("finish", "out")["documents"] == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("task out --executor ray", "--executor is for the commands that do a whole job"),
        ("status out --executor slurm --partition x", "--executor is for the commands that do a whole job"),
        ("plan x --executor ray -o out", "prepare plan leaves the work to others"),
        ("finish out --executor slurm --workers 3", "--cpus-per-job says how many each job has"),
        ("finish out --executor slurm --address x", "--address is for --executor ray, not for slurm"),
        ("finish out --partition x", "--partition is for --executor slurm, not for local"),
        ("finish out --executor slurm --tasks-per-job 0", "tasks_per_job is 0: at least 1 is needed"),
        ("task out --workers 0", "at least 1 is needed"),
        ("task out --tasks 1-x", "write numbers and ranges"),
        ("task out --tasks 99", "there is no task 99"),
    ],
)
def test_refusals(arguments: str, message: str, text: list[str]) -> None:
    of_json("plan", *text)
    done = prepare(*arguments.split())
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())


SBATCH = """#!/bin/sh
echo "$@" >> submitted
wc -l < submitted
"""


def test_slurm_is_asked_for_an_array_and_what_is_behind_it(
    text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/preparing/test_machines.py` has a real Slurm; this one only notes what is submitted."""
    programs = {"sbatch": SBATCH, "squeue": "#!/bin/sh\n", "scontrol": "#!/bin/sh\necho 'MaxArraySize = 3'\n"}
    for name, program in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm = ["--executor", "slurm", "--time", "1:00:00", "--tasks-per-job", "1", "--array-parallel", "7"]
    told = of_json(*text, *slurm)
    assert told["jobs"] == ["1", "2"]
    array, behind = Path("submitted").read_text().splitlines()
    assert "--array=0-1%7" in array
    assert "--time=1:00:00" in array
    assert "--dependency=afterany:1" in behind
    logs = (tmp_path / "out" / ".headrace" / "slurm").resolve()
    assert f"--output={logs}/%x-%A-%a.log" in array.split()
    assert f"--output={logs}/%x-%j.log" in behind.split(), "outside of an array, %a is no number of it"
    script = Path("out", ".headrace", "slurm", "finish.sh").read_text()
    assert "--executor slurm --time 1:00:00 --array-parallel 7 --tasks-per-job 1 --cpus-per-job 1" in script
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text('#!/bin/sh\ncase "$*" in *jobs=1) echo RUNNING; echo PENDING; echo PENDING;; esac\n')
    assert of_json("status", "out")["slurm"] == [
        {"name": "1", "is_array": True, "states": {"PENDING": 2, "RUNNING": 1}},
        {"name": "2", "is_array": False, "states": {}},
    ]
    shown = prepare("status", "out").output
    assert "array 1: 2 pending, 1 running" in shown
    assert "behind it, job 2: ended, or no Slurm here" in shown
    squeue.write_text("#!/bin/sh\n")
    # The array ended and did nothing: a user may mend what was wrong and submit again, the job behind it may not.
    assert of_json(*text, *slurm)["jobs"] == ["3", "4"]
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    again = prepare("finish", "out", *slurm)
    assert again.exit_code == 7
    assert "array 3 have ended and done none of" in " ".join(again.output.split())
