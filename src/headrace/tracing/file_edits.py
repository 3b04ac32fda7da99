"""Edits of a run in its file, without its data: `edit_run_file` and `skip_in_run_file`.

The training takes them up when it next starts, with `headrace.Run.load`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from headrace.datasets import Run
from headrace.datasets.editing import Then
from headrace.errors import ConfigError
from headrace.tracing.rebuilding import Rebuilder
from headrace.tracing.run_file import RunFile, SavedRun, read_run_file, saved_run, write_run_file


class FileEdit(NamedTuple):
    """A change of a file: the run before and after it, and what it dropped.

    The runs are over `RecordedDataset`, and cannot be read, unless the edit needed the data.
    ``shift`` is added to a step of the run to get one of the training. ``generation`` is that of the changed file.
    """

    before: Run
    after: Run
    shift: int
    generation: int
    notes: tuple[str, ...]


def edit_run_file(
    path: str | os.PathLike[str],
    at_step: int,
    *,
    kind: str | None = None,
    seed: int | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> FileEdit:
    """Edit the last run in a file from a step of the training on.

    Args:
        path: the file that `save_run` wrote.
        at_step: the first step that is different, counted as ``headrace trace`` counts.
        kind, seed: of another order, for each source from its next epoch on; what is None stays as it is.
        dry_run: change nothing.
        changes: other arguments of `Run.edit`. Data are opened only for ``exclude``, to find the samples that it names,
            and sources cannot be added.

    Raises:
        ConfigError: the edit is not possible, or the step is past; or data are needed and cannot be opened.
        StateError: the file is damaged, or another process changed it meanwhile.
        OutputError: the file cannot be written.
    """
    given = {name: value for name, value in (("kind", kind), ("seed", seed)) if value is not None}

    def edited(run: Run, step: int) -> Run:
        order = msgspec.structs.replace(run.order, **given) if given else None
        return run.edit(step, order=order, **changes)

    return _changed(path, at_step, edited, dry_run=dry_run, read_data=bool(changes.get("exclude")))


def skip_in_run_file(
    path: str | os.PathLike[str], steps: range, *, then: Then = "drop", reason: str = "", dry_run: bool = False
) -> FileEdit:
    """Let the last run in a file skip steps of the training, see `Run.skip`; otherwise as `edit_run_file`."""

    def skipping(run: Run, step: int) -> Run:
        return run.skip(range(step, step + len(steps)), then=then, reason=reason)

    if not steps:
        raise ConfigError(f"steps={steps!r}; expected at least one step, such as range(1200, 1250)")
    return _changed(path, steps.start, skipping, dry_run=dry_run, read_data=False)


def _changed(
    path: str | os.PathLike[str], at_step: int, change: Callable[[Run, int], Run], *, dry_run: bool, read_data: bool
) -> FileEdit:
    file = read_run_file(path)
    saved = file.runs[-1]
    before = saved.run(Rebuilder(file.folder, trust_code=False).datasets(saved) if read_data else None)
    _check_not_past(file, saved, before, at_step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after = change(before, at_step - saved.shift)
    new = msgspec.structs.replace(saved_run(after, 0, 0), first_step=saved.first_step, position=saved.position)
    changed = msgspec.structs.replace(file, runs=(*file.runs[:-1], new), generation=file.generation + 1)
    if not dry_run:
        write_run_file(path, changed, before=file)
    return FileEdit(before, after, saved.shift, changed.generation, tuple(str(one.message) for one in caught))


def _check_not_past(file: RunFile, saved: SavedRun, run: Run, at_step: int) -> None:
    """Raise ConfigError for a step that the training had begun when it last started."""
    reached = max(file.reached, saved.position)
    first = run.schedule.step_of(reached)
    first += run.schedule.begin(first) < reached
    if at_step - saved.shift < first:
        raise ConfigError(
            f"step {at_step:,} is past: when the training last began, it was at position {reached:,}. Allowed are "
            f"steps from {first + saved.shift:,} on. To go back, load an earlier checkpoint, and call save_run"
        )
