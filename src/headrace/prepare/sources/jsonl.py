"""Blocks of JSON lines -> blocks of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from headrace.prepare.sources.block import BadRecord, Block, RecordSpec, bad_block
from headrace.prepare.sources.lines import Lines, split_lines
from headrace.prepare.sources.records import DECODE_ERRORS, BadRecordError, RecordReader, too_long


class JsonlParser:
    """Parses the lines of one span, block by block, at about the speed of the decoder alone."""

    def __init__(self, spec: RecordSpec, max_line_bytes: int) -> None:
        self._spec = spec
        self._reader = RecordReader(spec)
        self._max_line_bytes = max_line_bytes

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """One block of records for each block of lines."""
        line = 0
        for lines in blocks:
            block = self._refuse(lines, line) if lines.is_too_long else self._parse(lines, line)
            line += block.num_lines
            yield block

    def _parse(self, lines: Lines, first_line: int) -> Block:
        split, begins = split_lines(lines)
        reader = self._reader
        decode = reader.decode
        # The decoder passes over the fields that it skips without a look at their UTF-8; whole records skip none.
        if not self._spec.whole and not all(line.isascii() or _is_utf8(line) for line in split):
            decode = reader.decode_strictly
        records: list[object] = []
        blank: list[int] = []
        bad: list[BadRecord] = []
        iterator = iter(split)
        while len(records) + len(blank) + len(bad) < len(split):
            try:
                # Runs in C until a line is refused; the list keeps what it took before.
                records.extend(map(decode, iterator))
            except DECODE_ERRORS:
                number = len(records) + len(blank) + len(bad)
                line = split[number]
                if not line or line.isspace():
                    blank.append(number)
                    continue
                try:
                    records.append(reader.decode_slowly(line))
                except BadRecordError as error:
                    bad.append(BadRecord(number + first_line, int(begins[number]), str(error)))
        good = np.ones(len(split), np.bool_)
        good[blank] = False
        good[[record.line - first_line for record in bad]] = False
        return Block(
            texts=reader.texts(records),
            lines=np.flatnonzero(good) + first_line,
            places=begins[good],
            num_lines=len(split),
            num_blank=len(blank),
            blank_lines=np.array(blank, np.int64) + first_line,
            bad=bad,
            input_bytes=0,
            ids=reader.ids(records),
            records=reader.wholes(records),
        )

    def _refuse(self, lines: Lines, line: int) -> Block:
        message = too_long(lines.data, lines.size, self._max_line_bytes, "line")
        return bad_block(
            self._spec, [BadRecord(line, lines.offset, f"{message}; is this JSON Lines, one object a line?")]
        )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
