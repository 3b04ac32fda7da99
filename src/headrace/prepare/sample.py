"""Reads and encodes places of the inputs, and keeps the sums that `estimate` scales up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headrace.plan.keys import source_key
from headrace.prepare.backends import ProvedEncoder
from headrace.prepare.places import FloatArray, Place, choose_places
from headrace.prepare.run_plan import RunPlan
from headrace.prepare.sources import Block, open_span
from headrace.prepare.sources.reader import LineSpanReader
from headrace.prepare.worker import load_encoder

NUM_PLACES = 64
PLACE_BYTES = 128 << 10
STRIDE = 8
"""Of what must be read from its beginning every eighth block is encoded: reading is cheap beside that."""

WARM_UP_CHARACTERS = 64 << 10


class Row(NamedTuple):
    """Sums over a block, weighted by what it stands for."""

    size: float
    tokens: float
    documents: float
    cpu_s: float
    value_bytes: float
    """Of all that is stored of the documents, without indices."""


class Sample:
    """A sample of the inputs of a run, encoded in this process by one library.

    Raises:
        MismatchError: the library is not equal to the truth.
        InputError: a file cannot be read.
    """

    def __init__(self, plan: RunPlan, backend: str) -> None:
        self.num_bytes = 0
        """Bytes of the input files that it came from."""
        self.num_records = 0
        self.num_characters = 0
        self.num_documents = 0
        self.num_bad = 0
        self.first_error = ""
        self.dropped: Counter[str] = Counter()
        self.truth_s = 0.0
        """CPU seconds a character of the library ``tokenizers``."""
        self._plan = plan
        self._rows: list[Row] = []
        special = plan.options.tokens.special_tokens_in_text
        self._proved = ProvedEncoder(backend, plan.tokenizer.json, special)
        setup = plan.setup(parts="", buckets="", tokenizer="", backend=backend)
        self._encoder = load_encoder(setup, plan.tokenizer.json, self._proved)
        key = source_key(0, plan.tokenizer.fingerprint, "prepare estimate")
        chosen = choose_places(plan.files, key=key, num_points=NUM_PLACES, place_bytes=PLACE_BYTES)
        self.is_whole = chosen.is_whole
        for place in chosen.places:
            self._read(place)

    @property
    def columns(self) -> tuple[FloatArray, ...]:
        """The columns of all rows, (n,) each: sizes, tokens, documents, CPU seconds, bytes."""
        return tuple(np.array(self._rows, np.float64).reshape(-1, len(Row._fields)).T)

    def _read(self, place: Place) -> None:
        plan, number = self._plan, place.span.file
        reader = open_span(
            plan.files[number],
            place.span,
            plan.record_spec(plan.options),
            block_bytes=PLACE_BYTES,
            max_record_bytes=plan.options.records.max_record_bytes,
        )
        pieces = _timed(reader.blocks())
        if place.num_blocks is None:
            rows = [self._encode(block, number, block.input_bytes, read_s) for block, read_s in pieces]
            self.num_bytes += int(sum(row.size for row in rows))
            # It may own more or fewer bytes of lines than it has: what lies in long lines counts where these begin.
            self._add(rows, place.weight / place.span_bytes)
            return
        rows, read_size, read_bytes = self._read_beginning(pieces, number, place.num_blocks)
        if isinstance(reader, LineSpanReader) and reader.compressed_bytes:
            read_bytes = reader.compressed_bytes
        if rows and read_bytes:
            size = sum(row.size for row in rows)
            self.num_bytes += round(read_bytes * size / read_size)
            # What was encoded stands for what was read, and that for the whole place: bytes a character, by all of it.
            rows = [row._replace(size=row.size * read_bytes / read_size) for row in rows]
            self._add(rows, place.weight / (read_bytes * size / read_size))

    def _read_beginning(
        self, pieces: Iterator[tuple[Block, float]], number: int, num_blocks: int
    ) -> tuple[list[Row], float, int]:
        """Every `STRIDE`-th block as a row, or the last one; the size of all blocks read, and their bytes of the file.

        Sizes are characters here: which bytes of a compressed file a single block came from is not known.
        """
        rows: list[Row] = []
        read_size = read_bytes = 0
        last: tuple[Block, float] | None = None
        for at, (block, read_s) in enumerate(pieces):
            last = block, read_s
            read_size += _num_characters(block)
            read_bytes += block.input_bytes
            if (at + 1) % STRIDE == 0:
                rows.append(self._encode(block, number, _num_characters(block), read_s))
            if len(rows) == num_blocks:
                break
        if not rows and last is not None:
            rows.append(self._encode(last[0], number, _num_characters(last[0]), last[1]))
        return rows, read_size, read_bytes

    def _add(self, rows: list[Row], weight: float) -> None:
        self._rows += [Row(*(value * weight for value in row)) for row in rows]

    def _encode(self, block: Block, file: int, size: float, read_s: float) -> Row:
        if not self.num_records:
            self._warm_up(block, file)
        begin_s = time.process_time()
        made = self._encoder.encode(block, file)
        cpu_s = read_s + time.process_time() - begin_s
        self.num_records += block.num_lines - block.num_blank
        self.num_characters += _num_characters(block)
        self.num_documents += len(made.lines)
        self.num_bad += len(made.bad)
        if made.bad and not self.first_error:
            self.first_error = f"{self._plan.files[file].name}: {made.bad[0].message}"
        self.dropped.update(made.dropped_documents)
        columns = list(zip(self._plan.columns, made.tokens, strict=True))
        tokens = sum(len(values) for column, values in columns if column.kind == "ids")
        value_bytes = sum(values.nbytes for column, values in columns if column.kind != "domain")
        return Row(size, tokens, len(made.lines), cpu_s, value_bytes)

    def _warm_up(self, block: Block, file: int) -> None:
        """Load what libraries load with their first text, and see how fast the truth is."""
        texts: list[str] = []
        left = WARM_UP_CHARACTERS
        for text in (text for column in block.texts for text in column):
            texts.append(text[:left])
            left -= len(texts[-1])
            if not left:
                break
        self._encoder.encode(block, file)
        if left < WARM_UP_CHARACTERS:
            self._proved.truth.encode(texts)
            begin_s = time.process_time()
            self._proved.truth.encode(texts)
            self.truth_s = (time.process_time() - begin_s) / (WARM_UP_CHARACTERS - left)


def _timed(blocks: Iterator[Block]) -> Iterator[tuple[Block, float]]:
    """Each block with the CPU seconds of reading it."""
    begin_s = time.process_time()
    for block in blocks:
        yield block, time.process_time() - begin_s
        begin_s = time.process_time()


def _num_characters(block: Block) -> int:
    """Of all texts, and one a line for what is around them."""
    return sum(len(text) for texts in block.texts for text in texts) + block.num_lines
