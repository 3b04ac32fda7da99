"""`account`: what a run was fed before a step, and what became of every sample of its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from headrace.config import whole
from headrace.datasets import FramedRun, Run
from headrace.datasets.accounts import most_counted
from headrace.datasets.dataset import CountedDataset, Dataset, FixedDataset
from headrace.datasets.exclusions import Exclusion, How, range_numbers, ranges_text
from headrace.errors import ConfigError, HeadraceError
from headrace.plan import IntArray
from headrace.plan.chaptered.chapters import parts_of
from headrace.plan.chaptered.epochs import (
    MOST_INTERVALS,
    EpochColumns,
    Interval,
    PartOfEpoch,
    SourceEpochs,
    fed_before,
    source_epochs,
    united,
)
from headrace.plan.chaptered.sequence import EpochSeries
from headrace.tracing.curves import MixPoint, mix_point
from headrace.tracing.seen import seen

_SAMPLED = 1024
"""Samples from which an estimate is made."""

_AT_ONCE = 8192
_AMOUNTS = ("tokens", "supervised_tokens", "documents")


class EpochAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the samples of an epoch of a source are; each is in exactly one of the columns from ``fed`` on.

    Attributes:
        epoch: its number, from 0, or that of the first of several that are alike.
        num_epochs: how many are alike.
        fed: samples that were fed in it.
        to_come: samples that were not fed so far.
        deferred: samples that were skipped, and still come in this epoch.
        dropped: samples that were skipped, or left out by a limit, and do not come in this epoch.
        excluded: samples that are left out by an exclusion.
        left_behind: samples that were not fed when the source got other data, which ended the epoch.
    """

    epoch: int
    num_epochs: int
    fed: int
    to_come: int
    deferred: int
    dropped: int
    excluded: int
    left_behind: int


_COLUMNS = EpochAccount.__struct_fields__


class Fed(msgspec.Struct, frozen=True, kw_only=True):
    """What was fed: samples, and what they hold; None where it is not known without reading.

    Attributes:
        samples: number of samples, each counted as often as it was fed.
        tokens: tokens of these samples, without pads.
        supervised_tokens: labels that are trained on.
        documents: documents, or pieces of them in windows and packs.
        estimated: names of the fields above that are estimates.
    """

    samples: int
    tokens: int | None = None
    supervised_tokens: int | None = None
    documents: int | None = None
    estimated: tuple[str, ...] = ()


class ExclusionAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What one edit excluded of a source; lists of numbers are text with ranges, as ``"3 7-9"``.

    Attributes:
        step: the first step that it holds for.
        how: ``"mask"`` or ``"drop"``.
        documents: documents that were asked for.
        samples: samples that were dropped.
        other_documents: other documents of which the dropped samples hold tokens, in the epoch of the edit; None if
            they are not known without the data, or there are more than 8,192 samples.
    """

    step: int
    how: How
    documents: str
    samples: str
    other_documents: str | None


class SourceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the samples of a source. A source whose data were changed has one for each dataset that it had.

    Attributes:
        source: path of the source, ``"."`` for a single dataset.
        data: what its samples are made of.
        num_samples: number of samples in the dataset.
        is_current: whether the source has these data now.
        fed: what was fed.
        share: its part of all samples that the run was fed.
        epochs: the epochs that were begun, in their order, or else the first one; empty for data with an order of
            their own.
        seen: times -> number of samples that were fed so many times; empty for data with an order of their own.
        is_exact: whether ``seen`` is exact; otherwise it is an estimate.
        exclusions: what edits excluded, with the data that the source has now.
    """

    source: str
    data: str
    num_samples: int
    is_current: bool
    fed: Fed
    share: float
    epochs: tuple[EpochAccount, ...]
    seen: dict[int, int]
    is_exact: bool
    exclusions: tuple[ExclusionAccount, ...] = ()

    @property
    def present(self) -> EpochAccount | None:
        """The last of the epochs; None if there are none."""
        if not self.epochs:
            return None
        last = self.epochs[-1]
        return msgspec.structs.replace(last, epoch=last.epoch + last.num_epochs - 1, num_epochs=1)

    @property
    def epochs_begun(self) -> int:
        """The number of epochs of which something was fed or skipped."""
        return sum(one.num_epochs for one in self.epochs if one.fed or one.dropped or one.deferred)

    @property
    def epochs_complete(self) -> int:
        """The number of epochs begun in which every sample was fed that is not excluded."""
        whole = [one for one in self.epochs if one.fed + one.excluded == self.num_samples]
        return sum(one.num_epochs for one in whole if one.fed or one.dropped or one.deferred)

    def total(self, column: str) -> int:
        """Return a column, such as ``"dropped"``, over all epochs."""
        return sum(getattr(one, column) * one.num_epochs for one in self.epochs)


class RunAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was fed before a step, by source and by chapter.

    Attributes:
        step: the step before which is counted.
        fed: what was fed in all.
        sources: each source, in the order in which they came into the run.
        chapters: the mix of each chapter, which begins with the run or with an edit, as far as it was fed.
    """

    step: int
    fed: Fed
    sources: tuple[SourceAccount, ...]
    chapters: tuple[MixPoint, ...]


def account(run: Run | FramedRun, step: int | None = None, *, exact: bool = False) -> RunAccount:
    """Return what a run was fed before a step, and what became of every sample of its sources.

    Edits at later steps do not count: the account is that of the run as it was at the step. Edits at the step itself
    count, so that what they skip and exclude shows.

    Costs O(sources x chapters). How often samples were seen is exact unless several epochs are fed in large parts,
    which only edits and limits cause. Tokens are exact where all samples are alike, or few are counted; otherwise they
    are estimated from 1,024 samples. ``exact`` reads and counts as many samples as it takes.

    Args:
        run: a run.
        step: the step; by default the end of the run.
        exact: whether to count what would be estimated.

    Raises:
        ConfigError: a framed run, the samples of which are known only when they have been fed; the run has no such
            step, or no end, and no step is given.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8)
        >>> found = headrace.tracing.account(run, 5)
        >>> found.fed.samples, found.fed.tokens, found.sources[0].present.fed
        (40, 5120, 40)
    """
    if isinstance(run, FramedRun):
        raise ConfigError(
            "a framed run forms its units while it runs, so that the samples before a step are not known: ask for the "
            "account of its stream of samples, account(run.stream, N), which has one sample in each step"
        )
    if not isinstance(run, Run):
        raise ConfigError(f"run is {run!r:.80}; expected a Run")
    step = _checked(run, step)
    if any(edit.at_step > step for edit in run.edits):
        run = run.rebuilt([edit for edit in run.edits if edit.at_step <= step])
    return _Accounting(run, step, exact=exact).account()


def _checked(run: Run, step: int | None) -> int:
    if step is None:
        if run.num_steps is None:
            raise ConfigError("the run has no end: pass the step before which to count")
        return run.num_steps
    step = whole(step, "step")
    if step < 0 or (run.num_steps is not None and step > run.num_steps):
        allowed = "at least 0" if run.num_steps is None else f"0 to {run.num_steps:,}, the end of the run"
        raise ConfigError(f"there is no account before step {step:,}: steps are {allowed}")
    return step


class _Accounting:
    def __init__(self, run: Run, step: int, *, exact: bool) -> None:
        self.run, self.step, self.exact = run, step, exact
        self.plan = run.plan
        self.position = run.begin(step)
        self.series_of: dict[int, list[EpochSeries]] = {}
        for series, source in zip(self.plan.series, self.plan.source_of, strict=True):
            self.series_of.setdefault(source, []).append(series)
        # A source that was removed before it was fed is in no chapter.
        names = dict(enumerate(run.source_paths))
        names |= {source: path for chapter in self.plan.chapters for source, path in chapter.paths.items()}
        self.names = {source: path or "." for source, path in names.items()}

    def account(self) -> RunAccount:
        plan, position = self.plan, self.position
        prefix, rest = self._in_window()
        fed: dict[int, list[Interval]] = {source: [] for source in range(len(plan.sequences))}
        chapters: list[MixPoint] = []
        parts = parts_of(plan)
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            last = prefix if after is None else min(after[0].begin, prefix)
            for source, intervals in fed_before(part, last).items():
                fed[source] += intervals
            if last > part[0].begin or not chapters:
                chapters.append(mix_point(self.run, part[0].begin, last, most=MOST_INTERVALS))
        reached = plan.reached(prefix)
        for source, intervals in rest.items():
            fed[source] += intervals
        sources = [
            one for source, intervals in fed.items() for one in self._source(source, united(intervals), reached[source])
        ]
        if (found := sum(one.fed.samples for one in sources)) != position:
            raise HeadraceError(
                f"the run was fed {position:,} samples before step {self.step:,}, and its sources have {found:,}; "
                "please report this"
            )
        return RunAccount(
            step=self.step, fed=_total([one.fed for one in sources]), sources=tuple(sources), chapters=tuple(chapters)
        )

    def _in_window(self) -> tuple[int, dict[int, list[Interval]]]:
        """Return up to where the plan was fed in order, and which ranks of each source were fed beyond.

        Bucketing moves samples within windows of steps, so that the last window may be fed in part.
        """
        run, position = self.run, self.position
        if run.bucketing is None or run.buckets is None or not position:
            return position, {}
        window = run.bucketing.window_steps
        prefix = run.schedule.begin(self.step // window * window)
        if self.step % window == 0 or position == run.length:
            return position, {}
        sources, ranks = self.plan.ranks(np.sort(run.buckets.arranged(np.arange(prefix, position, dtype=np.int64))))
        found = {}
        for source in np.unique(sources).tolist():
            mine = np.sort(ranks[sources == source])
            breaks = np.flatnonzero(np.diff(mine) != 1) + 1
            found[source] = [(int(part[0]), int(part[-1]) + 1) for part in np.split(mine, breaks)]
        return prefix, found

    def _source(self, source: int, fed: list[Interval], reached: int) -> Iterator[SourceAccount]:
        """Yield the accounts of a source, one for each dataset that it had."""
        found, current = source_epochs(self.plan.sequences[source], fed, reached)
        for series in self._datasets(source):
            # A dataset that came several times has epochs for each time.
            mine = [epochs for epochs in found if epochs.series in series]
            if any(epochs.is_begun for epochs in mine):
                yield self._dataset(source, series, mine, is_current=current in mine)

    def _datasets(self, source: int) -> list[list[EpochSeries]]:
        """Return the series of each dataset of a source: a later one may have the samples of an earlier one."""
        found: list[list[EpochSeries]] = []
        for series in self.series_of[source]:
            same = [one for one in found if any(self._is_same(series, other) for other in one)]
            if not same:
                found.append([])
            (same or found[-1:])[0].append(series)
        return found

    def _is_same(self, one: EpochSeries, other: EpochSeries) -> bool:
        """Whether two series have the same samples: the leaf is shared unless a change brought other data."""
        if one.leaf is other.leaf:
            return True
        datasets = self.run.datasets
        shape = [(series.leaf.num_samples, series.leaf.first_sample) for series in (one, other)]
        return shape[0] == shape[1] and datasets[one.number].fingerprint == datasets[other.number].fingerprint

    def _dataset(
        self, source: int, series: Sequence[EpochSeries], epochs: Sequence[SourceEpochs], *, is_current: bool
    ) -> SourceAccount:
        dataset, leaf = self.run.datasets[series[-1].number], series[0].leaf
        columns = [one for some in epochs for one in some.columns()]
        samples = sum(one.fed * one.num_epochs for one in columns)
        is_endless = dataset.traits.is_endless
        times = seen(columns, leaf, exact=self.exact)
        if sum(times.counts.values()) != leaf.num_samples or (
            times.is_exact and sum(number * count for number, count in times.counts.items()) != samples
        ):
            raise HeadraceError(
                f"source {self.names[source]!r} has {leaf.num_samples:,} samples, fed {samples:,} times, and they "
                f"were seen {times.counts} times; please report this"
            )
        return SourceAccount(
            source=self.names[source],
            data=dataset.describe(),
            num_samples=leaf.num_samples,
            is_current=is_current,
            fed=self._fed(columns),
            share=samples / self.position if self.position else 0.0,
            epochs=()
            if is_endless
            else tuple(EpochAccount(**{name: getattr(one, name) for name in _COLUMNS}) for one in columns),
            seen={} if is_endless else times.counts,
            is_exact=times.is_exact,
            exclusions=tuple(self._exclusions(source)) if is_current else (),
        )

    def _exclusions(self, source: int) -> Iterator[ExclusionAccount]:
        for edit in self.run.edits:
            position = self.run.schedule.begin(edit.at_step)
            for path, one in edit.exclude.items():
                if self.plan.chapter_at(position).sources.get(path) == source:
                    yield ExclusionAccount(
                        step=edit.at_step,
                        how=one.how,
                        documents=one.documents,
                        samples=one.left_out,
                        other_documents=self._others(source, position, one) if one.how == "drop" else "",
                    )

    def _others(self, source: int, position: int, one: Exclusion) -> str | None:
        """Return the other documents of samples that are dropped at a position."""
        samples, documents = range_numbers(one.left_out), range_numbers(one.documents)
        if len(samples) > _AT_ONCE:
            return None
        section, _ = self.plan.sequences[source].section_at(self.plan.reached(position)[source])
        number = section.series.number
        origins = self.run.datasets[number].origins(_located(self.run, number, samples, section.epoch))
        if not all(origins):
            return None
        held = {piece.document for pieces in origins for piece in pieces if piece.document is not None}
        held -= set(documents.tolist())
        return ranges_text(np.array(sorted(held), dtype=np.int64))

    def _fed(self, columns: Sequence[EpochColumns]) -> Fed:
        """Return what the fed samples of a dataset hold; a masked dataset has series of its own."""
        by_series: dict[int, list[tuple[PartOfEpoch, int]]] = {}
        for one in columns:
            for part in one.parts:
                if part.count:
                    by_series.setdefault(part.section.series.number, []).append((part, one.num_epochs))
        return _total([self._counted(number, mine) for number, mine in by_series.items()])

    def _counted(self, number: int, parts: Sequence[tuple[PartOfEpoch, int]]) -> Fed:
        dataset = self.run.datasets[number]
        samples = sum(part.count * times for part, times in parts)
        if not isinstance(dataset, CountedDataset):
            return _alike(dataset, samples)
        scan = _Scan(dataset, self.run, number)
        is_alike = not dataset.traits.is_counted
        cost = scan.cost(parts)
        if self.exact or cost <= (_SAMPLED if is_alike else most_counted(dataset)):
            return Fed(samples=samples, **dict(zip(_AMOUNTS, scan.counted(parts).tolist(), strict=True)))
        guessed = dict(zip(_AMOUNTS, scan.estimated(parts[0][0], samples), strict=True))
        return Fed(samples=samples, estimated=("documents",) if is_alike else _AMOUNTS, **guessed)


def _total(parts: Sequence[Fed]) -> Fed:
    """Return the sum of what was fed; unknown if it is unknown of one part."""
    sums = {}
    for name in _AMOUNTS:
        values = [getattr(one, name) for one in parts if one.samples]
        sums[name] = None if None in values else sum(values)
    estimated = {name: None for one in parts for name in one.estimated if sums[name] is not None}
    return Fed(samples=sum(one.samples for one in parts), estimated=tuple(estimated), **sums)


def _alike(dataset: Dataset, samples: int) -> Fed:
    """Return what is known of samples that are not counted: their mean number of tokens."""
    if not dataset.traits.has_tokens:
        return Fed(samples=samples)
    tokens = dataset.num_tokens_per_sample
    is_exact = isinstance(dataset, FixedDataset) and tokens == int(tokens)
    return Fed(samples=samples, tokens=round(tokens * samples), estimated=() if is_exact else ("tokens",))


def _located(run: Run, number: int, samples: IntArray, epoch: int) -> IntArray:
    """Return the addresses of samples of a dataset in an epoch."""
    keys = None
    if run.is_keyed(number):
        keys = np.repeat(run.plan.keys(number, np.array([epoch], dtype=np.int64)), len(samples))
    return run.datasets[number].locate(samples, keys)


class _Scan:
    """Counts what the samples of a series hold: (3,) int64 of tokens, supervised tokens and documents."""

    def __init__(self, dataset: CountedDataset, run: Run, number: int) -> None:
        self.dataset, self.run, self.number = dataset, run, number
        self.leaf = run.plan.leaves[number]

    @cached_property
    def _same_in_every_epoch(self) -> bool:
        """Whether an epoch's key changes nothing; a probe of some samples with two keys."""
        probe = self._spread(_SAMPLED)
        one, other = (_located(self.run, self.number, probe, epoch) for epoch in (0, 1))
        return bool(np.array_equal(one, other))

    def _spread(self, most: int) -> IntArray:
        count = min(most, self.leaf.num_samples)
        return self.leaf.first_sample + np.arange(count, dtype=np.int64) * self.leaf.num_samples // count

    def _count(self, samples: IntArray, epoch: int) -> IntArray:
        counts = self.dataset.count(_located(self.run, self.number, samples, epoch))
        return np.array([counts.tokens.sum(), counts.supervised_tokens.sum(), counts.documents.sum()], dtype=np.int64)

    def cost(self, parts: Sequence[tuple[PartOfEpoch, int]]) -> int:
        """Return how many samples have to be counted for some parts of epochs, each fed so many times."""
        return sum(part.count * (1 if self._same_in_every_epoch else times) for part, times in parts)

    def counted(self, parts: Sequence[tuple[PartOfEpoch, int]]) -> IntArray:
        """Return the sums over all of some parts."""
        total = np.zeros(3, dtype=np.int64)
        for part, times in parts:
            looks, weight = (1, times) if self._same_in_every_epoch else (times, 1)
            for epoch in range(part.epoch, part.epoch + looks):
                for begin in range(part.begin, part.end, _AT_ONCE):
                    some = PartOfEpoch(epoch, begin, min(begin + _AT_ONCE, part.end), part.section)
                    total += self._count(some.samples(), epoch) * weight
        return total

    def estimated(self, part: PartOfEpoch, num_samples: int) -> list[int]:
        """Return the sums over so many samples, by the mean of some that are spread over the dataset."""
        some = self._spread(_SAMPLED)
        return [amount * num_samples // len(some) for amount in self._count(some, part.epoch).tolist()]
