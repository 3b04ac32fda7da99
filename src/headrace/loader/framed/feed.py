"""The batches of one rank of a framed run, and the state of its lanes after any of them.

A framed run ends after the last step in which any lane has a unit. How many units a lane has is known only when its
last frame is planned, and lanes have different numbers of them. A step must exist for all ranks or for none. So
whenever a rank comes to a step that it is not sure of, which happens at the same micro-step on all ranks, each rank
tells the last step that it surely has units for, and all continue to the highest of these. That takes an exchange of 8
bytes about once a frame of a lane.

    rank 0 has units up to step 7 at least     |  both ask after step 9   |  0: up to 12     both ask after 12
    rank 1                           9         |                          |  1: up to 9      neither has more: the end
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.datasets import FramedRun
from headrace.datasets.dataset import StageTimes, Traits
from headrace.datasets.encoded.framed_run import JournalFile
from headrace.datasets.mix import cache_of
from headrace.datasets.states import check_group_batches, read_identity
from headrace.errors import ConfigError, StateError
from headrace.io.readers import reading_for
from headrace.loader.faults import Given, HandOver, merged
from headrace.loader.feeds import FeedOptions
from headrace.loader.framed.parts import BatchPart, LaneReader, PartMessage, batch_of, coming_steps, lanes_of, parts
from headrace.loader.ranks import Ranks, gathered, largest
from headrace.loader.reading import Reading, Work, pinned
from headrace.loader.spans import Batch, rank_words, sample_words
from headrace.loader.task_reader import TaskReader
from headrace.plan import Cursor, RunRecipe
from headrace.plan.framed import (
    LaneHistory,
    Lanes,
    LaneState,
    Serving,
    beginning,
    merge_states,
    read_lanes,
    saved_lanes,
    serving,
)
from headrace.plan.recipe import differing_parts

if TYPE_CHECKING:
    from headrace.datasets.encoded import UnitReader
    from headrace.loader.balancing import StepAssignment


def describe_part(part: BatchPart, ranks: Ranks | None = None) -> str:
    """Return ``units 12 to 15 of step 3``, with ``on rank 0 of 2`` if the rank is given."""
    where = f"step {part.step:,}{rank_words(ranks)}"
    if not len(part.numbers):
        return f"no units of {where}"
    if len(part.numbers) == 1:
        return f"unit {part.numbers[0]:,} of {where}"
    return f"units {part.numbers[0]:,} to {part.numbers[-1]:,} of {where}"


def describe_part_sample(run: FramedRun, part: BatchPart, address: int) -> str:
    """Return ``sample 'K' of SHARD, for units 12 to 15 of step 3``, for the address of a sample.

    In a mix, the address may belong to a sample of any of several datasets, and the text lists them.
    """
    encoders = run.new_sources().encoders
    index = np.array([address], dtype=np.int64)
    samples = [(one.dataset, int(one.indices(index)[0])) for one in encoders]
    return f"{sample_words((data, at) for data, at in samples if at < len(data))}, for {describe_part(part)}"


def up_to_the_end(
    made: Iterator[tuple[int, Given]], last_step: int, known_step: Callable[[], int], agreed: Callable[[int], int]
) -> Iterator[Given]:
    """Yield the micro-batches of the steps in which any rank has units.

    Args:
        made: the step of each micro-batch, and the micro-batch; without an end, empty ones where no units are left.
        last_step: the last step that is known to have units, or -1.
        known_step: returns the last step for which this rank knows that it has units.
        agreed: accepts that step, and returns the highest of those of all ranks.
    """
    ahead: deque[tuple[int, Given]] = deque()
    while ahead or _read_on(made, ahead):
        step = ahead[0][0]
        if step > last_step:
            # What is read ahead here is yielded next, unless the run is over, so nothing is read in vain before that.
            while ahead[-1][0] == step and not ahead[-1][1].num_samples and _read_on(made, ahead):
                pass
            last_step = agreed(max(last_step, known_step()))
            if step > last_step:
                return
        yield ahead.popleft()[1]


def _read_on(made: Iterator[tuple[int, Given]], ahead: deque[tuple[int, Given]]) -> bool:
    batch = next(made, None)
    if batch is not None:
        ahead.append(batch)
    return batch is not None


_log = logging.getLogger("headrace")


class PartWork(Work[BatchPart, PartMessage]):
    """The parts of the micro-batches of a framed run, as tasks.

    Attributes:
        history: the states of the lanes at the first micro-batch that was not delivered.
    """

    # Hooks that draw random numbers cannot run in threads. A single worker makes whole batches, as this process would,
    # with `batch` and `encode_batch`; several may each make parts of them.
    here = Reading(num_threads=0)
    in_order = "one process makes whole batches of frames"

    def __init__(self, run: FramedRun, ranks: Ranks, history: LaneHistory) -> None:
        self.history = history
        self.traits = Traits(holds_interpreter=True, unrestorable=run.unrestorable)
        self.words = partial(describe_part, ranks=ranks)
        self._run = run

    def readers(self, num_readers: int, *, pin: bool) -> list[Callable[[BatchPart], PartMessage]]:
        """See `Work.readers`; each has lanes of its own."""
        readers = [LaneReader(self._run, self._states_now(), pin=pin) for _ in range(num_readers)]
        return [partial(_named, reader, self.words) for reader in readers]

    def for_workers(self) -> LaneReader:
        """See `Work.for_workers`."""
        return LaneReader(self._run, self._states_now())

    def pinned(self, made: PartMessage) -> PartMessage:
        """See `Work.pinned`; this pins what is a whole batch already."""
        return made._replace(content=pinned(made.content)) if isinstance(made.content, dict) else made

    def describe_sample(self, task: BatchPart, address: int) -> str:
        """See `Work.describe_sample`."""
        return describe_part_sample(self._run, task, address)

    def renewed(self, task: BatchPart) -> BatchPart:
        """See `Work.renewed`."""
        return task._replace(states=self._states_now())

    def _states_now(self) -> tuple[LaneState, ...]:
        now = self.history
        return now.states(now.number, now.lanes)


def _named(reader: LaneReader, words: Callable[[BatchPart], str], part: BatchPart) -> PartMessage:
    with reading_for(partial(words, part)):
        return reader(part)


class FramedFeed:
    """The feed of a `FramedRun`, with the face of `SpanFeed`.

    Args:
        run: the run.
        options: see `Loader`.

    Raises:
        ConfigError: a framed run cannot be balanced.
    """

    assignment: StepAssignment | None = None

    def __init__(self, run: FramedRun, options: FeedOptions) -> None:
        if options.dealing is not None:
            raise ConfigError(
                "dealing needs to know where samples lie before they are read, and the samples of a step of a FramedRun"
                " are only known when they are fed: leave dealing out"
            )
        if options.balance is not None:
            raise ConfigError(
                "balance needs the costs of samples before they are read, and those of a FramedRun are not known: "
                "leave balance out"
            )
        if options.ids != "int64":
            raise ConfigError(f"ids is {options.ids!r}, and hooks make the batches of a FramedRun: leave ids out")
        check_group_batches(run.is_group_batches, options.share)
        self.run = run
        self._lanes = run.framing.lanes
        self._ranks = options.ranks
        self._share = options.share
        self._end = None if run.num_steps is None else run.schedule.begin(run.num_steps)
        self._journal = None if options.journal is None else JournalFile(options.journal, run)
        self._work = PartWork(run, options.ranks, LaneHistory(self._lanes, beginning(self._lanes)))
        self.reader: TaskReader[Any, Any] = TaskReader(
            self._work, options.reading, cache_of(run.stream.datasets, run.stream.order)
        )
        if self._serving.times_encoded > 1:
            _log.warning("%s", self.describe())

    def batches(self, position: int) -> Iterator[Given]:
        """See `SpanFeed.batches`."""
        read_identity(self.run.stream)
        states = self._work.history.states(position, self._work.history.lanes)
        # Each iteration has its own, so that an outdated iterator does not change the newest one.
        history = self._work.history = LaneHistory(self._lanes, states, position)
        made = self._made(history, states)
        if self._lanes.num_positions is not None:
            step, begin, _, _ = self.run.schedule.locate(position)
            # A step that has begun surely exists.
            last_step = step if position > begin else step - 1
            batches = up_to_the_end(made, last_step, partial(self._known_step, history), self._agreed)
        else:
            batches = (one for _, one in made)
        for one in batches:
            history.number = one.after
            yield one

    def agreed(self, position: int) -> dict[str, Any]:
        """See `SpanFeed.agreed`: nothing, since the recipe of a framed run says when it ends."""
        return {}

    def start_at(self, position: int) -> None:
        """See `SpanFeed.start_at`. Only 0 and the current position are possible."""
        if position == 0:
            self._work.history = LaneHistory(self._lanes, beginning(self._lanes))
        elif position != self._work.history.number:
            raise ConfigError(
                f"this run cannot begin at unit {position:,}: what a unit holds depends on the state of its lane, which"
                " is known only after the units before it are made. Load a saved state, or begin at 0"
            )

    def step_of_sample(self, position: int) -> int | None:
        """Return None: the unit that a sample would have been in is not known."""
        return None

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `SpanFeed.gathered`; it takes two all-gathers, of 8 bytes and of the states.

        Raises:
            StateError: there are several ranks and no process group; or the states cannot be merged.
        """
        what = (
            "their states: save the state_dict() of every rank, and merge them with headrace.loader.merge_state_dicts"
        )
        texts = gathered(self._ranks, msgspec.json.encode(state), what)
        return merge_state_dicts([msgspec.json.decode(text) for text in texts])

    def identity(self, position: int) -> dict[str, Any]:
        """See `SpanFeed.identity`: hashes of the whole recipe."""
        return {"recipe": self.run.recipe.hashes()}

    def verified(self, cursor: Cursor, saved: RunRecipe | None) -> Cursor:
        """See `SpanFeed.verified`."""
        run = self.run
        number = run.num_edits_before(cursor.recipe)
        if number is None:
            return cursor.verified(run.recipe, run.schedule, run.length, saved=saved)
        if saved is not None and differing_parts(saved.hashes(), cursor.recipe):
            raise StateError("the saved recipe does not belong to the saved state: their hashes differ")
        before = run.rebuilt(run.edits[:number])
        found = cursor.verified(before.recipe, before.schedule, before.length, saved=None)
        if before is run:
            return found
        reached, edited = before.lanes.reached(before.lane_states(cursor)), run.edits[number].at_step
        if reached > edited:
            raise StateError(
                f"the saved state, at unit {cursor.position:,}, is of the run before it was edited, and has begun "
                f"frames up to position {reached:,} of the samples, which are others from position {edited:,} on: "
                "resume from a state before, or edit the run at this state, run.edit(at=state, ...)"
            )
        return found

    def state(self, position: int) -> dict[str, Any]:
        """See `SpanFeed.state`: the lanes that this rank serves from there on, some dozens of bytes each."""
        if position == 0:
            return {}
        states = self._work.history.states(position, self._served(position))
        return {"lanes": (saved_lanes(states, self._lanes),)}

    def load(self, cursor: Cursor) -> None:
        """See `SpanFeed.load`; raises StateError if a lane is missing that this rank has to make."""
        self._work.history = LaneHistory(self._lanes, self._loaded(cursor), cursor.position)

    def describe(self) -> str:
        """See `SpanFeed.describe`; this describes the step that costs most."""
        return self._serving.describe()

    @cached_property
    def _serving(self) -> Serving:
        world_size, micro = self._share.world_size, self._share.micro_batch_size
        costs = [
            serving(self._lanes, global_batch_size=size, world_size=world_size, micro_batch_size=micro)
            for size in sorted({size for _, size in self.run.schedule.pieces})
        ]
        return max(costs, key=lambda cost: cost.times_encoded)

    def _known_step(self, history: LaneHistory) -> int:
        last = history.last_unit()
        return -1 if last < 0 else self.run.schedule.step_of(last)

    def _agreed(self, step: int) -> int:
        return largest(step) if self._ranks.agree else step

    def _served(self, position: int) -> list[int]:
        found: list[int] = lanes_of(coming_steps(self.run.schedule, self._share, position), self._lanes).tolist()
        return found

    def _loaded(self, cursor: Cursor) -> Sequence[LaneState]:
        if cursor.balanced_step is not None:
            raise StateError("the saved state is of a run with balance, and a framed run has none")
        states = self.run.lane_states(cursor)
        saved = {state.lane for state in states}
        if missing := [lane for lane in self._served(cursor.position) if lane not in saved]:
            raise StateError(
                f"the saved state holds {len(saved)} of {self._lanes.num_lanes} lanes, and rank {self._share.rank} of "
                f"{self._share.world_size} also needs lane {missing[0]}: it is the state of one rank. Save "
                "Loader.gather_state_dict(), or merge the states of all ranks with headrace.loader.merge_state_dicts"
            )
        return states

    def _made(self, history: LaneHistory, states: Sequence[LaneState]) -> Iterator[tuple[int, Given]]:
        """Yield every micro-batch, put together from its parts, with its step.

        Its marks enter the history before it is yielded.
        """
        reading = self.reader.begin()
        num_readers = reading.num_workers or reading.num_threads or 1
        tasks = parts(
            self.run.schedule,
            self._lanes,
            self._share,
            tuple(states),
            position=history.number,
            end=self._end,
            num_readers=num_readers,
        )
        collator = cache(partial(self.run.reader, ()))  # most batches are made by one reader, as a whole
        found: list[tuple[BatchPart, PartMessage]] = []
        for part, message in self.reader.filled(tasks):
            history.add(message.marks)
            if self._journal is not None:
                self._journal.add(message.marks)
            found.append((part, message))
            if part.after is not None:
                num_units = sum(message.num_units for _, message in found)
                faults = merged(message.faults for _, message in found)
                times = StageTimes(*map(sum, zip(*(message.times for _, message in found), strict=True)))
                batch = self._whole(found, collator)
                yield part.step, Given(batch, part.after, num_units, faults, HandOver(times))
                found = []

    def _whole(self, found: Sequence[tuple[BatchPart, PartMessage]], collator: Callable[[], UnitReader]) -> Batch:
        """Return the batch of a micro-batch: as a reader made it, or put together from the samples of several."""
        part, message = found[-1]
        if isinstance(message.content, dict):
            return message.content
        numbers = np.sort(np.concatenate([part.numbers for part, _ in found]))
        samples: list[Any] = [None] * len(numbers)
        for part, message in found:
            slots = np.searchsorted(numbers, part.numbers).tolist()
            for slot, sample in zip(slots, message.content, strict=True):
                samples[slot] = sample
        batch = batch_of(collator(), samples, numbers)
        return pinned(batch) if self.reader.pins else batch


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that the ranks of a `FramedRun` saved after the same micro-step, in any order, into one.

    Any number of ranks can load the result. The states of a `headrace.Run` are the same on all ranks, and so is the
    result for them.

    Raises:
        StateError: ``states`` is empty; the states are of different runs or positions; or a lane is in none of them.
    """
    if not states:
        raise StateError("there are no saved states to merge: pass those of all ranks")
    cursors = [Cursor.from_dict(state) for state in states]
    first = msgspec.structs.replace(cursors[0], lanes=())
    for number, cursor in enumerate(cursors):
        if msgspec.structs.replace(cursor, lanes=()) != first:
            raise StateError(
                f"saved state {number} is of step {cursor.step:,} and position {cursor.position:,}, and the first one "
                f"of step {first.step:,} and position {first.position:,}, or they are of different runs: merge the "
                "states that the ranks of one run saved after the same micro-step"
            )
    found = [cursor.lanes[0] for cursor in cursors if cursor.lanes]
    if not found:
        return first.to_dict()
    lanes = Lanes(num_lanes=found[0].num_lanes, frame_positions=found[0].frame_positions)
    merged = merge_states((read_lanes(one, lanes, first.position) for one in found), lanes)
    return msgspec.structs.replace(first, lanes=(saved_lanes(merged, lanes),)).to_dict()
