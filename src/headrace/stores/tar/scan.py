"""Passes over a tar: `scan_shard` finds its samples, parts and faults in one pass over the headers.

`Window` reads the headers of a file without most of the contents between them. If the file is not mapped, `read_runs`
reads samples that lie next to each other at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from headrace.errors import InputError
from headrace.io import AnyPath, PreadReader, Reader
from headrace.stores.arguments import IntArray
from headrace.stores.tar.members import (
    BLOCK,
    HOLES,
    Fetch,
    HeaderError,
    check_uncompressed,
    named,
    next_member,
    plain_member,
    same_key,
    sample_part,
)

_TAIL_BYTES: Final = 1 << 20
"""How many bytes after the end are searched for more data: tar pads an archive to records, mostly of 10 KiB."""


class WindowSteps(NamedTuple):
    """How a `Window` moves.

    Attributes:
        near: how many bytes are read at a time if the next header is near.
        after_gap: how many are read after contents were skipped.
        far: reading past this many bytes costs about as much as another read.
    """

    near: int
    after_gap: int
    far: int


ON_DISK: Final = WindowSteps(1 << 20, 4 << 10, 64 << 10)
"""Even if the disk reads ahead."""

OF_OBJECTS: Final = WindowSteps(8 << 20, 64 << 10, 2 << 20)
"""While a store begins to answer a GET, it sends some MiB of another one."""


class Window:
    """A window that moves through a file as it is fetched from, in the order of the file. For one thread.

    If the next header is near, everything up to it is read, 1 MiB at a time. If large contents lie between, they are
    skipped, and one page is read.

    Args:
        using: reads the file.
        path: the file.
        steps: how many bytes are read at a time; by default as on a disk.
    """

    def __init__(self, using: Reader, path: str, steps: WindowSteps | None = None) -> None:
        self._steps = steps or ON_DISK
        self.size = using.size(path)
        self._reader = using
        self._path = path
        self._begin = 0
        self._data = memoryview(b"")

    def fetch(self, at: int, length: int) -> memoryview:
        """Return the bytes ``[at, at + length)``, which must lie inside the file."""
        begin = at - self._begin
        if begin < 0 or begin + length > len(self._data):
            steps = self._steps
            size = steps.after_gap if begin - len(self._data) > steps.far else steps.near
            size = max(length, min(size, self.size - at))
            self._data = self._reader.read(self._path, at, size).data
            self._begin, begin = at, 0
        return self._data[begin : begin + length]


OnFault = Literal["raise", "keep"]


class TarFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a shard.

    Attributes:
        byte: offset of the faulty header.
        sample: the number that the sample has or would have.
        message: what is wrong.
        ends: whether nothing after the fault could be read. If False, at most the named part is missing because of it.
    """

    byte: int
    sample: int
    message: str
    ends: bool


class ScannedShard(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a shard, as far as it could be read.

    Attributes:
        offsets: (N + 1,) int64, the entries of its ``.tar.idx``.
        keys: (N,) the key of each sample, in order.
        part_bounds: (N + 1,) int64, sample i has the parts ``[bounds[i], bounds[i + 1])``; a part that occurs twice in
            a sample is listed twice.
        part_names: (P,) names of all parts.
        part_offsets: (P,) int64, offsets of their contents in the file.
        part_sizes: (P,) int64, sizes of their contents in bytes.
        size: size of the file in bytes.
        faults: faults of the shard, in the order of the file.
    """

    offsets: IntArray
    keys: list[str]
    part_bounds: IntArray
    part_names: list[str]
    part_offsets: IntArray
    part_sizes: IntArray
    size: int
    faults: tuple[TarFault, ...]


def scan_shard(
    path: str | AnyPath, *, hidden: bool = True, on_fault: OnFault = "raise", using: Reader | None = None
) -> ScannedShard:
    """Read the headers of a tar, but not its contents. About 3 us a member, and 1 us more if it is large.

    Of an object, contents below 2 MiB are read with the headers, 8 MiB at a time, and a larger one costs a GET.

    Args:
        path: the tar.
        hidden: whether ``dir/.hid`` is a sample, as in Energon.
        on_fault: ``"raise"`` raises an error at the first fault; ``"keep"`` keeps the whole samples before it and
            returns it in ``faults``.
        using: the reader; by default one that does not map.

    Raises:
        InputError: the file is malformed, truncated or compressed; the message names shard, sample and byte.
        StoreError: the file cannot be opened or read.
    """
    path = str(path)
    using = PreadReader() if using is None else using
    try:
        window = Window(using, path, None if isinstance(using.path_at(path), Path) else OF_OBJECTS)
        if window.size >= BLOCK:
            check_uncompressed(path, window.fetch(0, BLOCK).tobytes())
        found = _scan(window, hidden=hidden)
    finally:
        using.release(path)
    if on_fault == "raise" and found.faults:
        fault = found.faults[0]
        raise InputError(f"{path}: sample {fault.sample}: byte {fault.byte}: {fault.message}")
    return found


class Collected:
    """The samples of a shard that were found, or written, so far; the attributes are those of `ScannedShard`."""

    def __init__(self) -> None:
        self.offsets, self.bounds = array("q"), array("q")
        self.keys: list[str] = []
        self.part_names: list[str] = []
        self.part_offsets, self.part_sizes = array("q"), array("q")
        self.faults: list[TarFault] = []

    def add_fault(self, byte: int, message: str, *, sample: int | None = None, ends: bool) -> None:
        """Add a fault; the sample is the next one unless another is named."""
        number = len(self.keys) if sample is None else sample
        self.faults.append(TarFault(byte=byte, sample=number, message=message, ends=ends))

    def drop_last(self) -> int:
        """Drop the last sample, which may lack parts, and return where it begins; 0 if there is none."""
        if not self.keys:
            return 0
        first = self.bounds.pop()
        del self.keys[-1], self.part_names[first:], self.part_offsets[first:], self.part_sizes[first:]
        return self.offsets.pop()

    def shard(self, end: int, size: int) -> ScannedShard:
        """Return everything as a shard, whose last sample ends at ``end``."""
        return ScannedShard(
            offsets=np.array([*self.offsets, end], np.int64),
            keys=self.keys,
            part_bounds=np.array([*self.bounds, len(self.part_names)], np.int64),
            part_names=self.part_names,
            part_offsets=np.array(self.part_offsets, np.int64),
            part_sizes=np.array(self.part_sizes, np.int64),
            size=size,
            faults=tuple(self.faults),
        )


def _scan(window: Window, *, hidden: bool) -> ScannedShard:
    found = Collected()
    try:
        if not window.size:
            raise HeaderError(0, "the file is empty")
        end = _collect(window, found, hidden=hidden)
        if (behind := _behind_end(window, end)) is not None:
            message = "there are more data after the end of the archive: does the file hold several archives?"
            found.add_fault(behind, message, ends=True)
    except HeaderError as error:
        end = found.drop_last()
        found.add_fault(error.at, error.message, ends=True)
    return found.shard(end, window.size)


def _collect(window: Window, found: Collected, *, hidden: bool) -> int:
    """Collect all samples, and return the offset of the end of the archive."""
    fetch, size = window.fetch, window.size
    add_name, add_offset, add_size = found.part_names.append, found.part_offsets.append, found.part_sizes.append
    key: str | None = None
    same: str | tuple[()] = ()
    at = 0
    while True:
        plain = plain_member(fetch(at, BLOCK)) if size - at >= BLOCK else None
        if plain is not None:
            name, num_bytes = plain
            begin, data, wrong = at, at + BLOCK, ""
            at = data + (num_bytes + 511 & -512)
            if at > size:
                there = max(0, min(num_bytes, size - data))
                raise HeaderError(begin, f"cut short: a member has {num_bytes:,} bytes, of which {there:,} are there")
        else:
            member = next_member(fetch, at, size)
            if member is None:
                return at
            name, num_bytes, begin, data, at, wrong = named(member)
        if wrong and wrong is not HOLES:
            # It is left out of the index, as Energon does, so that samples have the same numbers.
            if (split := sample_part(name, hidden=hidden)) is not None:
                found.add_fault(begin, f"{name!r} {wrong}", ends=False)
            continue
        # No name begins with an empty tuple.
        if name.startswith(same) and "/" not in (part := name[len(same) :]):
            pass
        elif (split := sample_part(name, hidden=hidden)) is None:
            continue
        else:
            if split[0] != key:
                key = split[0]
                same = same_key(key)
                found.offsets.append(begin)
                found.bounds.append(len(found.part_names))
                found.keys.append(key)
            part = split[1]
        if wrong:
            found.add_fault(begin, f"part {part!r} {wrong}", sample=len(found.keys) - 1, ends=False)
        add_name(part)
        add_offset(data)
        add_size(num_bytes)


def _behind_end(window: Window, at: int) -> int | None:
    """Return the first byte after the end of the archive that is not zero; None if there is none."""
    end = min(window.size, at + _TAIL_BYTES)
    while at < end:
        length = min(1 << 16, end - at)
        data = window.fetch(at, length)
        filled = np.flatnonzero(np.frombuffer(data, np.uint8))
        if len(filled):
            return at + int(filled[0])
        at += length
    return None


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
            yield _shifted(data, begins - ranges[number][0])


def _shifted(data: memoryview, shift: int) -> Fetch:
    return lambda at, length: data[at + shift : at + shift + length]
