"""Lanes and frames: which positions a lane takes, and which units of a run it makes.

    3 lanes     lane 0   positions 0 3 6 9 ...     makes the units 0 3 6 9 ... of the run
                lane 1             1 4 7 10 ...                    1 4 7 10 ...
                lane 2             2 5 8 11 ...                    2 5 8 11 ...

The number of lanes belongs to the recipe and divides the global batch, so that a slot of the batch always belongs to
the same lane, for any number of ranks. Lanes do not depend on each other.

The positions of a blend follow a pattern that repeats, which would bind each lane to some of the sources. So in a
blend, positions are divided into groups with one position for each lane, and the lane of each position is drawn:

    3 lanes     groups  0 1 2 | 3 4 5 | 6 7 8        lane 0: 1 5 6 ...    lane 1: 0 3 8 ...    lane 2: 2 4 7 ...

All frames have the same number of positions, except the first of each lane. It is shorter, by a different number in
each lane; otherwise all lanes would need a new frame at the same moment.

`served_lanes` returns the lanes that a rank has to walk, and `serving` what it costs if ranks share lanes.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import GOLDEN, IntArray, derive_array, source_key
from headrace.plan.permutation import permute_each, unpermute_each
from headrace.plan.schedule import BatchSchedule
from headrace.plan.slots import Share, micro_batches

FRAMED_FORMAT = 2
"""Version of the algorithms behind lanes, frames and forms. A change to any unit raises it.

It is 1 where lanes take positions in turn, and 2 where positions are drawn.
"""

OLDEST = 4
"""An item is delivered in its own frame or at most this many frames later."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the positions of a run are assigned to lanes and frames; part of its recipe.

    ``num_lanes`` divides every global batch. ``frame_positions`` is the number of positions in a frame.
    ``num_positions`` is the length of the run in positions, or None for an endless run. With a ``key``, positions are
    drawn; with None, lanes take them in turn.

    Raises:
        ConfigError: a number is below 1.

    Example:
        >>> lanes = headrace.plan.framed.Lanes(num_lanes=3, frame_positions=4)
        >>> lanes.positions(1, 0).tolist(), lanes.positions(1, 1).tolist()
        ([1, 4], [7, 10, 13, 16])
    """

    num_lanes: int
    frame_positions: int
    num_positions: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a number below 1."""
        for name in ("num_lanes", "frame_positions", "num_positions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")

    @classmethod
    def of(
        cls,
        schedule: BatchSchedule,
        *,
        frame_positions: int,
        num_lanes: int | None = None,
        num_positions: int | None = None,
        key: int | None = None,
    ) -> Lanes:
        """Return lanes for a schedule of global batches.

        By default there are as many lanes as the greatest common divisor of the batch sizes. With a single lane the
        ``key`` is ignored, since that lane takes all positions.

        Raises:
            ConfigError: ``num_lanes`` does not divide every global batch, or a number is below 1.
        """
        together = gcd(*(size for _, size in schedule.pieces))
        if num_lanes is not None and (num_lanes < 1 or together % num_lanes):
            sizes = sorted({size for _, size in schedule.pieces})
            raise ConfigError(
                f"num_lanes is {num_lanes}, and the global batches are {sizes}: a slot of the batch must always belong "
                f"to the same lane, so num_lanes must divide {together}"
            )
        number = together if num_lanes is None else num_lanes
        return cls(
            num_lanes=number,
            frame_positions=frame_positions,
            num_positions=num_positions,
            key=key if number > 1 else None,
        )

    @property
    def format(self) -> int:
        """The version of the algorithms that these lanes use."""
        return 1 if self.key is None else FRAMED_FORMAT

    def positions(self, lane: int, frame: int) -> IntArray:
        """Return (n,) int64: the positions of a frame of a lane, rising; the last frame of a finite run may have fewer.

        Raises:
            ConfigError: there is no such lane or frame.
        """
        length = self.lane_positions(lane)
        begin, end = self.begin(lane, frame), self.begin(lane, frame + 1)
        if frame < 0 or (length is not None and begin >= length):
            raise ConfigError(f"lane {lane} has {self.num_frames(lane)} frames, numbered from 0; found {frame}")
        number = np.arange(begin, end if length is None else min(end, length), dtype=np.int64)
        return self.at(lane, number)

    def at(self, lane: int, numbers: IntArray) -> IntArray:
        """Return (n,) int64: the positions of a lane with these numbers in it; rising numbers have rising positions."""
        begins = numbers * self.num_lanes
        if self.key is None:
            return begins + lane
        keys, lengths = derive_array(self.key, numbers), self._group_sizes(numbers)
        lanes = np.full_like(numbers, lane)
        # If the last group is short, the last lanes take no position of it.
        return begins + np.where(lanes < lengths, permute_each(np.minimum(lanes, lengths - 1), lengths, keys), lanes)

    def lanes_of(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the lane that takes each position."""
        numbers, within = np.divmod(positions, self.num_lanes)
        if self.key is None:
            return within
        return unpermute_each(within, self._group_sizes(numbers), derive_array(self.key, numbers))

    def _group_sizes(self, numbers: IntArray) -> IntArray:
        """The number of positions in each group; groups beyond the end count as whole."""
        if self.num_positions is None:
            return np.full_like(numbers, self.num_lanes)
        left = self.num_positions - numbers * self.num_lanes
        return np.where((left > 0) & (left < self.num_lanes), left, self.num_lanes)

    def frames_of(self, lane: int, positions: IntArray) -> IntArray:
        """Return (n,) int64: the frame of each of some positions of a lane."""
        first = self.begin(lane, 1)
        number = positions // self.num_lanes
        return np.where(number < first, 0, 1 + (number - first) // self.frame_positions)

    def num_frames(self, lane: int) -> int | None:
        """Return how many frames a lane has, or None for an endless run."""
        length = self.lane_positions(lane)
        if length is None:
            return None
        after = length - self.begin(lane, 1)
        return int(length > 0) + max(0, -(-after // self.frame_positions))

    def lane_positions(self, lane: int) -> int | None:
        """Return how many positions a lane takes in all, or None for an endless run.

        Raises:
            ConfigError: there is no such lane.
        """
        if not 0 <= lane < self.num_lanes:
            raise ConfigError(f"there are {self.num_lanes} lanes, numbered from 0; found {lane}")
        if self.num_positions is None:
            return None
        return max(0, self.num_positions - lane + self.num_lanes - 1) // self.num_lanes

    def next_unit(self, lane: int, number: int) -> int:
        """Return the first unit of a lane after the first ``number`` units of the run."""
        return (number - lane + self.num_lanes - 1) // self.num_lanes

    def begin(self, lane: int, frame: int) -> int:
        """Return how many positions of the lane come before a frame.

        Multiples of the golden ratio spread the lengths of the first frames evenly over the lanes.
        """
        if frame <= 0:
            return 0
        shorter = ((lane * GOLDEN) & 0xFFFF_FFFF_FFFF_FFFF) * self.frame_positions >> 64
        return self.frame_positions * frame - shorter


def lanes_key(seed: int) -> int:
    """Return the key with which positions are drawn for lanes, in a run with this seed."""
    return source_key(seed, "", "lanes")


def served_lanes(lanes: Lanes, schedule: BatchSchedule, share: Share, *, number: int) -> IntArray:
    """Return (n,) int64, rising: the lanes that a rank needs from unit ``number`` of the run on.

    They cover the rest of the step of that unit and the step after it. Later steps of the same size need the same lanes
    as the latter.
    """
    _, begin, size, _ = schedule.locate(number)
    split = micro_batches(schedule, share, position=number, end=None, at_least=begin + size - number + 1)
    return np.unique(split.slots() % lanes.num_lanes)


class Serving(NamedTuple):
    """How the lanes are shared by the ranks of a run.

    ``most_lanes`` and ``fewest_lanes`` are the most and fewest lanes that a rank walks. ``times_encoded`` is how often
    a sample is encoded on average: 1.0 if no two ranks have a lane in common.
    """

    num_lanes: int
    most_lanes: int
    fewest_lanes: int
    times_encoded: float

    def describe(self) -> str:
        """Return one line that says how many lanes a rank walks, and whether samples are encoded more than once."""
        fewest = "" if self.most_lanes == self.fewest_lanes else f"{self.fewest_lanes} to "
        each = f"{fewest}{self.most_lanes}"
        line = f"{self.num_lanes} lanes, {each} a rank"
        if self.times_encoded == 1:
            return f"{line}; every sample is encoded once"
        return (
            f"{line}; every sample is encoded {self.times_encoded:.2f} times on average, because ranks times "
            "micro-batch size do not divide the lanes: choose as many lanes as the global batch has units"
        )


def serving(lanes: Lanes, *, global_batch_size: int, world_size: int, micro_batch_size: int) -> Serving:
    """Return how lanes are shared in a step, computed for all ranks at once. O(global batch size).

    Raises:
        ConfigError: the number of lanes does not divide the global batch, or a number is below 1.
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1 or global_batch_size % lanes.num_lanes:
        raise ConfigError(
            f"there are {lanes.num_lanes} lanes, a global batch of {global_batch_size}, {world_size} ranks and "
            f"micro-batches of {micro_batch_size}: all numbers must be at least 1, and the lanes must divide the "
            "global batch"
        )
    slots = np.arange(global_batch_size, dtype=np.int64)
    together = world_size * micro_batch_size
    full = global_batch_size // together * together
    left = max(1, global_batch_size - full)
    # Of L slots left, rank r has those from floor(rL/R) on: a slot belongs to the last rank beginning at or before it.
    ranks = np.where(
        slots < full,
        slots // micro_batch_size % world_size,
        ((slots - full + 1) * world_size - 1) // left,
    )
    pairs = np.unique(ranks * lanes.num_lanes + slots % lanes.num_lanes)
    counts = np.bincount(pairs // lanes.num_lanes, minlength=world_size)
    return Serving(lanes.num_lanes, int(counts.max()), int(counts.min()), len(pairs) / lanes.num_lanes)
