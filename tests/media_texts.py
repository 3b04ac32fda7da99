"""Shards of numbered texts: samples that cost nothing to decode."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from counts import PATIENCE_S
from energon_prepared import prepared
from headrace import MediaDataset
from headrace.samples.media import TextSample

TEXT: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "txt"}}
BAD = 13
"""The sample at which the functions below do what they are named after."""

HOLDS_WHEN = "HEADRACE_TEST_HOLDS_WHEN"
"""Names the environment variable with the file that `arrays` waits for."""


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
        time.sleep(PATIENCE_S)
    return {"text": parts["txt"]}


class StrangeError(Exception):
    """Pickles, and cannot be made again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def fails_strangely(parts: dict[str, Any]) -> dict[str, Any]:
    if parts["txt"] == str(BAD):
        raise StrangeError("strange", "words")
    return {"text": parts["txt"]}


class Once:
    """Does something at the bad sample, but only once for all processes: what is wrong passes by."""

    def __init__(self, flag: Path, action: Any, *, at: int = BAD) -> None:
        self._flag = flag
        self._action = action
        self._at = at

    def __call__(self, parts: dict[str, Any]) -> dict[str, Any]:
        if parts["txt"] == str(self._at) and not self._flag.exists():
            self._flag.touch()
            return dict(self._action(parts))
        return {"text": parts["txt"]}


def stops(parts: dict[str, Any]) -> dict[str, Any]:
    """As a debugger does, or a machine that has frozen: no signal but SIGKILL reaches it."""
    if parts["txt"] == str(BAD):
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"text": parts["txt"]}


def holds_the_interpreter(parts: dict[str, Any]) -> dict[str, Any]:
    """As a library does that waits without letting other threads run."""
    if parts["txt"] == str(BAD):
        ctypes.PyDLL(None).sleep(PATIENCE_S)
    return {"text": parts["txt"]}


def large(parts: dict[str, Any]) -> dict[str, Any]:
    """Two of them are more than a pipe holds; one is too small to go through shared memory."""
    return {"text": parts["txt"] + "x" * 40_000}


def takes_all_memory(parts: dict[str, Any]) -> dict[str, Any]:
    if parts["txt"] == str(BAD):
        raise MemoryError("4 TiB asked for")
    return {"text": parts["txt"]}


def unpicklable(parts: dict[str, Any]) -> dict[str, Any]:
    return {"text": threading.Lock()}


def slow(parts: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return {"text": parts["txt"]}


def arrays(parts: dict[str, Any]) -> dict[str, Any]:
    """Large enough to go through shared memory; one of them holds the interpreter, once a file is there.

    What its worker has handed over before, nobody can fetch from then on.
    """
    if parts["txt"] == "25":
        while not Path(os.environ[HOLDS_WHEN]).exists():
            time.sleep(0.001)
        ctypes.PyDLL(None).sleep(PATIENCE_S)
    return {"text": np.full(200_000, int(parts["txt"]), dtype=np.int64)}
