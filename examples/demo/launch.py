"""Starts the ranks as processes of one group, and kills the whole group in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).parent / "train.py"
LIMIT_S = 900


class DemoError(Exception):
    """Raised if the demo cannot continue, or its proof failed."""


class Job:
    """A training job on ``world_size`` ranks. Use it as a context manager, which leaves no process behind."""

    def __init__(self, folder: Path, life: str, world_size: int) -> None:
        self.world_size = world_size
        self._log = folder / "logs" / f"{life}-rank-0.jsonl"
        self._errors = [folder / "logs" / f"{life}-rank-{rank}.stderr" for rank in range(world_size)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log.parent.mkdir(exist_ok=True)
        for rank, errors in enumerate(self._errors):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
            with errors.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, str(TRAIN), str(folder), life],
                    env=environment,
                    stderr=stderr,
                    process_group=self.pid if rank else 0,
                )
            self._processes.append(process)

    @property
    def pid(self) -> int:
        """The id of the first rank's process, and of the process group."""
        return self._processes[0].pid

    def kill_after(self, step: int) -> None:
        """Send SIGKILL to all ranks at once, as soon as rank 0 has ended a step."""
        wanted = f'{{"step": {step}, "loss"'
        end = time.monotonic() + LIMIT_S
        while not (self._log.exists() and wanted in self._log.read_text()):
            self._look(end)
            if all(process.poll() == 0 for process in self._processes):
                raise DemoError("the training ended before it could be killed")
            time.sleep(0.01)
        self.close()

    def wait(self) -> None:
        """Wait until all ranks have ended without an error."""
        end = time.monotonic() + LIMIT_S
        while any(process.poll() is None for process in self._processes):
            self._look(end)
            time.sleep(0.05)
        self._look(end)

    def _look(self, end: float) -> None:
        for rank, process in enumerate(self._processes):
            if process.poll():
                tail = self._errors[rank].read_text(errors="replace")[-2000:]
                raise DemoError(f"rank {rank} of {self.world_size} ended with code {process.returncode}:\n{tail}")
        if time.monotonic() > end:
            raise DemoError(f"the training on {self.world_size} ranks took more than {LIMIT_S} s")

    def close(self) -> None:
        """Kill the processes that still run."""
        if any(process.poll() is None for process in self._processes):
            os.killpg(self.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
