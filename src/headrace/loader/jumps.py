"""What a jump of a loader to another position repeats or leaves out, without a saved state."""

from __future__ import annotations

from collections import Counter

from headrace.datasets import FramedRun, Run
from headrace.errors import ConfigError
from headrace.loader.spans import check_between_steps
from headrace.plan.chaptered.chapters import spans_of


def check_jump(run: Run | FramedRun, fed: int | None, position: int, *, is_ordered: bool) -> None:
    """Raise ConfigError for a jump within a step, or over samples that then come twice or never.

    Args:
        run: the run.
        fed: the position up to which the loader has fed; None if it has fed nothing.
        position: where it shall go on.
        is_ordered: whether the samples of a step are taken in the order of their positions.
    """
    if fed is not None and fed != position:
        back = position < fed
        counts = "" if isinstance(run, FramedRun) else _counted(run, *sorted((position, fed)))
        what = "units" if isinstance(run, FramedRun) else "samples"
        raise ConfigError(
            f"this loader has fed up to position {fed:,}, and start_at({position}) would go "
            f"{'back' if back else 'ahead'}: {abs(fed - position):,} {what}{counts} would come "
            f"{'twice' if back else 'never'}. To leave out steps for good, use run.skip(...); if you mean it, pass "
            "allow_repeats=True"
        )
    if isinstance(run, Run) and is_ordered:
        check_between_steps(run, position, "of which only a part would come")


def fed_between(run: Run, begin: int, end: int) -> dict[str, int]:
    """Return how many samples of each source are fed between two positions: path -> number. O(chapters x sources)."""
    found = Counter[str]()
    for chapter, first, last in spans_of(run.plan.chapters, begin, end):
        before, after = chapter.reached(first), chapter.reached(last)
        found.update({chapter.paths[source]: after[source] - before[source] for source in after})
    return dict(found)


def _counted(run: Run, begin: int, end: int) -> str:
    """Return the samples of each source between two positions, in brackets; nothing if there is one source."""
    counts = fed_between(run, begin, end)
    words = ", ".join(f"{path or '.'} {number:,}" for path, number in counts.items() if number)
    return f" ({words})" if len(counts) > 1 else ""
