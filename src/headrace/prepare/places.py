"""Which places of the inputs stand for all of them, and what they say of the whole. Pure arithmetic, no I/O.

Points are spread over the bytes of all files: one in each of n equal stretches, somewhere in it. A point becomes a
*place*, the span around it; a span that several points fall into is one place with their number as its weight.

    files of 1 and 3 MiB, 4 points      one place of weight 1 in the first, three in the second
    the same, compressed                one place of weight 1, the first file; one of weight 3, the second
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import derive
from headrace.prepare.sources import SourceFile, Span

FloatArray = NDArray[np.float64]


class Place(NamedTuple):
    """A part of an input that is looked at."""

    span: Span
    weight: float
    """How much of the input it stands for, beside the others."""

    span_bytes: int
    """Bytes of the file that the span takes."""

    num_blocks: int | None
    """Blocks to encode of it; None for all."""


class Places(NamedTuple):
    """A sample of the input."""

    places: list[Place]
    is_whole: bool
    """It is all of the input; each weighs what it has bytes."""


class Total(NamedTuple):
    """A sum over the whole input."""

    value: float
    error: float
    """Standard error."""


def choose_places(files: Sequence[SourceFile], *, key: int, num_points: int, place_bytes: int) -> Places:
    """The places for ``num_points`` points, in the order of the input. O(files + points), whatever their size is.

    Where the input is no more than as many places, all of it is taken.
    """
    if sum(file.text_bytes for file in files) <= num_points * place_bytes:
        whole = [
            Place(Span(number, 0, file.extent), file.size_bytes, file.size_bytes, None)
            for number, file in enumerate(files)
            if file.extent
        ]
        return Places(whole, is_whole=True)
    ends = np.cumsum([file.size_bytes for file in files], dtype=np.int64)
    total = int(ends[-1])
    hits: Counter[tuple[int, int, int, int]] = Counter()
    for point in range(num_points):
        byte = (total * point + (total * derive(key, point) >> 64)) // num_points
        number = int(np.searchsorted(ends, byte, side="right"))
        file = files[number]
        hits[number, *_around(file, byte - int(ends[number]) + file.size_bytes, place_bytes)] += 1
    places = [
        Place(Span(number, begin, end), count, size, None if files[number].can_split else count)
        for (number, begin, end, size), count in sorted(hits.items())
    ]
    return Places(places, is_whole=False)


def _around(file: SourceFile, byte: int, place_bytes: int) -> tuple[int, int, int]:
    """Begin and end of the span around a byte of a file, and the bytes of the file that it takes."""
    if file.can_split:
        begin = byte // place_bytes * place_bytes
        end = min(begin + place_bytes, file.extent)
        return begin, end, end - begin
    if file.unit_bytes:
        # Units hold about as many rows each, and readers deal the bytes of the file to its rows evenly.
        unit = byte * file.extent // file.size_bytes
        return unit, unit + 1, file.size_bytes // file.extent
    return 0, file.extent, file.size_bytes


def scale_up(values: FloatArray, sizes: FloatArray, *, total_size: int, is_whole: bool) -> Total:
    """A sum over the whole input, from (n,) sums over pieces of the sample and their (n,) sizes, both weighted.

    The ratio of the sums, times the size of all; and the usual error of a ratio, from how much the pieces differ from
    it (Cochran, Sampling Techniques, chapter 6). One piece alone says nothing of that: the error is then half of the
    value. Where the sample is the whole input, the sum is exact.

    Values 2, 4 and 6 of sizes 1, 1 and 2, and 40 in all: ratio 3, value 120, differences -1, 1 and 0, error 17.3.
    """
    size = float(sizes.sum())
    if is_whole or not size:
        return Total(float(values.sum()), 0.0)
    count, ratio = len(values), float(values.sum()) / size
    if count == 1:
        return Total(ratio * total_size, ratio * total_size / 2)
    squares = float(((values - ratio * sizes) ** 2).sum())
    return Total(ratio * total_size, math.sqrt(squares * count / (count - 1)) / size * total_size)
