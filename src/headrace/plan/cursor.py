"""The saved state of a run: how far it has come, and which run it is."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.config import Positive, convert
from headrace.errors import ConfigError, StateError
from headrace.plan.recipe import CONTENTS, PARTS, RunRecipe, differing_parts
from headrace.plan.schedule import BatchSchedule

VERSION = 1
"""Version of a state with hashes of the whole recipe of a run."""

PAST_VERSION = 2
"""Version of a state with hashes of what was fed before its position."""

_MEANING = {
    "format": "how Headrace orders samples, which changes with its version",
    "dataset": "the data, and how it is cut into samples",
    "blend": "sources, their weights and numbers of samples",
    "order": "kind and seed of the order",
    "batch": "global batch size and bucketing",
    CONTENTS: "the first and last bytes of the data's files, whose names, sizes and offsets are the same",
}
"""What each part of the recipe describes, in the words of error messages."""


def outside_run(position: int, length: int | None) -> str | None:
    """Return in words that a position is outside a run of a length, None for an endless one; None if it is within."""
    if position >= 0 and (length is None or position <= length):
        return None
    run = "this endless run, whose positions begin at 0" if length is None else f"this run of {length:,} samples"
    return f"position {position:,} is outside {run}"


def state_fields(state: object, kind: str, what: str) -> dict[Any, Any]:
    """Return the fields of a saved state but ``kind``; raise StateError if it is no dict, or of another kind."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"this is not {what}, but {type(state).__name__} {reprlib.repr(state)}; expected the dict that "
            "state_dict() returned"
        )
    fields = dict(state)
    if fields.pop("kind", None) != kind:
        raise StateError(f"this is not {what}: its fields are {sorted(map(str, state))}")
    return fields


class PastError(StateError):
    """A state belongs to a run that fed other samples before its position."""

    def __init__(self, position: int, first_step: int, parts: Sequence[str], differences: Sequence[str]) -> None:
        if differences:
            detail = "\n  ".join(["", *differences])
        else:
            meant = "; ".join(f"{part}: {_MEANING[part]}" for part in parts)
            detail = (
                f" ({meant}). A state has only a hash of each part: to see which fields differ, pass the recipe saved"
                " beside the checkpoint, load_state_dict(state, recipe=path), or compare the run.json of both"
            )
        super().__init__(
            f"the saved state, at position {position:,}, belongs to a run that fed other samples before it:"
            f" {', '.join(parts)} differ{detail}\nRestore what differs, or start a new run from position 0; to change"
            f" the mix from here on: run.edit({first_step}, ...)"
        )


class StepPart(NamedTuple):
    """A part of a step that was taken under one assignment: the first ``num_taken`` slots of the samples then left.

    ``num_samples`` is the number of samples in the step at that time; a run that is made longer may add some to its
    last step. ``per_node`` is the number of ranks of a node if samples were dealt to nodes (see `headrace.Dealing`),
    else 0.
    """

    num_samples: int
    world_size: int
    micro_batch_size: int
    num_taken: int
    per_node: int = 0

    def is_assigned_by(self, num_samples: int, world_size: int, micro_batch_size: int, per_node: int = 0) -> bool:
        """Return whether a step of this size, with these ranks and micro-batches, continues this assignment."""
        return (*self[:3], self.per_node) == (num_samples, world_size, micro_batch_size, per_node)


class BalancedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was taken of an assigned step that was stopped in the middle, where the position alone does not say it.

    ``costs`` is a hash of what the samples of the step were assigned by, in hex: their costs, or the blocks that they
    lie in. ``taken`` says how many samples were taken under which assignment, and for how many ranks a node they were
    dealt; samples before those were taken without an assignment, in the order of their slots.
    """

    costs: str
    taken: tuple[StepPart, ...]


class SavedLanes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the lanes of a framed run have come: see `headrace.plan.framed.saved_lanes`, which makes the bytes."""

    num_lanes: Positive
    frame_positions: Positive
    states: bytes


class Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that must be saved for an exact resume: a few hundred bytes, the same on every rank without lanes.

    Attributes:
        version: the version of this format.
        recipe: a hash for each part of the run's recipe; from version 2 on, of the part that was fed before the
            position.
        step: the global step that the next sample belongs to.
        position: how many samples all ranks together have taken: all before the step, and its first slots.
        lanes: the state of the lanes, of one rank or of all, for sources whose lengths are known only while running;
            empty for other runs, and at the beginning.
        balanced_step: what was taken of a step that is balanced or dealt to nodes, if the position is within one.
        drawn_to: for a blend, if the position is within a last step that is short: the lengths of the run up to which
            the slots of that step were drawn (see `Draw`).
    """

    version: int = VERSION
    recipe: dict[str, str]
    step: int
    position: int
    lanes: tuple[SavedLanes, ...] = ()
    balanced_step: BalancedStep | None = None
    drawn_to: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the cursor as plain dicts, lists, strings and integers, safe for JSON and for ``torch.save``."""
        state = msgspec.to_builtins(self)
        state["lanes"] = list(state["lanes"])
        if self.balanced_step is None:
            del state["balanced_step"]
        else:
            state["balanced_step"]["taken"] = [list(part) for part in self.balanced_step.taken]
        if self.drawn_to:
            state["drawn_to"] = list(self.drawn_to)
        else:
            del state["drawn_to"]
        return {"kind": "headrace.cursor", **state}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Cursor:
        """Return the cursor in a saved state; raise StateError if it is damaged or of a version not known here."""
        fields = state_fields(state, "headrace.cursor", "a saved loader state")
        if fields.get("version") not in (VERSION, PAST_VERSION):
            raise StateError(
                f"the saved state has version {fields.get('version')!r}; this Headrace reads versions {VERSION} and "
                f"{PAST_VERSION}: "
                "use the version of Headrace that wrote it, or a newer one"
            )
        try:
            return convert(fields, cls)
        except (ConfigError, UnicodeEncodeError) as error:
            raise StateError(f"the saved state is damaged: {error}") from error

    def verified(
        self,
        recipe: RunRecipe,
        schedule: BatchSchedule,
        length: int | None,
        *,
        saved: RunRecipe | None,
        past: RunRecipe | None = None,
    ) -> Cursor:
        """Return this cursor after checking that it belongs to the run of ``recipe``.

        ``past`` is the recipe of what the run feeds before the position of the cursor; a cursor from version 2 on is
        compared with it alone, so that it belongs to every run with the same past.

        If ``saved``, the recipe that was saved with the state, is given, the error names each field that differs.

        Raises:
            StateError: the cursor belongs to another run or is damaged.
        """
        if self.version == PAST_VERSION:
            self._check_past(past, recipe, saved, self.step + (schedule.begin(self.step) < self.position))
        else:
            self._check_recipe(recipe, saved)
        if (outside := outside_run(self.position, length)) is not None:
            raise StateError(f"the saved {outside}")
        if (step := schedule.step_of(self.position)) != self.step:
            raise StateError(
                f"the saved state says step {self.step} at position {self.position}, which is in step {step} of this"
                " run"
            )
        return self

    def _check_past(self, past: RunRecipe | None, recipe: RunRecipe, saved: RunRecipe | None, first_step: int) -> None:
        """Raise StateError unless a run has fed the same as the run of this cursor."""
        if past is None:
            raise StateError("the saved state is that of a Run, and this run is framed: load it into its own run")
        hashes = past.hashes()
        if differing := self._differing(hashes):
            raise PastError(self.position, first_step, differing, [] if saved is None else recipe.differences(saved))

    def _check_recipe(self, expected: RunRecipe, saved: RunRecipe | None) -> None:
        """Raise StateError, which names what differs, unless the hashes of this cursor are those of a recipe."""
        hashes = expected.hashes()
        differing = self._differing(hashes)
        if saved is not None and differing_parts(saved.hashes(), self.recipe):
            raise StateError("the saved recipe does not belong to the saved state: their hashes differ")
        if differing:
            if saved is not None:
                detail = "\n  ".join(["", *expected.differences(saved)])
            else:
                meant = "; ".join(f"{part}: {_MEANING[part]}" for part in differing)
                detail = (
                    f" ({meant}). A state has only a hash of each part: to see which fields differ, pass the recipe"
                    " saved beside the checkpoint, load_state_dict(state, recipe=path), or compare the run.json of both"
                )
            raise StateError(
                f"the saved state belongs to another run: {', '.join(differing)} differ{detail}\n"
                "Restore what differs, or start a new run from position 0."
            )

    def _differing(self, hashes: Mapping[str, str]) -> list[str]:
        """Return the parts that differ. Raises StateError if the state does not have the parts of a recipe."""
        if self.recipe.keys() - {CONTENTS} != set(PARTS):
            raise StateError(
                f"the saved state is damaged: it has hashes for the parts {sorted(self.recipe)}; expected "
                f"{sorted(PARTS)}"
            )
        return differing_parts(self.recipe, hashes)
