"""The batches of one rank of a framed run, and the state of its lanes after any of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from headrace.datasets import FramedRun
from headrace.datasets.encoded.frame_journal import JournalFile, check_journal
from headrace.errors import ConfigError, StateError
from headrace.loader.exchange import largest
from headrace.loader.faults import Given, merged
from headrace.loader.framed.book import Book
from headrace.loader.framed.describing import describe_part, describe_part_sample
from headrace.loader.framed.ending import Made, up_to_the_end
from headrace.loader.framed.parts import Part, coming_steps, lanes_of, parts
from headrace.loader.framed.reader import LaneReader, Message, batch_of
from headrace.loader.ranks import Ranks, agree
from headrace.loader.reading import Reading, pinned, pins
from headrace.loader.spans import Batch
from headrace.loader.threads import in_threads
from headrace.loader.workers import Workers
from headrace.plan import Cursor, Share
from headrace.plan.framed import LaneState, Serving, beginning, serving, states_from_dict, states_to_dict

if TYPE_CHECKING:
    from headrace.datasets.encoded import UnitReader
    from headrace.loader.balancing import Dealing

_log = logging.getLogger("headrace")


class _Stream:
    """One iteration: where it has come to. An older one that is still asked changes nothing of the newest."""

    def __init__(self, book: Book, position: int) -> None:
        self.book = book
        self.position = position


class FramedFeed:
    """Of a `FramedRun`; see `Feed`. The arguments are those of `Loader`.

    Raises:
        ConfigError: units that are whole batches, and micro-batches of several.
    """

    dealing: Dealing | None = None

    def __init__(
        self, run: FramedRun, ranks: Ranks, share: Share, reading: Reading, *, journal: str | None = None
    ) -> None:
        if run.is_group_batches and share.micro_batch_size != 1:
            raise ConfigError(
                f"a unit of this run is a whole batch of one group, and micro_batch_size is {share.micro_batch_size}: "
                "give micro_batch_size=1; how many samples a batch has is said by batch_size, or by the criterion"
            )
        self._run = run
        self._lanes = run.framing.lanes
        self._agrees = ranks.agree
        self._share = share
        self._reading = reading
        self._pin = pins(reading)
        self._end = None if run.num_steps is None else run.schedule.begin(run.num_steps)
        if journal is not None:
            check_journal(journal, run.journal_hashes)
        self._journal = journal
        self._file: JournalFile | None = None
        self._workers = self._make_workers() if reading.num_workers else None
        self._stream = _Stream(Book(self._lanes, beginning(self._lanes)), 0)
        if self._serving.times_encoded > 1:
            _log.warning("%s", self.describe())

    def _make_workers(self) -> Workers[Part]:
        # Not by itself: a ring would keep the processes until the garbage collector comes by.
        me: FramedFeed = proxy(self)
        return Workers(
            lambda: me._lane_reader(),
            self._reading,
            pin=self._pin,
            describe=describe_part,
            describe_sample=partial(describe_part_sample, self._run),
            unrestorable=self._run.not_stateless,
        )

    def _lane_reader(self) -> LaneReader:
        """A reader that begins at the first micro-batch that was not handed over."""
        now = self._stream
        # What comes from workers is pinned on its way.
        pin = self._pin and self._workers is None
        return LaneReader(self._run, now.book.states(now.position, now.book.lanes), pin=pin)

    def batches(self, position: int) -> Iterator[Given]:
        """See `Feed.batches`."""
        if self._agrees:
            agree(self._run, position, self._share)
        if self._journal is not None and self._file is None:
            self._file = JournalFile(self._journal, self._run.recipe.hashes(), self._lanes)
        before = self._stream.book
        states = before.states(position, before.lanes)
        stream = self._stream = _Stream(Book(self._lanes, states), position)
        made = self._made(stream, states)
        if self._lanes.num_positions is not None:
            step, begin, _, _ = self._run.schedule.locate(position)
            # A step that has begun is there.
            last_step = step if position > begin else step - 1
            made = up_to_the_end(made, last_step, partial(self._known_step, stream.book), self._agreed)
        for one in made:
            stream.position = one.after
            stream.book.forget(one.after)
            yield Given(one.batch, one.after, one.num_units, one.faults)

    def start_at(self, position: int) -> None:
        """See `Feed.start_at`: 0, or where the feed stands."""
        if position == 0:
            self._stream = _Stream(Book(self._lanes, beginning(self._lanes)), 0)
        elif position != self._stream.position:
            raise ConfigError(
                f"what is in unit {position:,} of this run shows when it is read, from the state of its lane on, so "
                "that it cannot be begun there: load a saved state, or begin at 0"
            )

    def state(self, position: int) -> dict[str, Any]:
        """See `Feed.state`: the lanes that this rank serves from there on, some dozens of bytes each."""
        if position == 0:
            return {}
        states = self._stream.book.states(position, self._served(position))
        return {"lanes": (states_to_dict(states, self._lanes),)}

    def load(self, cursor: Cursor) -> None:
        """See `Feed.load`; raises StateError where a lane is missing that this rank has to walk."""
        self._stream = _Stream(Book(self._lanes, self._loaded(cursor)), cursor.position)

    def describe(self) -> str:
        """See `Feed.describe`; of the step that costs most."""
        return self._serving.describe()

    def close(self) -> None:
        """See `Feed.close`."""
        if self._workers is not None:
            self._workers.close()

    @cached_property
    def _serving(self) -> Serving:
        world_size, micro = self._share.world_size, self._share.micro_batch_size
        costs = [
            serving(self._lanes, global_batch_size=size, world_size=world_size, micro_batch_size=micro)
            for size in sorted({size for _, size in self._run.schedule.pieces})
        ]
        return max(costs, key=lambda cost: cost.times_encoded)

    def _known_step(self, book: Book) -> int:
        last = book.last_unit()
        return -1 if last < 0 else self._run.schedule.step_of(last)

    def _agreed(self, step: int) -> int:
        return largest(step) if self._agrees else step

    def _served(self, position: int) -> list[int]:
        found: list[int] = lanes_of(coming_steps(self._run.schedule, self._share, position), self._lanes).tolist()
        return found

    def _loaded(self, cursor: Cursor) -> Sequence[LaneState]:
        if cursor.dealt is not None:
            raise StateError("the saved state is of a balanced run, and a framed run is not balanced")
        if not cursor.lanes:
            if cursor.position:
                raise StateError(f"the saved state is at unit {cursor.position:,}, and holds no lanes: it is damaged")
            return beginning(self._lanes)
        if len(cursor.lanes) > 1:
            raise StateError(f"the saved state holds {len(cursor.lanes)} lists of lanes, expected one: it is damaged")
        states = states_from_dict(cursor.lanes[0], self._lanes)
        for state in states:
            wanted = self._lanes.next_unit(state.lane, cursor.position)
            if state.unit != wanted or state.first_unit > wanted:
                raise StateError(
                    f"lane {state.lane} of the saved state is at its unit {state.unit}, expected {wanted} after "
                    f"{cursor.position:,} units of the run: it is damaged"
                )
        held = {state.lane for state in states}
        if missing := [lane for lane in self._served(cursor.position) if lane not in held]:
            raise StateError(
                f"the saved state holds {len(held)} of {self._lanes.num_lanes} lanes, and rank {self._share.rank} of "
                f"{self._share.world_size} has to go on with lane {missing[0]}: it is the state of one rank. Save "
                "Loader.gather_state_dict(), or merge those of all ranks with headrace.loader.merge_state_dicts"
            )
        return states

    def _made(self, stream: _Stream, states: Sequence[LaneState]) -> Iterator[Made]:
        """Every micro-batch, put together of its parts. The marks of each are in the book before it is handed over."""
        num_readers = self._reading.num_workers or self._reading.num_threads or 1
        tasks = parts(
            self._run.schedule,
            self._lanes,
            self._share,
            tuple(states),
            position=stream.position,
            end=self._end,
            num_readers=num_readers,
        )
        collator = self._run.reader(())
        found: list[tuple[Part, Message]] = []
        for part, message in self._filled(tasks):
            stream.book.add(message.marks)
            if self._file is not None:
                self._file.add(message.marks)
            found.append((part, message))
            if part.after is not None:
                num_units = sum(message.num_units for _, message in found)
                faults = merged(message.faults for _, message in found)
                yield Made(self._whole(found, collator), num_units, part.step, part.after, faults)
                found = []

    def _filled(self, tasks: Iterator[Part]) -> Iterator[tuple[Part, Message]]:
        """Each part with its message, in order."""
        if self._workers is not None:
            return self._workers.filled(tasks)
        if self._reading.num_threads:
            readers = [self._lane_reader() for _ in range(self._reading.num_threads)]
            return in_threads(readers, ((part, part) for part in tasks), self._reading, describe_part)
        reader = self._lane_reader()
        return ((part, reader(part)) for part in tasks)

    def _whole(self, found: Sequence[tuple[Part, Message]], collator: UnitReader) -> Batch:
        """The batch of a micro-batch, as it came or put together."""
        part, message = found[-1]
        if isinstance(message.content, dict):
            return message.content
        numbers = np.sort(np.concatenate([part.numbers for part, _ in found]))
        samples: list[Any] = [None] * len(numbers)
        for part, message in found:
            slots = np.searchsorted(numbers, part.numbers).tolist()
            for slot, sample in zip(slots, message.content, strict=True):
                samples[slot] = sample
        batch = batch_of(collator, samples, numbers)
        return pinned(batch) if self._pin else batch
