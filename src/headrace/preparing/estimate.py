"""Estimates what a run would write from a sample of its inputs (``--dry-run``). Nothing is written.

The bytes of all files are divided into n equal stretches, and a point is drawn in each. A point becomes a *place*: the
span around it. If several points fall into the same span, it is one place, and their number is its weight.

    files of 1 and 3 MiB, 4 points      one place of weight 1 in the first, three in the second
    the same, compressed                one place of weight 1, the first file; one of weight 3, the second

The places are encoded, and their documents and tokens per byte are multiplied by the bytes of all files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.plan.keys import derive, source_key
from headrace.preparing.backends import REFERENCE, MismatchError, ProvedEncoder
from headrace.preparing.ledger import ADVICE, check_left, check_tolerance, described
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.sources import Block, SourceFile, Span, counted_from, open_span, record_noun
from headrace.preparing.sources.block import BadRecord
from headrace.preparing.sources.reader import LineSpanReader
from headrace.preparing.tally import BAD, Tally
from headrace.preparing.worker import load_encoder
from headrace.stores import ErrorEntry

NUM_PLACES = 64
PLACE_BYTES = 128 << 10
STRIDE = 8
"""One block in this many is encoded of a file that must be read from its beginning: reading is far cheaper."""

_INDEX_BYTES = {"indexed": 20, "keyed": 11, "hdf5": 800, "jsonl": 6}
"""Bytes for each key of a document beside its values: lengths, pointers and document indices (indexed), a number as
text in ``meta.json`` (keyed), the header of an array (HDF5), the punctuation around the key and its numbers (JSON
lines)."""

_ORDER_BYTES = 8
"""Bytes of a document in the table of origins, if documents have domains."""

_JSON_SHARE = 2.3
"""Bytes of a number in JSON divided by its bytes in binary: about 5 to 2 for ids, 2 to 1 for masks."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over these inputs would write. The numbers are those of the whole run, scaled up from the sample."""

    inputs: int
    input_bytes: int
    sampled_bytes: int
    """Bytes of the input files that the sample came from."""
    sampled_documents: int
    is_exact: bool
    """Whether the sample was the whole input, so that documents and tokens are exact numbers."""
    bad_records: int
    """Bad records in the sample; this number is not scaled up."""
    first_error: str
    """The message of the first bad record, or empty."""
    documents: int
    tokens: int
    dtype: str
    output_bytes: int
    """Bytes of all output files, except the manifest and some headers."""
    backend: str
    fallback: str
    """Why ``tokenizers`` encodes although a faster library passed its first proof; else empty."""
    dropped: dict[str, int]
    """Documents of the sample that filters drop, for each reason. Only a run finds duplicates."""
    stops: str = ""
    """Why a run would end without output, as far as the sample shows; else empty."""


def estimate_plan(plan: RunPlan) -> Estimate:
    """Estimate what a run of this plan would write, see `estimate_text`."""
    backend, fallback = plan.choice.name, ""
    try:
        sample = _Sample(plan, backend)
    except MismatchError as error:
        backend, fallback = REFERENCE, str(error)
        sample = _Sample(plan, backend)
    if not sample.num_records:
        raise InputError(f"a sample of {len(plan.files):,} files holds no records: is this the right data?")
    size, *sums = sample.sums
    scale = 1.0 if sample.is_whole else plan.total_bytes / (size or 1.0)
    documents, tokens, value_bytes = (round(value * scale) for value in sums)
    return Estimate(
        inputs=len(plan.files),
        input_bytes=plan.total_bytes,
        sampled_bytes=sample.num_bytes,
        sampled_documents=sample.num_documents,
        is_exact=sample.is_whole,
        bad_records=len(sample.errors),
        first_error=described(sample.errors[0]) if sample.errors else "",
        documents=documents,
        tokens=tokens,
        dtype=np.dtype(plan.columns[0].dtype).name,
        output_bytes=_output_bytes(plan, documents, value_bytes),
        backend=backend,
        fallback=fallback,
        dropped={name: number for name, number in sorted(sample.tally.documents.dropped.items()) if name != BAD},
        stops=_stops(plan, sample),
    )


def _stops(plan: RunPlan, sample: _Sample) -> str:
    """Return what a run would end with, if it would have no output."""
    try:
        num_read = sample.num_records if sample.is_whole else None
        check_tolerance(sample.errors, plan.options.errors, noun="records", advice=ADVICE, num_read=num_read)
        if sample.is_whole:
            check_left(plan, sample.tally, sample.errors)
    except InputError as error:
        return str(error)
    return ""


def _output_bytes(plan: RunPlan, documents: int, value_bytes: int) -> int:
    layout = plan.options.output.format
    has_order = any(column.kind == "domain" for column in plan.columns)
    per_document = _INDEX_BYTES[layout] * len(plan.keys) + _ORDER_BYTES * has_order
    if layout == "jsonl":
        value_bytes = round(value_bytes * _JSON_SHARE)
        per_document += sum(map(len, plan.keys))
    return value_bytes + documents * per_document


class SampledRange(NamedTuple):
    """A part of an input that is sampled."""

    span: Span
    weight: int
    """The share of the input that it represents, relative to the other places."""

    from_begin: bool
    """Whether it is read from its beginning, as far as its weight asks for; else it is read whole."""


def choose_places(
    files: Sequence[SourceFile], *, key: int, num_points: int, place_bytes: int
) -> tuple[list[SampledRange], bool]:
    """Choose the places for ``num_points`` points.

    Returns the places in the order of the input, and whether they cover the whole input. They do if the input is no
    larger than ``num_points`` places; the weight of a file is then its extent. Cost: O(files + points), whatever the
    size of the files.
    """
    if sum(file.text_bytes for file in files) <= num_points * place_bytes:
        whole = [
            SampledRange(Span(number, 0, file.extent), file.extent, from_begin=False)
            for number, file in enumerate(files)
            if file.extent
        ]
        return whole, True
    ends = np.cumsum([file.size_bytes for file in files], dtype=np.int64)
    total = int(ends[-1])
    hits: Counter[tuple[int, int, int]] = Counter()
    for point in range(num_points):
        byte = (total * point + (total * derive(key, point) >> 64)) // num_points
        number = int(np.searchsorted(ends, byte, side="right"))
        file = files[number]
        hits[number, *_around(file, byte - int(ends[number]) + file.size_bytes, place_bytes)] += 1
    places = [
        SampledRange(Span(number, begin, end), count, from_begin=not files[number].can_split)
        for (number, begin, end), count in sorted(hits.items())
    ]
    return places, False


def _around(file: SourceFile, byte: int, place_bytes: int) -> tuple[int, int]:
    """Begin and end of the span around a byte of a file."""
    if file.can_split:
        begin = byte // place_bytes * place_bytes
        return begin, min(begin + place_bytes, file.extent)
    if file.unit_bytes:
        # All units hold about the same number of rows, and readers divide the bytes of the file evenly among its rows.
        unit = byte * file.extent // file.size_bytes
        return unit, unit + 1
    return 0, file.extent


class _Sample:
    """The places of a run, read and encoded in this process with one library.

    Raises:
        MismatchError: the library differs from the reference tokeniser.
        InputError: a file cannot be read.
    """

    def __init__(self, plan: RunPlan, backend: str) -> None:
        self.num_bytes = self.num_records = self.num_documents = 0
        self.errors: list[ErrorEntry] = []
        self.tally = Tally()
        self.sums: NDArray[np.float64] = np.zeros(4)
        """Bytes of the inputs, documents, tokens, and bytes of values, weighted by the weights of the places."""
        self._plan = plan
        proved = ProvedEncoder(backend, plan.tokenizer.json, plan.options.tokens.special_tokens_in_text)
        setup = plan.setup(parts="", tokenizer="", backend=backend)
        self._encoder = load_encoder(setup, plan.tokenizer.json, proved)
        key = source_key(0, plan.tokenizer.fingerprint, "prepare estimate")
        places, self.is_whole = choose_places(plan.files, key=key, num_points=NUM_PLACES, place_bytes=PLACE_BYTES)
        for place in places:
            self._read(place)

    def _read(self, place: SampledRange) -> None:
        plan = self._plan
        reader = open_span(
            plan.files[place.span.file],
            place.span,
            plan.record_spec(plan.options),
            block_bytes=PLACE_BYTES,
            max_record_bytes=plan.options.records.max_record_bytes,
        )
        stride, most = (STRIDE, STRIDE * place.weight) if place.from_begin else (1, None)
        found = np.zeros(3)
        # It is not known which bytes of a compressed file a block came from, so the share that was encoded is measured
        # in characters.
        read_bytes = read = encoded = 0
        for number, block in enumerate(islice(reader.blocks(), most)):
            num_characters = sum(len(text) for texts in block.texts for text in texts) + block.num_lines
            read_bytes += block.input_bytes
            read += num_characters
            if number % stride == 0:
                encoded += num_characters
                found += self._encode(block, place)
        if place.from_begin and isinstance(reader, LineSpanReader) and reader.compressed_bytes:
            read_bytes = reader.compressed_bytes
        size = read_bytes * encoded / max(read, 1)
        self.num_bytes += round(size)
        # The part that was read of a beginning represents the whole place. The lines of any other place may have more
        # or fewer bytes than the place, since a long line counts where it begins.
        extent = size if place.from_begin else place.span.end - place.span.begin
        if extent:
            self.sums += place.weight / extent * np.array([size, *found])

    def _entry(self, span: Span, bad: BadRecord) -> ErrorEntry:
        """Return the error entry of a bad record; where lines before it were not counted, by its first byte."""
        file = self._plan.files[span.file]
        unit = record_noun(file.format, self._plan.options.records.sample_by)
        line = bad.line + counted_from(unit)
        if span.begin:
            unit, line = "row" if unit == "row" else "byte", bad.place
        return ErrorEntry(file=file.name, unit=unit, line=line, message=bad.message)

    def _encode(self, block: Block, place: SampledRange) -> tuple[int, int, int]:
        """The number of documents of a block, of their tokens, and of the bytes that are stored of them, without
        indices."""
        made = self._encoder.encode(block, place.span.file)
        self.num_records += block.num_lines - block.num_blank
        self.num_documents += len(made.lines)
        self.errors += [self._entry(place.span, bad) for bad in made.bad]
        self.tally += made.tally
        columns = list(zip(self._plan.columns, made.tokens, strict=True))
        tokens = sum(len(values) for column, values in columns if column.kind == "ids")
        value_bytes = sum(values.nbytes for column, values in columns if column.kind != "domain")
        return len(made.lines), tokens, value_bytes
