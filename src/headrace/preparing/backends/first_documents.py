"""The first proof of a run: a fast library and the reference tokeniser must encode its first documents equally."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.engine.forking import apart, may_fork
from headrace.preparing.backends import REFERENCE, Choice, OnCompared, ProvedEncoder, compare
from headrace.preparing.options import PrepareOptions
from headrace.preparing.sources import RecordSpec, SourceFile, Span, open_span

NUM_DOCUMENTS = 1000
MAX_TEXT_BYTES = 16 << 20
"""The most characters that are proved: a thousand books would take minutes."""

MIN_TEXT_BYTES = 64 << 10
"""Characters that are proved however small the input is. This takes some hundredths of a second."""

SHARE_OF_TEXT = 0.009
"""The largest share of the text of a run that the first documents may be. Together with the texts that are sampled
later, less than 1 % of the text is encoded twice."""


class FirstProof(NamedTuple):
    """The result of the proof of the first documents."""

    choice: Choice
    """The choice that was proved, or ``tokenizers`` if a text differs."""
    num_texts: int
    """Number of texts that were proved; 0 if one differs."""
    encoder: ProvedEncoder | None
    """The loaded encoder, which workers inherit if they are forks of this process; else None."""


def most_characters(files: Sequence[SourceFile]) -> int:
    """The number of characters after which the proof of the first documents ends; the last document is proved whole."""
    share = int(SHARE_OF_TEXT * sum(file.text_bytes for file in files))
    return min(max(share, MIN_TEXT_BYTES), MAX_TEXT_BYTES)


def prove_first_documents(
    choice: Choice, first_texts: Iterable[str], load: Callable[[], ProvedEncoder], on_compared: OnCompared
) -> FirstProof:
    """Encode the first documents with the chosen library and with ``tokenizers``, and compare the ids.

    If they differ, the result chooses ``tokenizers``.
    """
    if choice.name == REFERENCE:
        return FirstProof(choice, 0, load() if may_fork() else None)
    texts, encoder = list(first_texts), load()
    reference = encoder.reference
    difference = apart(
        lambda report: compare(
            encoder.backend, reference, texts, on_compared=lambda done, total: report((done, total))
        ),
        lambda progress: on_compared(*progress),
    )
    if difference is None:
        return FirstProof(choice, len(texts), encoder if may_fork() else None)
    reason = f"differs on text {difference.index + 1:,} of the first {len(texts):,} of the run: {difference.message}"
    reasons = {**choice.reasons, choice.name: reason}
    return FirstProof(
        msgspec.structs.replace(choice, name=reference.name, version=reference.version, reasons=reasons), 0, None
    )


def first_texts(files: Sequence[SourceFile], spec: RecordSpec, options: PrepareOptions) -> Iterator[str]:
    """Yield the texts of the first documents of a run over text."""
    spec, join = msgspec.structs.replace(spec, whole=False, id_field=None), options.records.join
    documents = size = 0
    most = most_characters(files)
    for number, file in enumerate(files):
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
