"""Compares ``index.sqlite`` with the shards that it is of, and the keys of all shards with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.errors import HeadraceError
from headrace.stores.energon.info import Info
from headrace.stores.energon.shards import DatasetShards
from headrace.stores.energon.sqlite_index import PartRow, SqliteIndex
from headrace.stores.faults import Faults
from headrace.stores.store import Problem
from headrace.stores.tar.key_table import KeyTable


def check_index(index: SqliteIndex, info: Info, names: Sequence[str], shards: DatasetShards) -> Iterator[Problem]:
    """Every row of ``samples`` of some shards against their headers and indices; the first fault of each shard."""
    path = str(index.path)
    numbers = {name: number for number, name in enumerate(info.shard_counts)}
    try:
        if not index.has_samples:
            return
        for at, name in enumerate(names):
            if shards.is_tar[at]:
                fault = _fault(index, numbers[name], at, shards)
                if fault is not None:
                    place, message = fault
                    yield Problem(path=path, place=f"{name}: {place}" if place else name, message=message)
    except HeadraceError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))


def check_keys(path: str, names: Sequence[str], shards: DatasetShards) -> Iterator[Problem]:
    """Keys that several samples of the tars have, by one more pass over the headers; 16 bytes a sample are kept."""
    bounds = [0]
    read: list[int] = []

    def keys() -> Iterator[str]:
        for at in np.flatnonzero(shards.is_tar).tolist():
            try:
                found = shards.keys(at)
            except HeadraceError:
                continue  # which the check of the shard tells of
            read.append(at)
            bounds.append(bounds[-1] + len(found))
            yield from found

    faults = Faults(path, "keys")
    for numbers in KeyTable(keys(), -1).repeated():
        places: dict[str, list[str]] = {}
        for number in numbers:
            which = int(np.searchsorted(bounds, number, side="right")) - 1
            at, index = read[which], number - bounds[which]
            places.setdefault(shards.key(at, index), []).append(f"{names[at]} sample {index}")
        for key, where in places.items():
            if len(where) > 1 and faults.to_name(np.array([True])):
                message = f"is there {len(where)} times: {', '.join(where[:5])}; a key names one sample"
                yield Problem(path=path, place=f"key {key!r}", message=message)
    yield from faults.rest()


def _fault(index: SqliteIndex, number: int, at: int, shards: DatasetShards) -> tuple[str, str] | None:
    try:
        keys, offsets = shards.keys(at), shards.offsets(at).tolist()
    except HeadraceError:
        return None  # which the check of the shard tells of
    rows = list(index.samples(number))
    for row, place in zip(rows, range(len(keys)), strict=False):
        wanted = (place, keys[place], offsets[place], offsets[place + 1] - offsets[place])
        found = (row.sample, row.key, row.offset, row.size)
        if found != wanted:
            return f"sample {place}", f"(index, key, byte, size) is {found}, in the shard {wanted}; prepare it again"
    if len(rows) != len(keys):
        return "", f"has {len(rows):,} samples, the shard {len(keys):,}; prepare it again"
    return _part_fault(index.parts(number), len(keys), at, shards) if index.has_parts else None


def _part_fault(rows: Iterator[PartRow], count: int, at: int, shards: DatasetShards) -> tuple[str, str] | None:
    row = next(rows, None)
    for sample in range(count):
        found = {}
        while row is not None and row.sample == sample:
            found[row.part] = (row.offset, row.size)  # of several of one name the last one, as in reading
            row = next(rows, None)
        wanted = {part: (place.offset, place.size) for part, place in shards.places(at, sample).items()}
        if found != wanted:
            message = f"its parts (byte, size) are {found}, in the shard {wanted}; prepare it again"
            return f"sample {sample}", message
    return None if row is None else (f"sample {row.sample}", f"part {row.part!r} is not in the shard; prepare it again")
