"""`first_difference`: the first step at which two runs are fed otherwise, and what makes it so."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np

from headrace.datasets import Run
from headrace.errors import ConfigError
from headrace.plan.past import comparable
from headrace.plan.sequence import SeriesSection
from headrace.plan.tree import MAX_POSITIONS
from headrace.tracing.accounting import chaptered, planned_shares

DifferentField = Literal[
    "length", "global_batch_size", "sources", "weights", "skip", "data", "exclude", "order", "mix", "bucketing"
]


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where two runs part.

    Attributes:
        step: the first step that is fed otherwise; all steps before are the same.
        field: what makes it, named as the argument of a run or of an edit.
        message: the same as a sentence, with the values of both runs.
    """

    step: int
    field: DifferentField
    message: str


def first_difference(one: Run, other: Run) -> RunDifference | None:
    """Return the first step at which two runs differ and what makes it so; None if they are fed the same to the end.

    Compares plans, as saved states do, and reads no data. About 60 times O(sources x chapters).

    Raises:
        ConfigError: not two runs.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> blend = headrace.Blend({"web": web, "code": code}, weights={"web": 1, "code": 1})
        >>> run = headrace.Run(blend, global_batch_size=8)
        >>> headrace.tracing.first_difference(run, run.edit(10, weights={"web": 3, "code": 1})).message
        'step 10: weights of code 50 % -> 25 %, web 50 % -> 75 %'
    """
    for run in (one, other):
        if not isinstance(run, Run):
            raise ConfigError(f"run is {run!r:.80}; expected a Run")
    lengths = [run.num_steps for run in (one, other) if run.num_steps is not None]
    most = max(lengths) if len(lengths) == 2 else min(run.schedule.step_of(MAX_POSITIONS // 2) for run in (one, other))
    if _same(one, other, most):
        return None
    low, high = 0, most
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if _same(one, other, middle) else (low, middle)
    field, message = next(_told(one, other, low))
    return RunDifference(step=low, field=field, message=f"step {low:,}: {message}")


def _end(run: Run, step: int) -> int:
    end = run.schedule.begin(step)
    return end if run.length is None else min(end, run.length)


def _same(one: Run, other: Run, step: int) -> bool:
    """Whether all steps before one are the same."""
    ends = [_end(run, step) for run in (one, other)]
    return ends[0] == ends[1] and one.past(ends[0]).hashes() == other.past(ends[1]).hashes()


def _told(one: Run, other: Run, step: int) -> Iterator[tuple[DifferentField, str]]:
    """Yield what differs at a step, the most telling first."""
    runs = (one, other)
    ended = [run.num_steps is not None and run.num_steps <= step for run in runs]
    if any(ended):
        shown = ["ends" if is_ended else "goes on" for is_ended in ended]
        yield "length", f"the run {shown[0]} -> {shown[1]}"
    sizes = [run.schedule.size(step) for run in runs]
    if sizes[0] != sizes[1]:
        yield "global_batch_size", f"global batch {sizes[0]:,} -> {sizes[1]:,}"
    begin = one.schedule.begin(step)
    plans = [chaptered(run) for run in runs]
    chapters = [plan.chapter_at(begin) for plan in plans]
    shares = [
        {path or ".": share for path, share in planned_shares(chapter, begin, begin + 1).items()}
        for chapter in chapters
    ]
    names = sorted({*shares[0], *shares[1]})
    if shares[0].keys() != shares[1].keys():
        moved = [f"{name} {_percent(shares[0], name)} -> {_percent(shares[1], name)}" for name in names]
        yield "sources", ", ".join(moved)
    if changed := [name for name in names if shares[0].get(name) != shares[1].get(name)]:
        moved = [f"{name} {_percent(shares[0], name)} -> {_percent(shares[1], name)}" for name in changed]
        yield "weights", f"weights of {', '.join(moved)}"
    by_name = [
        {path or ".": (plan, source) for path, source in chapter.sources.items()}
        for plan, chapter in zip(plans, chapters, strict=True)
    ]
    ends = [_end(run, step + 1) for run in runs]
    ranks = [[plan.reached(begin)[source] for _, (plan, source) in sorted(named.items())] for named in by_name]
    if ranks[0] != ranks[1]:
        moved = [f"{name} {low:,} -> {high:,}" for name, low, high in zip(names, *ranks, strict=True) if low != high]
        yield "skip", f"how far sources have come: {', '.join(moved)}"
    # An epoch, and with it another order, may begin within the step.
    sections = [
        [
            plan.sequences[source].section_at(max(chapter.reached(end)[source] - 1, 0))[0]
            for _, (plan, source) in sorted(named.items())
        ]
        for named, chapter, end in zip(by_name, chapters, ends, strict=True)
    ]
    for name, before, after in zip(names, *sections, strict=True):
        datasets = [run.datasets[section.series.number] for run, section in zip(runs, (before, after), strict=True)]
        if comparable(datasets[0].recipe) != comparable(datasets[1].recipe):
            yield "data", f"data of {name}: {datasets[0].describe()} -> {datasets[1].describe()}"
        if not np.array_equal(before.left_out, after.left_out):
            yield "exclude", f"samples of {name} that are excluded: {len(before.left_out):,} -> {len(after.left_out):,}"
    for name, before, after in zip(names, *sections, strict=True):
        if _order(before) != _order(after):
            yield "order", f"order of {name}: {_order(before)} -> {_order(after)}"
    if any(run.bucketing is not None for run in runs) and one.bucketing != other.bucketing:
        yield "bucketing", f"bucketing {one.bucketing} -> {other.bucketing}"
    if ends[0] != ends[1]:
        yield "length", f"the last step has {ends[0] - begin:,} -> {ends[1] - begin:,} samples"
    yield "mix", "the sources are mixed in another sequence"


def _percent(shares: dict[str, Fraction], name: str) -> str:
    if name not in shares:
        return "not there"
    return f"{float(100 * shares[name]):.4g} %"


def _order(section: SeriesSection) -> str:
    recipe = section.series.order.recipe
    return ", ".join(f"{name} {value}" for name, value in recipe.items())
