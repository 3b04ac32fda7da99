"""The part of `tar.py` that measures the commands which turn a folder of tars into a dataset."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import common
from watch import watch

ENGINES = {
    "headrace": ("headrace", "prepare", "--workers", "1", "--split-ratio", "1,0,0", "--skip-dataset-yaml", "--quiet"),
    "Energon": (
        "energon", "prepare", "--num-workers", "1", "--split-ratio", "1,0,0", "--skip-dataset-yaml",
        "--non-interactive", "--no-progress",
    ),
    "headrace, index only": ("headrace", "prepare", "--workers", "1", "--tar-index-only", "--quiet"),
    "Energon, index only": ("energon", "prepare", "--num-workers", "1", "--tar-index-only", "--no-progress"),
}  # fmt: skip


def rows(folder: Path, root: Path, rounds: int) -> list[dict[str, Any]]:
    """One row for each engine: medians of CPU seconds, with and without start-up."""
    tars = sorted(folder.glob("*.tar"))
    num_samples = sum(tar.with_suffix(".tar.idx").stat().st_size // 8 - 1 for tar in tars)
    few = root / "few"
    few.mkdir()
    _first_samples(tars[0], few / tars[0].name)
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine, measured in found.items():
            start = _cpu_s(engine, [few / tars[0].name], root)
            cpu_s = _cpu_s(engine, tars, root)
            measured.append(
                {
                    "engine": engine,
                    "samples_per_cpu_s": num_samples / (cpu_s - start),
                    "with_start_up": num_samples / cpu_s,
                    "cpu_s": cpu_s,
                    "start_up_s": start,
                }
            )
    return [common.medians(measured) for measured in found.values()]


def claims(found: list[dict[str, Any]]) -> list[str]:
    rate = {row["engine"]: row["samples_per_cpu_s"] for row in found}
    index = rate["headrace, index only"] / rate["Energon, index only"]
    return [
        common.verdict("prepare, times Energon", rate["headrace"] / rate["Energon"], 5),
        common.verdict("prepare, index only, times Energon", index, 10),
    ]


def _first_samples(tar: Path, target: Path) -> None:
    end = int.from_bytes(tar.with_suffix(".tar.idx").read_bytes()[8 * 8 : 9 * 8], "little")
    target.write_bytes(tar.read_bytes()[:end] + bytes(10_240))


def _cpu_s(engine: str, tars: list[Path], root: Path) -> float:
    """CPU seconds of the command on a fresh folder with these shards."""
    folder = root / "fresh"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for tar in tars:
        os.link(tar, folder / tar.name)
    if engine == "Energon, index only":  # needs a dataset that was prepared before
        watch(_command("Energon", folder), folder, {})
    return watch(_command(engine, folder), folder, {}).cpu_s


def _command(engine: str, folder: Path) -> list[str]:
    program, *arguments = ENGINES[engine]
    return [str(Path(sys.executable).with_name(program)), *arguments, str(folder)]
