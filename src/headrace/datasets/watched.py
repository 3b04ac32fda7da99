"""Tells a watcher which sample this process is making, so that a sample that hangs or kills the process has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.encoders import at_row
from headrace.plan import IntArray

NO_SAMPLE: Final = -1
"""Stands in the place of an address when no sample is being made."""

_watcher: Callable[[int], None] | None = None


def watch_samples(watcher: Callable[[int], None] | None) -> None:
    """Have ``watcher`` called in this process with the address of each sample before it is made; None stops that."""
    global _watcher
    _watcher = watcher


def made(addresses: IntArray, makers: Sequence[Callable[[], Any]], first_row: int = 0) -> list[Any]:
    """Return what the makers of the samples at some addresses make, one by one.

    A fault in a maker is attributed to its sample by `at_row`; ``first_row`` is the number of the first sample.
    """
    watcher = _watcher
    samples = []
    for row, (address, make) in enumerate(zip(addresses.tolist(), makers, strict=True), first_row):
        if watcher is not None:
            watcher(address)
        at_row(row)
        samples.append(make())
    if watcher is not None:
        watcher(NO_SAMPLE)
    return samples
