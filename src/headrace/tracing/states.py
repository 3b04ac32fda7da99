"""`state_difference`: what differs between two saved states of loaders, and what that means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.config import nearest_path
from headrace.datasets import Run
from headrace.errors import StateError
from headrace.io import read_small
from headrace.plan import Cursor
from headrace.plan.cursor import PAST_VERSION, outside_run
from headrace.plan.recipe import differing_parts
from headrace.tracing.differences import RunDifference, first_difference

StateRelation = Literal["equal", "same run", "other past", "not comparable"]


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two saved states side by side.

    Attributes:
        relation: ``equal``; of the ``same run`` at two positions; of runs with an ``other past``; or ``not
            comparable``, since a hash is of what was fed before a position, and differs at another one.
        message: the same as a sentence, with what to do.
        steps, positions: those of both states.
        differing: the parts of the recipe whose hashes differ.
        fields: other fields that differ, such as ``lanes``.
        runs: for each state the names of the given runs that it belongs to.
        difference: where the runs of the two states part; None if they do not, or no run is known for one of them.
    """

    relation: StateRelation
    message: str
    steps: tuple[int, int]
    positions: tuple[int, int]
    differing: tuple[str, ...]
    fields: tuple[str, ...]
    runs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    difference: RunDifference | None = None


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


def state_difference(
    one: dict[str, Any], other: dict[str, Any], *, runs: Mapping[str, Run] | None = None
) -> StateDifference:
    """Compare two states of loaders by their hashes and positions, and by the runs that they may be of.

    Args:
        one: a state, as `read_state` returns it.
        other: another one.
        runs: name -> a run. A state belongs to a run if the run feeds the same before its position.

    Raises:
        StateError: one of them is no state, or is damaged.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> runs = [headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=seed)) for seed in (1, 2)]
        >>> loaders = [headrace.Loader(run, micro_batch_size=8) for run in runs]
        >>> for loader in loaders:
        ...     loader.start_at(80)
        >>> states = [loader.state_dict() for loader in loaders]
        >>> headrace.tracing.state_difference(states[0], states[0]).relation
        'equal'
        >>> found = headrace.tracing.state_difference(*states, runs={"first": runs[0], "second": runs[1]})
        >>> found.runs, found.difference.field
        ((('first',), ('second',)), 'order')
    """
    old, new = Cursor.from_dict(one), Cursor.from_dict(other)
    differing = tuple(differing_parts(old.recipe, new.recipe))
    fields = tuple(
        name for name in ("version", "lanes", "balanced_step", "drawn_to") if getattr(old, name) != getattr(new, name)
    )
    known = runs or {}
    mine = tuple(name for name, run in known.items() if is_of(run, old))
    theirs = tuple(name for name, run in known.items() if is_of(run, new))
    relation, message = _related(old, new, differing, fields)
    difference = None
    if common := [name for name in mine if name in theirs]:
        if relation != "equal":
            relation = "same run"
            message = f"both are of {common[0]}: step {old.step:,}, position {old.position:,}, and step {new.step:,}, "
            message += f"position {new.position:,}"
    elif mine and theirs:
        difference = first_difference(known[mine[0]], known[theirs[0]])
        relation = "other past"
        parts = "they are fed the same" if difference is None else difference.message
        message = f"one is of {mine[0]}, the other of {theirs[0]}: {parts}"
    return StateDifference(
        relation=relation,
        message=message,
        steps=(old.step, new.step),
        positions=(old.position, new.position),
        differing=differing,
        fields=fields,
        runs=(mine, theirs),
        difference=difference,
    )


def is_of(run: Run, cursor: Cursor) -> bool:
    """Return whether a run fed the same before the position of a state as the run of the state."""
    if outside_run(cursor.position, run.length) is not None:
        return False
    recipe = run.past(cursor.position) if cursor.version == PAST_VERSION else run.recipe
    return not differing_parts(recipe.hashes(), cursor.recipe)


def _related(
    old: Cursor, new: Cursor, differing: tuple[str, ...], fields: tuple[str, ...]
) -> tuple[StateRelation, str]:
    places = f"step {old.step:,}, position {old.position:,}"
    if old.position != new.position:
        places += f" -> step {new.step:,}, position {new.position:,}"
    if not differing:
        if old.position == new.position and not fields:
            return "equal", f"{places}: the same state"
        if old.position == new.position:
            return "same run", f"{places}: the same run, and they differ in {', '.join(fields)}"
        return "same run", f"{places}: the same run at two positions"
    parts = ", ".join(differing)
    if old.position == new.position and old.version == new.version:
        return "other past", (
            f"{places}: the runs were fed otherwise before it: {parts} differ. Compare the run.json of both to see the "
            "first step and the field"
        )
    return "not comparable", (
        f"{places}: the hashes of {parts} differ, as those of one run do at two positions if something of it came or "
        "changed in between. Compare the run.json of both"
    )
