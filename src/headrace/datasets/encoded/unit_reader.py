"""`UnitReader` makes the units of a framed run in one process.

It walks lanes, and `BoundedCache` keeps outputs that were made before their turn while there is room; those that are
dropped can be made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np

from headrace.datasets.dataset import SampleWatch, Tell
from headrace.datasets.encoded.framed import Framed, FramedSources, MadeOutput, MadeSample
from headrace.datasets.encoded.samples import (
    RestoreKey,
    keyed,
    of_framed,
    of_one_group,
    one_batch,
    raise_failure,
    restore_key_of,
)
from headrace.datasets.run import Located
from headrace.encoders import CallKey, Fault, FaultLog, HookFailure
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, SkipSample, StateError
from headrace.plan import IntArray
from headrace.plan.framed import FrameTotals, Framing, Items, LaneState, Selected, Unit, Walk
from headrace.samples.media.sample import BASE_FIELDS

T = TypeVar("T")

_SMALL = 64
"""Bytes that any object counts as."""

_NUMBER = 32
"""Bytes that a number in a list counts as."""

_FEW = 32
"""In longer lists, the first value stands for all."""

_DEPTH = 6
"""Depth to which fields are examined."""

_PLAIN = frozenset({int, float, bool, complex, type(None)})

_SIZED: dict[type, Callable[[Any], int]] = {np.ndarray: lambda array: int(array.nbytes), str: len, bytes: len}
"""The most frequent types whose size is known at once."""


class BoundedCache(Generic[T]):
    """Values by key, at most ``limit_bytes`` of them after each ``trim``; None for no limit.

    The newest value is dropped first: when samples are read ahead, it is the one that is due last.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.most_bytes = 0
        self.num_dropped = 0
        self._values: dict[Hashable, tuple[T, int]] = {}

    def put(self, key: Hashable, value: T, sample: Any) -> None:
        """Keep a value until it is taken or dropped; its size is that of ``sample``."""
        self.take(key)
        size = size_of(sample)
        self._values[key] = value, size
        self.num_bytes += size
        self.most_bytes = max(self.most_bytes, self.num_bytes)

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key, or None."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def take(self, key: Hashable) -> T | None:
        """Return the value of a key, or None, and stop keeping it."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self.num_bytes -= found[1]
        return found[0]

    def drop(self, is_wanted_no_more: Callable[[Any], bool]) -> None:
        """Drop the values whose keys will not be asked for again."""
        for key in [key for key in self._values if is_wanted_no_more(key)]:
            self.take(key)

    def trim(self) -> None:
        """Drop values until the limit is kept."""
        while self.limit_bytes is not None and self.num_bytes > self.limit_bytes:
            _, (_, size) = self._values.popitem()
            self.num_bytes -= size
            self.num_dropped += 1

    def __len__(self) -> int:
        return len(self._values)


def size_of(value: Any, depth: int = _DEPTH) -> int:
    """Estimate how many bytes a value takes: arrays, tensors, images, bytes and text in its fields, and the rest.

    Fields with names such as ``__key__`` are keys and sources, which are small and are not examined.
    """
    kind: Any = type(value)
    if kind in _PLAIN or not depth:
        return _SMALL
    if kind in _SIZED:
        return _SMALL + _SIZED[kind](value)
    if (names := _fields(kind)) is not None:
        return _SMALL * (2 + len(names)) + _sum([getattr(value, name) for name in names], depth)
    if isinstance(size := getattr(value, "nbytes", None), int):
        return _SMALL + size
    match value:
        case Mapping():
            inner = [one for name, one in value.items() if not str(name).startswith("__")]
            return _SMALL * (1 + len(value) - len(inner)) + _sum(inner, depth)
        case list() | tuple() | set() if len(value) > _FEW and type(next(iter(value))) in _PLAIN:
            # Values such as tokens, which all have the same size.
            return _SMALL + len(value) * _NUMBER
        case list() | tuple() | set():
            return _SMALL + _sum(value, depth)
        case str() | bytearray():
            return _SMALL + len(value)
    if callable(bands := getattr(value, "getbands", None)):
        # An image of Pillow has a byte for each band of a pixel.
        return _SMALL + int(value.width) * int(value.height) * len(bands())
    return _SMALL + _sum(getattr(value, "__dict__", {}).values(), depth)


@cache
def _fields(kind: Hashable) -> tuple[str, ...] | None:
    """Return the fields of a dataclass that are examined; None for any other type."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if not field.name.startswith("__"))


def _sum(values: Iterable[Any], depth: int) -> int:
    total = 0
    for one in values:
        # Most values are plain, and a call for each would dominate the cost.
        total += _SMALL if type(one) in _PLAIN else size_of(one, depth - 1)
    return total


_AHEAD = 256
"""Positions of a lane that are looked up together; fewer at a time cost many times as much each."""

Pair = tuple[int, int]
"""Position in the run and number of the output, which together identify an item."""


@dataclass(frozen=True)
class ReaderFigures:
    """What a reader has done.

    ``frames``: see `FrameTotals`. ``num_encoded`` samples were encoded, ``num_encoded_again`` of them again for lack of
    room. ``num_waiting`` outputs and packs wait for their units now; ``most_waiting_bytes`` is the most that they took.
    """

    frames: FrameTotals
    num_encoded: int
    num_encoded_again: int
    num_waiting: int
    most_waiting_bytes: int


class UnitReader:
    """Makes units by their numbers, in rising order within a lane; units in between are passed over.

    A unit is a function of the recipe and its number: any reader that begins at a state before it makes the same unit.

    Args:
        data: what the units are made of.
        framing: what decides the units of the run.
        sources: the datasets of the run under the hooks.
        locate: returns where the samples at positions of the run are.
        states: states of the lanes that will be asked for, each at or before the first unit that is wanted.
        tell: called before each sample, see `SampleWatch`.

    Attributes:
        faults: the faults of the units that were made.
        watch: goes with the samples; see `SampleWatch`.
    """

    def __init__(
        self,
        data: Framed,
        framing: Framing,
        sources: FramedSources,
        locate: Callable[[IntArray], Located],
        states: Sequence[LaneState],
        *,
        tell: Tell | None = None,
    ) -> None:
        self.faults = FaultLog()
        self.watch = SampleWatch(tell=tell)
        self.sources = sources
        self._data = data
        self._lanes = framing.lanes
        self._locate = locate
        self._pipeline = sources.pipeline
        self._kind = type(data.encoder).__name__
        self._has_lengths = data.is_packs and self._pipeline.hooks["sample_length"].is_overridden
        form = Selected(self._select) if framing.form == Selected() else framing.form
        is_counted = data.is_packs and self._pipeline.hooks["pack_selected_samples"].is_generator
        self._walk = Walk(replace(framing, form=form, count=self._count if is_counted else None), self._find, states)
        limit = None if data.unrestorable is not None else data.buffer_bytes
        self._held: BoundedCache[Any] = BoundedCache(limit)
        self._faults: dict[Pair, list[Fault]] = {}
        self._carried: dict[int, set[int]] = {}
        self._next: dict[int, int] = {}
        for state in states:
            self._next[state.lane] = state.first_unit
            for position, output in state.carry:
                self._carried.setdefault(position, set()).add(output)
        self._ahead: dict[int, Located] = {}
        self._num_encoded = self._num_again = 0

    @property
    def figures(self) -> ReaderFigures:
        """What the reader has done so far."""
        held = self._held
        return ReaderFigures(self._walk.figures, self._num_encoded, self._num_again, len(held), held.most_bytes)

    def samples(self, numbers: Iterable[int]) -> list[Any]:
        """Return one entry for each unit: a pack, an output, or the outputs of a group; None if its lane has ended.

        All have restore keys.

        Raises:
            StateError: no state of the lane was given, or the unit was passed over.
            SampleError, ConfigError: as `SampleEncoder.makers`; also whatever hooks raise.
        """
        found = []
        with self._pipeline:
            for number in numbers:
                unit = self._unit(int(number))
                found.append(None if unit is None else self._made(unit))
        self._held.trim()
        return found

    def look(self, number: int) -> Unit | None:
        """Return what a unit is made of without making it, or None if its lane has ended. Encodes its frame."""
        with self._pipeline:
            found = self._unit(number)
        self._held.trim()
        return found

    def skip(self, number: int) -> None:
        """Pass over a unit: the next one of its lane is the next to be asked for."""
        lanes = self._lanes
        self._pass(number % lanes.num_lanes, number // lanes.num_lanes + 1)
        self._held.trim()

    def collate(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the result of `samples` for a micro-batch as one batch, made by ``batch`` and ``encode_batch``.

        With groups, the micro-batch is one unit. Entries that are None are left out; if all are, there are only the
        columns that all samples have.

        Raises:
            ConfigError: see `one_batch`; several groups.
        """
        present = [sample for sample in samples if sample is not None]
        members = of_one_group(present) if self._data.is_group_batches else present
        if not members:
            return {name: [] for name in BASE_FIELDS}
        key = restore_key_of(members[0])
        instead = "leave samples out in encode_sample, before they are in a batch"
        batch = one_batch(self._pipeline, members, self._place(key), key, "a framed source", instead)
        return self._data.columns_of(batch)

    def marks(self) -> list[LaneState]:
        """Return the lane states at frames planned since the last call, and at the frame after each.

        A lane whose next unit is u is in the last state with ``first_unit`` <= u: ``.at(u)``.
        """
        found = []
        for walked in self._walk.lanes.values():
            found += walked.marks
            walked.marks = []
        return found

    def leave(self, lanes: Iterable[int]) -> None:
        """Release everything that is kept for lanes that will not be asked for again."""
        left = {int(lane) for lane in lanes}
        for lane in left:
            self._walk.lanes.pop(lane, None)
            self._next.pop(lane, None)
            self._ahead.pop(lane, None)
        if left:
            self._faults = {
                pair: some for pair, some in self._faults.items() if self._lanes.lane_of(pair[0]) not in left
            }
            self._held.drop(lambda key: self._lanes.lane_of(_position(key)) in left)

    def _unit(self, number: int) -> Unit | None:
        num_lanes = self._lanes.num_lanes
        lane, unit = number % num_lanes, number // num_lanes
        self._pass(lane, unit)
        self._next[lane] = max(self._next.get(lane, 0), unit + 1)
        return self._walk.unit(number)

    def _pass(self, lane: int, until: int) -> None:
        """Release the units of a lane before ``until``: others make them, or they were delivered before a resume."""
        num_lanes = self._lanes.num_lanes
        for unit in range(self._next.get(lane, until), until):
            passed = self._walk.unit(unit * num_lanes + lane)
            if passed is None:
                break
            for pair in passed.items.pairs:
                self._held.take(pair)
                self._faults.pop(pair, None)
            self._held.take(("pack", passed.items.pairs[0], passed.part))
        self._next[lane] = max(self._next.get(lane, 0), until)

    def _find(self, positions: IntArray) -> Items:
        """Return the outputs at positions and what decides their units; keeps the outputs for these units."""
        self._held.trim()
        made = self._encoded(positions)
        facts = iter(self._facts([one for sample in made for one in sample.outputs]))
        pairs: list[Pair] = []
        values: list[Any] = []
        for position, sample in zip(positions.tolist(), made, strict=True):
            kept = [(one, fact) for one in sample.outputs if (fact := next(facts)) is not None]
            self._hold(position, [one for one, _ in kept], sample.faults)
            pairs += [(position, one.number) for one, _ in kept]
            values += [fact for _, fact in kept]
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        if self._data.is_group_batches:
            sizes = np.array([size for _, size in values], dtype=np.int64)
            return Items(columns[:, 0], columns[:, 1], None, [name for name, _ in values], sizes)
        lengths = np.array(values, dtype=np.int64) if self._has_lengths else None
        return Items(columns[:, 0], columns[:, 1], lengths)

    def _hold(self, position: int, kept: Sequence[MadeOutput], faults: list[Fault]) -> None:
        """Keep outputs of a sample for their units, and the faults of the sample."""
        due = self._carried.pop(position, {one.number for one in kept})
        for one in kept:
            if one.number in due:
                self._held.put((position, one.number), one, one.output.sample)
        # A fault is reported once in a run: with the unit of the sample's first output or, without outputs, now.
        if not kept:
            self._report(faults)
        elif faults and kept[0].number in due:
            self._faults[position, kept[0].number] = faults

    def _facts(self, made: Sequence[MadeOutput]) -> Sequence[Any]:
        """Return what decides the unit of each output: its group, its length, or 0 for nothing; None leaves it out."""
        if not self._data.is_group_batches and not self._has_lengths:
            return [0] * len(made)

        def failed(number: int, failure: HookFailure) -> None:
            if not isinstance(failure.error, SkipSample):
                raise_failure(failure, self._kind, f"the sample {self.sources.key(made[number]).written()!r}")

        fact: Callable[[Output], Any] = self._pipeline.group if self._data.is_group_batches else self._pipeline.length
        return self._pipeline.facts(fact, [one.output for one in made], failed)

    def _report(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self.faults.add(fault)

    def _report_items(self, pairs: Iterable[Pair]) -> None:
        """Report the faults that wait for the unit of these items."""
        for pair in pairs:
            self._report(self._faults.pop(pair, ()))

    def _encoded(self, positions: IntArray) -> list[MadeSample]:
        located = self._located(positions)
        self.watch.begin(positions)
        made = self.sources.outputs(located.sources, located.addresses, self.watch)
        self._num_encoded += len(positions)
        return made

    def _located(self, positions: IntArray) -> Located:
        """Return where the samples at positions of a lane are, and look up the next positions for later frames."""
        lanes = self._lanes
        lane = lanes.lane_of(int(positions[0]))
        found = self._ahead.get(lane)
        rows = np.zeros(0, dtype=np.int64) if found is None else np.searchsorted(found.positions, positions)
        if found is None or rows[-1] == len(found.positions) or (found.positions[rows] != positions).any():
            first = int(positions[-1]) // lanes.num_lanes + 1
            length = lanes.lane_positions(lane)
            end = first + max(0, _AHEAD - len(positions) - 1)
            more = np.arange(first, end if length is None else min(end, length), dtype=np.int64)
            found = self._ahead[lane] = self._locate(np.concatenate([positions, lanes.at(lane, more)]))
            rows = np.arange(len(positions), dtype=np.int64)
        return Located(positions, found.sources[rows], found.addresses[rows])

    def _items(self, pairs: Sequence[Pair], *, keep: bool) -> list[MadeOutput]:
        """Return outputs that were kept, or make them again."""
        found: dict[Pair, MadeOutput | None] = {
            pair: self._held.get(pair) if keep else self._held.take(pair) for pair in pairs
        }
        missing = [pair for pair, one in found.items() if one is None]
        if missing:
            if self._data.unrestorable is not None:
                raise ConfigError(
                    f"a unit was asked for twice, and {self._data.unrestorable} is not marked @stateless, so that its"
                    " samples cannot be made again; mark it, or ask once"
                )
            positions = np.unique(np.array([position for position, _ in missing], dtype=np.int64))
            again = {
                position: one.outputs
                for position, one in zip(positions.tolist(), self._encoded(positions), strict=True)
            }
            self._num_again += len(positions)
            for position, output in missing:
                if output >= len(again[position]):
                    raise StateError(
                        f"{self._kind} made output {output} of the sample at position {position:,}, and now makes"
                        f" {len(again[position])} outputs: hooks that are @stateless must return the same for the same"
                        " sample"
                    )
                found[position, output] = again[position][output]
        return [one for one in found.values() if one is not None]

    def _made(self, unit: Unit) -> Any:
        pairs = unit.items.pairs
        self._report_items(pairs)
        if self._data.is_packs:
            return self._pack(pairs, unit.part)
        items = [self.sources.marked(one) for one in self._items(pairs, keep=False)]
        return items if self._data.is_group_batches else items[0]

    def _pack(self, pairs: Sequence[Pair], part: int) -> Any:
        kept = self._held.take(("pack", pairs[0], part))
        if kept is not None:
            return kept
        packs = self._packs(pairs, keep=False)
        if part >= len(packs) or (len(packs) > 1 and not self._pipeline.hooks["pack_selected_samples"].is_generator):
            raise ConfigError(
                f"{self._kind}.pack_selected_samples returned {len(packs)} packs of {len(pairs)} samples, where one was"
                " planned: a hook that makes several packs, or none, must be a generator, and always yield the same"
            )
        return packs[part]

    def _packs(self, pairs: Sequence[Pair], *, keep: bool) -> list[Any]:
        items = self._items(pairs, keep=keep)
        keys = tuple(map(self.sources.key, items))
        self.watch.begin(np.array([position for position, _ in pairs], dtype=np.int64))
        packs = self.watch.packed(lambda: self.sources.packs(items, self.watch))
        self._report(fault for _, fault in self.watch.take())
        return [
            keyed(pack.sample, RestoreKey("FramedPack", keys, number=number), self._kind)
            for number, pack in enumerate(packs)
        ]

    def _count(self, items: Items, packs: Sequence[IntArray]) -> list[int]:
        """Return how many packs a generator makes of each selection; it runs when the frame is planned."""
        counts = []
        for rows in packs:
            pairs = items.take(rows).pairs
            made = self._packs(pairs, keep=False)
            for part, pack in enumerate(made):
                self._held.put(("pack", pairs[0], part), pack, pack)
            if not made:
                self._report_items(pairs)
            counts.append(len(made))
        return counts

    def _select(self, items: Items) -> list[list[int]]:
        """Select as ``select_samples_to_pack`` does; its random numbers depend on the place of the first sample."""
        made = self._items(items.pairs, keep=True)
        try:
            return self._pipeline.select([one.output.sample for one in made], made[0].output.place).packs
        except HookFailure as failure:
            where = f"the frame that begins with {self.sources.key(made[0]).written()!r}, of {len(made)} samples"
            skipped = (
                "; samples that it does not select wait for the next frame: return no packs, or skip samples in"
                " preencode_sample"
            )
            raise_failure(failure, self._kind, where, skipped=skipped)

    def _place(self, key: Any) -> CallKey:
        """Return the place of a batch that begins with the sample of a key; the key alone decides it."""
        found = of_framed(key)
        first = found.outputs[0]
        part = found.number if found.kind == "FramedPack" else 0
        encoder = self.sources.encoders[self.sources.paths.index(first.path)]
        return encoder.place(first.address)._replace(output=first.number, part=part)


def _position(key: Any) -> int:
    """Return the position of the item, or of the pack's first item, that is kept under a key."""
    found: int = key[1][0] if key[0] == "pack" else key[0]
    return found
