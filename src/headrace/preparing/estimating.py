"""Estimates what a run would write from the beginning of its inputs (``--dry-run``). Nothing is written.

The first 8 MiB of text are encoded, file after file, and what comes of them is scaled up to the bytes of all files.
What changes behind them is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.errors import InputError
from headrace.preparing.backends import REFERENCE, MismatchError, ProvedEncoder
from headrace.preparing.ledger import ADVICE, BAD, Tally, check_left, check_tolerance, described, error_entry
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.sources import Span, open_span
from headrace.preparing.worker import load_encoder
from headrace.stores import ErrorEntry

SAMPLE_BYTES = 8 << 20
"""Characters of text that are encoded."""

_BLOCK_BYTES = 128 << 10
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
    """Bytes of the input files that were read, from the first one on."""
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


def estimate_plan(plan: RunPlan, encoder: ProvedEncoder) -> Estimate:
    """Estimate what a run of this plan would write, see `estimate`."""
    fallback = ""
    try:
        sample = _sample(plan, encoder)
    except MismatchError as error:
        fallback = str(error)
        encoder = ProvedEncoder(REFERENCE, encoder.file, plan.options.tokens.special_tokens_in_text)
        sample = _sample(plan, encoder)
    read = sample.tally
    if not read.documents.read:
        raise InputError(f"a sample of {len(plan.files):,} files holds no records: is this the right data?")
    scale = 1.0 if sample.is_whole else plan.total_bytes / max(1, sample.num_bytes)
    documents = round(read.documents.kept * scale)
    return Estimate(
        inputs=len(plan.files),
        input_bytes=plan.total_bytes,
        sampled_bytes=sample.num_bytes,
        sampled_documents=read.documents.kept,
        is_exact=sample.is_whole,
        bad_records=len(sample.errors),
        first_error=described(sample.errors[0]) if sample.errors else "",
        documents=documents,
        tokens=round(read.tokens.kept * scale),
        dtype=np.dtype(plan.columns[0].dtype).name,
        output_bytes=_output_bytes(plan, documents, round(sample.value_bytes * scale)),
        backend=encoder.name,
        fallback=fallback,
        dropped={name: number for name, number in sorted(read.documents.dropped.items()) if name != BAD},
        stops=_stops(plan, sample),
    )


def _stops(plan: RunPlan, sample: _Sample) -> str:
    """Return what a run would end with, if it would have no output."""
    try:
        num_read = sample.tally.documents.read if sample.is_whole else None
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


@dataclass
class _Sample:
    """What was read and encoded."""

    num_bytes: int = 0
    value_bytes: int = 0
    is_whole: bool = True
    errors: list[ErrorEntry] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def _sample(plan: RunPlan, proved: ProvedEncoder) -> _Sample:
    """Read and encode the beginning of the inputs, in this process and with one library.

    Raises:
        MismatchError: the library differs from the reference tokeniser.
        InputError: a file cannot be read.
    """
    encoder = load_encoder(plan.setup(results="", tokenizer="", backend=proved.name), proved)
    found, left = _Sample(), SAMPLE_BYTES
    records = plan.options.records
    for number, file in enumerate(plan.files):
        span = Span(number, 0, file.extent)
        spec = plan.record_spec(plan.options)
        reader = open_span(file, span, spec, block_bytes=_BLOCK_BYTES, max_record_bytes=records.max_record_bytes)
        read_bytes = compressed_bytes = 0
        for block in reader.blocks():
            if left <= 0:
                found.is_whole = False
                found.num_bytes += compressed_bytes or read_bytes
                return found
            left -= sum(len(text) for texts in block.texts for text in texts) + block.num_lines
            read_bytes += block.input_bytes
            # Of a compressed file more was read ahead than came out of it.
            compressed_bytes = reader.compressed_bytes
            made = encoder.encode(block, number)
            found.errors += [error_entry(file, records.sample_by, bad.line, bad.message) for bad in made.bad]
            found.tally += made.tally
            columns = zip(plan.columns, made.rows, strict=True)
            found.value_bytes += sum(values.nbytes for column, (values, _) in columns if column.kind != "domain")
        found.num_bytes += file.size_bytes
    return found
