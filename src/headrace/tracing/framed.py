"""What a step of a framed run was fed, and when a sample comes: found in its journal, or by encoding again.

unit u of lane l ---- journal ----> frame, carry ---- Lanes ----> positions ---- stream's History ----> samples
                                        +---- reader: one frame is encoded again ----> the very samples
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.datasets.encoded import FramedRun, UnitReader
from headrace.datasets.encoded.framed_run import read_journals
from headrace.errors import ConfigError, StateError
from headrace.plan import BatchSchedule, Cursor
from headrace.plan.framed import Journal, Lanes, LaneState
from headrace.plan.recipe import differing_parts
from headrace.plan.slots import taken_by
from headrace.tracing.history import SHOWN, History, Times, Topology, Traced, history_of


class TracedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of a framed run in its place.

    Attributes:
        step: the global step.
        unit: its number in the run.
        lane: its lane.
        frame: the frame of the lane in which it was made; if the journal lacks some frames, the first that it may be.
        first_position, last_position: those of the frame; a lane has every ``num_lanes``-th position between them.
        num_carried: number of outputs of earlier positions that were carried on into the frame.
        is_exact: whether ``samples`` are those in the unit; else they are all that may be, or empty if not asked for.
        samples: in the order of their positions.
        rank, micro_step, seen: as in `Traced`.
    """

    step: int
    unit: int
    lane: int
    frame: int
    first_position: int
    last_position: int
    num_carried: int
    is_exact: bool
    samples: tuple[Traced, ...] = ()
    rank: int | None = None
    micro_step: int | None = None
    seen: bool | None = None


class FramedHistory:
    """One framed run, which can be asked about its steps and samples.

    Args:
        stream: the history of its samples before they are made into units, one in each step.
        lanes, schedule: those of its units.
        journal: the frames that were begun.
        reader: makes a reader of units from states, so that samples are known exactly; None if the data cannot be read.
        shift: number that is added to a step of the run to get one of the training.
        state: state that a loader of the run saved.
        hashes: hashes of the run's recipe, to check the state.

    Raises:
        StateError: the state is of another run.
    """

    def __init__(
        self,
        stream: History,
        lanes: Lanes,
        schedule: BatchSchedule,
        journal: Journal,
        *,
        reader: Callable[[Sequence[LaneState]], UnitReader] | None = None,
        shift: int = 0,
        state: Mapping[str, Any] | None = None,
        hashes: Mapping[str, str] | None = None,
    ) -> None:
        self._stream = stream
        self._lanes = lanes
        self._schedule = schedule
        self._journal = journal
        self._reader = reader
        self._shift = shift
        self._position: int | None = None
        if state is not None:
            cursor = Cursor.from_dict(state)
            if hashes is not None and differing_parts(hashes, cursor.recipe):
                raise StateError(f"the saved state, at unit {cursor.position:,}, is of another run")
            self._position = cursor.position

    def step(
        self,
        step: int,
        *,
        topology: Topology | None = None,
        rank: int | None = None,
        samples: bool = True,
        origins: bool = True,
    ) -> list[TracedUnit]:
        """Return the units of a global step, in order; units whose lane has ended before are left out.

        With a reader, the samples of each unit are those in it, one for each output, and a frame of each lane is
        encoded again. Without one, they are all that may be in it: the outputs carried on into its frame, and the
        frame.

        Raises:
            ConfigError: there is no such step or rank.
            StateError: the journal does not reach it.
        """
        if step < self._shift:
            raise ConfigError(f"there is no step {step:,}: the steps of this run begin at {self._shift:,}")
        if rank is not None and (topology is None or not 0 <= rank < topology.ranks):
            raise ConfigError(f"rank {rank}: pass the number of ranks too; ranks go from 0 to one below it")
        begin, end = (self._schedule.begin(step - self._shift + more) for more in (0, 1))
        found = []
        for number in range(begin, end):
            taken: tuple[int | None, int | None] = (None, None)
            if topology is not None:
                taken = taken_by(number - begin, end - begin, topology.ranks, topology.micro_batch_size)
            if rank is not None and taken[0] != rank:
                continue
            one = self._unit(number, samples=samples, origins=origins)
            if one is not None:
                found.append(msgspec.structs.replace(one, rank=taken[0], micro_step=taken[1]))
        return found

    def sample(
        self,
        source: str,
        index: int | None = None,
        *,
        key: str | None = None,
        limit: int = SHOWN,
        origins: bool = True,
    ) -> Times:
        """Return the steps of the units that a sample goes into, as far as the journal reaches.

        With a reader, there is one entry for each unit; without one, the steps between which the units are, if the
        encoder made any output. ``count`` counts positions, each of which may go into several units.

        Raises:
            ConfigError: see `History.sample`.
        """
        lanes = self._lanes
        reached = {lane: self._journal.reached(lane) for lane in range(lanes.num_lanes)}
        ends = [int(lanes.at(lane, np.array([lanes.begin(lane, reached[lane][0])]))[0]) for lane in reached]
        # After the last frame of a run that ends, the next frame would begin beyond the last position.
        fed = self._stream.sample(source, index, key=key, until_samples=max(ends), limit=limit, origins=origins)
        planned = [
            (one, one.position)
            for one in fed.shown
            if one.position is not None and one.position < ends[self._lanes.lane_of(one.position)]
        ]
        count = len(planned)
        if fed.count > len(fed.shown):
            # Lanes are not equally far. If there are many times, only those that every lane has passed are counted.
            count = self._stream.sample(source, index, key=key, until_samples=min(ends), limit=1, origins=False).count
        last = max((first - 1) * lanes.num_lanes + lane for lane, (_, first) in reached.items())
        shown: list[Traced] = []
        notes = list(fed.notes)
        for one, position in planned:
            try:
                first, after = self._journal.units_of(position)
            except StateError as error:
                notes.append(f"position {position:,}: {error}")
                continue
            lane = self._lanes.lane_of(position)
            num_frames = lanes.num_frames(lane)
            if after is None and (num_frames is None or reached[lane][0] < num_frames):
                notes.append(
                    f"position {position:,}: the rest of its outputs may come in frames of lane {lane} after "
                    f"{reached[lane][0] - 1:,}, where the journals end"
                )
            found = self._units_with(one, position, first, reached[lane][1] if after is None else after)
            # The encoder made no output, or none that has been delivered.
            count -= not found
            shown += found
        until = 0 if last < 0 else self._schedule.step_of(last) + 1
        return Times(
            count=count,
            shown=tuple(shown[:limit]),
            until_step=until + self._shift,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _unit(self, number: int, *, samples: bool, origins: bool) -> TracedUnit | None:
        lanes = self._lanes
        lane, unit = number % lanes.num_lanes, number // lanes.num_lanes
        planned = self._journal.frames(lane, unit)
        if planned is None:
            return None
        state, last_frame = planned
        positions = np.concatenate([lanes.positions(lane, frame) for frame in range(state.frame, last_frame + 1)])
        traced = TracedUnit(
            **self._place(number),
            unit=number,
            lane=lane,
            frame=state.frame,
            first_position=int(positions[0]),
            last_position=int(positions[-1]),
            num_carried=len(state.carry),
            is_exact=False,
        )
        if self._reader is not None:
            made = self._reader([state]).look(number)
            if made is None:
                return None
            traced = msgspec.structs.replace(traced, frame=made.frame, is_exact=True)
            return msgspec.structs.replace(traced, samples=self._samples(traced, made.items.pairs, origins=origins))
        if samples:
            pairs: list[tuple[int, int | None]] = [*state.carry, *((one, None) for one in positions.tolist())]
            traced = msgspec.structs.replace(traced, samples=self._samples(traced, pairs, origins=origins))
        return traced

    def _samples(
        self, unit: TracedUnit, pairs: Sequence[tuple[int, int | None]], *, origins: bool
    ) -> tuple[Traced, ...]:
        """Return the samples at positions, with the step of a unit."""
        positions = list(dict.fromkeys(position for position, _ in pairs))
        by_position = dict(zip(positions, self._stream.positions(positions, origins=origins), strict=True))
        place = {"step": unit.step, "last_step": unit.step, "unit": unit.unit, "seen": unit.seen}
        return tuple(msgspec.structs.replace(by_position[one], output=output, **place) for one, output in pairs)

    def _place(self, number: int) -> dict[str, Any]:
        """Return the step of a unit, and whether it was seen."""
        seen = None if self._position is None else number < self._position
        return {"step": self._schedule.step_of(number) + self._shift, "seen": seen}

    def _units_with(self, fed: Traced, position: int, first: int, after: int) -> list[Traced]:
        """Return a sample with each unit that it is in, or may be in."""
        lanes = self._lanes
        lane = self._lanes.lane_of(position)
        if self._reader is None:
            if after <= first:
                return []
            begin, last = (self._place(unit * lanes.num_lanes + lane)["step"] for unit in (first, after - 1))
            return [msgspec.structs.replace(fed, step=begin, last_step=last, seen=None)]
        reader = self._reader([self._journal.unit(lane, first)])
        found = []
        for unit in range(first, after):
            number = unit * lanes.num_lanes + lane
            made = reader.look(number)
            if made is None:
                break
            place = self._place(number) | {"last_step": self._place(number)["step"], "unit": number}
            outputs = [output for at, output in made.items.pairs if at == position]
            found += [msgspec.structs.replace(fed, output=output, **place) for output in outputs]
        return found


def framed_history(run: FramedRun, journals: Iterable[str | os.PathLike[str]]) -> FramedHistory:
    """Return the history of a framed run by the journals that its loaders wrote. It encodes frames again.

    A step takes one frame of each lane, and each unit that a sample went into up to five.

    Raises:
        StateError: a journal cannot be read, or is of another run.
        ConfigError: a hook is not ``@stateless``, so that nothing can be made again.
    """
    if run.unrestorable is not None:
        raise ConfigError(
            f"{run.unrestorable} is not marked @stateless: it may depend on"
            " what ran before, so that no frame can be made again; mark it, or use `headrace trace`"
        )
    journal = read_journals(journals, run.rebuilt(()).recipe.hashes(), run.lanes)
    return FramedHistory(history_of(run.stream), run.lanes, run.schedule, journal, reader=run.reader)
