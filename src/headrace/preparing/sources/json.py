"""Reads records from JSON Lines, and from a ``.json`` file that holds one array of records.

Many instruction sets are published as such an array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, BinaryIO

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.config import describe, nearest
from headrace.preparing.sources.block import (
    BadRecord,
    Block,
    RecordSpec,
    SpanReader,
    bad_block,
    bad_utf8,
    excerpt,
    too_long,
)
from headrace.preparing.sources.streams import BOM, Lines, split_lines

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `RecordReader.decode` raises for a line that must be passed to `RecordReader.decode_slowly`."""


class BadRecordError(Exception):
    """A line does not hold a valid record; the message says what was found and what to do."""


class RecordReader:
    """Reads the fields of a `RecordSpec` from lines; every other field is checked to be JSON and skipped.

    The typed decoder builds no objects for the fields that it skips (about 1.2 GB/s). Lines that it refuses are decoded
    by Python's own ``json``, which has better messages, and accepts the ``NaN`` and ``Infinity`` that it also writes.

    A decoded record is opaque: pass lists of them to `texts`, `ids` and `wholes`.
    """

    def __init__(self, spec: RecordSpec) -> None:
        self.spec = spec
        self._named = spec.named
        attributes = {field: f"field_{number}" for number, field in enumerate(self._named)}
        types = [(attribute, str if field in spec.fields else str | int) for field, attribute in attributes.items()]
        rename = {attribute: field for field, attribute in attributes.items()}
        self._record: Callable[..., Any] = msgspec.defstruct("Record", types, rename=rename, gc=False)
        self._getters: dict[str, Callable[[Any], Any]] = {
            field: itemgetter(field) if spec.whole else attrgetter(attribute) for field, attribute in attributes.items()
        }
        self.decode: Callable[[bytes], Any]
        """Decode a line, fast. It raises one of `DECODE_ERRORS` for every bad line, and for some good ones."""
        self.decode = self._decode_whole if spec.whole else msgspec.json.Decoder(self._record).decode

    def decode_slowly(self, line: bytes) -> Any:
        """Decode a line that `decode` refuses.

        Raises:
            BadRecordError: the line is not UTF-8, not JSON or not an object, or a field is missing or of another type.
        """
        value = _load(line)
        if not isinstance(value, dict):
            raise BadRecordError(f"not a JSON object but {describe(value)}; found {excerpt(line)}")
        self._check(value, line)
        for field in self._named:
            if isinstance(value[field], str):
                _check_surrogates(field, value[field])
        return value if self.spec.whole else self._record(*(value[field] for field in self._named))

    def decode_strictly(self, line: bytes) -> Any:
        """Decode a line as `decode` does, and also check that the skipped fields are UTF-8."""
        line.decode("utf-8")
        return self.decode(line)

    def texts(self, records: list[Any]) -> list[list[str]]:
        """The texts of the records, for each field of the `RecordSpec`."""
        return [list(map(self._getters[field], records)) for field in self.spec.fields]

    def ids(self, records: list[Any]) -> list[str] | None:
        """The ids of the records, integers in decimal, or None if the spec names no id field."""
        field = self.spec.id_field
        return None if field is None else list(map(str, map(self._getters[field], records)))

    def wholes(self, records: list[Any]) -> list[Any] | None:
        """The whole records, or None if the spec does not ask for them."""
        return records if self.spec.whole else None

    def _decode_whole(self, line: bytes) -> Any:
        value = msgspec.json.decode(line)
        try:
            self._check(value, line)
        except (BadRecordError, TypeError) as error:
            raise msgspec.DecodeError(str(error)) from None
        return value

    def _check(self, value: dict[str, Any], line: bytes) -> None:
        """Raise BadRecordError unless the fields that are read are there, and are texts, or an id."""
        for field in self._named:
            if field not in value:
                names = ", ".join(repr(name) for name in list(value)[:8]) or "none"
                near = nearest(field, value)
                raise BadRecordError(f"no field {field!r}{near}; its fields are: {names} ({self.spec.option(field)})")
            found = value[field]
            if field in self.spec.fields and not isinstance(found, str):
                raise BadRecordError(f"field {field!r} is not a string but {describe(found)}; found {excerpt(line)}")
            if not isinstance(found, str | int) or isinstance(found, bool):
                raise BadRecordError(
                    f"id field {field!r} is neither a string nor an integer but {describe(found)}; "
                    f"found {excerpt(line)}"
                )


def _load(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecordError(bad_utf8(line, error, "line")) from None
    except RecursionError:
        raise BadRecordError(f"JSON nested too deeply; found {excerpt(line)}") from None
    except ValueError as error:
        raise BadRecordError(f"malformed JSON: {error}; found {excerpt(line)}") from None


def _check_surrogates(field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = ord(text[error.start])
        raise BadRecordError(
            f"field {field!r} is not Unicode text: unpaired surrogate \\u{surrogate:04x} at character {error.start:,}"
        ) from None


def parse_lines(reader: RecordReader, lines: list[bytes], places: NDArray[np.int64], first_line: int) -> Block:
    """Parse lines into a block.

    Args:
        reader: what reads a record.
        lines: the lines, without their ends.
        places: (lines,) the place of each, see `Block.places`.
        first_line: the number of the first.
    """
    decode = reader.decode
    # The decoder does not check the UTF-8 of the fields that it skips. Whole records skip no fields.
    if not reader.spec.whole and not all(line.isascii() or _is_utf8(line) for line in lines):
        decode = reader.decode_strictly
    records: list[object] = []
    blank: list[int] = []
    bad: list[BadRecord] = []
    iterator = iter(lines)
    while len(records) + len(blank) + len(bad) < len(lines):
        try:
            # This runs in C until a line is refused; the list keeps the records before that line.
            records.extend(map(decode, iterator))
        except DECODE_ERRORS:
            number = len(records) + len(blank) + len(bad)
            line = lines[number]
            if not line or line.isspace():
                blank.append(number)
                continue
            try:
                records.append(reader.decode_slowly(line))
            except BadRecordError as error:
                bad.append(BadRecord(number + first_line, int(places[number]), str(error)))
    good = np.ones(len(lines), np.bool_)
    good[blank] = False
    good[[record.line - first_line for record in bad]] = False
    return Block(
        texts=reader.texts(records),
        lines=np.flatnonzero(good) + first_line,
        places=places[good],
        bad=bad,
        blank_lines=np.array(blank, np.int64) + first_line,
        ids=reader.ids(records),
        records=reader.wholes(records),
    )


def parse_jsonl(blocks: Iterable[Lines], spec: RecordSpec) -> Iterator[Block]:
    """Yield one block of records for each block of lines, at about the speed of the decoder alone."""
    reader, line = RecordReader(spec), 0
    for lines in blocks:
        if lines.is_too_long:
            message = too_long(lines.data, lines.size, spec.max_record_bytes, "line")
            bad = BadRecord(line, lines.offset, f"{message}; is this JSON Lines, one object a line?")
            block = bad_block(spec, [bad])
        else:
            block = parse_lines(reader, *split_lines(lines), line)
        line += block.num_lines
        yield block


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class ListReader(SpanReader):
    """Reads all records of the array. Memory: the whole file, and an object for each record."""

    def _blocks(self, raw: BinaryIO) -> Iterator[Block]:
        """Yield all records. An array that is malformed anywhere is one bad record, as nothing of it is reliable."""
        data = raw.read()
        self.xxh3_128 = xxhash.xxh3_128_hexdigest(data)
        try:
            entries = msgspec.json.decode(data.removeprefix(BOM), type=list[msgspec.Raw])
        except DECODE_ERRORS as error:
            message = f"not one array of records: {error}; found {excerpt(data)}"
            block = bad_block(self._spec, [BadRecord(0, 0, message, fatal=True)])
            block.input_bytes = self._file.size_bytes
            yield block
        else:
            yield from self._with_input_bytes(self._cut(entries), 0, len(entries))

    def _cut(self, entries: list[msgspec.Raw]) -> Iterator[Block]:
        reader = RecordReader(self._spec)
        first = 0
        while first < len(entries):
            last, size = first, 0
            while last < len(entries) and (
                last == first or size + memoryview(entries[last]).nbytes <= self._block_bytes
            ):
                size += memoryview(entries[last]).nbytes
                last += 1
            lines = [bytes(entry) for entry in entries[first:last]]
            if len(lines[0]) > self._spec.max_record_bytes:  # it is alone, as it is longer than a block
                message = too_long(lines[0], len(lines[0]), self._spec.max_record_bytes, "record")
                yield bad_block(self._spec, [BadRecord(first, first, message)])
            else:
                yield parse_lines(reader, lines, np.arange(first, last), first)
            first = last
