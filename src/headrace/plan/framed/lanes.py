"""Lanes and frames: which positions a lane takes, a frame at a time, and which units of a run are its.

    3 lanes     lane 0   positions 0 3 6 9 ...     its units are those of the numbers 0 3 6 9 ... of the run
                lane 1             1 4 7 10 ...                                       1 4 7 10 ...
                lane 2             2 5 8 11 ...

The number of lanes belongs to the recipe and divides the global batch, so that a slot of the batch is always of the
same lane, whoever the ranks are. A lane knows nothing of the others.

Frames have as many positions each, but for the first of a lane, which is shorter, by another length in each lane: else
all lanes would need a new frame at the same moment.
"""

from __future__ import annotations

from math import gcd

import msgspec
import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import GOLDEN, IntArray
from headrace.plan.schedule import BatchSchedule

FRAMED_FORMAT = 1
"""Version of the algorithms behind frames and forms; a change that alters any unit raises it."""

OLDEST = 4
"""An item is delivered by a frame at most so many after its own."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the positions of a run are dealt: part of its recipe.

    ``num_lanes`` divides every global batch; ``frame_positions`` are looked at together by a lane; ``num_positions`` is
    the length of the run in positions, None for one without an end.

    Raises:
        ConfigError: a number below 1.
    """

    num_lanes: int
    frame_positions: int
    num_positions: int | None = None

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
        return cls(
            num_lanes=together if num_lanes is None else num_lanes,
            frame_positions=frame_positions,
            num_positions=num_positions,
        )

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
        return number * self.num_lanes + lane

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
