"""Where nothing is mapped: samples that are neighbours in the file are read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from headrace.io import Reader
from headrace.stores.tar.headers import Fetch
from headrace.stores.tar.window import Window

_CALL_BYTES: Final = 16 << 20
"""About this much is asked for in one call."""

_NEAR_BYTES: Final = 16 << 10
"""Samples with no more than this between them are one range."""

_PARTLY_BYTES: Final = 256 << 10
"""Of samples larger than this, of which only some parts are wanted, the headers are read, and then the parts."""


def read_runs(using: Reader, path: str, spans: Sequence[tuple[int, int]], *, partly: bool) -> Iterator[Fetch]:
    """What reads from each of the samples ``[begin, end)``, which ascend."""
    at = 0
    while at < len(spans):
        if partly and spans[at][1] - spans[at][0] > _PARTLY_BYTES:
            yield Window(using, path).fetch
            at += 1
            continue
        first = at
        ranges: list[list[int]] = []
        total = 0
        while at < len(spans) and (total < _CALL_BYTES or at == first):
            begin, end = spans[at]
            if partly and end - begin > _PARTLY_BYTES:
                break
            if ranges and begin - ranges[-1][1] <= _NEAR_BYTES:
                total += max(0, end - ranges[-1][1])
                ranges[-1][1] = max(ranges[-1][1], end)
            else:
                total += end - begin
                ranges.append([begin, end])
            at += 1
        table = np.array(ranges, np.int64)
        data = using.read_ranges(path, table[:, 0], table[:, 1] - table[:, 0]).data
        number, begins = 0, 0  # of the range, and in data
        for begin, _ in spans[first:at]:
            while begin > ranges[number][1] or (begin == ranges[number][1] and number + 1 < len(ranges)):
                begins += ranges[number][1] - ranges[number][0]
                number += 1
            yield _fetch(data, begins - ranges[number][0])


def _fetch(data: memoryview, shift: int) -> Fetch:
    return lambda at, length: data[at + shift : at + shift + length]
