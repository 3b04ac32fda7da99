"""`FramedRun`: data, task encoder, order, lanes and batches, which together fix every unit; and its journal.

Each rank of a framed run may write a journal, one file a rank, in which ``headrace trace`` finds units:

    8 bytes     HRFRAMES
    8 bytes     identifies the run: from the hashes of its recipe
    records     as in `headrace.plan.framed.Journal`, 16 bytes a frame and what it carries on

A kill may leave an incomplete record at the end, which a resumed run overwrites.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.config import optional_whole
from headrace.datasets.dataset import Tell
from headrace.datasets.encoded.framed import Framed, FramedSources
from headrace.datasets.encoded.samples import check_restorable, of_framed
from headrace.datasets.encoded.unit_reader import UnitReader
from headrace.datasets.run import Located, Run, by_source
from headrace.datasets.run_outline import sources_outline
from headrace.errors import ConfigError, OutputError, StateError
from headrace.io import check_kind
from headrace.plan import BatchSchedule, Cursor, IntArray, Order, RunRecipe
from headrace.plan.framed import (
    OLDEST,
    FrameTotals,
    Framing,
    Journal,
    Lanes,
    LaneState,
    beginning,
    journal_record,
    lanes_key,
    read_lanes,
    serving,
    whole_bytes,
)
from headrace.plan.keys import EpochAddresses
from headrace.plan.packing import Packing
from headrace.plan.recipe import PARTS, differing_parts
from headrace.plan.slots import draws

if TYPE_CHECKING:
    from headrace.datasets.editing import Edit

MAGIC = b"HRFRAMES"
ON_ERROR = ("raise", "substitute")
"""What an `ErrorPolicy` may say."""
_HEAD_BYTES = 16


def head_of(hashes: Mapping[str, str]) -> bytes:
    """(16,) bytes: the beginning of a journal of a run whose recipe has these hashes."""
    return MAGIC + sha256("".join(hashes[part] for part in PARTS).encode()).digest()[:8]


class JournalFile:
    """Appends the frames that a rank begins. A frame that is already in the file may be added again without effect.

    Making it only checks the file. The first frame that is added also cuts off a record that a kill left incomplete.

    Args:
        path: a file for this rank alone; a file of the same run is continued.
        runs: hashes of the recipes under which the run may have been known; a new file has the first.
        lanes: lanes of the run.

    Raises:
        ConfigError: the file is of another run, or is not a journal.
        OutputError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], runs: Sequence[Mapping[str, str]], lanes: Lanes) -> None:
        self._path = Path(path)
        self._lanes = lanes
        self._heads = [head_of(hashes) for hashes in runs]
        self._is_begun = False
        self._append(b"")

    def add(self, marks: Iterable[LaneState]) -> None:
        """Append frames that were begun. Raises OutputError if they cannot be written."""
        data = b"".join(journal_record(mark, self._lanes) for mark in marks)
        if data:
            self._append(data)

    def _append(self, data: bytes) -> None:
        try:
            with self._path.open("a+b", buffering=0) as file:
                if not self._is_begun:
                    file.seek(0)
                    found = file.read()
                    if not any(found.startswith(head) or head.startswith(found) for head in self._heads):
                        raise ConfigError(
                            f"{self._path}: is the journal of another run, or not a journal: give this run a file of "
                            "its own"
                        )
                if not data:
                    return
                if not self._is_begun:
                    is_new = len(found) < _HEAD_BYTES
                    file.truncate(0 if is_new else _HEAD_BYTES + whole_bytes(found[_HEAD_BYTES:]))
                    data = self._heads[0] + data if is_new else data
                    self._is_begun = True
                file.write(data)
        except OSError as error:
            raise OutputError(f"{self._path}: the journal cannot be written: {error.strerror}") from error


def read_journals(paths: Iterable[str | os.PathLike[str]], runs: Sequence[Mapping[str, str]], lanes: Lanes) -> Journal:
    """Return the journals of all ranks of a run, and of all its starts, as one.

    Args:
        paths: the files.
        runs: hashes of the recipes under which the run may have been known.
        lanes: lanes of the run.

    Raises:
        StateError: a journal cannot be read, is of another run, or contradicts the others.
    """
    heads = [head_of(hashes) for hashes in runs]
    records = []
    for path in paths:
        try:
            check_kind(path)
            data = Path(path).read_bytes()
        except OSError as error:
            raise StateError(f"{path}: the journal cannot be read: {error.strerror}") from error
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise StateError(f"{path}: is not a journal; expected a file that Loader(journal=...) wrote")
        if len(data) < _HEAD_BYTES:
            continue
        if data[:_HEAD_BYTES] not in heads:
            raise StateError(f"{path}: is the journal of another run than the one asked about")
        records.append(data[_HEAD_BYTES : _HEAD_BYTES + whole_bytes(data[_HEAD_BYTES:])])
    return Journal(b"".join(records), lanes)


class FramedRun:
    """Everything that decides which units make step N: units [N G, (N + 1) G). Ranks and workers are not part of it.

    The samples of the mix come in the order of `Run`. Unit u of the run belongs to lane u modulo ``num_lanes``, and so
    does position p of the samples, except that in a blend the ``num_lanes`` positions of a turn are drawn. A lane makes
    its units from its own samples alone, so that ranks need not communicate.

    ``epochs`` or ``samples`` say how many samples are fed, as in `Run`; how many units these make is known only at the
    end, where lanes run out one after another. ``steps`` says how many steps are taken; a run with fewer units ends
    earlier.

    Construction costs O(sources). It reads nothing.

    Args:
        data: the source of units.
        global_batch_size: number of units in a step, or pieces ``[(first step, size), ...]``.
        num_lanes: a divisor of every global batch; None is one lane for each unit of a step. With fewer lanes, units
            wait less for others; with more lanes, more ranks can share the work.
        order, epochs, samples: see `Run`.
        steps: number of steps after which the run ends.

    Raises:
        ConfigError: what `Run` and `Lanes` refuse; ``steps`` below 1.

    Example:
        >>> dataset = headrace.MediaDataset(headrace.open("shards"))
        >>> framed = headrace.datasets.Framed(dataset, headrace.encoders.DefaultTaskEncoder())
        >>> run = headrace.FramedRun(framed, global_batch_size=4, epochs=1)
        >>> len(run.units(0))
        4
    """

    def __init__(
        self,
        data: Framed,
        *,
        global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]],
        num_lanes: int | None = None,
        order: Order | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        steps: int | None = None,
    ) -> None:
        if not isinstance(data, Framed):
            raise ConfigError(f"data is {data!r:.80}; expected Framed(dataset, encoder)")
        self.data = data
        self.schedule = BatchSchedule.of(global_batch_size)
        self.stream = Run(data.data, global_batch_size=1, order=order, epochs=epochs, samples=samples)
        plan = self.stream.plan
        lanes = Lanes.of(
            self.schedule,
            frame_positions=data.frame_positions,
            num_lanes=optional_whole(num_lanes, "num_lanes"),
            num_positions=self.stream.length,
            key=lanes_key(plan.order.seed) if draws(plan) else None,
        )
        self.framing = Framing(lanes, data.form, data.seed, data.most_empty_positions)
        self.num_steps = optional_whole(steps, "steps")
        if self.num_steps is not None and self.num_steps < 1:
            raise ConfigError(f"steps is {steps}; expected at least 1, or None for a run without a number of steps")

    @property
    def lanes(self) -> Lanes:
        """How positions and units are assigned to lanes."""
        return self.framing.lanes

    @property
    def length(self) -> int | None:
        """Number of units if it is known beforehand: with ``steps`` of an endless stream of samples. Else None."""
        if self.num_steps is None or self.lanes.num_positions is not None:
            return None
        return self.schedule.begin(self.num_steps)

    @property
    def paths(self) -> tuple[str, ...]:
        """Path of each dataset in the mix, by its number."""
        return self.stream.paths

    @property
    def is_group_batches(self) -> bool:
        """Whether a unit is a whole batch of one group, so that a micro-batch holds one unit."""
        return self.data.is_group_batches

    @property
    def unrestorable(self) -> str | None:
        """The first hook in use that is not marked ``@stateless``, so that nothing can be made again; or None."""
        return self.data.unrestorable

    @cached_property
    def _addresses(self) -> list[EpochAddresses]:
        return [EpochAddresses.of(len(dataset)) for dataset in self.stream.datasets]

    def new_sources(self) -> FramedSources:
        """Return the datasets under the hooks, for one reader."""
        return self.data.sources(zip(self.paths, self.stream.datasets, strict=True))

    def locate(self, positions: IntArray) -> Located:
        """Return dataset and address of the sample at each position. O(log sources), reads nothing."""
        found = self.stream.lookup(positions)
        addresses = np.empty_like(positions)
        for source, rows in by_source(found.sources):
            keys = found.keys[rows] if self.stream.is_keyed(source) else None
            addresses[rows] = self._addresses[source].join(found.indices[rows], keys)
        return Located(positions, found.sources, addresses)

    def reader(self, states: Sequence[LaneState] | None = None, tell: Tell | None = None) -> UnitReader:
        """Return a reader that makes units, from the states of its lanes; None is the beginning of all lanes."""
        states = beginning(self.lanes) if states is None else states
        return UnitReader(self.data, self.framing, self.new_sources(), self.locate, states, tell=tell)

    def units(self, step: int) -> list[Any]:
        """Return the samples of a step, made from the beginning of the run: O(step). For inspection and tests."""
        begin, end = self.schedule.begin(step), self.schedule.begin(step + 1)
        reader = self.reader()
        for number in range(begin):
            reader.skip(number)
        return [sample for sample in reader.samples(range(begin, end)) if sample is not None]

    def restore_sample(self, key: Any) -> Any:
        """Make the sample of a restore key again, bit for bit; for the list of keys of a batch, the batch.

        Needs nothing but the key: no state, no order.

        Raises:
            ConfigError: not a key of this source, its sample has changed, or a hook is not ``@stateless``.
        """
        check_restorable(self.unrestorable)
        reader = self.reader(())
        if isinstance(key, list):
            samples = [reader.sources.restored(of_framed(one)) for one in key]
            return reader.collate([samples] if self.is_group_batches else samples)
        return reader.sources.restored(of_framed(key))

    @cached_property
    def recipe(self) -> RunRecipe:
        """What decides the bytes of every step, by part; save it beside the checkpoint.

        The number of positions is part of it: at the end all outputs that were carried on are flushed, so a run with
        another end is another run.
        """
        return self._recipe(self.data.errors.on_error)

    @property
    def made(self) -> dict[str, Any]:
        """What makes outputs of the samples, as it stands in the recipe around that of each dataset."""
        return {"kind": "framed", **self.data.recipe["encoder"]}

    def _recipe(self, on_error: str) -> RunRecipe:
        stream = self.stream.recipe
        made = self.made | {"on_error": on_error}
        lanes = self.lanes
        return RunRecipe(
            format={**stream.format, "framed": lanes.format},
            dataset={path: {**made, "dataset": recipe} for path, recipe in stream.dataset.items()},
            blend=stream.blend,
            order=stream.order,
            batch={
                "pieces": [list(piece) for piece in self.schedule.pieces],
                "form": self.data.recipe["form"],
                "seed": self.data.seed,
                "num_lanes": lanes.num_lanes,
                "frame_positions": lanes.frame_positions,
                "num_positions": lanes.num_positions,
            },
        )

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was changed in the run; an edit is at a position of the samples."""
        return self.stream.edits

    def edit(self, at: Mapping[str, Any], **changes: Any) -> FramedRun:
        """Return a run that goes on from a saved state with other samples. This run stays as it is.

        The samples change at the first position beyond every frame that a lane has begun in the state, and each source
        goes on where it is, see `Run.edit`. No frame is cut: one that is begun later and holds samples from before and
        behind this position mixes them, and what a lane has carried on comes as it would have. So the steps from the
        state on change gradually, over a few frames of each lane; `first_new_step` says when that is over. States load
        into the new run as long as none of their lanes has come to this position.

        Args:
            at: the state of a loader of this run with all lanes, from ``gather_state_dict()``.
            changes: those of `Run.edit`, but for ``global_batch_size``.

        Raises:
            ConfigError: what `Run.edit` refuses; a lane has begun its last frame.
            StateError: the state is of another run, or lacks lanes.
        """
        if "global_batch_size" in changes:
            raise ConfigError("global_batch_size: the steps of a framed run are units, whose number cannot be edited")
        cursor = Cursor.from_dict(at)
        states = self._states_at(cursor)
        if ended := [state.lane for state in states if self.lanes.is_last(state.lane, state.frame)]:
            raise ConfigError(
                f"lane {ended[0]} has begun its last frame at unit {cursor.position:,}, so that the run cannot be "
                "changed any more: edit it at an earlier state"
            )
        return self._on(self.stream.edit(self.lanes.reached(states), **changes))

    def first_new_step(self, at: Mapping[str, Any]) -> int:
        """Return the first step from which on no unit holds a sample from before the last edit.

        It is found by making these units: a few frames of each lane are encoded.

        Args:
            at: the state at which the run was edited, or an earlier one.

        Raises:
            ConfigError: the run is not edited, or a hook is not ``@stateless``.
            StateError: the state is of another run, or lacks lanes.
        """
        check_restorable(self.unrestorable)
        if not self.edits:
            raise ConfigError("the run is not edited: all of its steps are as they were")
        states = self._states_at(Cursor.from_dict(at))
        edited, lanes = self.edits[-1].at_step, self.lanes
        reader = self.reader(states)
        last = max(state.unit * lanes.num_lanes + state.lane for state in states) - lanes.num_lanes
        for state in states:
            whole = lanes.frame_behind(state.lane, edited)
            number = state.unit * lanes.num_lanes + state.lane
            while (unit := reader.look(number)) is not None and unit.frame <= whole + OLDEST:
                if len(unit.items.positions) and int(unit.items.positions.min()) < edited:
                    last = max(last, number)
                number += lanes.num_lanes
        return self.schedule.step_of(last) + 1 if last >= 0 else 0

    def _states_at(self, cursor: Cursor) -> Sequence[LaneState]:
        """Return the states of all lanes, as they were saved."""
        if self.num_edits_before(cursor.recipe) is None:
            raise StateError(f"the saved state, at unit {cursor.position:,}, is of another run")
        states = self.lane_states(cursor)
        if missing := set(range(self.lanes.num_lanes)) - {state.lane for state in states}:
            raise StateError(
                f"the saved state lacks {len(missing)} of {self.lanes.num_lanes} lanes, so it is that of one rank:"
                " pass Loader.gather_state_dict(), or merge the states of all ranks with"
                " headrace.loader.merge_state_dicts"
            )
        return states

    def rebuilt(self, edits: Sequence[Edit]) -> FramedRun:
        """Return the run as it was begun, with these edits, which rise by their positions."""
        return self if tuple(edits) == self.edits else self._on(self.stream.rebuilt(edits))

    def _on(self, stream: Run) -> FramedRun:
        """Return this run over other samples, by the same lanes."""
        found = copy(self)
        for name in ("recipe", "_addresses"):
            found.__dict__.pop(name, None)
        found.stream = stream
        lanes = msgspec.structs.replace(self.lanes, num_positions=stream.length)
        found.framing = replace(self.framing, lanes=lanes)
        found.new_sources()  # what they refuse is raised here, and not by the first worker
        return found

    def lane_states(self, cursor: Cursor) -> Sequence[LaneState]:
        """Return the states of the lanes in a saved state. Raises StateError if it is damaged."""
        if not cursor.lanes:
            if cursor.position:
                raise StateError(f"the saved state is at unit {cursor.position:,}, but holds no lanes: it is damaged")
            return beginning(self.lanes)
        if len(cursor.lanes) > 1:
            raise StateError(f"the saved state holds {len(cursor.lanes)} lists of lanes, expected one: it is damaged")
        return read_lanes(cursor.lanes[0], self.lanes, cursor.position)

    def num_edits_before(self, hashes: Mapping[str, str]) -> int | None:
        """Return after how many of its edits the run had a recipe with these hashes; None if it never had.

        Under which policy samples that break were met plays no part, since it decides nothing of what was fed.
        """
        for number in reversed(range(len(self.edits) + 1)):
            run = self.rebuilt(self.edits[:number])
            if not all(differing_parts(run._recipe(on_error).hashes(), hashes) for on_error in ON_ERROR):
                return number
        return None

    @property
    def journal_hashes(self) -> list[dict[str, str]]:
        """Hashes under which a journal may know this run, the first for a new one.

        It may have been begun under another policy for samples that break. An edited run goes on with the journal of
        the run as it was begun.
        """
        own, begun = self.data.errors.on_error, self.rebuilt(())
        policies = (own, *(one for one in ON_ERROR if one != own))
        return [begun._recipe(on_error).hashes() for on_error in policies]

    def first_frames(self, num_frames: int = 4) -> FrameTotals:
        """Encode the first frames of lane 0, and return how full their units are and what is carried on."""
        reader = self.reader()
        number = 0
        while reader.figures.frames.num_frames < num_frames and reader.look(number) is not None:
            number += self.lanes.num_lanes
        return reader.figures.frames

    def describe(self, *, world_size: int | None = None, micro_batch_size: int = 1, num_frames: int = 0) -> str:
        """Return the mix as a tree, then what units are.

        With ``world_size`` also what sharing lanes costs the ranks; with ``num_frames`` also the result of
        `first_frames`.
        """
        lines = sources_outline(self.stream.data, self.stream.plan)
        lines.append(f"units: {self.data.describe()}")
        pieces = [f"{size:,} units from step {step:,}" for step, size in self.schedule.pieces]
        lines.append(f"global batch: {', '.join(pieces)}; {self.lanes.num_lanes:,} lanes")
        length = self.stream.length
        lines.append("length: endless" if length is None else f"length: of {length:,} samples")
        if self.num_steps is not None:
            lines[-1] += f", at most {self.num_steps:,} steps"
        if world_size is not None:
            costs = {
                size: serving(
                    self.lanes, global_batch_size=size, world_size=world_size, micro_batch_size=micro_batch_size
                ).describe()
                for _, size in self.schedule.pieces
            }
            lines += [f"{world_size:,} ranks: {line}" for line in dict.fromkeys(costs.values())]
        if num_frames:
            form = self.framing.form
            lines.append(self.first_frames(num_frames).describe(form.seq_len if isinstance(form, Packing) else None))
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        # A copy with other lanes has another recipe.
        return {name: value for name, value in self.__dict__.items() if name not in ("recipe", "_addresses")}

    def __repr__(self) -> str:
        return f"<FramedRun: {len(self.paths)} sources, {self.lanes.num_lanes:,} lanes, {self.data.describe()}>"
