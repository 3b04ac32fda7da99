"""Everything that can be wrong with a shard and its index, by a pass over its headers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from headrace.errors import HeadraceError
from headrace.io import Reader
from headrace.stores.faults import Faults
from headrace.stores.store import Problem
from headrace.stores.tar.index import index_faults
from headrace.stores.tar.scan import ScannedShard, scan_shard
from headrace.stores.types import IntArray


def check_shard(path: str, offsets: IntArray, *, using: Reader, hidden: bool) -> Iterator[Problem]:
    """What is wrong with a shard, and where it differs from its index. Contents have no checksum in a tar."""
    try:
        found = scan_shard(path, hidden=hidden, on_fault="keep", using=using.for_pass())
    except HeadraceError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
        return
    for fault in found.faults:
        yield Problem(path=path, place=f"byte {fault.byte}", message=f"sample {fault.sample}: {fault.message}")
    if found.offsets[-1] == found.size and not found.faults:
        yield Problem(
            path=path, place=f"byte {found.size}", message="no end of the archive: it may have been cut short"
        )
    yield from _index_problems(path, offsets, found)
    yield from _part_problems(path, found)


def _index_problems(path: str, offsets: IntArray, found: ScannedShard) -> Iterator[Problem]:
    yield from (
        Problem(path=path, place=f"index entry {entry}", message=message) for entry, message in index_faults(offsets)
    )
    # Behind a fault that ended the pass nothing is known.
    ended = any(fault.ends for fault in found.faults)
    if len(offsets) != len(found.offsets) and not ended:
        message = f"the index tells of {len(offsets) - 1:,} samples, the shard holds {len(found.keys):,}"
        yield Problem(path=path, place="", message=message)
    both = min(len(offsets), len(found.offsets)) - ended
    faults = Faults(path, "entries of the index")
    # Entry 0 is never read.
    for at in faults.to_name(offsets[1:both] != found.offsets[1:both]):
        message = f"byte {offsets[at + 1]} by the index, byte {found.offsets[at + 1]} in the shard"
        yield Problem(path=path, place=f"index entry {at + 1}", message=message)
    yield from faults.rest()


def _part_problems(path: str, found: ScannedShard) -> Iterator[Problem]:
    """Parts that are there twice, and keys that would leave a folder they were unpacked to."""
    twice, leaving = Faults(path, "samples with a part twice"), Faults(path, "keys")
    bounds = found.part_bounds.tolist()
    doubled = [len(set(found.part_names[begin:end])) < end - begin for begin, end in itertools.pairwise(bounds)]
    for at in twice.to_name(np.array(doubled, bool)):
        names = found.part_names[bounds[at] : bounds[at + 1]]
        part = next(name for name in names if names.count(name) > 1)
        message = f"key {found.keys[at]!r}: part {part!r} is there more than once; the last counts"
        yield Problem(path=path, place=f"sample {at}", message=message)
    yield from twice.rest()
    unsafe = [key.startswith("/") or "\0" in key or ".." in key.split("/") for key in found.keys]
    for at in leaving.to_name(np.array(unsafe, bool)):
        message = f"key {found.keys[at]!r} leaves its folder: harmless here, not where it is unpacked"
        yield Problem(path=path, place=f"sample {at}", message=message)
    yield from leaving.rest()
