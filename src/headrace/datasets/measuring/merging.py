"""Chunks of facts as one: arrays end to end, groups numbered as they first come."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.measuring.chunk import Chunk, Measuring
from headrace.datasets.measuring.facts import FaultCount, GroupFacts, Summary
from headrace.encoders import Fault
from headrace.errors import ConfigError, StoreError
from headrace.stores import find_cache, keep_arrays

_HASHED: Final = 1 << 24
"""Elements hashed together."""


class ChunkMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a chunk beside its arrays."""

    keys: list[tuple[str, int | None]]
    faults: list[Fault]


def keep_chunk(folder: Path, name: str, chunk: Chunk) -> None:
    """Write a chunk, whole or not at all. Raises OutputError."""
    keep_arrays(folder, name, chunk.arrays, msgspec.json.encode(ChunkMeta(chunk.keys, chunk.faults)))


def find_chunk(folder: Path, name: str) -> Chunk | None:
    """A chunk that was kept, mapped; None where there is none that is whole."""
    found = find_cache(folder, name)
    if found is None:
        return None
    meta = msgspec.json.decode(found[1], type=ChunkMeta)
    return Chunk(found[0], meta.keys, meta.faults)


class _Totals:
    """What is known when all chunks were seen once."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self.numbers: dict[str, int] = {}
        self.sizes: list[int | None] = []
        self.faults: list[bytes] = []
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self.skipped = self.outputs = self.tokens = 0
        for chunk in chunks:
            self._add(chunk)
        self.largest["groups"] = len(self.sizes)

    def _add(self, chunk: Chunk) -> None:
        for key, size in chunk.keys:
            number = self.numbers.setdefault(key, len(self.sizes))
            if number == len(self.sizes):
                self.sizes.append(size)
            elif self.sizes[number] != size:
                raise ConfigError(
                    f"batch_group_criterion gave the group {key} the sizes {self.sizes[number]} and {size}; all batches"
                    " of a group are of one size"
                )
        for fault in chunk.faults:
            self.faults.append(msgspec.json.encode(fault) + b"\n")
            self.kinds[fault.hook, fault.kind] += 1
        for name, array in chunk.arrays.items():
            self.rows[name] += len(array)
            self.largest[name] = max(self.largest[name], int(array.max(initial=0)))
        counts = chunk.arrays["num_outputs"]
        self.skipped += int((chunk.arrays["is_good"] & (counts == 0)).sum())
        self.outputs += int(counts.sum(dtype=np.int64))
        if "lengths" in chunk.arrays:
            self.tokens += int(chunk.arrays["lengths"].sum(dtype=np.int64))


def merged(
    measuring: Measuring, folder: Path, names: Sequence[str], scratch: Path
) -> tuple[Summary, dict[str, NDArray[Any]]]:
    """All chunks as one, the arrays in files of ``scratch``; one chunk is held at a time.

    Raises:
        StoreError: a chunk is not there, or damaged.
        ConfigError: a group with two sizes.
    """
    totals = _Totals(_chunks(folder, names))
    arrays = {
        name: _empty(scratch / f"{name}.npy", rows, _dtype(name, totals.largest[name]))
        for name, rows in totals.rows.items()
    }
    outputs = _filled(arrays, _chunks(folder, names), totals.numbers)
    arrays["faults"] = np.frombuffer(b"".join(totals.faults), dtype=np.uint8)
    kinds = sorted(totals.kinds.items(), key=lambda item: (-item[1], item[0]))
    groups = zip(totals.numbers, totals.sizes, outputs.tolist(), strict=True)
    summary = Summary(
        dataset=measuring.dataset.fingerprint,
        encoder=measuring.recipe,
        settings=measuring.settings,
        samples=totals.rows["is_good"],
        bad_samples=totals.kinds.total(),
        skipped_samples=totals.skipped,
        outputs=totals.outputs,
        tokens=totals.tokens if "lengths" in arrays else None,
        groups=tuple(GroupFacts(key=key, size=size, outputs=count) for key, size, count in groups),
        faults=tuple(FaultCount(hook=hook, kind=kind, count=count) for (hook, kind), count in kinds),
        xxh3_128=_hash(arrays),
    )
    return summary, arrays


def _chunks(folder: Path, names: Sequence[str]) -> Iterator[Chunk]:
    for name in names:
        chunk = find_chunk(folder, name)
        if chunk is None:
            raise StoreError(f"{folder / name}: was there and is not any more; another process has removed it: go on")
        yield chunk


def _filled(arrays: Mapping[str, NDArray[Any]], chunks: Iterator[Chunk], numbers: Mapping[str, int]) -> NDArray[Any]:
    """Copy the chunks into the arrays; (groups,) int64: the outputs of each group."""
    ends: Counter[str] = Counter()
    outputs = np.zeros(len(numbers), dtype=np.int64)
    for chunk in chunks:
        for name, array in chunk.arrays.items():
            values = array
            if name == "groups":
                table = np.array([numbers[key] for key, _ in chunk.keys], dtype=np.int64)
                values = table[array] if len(array) else array
                outputs += np.bincount(values, minlength=len(outputs))
            arrays[name][ends[name] : ends[name] + len(values)] = values
            ends[name] += len(values)
    return outputs


def _dtype(name: str, largest: int) -> np.dtype[Any]:
    """The smallest that holds all."""
    if name == "is_good":
        return np.dtype(bool)
    return np.min_scalar_type(largest)


def _empty(path: Path, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array in a file, so that as many samples as there are take no memory."""
    if not size:
        return np.empty(0, dtype=dtype)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))
    if hasattr(os, "posix_fallocate"):
        # The file has holes, and where the disk is full, writing to a mapped one ends the process.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    hasher = xxhash.xxh3_128()
    for name, array in sorted(arrays.items()):
        hasher.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
        for first in range(0, len(array), _HASHED):
            hasher.update(np.ascontiguousarray(array[first : first + _HASHED]).data)
    return hasher.hexdigest()
