"""Feeds: where a loader's batches come from, one class for each kind of run.

Run          SpanFeed       a position is the whole state
FramedRun    FramedFeed     each lane has a state of its own, see `framed`

Both have the same face. Most runs feed tokens, and need neither of the parts for ragged, counted and balanced data nor
workers. So these parts are named here, and imported when such a run comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import xxhash

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.datasets.mix import cache_of
from headrace.datasets.states import check_blocks, check_group_batches, identity, read_identity, resumed_draw, verified
from headrace.errors import ConfigError, StateError
from headrace.io.readers import reading_for
from headrace.loader import workers
from headrace.loader.faults import Given, HandOver, shared_out
from headrace.loader.memory import Blocks
from headrace.loader.ranks import ASSIGNED, Ranks
from headrace.loader.reading import Reading, Work, pinned
from headrace.loader.spans import (
    UNTOLD,
    Allocate,
    Batch,
    BatchSpan,
    Ids,
    ReadRows,
    SpanRows,
    check_between_steps,
    describe_sample,
    describe_span,
    divide,
    fields_with,
    pace_of,
    read_rows,
    room_for,
    span_words,
    spans,
)
from headrace.loader.task_reader import TaskReader
from headrace.plan import BatchSchedule, Cursor, RunRecipe, Share

if TYPE_CHECKING:
    from headrace.loader.balancing import Balance, BlockDealing, Dealing, StepAssignment


Uneven = Literal["allow", "refuse", "fill"]

READ_RAGGED: Final = "headrace.loader.ragged:read_ragged"
READ_OPAQUE: Final = "headrace.loader.ragged:read_opaque"
PINNED: Final = "headrace.datasets.media.face:pinned"
CHECK_SEEDED: Final = "headrace.loader.ragged:check_seeded"
READ_COUNTED: Final = "headrace.loader.collating:read_counted"
ASSIGNMENT: Final = "headrace.loader.balancing:StepAssignment"
DEALING: Final = "headrace.loader.balancing:BlockDealing.of"
TIMER: Final = "headrace.loader.shard_times:FileTimer"
COUNTS: Final = "headrace.loader.collating:BatchCounts"


class FeedOptions(NamedTuple):
    """What a feed has to know besides its run; see the arguments of `Loader`."""

    ranks: Ranks
    share: Share
    reading: Reading | None = None
    balance: Balance | None = None
    debug: bool = False
    journal: str | None = None
    dealing: Dealing | None = None
    times_files: bool = False
    ids: Ids = "int64"


class SpanFeed:
    """The feed of a `Run`: yields the micro-batches of one rank, and knows what a state must hold.

    Attributes:
        run: the run.
        assignment: the assignment of the samples of each step; None without balance and dealing.
        reader: what reads the spans.

    Raises:
        ConfigError: an option does not suit the run.
    """

    def __init__(self, run: Run, options: FeedOptions) -> None:
        if options.journal is not None:
            raise ConfigError(
                "a journal records the frames of a FramedRun, and this is a Run, which needs none: leave journal "
                "out, and save the run with headrace.tracing.save_run"
            )
        check_group_batches(run.traits.is_group_batches, options.share)
        self.run = run
        if run.traits.is_seeded:
            resolve_name(CHECK_SEEDED)(options.reading)
        cache = cache_of(run.datasets, run.order)
        self._options = options
        self._share = options.share
        self._debug = options.debug
        self.assignment: StepAssignment | None = None
        dealing: BlockDealing | None = None
        if options.dealing is not None:
            dealing = resolve_name(DEALING)(run, options.dealing, options.ranks)
        if options.balance is not None or dealing is not None:
            self.assignment = resolve_name(ASSIGNMENT)(run, options.share, balance=options.balance, dealing=dealing)
        if dealing is not None and cache is not None:
            dealing.tell(cache, options.ranks)
        self._work = SpanWork(run, options.ranks, times_files=options.times_files, ids=options.ids)
        self.reader: TaskReader[Any, Any] = TaskReader(self._work, options.reading, cache)
        # Balance assigns the slots itself. The draw then only says which samples a step gave before it was balanced.
        self._draw = run.draw

    def batches(self, position: int) -> Iterator[Given]:
        """Yield each micro-batch from a position on. A new stream ends the one before."""
        run, assignment = self.run, self.assignment
        read_identity(run)
        pace = pace_of(run, self._share, self._options.ids, is_here=not self.reader.begin().num_workers)
        at_a_time = None if assignment is None else assignment.planned_positions
        work = spans(run, self._share, position, assignment or self._draw, pace, at_a_time)
        counts = resolve_name(COUNTS)(run, position) if run.traits.is_counted else None
        for span, rows in self.reader.filled(work):
            pace.learn(len(span.sizes), rows.cost)
            batches = divide(rows, span, run.constants)
            handed = chain([HandOver(rows.times, span.located.sources, rows.timed)], repeat(None))
            taken = _taken(batches)
            if counts is not None:
                counts.add(batches, span, rows.counts)
                taken = map(counts.verified, taken) if self._debug else taken
            given = map(Given, taken, span.afters, span.sizes, shared_out(rows.faults, span), handed)
            del rows
            yield from given

    def agreed(self, position: int) -> dict[str, Any]:
        """Return what else than the run, the position and the share decides which rank takes what; safe for JSON."""
        balance, dealing, ranks = self._options.balance, self._options.dealing, self._options.ranks
        return {
            "balance": None if balance is None else balance.recipe,
            "dealing": None if dealing is None else {"block": dealing.block_bytes, "per_node": ranks.per_node},
            ASSIGNED: self._digest(position).hex(),
        }

    def start_at(self, position: int) -> None:
        """Prepare to begin at a position without a state.

        Raises:
            ConfigError: the position is within a step that is balanced or drawn; nothing has changed then.
        """
        check_blocks(self.run, self._share, position)
        if self.assignment is not None:
            self.assignment.start_at(position)
        elif self.run.draw is not None:
            check_between_steps(self.run, position, UNTOLD + "as slots of a blend are drawn")
        self._draw = self.run.draw

    def turn_to(self, run: Run) -> None:
        """Go on with another run over the same dataset."""
        self.run, self._draw = run, run.draw
        self._work.run = run

    def step_of_sample(self, position: int) -> int | None:
        """Return the step in which the sample at a position is delivered; None if it is not known."""
        return self.run.schedule.step_of(position)

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of all ranks, from the one of this rank, which is the same here."""
        return state

    def identity(self, position: int) -> dict[str, Any]:
        """Return the fields of a `Cursor` that say to which run a state at a position belongs.

        They are hashes of what was fed before it.
        """
        return identity(self.run, position)

    def verified(self, cursor: Cursor, saved: RunRecipe | None) -> Cursor:
        """Return a cursor that belongs to the run; ``saved`` is the recipe that was saved with it, if it is given.

        Raises:
            StateError: the cursor belongs to a run that fed other samples before its position.
        """
        return verified(self.run, cursor, saved)

    def state(self, position: int) -> dict[str, Any]:
        """Return the fields of a `Cursor` that this feed adds to the position that the newest stream has reached."""
        state: dict[str, Any] = {}
        if self.assignment is not None:
            state["balanced_step"] = self.assignment.balanced_step(position)
        if self._draw is not None:
            state["drawn_to"] = self._draw.saved_ends(position)
        return state

    def load(self, cursor: Cursor) -> None:
        """Prepare to continue from a saved state.

        Raises:
            StateError: the state does not suit the run; nothing has changed then.
            ConfigError: the run cannot continue there; nothing has changed then.
        """
        draw = resumed_draw(self.run, self._share, cursor)
        if self.assignment is not None:
            self.assignment.load(cursor, draw)
        elif cursor.balanced_step is not None:
            is_dealt = any(part.per_node for part in cursor.balanced_step.taken)
            how = "dealt to nodes: pass the loader the same dealing" if is_dealt else ""
            raise StateError(
                f"the saved state was taken within step {cursor.step:,}, which was "
                f"{how or 'balanced: pass the loader the same balance'}, or resume from a state between two steps"
            )
        self._draw = draw

    def describe(self) -> str:
        """Describe in one line how much each rank reads in a step."""
        return "every sample is read once, by the rank that takes it"

    def _digest(self, position: int) -> bytes:
        """Return 8 bytes that are the same on all ranks if these assign the rest of the step in the same way."""
        if self.assignment is not None:
            return self.assignment.digest(position)
        ends = () if self._draw is None else self._draw.saved_ends(position)
        return xxhash.xxh3_64_digest(repr(ends).encode()) if ends else bytes(8)


def _taken(batches: list[Batch]) -> Iterator[Batch]:
    """Return the batches one after another, and keep none that was returned.

    So a batch goes when its loop lets it go, and not while that waits for the next one: to free memory takes time, and
    a tensor that goes gives up the interpreter lock, which a thread that reads may then keep for some milliseconds.
    """
    return map(list.pop, repeat(batches, len(batches)), repeat(0))


class SpanWork(Work[BatchSpan, SpanRows]):
    """The spans of a run, as tasks."""

    def __init__(self, run: Run, ranks: Ranks, *, times_files: bool = False, ids: Ids = "int64") -> None:
        fields_with(run, ids)
        self.run = run
        self.traits = run.traits
        self.here = Reading(num_threads=0) if run.traits.may_draw else Reading()
        self.words = partial(span_words, ranks=ranks)
        self._ranks = ranks
        self._ids = ids
        self._read: ReadRows = read_rows
        if run.traits.is_ragged or run.traits.is_counted:
            is_ragged, is_opaque = run.traits.is_ragged, run.traits.is_opaque
            self._read = resolve_name(READ_OPAQUE if is_opaque else READ_RAGGED if is_ragged else READ_COUNTED)
        if times_files:
            self._read = resolve_name(TIMER)(self._read)

    def readers(self, num_readers: int, *, pin: bool) -> list[Callable[[BatchSpan], SpanRows]]:
        """See `Work.readers`; all are the same."""
        return [partial(_read, self._read, self.run, self._ids, pin, self.words, Blocks().take)] * num_readers

    def for_workers(self) -> Callable[[BatchSpan, Tell, Any], SpanRows]:
        """See `Work.for_workers`."""
        return partial(workers.read_message, self._read, self.run, self._ids)

    def pinned(self, made: SpanRows) -> SpanRows:
        """See `Work.pinned`."""
        return _pinned(made)

    def describe(self, task: BatchSpan) -> str:
        """See `Work.describe`; this reads the index of the store."""
        return describe_span(self.run, task, self._ranks)

    def describe_sample(self, task: BatchSpan, address: int) -> str:
        """See `Work.describe_sample`."""
        return describe_sample(self.run, task, address)


def _read(
    read: ReadRows,
    run: Run,
    ids: Ids,
    pin: bool,
    words: Callable[[BatchSpan], str],
    allocate: Allocate,
    span: BatchSpan,
) -> SpanRows:
    """Read a span in this process, usually in a thread, in which it is divided after that, too.

    A loop that trains beside it would wait for the interpreter lock with each view of a tensor.
    """
    with reading_for(partial(words, span)):
        rows = read(run, span, room_for(run, span, allocate, ids), None)
    batches = divide(_pinned(rows) if pin else rows, span, run.constants)
    return rows._replace(columns={}, ragged=None, batches=batches)


def _pinned(rows: SpanRows) -> SpanRows:
    if rows.ragged is not None and not rows.columns:
        return rows._replace(ragged=[one._replace(others=resolve_name(PINNED)(one.others)) for one in rows.ragged])
    return rows._replace(columns=pinned(rows.columns))


def check_uneven(uneven: Uneven, schedule: BatchSchedule, length: int | None, share: Share) -> None:
    """Raise ConfigError if ``uneven`` is ``"refuse"`` and ranks times micro-batches do not divide some step."""
    if uneven not in ("allow", "refuse", "fill"):
        raise ConfigError(f"uneven is {uneven!r}; allowed are 'allow', 'refuse', 'fill'")
    if uneven != "refuse":
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
