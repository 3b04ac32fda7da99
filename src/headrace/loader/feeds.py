"""Feeds: where a loader's batches come from, one class for each kind of run.

Run          SpanFeed       a position is the whole state
FramedRun    FramedFeed     each lane has a state of its own, see `framed`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import xxhash

from headrace.datasets import Run
from headrace.datasets.accounts import check_supervised
from headrace.datasets.mix import check_micro_batches
from headrace.errors import ConfigError, StateError
from headrace.loader.balancing import Balance, BalancedAssignment, check_between_steps
from headrace.loader.collating import StepTotals, add_segments, add_totals, verify
from headrace.loader.faults import Given, shared_out
from headrace.loader.ranks import Ranks, agree
from headrace.loader.reading import Reading, StreamReader
from headrace.loader.spans import divide, pace_of, spans
from headrace.plan import BatchSchedule, Cursor, Draw, Share


class Feed(Protocol):
    """Yields the micro-batches of one rank of one run, and knows what a state must hold."""

    @property
    def assignment(self) -> BalancedAssignment | None:
        """The assignment of balanced steps; None without balance."""

    def batches(self, position: int) -> Iterator[Given]:
        """Yield each micro-batch from a position on. A new stream ends the one before."""

    def start_at(self, position: int) -> None:
        """Prepare to begin at a position without a state.

        Raises:
            ConfigError: the run cannot begin there; nothing has changed then.
        """

    def state(self, position: int) -> dict[str, Any]:
        """Return the fields of a `Cursor` that this feed adds to the position that the newest stream has reached."""

    def load(self, cursor: Cursor) -> None:
        """Prepare to continue from a saved state.

        Raises:
            StateError: the state does not suit the run; nothing has changed then.
            ConfigError: the run cannot continue there; nothing has changed then.
        """

    def describe(self) -> str:
        """Describe in one line how much each rank reads in a step."""

    def close(self) -> None:
        """End worker processes. The next stream starts new ones."""


class SpanFeed:
    """The feed of a `Run`: spans of positions, read by threads or workers. The arguments are those of `Loader`."""

    def __init__(
        self, run: Run, ranks: Ranks, share: Share, reading: Reading, *, balance: Balance | None, debug: bool
    ) -> None:
        if run.traits.is_group_batches and share.micro_batch_size != 1:
            raise ConfigError(
                f"a sample of this run is a whole batch of one group, and micro_batch_size is {share.micro_batch_size}:"
                " pass micro_batch_size=1; the grouping decides how many outputs a batch has"
            )
        self._run = run
        self._agrees = ranks.agree
        self._share = share
        self._reader = StreamReader(run, reading)
        self._has_workers = reading.num_workers > 0
        self._debug = debug
        self.assignment = None if balance is None else BalancedAssignment(run, balance, share)
        # Balance assigns the slots itself. The draw then only says which samples a step gave before it was balanced.
        self._draw = run.draw

    def batches(self, position: int) -> Iterator[Given]:
        """See `Feed.batches`."""
        if self._agrees:
            agree(self._run, position, self._share, self._digest)
        pace = pace_of(self._run, self._share, is_here=not self._has_workers)
        work = spans(self._run, self._share, position, self.assignment or self._draw, pace)
        totals = StepTotals(self._run) if self._run.traits.is_counted else None
        if totals is not None:
            check_supervised(self._run, position)
        for span, rows in self._reader.filled(work):
            pace.learn(len(span.sizes), rows.cost)
            batches = divide(rows, span, self._run.constants)
            if totals is not None:
                add_totals(batches, span, totals)
                if self._run.traits.is_packed:
                    add_segments(batches)
            faults = shared_out(rows.faults, span)
            for given in map(Given, batches, span.afters, span.sizes, faults):
                if self._debug and self._run.traits.is_packed:
                    verify(given.batch, is_unshifted=self._run.traits.is_unshifted)
                yield given

    def start_at(self, position: int) -> None:
        """See `Feed.start_at`; raises ConfigError within a step that is balanced or drawn."""
        self._check_blocks(position)
        if self.assignment is not None:
            self.assignment.start_at(position)
        elif self._run.draw is not None:
            check_between_steps(self._run, position, "as slots of a blend are drawn")
        self._draw = self._run.draw

    def state(self, position: int) -> dict[str, Any]:
        """See `Feed.state`."""
        state: dict[str, Any] = {}
        if self.assignment is not None:
            state["balanced_step"] = self.assignment.balanced_step(position)
        if self._draw is not None:
            state["drawn_to"] = self._draw.saved_ends(position)
        return state

    def load(self, cursor: Cursor) -> None:
        """See `Feed.load`."""
        if cursor.lanes:
            raise StateError(
                "the saved state holds lanes, and no source of this run has any: it is the state of a FramedRun. Load "
                "it into the run that it was saved from"
            )
        self._check_blocks(cursor.position, cursor.drawn_to)
        draw = self._resumed_draw(cursor)
        if self.assignment is not None:
            self.assignment.load(cursor, draw)
        elif cursor.balanced_step is not None:
            raise StateError(
                f"the saved state was taken within step {cursor.step:,}, which was balanced: pass the loader the same "
                "balance, or resume from a state between two steps"
            )
        self._draw = draw

    def describe(self) -> str:
        """See `Feed.describe`."""
        return "every sample is read once, by the rank that takes it"

    def close(self) -> None:
        """See `Feed.close`."""
        self._reader.close()

    def _resumed_draw(self, cursor: Cursor) -> Draw | None:
        """Return how the run continues its draw; raise StateError if the state does not allow it."""
        draw = self._run.draw
        if draw is not None:
            balanced = (
                0
                if cursor.balanced_step is None
                else sum(step_part.num_taken for step_part in cursor.balanced_step.taken)
            )
            return draw.resumed(cursor.position - balanced, cursor.drawn_to)
        if cursor.drawn_to:
            raise StateError(
                f"the saved state is damaged: it holds drawn_to={list(cursor.drawn_to)}, and this run draws no slots"
            )
        return None

    def _digest(self, position: int) -> bytes:
        """Return 8 bytes that are the same on all ranks if these assign the rest of the step in the same way."""
        if self.assignment is not None:
            return self.assignment.digest(position)
        ends = () if self._draw is None else self._draw.saved_ends(position)
        return xxhash.xxh3_64_digest(repr(ends).encode()) if ends else bytes(8)

    def _check_blocks(self, position: int, drawn_to: tuple[int, ...] = ()) -> None:
        """Raise ConfigError if ``block_samples`` is set and a micro-batch from here on would mix two sources."""
        run = self._run
        if run.block_samples is None:
            return
        # Blocks are drawn over the whole step, however much of it was given already.
        places = () if run.draw is None else (run.schedule.locate(position)[1], *drawn_to)
        check_micro_batches(run.block_samples, run.schedule, run.length, self._share, position, places)


def check_uneven(uneven: Literal["allow", "refuse"], schedule: BatchSchedule, length: int | None, share: Share) -> None:
    """Raise ConfigError if ``uneven`` is ``"refuse"`` and ranks times micro-batches do not divide some step."""
    if uneven not in ("allow", "refuse"):
        raise ConfigError(f"uneven is {uneven!r}; allowed are 'allow', 'refuse'")
    if uneven == "allow":
        return
    sizes = {size for _, size in schedule.pieces}
    if length is not None:
        last = schedule.begin(schedule.step_of(length - 1))
        sizes.add(length - last)
    together = share.world_size * share.micro_batch_size
    if found := sorted(size for size in sizes if not share.divides(size)):
        raise ConfigError(
            f"there are steps of {found} samples, which {share.world_size} ranks times micro-batches of "
            f"{share.micro_batch_size} = {together} do not divide: change one of them, drop a short last step with "
            "drop_last=True, or allow uneven micro-batches with uneven='allow'"
        )


def num_micro_batches(schedule: BatchSchedule, length: int, share: Share) -> int:
    """Return the number of micro-batches of one rank in a run of this length. O(pieces of the schedule)."""
    together = share.world_size * share.micro_batch_size
    position = count = 0
    while position < length:
        _, _, size, num_equal = schedule.locate(position)
        whole = (length - position) // size
        num_steps = min(whole, num_equal) if num_equal is not None else whole
        if num_steps == 0:
            return count + -(-(length - position) // together)
        count += num_steps * -(-size // together)
        position += num_steps * size
    return count
