"""``skills/headrace/SKILL.md``, followed word for word on scripts in the public style: what it claims comes true.

Its ``diff`` blocks are applied to the scripts, its ``python`` blocks are what the scripts and the proof run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import ports
import warm
from counts import PATIENCE_S

SKILL = (Path(__file__).parents[2] / "skills/headrace/SKILL.md").read_text(encoding="utf-8")
SCRIPTS = Path(__file__).parent / "scripts"
CHANGED = {
    "plain_loop.py": ["### A loop of your own"],
    "ddp_loop.py": ["### A loop of your own", "### A DistributedSampler"],
    "hf_trainer.py": ["### A trainer"],
}
KILL = """
_log_fed = log_fed
def log_fed(step, batch):
    _log_fed(step, batch)
    if step == int(os.environ["KILL_IN_STEP"]):
        os.kill(os.getpid(), 9)
"""


def blocks(kind: str, begin: str = "", end: str = "\n## ") -> list[str]:
    """The blocks of a kind between two places of the skill."""
    text = SKILL[SKILL.index(begin) :].partition(end)[0] if begin else SKILL
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def patched(text: str, diffs: list[str]) -> str:
    """A script with changes; each of them has exactly one place in it."""
    assert diffs
    for diff in diffs:
        old, new = (
            "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] in kinds) for kinds in (" -", " +")
        )
        assert text.count(old) == 1, diff
        text = text.replace(old, new)
    return text


class Training:
    """A script in a folder, before and after the change."""

    def __init__(self, name: str, folder: Path, process: warm.Warm) -> None:
        self.folder, self.process = folder, process
        of_log, in_loop, in_trainer = "Call it first thing", "In a loop:", "In a trainer, which"
        logs = blocks("diff", of_log, in_loop)
        logs += blocks("diff", in_trainer) if name == "hf_trainer.py" else blocks("diff", in_loop, in_trainer)
        before = patched((SCRIPTS / name).read_text(), logs)
        after = patched(before, [diff for section in CHANGED[name] for diff in blocks("diff", section, "\n##")])
        (folder / "before.py").write_text(before)
        (folder / "after.py").write_text(after)
        self.fed, self.proof = blocks("python")
        (folder / "fed.py").write_text(self.fed + KILL)

    def start(self, log: str, script: str, *options: str, ranks: int = 1, kill_in_step: int = -1) -> None:
        """Run a script to its end, or kill each rank in a step."""
        environment = {**os.environ, "FED_LOG": log, "KILL_IN_STEP": str(kill_in_step), "OMP_NUM_THREADS": "1"}
        of_torchrun = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free_port())}
        running: list[Any] = []
        with (self.folder / "said").open("wb") as said:
            for rank in range(ranks):
                running.append(
                    self.process.start(
                        [str(self.folder / f"{script}.py"), *options],
                        environment=environment | (of_torchrun | {"RANK": str(rank)} if ranks > 1 else {}),
                        output=said.fileno(),
                        errors=said.fileno(),
                        passed=-1,
                    )
                )
            codes = [one.wait(PATIENCE_S) for one in running]
        assert codes == [0 if kill_in_step < 0 else -9] * ranks, (self.folder / "said").read_text()

    def proved(self) -> str:
        """What the proof prints."""
        (self.folder / "proof.py").write_text(self.proof)
        command = [sys.executable, "proof.py"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, *starts: str) -> dict[int, list[str]]:
        """What was fed, by the skill's own function."""
        namespace: dict[str, Any] = {}
        exec(self.fed, namespace)
        found: dict[int, list[str]] = namespace["fed"](*starts)
        return found


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_plain_loop(tmp_path: Path, warm_torch: warm.Warm) -> None:
    """The original loses and repeats samples over a kill, which the proof notices; the changed one does not."""
    training = Training("plain_loop.py", tmp_path, warm_torch)
    training.start("before", "before")
    Path("checkpoint.pt").unlink()
    training.start("before-killed", "before", kill_in_step=12)
    training.start("before-resumed", "before")
    assert training.read("before-killed", "before-resumed") != training.read("before")
    Path("checkpoint.pt").unlink()
    training.start("whole", "after")
    Path("checkpoint.pt").unlink()
    training.start("killed", "after", kill_in_step=12)
    training.start("resumed", "after")
    assert training.proved() == "24 steps, 180 samples: the same with and without the kill\n"
    assert len({*chain(*training.read("whole").values())}) == 60
    log = Path("resumed.0")
    log.write_text(log.read_text().replace(training.read("resumed")[20][0], "0" * 64))
    with pytest.raises(AssertionError, match="other samples after the kill"):
        training.proved()


def test_a_loop_with_a_distributed_sampler(tmp_path: Path, warm_torch: warm.Warm) -> None:
    """Killed on 2 ranks, and resumed on 4."""
    training = Training("ddp_loop.py", tmp_path, warm_torch)
    training.start("before", "before", ranks=2)
    Path("checkpoint.pt").unlink()
    training.start("whole", "after", ranks=2)
    Path("checkpoint.pt").unlink()
    training.start("killed", "after", ranks=2, kill_in_step=13)
    training.start("resumed", "after", "--batch-size", "2", ranks=4)
    assert training.proved() == "24 steps, 192 samples: the same with and without the kill\n"
    assert min(training.read("resumed")) == 10


@pytest.mark.interop
def test_a_trainer(tmp_path: Path, warm_torch: warm.Warm) -> None:
    training = Training("hf_trainer.py", tmp_path, warm_torch)
    training.start("before", "before")
    training.start("whole", "after", "--output-dir", "whole")
    training.start("killed", "after", "--output-dir", "killed", kill_in_step=6)
    training.start("resumed", "after", "--output-dir", "killed", "--resume")
    assert training.proved() == "16 steps, 120 samples: the same with and without the kill\n"
    assert min(training.read("resumed")) == 4


def test_the_skill_is_short_and_says_when_it_is_for() -> None:
    front, _, text = SKILL.removeprefix("---\n").partition("\n---\n")
    assert [line.partition(":")[0] for line in front.splitlines()] == ["name", "description"]
    assert len(text.split()) < 900
    root = Path(__file__).parents[2]
    for page in re.findall(r"`(docs/[\w.-]+)`", text):
        assert (root / page).exists()
