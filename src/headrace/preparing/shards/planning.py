"""Plan the shards between the two phases: order the samples, cut them into shards, and write the lists of the shards.

    surveys of task 0, 1, 2, ...     in the order of the input, whatever the order of the workers was
      number, key, bytes in a tar    one row per sample
      leave out duplicates
      order                          that of the input, or a permutation
      cut into shards                by counts and bytes; each part of a split begins a new shard

The table of origins and the sums of the ledger are made here too.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import xxhash

from headrace.engine.job import Phase
from headrace.engine.serving import load
from headrace.errors import HeadraceError, InputError
from headrace.io import FileSum, output_errors, write_all
from headrace.plan.keys import source_key
from headrace.plan.permutation import permute
from headrace.preparing.ledger import NothingLeftError, reasons_in_words
from headrace.preparing.options import SPLIT_NAMES
from headrace.preparing.shards.filling import list_name, pack_listed
from headrace.preparing.shards.inputs import MediaInput
from headrace.preparing.shards.listing import numbered
from headrace.preparing.shards.messages import FoundSample, FoundSpan, ListedSample, ShardSurvey, survey_path
from headrace.preparing.shards.options import ShardOptions, ShardOutput
from headrace.preparing.sources import counted_from, record_noun
from headrace.stores import ContentLedger, DocumentLedger, ErrorEntry, ProvenanceWriter
from headrace.stores.arguments import IntArray
from headrace.stores.tar.writer import member_bytes

GOOD: Final = 0
BAD: Final = 1
DUPLICATE: Final = 2


class Gathered:
    """Collects the samples in the order of the input; 41 bytes per sample."""

    def __init__(self) -> None:
        self._low, self._high = array("Q"), array("Q")
        self._tar_bytes, self._content_bytes = array("q"), array("q")
        self._fates = bytearray()

    def __len__(self) -> int:
        return len(self._fates)

    def add(self, sample: FoundSample) -> None:
        """Add the next sample."""
        key = self.key(sample, len(self._fates))
        digest = xxhash.xxh3_128_intdigest(key.encode()) if not sample.bad else 0
        self._low.append(digest & (1 << 64) - 1)
        self._high.append(digest >> 64)
        self._fates.append(BAD if sample.bad else GOOD)
        size = 0 if sample.bad else sum(member_bytes(f"{key}.{part.name}", part.size) for part in sample.parts)
        self._tar_bytes.append(size)
        self._content_bytes.append(sum(part.size for part in sample.parts))

    @staticmethod
    def key(sample: FoundSample, number: int) -> str:
        """Return the key of sample ``number``, counted with bad samples."""
        return sample.key or numbered(number)

    def fates(self) -> tuple[IntArray, IntArray]:
        """Return what becomes of each sample, and the first sample with the same key.

        Keys are compared by a hash of 128 bits: among 10^12 keys two different ones have the same hash with a
        probability of about 10^-15.

        Returns:
            (n,) int64, `GOOD`, `BAD` or `DUPLICATE`; and (n,) int64, for a duplicate the number of the first sample
            with its key, for every other sample its own number.
        """
        fates = np.frombuffer(self._fates, np.uint8).astype(np.int64)
        firsts = np.arange(len(fates))
        good = np.flatnonzero(fates == GOOD)
        low, high = (np.frombuffer(half, np.uint64)[good] for half in (self._low, self._high))
        order = np.lexsort((low, high))  # The sort is stable: of equal keys the first sample comes first.
        low, high = low[order], high[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        heads = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
        firsts[good[order]] = good[order[heads]]
        fates[firsts != np.arange(len(fates))] = DUPLICATE
        return fates, firsts

    @property
    def tar_bytes(self) -> IntArray:
        """(n,) int64, the bytes of each sample in a tar; 0 for a bad sample."""
        return np.array(self._tar_bytes, np.int64)

    @property
    def content_bytes(self) -> IntArray:
        """(n,) int64, the bytes in the parts of each sample."""
        return np.array(self._content_bytes, np.int64)


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the shards begin among the samples of the output.

    Attributes:
        bounds: (shards + 1,) numbers; shard s holds the samples ``[bounds[s], bounds[s + 1])``.
        splits: for each part of the split its shards ``[first, end)``.
    """

    bounds: tuple[int, ...]
    splits: dict[str, tuple[int, int]]

    @property
    def num_shards(self) -> int:
        """Number of shards in all parts."""
        return len(self.bounds) - 1


def output_order(kept: IntArray, seed: int | None) -> IntArray:
    """Return the numbers of the kept samples in the order of the output, as (kept,) int64.

    Args:
        kept: (kept,) int64, their numbers in ascending order.
        seed: seed of the shuffle; None keeps the order.
    """
    if seed is None:
        return kept
    ranks = np.arange(len(kept))
    return kept[permute(ranks, len(kept), source_key(seed, "", "prepare shuffle"))]


def cut_shards(sizes: IntArray, output: ShardOutput) -> ShardPlan:
    """Cut samples into shards in their order. Each shard is as full as the limits allow; parts never share a shard.

    For example, five samples of 4 bytes with at most 10 bytes per shard and a split of 4 to 1 give the shards
    ``[0, 2)`` and ``[2, 4)`` of train and ``[4, 5)`` of val.

    Args:
        sizes: (samples,) int64, bytes of each sample in a tar, in the order of the output.
        output: limits of the shards, and shares of the parts.
    """
    shares = output.split_ratio or (1.0,)
    ends = split_ends(len(sizes), shares)
    bounds, splits = [0], {}
    for name, begin, end in zip(SPLIT_NAMES, [0, *ends], ends, strict=False):
        first = len(bounds) - 1
        bounds += cut(sizes[begin:end], begin, max_samples=output.samples_per_shard, max_bytes=output.shard_bytes)
        splits[name] = (first, len(bounds) - 1)
    for name in SPLIT_NAMES[len(shares) :]:
        splits[name] = (len(bounds) - 1, len(bounds) - 1)
    return ShardPlan(bounds=tuple(bounds), splits=splits)


def split_ends(num_samples: int, shares: Sequence[float]) -> list[int]:
    """Return where each part of a split ends: the cumulative sums of the shares, rounded down.

    >>> split_ends(10, (8, 1, 1))
    [8, 9, 10]
    """
    from fractions import Fraction

    total = sum(map(Fraction, shares))
    sums = [sum(map(Fraction, shares[: count + 1])) for count in range(len(shares))]
    return [int(num_samples * part / total) for part in sums]


def cut(sizes: IntArray, begin: int, *, max_samples: int | None, max_bytes: int | None) -> list[int]:
    """Return where the shards of consecutive samples end; ``begin`` is the number of the first sample."""
    sums = np.concatenate([[0], np.cumsum(sizes)])
    ends, at = [], 0
    while at < len(sizes):
        end = len(sizes) if max_samples is None else min(at + max_samples, len(sizes))
        if max_bytes is not None:
            end = min(end, int(np.searchsorted(sums, sums[at] + max_bytes, side="right")) - 1)
        at = max(end, at + 1)
        ends.append(begin + at)
    return ends


FLUSH_BYTES: Final = 64 << 20
_REASONS: Final = {BAD: "bad", DUPLICATE: "duplicate"}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the first phase that the second phase and the end of a run need."""

    plan: ShardPlan
    documents: DocumentLedger
    contents: ContentLedger
    errors: tuple[ErrorEntry, ...]
    origins: tuple[FileSum, ...]
    hashes: dict[int, str]
    """Hashes of tables by the number of their input, and of captions by that number plus ``len(inputs)``."""
    spools: dict[int, int] = {}
    """Bytes of each spool, by the numbers of their tasks."""

    def writing(self, mark: str) -> Phase:
        """The second phase, for processes that do its tasks in any order."""
        return Phase(name=f"write-{mark}", num_tasks=self.plan.num_shards, total_bytes=self.contents.kept)


class Sums:
    """Collects surveys in the order of the input: samples, errors, and how far each input was read."""

    def __init__(self, inputs: Sequence[MediaInput]) -> None:
        self._inputs = inputs
        self.gathered = Gathered()
        self.errors: list[ErrorEntry] = []
        self.hashes: dict[int, str] = {}
        self.spools: dict[int, int] = {}
        self.blank = 0
        self.lines = [0] * len(inputs)
        self.input_bytes = 0
        self._reached = [0] * len(inputs)

    def add(self, task_index: int, survey: ShardSurvey) -> None:
        """Add the survey of the next task.

        Raises:
            HeadraceError: a span of an input does not begin where the one before ended.
        """
        if survey.spool_bytes:
            self.spools[task_index] = survey.spool_bytes
        for span in survey.spans:
            name = self._inputs[span.input].name
            if span.end > span.begin:
                _equal(f"{name}: where one span ends, and where the next begins", self._reached[span.input], span.begin)
                self._reached[span.input] = span.end
            _equal(f"{name}: lines, and samples and blank ones", span.lines, len(span.samples) + len(span.blank))
            self.take(span)

    def take(self, span: FoundSpan) -> None:
        """Add a span, whether or not it continues the one before."""
        for sample in span.samples:
            self.gathered.add(sample)
            if sample.bad:
                self.errors.append(self.entry(span.input, self.lines[span.input] + sample.line, sample))
        self.lines[span.input] += span.lines
        self.blank += len(span.blank)
        self.input_bytes += span.input_bytes
        if span.xxh3_128:
            self.hashes[span.input] = span.xxh3_128

    def entry(self, given: int, line: int, sample: FoundSample) -> ErrorEntry:
        """Return the error entry of a bad sample; ``line`` counts from 0."""
        table = self._inputs[given].table
        unit = "sample" if table is None else record_noun(table.format, "document")
        message = f"{sample.name or sample.key}: {sample.bad}" if table is None else sample.bad
        return ErrorEntry(file=self._inputs[given].name, unit=unit, line=line + counted_from(unit), message=message)

    def check_left(self, fates: IntArray) -> None:
        """Raise NothingLeftError if no sample is good, given the `Gathered.fates` of all."""
        if not (fates == GOOD).any():
            why = reasons_in_words(dropped_by(fates), self.errors) if len(fates) else "the inputs are empty."
            raise NothingLeftError(f"none of {len(fates):,} samples is left: {why} Nothing was written.")

    def check_whole(self) -> None:
        """Raise HeadraceError if an input was not read to its end."""
        for given, reached in zip(self._inputs, self._reached, strict=True):
            if given.table is not None:
                _equal(f"{given.name}: its extent, and what was read", given.table.extent, reached)


def dropped_by(fates: IntArray) -> dict[str, int]:
    """Return how many samples are left out, for each reason."""
    return {name: int((fates == fate).sum()) for fate, name in _REASONS.items() if (fates == fate).any()}


class Planner:
    """Decides the place of every sample once all are found, and writes the lists of the shards.

    Args:
        inputs: the inputs.
        options: all options.
        surveys: the folder of the surveys.
        num_tasks: how many there are.
        on_survey: called with each survey that was read, which happens more than once.
    """

    def __init__(
        self,
        inputs: Sequence[MediaInput],
        options: ShardOptions,
        surveys: Path,
        num_tasks: int,
        on_survey: Callable[[], None],
    ) -> None:
        self._inputs = inputs
        self._options = options
        self._surveys = surveys
        self._num_tasks = num_tasks
        self._on_survey = on_survey

    def run(self, sums: Sums, lists: Path, origins: Path) -> Planned:
        """Write the lists of the shards, and the table of origins.

        Raises:
            InputError: a key comes twice and the options do not allow it, or no samples are left.
            OutputError: a file cannot be written.
        """
        fates, firsts = sums.gathered.fates()
        if (fates == DUPLICATE).any() and self._options.source.duplicates == "error":
            self._refuse(fates, firsts)
        kept = np.flatnonzero(fates == GOOD)
        contents = sums.gathered.content_bytes
        dropped = dropped_by(fates)
        sums.check_left(fates)
        order = output_order(kept, self._options.output.shuffle)
        plan = cut_shards(sums.gathered.tar_bytes[order], self._options.output)
        self._write_lists(lists, plan, order, len(fates))
        return Planned(
            plan=plan,
            documents=DocumentLedger(read=len(fates), kept=len(kept), dropped=dropped, blank_lines=sums.blank),
            contents=ContentLedger(
                read=int(contents.sum()),
                kept=int(contents[kept].sum()),
                dropped={
                    name: int(contents[fates == fate].sum()) for fate, name in _REASONS.items() if name in dropped
                },
            ),
            errors=tuple(sums.errors),
            origins=self._write_origins(origins, fates, kept, order),
            hashes=dict(sums.hashes),
            spools=dict(sums.spools),
        )

    def _spans(self) -> Iterator[tuple[int, FoundSpan, int, int]]:
        """Yield for each span of all surveys its task, the span, the number of its first sample, and its first line."""
        number, lines = 0, [0] * len(self._inputs)
        for task_index in range(self._num_tasks):
            survey = load(survey_path(self._surveys, task_index), ShardSurvey)
            if survey is None:
                raise HeadraceError(f"{survey_path(self._surveys, task_index)}: is missing: start again with --restart")
            self._on_survey()
            for span in survey.spans:
                yield task_index, span, number, lines[span.input]
                number += len(span.samples)
                lines[span.input] += span.lines

    def _write_lists(self, lists: Path, plan: ShardPlan, order: IntArray, num_found: int) -> None:
        places = np.full(num_found, -1, np.int64)
        places[order] = np.arange(len(order))
        bounds = np.array(plan.bounds)
        pending: dict[int, bytearray] = {}
        size = 0
        with output_errors(lists, "create"):
            shutil.rmtree(lists, ignore_errors=True)
            lists.mkdir()
        for task_index, span, number, _ in self._spans():
            in_span = places[number : number + len(span.samples)]
            shards = (np.searchsorted(bounds, in_span, side="right") - 1).tolist()
            for at, (sample, place, shard) in enumerate(zip(span.samples, in_span.tolist(), shards, strict=True)):
                if place < 0:
                    continue
                key = Gathered.key(sample, number + at)
                listed = ListedSample(place - plan.bounds[shard], key, span.input, task_index, sample.parts)
                data = pack_listed(listed)
                pending.setdefault(shard, bytearray()).extend(data)
                size += len(data)
            if size >= FLUSH_BYTES:
                _flush(lists, pending)
                size = 0
        _flush(lists, pending)
        for shard in range(plan.num_shards):  # A saved plan must find its lists even after a loss of power.
            with output_errors(lists, "sync"), (lists / list_name(shard)).open("rb") as file:
                os.fsync(file.fileno())

    def _write_origins(self, folder: Path, fates: IntArray, kept: IntArray, order: IntArray) -> tuple[FileSum, ...]:
        with_ids = self._options.source.key_field is not None or any(given.table is None for given in self._inputs)
        is_shuffled = self._options.output.shuffle is not None
        writer = ProvenanceWriter(folder, with_order=is_shuffled, with_ids=with_ids)
        try:
            ordinal = 0
            for _, span, number, first_line in self._spans():
                own = fates[number : number + len(span.samples)].tolist()
                skipped = [(line, "blank") for line in span.blank]
                skipped += [
                    (sample.line, _REASONS[fate])
                    for sample, fate in zip(span.samples, own, strict=True)
                    if fate != GOOD
                ]
                skipped.sort()
                count = own.count(GOOD)
                lines = np.array([line for line, _ in skipped], np.int64)
                reasons = [reason for _, reason in skipped]
                writer.add_span(ordinal, count, span.input, first_line, span.lines, lines, reasons)
                if with_ids:
                    named = [
                        sample.name or Gathered.key(sample, number + at)
                        for at, (sample, fate) in enumerate(zip(span.samples, own, strict=True))
                        if fate == GOOD
                    ]
                    writer.add_ids(named)
                ordinal += count
            if is_shuffled:
                writer.add_order(np.searchsorted(kept, order))
            return writer.finish()
        except BaseException:
            writer.suspend()
            raise

    def _refuse(self, fates: IntArray, firsts: IntArray) -> None:
        later = int(np.flatnonzero(fates == DUPLICATE)[0])
        wanted = {int(firsts[later]): "", later: ""}
        key = ""
        sums = Sums(self._inputs)
        for _, span, number, first_line in self._spans():
            for at in wanted:
                if number <= at < number + len(span.samples):
                    sample = span.samples[at - number]
                    entry = sums.entry(span.input, first_line + sample.line, sample)
                    wanted[at] = f"{entry.file}, {entry.unit} {entry.line:,}"
                    key = Gathered.key(sample, at)
        count = int((fates == DUPLICATE).sum())
        first, second = wanted.values()
        raise InputError(
            f"the key {key!r} comes twice: {first}, and {second} ({count:,} such samples in all). A key must name one "
            "sample: choose another --key-field, or keep the first of each with --duplicates drop. Nothing was written."
        )


def _flush(lists: Path, pending: dict[int, bytearray]) -> None:
    for shard, data in pending.items():
        path = lists / list_name(shard)
        with output_errors(path, "write"), path.open("ab", buffering=0) as file:
            write_all(file.write, data)
    pending.clear()


def _equal(what: str, left: int, right: int) -> None:
    if left != right:
        raise HeadraceError(
            f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect of "
            "Headrace or of this machine: please report it."
        )
