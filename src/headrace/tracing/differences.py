"""`first_difference`: the first step at which two runs are fed otherwise, and what makes it so; and saved states."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.config import nearest_path
from headrace.datasets import Dataset, Run
from headrace.errors import ConfigError, StateError
from headrace.io import read_small
from headrace.plan import Cursor
from headrace.plan.chaptered.chapters import comparable
from headrace.plan.chaptered.sequence import SeriesSection
from headrace.plan.cursor import PAST_VERSION, outside_run
from headrace.plan.recipe import differing_parts
from headrace.plan.tree import MAX_POSITIONS

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
    step = bisect_left(range(1, most), True, key=lambda after: not _same(one, other, after))
    field, message = next(_told(one, other, step))
    return RunDifference(step=step, field=field, message=f"step {step:,}: {message}")


def _same(one: Run, other: Run, step: int) -> bool:
    """Whether all steps before one are the same."""
    ends = [run.begin(step) for run in (one, other)]
    return ends[0] == ends[1] and not differing_parts(one.past(ends[0]).hashes(), other.past(ends[1]).hashes())


class _Side:
    """One of two runs at a step at which they differ.

    Attributes:
        shares: name of each source of the mix -> its part of it.
        ranks: name -> how many of its samples come before the step.
        sections: name -> the section that its last sample of the step belongs to, as an epoch, and with it another
            order, may begin within the step.
    """

    def __init__(self, run: Run, step: int) -> None:
        self.run = run
        begin, self.end = run.schedule.begin(step), run.begin(step + 1)
        self.size = run.schedule.size(step)
        self.has_ended = run.num_steps is not None and run.num_steps <= step
        plan = run.plan
        chapter = plan.chapter_at(begin)
        sources = {path or ".": source for path, source in sorted(chapter.sources.items())}
        self.shares = {path or ".": share for path, share in chapter.shares.items()}
        before, after = plan.reached(begin), plan.reached(self.end)
        self.ranks = {name: before[source] for name, source in sources.items()}
        self.sections = {
            name: plan.sequences[source].section_at(max(after[source] - 1, 0))[0] for name, source in sources.items()
        }

    def dataset(self, name: str) -> Dataset:
        """The dataset that a source has there."""
        return self.run.datasets[self.sections[name].series.number]


def _told(one: Run, other: Run, step: int) -> Iterator[tuple[DifferentField, str]]:
    """Yield what differs at a step, the most telling first."""
    old, new = _Side(one, step), _Side(other, step)
    if old.has_ended or new.has_ended:
        shown = ["ends" if side.has_ended else "goes on" for side in (old, new)]
        yield "length", f"the run {shown[0]} -> {shown[1]}"
    if old.size != new.size:
        yield "global_batch_size", f"global batch {old.size:,} -> {new.size:,}"
    yield from _told_of_sources(old, new)
    if one.bucketing != other.bucketing:
        yield "bucketing", f"bucketing {one.bucketing} -> {other.bucketing}"
    if old.end != new.end:
        begin = one.schedule.begin(step)
        yield "length", f"the last step has {old.end - begin:,} -> {new.end - begin:,} samples"
    yield "mix", "the sources are mixed in another sequence"


def _told_of_sources(old: _Side, new: _Side) -> Iterator[tuple[DifferentField, str]]:
    names = sorted({*old.shares, *new.shares})
    moved = {name: f"{name} {_percent(old.shares, name)} -> {_percent(new.shares, name)}" for name in names}
    if old.shares.keys() != new.shares.keys():
        yield "sources", ", ".join(moved.values())
        return
    if changed := [moved[name] for name in names if old.shares[name] != new.shares[name]]:
        yield "weights", f"weights of {', '.join(changed)}"
    if skipped := [f"{n} {old.ranks[n]:,} -> {new.ranks[n]:,}" for n in names if old.ranks[n] != new.ranks[n]]:
        yield "skip", f"how far sources have come: {', '.join(skipped)}"
    for name in names:
        before, after = old.dataset(name), new.dataset(name)
        if comparable(before.recipe) != comparable(after.recipe):
            yield "data", f"data of {name}: {before.describe()} -> {after.describe()}"
        left_out, now = old.sections[name].left_out, new.sections[name].left_out
        if not np.array_equal(left_out, now):
            yield "exclude", f"samples of {name} that are excluded: {len(left_out):,} -> {len(now):,}"
    for name in names:
        orders = [_order(side.sections[name]) for side in (old, new)]
        if orders[0] != orders[1]:
            yield "order", f"order of {name}: {orders[0]} -> {orders[1]}"


def _percent(shares: dict[str, Fraction], name: str) -> str:
    if name not in shares:
        return "not there"
    return f"{float(100 * shares[name]):.4g} %"


def _order(section: SeriesSection) -> str:
    recipe = section.series.order.recipe
    return ", ".join(f"{name} {value}" for name, value in recipe.items())


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state of a loader that was saved as JSON.

    Raises:
        StateError: it cannot be read, or is no JSON object.
    """
    try:
        return msgspec.json.decode(read_small(Path(path)), type=dict[str, Any])
    except OSError as error:
        raise StateError(f"the saved state cannot be read: {error}{nearest_path(path)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{path}: this is not the state_dict() of a loader as JSON: {error}") from error


def is_of(run: Run, cursor: Cursor) -> bool:
    """Return whether a run fed the same before the position of a state as the run of the state."""
    if outside_run(cursor.position, run.length) is not None:
        return False
    recipe = run.past(cursor.position) if cursor.version == PAST_VERSION else run.recipe
    return not differing_parts(recipe.hashes(), cursor.recipe)
