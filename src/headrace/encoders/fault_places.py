"""Where in the run the sample is that a thread makes, told by whoever knows it to whoever meets a fault."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from headrace.encoders.policy import Fault
from headrace.plan import IntArray

Error = TypeVar("Error", bound=Exception)

_FAULTS = "headrace_faults"


class _Here(threading.local):
    positions: IntArray | None = None
    row = 0
    found: list[Fault] | None = None


_here = _Here()


@contextmanager
def collecting() -> Iterator[list[Fault]]:
    """The faults that this thread meets within, in the order in which it meets them."""
    found: list[Fault] = []
    before, _here.found = _here.found, found
    try:
        yield found
    finally:
        _here.found = before


@contextmanager
def at_positions(positions: IntArray) -> Iterator[None]:
    """Samples of these positions of the run are made by this thread, the first one first; `at_row` says which."""
    before = _here.positions, _here.row
    _here.positions, _here.row = positions, 0
    try:
        yield
    finally:
        _here.positions, _here.row = before


def at_row(row: int) -> None:
    """The sample that comes next, by its number among those of `at_positions`."""
    _here.row = row


def position_here() -> int | None:
    """The position of the sample that this thread makes, where that is known."""
    positions = _here.positions
    return int(positions[_here.row]) if positions is not None and _here.row < len(positions) else None


def placed(fault: Fault) -> Fault:
    """A fault with the position of the sample that is made, where that is known; it is collected."""
    position = position_here()
    if position is not None:
        fault = msgspec.structs.replace(fault, position=position)
    if _here.found is not None:
        _here.found.append(fault)
    return fault


def carrying(error: Error, faults: Sequence[Fault]) -> Error:
    """The error, which carries the faults that it comes of, out of threads and worker processes too."""
    setattr(error, _FAULTS, tuple(faults))
    return error


def carried(error: Exception) -> tuple[Fault, ...]:
    """The faults that an error comes of."""
    found: tuple[Fault, ...] = getattr(error, _FAULTS, ())
    return found
