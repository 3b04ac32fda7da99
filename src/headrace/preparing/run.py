"""Plans a run in its output folder, and does it on this host: a job of which this process drives the tasks.

Runs over text and runs of a recipe share this code once their plan is made. Before it is written, a fast library and
the reference tokeniser must encode the first documents of the run equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.engine.forking import apart
from headrace.engine.planning import NewPlan
from headrace.io import file_sum, path_at, reader_of
from headrace.preparing.backends import REFERENCE, OnCompared, ProvedEncoder, compare
from headrace.preparing.backends.reference import installed_version
from headrace.preparing.finishing import described_options
from headrace.preparing.options import ErrorOptions
from headrace.preparing.outputs.folder import OutputFolder, mark_of
from headrace.preparing.run_plan import RunPlan, encoding
from headrace.preparing.sources import SourceFile, Span, open_span
from headrace.preparing.text_job import KIND, TOKENIZER_NAME
from headrace.stores import Manifest

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

    encoder: ProvedEncoder
    """The library."""


def most_characters(files: Sequence[SourceFile]) -> int:
    """The number of characters after which the proof of the first documents ends; the last document is proved whole."""
    share = int(SHARE_OF_TEXT * sum(file.text_bytes for file in files))
    return min(max(share, MIN_TEXT_BYTES), MAX_TEXT_BYTES)


def prove_first_documents(found: Unproved, on_compared: OnCompared) -> RunPlan:
    """Encode the first documents with the library of the plan and with ``tokenizers``, and compare the ids.

    Returns:
        The plan, which chooses ``tokenizers`` if the ids differ.
    """
    plan, choice, encoder = found.plan, found.plan.choice, found.encoder
    if choice.name == REFERENCE:
        return plan
    texts, reference = list(found.first_texts), encoder.reference
    difference = apart(
        lambda report: compare(
            encoder.backend, reference, texts, on_compared=lambda done, total: report((done, total))
        ),
        lambda progress: on_compared(*progress),
    )
    if difference is None:
        return msgspec.structs.replace(plan, first_documents=len(texts))
    reason = f"differs on text {difference.index + 1:,} of the first {len(texts):,} of the run: {difference.message}"
    reasons = {**choice.reasons, choice.name: reason}
    choice = msgspec.structs.replace(choice, name=REFERENCE, version=installed_version(REFERENCE), reasons=reasons)
    return msgspec.structs.replace(plan, choice=choice)


def first_texts(plan: RunPlan) -> Iterator[str]:
    """Yield the texts of the first documents of a run over text."""
    options, most = plan.options, most_characters(plan.files)
    spec = msgspec.structs.replace(plan.record_spec(options), whole=False, id_field=None)
    join = options.records.join
    documents = size = 0
    for number, file in enumerate(plan.files):
        # The whole file is one span here, of which only the beginning is read.
        for block in open_span(file, Span(number, 0, file.extent), spec).blocks():
            for texts in zip(*block.texts, strict=True):
                yield from texts if join is None else (join.join(texts),)
                documents += 1
                size += sum(map(len, texts))
                if documents >= NUM_DOCUMENTS or size >= most:
                    return
            if block.bad and options.errors.on_error == "stop":
                return  # the run will report the bad record


RUN_FORMAT = 13
"""Increase this if a change makes the same run write other bytes, or changes the layout of the work folder."""


def plan_run(
    folder: OutputFolder, plan: RunPlan, tokenizer_json: bytes, on_notice: Callable[[str], None]
) -> RunPlan | None:
    """Begin or continue a run in a folder that was claimed, and write its plan for any processes to do its tasks.

    Tasks that failed before are to be tried again. The tokeniser is copied beside the plan.

    Returns:
        The plan that was written; None if the output is complete already.

    Raises:
        OutputError: the folder holds something else, or the system refuses the write.
    """
    run = {
        "format": RUN_FORMAT,
        "inputs": [_described(file) for file in plan.files],
        "tokenizer": plan.tokenizer.fingerprint,
        "backend": f"{plan.choice.name} {plan.choice.version}",
        "task_bytes": plan.task_bytes,
        "filter": "",
        **_deciding(plan),
    }
    if complete := folder.begin(run, is_made=lambda found: is_made(plan, found[0])):
        on_notice(complete)
        return None
    # No plan says how stores are reached: others would read it.
    files = tuple(
        msgspec.structs.replace(file, path=str(path_at(file.path).absolute()), storage=None) for file in plan.files
    )
    kept = msgspec.structs.replace(plan, files=files)
    (texts, hashed), mark = kept.orders(), mark_of(folder.work)
    folder.save_plan(
        NewPlan(
            kind=KIND,
            plan=kept,
            phases=[encoding(mark, name, len(texts) + len(hashed)) for name in sorted({plan.choice.name, REFERENCE})],
            software={} if plan.choice.name == REFERENCE else {plan.choice.name: plan.choice.version},
            files={TOKENIZER_NAME: tokenizer_json},
        )
    )
    return kept


def is_made(plan: RunPlan, manifest: Manifest) -> bool:
    """Whether a plan would write what this manifest lists. If all else is equal, this reads the inputs to hash them."""
    tokenizer, backend = manifest.tokenizer, manifest.backend
    if tokenizer is None or backend is None or manifest.options != described_options(plan):
        return False
    if (tokenizer.xxh3_128, tokenizer.eod, tokenizer.bos) != (plan.tokenizer.fingerprint, plan.eod, plan.bos):
        return False
    if (backend.name, backend.version) != (plan.choice.name, plan.choice.version):
        return False
    known = [(file.path, file.format, file.size) for file in manifest.inputs]
    if known != [(file.name, file.format, file.size_bytes) for file in plan.files]:
        return False
    return all(
        file.fault or file_sum(path_at(file.path, reader_of(file.storage))).xxh3_128 == entry.xxh3_128
        for file, entry in zip(plan.files, manifest.inputs, strict=True)
    )


def _deciding(plan: RunPlan) -> dict[str, Any]:
    """The options that decide bytes. How errors are treated is not part of it: it changes no record that was read."""
    deciding = described_options(plan)
    del deciding["errors"]
    if plan.recipe is not None:
        deciding["recipe"] = {**deciding["recipe"], "errors": msgspec.to_builtins(ErrorOptions())}
    return deciding


def _described(file: SourceFile) -> dict[str, Any]:
    if file.name == "-":
        return {"name": "-", "size": file.size_bytes, "xxh3_128": file_sum(file.path).xxh3_128}
    if file.etag:
        return {"name": file.name, "size": file.size_bytes, "etag": file.etag}
    return {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
