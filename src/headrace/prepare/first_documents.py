"""The first documents of a run, encoded by the fast tokeniser and by the reference tokeniser before any is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.prepare.backends import REFERENCE, Choice, OnCompared, ProvedEncoder, compare
from headrace.prepare.forking import apart, may_fork
from headrace.prepare.options import TextOptions
from headrace.prepare.sources import RecordSpec, SourceFile, Span, open_span

NUM_DOCUMENTS = 1000
MAX_TEXT_BYTES = 16 << 20
"""Characters at which the proof stops early: a thousand books would take minutes."""

MIN_TEXT_BYTES = 64 << 10
"""Characters that are proved of any input, however small: some hundredths of a second."""

SHARE_OF_TEXT = 0.009
"""Of the text of the run, the most that its first documents may be: with those sampled later it is below 1 %."""


class FirstProof(NamedTuple):
    """What came of the proof of the first documents."""

    choice: Choice
    """As it was; or that of ``tokenizers``, where a text differs."""
    num_texts: int
    """Proved."""
    encoder: ProvedEncoder | None
    """As it is loaded, for workers that are forks of this process; None where there are none."""


def most_characters(files: Sequence[SourceFile]) -> int:
    """Characters at which the proof of the first documents ends, the last document whole."""
    share = int(SHARE_OF_TEXT * sum(file.text_bytes for file in files))
    return min(max(share, MIN_TEXT_BYTES), MAX_TEXT_BYTES)


def prove_first_documents(
    choice: Choice,
    files: Sequence[SourceFile],
    spec: RecordSpec,
    options: TextOptions,
    tokenizer_json: bytes,
    on_compared: OnCompared,
) -> FirstProof:
    """Encode the first documents by the chosen library and by ``tokenizers``."""
    special = options.tokens.special_tokens_in_text
    if choice.name == REFERENCE:
        return FirstProof(choice, 0, ProvedEncoder(REFERENCE, tokenizer_json, special) if may_fork() else None)
    texts = list(_first_texts(files, msgspec.structs.replace(spec, whole=False, id_field=None), options))
    return prove_texts(choice, texts, ProvedEncoder(choice.name, tokenizer_json, special), on_compared)


def prove_texts(choice: Choice, texts: list[str], encoder: ProvedEncoder, on_compared: OnCompared) -> FirstProof:
    """As `prove_first_documents`, for texts that are at hand."""
    reference = encoder.reference
    found = apart(
        lambda say: compare(encoder.backend, reference, texts, on_compared=lambda done, total: say((done, total))),
        lambda said: on_compared(*said),
    )
    if found is None:
        return FirstProof(choice, len(texts), encoder if may_fork() else None)
    reason = f"differs on text {found.index + 1:,} of the first {len(texts):,} of the run: {found.message}"
    reasons = {**choice.reasons, choice.name: reason}
    return FirstProof(
        msgspec.structs.replace(choice, name=reference.name, version=reference.version, reasons=reasons), 0, None
    )


def _first_texts(files: Sequence[SourceFile], spec: RecordSpec, options: TextOptions) -> Iterator[str]:
    join = options.records.join
    documents = size = 0
    most = most_characters(files)
    for number, file in enumerate(files):
        # The whole file is one span here, read as far as is needed.
        reader = open_span(file, Span(number, 0, file.extent), spec, max_record_bytes=options.records.max_record_bytes)
        for block in reader.blocks():
            for texts in zip(*block.texts, strict=True):
                yield from texts if join is None else (join.join(texts),)
                documents += 1
                size += sum(map(len, texts))
                if documents >= NUM_DOCUMENTS or size >= most:
                    return
            if block.bad and options.errors.on_error == "stop":
                return  # the run will say what is wrong
