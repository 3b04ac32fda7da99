"""Loops that go through their items one by one, written in plain Python and compiled by numba if it is installed.

Each choice depends on the one before, so NumPy cannot do many at once. The functions are written for numba: they use
only arrays and integers, and do not call each other. Callers use `compiled`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray


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
    return fast


def is_loaded() -> bool:
    """Return whether numba is already imported. Its import takes a quarter of a second and pays only for long loops."""
    return "numba" in sys.modules


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
