"""Shards of numbered texts: samples that cost nothing to decode."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from energon_prepared import prepared
from headrace import MediaDataset
from headrace.samples.media import TextSample

TEXT: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "txt"}}
BAD = 13
"""The sample at which the functions below do what they are named after."""


def shards(root: Path, counts: tuple[int, ...], val: tuple[int, ...] = ()) -> Path:
    """An Energon dataset: sample i of all has the text ``str(i)``."""
    members: dict[str, list[tuple[str, bytes]]] = {}
    number = 0
    for shard, count in enumerate((*counts, *val)):
        members[f"{shard:02d}.tar"] = [(f"{one:04d}.txt", str(one).encode()) for one in range(number, number + count)]
        number += count
    names = list(members)
    root.mkdir(parents=True, exist_ok=True)
    return prepared(root, members, {"train": names[: len(counts)], "val": names[len(counts) :]})


def loaded(root: Path, loader: Any) -> MediaDataset:
    """Of `shards`, made by one of the functions below."""
    return MediaDataset.open(root, sample_type=TextSample, sample_loader=loader, part_filter=["txt"])


def dies(parts: dict[str, Any]) -> dict[str, Any]:
    """As the system ends a process that has no memory left."""
    if parts["txt"] == str(BAD):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": parts["txt"]}


def hangs(parts: dict[str, Any]) -> dict[str, Any]:
    if parts["txt"] == str(BAD):
        time.sleep(60)
    return {"text": parts["txt"]}


class StrangeError(Exception):
    """Pickles, and cannot be made again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def fails_strangely(parts: dict[str, Any]) -> dict[str, Any]:
    if parts["txt"] == str(BAD):
        raise StrangeError("strange", "words")
    return {"text": parts["txt"]}
