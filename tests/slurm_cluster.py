"""A Slurm cluster on this host: munged, slurmctld, and some slurmd, from Debian's packages. They start in seconds.

with cluster(folder, nodes=2) as slurm:
    subprocess.run(["sinfo"], env=slurm.environment)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from counts import PATIENCE_S
from ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
START_S = PATIENCE_S


def missing() -> list[str]:
    """The programs that are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Slurm:
    """A cluster that runs; ``environment`` makes the commands of Slurm talk to it."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin",
        }

    def run(self, *command: str) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def queued(self) -> list[str]:
        """Number, state, name, and node or reason to wait, of each job that is not over."""
        return self.run("squeue", "--noheader", "--array", "--format=%i %T %j %R").splitlines()

    def running(self, name: str) -> list[tuple[str, str]]:
        """Number and node of each job of this name that runs."""
        rows = [line.split() for line in self.queued()]
        return [(row[0], row[3]) for row in rows if row[1:3] == ["RUNNING", name]]

    def told(self, job: str, field: str) -> str:
        """What Slurm tells of a job in a field, as `scontrol show job` has it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return next(word.partition("=")[2] for word in shown.split() if word.startswith(f"{field}="))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Jobs that are submitted meanwhile do not begin."""
        self.run("scontrol", "update", "PartitionName=main", "State=DOWN")
        try:
            yield
        finally:
            self.run("scontrol", "update", "PartitionName=main", "State=UP")

    def lose(self, node: str) -> None:
        """Take a node away, with the jobs that it runs, and give it back."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        until = time.monotonic() + START_S
        while "down" in self.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T"):
            self.mend()
            assert time.monotonic() < until, f"{node} does not come back"
            time.sleep(0.2)

    def mend(self) -> None:
        """Do what an administrator does: give nodes back, and release jobs that Slurm holds.

        If a job is begun again while its node still ends it, Slurm drains the node and holds the job.
        """
        wanted = [
            ("update", f"NodeName={line.split()[0]}", "State=RESUME")
            for line in self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
            if "drain" in line or "down" in line
        ]
        wanted += [("release", line.split()[0]) for line in self.queued() if "held" in line]
        for command in wanted:
            # It is refused for a node whose jobs come to their end, and for one that has come back by itself.
            subprocess.run(["scontrol", *command], env=self.environment, capture_output=True, check=False)

    def end(self) -> None:
        """Cancel all jobs that a test has left; without the daemons their processes would stay for ever."""
        for line in self.queued():
            subprocess.run(["scancel", line.split()[0]], env=self.environment, capture_output=True, check=False)
        self.wait_until_empty(START_S)

    def wait_until_empty(self, limit_s: float = 300.0) -> None:
        """Wait until no job is left."""
        until = time.monotonic() + limit_s
        while queued := self.queued():
            self.mend()
            assert time.monotonic() < until, (
                f"jobs are still there: {queued}; {self.run('sinfo', '-N', '-o', '%N %T %E')}"
            )
            time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: Path, *, num_nodes: int = 2) -> Iterator[Slurm]:
    """Start a cluster whose files lie in ``folder``."""
    host = socket.gethostname().partition(".")[0]
    names = [f"node{number}" for number in range(1, num_nodes + 1)]
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    sock = folder / "munge.socket"
    for name in ("state", "spool", "log"):
        (folder / name).mkdir()
    ports = [free_port() for _ in names]
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 State=UNKNOWN"
        for name, port in zip(names, ports, strict=True)
    ]
    (folder / "slurm.conf").write_text(
        "\n".join(
            [
                "ClusterName=test",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={free_port()}",
                "SlurmUser=root",
                "SlurmdUser=root",
                "AuthType=auth/munge",
                f"AuthInfo=socket={sock},cred_expire=5",  # so long a job waits that is begun again
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool/%n",
                f"SlurmctldLogFile={folder}/log/slurmctld.log",
                f"SlurmdLogFile={folder}/log/%n.log",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/%n.pid",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU",
                "SwitchType=switch/none",
                "JobRequeue=1",
                "ReturnToService=2",
                "SchedulerParameters=sched_interval=1,bf_interval=1",
                "MessageTimeout=30",
                "SlurmdTimeout=20",
                "KillWait=10",
                "MaxArraySize=101",
                *nodes,
                "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
                "",
            ]
        )
    )
    slurm = Slurm(folder, names)
    environment = slurm.environment
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        log = (folder / "log" / "started").open("ab")
        with log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={sock}",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log/munged.log",
            f"--seed-file={folder}/munged.seed",
        )  # fmt: skip
        _wait(sock.exists, folder)
        start("slurmctld", "-D")
        for name in names:
            start("slurmd", "-D", "-N", name)

        def is_up() -> bool:
            done = subprocess.run(
                ["sinfo", "--noheader", "--Node", "--format=%t"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            return done.returncode == 0 and done.stdout.split() == ["idle"] * num_nodes

        _wait(is_up, folder)
        try:
            yield slurm
        finally:
            slurm.end()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(condition: object, folder: Path) -> None:
    until = time.monotonic() + START_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in (folder / "log").iterdir())
            raise AssertionError(f"the cluster did not start:\n{logs}")
        time.sleep(0.1)
