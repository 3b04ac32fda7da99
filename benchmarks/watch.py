"""Measures a command and all its processes: CPU seconds, wall time, peaks of memory and disk."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

INTERVAL_S = 0.1


@dataclasses.dataclass(kw_only=True)
class Usage:
    """The resources that a command used. Peaks are sampled ten times a second."""

    cpu_s: float
    """CPU seconds of the command and of all descendants that were waited for, as the system counts them."""
    wall_s: float
    peak_mb: float = 0
    """Resident memory of all processes together; shared pages count in each of them."""
    worst_mb: float = 0
    """Resident memory of the largest process."""
    peak_disk_mb: float = 0
    """Peak size of the blocks of all files in the folder."""
    disk_mb: float = 0
    """Size of these blocks at the end."""


def watch(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Usage:
    """Run a command that writes only into this folder, and measure it."""
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **environment}
        )
        usage = Usage(cpu_s=0, wall_s=0)
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, folder, usage, ended))
        sampler.start()
        _, status, resources = os.wait4(process.pid, 0)
        usage.wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        sampler.join()
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read().decode(errors='replace')}")
    usage.cpu_s = resources.ru_utime + resources.ru_stime
    usage.disk_mb = disk_mb(folder)
    usage.peak_disk_mb = max(usage.peak_disk_mb, usage.disk_mb)
    return usage


def disk_mb(folder: Path) -> float:
    """The space that the files in a folder take on disk; files that vanish meanwhile count as 0."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks  # noqa: PTH118 - called a thousand times
            except FileNotFoundError:
                continue
    return total * 512 / 1e6


def _sample(pid: int, folder: Path, usage: Usage, ended: threading.Event) -> None:
    while not ended.wait(INTERVAL_S):
        sizes = []
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                sizes.append(process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:
            continue
        usage.peak_mb = max(usage.peak_mb, sum(sizes))
        usage.worst_mb = max(usage.worst_mb, *sizes)
        usage.peak_disk_mb = max(usage.peak_disk_mb, disk_mb(folder))
