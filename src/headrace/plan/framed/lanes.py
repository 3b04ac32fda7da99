"""Lanes and frames: which positions a lane takes, a frame at a time, and which units of a run are its.

    3 lanes     lane 0   positions 0 3 6 9 ...     its units are those of the numbers 0 3 6 9 ... of the run
                lane 1             1 4 7 10 ...                                       1 4 7 10 ...
                lane 2             2 5 8 11 ...

The number of lanes belongs to the recipe and divides the global batch, so that a slot of the batch is always of the
same lane, whoever the ranks are. A lane knows nothing of the others.

The positions of a blend have a pattern that repeats, which would bind each lane to some of the sources. So which lane
takes which position of a group, one for each lane, is drawn there:

    3 lanes     groups  0 1 2 | 3 4 5 | 6 7 8        lane 0: 1 5 6 ...    lane 1: 0 3 8 ...    lane 2: 2 4 7 ...

Frames have as many positions each, but for the first of a lane, which is shorter, by another length in each lane: else
all lanes would need a new frame at the same moment.

Which lanes a rank has to walk, and what it costs where ranks share some.
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
from headrace.plan.split import Share, micro_batches

FRAMED_FORMAT = 2
"""Version of the algorithms behind lanes, frames and forms; a change that alters any unit raises it.

It is 1 where lanes take positions in turn, and 2 where positions are drawn.
"""

OLDEST = 4
"""An item is delivered by a frame at most so many after its own."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the positions of a run are assigned: part of its recipe.

    ``num_lanes`` divides every global batch; ``frame_positions`` are looked at together by a lane; ``num_positions`` is
    the length of the run in positions, None for one without an end. ``key`` is that by which positions are drawn; None:
    lanes take them in turn.

    Raises:
        ConfigError: a number below 1.
    """

    num_lanes: int
    frame_positions: int
    num_positions: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("num_lanes", "frame_positions", "num_positions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it is at least 1")

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
        """Lanes for global batches: as many as are in each, or a divisor of that.

        Raises:
            ConfigError: ``num_lanes`` does not divide every global batch, or a number is below 1.
        """
        together = gcd(*(size for _, size in schedule.pieces))
        if num_lanes is not None and (num_lanes < 1 or together % num_lanes):
            sizes = sorted({size for _, size in schedule.pieces})
            raise ConfigError(
                f"there are {num_lanes} lanes, and global batches of {sizes}: a slot of the batch has to be of one "
                f"lane, so the lanes divide {together}"
            )
        number = together if num_lanes is None else num_lanes
        return cls(
            num_lanes=number,
            frame_positions=frame_positions,
            num_positions=num_positions,
            # One lane takes all of them.
            key=key if number > 1 else None,
        )

    @property
    def format(self) -> int:
        """The version of the algorithms that these lanes go by."""
        return 1 if self.key is None else FRAMED_FORMAT

    def positions(self, lane: int, frame: int) -> IntArray:
        """(n,) int64: the positions of a frame of a lane, rising; the last frame of a run with an end may have fewer.

        Raises:
            ConfigError: there is no such lane or frame.
        """
        length = self.lane_positions(lane)
        begin, end = self.begin(lane, frame), self.begin(lane, frame + 1)
        if frame < 0 or (length is not None and begin >= length):
            raise ConfigError(f"lane {lane} has {self.num_frames(lane)} frames, from 0 on; found {frame}")
        number = np.arange(begin, end if length is None else min(end, length), dtype=np.int64)
        return self.at(lane, number)

    def at(self, lane: int, numbers: IntArray) -> IntArray:
        """(n,) int64, rising if they rise: the positions that a lane takes, by their numbers in the lane."""
        begins = numbers * self.num_lanes
        if self.key is None:
            return begins + lane
        keys, lengths = derive_array(self.key, numbers), self._group_sizes(numbers)
        lanes = np.full_like(numbers, lane)
        # Of the last group, which may be short, the last lanes take none.
        return begins + np.where(lanes < lengths, permute_each(np.minimum(lanes, lengths - 1), lengths, keys), lanes)

    def lanes_of(self, positions: IntArray) -> IntArray:
        """(n,) int64: the lane that takes each position."""
        numbers, within = np.divmod(positions, self.num_lanes)
        if self.key is None:
            return within
        return unpermute_each(within, self._group_sizes(numbers), derive_array(self.key, numbers))

    def _group_sizes(self, numbers: IntArray) -> IntArray:
        """How many positions there are in groups; that of a group beyond the end is as if it were whole."""
        if self.num_positions is None:
            return np.full_like(numbers, self.num_lanes)
        left = self.num_positions - numbers * self.num_lanes
        return np.where((left > 0) & (left < self.num_lanes), left, self.num_lanes)

    def frames_of(self, lane: int, positions: IntArray) -> IntArray:
        """(n,) int64: the frame that each of some positions of a lane is in."""
        first = self.begin(lane, 1)
        number = positions // self.num_lanes
        return np.where(number < first, 0, 1 + (number - first) // self.frame_positions)

    def num_frames(self, lane: int) -> int | None:
        """How many frames a lane has, None without an end."""
        length = self.lane_positions(lane)
        if length is None:
            return None
        after = length - self.begin(lane, 1)
        return int(length > 0) + max(0, -(-after // self.frame_positions))

    def lane_positions(self, lane: int) -> int | None:
        """How many positions a lane takes in all, None without an end.

        Raises:
            ConfigError: there is no such lane.
        """
        if not 0 <= lane < self.num_lanes:
            raise ConfigError(f"there are {self.num_lanes} lanes, from 0 on; found {lane}")
        if self.num_positions is None:
            return None
        return max(0, self.num_positions - lane + self.num_lanes - 1) // self.num_lanes

    def next_unit(self, lane: int, number: int) -> int:
        """The first unit of a lane that is none of the first ``number`` units of the run."""
        return (number - lane + self.num_lanes - 1) // self.num_lanes

    def begin(self, lane: int, frame: int) -> int:
        """How many positions of the lane are before a frame; multiples of the golden ratio spread the first borders."""
        if frame <= 0:
            return 0
        shorter = ((lane * GOLDEN) & 0xFFFF_FFFF_FFFF_FFFF) * self.frame_positions >> 64
        return self.frame_positions * frame - shorter


def lanes_key(seed: int) -> int:
    """The key by which the positions of a run with this seed are drawn."""
    return source_key(seed, "", "lanes")


def served_lanes(lanes: Lanes, schedule: BatchSchedule, share: Share, *, number: int) -> IntArray:
    """(n,) int64, rising: the lanes of a rank from unit ``number`` of the run on: what is left of that step, and the
    step after it. Every later step of the same size has no others than the latter.
    """
    _, begin, size, _ = schedule.locate(number)
    split = micro_batches(schedule, share, position=number, end=None, at_least=begin + size - number + 1)
    return np.unique(split.slots() % lanes.num_lanes)


class Serving(NamedTuple):
    """What a step of ``global_batch_size`` units costs a number of ranks.

    ``most_lanes`` and ``fewest_lanes`` of one rank; ``times_encoded``: how often a sample is encoded on average, 1.0
    where no two ranks have a lane in common.
    """

    num_lanes: int
    most_lanes: int
    fewest_lanes: int
    times_encoded: float

    def describe(self) -> str:
        """One line."""
        fewest = "" if self.most_lanes == self.fewest_lanes else f"{self.fewest_lanes} to "
        each = f"{fewest}{self.most_lanes}"
        line = f"{self.num_lanes} lanes, {each} a rank"
        if self.times_encoded == 1:
            return f"{line}; every sample is encoded once"
        return (
            f"{line}; every sample is encoded {self.times_encoded:.2f} times, since ranks times micro-batch do not "
            "divide the lanes: choose as many lanes as the global batch has units"
        )


def serving(lanes: Lanes, *, global_batch_size: int, world_size: int, micro_batch_size: int) -> Serving:
    """Of a step, for all ranks at once: O(global batch).

    Raises:
        ConfigError: the lanes do not divide the global batch, or a number is below 1.
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1 or global_batch_size % lanes.num_lanes:
        raise ConfigError(
            f"{lanes.num_lanes} lanes, a global batch of {global_batch_size}, {world_size} ranks and micro-batches of "
            f"{micro_batch_size}: all are at least 1, and the lanes divide the global batch"
        )
    slots = np.arange(global_batch_size, dtype=np.int64)
    together = world_size * micro_batch_size
    full = global_batch_size // together * together
    left = max(1, global_batch_size - full)
    # Of L slots left, rank r has those from floor(rL/R) on: slot q is of the last rank that begins at it or before.
    ranks = np.where(
        slots < full,
        slots // micro_batch_size % world_size,
        ((slots - full + 1) * world_size - 1) // left,
    )
    pairs = np.unique(ranks * lanes.num_lanes + slots % lanes.num_lanes)
    counts = np.bincount(pairs // lanes.num_lanes, minlength=world_size)
    return Serving(lanes.num_lanes, int(counts.max()), int(counts.min()), len(pairs) / lanes.num_lanes)
