"""Which tokens of a whole sequence are among those that are stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_ADDED = 2
"""Tokens that may be put at either end of a sequence."""


class Kept(NamedTuple):
    """Which tokens of a sequence are stored, and the ids that are put before and behind them."""

    is_kept: NDArray[np.bool_]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def kept_tokens(
    whole: NDArray[Any], stored: NDArray[Any], *, from_end: bool, borders: Collection[int] = ()
) -> Kept | None:
    """Which of the tokens ``whole`` are ``stored``; None where they are other tokens.

    Stored is one stretch of them or, where exchanges were taken out of the middle, a beginning and an end; up to two
    tokens at either end may be added ones. ``from_end``: of several such stretches the last one; ``borders``: where
    messages begin, which is where exchanges are taken out.
    """
    size = len(stored)
    for before in range(min(_MOST_ADDED, size) + 1):
        for after in range(min(_MOST_ADDED, size - before) + 1):
            core = stored[before : size - after]
            place = _find(core, whole, from_end=from_end)
            if place is not None:
                is_kept = np.zeros(len(whole), np.bool_)
                is_kept[place : place + len(core)] = True
                return Kept(is_kept, tuple(stored[:before].tolist()), tuple(stored[size - after :].tolist()))
    for before in range(min(_MOST_ADDED, size) + 1):
        core = stored[before:]
        if len(core) > len(whole):
            continue
        begin = _num_equal(core, whole[: len(core)])
        end = _num_equal(core[::-1], whole[::-1][: len(core)])
        if begin + end >= len(core):
            # Where the texts of messages are alike, several places would do.
            places = range(len(core) - end, begin + 1)
            place = next((place for place in places if place in borders), places[0])
            is_kept = np.zeros(len(whole), np.bool_)
            is_kept[:place] = True
            is_kept[len(whole) - (len(core) - place) :] = True
            return Kept(is_kept, tuple(stored[:before].tolist()))
    return None


def _num_equal(one: NDArray[Any], other: NDArray[Any]) -> int:
    """How many values are equal from the beginning on."""
    return int(np.argmin(np.append(one == other, False)))


def _find(part: NDArray[Any], whole: NDArray[Any], *, from_end: bool) -> int | None:
    """Where the values of an array stand in another one, or None."""
    needle, hay = part.astype("<i8"), whole.astype("<i8")
    find = hay.tobytes().rfind if from_end else hay.tobytes().find
    first, last = 0, hay.nbytes
    while True:
        place = find(needle.tobytes(), first, last)
        if place < 0 or place % hay.itemsize == 0:
            return None if place < 0 else place // hay.itemsize
        # Bytes that happen to be equal across the borders of values.
        first, last = (first, place + needle.nbytes - 1) if from_end else (place + 1, last)
