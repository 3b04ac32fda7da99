"""Loops that go through their items one by one, written in plain Python and compiled by numba if it is installed.

Each choice depends on the one before, so NumPy cannot do many at once. The functions are written for numba: they use
only arrays and integers, and do not call each other. Callers use `compiled`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray

_INITIALIZED = "_already_initialized"


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the kernel compiled for this machine, or None without numba.

    The machine code is cached beside this file or in the user's cache, so that it is compiled once and then read in
    about 10 ms. If neither place is writable, it is compiled in every process, which takes about half a second.
    """
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return None
    # There are no NaNs, and -0.0 equals 0.0: these two promises let the compiler find maxima with vector instructions.
    # Products and sums keep their order and their rounding.
    options: dict[str, Any] = {"nogil": True, "fastmath": {"nnan", "nsz"}}
    try:
        fast: Callable[..., Any] = numba.njit(cache=True, **options)(kernel)
    except RuntimeError:
        fast = numba.njit(**options)(kernel)
    extensions = importlib.import_module("numba.core.entrypoints")

    @wraps(kernel)
    def run(*arguments: Any) -> Any:
        # Before its first kernel, numba imports the extensions of other packages (awkward and fsspec, if megatron-core
        # is installed). That is half of its start-up time, and of no use to loops over arrays of integers.
        before = getattr(extensions, _INITIALIZED, None)
        if before is not False:
            return fast(*arguments)
        setattr(extensions, _INITIALIZED, True)
        try:
            return fast(*arguments)
        finally:
            setattr(extensions, _INITIALIZED, before)

    return run


def is_loaded() -> bool:
    """Return whether numba is already imported. Its import takes a quarter of a second and pays only for long loops."""
    return "numba" in sys.modules


LONG = 1 << 17
"""From this many entries on, a compiled loop is faster than NumPy if numba is already imported."""


def shuffle_kernel(
    array: NDArray[Any], last: int, words: NDArray[np.uint32], places: IntArray
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Swap ``array[i]`` with a random place up to i, for i from ``last`` down, until the ``words`` are used up.

    A place is the low bits of a word, as many bits as i has; places above i are discarded. Returns the next i and how
    many words were used. ``places`` is a buffer for some places: their elements are read once before the first of them
    is swapped, so that the memory serves many requests at once and mispredicted branches do not stall it.
    """
    used = 0
    while last > 0 and used < len(words):
        mask = last
        mask |= mask >> 1
        mask |= mask >> 2
        mask |= mask >> 4
        mask |= mask >> 8
        mask |= mask >> 16
        lowest = (mask >> 1) + 1
        count = 0
        room = min(len(places), last - lowest + 1)
        while used < len(words) and count < room:
            place = words[used] & mask
            places[count] = place
            count += place <= last - count
            used += 1
        touched = 0
        for k in range(count):
            touched += array[places[k]]
        for k in range(count):
            place = places[k]
            element = array[last - k]
            array[last - k] = array[place]
            array[place] = element
        # Use the sum, or else the compiler would leave the reads out.
        places[0] = touched
        last -= count
    return last, used


def sums_kernel(entries: NDArray[Any], sizes: NDArray[Any], block: int, sums: IntArray) -> None:
    """Set ``sums[i]`` to the sum of the sizes of the first ``i * block`` entries, and the last sum to that of all."""
    total = np.int64(0)
    for b in range(len(sums) - 1):
        for i in range(b * block, min((b + 1) * block, len(entries))):
            total += np.int64(sizes[entries[i]])
        sums[b + 1] = total


def swap_kernel(array: IntArray, first: int, places: IntArray) -> None:
    """Swap ``array[i]`` with the element at the next of ``places``, for i from ``first`` on."""
    for k in range(len(places)):
        element = array[first + k]
        array[first + k] = array[places[k]]
        array[places[k]] = element


def blend_kernel(
    weights: NDArray[np.float64],
    limits: IntArray,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: IntArray,
) -> None:
    """Choose at each step t the dataset with the greatest ``weight * max(t, 1) - count``, the first of equals.

    ``weights`` (k,) and ``limits`` (k,) are read; the other arrays, (size,), are written. A dataset is removed when its
    count reaches its limit; the remaining ones stay in front, in their order.

    A few datasets are compared one after another. For many, the greatest of each block of 64 is found 16 at a time
    without branches, and then its place in the best block only. The arrays are padded with values that are never
    chosen.
    """
    live = len(weights)
    room = (live + 63) // 64 * 64
    ids = np.arange(room)
    rates = np.zeros(room, dtype=np.float64)
    rates[:live] = weights
    # Counts are float64, which is exact below 2^53 and needs no conversion at every step.
    counts = np.full(room, np.inf, dtype=np.float64)
    counts[:live] = 0.0
    left = np.zeros(room, dtype=np.int64)
    left[:live] = limits
    tops = np.empty(16, dtype=np.float64)
    for t in range(len(dataset_index)):
        x = float(max(t, 1))
        place = 0
        if live <= 40:
            best = rates[0] * x - counts[0]
            for i in range(1, live):
                behind = rates[i] * x - counts[i]
                if behind > best:
                    best = behind
                    place = i
        else:
            best = -np.inf
            for block in range(0, live, 64):
                for j in range(16):
                    tops[j] = rates[block + j] * x - counts[block + j]
                for step in range(block + 16, block + 64, 16):
                    for j in range(16):
                        behind = rates[step + j] * x - counts[step + j]
                        tops[j] = behind if behind > tops[j] else tops[j]
                for j in range(8):
                    tops[j] = tops[j + 8] if tops[j + 8] > tops[j] else tops[j]
                for j in range(4):
                    tops[j] = tops[j + 4] if tops[j + 4] > tops[j] else tops[j]
                top = max(max(tops[0], tops[1]), max(tops[2], tops[3]))
                if top > best:
                    best = top
                    place = block
            while rates[place] * x - counts[place] != best:
                place += 1
        dataset_index[t] = ids[place]
        dataset_sample_index[t] = np.int64(counts[place])
        counts[place] += 1.0
        left[place] -= 1
        if left[place] == 0:
            live -= 1
            for i in range(place, live):
                ids[i] = ids[i + 1]
                rates[i] = rates[i + 1]
                counts[i] = counts[i + 1]
                left[i] = left[i + 1]
            rates[live] = 0.0
            counts[live] = np.inf
