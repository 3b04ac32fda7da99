"""Edits of a run in its file, without its data: `edit_run_file`, `skip_in_run_file` and `undo_in_run_file`.

The training takes them up when it next starts, with `headrace.Run.load`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.datasets import Run
from headrace.datasets.editing import Edit, Replace, Then
from headrace.errors import ConfigError, StateError
from headrace.plan import Cursor
from headrace.tracing.differences import is_of
from headrace.tracing.run_file import RunFile, SavedRun, read_run_file, saved_run, write_run_file
from headrace.tracing.sources import Sources

Trained = int | Mapping[str, Any] | None
"""How far the training has come: the number of its steps, a saved state, or None for what the file knows."""


class FileEdit(NamedTuple):
    """A change of a file: the run before and after it, the edit that was made, and those that are no longer there.

    The runs are over `RecordedDataset`, and cannot be read, unless the edit needed the data. ``made`` is None if edits
    were only undone. ``shift`` is added to a step of the run to get one of the training. ``generation`` is that of the
    changed file.
    """

    before: Run
    after: Run
    made: Edit | None
    undone: tuple[Edit, ...]
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
    trained: Trained = None,
    **changes: Any,
) -> FileEdit:
    """Edit the last run in a file from a step of the training on.

    Args:
        path: the file that `save_run` wrote.
        at_step: the first step that is different, counted as ``headrace trace`` counts.
        kind, seed: of another order, for each source from its next epoch on; what is None stays as it is.
        dry_run: change nothing.
        trained: the number of steps of the training, or the saved state, from which the training goes on; by default
            the last state that it gave out, which it notes in the file.
        changes: other arguments of `Run.edit`. Data are opened only for ``exclude``, to find the samples that it names,
            and sources cannot be added.

    Raises:
        ConfigError: the edit is not possible, or the step is past; or the file does not know what is past; or data are
            needed and cannot be opened.
        StateError: the file is damaged, or another process changed it meanwhile; the state is that of another run.
        OutputError: the file cannot be written.
    """
    given = {name: value for name, value in (("kind", kind), ("seed", seed)) if value is not None}

    def edited(run: Run, step: int) -> Run:
        order = msgspec.structs.replace(run.order, **given) if given else None
        return run.edit(step, order=order, **changes)

    return _changed(path, at_step, edited, dry_run=dry_run, read_data=bool(changes.get("exclude")), trained=trained)


def skip_in_run_file(
    path: str | os.PathLike[str],
    steps: range,
    *,
    then: Then = "drop",
    reason: str = "",
    replace: Replace = "no",
    dry_run: bool = False,
    trained: Trained = None,
) -> FileEdit:
    """Let the last run in a file skip steps of the training, see `Run.skip`; otherwise as `edit_run_file`."""

    def skipping(run: Run, step: int) -> Run:
        return run.skip(range(step, step + len(steps)), then=then, reason=reason, replace=replace)

    if not steps:
        raise ConfigError(f"steps={steps!r}; expected at least one step, such as range(1200, 1250)")
    return _changed(path, steps.start, skipping, dry_run=dry_run, read_data=False, trained=trained)


def undo_in_run_file(path: str | os.PathLike[str], *, dry_run: bool = False, trained: Trained = None) -> FileEdit:
    """Take back the last edit of the last run in a file, as if it had not been made; otherwise as `edit_run_file`."""
    return _changed(path, None, lambda run, _: run.rebuilt(run.edits[:-1]), dry_run=dry_run, trained=trained)


def _changed(
    path: str | os.PathLike[str],
    at_step: int | None,
    change: Callable[[Run, int], Run],
    *,
    dry_run: bool,
    trained: Trained,
    read_data: bool = False,
) -> FileEdit:
    """Change the last run in a file from a step of the training on; without a step, from its last edit on."""
    file = read_run_file(path)
    saved = file.runs[-1]
    before = saved.run(Sources(file).datasets(saved) if read_data else None)
    is_undo = at_step is None
    if is_undo and not before.edits:
        raise ConfigError(f"{path}: its last run has no edits, so that there is nothing to undo")
    step = before.edits[-1].at_step if at_step is None else at_step - saved.shift
    reached = _reached(path, file, saved, before, trained)
    _check_not_past(saved, before, step, reached)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after = change(before, step)
    new = msgspec.structs.replace(saved_run(after, 0, 0), first_step=saved.first_step, position=saved.position)
    changed = msgspec.structs.replace(
        file, runs=(*file.runs[:-1], new), generation=file.generation + 1, reached=reached
    )
    if not dry_run:
        write_run_file(path, changed, before=file)
    num_kept = len(after.edits) - (not is_undo)
    return FileEdit(
        before,
        after,
        None if is_undo else after.edits[-1],
        before.edits[num_kept:],
        saved.shift,
        changed.generation,
        tuple(str(one.message) for one in caught),
    )


def _reached(path: str | os.PathLike[str], file: RunFile, saved: SavedRun, run: Run, trained: Trained) -> int:
    """Return the position of the run from which the training goes on, as it was told, or as the file knows it."""
    if trained is None:
        reached = file.reached
    elif isinstance(trained, Mapping):
        cursor = Cursor.from_dict(trained)
        if not is_of(run, cursor):
            raise StateError(f"{path}: the given state, at position {cursor.position:,}, is that of another run")
        reached = cursor.position
    else:
        if trained < saved.first_step:
            raise ConfigError(
                f"{path}: {trained:,} steps are trained, and its last run begins at step {saved.first_step:,}; "
                "expected at least as many"
            )
        reached = run.schedule.begin(trained - saved.shift)
    return max(reached, saved.position)


def _check_not_past(saved: SavedRun, run: Run, step: int, reached: int) -> None:
    """Raise ConfigError for a step of the run that is trained, or begun."""
    first = run.schedule.step_of(reached)
    first += run.schedule.begin(first) < reached
    if step < first:
        raise ConfigError(
            f"step {step + saved.shift:,} is past: the last state of the training is at position {reached:,}. Allowed "
            f"are steps from {first + saved.shift:,} on. If it goes on from an earlier state, pass --state FILE, or "
            "the number of steps that are trained in it, --state N"
        )
