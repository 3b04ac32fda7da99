"""Which processes are at work on a job, as others can see it.

Each process rewrites a note every few seconds. Others watch whether it changes, by their own clocks, since the
clocks of hosts may differ by minutes. A process of the same host is asked for at the system.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from typing import Final

import msgspec

from headrace.engine.shared import Shared
from headrace.errors import HeadraceError

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
        shared: what the processes of the job share.
        attempt: the name of this process among all.
        phase: the phase whose tasks it does.
    """

    def __init__(self, shared: Shared, attempt: str, phase: str) -> None:
        self._shared = shared
        self._name = f"{NODES_NAME}/{attempt}.json"
        self._phase = phase
        self._number = 0
        self._beaten_s = -shared.beat_s

    def __enter__(self) -> Heartbeat:
        self._shared.make([NODES_NAME])
        self.beat({})
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(HeadraceError):
            self._shared.remove(self._name)

    def beat(self, running: dict[int, float]) -> None:
        """Rewrite the note, unless that was done a moment ago."""
        if time.monotonic() - self._beaten_s < self._shared.beat_s:
            return
        self._beaten_s = time.monotonic()
        self._number += 1
        node = Node(host=platform.node(), process=os.getpid(), phase=self._phase, beat=self._number, running=running)
        self._shared.note(self._name, msgspec.json.encode(node))


class Nodes:
    """The processes at work on a job, watched by this one."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._seen: dict[str, tuple[object, float]] = {}

    def read(self) -> list[Node]:
        """Return what the processes say that have not ended in order; some may be dead."""
        found = []
        for data in self._shared.notes(NODES_NAME).values():
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(data, type=Node))
        return found

    def here(self) -> list[Node]:
        """Return what other processes of this host say that exist; the number of one that was killed may come again."""
        others = (node for node in self.read() if node.host == platform.node() and node.process != os.getpid())
        return [node for node in others if process_exists(node.process)]

    def alive(self) -> set[str]:
        """Return the names of the processes that are alive, or were until a minute ago, as far as this one knows."""
        now = time.monotonic()
        found = set()
        for name, version in self._shared.versions(NODES_NAME).items():
            attempt = name.removesuffix(".json")
            host, process = host_and_process(attempt)
            if host == platform.node():
                if not process_exists(process):
                    continue
                if self._shared.is_folder:
                    found.add(attempt)
                    continue
                # Without a shared folder hosts may be containers, whose names and process numbers come again.
            before, since = self._seen.get(attempt, (None, now))
            if before != version:
                self._seen[attempt] = version, now
                found.add(attempt)
            elif now - since < STALE_S:
                found.add(attempt)
        return found


def host_and_process(attempt: str) -> tuple[str, int]:
    """Return what `headrace.io.unique_name` put into a name; 0 if that is no process of a host."""
    host, _, process = attempt.rpartition(".")[0].rpartition(".")
    return host, int(process) if process.isdecimal() else 0


def process_exists(process: int) -> bool:
    """Return whether there is such a process on this host."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
