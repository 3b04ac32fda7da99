"""Reports of faults: JSON lines, one file a rank."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headrace.encoders.policy import Fault
from headrace.errors import InputError, OutputError


class FaultReport:
    """Faults as JSON lines, appended one by one. A run that goes on, from wherever, adds none that is there already.

    Each rank has a file of its own. A line that a kill has cut short is left out, and written again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._known: set[object] = set()
        if self._path.exists():
            self._known = {_sign(fault) for fault in read_fault_report([self._path])}
            self._end_line()

    def add(self, faults: Iterable[Fault]) -> None:
        """Append those that are not there."""
        fresh = {sign: fault for fault in faults if (sign := _sign(fault)) not in self._known}
        if not fresh:
            return
        data = b"".join(msgspec.json.encode(fault) + b"\n" for fault in fresh.values())
        try:
            with self._path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise OutputError(f"{self._path}: the report of faults cannot be written: {error.strerror}") from error
        self._known.update(fresh)

    def _end_line(self) -> None:
        try:
            with self._path.open("r+b") as file:
                data = file.read()
                file.truncate(data.rfind(b"\n") + 1)
        except OSError as error:
            raise OutputError(f"{self._path}: the report of faults cannot be written: {error.strerror}") from error


def read_fault_report(paths: Iterable[str | os.PathLike[str]]) -> list[Fault]:
    """The faults in the reports of some ranks, each once, by position.

    Raises:
        InputError: a file is missing, or is something else; names the line.
    """
    found: dict[object, Fault] = {}
    for path in paths:
        try:
            lines = Path(path).read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"{path}: the report of faults cannot be read: {error.strerror}") from error
        # What is behind the last end of a line was cut short.
        for number, line in enumerate(lines[:-1], 1):
            try:
                fault = msgspec.json.decode(line, type=Fault)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{path}: line {number}: no fault of a report: {error}") from error
            found.setdefault(_sign(fault), fault)
    return sorted(found.values(), key=lambda one: (-1 if one.position is None else one.position, one.attempt))


def _sign(fault: Fault) -> object:
    """What tells a fault from others: it is the same whenever it is met again, but for the step that it is read for."""
    return fault.source, fault.position, fault.address, fault.attempt, fault.index, fault.hook, fault.kind
