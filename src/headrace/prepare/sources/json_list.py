"""A ``.json`` that holds one array of records, as many instruction sets are published."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from headrace.errors import InputError
from headrace.prepare.sources.block import BadRecord, Block, RecordSpec, bad_block
from headrace.prepare.sources.lines import BOM
from headrace.prepare.sources.records import DECODE_ERRORS, BadRecordError, RecordReader, excerpt, too_long
from headrace.prepare.sources.source_file import SourceFile
from headrace.prepare.sources.span_reader import SpanReader

_HEAD_BYTES = 4096


def is_list(path: str) -> bool:
    """Whether the first character of a file, white space aside, begins an array.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(_HEAD_BYTES).removeprefix(BOM).lstrip().startswith(b"[")
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read: {error.strerror or error}") from error


class ListReader(SpanReader):
    """All records of the array. Memory: the whole file, and what its records take as slices of it."""

    def __init__(self, file: SourceFile, spec: RecordSpec, *, block_bytes: int, max_record_bytes: int) -> None:
        super().__init__(file)
        self._spec = spec
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes

    def blocks(self) -> Iterator[Block]:
        """See `SpanReader.blocks`. An array that is malformed anywhere is one bad record: nothing of it is sure."""
        self._check_unchanged()
        try:
            data = Path(self._file.path).read_bytes()
            self._file.check_unchanged(os.stat(self._file.path))  # noqa: PTH116
        except OSError as error:
            raise InputError(f"{self._file.name}: the file cannot be read: {error.strerror or error}") from error
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
        self.end = self._file.extent

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
            yield self._block(reader, entries[first:last], first)
            first = last

    def _block(self, reader: RecordReader, entries: list[msgspec.Raw], first: int) -> Block:
        records: list[object] = []
        good: list[int] = []
        bad: list[BadRecord] = []
        for number, entry in enumerate(entries, first):
            line = bytes(entry)
            try:
                if len(line) > self._max_record_bytes:
                    raise BadRecordError(too_long(line, len(line), self._max_record_bytes, "record"))
                try:
                    records.append(reader.decode_strictly(line))
                except DECODE_ERRORS:
                    records.append(reader.decode_slowly(line))
                good.append(number)
            except BadRecordError as error:
                bad.append(BadRecord(number, number, str(error)))
        return Block(
            texts=reader.texts(records),
            lines=np.array(good, np.int64),
            places=np.array(good, np.int64),
            num_lines=len(entries),
            num_blank=0,
            blank_lines=np.zeros(0, np.int64),
            bad=bad,
            input_bytes=0,
            ids=reader.ids(records),
            records=reader.wholes(records),
        )
