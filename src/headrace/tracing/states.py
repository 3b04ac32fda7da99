"""`state_difference`: what differs between two saved states of loaders, and what that means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.errors import StateError
from headrace.plan import Cursor
from headrace.plan.recipe import PARTS

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
    """

    relation: StateRelation
    message: str
    steps: tuple[int, int]
    positions: tuple[int, int]
    differing: tuple[str, ...]
    fields: tuple[str, ...]


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state of a loader that was saved as JSON.

    Raises:
        StateError: it cannot be read, or is no JSON object.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise StateError(f"the saved state cannot be read: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{path}: this is not the state_dict() of a loader as JSON: {error}") from error


def state_difference(one: dict[str, Any], other: dict[str, Any]) -> StateDifference:
    """Compare two states of loaders, by their hashes and positions alone.

    Raises:
        StateError: one of them is no state, or is damaged.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> runs = [headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=seed)) for seed in (1, 2)]
        >>> states = [headrace.Loader(run, micro_batch_size=8).state_dict() for run in runs]
        >>> headrace.tracing.state_difference(states[0], states[0]).relation
        'equal'
    """
    old, new = Cursor.from_dict(one), Cursor.from_dict(other)
    differing = tuple(part for part in PARTS if old.recipe.get(part) != new.recipe.get(part))
    fields = tuple(
        name for name in ("version", "lanes", "balanced_step", "drawn_to") if getattr(old, name) != getattr(new, name)
    )
    relation, message = _related(old, new, differing, fields)
    return StateDifference(
        relation=relation,
        message=message,
        steps=(old.step, new.step),
        positions=(old.position, new.position),
        differing=differing,
        fields=fields,
    )


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
