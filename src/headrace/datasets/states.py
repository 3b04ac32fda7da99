"""The saved state of a `Run`: what it holds, to which runs it belongs, and from where they can go on. No torch.

Loaders of all kinds share this, so that a state of one loads into every other.
"""

from __future__ import annotations

from typing import Any

from headrace.datasets.mix import check_micro_batches, readers_of
from headrace.datasets.run import Run
from headrace.errors import ConfigError, StateError
from headrace.plan import Cursor, RunRecipe, Share
from headrace.plan.cursor import PAST_VERSION, PastError
from headrace.plan.slots import AnyDraw
from headrace.plan.tree import MAX_POSITIONS


def identity(run: Run, position: int) -> dict[str, Any]:
    """Return the fields of a `Cursor` that say to which runs a state at a position belongs: hashes of what was fed.

    A state is given out with them, which is told to ``run.on_state``.
    """
    if run.on_state is not None:
        run.on_state(position)
    return {"version": PAST_VERSION, "recipe": run.past_hashes(position)}


def read_identity(run: Run) -> None:
    """Read now by what the data of a run are known, if these are remote; it is kept.

    A state holds it, and may be asked for when the store is away.
    """
    if any(one.reads_urls for one in readers_of(run.datasets)):
        run.recipe.hashes()


def verified(run: Run, cursor: Cursor, saved: RunRecipe | None) -> Cursor:
    """Return a cursor that belongs to the run; ``saved`` is the recipe that was saved with it, if it is given.

    Raises:
        StateError: the cursor belongs to a run that fed other samples before its position.
    """
    if cursor.version == PAST_VERSION:
        try:
            past = run.past(min(max(cursor.position, 0), MAX_POSITIONS))
            return cursor.verified(run.recipe, run.schedule, run.length, saved=saved, past=past)
        except PastError as error:
            if (step := run.parted_at(cursor.recipe, cursor.position)) is None:
                raise
            raise _parted(cursor.position, step, run) from error
    first = run.rebuilt(()) if run.edits else run
    found = cursor.verified(first.recipe, first.schedule, first.length, saved=saved)
    if run.edits and cursor.position > run.schedule.begin(run.edits[0].at_step):
        raise _parted(cursor.position, run.edits[0].at_step, run)
    return found


def resumed_draw(run: Run, share: Share, cursor: Cursor) -> AnyDraw | None:
    """Return how the run goes on with the draw of its slots from a state.

    Raises:
        StateError: the state holds lanes, or a draw that this run does not have.
        ConfigError: a micro-batch from here on would mix two sources, which ``block_samples`` of a blend forbids.
    """
    if cursor.lanes:
        raise StateError(
            "the saved state holds lanes, and no source of this run has any: it is the state of a FramedRun. Load "
            "it into the run that it was saved from"
        )
    check_blocks(run, share, cursor.position, cursor.drawn_to)
    if run.draw is not None:
        parts = () if cursor.balanced_step is None else cursor.balanced_step.taken
        return run.draw.resumed(cursor.position - sum(part.num_taken for part in parts), cursor.drawn_to)
    if cursor.drawn_to:
        raise StateError(
            f"the saved state is damaged: it holds drawn_to={list(cursor.drawn_to)}, and this run draws no slots"
        )
    return None


def check_blocks(run: Run, share: Share, position: int, drawn_to: tuple[int, ...] = ()) -> None:
    """Raise ConfigError if ``block_samples`` is set and a micro-batch from here on would mix two sources."""
    if run.block_samples is None:
        return
    # Blocks are drawn over the whole step, however much of it was given already.
    places = () if run.draw is None else (run.schedule.locate(position)[1], *drawn_to)
    check_micro_batches(run.block_samples, run.schedule, run.length, share, position, places)


def check_group_batches(is_group_batches: bool, share: Share) -> None:
    """Raise ConfigError if samples or units are whole batches, and a micro-batch has several."""
    if is_group_batches and share.micro_batch_size != 1:
        raise ConfigError(
            f"a sample of this run is a whole batch of one group, and micro_batch_size is {share.micro_batch_size}:"
            " pass micro_batch_size=1; the grouping decides how many samples a batch has"
        )


def _parted(position: int, step: int, run: Run) -> StateError:
    edit = next(edit for edit in run.edits if edit.at_step == step)
    reason = f" ({edit.reason})" if edit.reason else ""
    return StateError(
        f"the saved state, at position {position:,}, was fed by the run as it was before its edit at step {step:,}"
        f"{reason}, and from that step on the two differ: load a state from before it, at most at position"
        f" {run.schedule.begin(step):,}, or edit the run at a later step"
    )
