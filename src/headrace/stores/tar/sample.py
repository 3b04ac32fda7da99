"""Reads the samples of a shard: the members between two entries of its index.

If the file is not mapped, samples that lie next to each other are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np

from headrace.io import Reader
from headrace.stores.tar.headers import BLOCK, Fetch, HeaderError, Window, next_member, plain_member
from headrace.stores.tar.names import sample_part

Places = dict[str, tuple[int, int]]
"""Offset and size of the content of each part by name, in the order of the file."""

T = TypeVar("T")


class WalkError(Exception):
    """A sample differs from what its index says. The caller adds the file and raises an InputError."""

    def __init__(self, at: int, key: str | None, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.key = key
        self.message = message


def sample_places(fetch: Fetch, begin: int, end: int, *, hidden: bool = True) -> tuple[str, Places]:
    """Return the key of the sample in ``[begin, end)`` and the places of its parts; raises as `walk_sample` does."""
    return walk_sample(fetch, begin, end, _place, None, hidden)


def _place(offset: int, size: int) -> tuple[int, int]:
    return offset, size


def walk_sample(
    fetch: Fetch, begin: int, end: int, take: Callable[[int, int], T], wanted: frozenset[str] | None, hidden: bool
) -> tuple[str, dict[str, T]]:
    """Return the key of the sample in ``[begin, end)``, and the result of ``take`` for each part.

    This takes about 1.5 us a member.

    Members that belong to no sample are skipped. If parts have the same name, the last one counts, as in Energon.

    Args:
        fetch: reads from the file.
        begin: offset of the first header.
        end: offset after the last member.
        take: called with offset and size of the content of each part.
        wanted: the parts to take; None takes all.
        hidden: whether ``dir/.hid`` belongs to a sample.

    Raises:
        WalkError: a header is malformed, a member goes past the end, there are two keys or no part, or a part is a
            sparse file.
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
                raise WalkError(at, key, f"a member of {size:,} bytes goes past the end of the sample at byte {end}")
        else:
            try:
                member = next_member(fetch, at, end)
            except HeaderError as error:
                raise WalkError(error.at, key, error.message) from None
            if member is None:
                raise WalkError(at, key, f"the archive ends here, but the sample should end at byte {end}")
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
            # Names that begin like this have the same key, unless they could be among the names that are skipped.
            same = None if key.startswith("__") else key + "."
        elif found[0] == key:
            part = found[1]
        else:
            raise WalkError(
                at, key, f"the member {name!r} of another sample comes before this sample's end at byte {end}"
            )
        if sparse:
            raise WalkError(at, key, f"part {part!r} is a sparse file without its holes; pack it again without -S")
        if wanted is None or part in wanted:
            parts[part] = take(data, size)
        at = after
    if key is None:
        others = f"; {skipped} members belong to no sample" if skipped else ""
        raise WalkError(begin, None, f"there is no part of a sample up to byte {end}{others}")
    return key, parts


_CALL_BYTES: Final = 16 << 20
"""About this much is read in one call."""

_NEAR_BYTES: Final = 16 << 10
"""Samples with at most this many bytes between them are read as one range."""

_PARTLY_BYTES: Final = 256 << 10
"""If only some parts of a sample larger than this are wanted, its headers are read, and then these parts."""


def read_runs(using: Reader, path: str, spans: Sequence[tuple[int, int]], *, partly: bool) -> Iterator[Fetch]:
    """Yield a function that reads from it for each of the samples ``[begin, end)``, which must ascend.

    Args:
        using: reads the bytes.
        path: the shard.
        spans: begin and end of each sample.
        partly: whether only some parts of each sample are wanted.
    """
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
        number, begins = 0, 0  # number of the range, and where it begins in data
        for begin, _ in spans[first:at]:
            while begin > ranges[number][1] or (begin == ranges[number][1] and number + 1 < len(ranges)):
                begins += ranges[number][1] - ranges[number][0]
                number += 1
            yield _fetch(data, begins - ranges[number][0])


def _fetch(data: memoryview, shift: int) -> Fetch:
    return lambda at, length: data[at + shift : at + shift + length]
