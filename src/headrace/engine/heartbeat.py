"""Which processes are at work on a job, as others can see it in its folder.

Each process rewrites a small file every few seconds. Others watch whether it changes, by their own clocks, since the
clocks of hosts may differ by minutes. A process of the same host is asked for at the system.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from headrace.io import output_errors

BEAT_S: Final = 5.0
STALE_S: Final = 60.0
"""A process whose file has not changed for so long counts as dead. A task that it still does may be done twice."""

NODES_NAME: Final = "nodes"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself."""

    host: str
    process: int
    phase: str
    beat: int
    """Increases with each writing."""

    running: dict[int, float] = {}
    """For each task that is under way, the seconds since it was begun."""


class Heartbeat:
    """Says that this process is alive, for as long as the context lasts, whenever `beat` is called.

    Args:
        work: the work folder of the job.
        attempt: the name of this process among all.
        phase: the phase whose tasks it does.
    """

    def __init__(self, work: Path, attempt: str, phase: str) -> None:
        self._path = work / NODES_NAME / f"{attempt}.json"
        self._phase = phase
        self._number = 0
        self._beaten_s = -BEAT_S

    def __enter__(self) -> Heartbeat:
        with output_errors(self._path, "write"):
            self._path.parent.mkdir(exist_ok=True)
        self.beat({})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def beat(self, running: dict[int, float]) -> None:
        """Rewrite the file, unless that was done a moment ago."""
        if time.monotonic() - self._beaten_s < BEAT_S:
            return
        self._beaten_s = time.monotonic()
        self._number += 1
        node = Node(host=platform.node(), process=os.getpid(), phase=self._phase, beat=self._number, running=running)
        temporary = self._path.with_suffix(".tmp")
        # Nothing depends on it but whether others wait, so a full disk does not matter here.
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(node))
            temporary.rename(self._path)


class Nodes:
    """The processes at work on a job, watched by this one."""

    def __init__(self, work: Path) -> None:
        self._folder = work / NODES_NAME
        self._seen: dict[str, tuple[int, float]] = {}

    def read(self) -> dict[str, Node]:
        """Return what the processes say that have not ended in order; some may be dead."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Node)
        return found

    def alive(self) -> set[str]:
        """Return the names of the processes that are alive, or were until a minute ago, as far as this one knows."""
        now = time.monotonic()
        found = set()
        for name, node in self.read().items():
            if node.host == platform.node():
                if _exists(node.process):
                    found.add(name)
                continue
            beat, since = self._seen.get(name, (-1, now))
            if beat != node.beat:
                self._seen[name] = node.beat, now
                found.add(name)
            elif now - since < STALE_S:
                found.add(name)
        return found


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
