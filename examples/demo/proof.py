"""Compares what the ranks logged with an uninterrupted run on one rank."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

import headrace

Hashes = dict[int, str]
"""Position -> hash of the sample's token bytes."""


def sample_hashes(input_ids: NDArray[Any], labels: NDArray[Any]) -> list[str]:
    """Hash the bytes of the tokens and labels of each sample; both arrays are (n, window) int64."""
    return [
        xxhash.xxh3_128_hexdigest(tokens.tobytes() + following.tobytes())
        for tokens, following in zip(input_ids, labels, strict=True)
    ]


@dataclass
class Log:
    """What the ranks of one job logged: the samples of each step, rank by rank, and the losses."""

    samples: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, life: str) -> Log:
        """Read everything that the ranks of a job logged before they ended."""
        log = cls()
        for path in sorted((folder / "logs").glob(f"{life}-rank-*.jsonl")):
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    continue  # the kill came in the middle of this line
                entry = json.loads(line)
                if "loss" in entry:
                    log.losses[entry["step"]] = entry["loss"]
                else:
                    pairs = zip(entry["positions"], entry["hashes"], strict=True)
                    log.samples.setdefault(entry["step"], []).extend(pairs)
        return log


def uninterrupted(run: headrace.Run) -> dict[int, Hashes]:
    """The samples of every step, from a loader on one rank that returns each step as one batch."""
    size = max(size for _, size in run.schedule.pieces)
    loader = headrace.Loader(run, micro_batch_size=size, ranks=headrace.loader.Ranks(0, 1))
    steps: dict[int, Hashes] = {}
    for step, batch in enumerate(loader):
        hashes = sample_hashes(batch["input_ids"].numpy(), batch["labels"].numpy())
        steps[step] = dict(zip(batch["sample_positions"].tolist(), hashes, strict=True))
    return steps


def differences(expected: dict[int, Hashes], first: Log, second: Log, resumed_at: int) -> list[str]:
    """All differences between the two jobs together and the uninterrupted run; empty if there are none.

    Steps before ``resumed_at`` must be complete in the first job, and the others in the second. Steps of the first job
    after its last checkpoint are lost to the model and may be incomplete, but their samples must be right.
    """
    found = []
    for step in sorted(expected.keys() | first.samples.keys() | second.samples.keys()):
        lives = (("killed", first, step < resumed_at), ("resumed", second, step >= resumed_at))
        for life, log, is_counted in lives:
            got = log.samples.get(step, [])
            if step not in expected:
                found += [f"step {step}: not in the uninterrupted run, but in the {life} one"] * bool(got)
                continue
            if life == "resumed" and not is_counted and got:
                found.append(f"step {step}: trained again, although a checkpoint after it was saved")
            found += _compare(f"step {step} of the {life} run", expected[step], got, must_be_whole=is_counted)
    return found


def _compare(where: str, expected: Hashes, got: list[tuple[int, str]], *, must_be_whole: bool) -> list[str]:
    found = []
    positions = [position for position, _ in got]
    if repeated := sorted({position for position in positions if positions.count(position) > 1}):
        found.append(f"{where}: the positions {repeated} came more than once")
    if foreign := sorted(set(positions) - expected.keys()):
        found.append(f"{where}: the positions {foreign} do not belong to it")
    if must_be_whole and (missing := sorted(expected.keys() - set(positions))):
        found.append(f"{where}: the positions {missing} are missing")
    found += [
        f"{where}: position {position} has the bytes {digest}, expected {expected[position]}"
        for position, digest in got
        if position in expected and digest != expected[position]
    ]
    return found
