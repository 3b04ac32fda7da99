"""How many cases the property tests try: few in ``make test``, the full counts in ``make interop-full``."""

from __future__ import annotations

import os

FULL = os.environ.get("HEADRACE_FULL") == "1"


def cases(few: int, full: int) -> int:
    """``few``, or ``full`` when the full counts are asked for."""
    return full if FULL else few
