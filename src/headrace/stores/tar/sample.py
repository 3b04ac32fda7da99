"""Samples of a shard: the members between two entries of its index, neighbours read at once.

Where nothing is mapped: samples that are neighbours in the file are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np

from headrace.io import Reader
from headrace.stores.tar.headers import BLOCK, Fetch, HeaderError, Window, next_member, plain_member
from headrace.stores.tar.names import sample_part

Places = dict[str, tuple[int, int]]
"""Part -> offset of its content and its size, in the order of the file."""

T = TypeVar("T")


class WalkError(Exception):
    """A sample that is not what its index says; the caller says in which file, and raises it as an InputError."""

    def __init__(self, at: int, key: str | None, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.key = key
        self.message = message


def sample_places(fetch: Fetch, begin: int, end: int, *, hidden: bool = True) -> tuple[str, Places]:
    """The key of the sample in ``[begin, end)``, and where its parts lie; raises as `walk_sample`."""
    return walk_sample(fetch, begin, end, _place, None, hidden)


def _place(offset: int, size: int) -> tuple[int, int]:
    return offset, size


def walk_sample(
    fetch: Fetch, begin: int, end: int, take: Callable[[int, int], T], wanted: frozenset[str] | None, hidden: bool
) -> tuple[str, dict[str, T]]:
    """The key of the sample in ``[begin, end)``, and what ``take`` makes of each part. About 1.5 us a member.

    Members that belong to no sample are passed over. Of parts with the same name the last counts, as for Energon.

    Args:
        fetch: reads from the file.
        begin: offset of the first header.
        end: offset behind the last member.
        take: is called with offset and size of the content of each part.
        wanted: the parts to take; None takes all.
        hidden: take ``dir/.hid`` as a sample.

    Raises:
        WalkError: a malformed header, a member past the end, two keys, no part at all, or a sparse file.
    """
    parts: dict[str, T] = {}
    key: str | None = None
    same: str | None = None
    skipped = 0
    at = begin
    while at < end:
        plain = plain_member(fetch(at, BLOCK)) if end - at >= BLOCK else None
        if plain is not None:
            name, size = plain
            data = at + BLOCK
            after = data + (size + 511 & -512)
            sparse = False
            if after > end:
                raise WalkError(at, key, f"a member of {size:,} bytes, which goes past the end of the sample at {end}")
        else:
            try:
                member = next_member(fetch, at, end)
            except HeaderError as error:
                raise WalkError(error.at, key, error.message) from None
            if member is None:
                raise WalkError(at, key, f"the archive ends here, the sample at byte {end}")
            name, data, size, after, sparse = member.name, member.data, member.size, member.end, member.sparse
            if not member.regular:
                at, skipped = after, skipped + 1
                continue
        if same is not None and name.startswith(same) and "/" not in (part := name[len(same) :]):
            pass
        elif (found := sample_part(name, hidden=hidden)) is None:
            at, skipped = after, skipped + 1
            continue
        elif key is None:
            key, part = found
            # What begins like this has the same key, unless it could be one of the names that are left out.
            same = None if key.startswith("__") else key + "."
        elif found[0] == key:
            part = found[1]
        else:
            raise WalkError(at, key, f"a member {name!r} of another sample, before this one's end at byte {end}")
        if sparse:
            raise WalkError(at, key, f"part {part!r} is a sparse file, without its holes; pack it anew without -S")
        if wanted is None or part in wanted:
            parts[part] = take(data, size)
        at = after
    if key is None:
        of = f"; {skipped} members belong to no sample" if skipped else ""
        raise WalkError(begin, None, f"no part of a sample up to byte {end}{of}")
    return key, parts


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
