"""The first proof of a run: a fast library and the reference tokeniser must encode its first documents equally."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.engine.forking import apart, may_fork
from headrace.preparing.backends import REFERENCE, OnCompared, ProvedEncoder, compare
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.sources import SourceFile, Span, open_span

NUM_DOCUMENTS = 1000
MAX_TEXT_BYTES = 16 << 20
"""The most characters that are proved: a thousand books would take minutes."""

MIN_TEXT_BYTES = 64 << 10
"""Characters that are proved however small the input is. This takes some hundredths of a second."""

SHARE_OF_TEXT = 0.009
"""The largest share of the text of a run that the first documents may be. Together with the texts that are sampled
later, less than 1 % of the text is encoded twice."""


class Unproved(NamedTuple):
    """The plan of a run whose library has not encoded the first documents of the run yet."""

    plan: RunPlan
    first_texts: Iterable[str]
    """Their texts, which are read when they are asked for."""

    encoder: ProvedEncoder | None = None
    """The library, if it was loaded already."""


def most_characters(files: Sequence[SourceFile]) -> int:
    """The number of characters after which the proof of the first documents ends; the last document is proved whole."""
    share = int(SHARE_OF_TEXT * sum(file.text_bytes for file in files))
    return min(max(share, MIN_TEXT_BYTES), MAX_TEXT_BYTES)


def prove_first_documents(found: Unproved, on_compared: OnCompared) -> tuple[RunPlan, ProvedEncoder | None]:
    """Encode the first documents with the library of the plan and with ``tokenizers``, and compare the ids.

    Returns:
        The plan, which chooses ``tokenizers`` if the ids differ, and the loaded encoder, which workers inherit if they
        are forks of this process; else None.
    """
    plan, choice = found.plan, found.plan.choice
    if choice.name == REFERENCE and not may_fork():
        return plan, None
    special = plan.options.tokens.special_tokens_in_text
    encoder = found.encoder or ProvedEncoder(choice.name, plan.tokenizer.json, special)
    if choice.name == REFERENCE:
        return plan, encoder
    texts, reference = list(found.first_texts), encoder.reference
    difference = apart(
        lambda report: compare(
            encoder.backend, reference, texts, on_compared=lambda done, total: report((done, total))
        ),
        lambda progress: on_compared(*progress),
    )
    if difference is None:
        return msgspec.structs.replace(plan, first_documents=len(texts)), encoder if may_fork() else None
    reason = f"differs on text {difference.index + 1:,} of the first {len(texts):,} of the run: {difference.message}"
    reasons = {**choice.reasons, choice.name: reason}
    choice = msgspec.structs.replace(choice, name=reference.name, version=reference.version, reasons=reasons)
    return msgspec.structs.replace(plan, choice=choice), None


def first_texts(plan: RunPlan) -> Iterator[str]:
    """Yield the texts of the first documents of a run over text."""
    options, most = plan.options, most_characters(plan.files)
    spec = msgspec.structs.replace(plan.record_spec(options), whole=False, id_field=None)
    join = options.records.join
    documents = size = 0
    for number, file in enumerate(plan.files):
        # The whole file is one span here, of which only the beginning is read.
        reader = open_span(file, Span(number, 0, file.extent), spec, max_record_bytes=options.records.max_record_bytes)
        for block in reader.blocks():
            for texts in zip(*block.texts, strict=True):
                yield from texts if join is None else (join.join(texts),)
                documents += 1
                size += sum(map(len, texts))
                if documents >= NUM_DOCUMENTS or size >= most:
                    return
            if block.bad and options.errors.on_error == "stop":
                return  # the run will report the bad record
