"""How a frame of a lane becomes units: a pure function of the items carried into the frame and of its own items.

    carry  + the frame's items ---- Form.choose ----> units, in order
                                                +---> items in none of them: the carry of the next frame

Items are the outputs of the samples at some positions. For every form, an item is in exactly one unit or is carried
into the next frame. An item that was carried through ``OLDEST`` frames must go into a unit, and so must all items at
the end of a run.
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
    """Outputs of samples in the order of their positions; a sample has none, one or several.

    ``positions`` and ``outputs`` are (n,) int64: the position of the sample, and the number of the output within it,
    from 0. For packs there are ``lengths``, (n,) int64. For groups there are ``groups``, n hashable names, and
    optionally ``sizes``, (n,) int64; the name of a group may differ from run to run.

    Example:
        >>> items = headrace.plan.framed.Items(np.array([3, 5, 5]), np.array([0, 0, 1]), np.array([90, 40, 60]))
        >>> items.num_items, items.take(np.array([0, 2])).lengths.tolist()
        (3, [90, 60])
    """

    positions: IntArray
    outputs: IntArray
    lengths: IntArray | None = None
    groups: Sequence[Hashable] | None = None
    sizes: IntArray | None = None

    @classmethod
    def none(cls) -> Items:
        """Return an instance without items."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty)

    @property
    def num_items(self) -> int:
        """The number of items, n."""
        return len(self.positions)

    def take(self, rows: IntArray) -> Items:
        """Return the items in these rows, (m,) int64."""
        return Items(
            self.positions[rows],
            self.outputs[rows],
            None if self.lengths is None else self.lengths[rows],
            None if self.groups is None else [self.groups[row] for row in rows.tolist()],
            None if self.sizes is None else self.sizes[rows],
        )

    def followed_by(self, later: Items) -> Items:
        """Return these items with the items of ``later`` after them."""
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
                raise ConfigError(f"{self.num_items} items have {len(column)} {name}; expected one for each item")
        steps, more = np.diff(self.positions), np.diff(self.outputs)
        rising = bool(((steps > 0) | ((steps == 0) & (more > 0))).all())
        first, after = (np.searchsorted(positions, self.positions, side) for side in ("left", "right"))
        if not rising or not bool((first < after).all()):
            raise ConfigError(
                f"items were asked for at {len(positions)} positions, but some have another position, or they are not "
                "in the order of positions and outputs"
            )


Find = Callable[[IntArray], Items]
"""Returns the items at some rising positions: it encodes their samples, or looks up their measured facts."""


def _joined(one: IntArray | None, other: IntArray | None) -> IntArray | None:
    return None if one is None or other is None else np.concatenate([one, other])


class Frame(NamedTuple):
    """The frame that is planned: its ``lane``, its ``number``, and how many units the lane has before it.

    ``key`` depends only on the run and the lane. Draws are made with the key and the number of the frame or the unit.
    """

    lane: int
    number: int
    first_unit: int
    key: int
    is_last: bool


class Form(Protocol):
    """How items become units."""

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> Sequence[IntArray]:
        """Return the rows of ``items`` in each unit, in the order of the units; rows in no unit are carried on.

        ``is_due`` is (n,) bool: the items that must be in a unit of this frame.
        """


Count = Callable[[Items, Sequence[IntArray]], Sequence[int]]
"""Returns, for each choice of rows, how many units it makes: none, one or several."""


@dataclass(frozen=True)
class Counted:
    """A form whose units are multiplied: each becomes as many units of the same items as ``count`` returns."""

    form: Form
    count: Count

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> Sequence[IntArray]:
        """Return the choice of ``form``; `plan_frame` multiplies the units."""
        return self.form.choose(items, is_due, frame)


class Formed(NamedTuple):
    """The units of a frame, and the items that it carries into the next one.

    Unit i holds the ``items`` in ``rows[offsets[i]:offsets[i + 1]]``; arrays are int64. If several units have the same
    items, ``parts`` numbers them from 0; otherwise all parts are 0.
    """

    items: Items
    rows: IntArray
    offsets: IntArray
    parts: IntArray
    carry: Items

    @property
    def num_units(self) -> int:
        """The number of units in the frame."""
        return len(self.offsets) - 1

    def unit(self, number: int) -> Items:
        """Return the items of unit ``number`` of the frame, from 0."""
        return self.items.take(self.rows[self.offsets[number] : self.offsets[number + 1]])


def plan_frame(form: Form, lanes: Lanes, frame: Frame, carry: Items, found: Items) -> Formed:
    """Form the units of a frame from the ``carry`` of the frame before and the items ``found`` in this one.

    Raises:
        HeadraceError: the form puts an item into two units, or keeps one that is due. This is a defect of the form.
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
            f"lane {frame.lane}, but an item is in several units, or an item that is due is in none. This is a defect "
            "of Headrace: please report it"
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
    """Return the key of a lane under the key of the run."""
    return derive(key, lane)
