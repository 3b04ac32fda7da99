"""One task: the lines of its spans -> documents -> token ids in a part."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tokenizers import Encoding, Tokenizer

from headrace.errors import InputError
from headrace.prepare.inputs import SourceFile
from headrace.prepare.lines import BLOCK_BYTES, MAX_LINE_BYTES, NEWLINE, LongLineError, read_blocks
from headrace.prepare.messages import Progress, Setup, SpanResult, TextDone, TextTask
from headrace.prepare.part import PartWriter, part_path
from headrace.prepare.records import BadRecordError, RecordReader, bad_utf8
from headrace.prepare.tasks import Span

BOM = b"\xef\xbb\xbf"


class BadLineError(InputError):
    """A line that cannot be used: the input file's number, and the line counted from 1 in its span."""

    def __init__(self, message: str, file: int, line: int) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class TextEncoder:
    """Reads, parses and tokenises the spans of tasks, a block of whole lines at a time.

    Memory: one block (1 MiB, or the longest line), its texts and its encodings, about 350 bytes a token.
    """

    def __init__(self, setup: Setup, encoder: Tokenizer, report: Callable[[Progress], None]) -> None:
        self._setup = setup
        self._encoder = encoder
        self._report = report
        self._records = RecordReader(setup.text_field)
        self._dtype: np.dtype[Any] = np.dtype(setup.dtype)

    def run(self, order: TextTask) -> TextDone:
        """Write the part of one task and return its counts.

        Raises:
            BadLineError: a line that cannot be used.
            InputError: a file that cannot be read or has changed.
            OutputError: the part cannot be written.
        """
        task = order.task
        counts = _Counts()
        spans = []
        with PartWriter(part_path(self._setup.parts, task.number), self._dtype) as part:
            for span, file in zip(task.spans, order.files, strict=True):
                spans.append(self._encode_span(span, file, part, counts, task.number))
            part.finish()
        return TextDone(
            number=task.number,
            spans=tuple(spans),
            num_documents=counts.documents,
            num_empty=counts.empty,
            num_text_tokens=counts.text_tokens,
            num_eod_tokens=counts.eod_tokens,
        )

    def _encode_span(self, span: Span, file: SourceFile, part: PartWriter, counts: _Counts, task: int) -> SpanResult:
        is_whole = span.begin == 0 and span.end == file.size_bytes
        hasher = xxhash.xxh3_128() if is_whole else None
        begin = end = None
        lines = blank = documents = text_bytes = 0
        try:
            with Path(file.path).open("rb", buffering=0) as source:
                file.check_unchanged(os.fstat(source.fileno()))
                blocks = read_blocks(
                    source, span.begin, span.end, block_bytes=BLOCK_BYTES, max_line_bytes=MAX_LINE_BYTES
                )
                for offset, data in blocks:
                    if hasher is not None:
                        hasher.update(data)
                    texts, num_lines, places = self._parse(data, offset == 0, span.file, lines)
                    self._encode(texts, places, part, counts, span.file, lines)
                    begin = offset if begin is None else begin
                    end = offset + len(data)
                    lines += num_lines
                    blank += num_lines - len(texts)
                    documents += len(texts)
                    text_bytes += sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
                    counts.input_bytes += len(data)
                    self._report(
                        Progress(task, counts.input_bytes, counts.documents, counts.text_tokens + counts.eod_tokens)
                    )
                file.check_unchanged(os.fstat(source.fileno()))
        except OSError as error:
            raise InputError(f"{file.name}: the file cannot be read: {error.strerror or error}") from error
        except LongLineError as error:
            raise BadLineError(f"{error}; is this JSON Lines, one object a line?", span.file, lines + 1) from None
        return SpanResult(
            file=span.file,
            begin=begin or 0,
            end=end or 0,
            lines=lines,
            blank_lines=blank,
            documents=documents,
            text_bytes=text_bytes,
            xxh3_128=hasher.hexdigest() if hasher is not None else "",
        )

    def _parse(self, data: bytes, is_first: bool, file: int, lines_before: int) -> tuple[list[str], int, list[int]]:
        """The texts of a block, its number of lines, and the line of each text, counted from 0 in the block."""
        num_lines = data.count(NEWLINE) + (not data.endswith(NEWLINE))
        if is_first and data.startswith(BOM):
            data = data[len(BOM) :]
        texts: list[str] = []
        places: list[int] = []
        # The decoder passes over fields it skips without a look at their UTF-8: look here, for the whole block at once.
        is_utf8 = data.isascii() or _is_utf8(data)
        line_number = 0
        try:
            for line_number, line in enumerate(data.split(NEWLINE)):
                if not line or line.isspace():
                    continue
                if not is_utf8:
                    _check_utf8(line)
                texts.append(self._records.read(line))
                places.append(line_number)
        except BadRecordError as error:
            raise BadLineError(str(error), file, lines_before + line_number + 1) from None
        return texts, num_lines, places

    def _encode(
        self, texts: list[str], places: list[int], part: PartWriter, counts: _Counts, file: int, lines_before: int
    ) -> None:
        if not texts:
            return
        try:
            encodings = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        except Exception:  # the library raises bare Exception; which text it was shows one by one
            encodings = self._encode_singly(texts, places, file, lines_before)
        rows = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        num_text_tokens = int(lengths.sum())
        num_full = int(np.count_nonzero(lengths))
        if self._setup.eod is not None:
            for row in rows:
                if row:
                    row.append(self._setup.eod)
            lengths += lengths > 0
            counts.eod_tokens += num_full
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self._setup.vocab_size:
            raise InputError(
                f"the tokeniser made id {int(ids.max()):,}, its vocabulary has {self._setup.vocab_size:,} tokens: "
                "this tokenizer.json contradicts itself"
            )
        part.add(ids, lengths)
        counts.documents += len(rows)
        counts.empty += len(rows) - num_full
        counts.text_tokens += num_text_tokens

    def _encode_singly(self, texts: list[str], places: list[int], file: int, lines_before: int) -> list[Encoding]:
        encodings = []
        for text, place in zip(texts, places, strict=True):
            try:
                encodings.extend(self._encoder.encode_batch_fast([text], add_special_tokens=False))
            except Exception as error:
                raise BadLineError(
                    f"the tokeniser refuses the text: {error}; found {text[:60]!r}", file, lines_before + place + 1
                ) from error
        return encodings


class _Counts:
    """Sums over the blocks of a task."""

    def __init__(self) -> None:
        self.input_bytes = 0
        self.documents = 0
        self.empty = 0
        self.text_tokens = 0
        self.eod_tokens = 0


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _check_utf8(line: bytes) -> None:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(bad_utf8(line, error)) from None
