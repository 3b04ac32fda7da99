"""The ledger of a run: the sums of all it read and kept, which prove that nothing was lost on the way to the store.

The `Tally` of a block plus those of others is that of a part (`PartInfo`), and so on to the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.errors import HeadraceError, InputError, sentence
from headrace.preparing.options import ErrorOptions
from headrace.preparing.outputs.folder import NothingLeftError
from headrace.preparing.run_plan import RunPlan
from headrace.preparing.sources import SampleBy, SourceFile, counted_from, record_noun
from headrace.stores import DocumentLedger, ErrorEntry, Ledger, Manifest, SampleLedger, TokenLedger

T = TypeVar("T")

DUPLICATE, MAX_RECORDS, BAD, LENGTH = "duplicate", "max_records", "bad", "length"
"""Reasons under which documents and tokens are counted: ``length`` for tokens that were cut off."""

ENDED_WORKER = "ended_worker"
"""The reason for bad records that could be read, but ended each worker that came to them."""

BAD_RECORDS = "bad_records"
"""What receipts call the records that were left out as bad."""

NO_DOCUMENTS = DocumentLedger(read=0, kept=0)
NO_TOKENS = TokenLedger(made=0, kept=0)


class Tally(Ledger, frozen=True, kw_only=True):
    """What was read and kept of a block, a piece or a run: the counts of the manifest, and some that it does not show.

    Counts may be negative: those of documents that are left out after they were counted as kept, say.
    """

    documents: DocumentLedger = NO_DOCUMENTS
    """A record that was split counts once for each of its documents."""
    tokens: TokenLedger = NO_TOKENS
    lines: int = 0
    """Lines that were read, blank ones included."""
    input_bytes: int = 0
    """Bytes of the inputs that were read."""
    split: int = 0
    """Documents beyond the first of each record, for records that became several."""
    proved: int = 0
    """Documents that the reference tokeniser encoded as well."""
    routed: int = 0
    """Texts that only the reference tokeniser encoded."""

    def __add__(self, more: Tally) -> Tally:
        return added(self, more)

    def ledger(self) -> Ledger:
        """Return the counts of the manifest: reasons are sorted, and those without a count are left out."""
        samples = self.samples
        if samples is not None:
            keys = {key: _tidied(tokens) for key, tokens in samples.keys.items()}
            samples = msgspec.structs.replace(samples, keys=keys, notes=_shown(samples.notes))
        documents = msgspec.structs.replace(self.documents, dropped=_shown(self.documents.dropped))
        tokens = _tidied(self.tokens)
        return Ledger(documents=documents, tokens=tokens, samples=samples, missing_bos=self.missing_bos)


def left_out(reason: str, *, documents: int, empty: int, keys: Mapping[str, int], supervised: int | None) -> Tally:
    """The tally that takes documents off which were counted as kept.

    Args:
        reason: why they are left out.
        documents: their number.
        empty: how many of them have no tokens.
        keys: the number of their tokens in each key.
        supervised: the number of their trained tokens; None if no recipe made them.
    """
    tokens = {key: TokenLedger(made=0, kept=-number, dropped={reason: number}) for key, number in keys.items()}
    total = sum(keys.values())
    return Tally(
        documents=DocumentLedger(read=0, kept=-documents, dropped={reason: documents}, empty=-empty),
        tokens=TokenLedger(made=0, kept=-total, dropped={reason: total}),
        samples=None if supervised is None else SampleLedger(keys=tokens, supervised=-supervised),
    )


def added(left: T, right: T) -> T:
    """Add two values of one kind: numbers, or mappings and structs of them by name. None adds nothing."""
    found: Any
    if left is None or right is None:
        found = right if left is None else left
    elif isinstance(left, msgspec.Struct):
        names = left.__struct_fields__
        found = type(left)(**{name: added(getattr(left, name), getattr(right, name)) for name in names})
    elif isinstance(left, dict) and isinstance(right, dict):
        found = {**left, **{name: added(left.get(name), value) for name, value in right.items()}}
    else:
        found = left + right  # type: ignore[operator]
    return found  # type: ignore[no-any-return]


def _tidied(tokens: TokenLedger) -> TokenLedger:
    return msgspec.structs.replace(tokens, dropped=_shown(tokens.dropped), truncated=_shown(tokens.truncated))


def _shown(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in sorted(counts.items()) if number}


def advice(noun: str) -> str:
    """What to do about the first bad record, or sample, if a run stops there."""
    return (
        f"Nothing was written; correct or remove this {noun} and run again with --restart, or leave such {noun}s out"
        " with --on-error skip."
    )


class SpanResult(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The counts of one span of a task. Lines are counted from the first line of the span.

    Every line is either kept or listed in the part's ``skipped`` arrays; a line that was split is kept several times.
    """

    file: int
    begin: int = 0
    """``[begin, end)`` was read of the file, in the unit of its extent."""
    end: int = 0
    lines: int = 0
    blank_lines: int = 0
    bad: int = 0
    documents: int = 0
    """Records that were read whole: those kept, and those dropped by a filter."""
    kept: int = 0
    skipped: int = 0
    xxh3_128: str = ""
    """Hash of the file if the span is the whole file, else empty."""
    split: int = 0
    """Documents beyond the first of each record, for records that became several; ``documents`` counts them, too."""


class PartInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which task made the part, and the counts of what it holds."""

    task_index: int
    spans: tuple[SpanResult, ...] = ()
    tally: Tally = Tally()
    """The counts of all documents of the part, and of the lines that are none."""
    errors: tuple[tuple[int, int, str], ...] = ()
    """Bad records that were skipped: number of the span in ``spans``, line, message."""
    reasons: tuple[str, ...] = ()
    """The reasons that the codes in the array ``skipped_reasons`` refer to."""
    domains: tuple[str, ...] = ()
    """The domains that the numbers in the array ``domains`` refer to."""
    hashes: tuple[bytes, ...] = ()
    """For each column that is stored, the end and the xxh3_64 of each block of its values."""

    @property
    def num_documents(self) -> int:
        """Documents of the part."""
        return self.tally.documents.kept


def check_tolerance(
    errors: Sequence[ErrorEntry], options: ErrorOptions, *, noun: str, num_read: int | None = None
) -> None:
    """Refuse a run in which more is bad than its options allow.

    Args:
        errors: what was bad so far.
        options: what the run does about errors.
        noun: what was bad, for the message: ``record`` or ``sample``.
        num_read: how much was read in all; None while the run goes on, when a share cannot be checked.

    Raises:
        InputError: there is an error, and the run stops at errors; or there are too many.
    """
    allowed = options.max_errors
    if errors and options.on_error == "stop":
        # The run skipped it before it was interrupted, and was continued with on_error="stop".
        raise InputError(f"{described(errors[0])} {advice(noun)}")
    if isinstance(allowed, int) and len(errors) > allowed:
        found, most, last = f"{len(errors):,} bad {noun}s", f"{allowed:,}", errors[allowed]
    elif isinstance(allowed, float) and num_read is not None and len(errors) > allowed * num_read:
        found = f"{len(errors):,} bad {noun}s of {num_read:,} ({len(errors) / num_read:.2%})"
        most, last = f"{allowed:.2%}", errors[-1]
    else:
        return
    raise InputError(f"{found}, but max_errors allows {most}; the last one: {described(last)} Nothing was written.")


def error_entry(file: SourceFile, sample_by: SampleBy, line: int, message: str) -> ErrorEntry:
    """The entry of a bad record; ``line`` counts from 0 in the file."""
    unit = record_noun(file.format, sample_by)
    return ErrorEntry(file=file.name, unit=unit, line=line + counted_from(unit), message=message)


def reasons_in_words(dropped: Mapping[str, int], errors: Sequence[ErrorEntry]) -> str:
    """Return how many were left out for each reason, and the first that was bad, as the end of a sentence."""
    reasons = ", ".join(f"{name} {count:,}" for name, count in dropped.items() if count)
    return f"{reasons}; the first bad one: {described(errors[0])}" if errors else f"{reasons}."


def check_left(plan: RunPlan, tally: Tally, errors: Sequence[ErrorEntry]) -> None:
    """Refuse a run that would store nothing.

    Raises:
        NothingLeftError: no document is left, or no token.
    """
    documents = tally.documents
    if not documents.read:
        blank = f" with {documents.blank_lines:,} lines, all of them blank" if documents.blank_lines else ", all empty"
        raise NothingLeftError(f"no documents: {len(plan.files):,} files{blank}. Nothing was written.")
    if not documents.kept:
        why = reasons_in_words(documents.dropped, errors)
        raise NothingLeftError(f"no documents are left of {documents.read:,} records: {why} Nothing was written.")
    if not tally.tokens.kept and any(column.kind == "ids" for column in plan.columns):
        fields = f" (field {', '.join(map(repr, plan.options.records.fields))})" if plan.recipe is None else ""
        raise NothingLeftError(f"no tokens: all {documents.kept:,} documents are empty{fields}. Nothing was written.")


def described(error: ErrorEntry) -> str:
    """Return what was bad, with its place."""
    return f"{error.file}, {error.unit} {error.line:,}: {sentence(error.message)}"


def unbalanced(what: str) -> HeadraceError:
    """The error for counts that contradict each other."""
    return HeadraceError(
        f"the ledger does not balance: {what}. Nothing was written. This is a defect of Headrace or of this machine: "
        "please report it."
    )


def check_counts(counts: Ledger | Manifest, what: str) -> None:
    """Raise HeadraceError if counts contradict each other; those of a manifest are compared with its shards, too."""
    for fault in counts.faults():
        raise unbalanced(f"{what}: {fault}")


class RunLedger(msgspec.Struct, kw_only=True):
    """Counts in independent ways what was read and what was kept, and compares the counts.

    The readers count lines, the texts give the records, the encodings give documents and tokens, and all of these are
    counted again in the store that was written.
    """

    reached: list[int]
    """For each file the end of what was read, in the unit of its extent."""
    lines: list[int]
    """For each file the number of lines that were read."""
    hashes: list[str]
    """For each file its xxh3_128, or empty while it is not known."""
    tally: Tally = Tally()
    errors: list[ErrorEntry] = []

    @classmethod
    def of(cls, hashes: Sequence[str]) -> RunLedger:
        """The ledger of files of which nothing is counted, and of which tasks of their own have hashed some."""
        return cls(reached=[0] * len(hashes), lines=[0] * len(hashes), hashes=list(hashes))

    def add(
        self,
        files: Sequence[SourceFile],
        info: PartInfo,
        left_out: Sequence[Tally] = (),
        sample_by: SampleBy = "document",
    ) -> None:
        """Add the counts of the next part, in the order of the input.

        Args:
            files: the files of the run.
            info: the part.
            left_out: what was left out of its documents, as duplicates or above a limit.
            sample_by: what a record of a text file is.

        Raises:
            HeadraceError: bytes of a file were left out or read twice, or counts contradict each other.
        """
        for number, span in enumerate(info.spans):
            file, first_line = files[span.file], self.lines[span.file]
            for entry, line, message in info.errors:
                if entry == number:
                    self.errors.append(error_entry(file, sample_by, first_line + line, message))
            self._add_span(file.name, span)
        documents = info.tally.documents
        num_bad = sum(documents.dropped.get(reason, 0) for reason in (BAD, ENDED_WORKER))
        read = sum(span.documents + span.bad for span in info.spans)
        self._equal("records of a part, and those of its spans", documents.read, read)
        self._equal("documents of a part, and those of its spans", documents.kept, sum(s.kept for s in info.spans))
        self._equal("lines of a part, and those of its spans", info.tally.lines, sum(s.lines for s in info.spans))
        self._equal("bad records of a part, and those of its spans", num_bad, sum(span.bad for span in info.spans))
        self._equal("bad records of a part, and those listed", num_bad, len(info.errors))
        if info.tally.samples is not None:
            records = sum(span.documents - span.split for span in info.spans)
            made = info.tally.samples.records
            self._equal("records of a part, and those that were made into samples", records, made)
        check_counts(info.tally, "a part")
        self.tally = sum(left_out, self.tally + info.tally)

    def _add_span(self, name: str, span: SpanResult) -> None:
        if span.end > span.begin:
            reached = self.reached[span.file]
            self._equal(f"{name}: where one span ends, and where the next begins", reached, span.begin)
            self.reached[span.file] = span.end
        accounted = span.documents - span.split + span.blank_lines + span.bad
        self._equal(f"{name}: lines, and records plus blank and bad ones", span.lines, accounted)
        found = span.kept - span.split + span.skipped
        self._equal(f"{name}: lines, and documents plus skipped ones", span.lines, found)
        self.lines[span.file] += span.lines
        if span.xxh3_128:
            self.hashes[span.file] = span.xxh3_128

    def balance(self, files: Sequence[SourceFile], supervised: int = 0) -> Ledger:
        """Return the ledger for the manifest, which compares it with the shards of the store, see `check_counts`.

        Args:
            files: the files of the run.
            supervised: ones in the masks of the store, if a recipe made it.

        Raises:
            HeadraceError: a file was not read to its end, or the store has other masks than the documents.
        """
        for file, reached in zip(files, self.reached, strict=True):
            self._equal(f"{file.name}: its extent, and what was read", file.extent, reached)
        if self.tally.samples is not None:
            self._equal("trained tokens kept, and ones in the masks", self.tally.samples.supervised, supervised)
        return self.tally.ledger()

    @staticmethod
    def _equal(what: str, left: int, right: int) -> None:
        if left != right:
            raise unbalanced(f"{what}: {left:,} and {right:,}")
