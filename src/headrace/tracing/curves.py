"""`mix_curve`: the mix of a run over its steps, as it was planned and as it comes, from the plan alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from headrace.datasets import Run
from headrace.errors import ConfigError
from headrace.plan.chaptered.chapters import ChapteredPlan, spans_of
from headrace.plan.chaptered.epochs import fed_ranks

MAX_POINTS: Final = 120
"""The most points of a curve."""

MOST_PASSES: Final = 1 << 12
"""The most passes through a limit that are counted one by one for a point; with more, shares are used."""

_MOST_SHARES: Final = 12_000
"""The most shares that are computed, about 30 us each; with many sources there are fewer points."""

ENDLESS_STEPS: Final = 1000
"""How many steps of an endless run are shown, if nothing says more."""


class MixPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps: the share that each source is planned to have in them, and the samples that it has.

    Steps are ``[step, end_step)``. Sources that have no part in them are left out. ``reason`` is that of an edit at
    the first of them.
    """

    step: int
    end_step: int
    samples: int
    planned: dict[str, float]
    came: dict[str, int]
    reason: str = ""

    def share(self, source: str) -> float:
        """Return the part that a source has in the samples."""
        return self.came.get(source, 0) / self.samples if self.samples else 0.0


class MixMark(msgspec.Struct, frozen=True, kw_only=True):
    """A step from which on something is different: an edit of the run, or the next stage of its mix."""

    step: int
    what: str
    reason: str = ""


class MixCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The mix of a run from a step to another one.

    Attributes:
        first_step, end_step: the steps ``[first_step, end_step)`` that it is about.
        num_steps: the number of steps of the run; None if it is endless.
        sources: the paths of all sources that come, those with the most samples first.
        points: in the order of their steps.
        marks: edits and stages within these steps.
    """

    first_step: int
    end_step: int
    num_steps: int | None
    sources: tuple[str, ...]
    points: tuple[MixPoint, ...]
    marks: tuple[MixMark, ...]


def mix_curve(run: Run, first_step: int = 0, end_step: int | None = None) -> MixCurve:
    """Return the mix of a run over its steps. Reads no data; a plan over recipes is enough.

    Costs O(sources) a point, of which there are at most 120.

    Args:
        run: a run.
        first_step: the first step.
        end_step: the step after the last one; by default the end of the run. Of an endless run that is 1,000 steps
            after the last edit or stage.

    Raises:
        ConfigError: the run has no such steps.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> blend = headrace.Blend({"web": web, "code": code}, weights={"web": 3, "code": 1})
        >>> run = headrace.Run(blend, global_batch_size=8).edit(50, weights={"web": 1, "code": 1}, reason="decay")
        >>> curve = headrace.tracing.mix_curve(run, 0, 100)
        >>> curve.points[0].planned, curve.points[-1].planned
        ({'web': 0.75, 'code': 0.25}, {'web': 0.5, 'code': 0.5})
        >>> [(mark.step, mark.reason) for mark in curve.marks]
        [(50, 'decay')]
    """
    marks = _marks(run)
    if end_step is None:
        last = max((mark.step for mark in marks), default=0)
        end_step = run.num_steps if run.num_steps is not None else last + ENDLESS_STEPS
    if not 0 <= first_step < end_step or (run.num_steps is not None and end_step > run.num_steps):
        steps = "has no end" if run.num_steps is None else f"has the steps 0 to {run.num_steps - 1:,}"
        raise ConfigError(f"steps {first_step:,} to {end_step - 1:,} are asked for, and the run {steps}")
    within = [mark for mark in marks if first_step <= mark.step < end_step]
    edges = _edges(run, first_step, end_step, [mark.step for mark in within])
    points = [mix_point(run, run.begin(step), run.begin(after)) for step, after in pairwise(edges)]
    totals: Counter[str] = Counter()
    for point in points:
        totals.update(point.came)
        totals.update(dict.fromkeys(point.planned, 0))
    return MixCurve(
        first_step=first_step,
        end_step=end_step,
        num_steps=run.num_steps,
        sources=tuple(path for path, _ in totals.most_common()),
        points=tuple(points),
        marks=tuple(within),
    )


def _edges(run: Run, first: int, end: int, marks: list[int]) -> list[int]:
    num_points = max(8, min(MAX_POINTS, _MOST_SHARES // max(1, len(run.paths))))
    even = np.linspace(first, end, min(num_points, end - first) + 1).astype(np.int64).tolist()
    # The planned line is exact where it breaks; marks beyond the number of points are too close to tell apart.
    return sorted({*even, *marks[:num_points]})


def _marks(run: Run) -> list[MixMark]:
    found = [MixMark(step=edit.at_step, what=", ".join(edit.asked), reason=edit.reason) for edit in run.edits]
    begins = [chapter.begin for chapter in run.plan.chapters if chapter.is_stage]
    if len(begins) < MAX_POINTS:
        steps = dict.fromkeys(map(run.schedule.step_of, begins))
        found += [MixMark(step=step, what="the next stage of the mix") for step in steps]
    return sorted(found, key=lambda mark: mark.step)


def mix_point(run: Run, begin: int, end: int, *, most: int = MOST_PASSES) -> MixPoint:
    """Return the mix of the positions ``[begin, end)`` of a run; of no positions that which is planned there.

    ``most`` is that of `samples_of`.
    """
    planned: dict[str, float] = {}
    for chapter, first, last in spans_of(run.plan.chapters, begin, max(end, begin + 1)):
        part = (last - first) / max(end - begin, 1)
        for path, share in chapter.shares.items():
            planned[path or "."] = planned.get(path or ".", 0.0) + part * float(share)
    step = run.schedule.step_of(begin)
    return MixPoint(
        step=step,
        end_step=run.schedule.step_of(end - 1) + 1 if end > begin else step,
        samples=end - begin,
        planned=planned,
        came=samples_of(run.plan, begin, end, most=most),
        reason=next((edit.reason for edit in run.edits if run.schedule.begin(edit.at_step) == begin), ""),
    )


def samples_of(plan: ChapteredPlan, begin: int, end: int, *, most: int = MOST_PASSES) -> dict[str, int]:
    """Return how many samples of each source the positions ``[begin, end)`` have.

    Where a limit cuts more passes short than ``most``, they are those of its shares, from which they differ by a sample
    or two.
    """
    found: Counter[str] = Counter()
    for chapter, first, last in spans_of(plan.chapters, begin, end):
        try:
            ranks = fed_ranks(chapter, first, last, most=most)
        except ConfigError:
            found.update({path or ".": round(share * (last - first)) for path, share in chapter.shares.items()})
            continue
        for source, intervals in ranks.items():
            found[chapter.paths[source] or "."] += sum(high - low for low, high in intervals)
    return dict(found)
