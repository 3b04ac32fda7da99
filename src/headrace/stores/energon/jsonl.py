"""`JsonlSamplesStore`, which reads JSON lines as samples, one record a line, and the index ``X.jsonl.idx``.

Energon writes the index, a file of `headrace.stores.kept_arrays`, since 7.2. Entry 0 is 0, entry i is where
record i begins, and entry N is the size of the file. Blank lines belong to the record before them, or to the first
record if they come before it. Without an index beside the file, a pass over the file makes one.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import HeadraceError, InputError, StoreError
from headrace.io import AnyPath, Reader, hash_bytes, path_at, reader, reader_at
from headrace.stores.arguments import IntArray
from headrace.stores.foreign import read_lines
from headrace.stores.kept_arrays import kept_index, read_offsets, write_offsets
from headrace.stores.store import Numbering, PartPlace, Problem, RawSample, SampleStore

SUFFIX: Final = ".jsonl.idx"
_VERSION: Final = 1


def index_place(path: str | AnyPath, using: str | Reader = "mmap") -> AnyPath:
    """Return the path of the index beside a file."""
    return path_at(path, using).with_suffix(SUFFIX)


def indexed_lines(path: str, using: Reader) -> IntArray:
    """Return the index of a file, (N + 1,) int64: the one beside it, one in the cache, or a new one after a pass.

    Raises:
        StoreError: the file is missing, or its index belongs to another file.
        InputError: a line is not a JSON object.
    """
    beside, size = index_place(path, using), using.size(path)
    if beside.is_file():
        try:
            using.keep(str(beside))
            offsets = read_offsets(str(beside), using)
            using.release(str(beside))  # the array keeps the mapping alive
            if len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == size:
                return offsets
            fault = f"goes from byte {offsets[0]} to {offsets[-1]}, but the file from 0 to {size}"
        except ValueError as error:
            fault = str(error)
        raise StoreError(f"{beside}: {fault}; make it again with headrace prepare or energon prepare")
    arrays, _ = kept_index(
        path, using, "jsonl samples", _VERSION, lambda: ({"offsets": scan_lines(path, using.for_pass())}, b"{}")
    )
    return arrays["offsets"]


def write_lines(path: str | AnyPath, using: str | Reader = "pread") -> int:
    """Write the index of a file beside it, byte for byte as Energon does, and return the number of records.

    Args:
        path: the file, or its URL.
        using: what reads it.

    Raises:
        InputError: a line is not a JSON object.
        StoreError: the file is missing, or an object changes meanwhile.
        OutputError: the index cannot be written.
    """
    using = reader(reader_at(path, using))
    offsets = scan_lines(str(path), using.for_pass())
    write_offsets(index_place(path, using), offsets)
    return len(offsets) - 1


def scan_lines(path: str, using: Reader) -> IntArray:
    """Make the index of a file by a pass over it, (N + 1,) int64. About 1 ns a byte and 0.6 us a line.

    Raises:
        InputError: a line does not begin with ``{`` and end with ``}``, or there are no records.
        StoreError: the file cannot be read.
    """
    offsets = array("q")
    for number, offset, line in read_lines(path, using):
        text = line.strip()
        if not (text.startswith(b"{") and text.endswith(b"}") and len(text) > 1):
            raise InputError(
                f"{path}: line {number}, byte {offset}: not a JSON object from {{ to }}: {text[:40]!r}; expected one a"
                " line"
            )
        offsets.append(offset)
    if not offsets:
        raise InputError(f"{path}: holds no record; expected one JSON object a line")
    offsets[0] = 0
    offsets.append(using.size(path))
    return np.array(offsets, np.int64)


PART: Final = "json"
ENDS_BYTES: Final = 1 << 16


class JsonlSamplesStore(SampleStore):
    """A ``.jsonl`` file of samples: record i has the key ``"i"`` and one part, ``json``, with the bytes of the record.

    Args:
        path: the file.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.

    Raises:
        StoreError: the file is missing, or the index belongs to another file.
        InputError: there is no index, and a line, which the message names, is not a JSON object.

    Example:
        >>> import pathlib
        >>> _ = pathlib.Path("records.jsonl").write_text('{"text": "one"}\\n{"text": "two"}\\n')
        >>> headrace.stores.JsonlSamplesStore("records.jsonl")[1].parts
        {'json': b'{"text": "two"}'}
    """

    format = "jsonl samples"

    def __init__(self, path: str | os.PathLike[str], *, using: str | Reader = "mmap") -> None:
        self.path = os.fspath(path)
        self._reader = reader(reader_at(path, using))
        self._offsets = indexed_lines(self.path, self._reader)
        self._numbering = Numbering(np.array([len(self._offsets) - 1]))

    @property
    def shards(self) -> tuple[str, ...]:
        """One shard, the name of the file."""
        return (Path(self.path).name,)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The file, and its index if that lies beside it."""
        beside = index_place(self.path, self._reader)
        return (self._reader.path_at(self.path), *([beside] if beside.is_file() else []))

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of size, number of records, three entries of the index, and both ends of the file."""
        ends = hash_bytes(self._reader.ends(self.path, ENDS_BYTES))
        count = len(self._offsets) - 1
        facts = (self.format, self._reader.size(self.path), count, int(self._offsets[count // 2]), ends)
        return self._numbering.hashed(xxhash.xxh3_128_hexdigest(repr(facts).encode()))

    def read(self, indices: IntArray, parts: Collection[str] | None = None) -> list[RawSample]:
        """Return records by number, as `SampleStore.read` does, without blanks around them."""
        _, indices = self._located(indices)
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
                    f"{self.path}: sample {index}: by its index it is {record[:40]!r}, not a JSON object: the"
                    " index belongs to another file; make it again"
                )
            found.append(RawSample(str(index), shard, index, {PART: record}))
        return found

    def key(self, index: int) -> str:
        """Return the number of the record in the file as a string."""
        return str(self._locate(index)[1])

    def find(self, key: str) -> int:
        """Return the number of the sample whose key is the number of its record; KeyError if there is none."""
        count = len(self.whole)
        if key.isascii() and key.isdigit() and str(int(key)) == key and int(key) < count:
            return self._numbering.found(0, int(key), f"{self.path}: sample {key!r}")
        raise KeyError(f"{self.path}: no sample {key!r}; the keys of its {count:,} records are their numbers")

    def places(self, index: int) -> dict[str, PartPlace]:
        """Return where the record lies."""
        begins, sizes = self._ranges(np.array([self._locate(index)[1]]))
        data = self._reader.read_ranges(self.path, begins, sizes).tobytes()
        before = len(data) - len(data.lstrip())
        return {PART: PartPlace(self.path, int(begins[0]) + before, len(data.strip()))}

    def check(self) -> Iterator[Problem]:
        """Read every line, and check that the index belongs to this file and that every record is JSON."""
        try:
            found = scan_lines(self.path, self._reader.for_pass())
        except HeadraceError as error:
            yield Problem.of(self.path, error)
            return
        if not np.array_equal(found, self._offsets):
            yield Problem(path=self.path, place="", message="its index belongs to another file; make it again")
            return
        for index in range(len(self.whole)):
            record = self.whole.read(np.array([index]))[0].parts[PART]
            try:
                msgspec.json.decode(record, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                place = f"record {index}, byte {self._offsets[index]}"
                yield Problem(path=self.path, place=place, message=f"not a JSON object: {error}")

    def close(self) -> None:
        """Close the file. A later read opens it again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced_whole(path=self.path, using=self._reader)

    def _ranges(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return where records of the file begin, and their sizes."""
        begins, ends = self._offsets[numbers], self._offsets[numbers + 1]
        is_bad = (begins < 0) | (ends <= begins)
        if is_bad.any():
            at = int(np.argmax(is_bad))
            raise InputError(
                f"{self.path}: sample {numbers[at]}: goes from byte {begins[at]} to {ends[at]} in the index: the index"
                " belongs to another file; make it again"
            )
        return begins, ends - begins


def is_records_of_text(path: str, using: Reader) -> bool:
    """Return whether a ``.jsonl`` holds samples and not tokens, by its first line.

    A line of tokens is an object with a list of numbers for each key; AstrAI's oldest store has lists of such lists.
    """
    for _, _, line in read_lines(path, using):
        try:
            record = msgspec.json.decode(line.strip())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False  # neither of the two; opening it as tokens raises an error that says what is expected
        return isinstance(record, dict) and bool(record) and not all(_is_numbers(item) for item in record.values())
    return False


def _is_numbers(value: object) -> bool:
    """Return whether a value is a list of numbers or truth values, or of lists of them."""
    return isinstance(value, list) and all(
        isinstance(item, int | float) or (isinstance(item, list) and _is_numbers(item)) for item in value[:3]
    )
