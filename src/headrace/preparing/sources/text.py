"""Parses plain text into blocks of records. A record is a file, a paragraph or a line.

In all three cases the byte order mark of the file is left out, ``\\r\\n`` becomes ``\\n`` as in Python's own text files
(a ``\\r`` elsewhere stays), and a text of white space only is blank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from headrace.preparing.sources.block import BadRecord, Block, RecordSpec, SampleBy
from headrace.preparing.sources.json import bad_utf8, too_long
from headrace.preparing.sources.lines import BOM, HEAD_OF_LINE_BYTES, Lines, split_lines

FIELD = "text"
"""The name of a text's only field, if the spec names none."""

TextParser = Callable[[Iterable[Lines]], Iterator[Block]]


def text_parser(spec: RecordSpec, max_record_bytes: int) -> TextParser:
    """The function that parses the lines of a file into blocks of records. If records are lines, a span is enough."""
    kinds: dict[SampleBy, type[_Parser]] = {
        "line": _LineParser,
        "paragraph": _ParagraphParser,
        "document": _DocumentParser,
    }
    return kinds[spec.sample_by](spec, max_record_bytes).parse


class _Parser(ABC):
    """Collects the records of a block. Subclasses find where a record begins and ends."""

    noun = ""

    @abstractmethod
    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield the records of these lines in blocks."""

    def __init__(self, spec: RecordSpec, max_record_bytes: int) -> None:
        self._spec = spec
        self._max_record_bytes = max_record_bytes
        self._field = spec.fields[0] if spec.fields else FIELD
        self._next_line = 0
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._good: list[int] = []
        self._places: list[int] = []
        self._blank: list[int] = []
        self._bad: list[BadRecord] = []

    def _add(self, data: bytes, place: int) -> None:
        """Add the next record, which may turn out blank or bad."""
        line = self._next_line
        self._next_line += 1
        if not data or data.isspace():
            self._blank.append(line)
            return
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            self._bad.append(BadRecord(line, place, bad_utf8(data, error, self.noun)))
            return
        self._texts.append(text)
        self._good.append(line)
        self._places.append(place)

    def _refuse(self, head: bytes, size: int, place: int) -> None:
        """Add the next record as a bad one, because it is too long."""
        message = too_long(head, size, self._max_record_bytes, self.noun)
        self._bad.append(BadRecord(self._next_line, place, message))
        self._next_line += 1

    def _block(self) -> Block:
        """The records that were collected since the last block."""
        block = Block(
            texts=[self._texts for _ in self._spec.fields],
            lines=np.array(self._good, np.int64),
            places=np.array(self._places, np.int64),
            num_lines=len(self._good) + len(self._blank) + len(self._bad),
            num_blank=len(self._blank),
            blank_lines=np.array(self._blank, np.int64),
            bad=self._bad,
            input_bytes=0,
            records=[{self._field: text} for text in self._texts] if self._spec.whole else None,
        )
        self._clear()
        return block


class _LineParser(_Parser):
    noun = "line"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield one block of records for each block of lines."""
        for lines in blocks:
            if lines.is_too_long:
                self._refuse(lines.data, lines.size, lines.offset)
            else:
                for line, place in _split(lines):
                    self._add(line, place)
            yield self._block()


class _ParagraphParser(_Parser):
    """Parses paragraphs, which blank lines separate. Blank lines belong to no paragraph, and are not counted."""

    noun = "paragraph"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield about one block of records for each block of lines."""
        self._open: list[bytes] = []
        self._begin = 0
        self._size = 0
        for lines in blocks:
            if lines.is_too_long:
                self._continue(lines.data, lines.size, lines.offset)
                continue
            for line, place in _split(lines):
                if not line or line.isspace():
                    self._close()
                else:
                    self._continue(line, len(line) + 1, place)
            if self._good or self._bad:
                yield self._block()
        self._close()
        if self._good or self._bad:
            yield self._block()

    def _continue(self, line: bytes, size: int, place: int) -> None:
        if not self._size:
            self._begin = place
        self._size += size
        # Above the limit only the beginning is kept, for the message. A line that was cut is above the limit by itself.
        if self._size <= self._max_record_bytes or not self._open:
            self._open.append(line)

    def _close(self) -> None:
        if not self._size:
            return
        data = b"\n".join(self._open)
        if self._size > self._max_record_bytes:
            self._refuse(data[:HEAD_OF_LINE_BYTES], self._size, self._begin)
        else:
            self._add(data, self._begin)
        self._open.clear()
        self._size = 0


class _DocumentParser(_Parser):
    noun = "document"

    def parse(self, blocks: Iterable[Lines]) -> Iterator[Block]:
        """Yield one block with one record, or nothing for an empty file."""
        pieces: list[bytes] = []
        size = 0
        for lines in blocks:
            size += lines.size
            if size <= self._max_record_bytes or not pieces:
                pieces.append(lines.data)
        if not size:
            return
        if size > self._max_record_bytes:
            self._refuse(pieces[0][:HEAD_OF_LINE_BYTES], size, 0)
        else:
            self._add(b"".join(pieces).removeprefix(BOM).replace(b"\r\n", b"\n"), 0)
        yield self._block()


def _split(lines: Lines) -> Iterator[tuple[bytes, int]]:
    """Each line without its ``\\n`` or ``\\r\\n``, and the byte where it begins."""
    split, begins = split_lines(lines)
    if b"\r\n" in lines.data:  # then every line has a newline, see `Lines`
        split = [line.removesuffix(b"\r") for line in split]
    return zip(split, begins.tolist(), strict=True)
