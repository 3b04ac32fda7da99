"""How many cases the property tests try, how many steps they may take, and when they give up to wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

FULL = os.environ.get("HEADRACE_FULL") == "1"
"""Few cases in ``make test``, the full counts in ``make interop-full``."""

PATIENCE_S: Final = 900
"""After which a test gives up that would wait for ever. No result depends on it, nor on any other time."""


def cases(few: int, full: int) -> int:
    """``few``, or ``full`` when the full counts are asked for."""
    return full if FULL else few


def spread(count: int, wanted: int) -> set[int]:
    """So many of the numbers below ``count``, spread evenly, the first and the last among them; all if they are few."""
    if count <= wanted:
        return set(range(count))
    return {round(number * (count - 1) / max(wanted - 1, 1)) for number in range(wanted)}


def python_steps(action: Callable[[], Any]) -> int:
    """Lines of Python that an action runs: what it costs, however busy the machine is."""
    steps = 0

    def count(frame: Any, event: str, value: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return steps
