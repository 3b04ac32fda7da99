"""A run that is at hand as a history of one chapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.datasets.trace import Trace
from headrace.datasets.trace_history import Chapter, History

if TYPE_CHECKING:
    from headrace.datasets.buckets import Buckets
    from headrace.datasets.run import Run


def history_of(run: Run, buckets: Buckets | None) -> History:
    """The run as ``Run.history`` gives it; ``buckets`` know the lengths that bucketing goes by."""
    window_steps = None if run.bucketing is None else run.bucketing.window_steps
    arranged = None if buckets is None else buckets.arranged
    recipe = run.recipe
    chapter = Chapter(
        trace=Trace(run.plan, run.schedule, run.length, draw=run.draw, window_steps=window_steps, arranged=arranged),
        hashes=recipe.hashes(),
        recipes=recipe.dataset,
        face=run.datasets.__getitem__,
        keyed=run.order.kind != "none",
    )
    return History([chapter])
