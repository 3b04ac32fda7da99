"""Which sample a process is making: told to whoever watches it, so that one that hangs or kills it has a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.encoders import at_row
from headrace.plan import IntArray

NO_SAMPLE: Final = -1
"""In the place of an address: none of the samples in particular."""

_watcher: Callable[[int], None] | None = None


def watch_samples(watcher: Callable[[int], None] | None) -> None:
    """Have the address of each sample told before it is made, in this process; None: nobody watches."""
    global _watcher
    _watcher = watcher


def made(addresses: IntArray, makers: Sequence[Callable[[], Any]], first_row: int = 0) -> list[Any]:
    """What the makers of the samples at some addresses make, one by one.

    Whoever meets a fault is told which of them it is of, see `at_row`; ``first_row`` is the number of the first.
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
