"""The cut: which documents of the parts are kept, and which of them make up each shard.

One task does this, over all parts in the order of the input, once all of them are there. It reads no values: a shard
ends where the lengths of the documents say, so neither the size of the tasks nor who does them decides it. It leaves

    cut                what all parts add up to, see `CutResult`
    N.order            the documents of shard N, in the order in which shards end; see `joining`
    provenance/...     the table of origins of the whole output
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.job import TaskResult
from headrace.engine.serving import save
from headrace.errors import InputError
from headrace.io import FileSum
from headrace.preparing.columns import Column, IntArray, stored, total_lengths
from headrace.preparing.duplicates import FoundDuplicates
from headrace.preparing.ledger import (
    DUPLICATE,
    MAX_RECORDS,
    RunLedger,
    SpanResult,
    Tally,
    check_left,
    check_tolerance,
    left_out,
)
from headrace.preparing.parts import DocumentPart, Range
from headrace.preparing.run_plan import RunPlan
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, ProvenanceWriter
from headrace.stores.keyed.writer import MAX_DOCUMENTS
from headrace.stores.writer import NumbersFile, ShardFilling

BoolArray = NDArray[np.bool_]

CUT_NAME: Final = "cut"


def order_name(number: int) -> str:
    """The name of the file that says which documents are in a shard."""
    return f"{number}.order"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the n documents of a part are kept, in the order of the input."""

    keep: BoolArray
    """(n,) whether each document is kept."""

    reasons: dict[str, BoolArray]
    """(n,) for each reason, whether each document is left out for it. No document is left out for two reasons."""

    num_records: int
    """Records of which at least one document is kept; 0 if the run does not limit records."""

    @property
    def is_all(self) -> bool:
        """Whether all documents are kept."""
        return bool(self.keep.all())

    def reason_of(self, document: int) -> str:
        """Why a document is left out."""
        return next(reason for reason, which in self.reasons.items() if which[document])

    def left_out(self, part: DocumentPart, columns: Sequence[Column]) -> list[Tally]:
        """The counts that take off what is left out, for each reason."""
        found = []
        lengths = {column.key: part.lengths(number) for number, column in enumerate(columns) if column.kind == "ids"}
        empty = total_lengths(lengths.values(), part.info.num_documents) == 0
        for reason, which in self.reasons.items():
            if not which.any():
                continue
            trained = part.arrays.get("trained")
            supervised = 0 if trained is None else int(trained[which].sum())
            found.append(
                left_out(
                    reason,
                    documents=int(np.count_nonzero(which)),
                    empty=int(np.count_nonzero(empty[which])),
                    keys={key: int(some[which].sum()) for key, some in lengths.items()},
                    supervised=None if part.info.tally.samples is None else supervised,
                )
            )
        return found


def choose(part: DocumentPart, is_new: BoolArray | None, room: int | None) -> Chosen:
    """Choose the documents to keep.

    Args:
        part: a part with n documents.
        is_new: (n,) whether each document is seen for the first time; None keeps duplicates.
        room: how many more records may be kept; None sets no limit.
    """
    keep = np.ones(part.info.num_documents, np.bool_) if is_new is None else is_new
    reasons: dict[str, BoolArray] = {}
    if is_new is not None:
        reasons[DUPLICATE] = ~is_new
    if room is None:
        return Chosen(keep=keep, reasons=reasons, num_records=0)
    records = record_numbers(part)
    kept_records = np.unique(records[keep])
    last = kept_records[room - 1] if 0 < room <= len(kept_records) else len(records) if room > 0 else -1
    is_over = keep & (records > last)
    reasons[MAX_RECORDS] = is_over
    return Chosen(keep=keep & ~is_over, reasons=reasons, num_records=min(len(kept_records), max(room, 0)))


def record_numbers(part: DocumentPart) -> IntArray:
    """(n,) the number of each document's record within the part, in the order of the input, ascending.

    Documents of the same record come from the same line of the same span.
    """
    lines = part.arrays.get("lines", np.zeros(0, np.int64))
    is_first = np.ones(len(lines), np.bool_)
    is_first[1:] = lines[1:] != lines[:-1]
    begins = np.cumsum([0, *(span.kept for span in part.info.spans)])[:-1]
    is_first[begins[begins < len(lines)]] = True
    return np.cumsum(is_first) - 1


def add_origins(
    origins: ProvenanceWriter, part: DocumentPart, chosen: Chosen, first: int, lines_before: Sequence[int]
) -> None:
    """Add the spans of a part to the table of origins.

    Args:
        origins: the table.
        part: the part.
        chosen: which of its documents are kept.
        first: number of the first of its kept documents in the run.
        lines_before: for each file, the lines that were read before this part.
    """
    info, arrays = part.info, part.arrays
    next_line = {span.file: lines_before[span.file] for span in info.spans}
    document = skip = 0
    none = np.zeros(0, np.int64)
    for span in info.spans:
        documents = slice(document, document + span.kept)
        keep = chosen.keep[documents]
        skipped = arrays.get("skipped_lines", none)[skip : skip + span.skipped]
        codes = arrays.get("skipped_reasons", none)[skip : skip + span.skipped]
        reasons = [info.reasons[code] for code in codes.tolist()]
        if span.split or not keep.all():
            lines = arrays["lines"][documents]
            # If a line became several documents, some of them may be kept and others not.
            gone, at = np.unique(lines[~keep], return_index=True)
            is_gone = ~np.isin(gone, lines[keep])
            left = (np.flatnonzero(~keep)[at[is_gone]] + document).tolist()
            skipped = np.concatenate((skipped, gone[is_gone]))
            reasons += [chosen.reason_of(index) for index in left]
            order = np.argsort(skipped, kind="stable")
            skipped, reasons = skipped[order], [reasons[index] for index in order]
            _add_lines(origins, span, first, next_line[span.file], lines[keep], skipped, reasons)
        elif span.lines:
            origins.add_span(first, span.kept, span.file, next_line[span.file], span.lines, skipped, reasons)
        next_line[span.file] += span.lines
        document += span.kept
        skip += span.skipped
        first += int(np.count_nonzero(keep))
    if "ids" in arrays:
        origins.add_ids(_ids(arrays["ids"], arrays["ids_lengths"], chosen))


def _add_lines(
    origins: ProvenanceWriter,
    span: SpanResult,
    first: int,
    first_line: int,
    lines: IntArray,
    skipped: IntArray,
    reasons: list[str],
) -> None:
    """Add the lines of a span whose document i comes from ``lines[i]``.

    A span of the table has at most one document for each line, so every further document of a line gets a span of its
    own: in a span of 6 lines, documents of the lines 3, 3 and 5 make the spans [0, 4), [3, 4) and [4, 6).
    """
    begin = at = document = 0
    for number in [*(np.flatnonzero(lines[1:] == lines[:-1]) + 1).tolist(), len(lines)]:
        is_further = number < len(lines)
        end = int(lines[number]) + 1 if is_further else span.lines
        if end > begin:
            until = int(np.searchsorted(skipped, end))
            own = skipped[at:until] - begin
            origins.add_span(
                first + document, number - document, span.file, first_line + begin, end - begin, own, reasons[at:until]
            )
            begin, at, document = end, until, number
        if is_further:
            origins.add_span(first + number, 1, span.file, first_line + end - 1, 1, skipped[:0], [])
            document = number + 1


def _ids(data: NDArray[np.uint8], lengths: IntArray, chosen: Chosen) -> list[str]:
    ends = np.cumsum(lengths)
    raw = data.tobytes()
    rows = range(len(lengths)) if chosen.is_all else np.flatnonzero(chosen.keep).tolist()
    return [raw[ends[index] - lengths[index] : ends[index]].decode() for index in rows]


class CutShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard of the output."""

    series: int
    """The number of its domain; 0 without domains."""

    number: int
    """Its number in the series."""

    first_task: int
    """It has documents of the parts of some of the tasks ``[first_task, last_task]`` alone."""

    last_task: int


class CutResult(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts add up to."""

    ledger: RunLedger
    domains: tuple[str, ...]
    """Names of the domains, in the order of their first appearance in the input."""

    shards: tuple[CutShard, ...]
    """All shards, in the order in which they end: the order of the tasks that write them."""

    origins: tuple[FileSum, ...]
    """The files of the table of origins."""

    value_bytes: int
    """Bytes of all values of the documents that are kept."""

    @property
    def num_series(self) -> int:
        """How many series of shards there are."""
        return max(len(self.domains), 1)


class PlacedPart(NamedTuple):
    """A part, and the folder, below the work folder, in which its files are."""

    folder: str
    part: DocumentPart


class _Series:
    """The shards of a domain, or of the whole output, as they are cut."""

    def __init__(self) -> None:
        self.filling = ShardFilling()
        self.ranges: list[Range] = []
        self.num_shards = 0
        self.ordinals: NumbersFile | None = None


class Cutter:
    """Cuts shards of parts, which it takes one after another.

    Args:
        plan: the plan.
        hashes: for each file its xxh3_128, as far as tasks of their own have hashed it.
        found: the duplicates, if they are left out.
        results: the folder for the files.

    Raises:
        OutputError: the system refuses a write.
    """

    def __init__(self, plan: RunPlan, hashes: Sequence[str], found: FoundDuplicates | None, results: Path) -> None:
        self._plan = plan
        self._results = results
        self._found = found
        self._num_hashed = self._kept_records = self._value_bytes = 0
        self._series: list[_Series] = []
        self._shards: list[CutShard] = []
        self._domains: list[str] = []
        self._sizes = [np.dtype(column.dtype).itemsize for column in stored(plan.columns)]
        """Bytes of a value of each column that is stored."""
        self._has_domains = len(self._sizes) < len(plan.columns)
        self.ledger = RunLedger.of(hashes)
        self._origins = ProvenanceWriter(
            results / PROVENANCE_NAME,
            with_order=self._has_domains,
            with_ids=plan.options.records.id_field is not None,
        )

    def take(self, placed: PlacedPart) -> None:
        """Take the next part.

        Raises:
            InputError: there are too many domains, or two that file systems may not tell apart.
        """
        part = placed.part
        info = part.info
        limit = self._plan.max_records
        chosen = choose(part, self._find_new(part), None if limit is None else limit - self._kept_records)
        self._kept_records += chosen.num_records
        first = self.ledger.tally.documents.kept
        add_origins(self._origins, part, chosen, first, self.ledger.lines)
        left, sample_by = chosen.left_out(part, self._plan.columns), self._plan.options.records.sample_by
        self.ledger.add(self._plan.files, info, left, sample_by)
        of_columns = [part.lengths(number) for number in range(len(self._sizes))]
        for size, some in zip(self._sizes, of_columns, strict=True):
            self._value_bytes += int(some[chosen.keep].sum()) * size
        lengths = total_lengths(of_columns, info.num_documents)
        if not self._has_domains:
            which = None if chosen.is_all else np.flatnonzero(chosen.keep)
            self._add(0, placed, which, lengths if which is None else lengths[which])
            return
        own = np.array([self._domain(name) for name in info.domains], np.int64)
        domains = own[part.arrays.get("domains", np.zeros(0, np.int64))]
        ordinals = first + np.cumsum(chosen.keep) - 1
        for series in np.unique(domains[chosen.keep]).tolist():
            which = np.flatnonzero(chosen.keep & (domains == series))
            self._add(series, placed, which, lengths[which])
            self._note_order(series, ordinals[which])

    def finish(self) -> TaskResult:
        """End the last shard of each series, and write what all parts add up to."""
        for number, series in enumerate(self._series):
            if series.ranges:
                self._end_shard(number)
            if series.ordinals is not None:
                for ordinals in series.ordinals.chunks():
                    self._origins.add_order(ordinals.astype(np.int64, copy=False))
        result = CutResult(
            ledger=self.ledger,
            domains=tuple(self._domains),
            shards=tuple(self._shards),
            origins=self._origins.finish(),
            value_bytes=self._value_bytes,
        )
        save(self._results / CUT_NAME, result)
        orders = (order_name(number) for number in range(len(self._shards)))
        return TaskResult(
            files=(CUT_NAME, *orders, *(f"{PROVENANCE_NAME}/{file.name}" for file in result.origins)),
            counts={"documents": self.ledger.tally.documents.kept},
        )

    def close(self) -> None:
        """Close all files, and remove the table of origins unless it is finished."""
        self._origins.discard()
        for series in self._series:
            if series.ordinals is not None:
                series.ordinals.discard()

    def _add(self, number: int, placed: PlacedPart, which: IntArray | None, lengths: IntArray) -> None:
        """Add documents of a part to a series: their places in the part, or None for all, and their lengths."""
        while len(self._series) <= number:
            self._series.append(_Series())
        series, output = self._series[number], self._plan.options.output
        most = None if output.format == "indexed" or output.shard_tokens is None else MAX_DOCUMENTS
        for first, last, is_full in series.filling.cut(lengths, output.shard_tokens, most):
            if last > first:
                series.ranges.append(_range(placed, which, first, last))
            if is_full:
                self._end_shard(number)

    def _end_shard(self, number: int) -> None:
        series = self._series[number]
        save(self._results / order_name(len(self._shards)), tuple(series.ranges))
        first, last = series.ranges[0].task_index, series.ranges[-1].task_index
        self._shards.append(CutShard(number, series.num_shards, first, last))
        series.ranges.clear()
        series.num_shards += 1

    def _note_order(self, number: int, ordinals: IntArray) -> None:
        series = self._series[number]
        series.ordinals = series.ordinals or NumbersFile(self._results / CUT_NAME, "<i8")
        series.ordinals.append(ordinals)

    def _find_new(self, part: DocumentPart) -> BoolArray | None:
        """(n,) whether each document of the part is seen for the first time, in the order of the input."""
        if self._found is None:
            return None
        hashes = part.arrays.get("text_hashes")
        if hashes is None or not len(hashes):  # a part without documents has no file of hashes
            return np.zeros(0, np.bool_)
        self._num_hashed += 1
        return self._found.is_new(self._num_hashed - 1, hashes)

    def _domain(self, name: str) -> int:
        """The number of a domain in the run.

        Raises:
            InputError: there are too many domains; two names would be the same folder on a file system that ignores
                case; or the name is reserved.
        """
        known = self._domains
        if name in known:
            return known.index(name)
        most = self._plan.max_domains
        if len(known) >= most:
            raise InputError(
                f"the records have more than {most:,} domains, the last one {name!r}: each domain is a store with its "
                "own files. Choose another output.domain_key, one with a few kinds of data instead of their names"
            )
        for other in known:
            if name.casefold() == other.casefold():
                raise InputError(f"the domains {name!r} and {other!r} differ only in the case of letters: rename one")
        if name in (PROVENANCE_NAME, MANIFEST_NAME):
            raise InputError(f"a domain has the name {name!r}, which is reserved for a part of the store: rename it")
        known.append(name)
        return len(known) - 1


def _range(placed: PlacedPart, which: IntArray | None, first: int, last: int) -> Range:
    """The documents from ``first`` to ``last`` of those that are kept."""
    task_index = placed.part.info.task_index
    if which is None:
        return Range(placed.folder, task_index, first, last)
    kept = which[first:last]
    if int(kept[-1]) - int(kept[0]) == len(kept) - 1:
        return Range(placed.folder, task_index, int(kept[0]), int(kept[-1]) + 1)
    return Range(placed.folder, task_index, int(kept[0]), int(kept[-1]) + 1, kept.astype("<u4").tobytes())


def cut(
    plan: RunPlan,
    parts: Iterable[PlacedPart],
    hashes: Sequence[str],
    found: FoundDuplicates | None,
    results: Path,
    tell: Callable[[Mapping[str, int]], None],
) -> TaskResult:
    """Cut the shards of a run; return what the receipt says.

    Args:
        plan: the plan.
        parts: all parts, in the order of the input.
        hashes: see `Cutter`.
        found: see `Cutter`.
        results: the folder for the files.
        tell: called with the documents so far.

    Raises:
        InputError: nothing is left to store, too much is bad, or the domains do not fit.
        OutputError: the system refuses a write.
    """
    cutter = Cutter(plan, hashes, found, results)
    try:
        for placed in parts:
            cutter.take(placed)
            tell({"documents": cutter.ledger.tally.documents.kept})
        tally, errors = cutter.ledger.tally, cutter.ledger.errors
        num_read = tally.lines - tally.documents.blank_lines
        check_tolerance(errors, plan.options.errors, noun="record", num_read=num_read)
        check_left(plan, tally, errors)
        return cutter.finish()
    finally:
        cutter.close()
