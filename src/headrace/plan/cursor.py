"""The state of a run: how far it has come, and of which run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import StateError
from headrace.plan.balance import StepPart
from headrace.plan.recipe import PARTS, RunRecipe, undrawn
from headrace.plan.schedule import BatchSchedule

VERSION = 1

_MEANING = {
    "format": "how Headrace orders samples, which changes with its version",
    "dataset": "the data, and how it is cut into samples",
    "blend": "sources, their weights and numbers of samples",
    "order": "kind and seed of the order",
    "batch": "global batch size and bucketing",
}
"""What a user changes in each part."""


class BalancedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was taken of a balanced step that was stopped in its midst, where the position alone does not tell.

    ``costs`` is a hash over the costs of the samples of the step, in hex, ``taken`` who took how many; samples before
    those were taken as they come.
    """

    costs: str
    taken: tuple[StepPart, ...]


class Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that must be saved to go on exactly: a few hundred bytes, the same on every rank unless there are lanes.

    ``position`` counts the samples that all ranks were given together: the first slots of its step, and all before.
    ``step`` is the global step that the next sample belongs to. ``recipe`` holds a hash for each part of the recipe.
    ``lanes`` are those of sources whose facts are known only while running, of one rank or of all; it is empty for all
    others, and at the beginning. ``balanced_step`` is there within one only. ``drawn_to`` is for a blend, within
    a last step that is short only: the lengths of the run up to which its slots were drawn, see `Draw`.
    """

    version: int = VERSION
    recipe: dict[str, str]
    step: int
    position: int
    lanes: tuple[dict[str, Any], ...] = ()
    balanced_step: BalancedStep | None = msgspec.field(default=None, name="dealt")
    drawn_to: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The cursor as plain dicts, lists, strings and integers, safe for JSON and for ``torch.save``."""
        state = msgspec.to_builtins(self)
        state["lanes"] = list(self.lanes)
        if self.balanced_step is None:
            del state["dealt"]
        else:
            state["dealt"]["taken"] = [list(step_part) for step_part in self.balanced_step.taken]
        if self.drawn_to:
            state["drawn_to"] = list(self.drawn_to)
        else:
            del state["drawn_to"]
        return {"kind": "headrace.cursor", **state}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Cursor:
        """Raises StateError for anything that is not a cursor of a version known here."""
        fields = dict(state)
        if fields.pop("kind", None) != "headrace.cursor":
            raise StateError(f"this is no saved loader state: its fields are {sorted(state)}")
        if fields.get("version") != VERSION:
            raise StateError(
                f"the saved state has version {fields.get('version')!r}; this Headrace reads version {VERSION}: "
                "use the version of Headrace that wrote it, or a newer one"
            )
        try:
            return msgspec.convert(fields, cls)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise StateError(f"the saved state is damaged: {error}") from error

    def verified(
        self, recipe: RunRecipe, schedule: BatchSchedule, length: int | None, *, saved: RunRecipe | None
    ) -> Cursor:
        """This cursor, as the run of ``recipe`` has it; ``saved`` tells which field differs where it is of another.

        One that was saved before slots were drawn is of the same run, as steps have the same samples.

        Raises:
            StateError: it is of another run, or damaged; or it was saved before slots were drawn, and within a step.
        """
        before = msgspec.structs.replace(recipe, format=undrawn(recipe.format))
        is_before = before != recipe and self.recipe.get("format") == before.hashes()["format"]
        expected = before if is_before else recipe
        hashes = expected.hashes()
        if self.recipe.keys() != hashes.keys():
            raise StateError(f"the saved state hashes the parts {sorted(self.recipe)}; expected {sorted(PARTS)}")
        if saved is not None and saved.hashes() != self.recipe:
            raise StateError("the saved recipe is not the one that the saved state was taken under")
        if differing := [part for part in PARTS if self.recipe[part] != hashes[part]]:
            if saved is not None:
                detail = "\n  ".join(["", *expected.differences(saved)])
            else:
                meant = "; ".join(f"{part}: {_MEANING[part]}" for part in differing)
                detail = (
                    f" ({meant}). A state has only a hash of each: pass the recipe saved beside the checkpoint,"
                    " load_state_dict(state, recipe=path), to see which fields; without one compare run.json of both"
                )
            raise StateError(
                f"the saved state belongs to another run: {', '.join(differing)} differ{detail}\n"
                "Restore what differs, or start a new run from position 0."
            )
        if self.position < 0 or (length is not None and self.position > length):
            raise StateError(f"the saved position {self.position} is outside this run of {length} positions")
        if schedule.step_of(self.position) != self.step:
            raise StateError(
                f"the saved state says step {self.step} at position {self.position}, which is in step "
                f"{schedule.step_of(self.position)} of this run"
            )
        return self._drawn(recipe, schedule, length) if is_before else self

    def _drawn(self, recipe: RunRecipe, schedule: BatchSchedule, length: int | None) -> Cursor:
        """The same in a run whose slots are drawn; so far each took the position of its own number."""
        begin = schedule.begin(self.step)
        num_balanced = (
            0 if self.balanced_step is None else sum(step_part.num_taken for step_part in self.balanced_step.taken)
        )
        if self.position not in (begin + num_balanced, length):
            raise StateError(
                f"the saved state was taken within step {self.step:,}, at position {self.position:,}, by a version of "
                "Headrace that assigned the samples of a blend's step to the ranks in turn; here they are drawn (split "
                f"{recipe.format['split']}), so that what is left of that step would be other samples. Go on from a "
                f"state between two steps, as after position {begin:,}, or end this step with the version that saved it"
            )
        drawn_to = (self.position,) if self.position > begin + num_balanced else ()
        return msgspec.structs.replace(self, recipe=recipe.hashes(), drawn_to=drawn_to)
