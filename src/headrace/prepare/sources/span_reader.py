"""The one face of all readers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator

from headrace.errors import InputError
from headrace.prepare.sources.block import Block
from headrace.prepare.sources.source_file import SourceFile


class SpanReader(ABC):
    """Reads one span of one file, once."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.begin = 0
        """What was really covered, in the unit of the file's extent; known when `blocks` is exhausted. It joins
        without a gap with the spans before and after. Both are 0 where the span owns nothing."""
        self.end = 0
        self.xxh3_128 = ""
        """Hash of the file, known when `blocks` is exhausted, if `is_hashed_while_read`; else empty."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All records of the span, in order. The blocks depend on file and span alone, and are never empty.

        A record that cannot be used is in `Block.bad`. After a fatal one nothing follows, and the rest of the file
        counts as covered.

        Raises:
            InputError: the file cannot be read, or has changed since the run began.
        """

    def _check_unchanged(self) -> None:
        try:
            self._file.check_unchanged(os.stat(self._file.path))  # noqa: PTH116
        except OSError as error:
            raise InputError(f"{self._file.name}: the file cannot be read: {error.strerror or error}") from error

    def _with_input_bytes(self, blocks: Iterator[Block], first_row: int, num_rows: int) -> Iterator[Block]:
        """Deal the bytes of a file to its rows evenly; over all spans the sum is exact."""
        row = first_row
        for block in blocks:
            end = row + block.num_lines
            size = self._file.size_bytes
            block.input_bytes = size * end // num_rows - size * row // num_rows
            row = end
            yield block
