"""A frame of a lane becomes units: a pure function of what was carried on and of what the frame brought.

    carry  + the frame's items ---- Form.choose ----> units, in order
                                                +---> what is in none of them: the carry of the next frame

Whatever the form: an item is in one unit, or carried on; one that has been carried through ``OLDEST`` frames is in a
unit, and at the end of a run all are.

What became of some positions: the outputs of their samples, and what decides which of them make a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError
from headrace.plan.framed.lanes import OLDEST, Lanes
from headrace.plan.keys import IntArray, derive


class Items(NamedTuple):
    """Outputs in the order of their positions, none, one or several of each.

    ``positions`` and ``outputs`` (n,) int64: output number k of the sample at a position. ``lengths`` (n,) int64 for
    packs. ``groups`` n hashable names and ``sizes`` (n,) int64 for groups; a name need not be the same in another run.
    """

    positions: IntArray
    outputs: IntArray
    lengths: IntArray | None = None
    groups: Sequence[Hashable] | None = None
    sizes: IntArray | None = None

    @classmethod
    def none(cls) -> Items:
        """No items."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty)

    @property
    def num_items(self) -> int:
        """As many as there are positions and outputs."""
        return len(self.positions)

    def take(self, rows: IntArray) -> Items:
        """Some of them."""
        return Items(
            self.positions[rows],
            self.outputs[rows],
            None if self.lengths is None else self.lengths[rows],
            None if self.groups is None else [self.groups[row] for row in rows.tolist()],
            None if self.sizes is None else self.sizes[rows],
        )

    def followed_by(self, later: Items) -> Items:
        """These and others after them."""
        if not self.num_items:
            return later
        if not later.num_items:
            return self
        return Items(
            np.concatenate([self.positions, later.positions]),
            np.concatenate([self.outputs, later.outputs]),
            _joined(self.lengths, later.lengths),
            None if self.groups is None or later.groups is None else [*self.groups, *later.groups],
            _joined(self.sizes, later.sizes),
        )

    def check(self, positions: IntArray) -> None:
        """Raise ConfigError unless these are items of some of (n,) rising ``positions``, in order."""
        for name, column in self._asdict().items():
            if column is not None and len(column) != self.num_items:
                raise ConfigError(f"{self.num_items} items have {len(column)} {name}")
        steps, more = np.diff(self.positions), np.diff(self.outputs)
        rising = bool(((steps > 0) | ((steps == 0) & (more > 0))).all())
        first, after = (np.searchsorted(positions, self.positions, side) for side in ("left", "right"))
        if not rising or not bool((first < after).all()):
            raise ConfigError(
                f"the items at {len(positions)} positions are not theirs, or not in the order of positions and outputs"
            )


Find = Callable[[IntArray], Items]
"""The items at some rising positions: encodes their samples, or looks up what was measured of them."""


def _joined(one: IntArray | None, other: IntArray | None) -> IntArray | None:
    return None if one is None or other is None else np.concatenate([one, other])


class Frame(NamedTuple):
    """Which frame is planned: its ``lane``, its ``number``, and ``first_unit``, how many units the lane had before.

    ``key`` is of the run and the lane alone; what is drawn is drawn by it and the number of a frame or a unit.
    """

    lane: int
    number: int
    first_unit: int
    key: int
    is_last: bool


class Form(Protocol):
    """How items become units."""

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> Sequence[IntArray]:
        """The rows of ``items`` in each unit, the units in order; rows in none are carried on.

        ``is_due`` (n,) bool: which must be in a unit now.
        """


Count = Callable[[Items, Sequence[IntArray]], Sequence[int]]
"""How many units come of the rows that are chosen together, each time: none, one or several."""


@dataclass(frozen=True)
class Counted:
    """Another form, of whose units each becomes as many as ``count`` says, all of the same items."""

    form: Form
    count: Count

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> Sequence[IntArray]:
        """As the other."""
        return self.form.choose(items, is_due, frame)


class Formed(NamedTuple):
    """The units of a frame: unit i is ``items`` ``rows[offsets[i]:offsets[i + 1]]``; all int64. And the next carry.

    ``parts`` says which of several units of the same items each is; else all are 0.
    """

    items: Items
    rows: IntArray
    offsets: IntArray
    parts: IntArray
    carry: Items

    @property
    def num_units(self) -> int:
        """As many as the frame has given."""
        return len(self.offsets) - 1

    def unit(self, number: int) -> Items:
        """The items of one of them."""
        return self.items.take(self.rows[self.offsets[number] : self.offsets[number + 1]])


def plan_frame(form: Form, lanes: Lanes, frame: Frame, carry: Items, found: Items) -> Formed:
    """The units of a frame and what is carried on, from the ``carry`` of the one before and the items ``found`` in it.

    Raises:
        HeadraceError: the form gives an item twice, or keeps one that is due: a fault of the form.
    """
    items = carry.followed_by(found)
    ages = frame.number - lanes.frames_of(frame.lane, items.positions)
    is_due = (ages >= OLDEST) | frame.is_last
    units = form.choose(items, is_due, frame)
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *units]).astype(np.int64)
    times = np.bincount(rows, minlength=items.num_items)
    if len(times) > items.num_items or bool((times > 1).any()) or bool((times == 0)[is_due].any()):
        raise HeadraceError(
            f"{type(form).__name__} makes {len(units)} units of {items.num_items} items in frame {frame.number} of "
            f"lane {frame.lane} with one in several of them, or with one left that is due: a fault of Headrace, please "
            "report it"
        )
    parts = np.zeros(len(units), dtype=np.int64)
    if isinstance(form, Counted) and len(units):
        counts = np.array(form.count(items, units), dtype=np.int64)
        parts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        units = [unit for unit, count in zip(units, counts.tolist(), strict=True) for _ in range(count)]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *units]).astype(np.int64)
    offsets = np.append(0, np.cumsum([len(unit) for unit in units])).astype(np.int64)
    return Formed(items, rows, offsets, parts, items.take(np.flatnonzero(times == 0)))


def lane_key(key: int, lane: int) -> int:
    """The key of a lane under that of the run."""
    return derive(key, lane)
