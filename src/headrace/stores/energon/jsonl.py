"""JSON lines as samples: one record a line, with a ``.jsonl.idx`` beside the file or an index in the cache."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import HeadraceError, InputError, StoreError
from headrace.io import Reader, reader
from headrace.stores.arguments import positions, sample_numbers
from headrace.stores.energon.jsonl_index import index_place, indexed_lines, read_lines, scan_lines
from headrace.stores.sample_store import PartPlace, RawSample, SampleStore
from headrace.stores.store import Problem
from headrace.stores.types import IntArray

PART: Final = "json"


class JsonlSamplesStore(SampleStore):
    """A ``.jsonl`` file: record i is the sample of key ``"i"`` with one part ``json``, the bytes of the record.

    Args:
        path: the file.
        using: how to read, ``"mmap"`` or ``"pread"``; or a reader.
        strict: refuse an index that does not end where the file does. False makes it anew, in the cache.

    Raises:
        StoreError: missing, or the index is of another file.
        InputError: without an index: a line that is no JSON object; names it.
    """

    format = "jsonl samples"

    def __init__(self, path: str | os.PathLike[str], *, using: str | Reader = "mmap", strict: bool = True) -> None:
        self.path = os.fspath(path)
        self._strict = strict
        self._reader = reader(using)
        self._offsets = indexed_lines(self.path, self._reader, strict=strict)
        self._bounds: IntArray = np.array([0, len(self._offsets) - 1])
        self._bounds.flags.writeable = False

    @property
    def shards(self) -> tuple[str, ...]:
        """The name of the file."""
        return (Path(self.path).name,)

    @property
    def shard_bounds(self) -> IntArray:
        """(2,) int64: 0 and the number of records."""
        return self._bounds

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and its index if that lies beside it."""
        place = index_place(self.path)
        return (Path(self.path), *([place] if place.is_file() else []))

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of size, number of records, three entries of the index, and both ends of the file."""
        size = self._reader.size(self.path)
        length = min(size, 1 << 16)
        ends = self._reader.read_ranges(self.path, np.array([0, size - length]), np.array([length, length]))
        count = len(self._offsets) - 1
        facts = (self.format, size, count, int(self._offsets[count // 2]), xxhash.xxh3_128_hexdigest(ends.tobytes()))
        return xxhash.xxh3_128_hexdigest(repr(facts).encode())

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """See `SampleStore.read`; blanks around a record are left out."""
        begins, sizes = self._ranges(indices)
        shard = self.shards[0]
        if parts is not None and PART not in parts:
            return [RawSample(str(index), shard, index, {}) for index in indices.tolist()]
        data = self._reader.read_ranges(self.path, begins, sizes).tobytes()
        found = []
        end = 0
        for index, size in zip(indices.tolist(), sizes.tolist(), strict=True):
            begin, end = end, end + size
            record = data[begin:end].strip()
            if record[:1] != b"{" or record[-1:] != b"}":
                raise InputError(
                    f"{self.path}: sample {index}: by its index it is {record[:40]!r}, no JSON object: the"
                    " index is of another file; make it anew"
                )
            found.append(RawSample(str(index), shard, index, {PART: record}))
        return found

    def key(self, index: int) -> str:
        """The number of the record."""
        return str(int(sample_numbers([index], len(self), self.path)[0]))

    def find(self, key: str) -> int:
        """The number itself."""
        if key.isascii() and key.isdigit() and str(int(key)) == key and int(key) < len(self):
            return int(key)
        raise KeyError(f"{self.path}: no sample {key!r}; the keys of its {len(self):,} records are their numbers")

    def places(self, index: int) -> dict[str, PartPlace]:
        """Where the record lies."""
        number = sample_numbers([index], len(self), self.path)
        begins, sizes = self._ranges(number)
        data = self._reader.read_ranges(self.path, begins, sizes).tobytes()
        before = len(data) - len(data.lstrip())
        return {PART: PartPlace(self.path, int(begins[0]) + before, len(data.strip()))}

    def check(self) -> Iterator[Problem]:
        """Read every line: whether the index is of this file, and every record JSON."""
        try:
            found = scan_lines(self.path, self._reader.for_pass())
        except HeadraceError as error:
            yield Problem(path=self.path, place="", message=str(error).removeprefix(f"{self.path}: "))
            return
        if not np.array_equal(found, self._offsets):
            yield Problem(path=self.path, place="", message="its index is of another file; make it anew")
            return
        for index in range(len(self)):
            record = self.read(np.array([index]))[0].parts[PART]
            try:
                msgspec.json.decode(record, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                place = f"record {index}, byte {self._offsets[index]}"
                yield Problem(path=self.path, place=place, message=f"no JSON object: {error}")

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.path, self._reader, self._strict, self.fingerprint)

    def _ranges(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        numbers = positions(numbers, len(self), f"{self.path}: sample numbers")
        begins, ends = self._offsets[numbers], self._offsets[numbers + 1]
        is_bad = (begins < 0) | (ends <= begins)
        if is_bad.any():
            at = int(np.argmax(is_bad))
            raise InputError(
                f"{self.path}: sample {numbers[at]}: from byte {begins[at]} to {ends[at]} by its index, which is of"
                " another file; make it anew"
            )
        return begins, ends - begins


def is_records_of_text(path: str, using: Reader) -> bool:
    """Whether a ``.jsonl`` holds samples and not tokens: an index of samples beside it, or a first line like it.

    A line of tokens is an object with a list of numbers for each key; AstrAI's oldest store has lists of such lists.
    """
    if index_place(path).is_file():
        return True
    for _, line in read_lines(path, using, first_only=True):
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False  # which is neither: the message of a store of tokens says what was expected
        return isinstance(record, dict) and bool(record) and not all(_is_numbers(item) for item in record.values())
    return False


def _is_numbers(value: object) -> bool:
    """A list of numbers or truth values, or of lists of them."""
    return isinstance(value, list) and all(
        isinstance(item, int | float) or (isinstance(item, list) and _is_numbers(item)) for item in value[:3]
    )


def _reopen(kind: type[JsonlSamplesStore], path: str, using: Reader, strict: bool, fingerprint: str) -> SampleStore:
    store = kind(path, using=using, strict=strict)
    if store.fingerprint != fingerprint:
        raise StoreError(f"{path}: has changed since the store was handed to this process; open it again")
    return store
