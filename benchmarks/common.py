"""Helpers of all benchmarks: engines in separate processes, CPU seconds, medians, tables and JSON."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("headrace", "numpy", "torch", "numba", "tokenizers", "fastokens", "gigatoken", "megatron-core"),
    *(
        "megatron-energon",
        "webdataset",
        "torchtune",
        "trl",
        "datasets",
        "transformers",
        "datatrove",
        "simplejpeg",
        "ray",
        "grain",
        "lancedb",
        "torchdata",
        "litdata",
        "spdl-core",
        "turboloader",
        "obstore",
        "mosaicml-streaming",
        "s3torchconnector",
        "s3fs",
    ),
)
"""The packages whose versions a result records."""


def is_there(package: str) -> bool:
    """Whether a package, or a module of one, is installed."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def cpu_s() -> float:
    """CPU seconds of this process and of its living children (for children to 10 ms)."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(child.user + child.system for child in times)


def memory_bytes(what: str) -> int:
    """``VmRSS`` of this process, or its high-water mark ``VmHWM``; ``ru_maxrss`` would include that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))


def run_apart(script: str, *arguments: str) -> dict[str, Any]:
    """Run one measurement in a fresh process. The last line that the script prints is a JSON object."""
    command = [sys.executable, "-W", "ignore", script, "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number over several measurements of one engine."""
    return {
        name: statistics.median(row[name] for row in rows) if isinstance(value, (int, float)) else value
        for name, value in rows[0].items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows with the same names as an aligned table."""
    names = list(rows[0])
    cells = [names] + [[cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def cell(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def save(name: str, result: dict[str, Any]) -> None:
    """Write the result into the folder of all results."""
    RESULTS.mkdir(exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = {"command": " ".join(["python", *sys.argv]), "date": date, "machine": machine(), **result}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, and the versions of the measured packages."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "processor": cpu or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def verdict(what: str, value: float, bar: float, *, at_most: bool = False) -> str:
    """One line: whether the claim holds, the claim, the measured value and the bar."""
    holds = value <= bar if at_most else value >= bar
    return f"{'holds' if holds else 'FAILS'}  {what}: {value:,.3g} ({'at most' if at_most else 'at least'} {bar:,.3g})"
