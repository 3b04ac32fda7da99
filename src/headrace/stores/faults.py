"""Many faults of one kind, the first of which are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.stores.store import Problem

MAX_NAMED: Final = 20
"""Faults of one kind in one file that are named one by one; the rest is counted."""


class Faults:
    """Names the first ``MAX_NAMED`` faults of one kind, and counts the rest."""

    def __init__(self, path: str, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._count = 0

    def to_name(self, wrong: NDArray[np.bool_]) -> list[int]:
        """Where the faults are that are still to be named."""
        room = max(0, MAX_NAMED - self._count)
        self._count += int(np.count_nonzero(wrong))
        return [int(at) for at in np.flatnonzero(wrong)[:room]]

    def rest(self) -> Iterator[Problem]:
        """How many were not named."""
        if self._count > MAX_NAMED:
            yield Problem(path=self._path, place="", message=f"{self._count - MAX_NAMED} more {self._kind} at fault")
