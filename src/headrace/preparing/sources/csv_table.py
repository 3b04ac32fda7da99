"""Reads CSV and TSV files whose first line names the columns, for runs that read whole records."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, bad_block
from headrace.preparing.sources.compressed import HashedFile
from headrace.preparing.sources.lines import BOM
from headrace.preparing.sources.source_file import SourceFile, SpanReader

DELIMITERS = {"csv": ",", "tsv": "\t"}


class CsvReader(SpanReader):
    """Reads all records of a file. The file is not cut into spans, since a quoted field may hold line ends.

    A *line* of its blocks is a record after the line of names, counted from 0; a record may take several lines of the
    file. Every value is a string. Memory: a block, or the longest record.
    """

    def __init__(self, file: SourceFile, spec: RecordSpec, *, block_bytes: int, max_record_bytes: int) -> None:
        super().__init__(file)
        self._spec = spec
        self._block_bytes = block_bytes
        self._max_record_bytes = max_record_bytes

    def blocks(self) -> Iterator[Block]:
        """Yield all records. Wrong quotes end the file, since it is not known where the next record begins.

        Raises:
            InputError: the file cannot be read or has changed; a column has no name, or two have the same name.
        """
        file = self._file
        before = csv.field_size_limit(self._max_record_bytes)
        try:
            with Path(file.path).open("rb", buffering=0) as raw:
                file.check_unchanged(os.fstat(raw.fileno()))
                hashed = HashedFile(raw)
                yield from self._read(hashed)
                self.xxh3_128 = hashed.finish()
                file.check_unchanged(os.fstat(raw.fileno()))
        except OSError as error:
            raise InputError(f"{file.name}: the file cannot be read: {error.strerror or error}") from error
        finally:
            csv.field_size_limit(before)
        self.begin, self.end = 0, file.extent

    def _read(self, hashed: HashedFile) -> Iterator[Block]:
        rows = csv.reader(_text_lines(hashed), delimiter=DELIMITERS[self._file.format], strict=True)
        names = self._names(rows)
        counted = line = 0
        block, num_bytes, good = bad_block(self._spec, []), 0, list[int]()
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                message = (
                    f"{error}: nothing behind it can be read; is this {self._file.format.upper()}, quoted by its rules?"
                )
                block.bad.append(BadRecord(line, line, message, fatal=True))
                row, line = None, line + 1
            else:
                if row is not None:
                    num_bytes += self._add(block, good, names, row, line)
                    line += 1
            if num_bytes >= self._block_bytes or (row is None and line > 0):
                block.num_lines = len(good) + len(block.bad) + block.num_blank
                block.lines = block.places = np.array(good, np.int64)
                block.input_bytes, counted = hashed.position - counted, hashed.position
                if block.num_lines:
                    yield block
                block, num_bytes, good = bad_block(self._spec, []), 0, []
            if row is None:
                return

    def _names(self, rows: Iterator[list[str]]) -> list[str]:
        try:
            names = next(rows, [])
        except csv.Error as error:
            raise InputError(f"{self._file.name}: its first line cannot be read: {error}") from error
        if not names or not all(names):
            raise InputError(f"{self._file.name}: its first line must name the columns; found {names!r:.200}")
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{self._file.name}: two columns are called {repeated!r}: rename one")
        return names

    @staticmethod
    def _add(block: Block, good: list[int], names: list[str], row: list[str], line: int) -> int:
        """Add a row to the records, blank lines or bad records of the block. Returns roughly its bytes."""
        if not row:
            block.num_blank += 1
            block.blank_lines = np.append(block.blank_lines, line)
            return 1
        if len(row) != len(names):
            block.bad.append(BadRecord(line, line, f"{len(row)} values, and the first line names {len(names)} columns"))
            return len(row)
        size = sum(map(len, row))
        try:
            "".join(row).encode()
        except UnicodeEncodeError:
            block.bad.append(BadRecord(line, line, "not UTF-8"))
            return size
        records: list[Any] = block.records if block.records is not None else []
        records.append(dict(zip(names, row, strict=True)))
        good.append(line)
        return size + len(row)


def _text_lines(file: Any) -> Iterator[str]:
    """Lines with their ends. Bytes that are not UTF-8 become surrogates, so that the record is found to be bad."""
    is_first = True
    buffered = io.BufferedReader(_Raw(file), 1 << 18)
    for data in buffered:
        if is_first:
            data = data.removeprefix(BOM)
            is_first = False
        yield data.decode("utf-8", "surrogateescape")


class _Raw(io.RawIOBase):
    """A raw stream over an object that has only ``read``."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
