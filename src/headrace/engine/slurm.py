"""Slurm: the tasks of a phase as an array of jobs, and a job behind it that goes on with `headrace job finish`.

No process lives from beginning to end: the job behind the array completes the output, or submits the next array if
another phase begins, or if jobs of this array were lost. What runs is written into the work folder first:

    slurm/task.sh       a job of the array: `headrace job task`
    slurm/finish.sh     the job behind it: `headrace job finish --executor slurm`
    slurm/submitted/    what was submitted: a file for each array
    slurm/*.log         the output of the jobs: headrace-task-ARRAY-NUMBER.log and headrace-finish-JOB.log

If the output is a URL, ``submitted`` lies there, and the logs of a job in ``/tmp`` of its node.

Slurm's documentation: https://slurm.schedmd.com/sbatch.html and job_array.html.
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Annotated, Final

import msgspec

from headrace.engine.executors import Handed
from headrace.engine.job import Job, Phase, Show
from headrace.errors import ConfigError, OutputError, WorkerError
from headrace.io import atomic_write, output_errors

MAX_JOBS: Final = 32
"""Jobs of an array, unless ``tasks_per_job`` says how many tasks each does."""

WARNING_S: Final = 60
"""Seconds before its time limit in which a job is told to end: it then completes the tasks that are under way."""

FOLDER_NAME: Final = "slurm"
_SUBMITTED: Final = f"{FOLDER_NAME}/submitted"
_NODE_LOGS: Final = "/tmp"


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """An array that was submitted, and the job behind it."""

    phase: str
    open_tasks: int
    array: str
    num_jobs: int
    finish: str


Count = Annotated[int, msgspec.Meta(ge=1)]


class SlurmExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """Submits an array of jobs that do the tasks, and a job that goes on when the array has ended."""

    partition: str | None = None
    time: str | None = None
    """Time limit of each job, as Slurm writes it; a job that reaches it is no loss."""

    array_parallel: Count | None = None
    """Jobs of the array that may run at the same time."""

    tasks_per_job: Count | None = None
    cpus_per_job: Count = 1
    """CPUs of each job, and the number of its worker processes."""

    setup: str | None = None
    """Shell command before each job."""

    def run(self, job: Job, phase: Phase, show: Show) -> Handed:
        """Submit the array and the job behind it; see `Executor`.

        Raises:
            ConfigError: there is no Slurm here, or it refuses the jobs.
            WorkerError: this is the job behind an array that has done nothing.
        """
        if shutil.which("sbatch") is None:
            raise ConfigError("--executor slurm needs the command sbatch: run it on a host that submits jobs")
        num_open = len(job.refreshed(phase).open_tasks)
        before = submitted(job)
        if before and before[-1].phase == phase.name:
            last = before[-1]
            if _is_queued(last.array):
                show.notice(f"array {last.array} is still at work: nothing was submitted")
                return _handed(job, phase, last)
            if last.open_tasks == num_open and last.finish == os.environ.get("SLURM_JOB_ID"):
                raise WorkerError(
                    f"the jobs of array {last.array} have ended and done none of {num_open:,} open tasks: see the logs"
                    f" in {_logs(job)}, and submit the job again by hand"
                )
        folder = job.work / FOLDER_NAME  # Slurm keeps a copy of each script
        with output_errors(folder, "make the folder"):
            folder.mkdir(exist_ok=True)
        num_jobs = self._num_jobs(num_open)
        limit = "" if self.array_parallel is None else f"%{self.array_parallel}"
        common = [f"--chdir={Path.cwd()}", *self._limits()]
        task = [*_command(), "task", str(job.output.absolute()), "--quiet", "--workers", str(self.cpus_per_job)]
        if self.tasks_per_job is not None:
            task += ["--num", str(self.tasks_per_job)]
        array = _submit(
            self._script(folder / "task.sh", task),
            [
                *common,
                "--job-name=headrace-task",
                f"--output={_logs(job)}/%x-%A-%a.log",
                f"--array=0-{num_jobs - 1}{limit}",
                f"--cpus-per-task={self.cpus_per_job}",
                f"--signal=B:TERM@{WARNING_S}",
                "--requeue",
            ],
        )
        then = [*_command(), "finish", str(job.output.absolute()), "--quiet", *self._again()]
        finish = _submit(
            self._script(folder / "finish.sh", then),
            [
                *common,
                "--job-name=headrace-finish",
                f"--output={_logs(job)}/%x-%j.log",
                f"--dependency=afterany:{array}",
                "--requeue",
            ],
        )
        entry = Submitted(phase=phase.name, open_tasks=num_open, array=array, num_jobs=num_jobs, finish=finish)
        job.shared.make([_SUBMITTED])
        for number in count(len(before)):  # another host may have submitted meanwhile
            if job.shared.create(f"{_SUBMITTED}/{number:06d}", msgspec.json.encode(entry)):
                break
        return _handed(job, phase, entry)

    def _num_jobs(self, num_open: int) -> int:
        wanted = MAX_JOBS if self.tasks_per_job is None else -(-num_open // self.tasks_per_job)
        return max(1, min(wanted, num_open, _max_array_size() - 1))

    def _limits(self) -> list[str]:
        given = {"partition": self.partition, "time": self.time}
        return [f"--{name}={value}" for name, value in given.items() if value is not None]

    def _again(self) -> list[str]:
        """Return the options of the command line that make this executor."""
        given = msgspec.structs.asdict(self).items()
        return ["--executor", ",".join(["slurm", *(f"{name}={value}" for name, value in given if value is not None)])]

    def _script(self, path: Path, command: list[str]) -> Path:
        lines = ["#!/bin/bash", *([self.setup] if self.setup else []), f"exec {shlex.join(command)}", ""]
        atomic_write(path, "\n".join(lines).encode())
        return path


def _logs(job: Job) -> str:
    """Return the folder of the logs: the work folder, or a folder of each node if no folder is shared."""
    return str((job.work / FOLDER_NAME).absolute()) if job.shared.is_folder else _NODE_LOGS


def _handed(job: Job, phase: Phase, last: Submitted) -> Handed:
    return Handed.of(
        job,
        phase,
        jobs=(last.array, last.finish),
        notes=(
            f"array {last.array} of {last.num_jobs:,} jobs does the tasks, then job {last.finish} goes on",
            f"to see how far it is: headrace job status {job.output}",
        ),
    )


def submitted(job: Job) -> list[Submitted]:
    """Return what was submitted for a job, the latest last.

    Raises:
        OutputError: what says so cannot be read.
    """
    names = sorted(f"{_SUBMITTED}/{name}" for name in job.shared.names(_SUBMITTED) if name.isdecimal())
    try:
        return [msgspec.json.decode(data, type=Submitted) for data in job.shared.read_all(names).values()]
    except msgspec.DecodeError as error:
        raise OutputError(f"{job.shared.address}: {_SUBMITTED} cannot be read: {error}") from error


def job_states(name: str) -> dict[str, int]:
    """Return how many jobs of an array are in each state, by ``sacct`` or ``squeue``; empty if neither can tell."""
    commands = (
        ["sacct", "--noheader", "--parsable2", "--allocations", "--array", "--format=State", f"--jobs={name}"],
        ["squeue", "--noheader", "--array", "--format=%T", f"--jobs={name}"],
    )
    for command in commands:
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        states = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
        if done.returncode == 0 and states:
            return {state: states.count(state) for state in sorted(set(states))}
    return {}


def job_end_s() -> float | None:
    """Return when Slurm will end this job, in seconds since 1970; None outside of a job, or if it has no limit."""
    number = os.environ.get("SLURM_JOB_ID")
    if number is None or shutil.which("squeue") is None:
        return None
    command = ["squeue", "--noheader", "--format=%e", f"--jobs={number}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return datetime.datetime.fromisoformat(done.stdout.split()[0]).timestamp()
    except (IndexError, ValueError):
        return None


def _is_queued(name: str) -> bool:
    states = job_states(name)
    return bool(states.keys() & {"PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "COMPLETING", "CONFIGURING"})


def _command() -> list[str]:
    return [sys.executable, "-m", "headrace", "job"]


def _submit(script: Path, options: list[str]) -> str:
    """Submit a script; return the number of the job."""
    command = ["sbatch", "--parsable", *options, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"Slurm refuses a job: {done.stderr.strip()}; the command was {shlex.join(command)}")
    return done.stdout.strip().partition(";")[0]


def _max_array_size() -> int:
    """Return the limit of the cluster; 1001 is Slurm's default."""
    done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", done.stdout)
    return int(found[1]) if found else 1001
