"""The index of a JSON lines file: where its records begin, the lengths of their lists, and the dtype of each key.

The index of a large file is kept; see `headrace.stores.kept_arrays.kept_index`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.arguments import read_only
from headrace.stores.kept_arrays import Kept, kept_index
from headrace.stores.store import IntArray, TokenArray

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Numbers = list[_Int | float | bool]

_INTEGERS: Final = msgspec.json.Decoder(dict[str, list[_Int]])
_RECORD: Final = msgspec.json.Decoder(dict[str, Numbers])
_KINDS: Final = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}


def decode_record(data: bytes | memoryview) -> tuple[dict[str, Any], bool]:
    """Return the lists of one record by key, and whether all of them hold only integers.

    Raises:
        msgspec.DecodeError: the data are not a JSON object of lists of numbers, or an integer exceeds 64 bits.
    """
    try:
        return _INTEGERS.decode(data), True
    except msgspec.ValidationError:
        return _RECORD.decode(data), False


class Kinds:
    """Collects which kind of number each key holds: ``bool``, ``int`` or ``float``."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def add(self, key: str, values: list[Any], where: str, *, integers: bool = False) -> None:
        """Add the kinds of the values in a list; ``integers`` says that it is known to hold only integers.

        Raises:
            StoreError: a key holds both truth values and numbers.
        """
        for kind in {type(value).__name__ for value in (values[:1] if integers else values)}:
            before = self._seen.setdefault(key, kind)
            if before == kind:
                continue
            if "bool" in (before, kind):
                raise StoreError(
                    f"{where}: key {key!r} holds both truth values (true, false) and numbers; only one kind is allowed"
                )
            self._seen[key] = "float"

    def dtype(self, key: str) -> np.dtype[Any]:
        """Return bool, int64, or float64 if a fraction was seen; int64 also if all lists of the key were empty."""
        return _KINDS[self._seen.get(key, "int")]


def as_array(values: list[Any], dtype: np.dtype[Any]) -> TokenArray:
    """Return the list as a read-only array."""
    return read_only(np.array(values, dtype))


def json_can_be(has: np.dtype[Any], count: int, dtype: np.dtype[Any]) -> bool:
    """Return whether ``count`` JSON numbers of dtype ``has`` can be read as ``dtype``.

    Integers can be read as float64, and a key without numbers as any dtype.
    """
    return has == dtype or not count or (has == np.int64 and dtype == np.float64)


_VERSION: Final = 1
_FIRST_BYTES: Final = 4096
_CHUNK_BYTES: Final = 8 << 20


class LineIndex(msgspec.Struct, frozen=True):
    """The records of one file.

    Attributes:
        offsets: (n,) int64, the byte where each record begins.
        ends: (n,) int64, the byte where each record ends, without the line break.
        bounds: for each key (n + 1,) int64, prefix sums of the lengths of its lists.
        dtypes: the dtype of each key.
        xxh3_128: hash of the whole file.
    """

    offsets: IntArray
    ends: IntArray
    bounds: dict[str, IntArray]
    dtypes: dict[str, np.dtype[Any]]
    xxh3_128: str


class _Meta(msgspec.Struct, frozen=True):
    keys: tuple[str, ...]
    dtypes: tuple[str, ...]
    xxh3_128: str


def line_index(path: str, using: Reader) -> LineIndex:
    """Return the index of a file: a kept one, or a new one after a pass that takes about 10 ns a byte of integers.

    Raises:
        StoreError: there are no records, or a line is not a record; the message names the line and what was expected.
    """
    return _from_arrays(*kept_index(path, using, "jsonl", _VERSION, lambda: _as_arrays(make_index(path, using))))


def make_index(path: str, using: Reader) -> LineIndex:
    """Make the index by a pass over the file, without keeping it.

    Raises:
        StoreError: as in `line_index`.
    """
    offsets, ends = array("q"), array("q")
    lengths: dict[str, array[int]] = {}
    kinds = Kinds()
    hasher = xxhash.xxh3_128()
    for number, offset, line in read_lines(path, using.for_pass(), hasher):
        where = f"{path}: line {number}"
        try:
            record, integers = decode_record(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"{where}: not a record of tokens, which is a JSON object with a list of numbers for each key: {error};"
                " use headrace prepare to make tokens from text and messages"
            ) from error
        if not lengths:
            lengths = {key: array("q") for key in record}
        if record.keys() != lengths.keys() or not record:
            first = ", ".join(map(repr, lengths)) or "none"
            raise StoreError(
                f"{where}: has the keys {', '.join(map(repr, record)) or 'none'}, but the first record has {first}; all"
                " records must have the same keys, at least one"
            )
        for key, values in record.items():
            kinds.add(key, values, where, integers=integers)
            lengths[key].append(len(values))
        offsets.append(offset)
        ends.append(offset + len(line))
    if not lengths:
        raise StoreError(
            f"{path}: holds no record; expected one JSON object a line, with a list of numbers for each key"
        )
    bounds = {key: np.concatenate(([0], np.cumsum(_ints(counts)))).astype(np.int64) for key, counts in lengths.items()}
    return LineIndex(
        _ints(offsets), _ints(ends), bounds, {key: kinds.dtype(key) for key in lengths}, hasher.hexdigest()
    )


def read_lines(path: str, using: Reader, hasher: xxhash.xxh3_128 | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Yield number (from 1), first byte and bytes of each line that is not blank, and hash all bytes.

    Little is read for the first line, since some callers want only that.
    """
    size = using.size(path)
    number, offset, rest = 0, 0, b""
    begin, length = 0, min(_FIRST_BYTES, _CHUNK_BYTES)
    while begin < size:
        data = using.read(path, begin, min(length, size - begin)).tobytes()
        begin, length = begin + len(data), min(2 * length, _CHUNK_BYTES)
        if hasher is not None:
            hasher.update(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, offset, line
            offset += len(line) + 1
    if rest.strip():
        yield number + 1, offset, rest


def _ints(values: array[int]) -> IntArray:
    return np.array(values, np.int64)


def _as_arrays(index: LineIndex) -> Kept:
    bounds = {f"bounds_{number}": array for number, array in enumerate(index.bounds.values())}
    meta = _Meta(tuple(index.bounds), tuple(index.dtypes[key].name for key in index.bounds), index.xxh3_128)
    return {"offsets": index.offsets, "ends": index.ends, **bounds}, msgspec.json.encode(meta)


def _from_arrays(arrays: Mapping[str, IntArray], data: bytes) -> LineIndex:
    meta = msgspec.json.decode(data, type=_Meta)
    bounds = {key: arrays[f"bounds_{number}"] for number, key in enumerate(meta.keys)}
    dtypes = {key: np.dtype(name) for key, name in zip(meta.keys, meta.dtypes, strict=True)}
    return LineIndex(arrays["offsets"], arrays["ends"], bounds, dtypes, meta.xxh3_128)
