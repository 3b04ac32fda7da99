"""`scan_shard`, one pass over the headers of a tar shard that finds its samples, their parts and its faults."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from headrace.errors import InputError
from headrace.io import PreadReader, Reader
from headrace.stores.arguments import IntArray
from headrace.stores.tar.headers import BLOCK, HeaderError, Window, next_member, plain_member
from headrace.stores.tar.names import check_uncompressed, sample_part

_TAIL_BYTES: Final = 1 << 20
"""How many bytes after the end are searched for more data: tar pads an archive to records, mostly of 10 KiB."""

OnFault = Literal["raise", "keep"]


class TarFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a shard.

    Attributes:
        byte: offset of the faulty header.
        sample: the number that the sample has or would have.
        message: what is wrong.
        ends: whether nothing after the fault could be read. If False, no samples are missing because of it.
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
    path: str | Path, *, hidden: bool = True, on_fault: OnFault = "raise", using: Reader | None = None
) -> ScannedShard:
    """Read the headers of a tar, but not its contents. About 3 us a member, and 1 us more if it is large.

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
        window = Window(using, path)
        if window.size >= BLOCK:
            check_uncompressed(path, window.fetch(0, BLOCK).tobytes())
        found = _scan(window, hidden=hidden)
    finally:
        using.release(path)
    if on_fault == "raise" and found.faults:
        fault = found.faults[0]
        raise InputError(f"{path}: sample {fault.sample}: byte {fault.byte}: {fault.message}")
    return found


def _scan(window: Window, *, hidden: bool) -> ScannedShard:
    fetch, size = window.fetch, window.size
    offsets, bounds = array("q"), array("q")
    part_offsets, part_sizes = array("q"), array("q")
    keys: list[str] = []
    part_names: list[str] = []
    faults: list[TarFault] = []
    key: str | None = None
    same: str | None = None
    at = 0
    try:
        if not size:
            raise HeaderError(0, "the file is empty")
        while True:
            plain = plain_member(fetch(at, BLOCK)) if size - at >= BLOCK else None
            begin = at
            if plain is not None:
                name, num_bytes = plain
                data = at + BLOCK
                at = data + (num_bytes + 511 & -512)
                if at > size:
                    found_bytes = max(0, min(num_bytes, size - data))
                    raise HeaderError(
                        begin, f"cut short: a member has {num_bytes:,} bytes, of which {found_bytes:,} are there"
                    )
                sparse = False
            else:
                member = next_member(fetch, at, size)
                if member is None:
                    break
                name, num_bytes, data, at = member.name, member.size, member.data, member.end
                begin, sparse = member.offset, member.sparse
                if not member.regular:
                    continue
            if same is not None and name.startswith(same) and "/" not in (part := name[len(same) :]):
                pass
            elif (found := sample_part(name, hidden=hidden)) is None:
                continue
            else:
                if found[0] != key:
                    key = found[0]
                    same = None if key.startswith("__") else key + "."
                    offsets.append(begin)
                    bounds.append(len(part_names))
                    keys.append(key)
                part = found[1]
            if sparse:
                message = f"part {part!r} is a sparse file without its holes; pack it again without -S"
                faults.append(TarFault(byte=begin, sample=len(keys) - 1, message=message, ends=False))
            part_names.append(part)
            part_offsets.append(data)
            part_sizes.append(num_bytes)
        if (behind := _behind_end(window, at)) is not None:
            message = "there are more data after the end of the archive: does the file hold several archives?"
            faults.append(TarFault(byte=behind, sample=len(keys), message=message, ends=True))
    except HeaderError as error:
        # The last sample may lack parts.
        if keys:
            at = offsets.pop()
            del keys[-1], part_names[bounds[-1] :], part_offsets[bounds[-1] :], part_sizes[bounds[-1] :]
            bounds.pop()
        else:
            at = 0
        faults.append(TarFault(byte=error.at, sample=len(keys), message=error.message, ends=True))
    return ScannedShard(
        offsets=np.array([*offsets, at], np.int64),
        keys=keys,
        part_bounds=np.array([*bounds, len(part_names)], np.int64),
        part_names=part_names,
        part_offsets=np.array(part_offsets, np.int64),
        part_sizes=np.array(part_sizes, np.int64),
        size=size,
        faults=tuple(faults),
    )


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
