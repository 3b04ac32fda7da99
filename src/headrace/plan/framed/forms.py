"""How a frame of a lane becomes units: a pure function of the items carried into the frame and of its own items.

    carry  + the frame's items ---- choose by a form ----> units, in order
                                                     +---> items in none of them: the carry of the next frame

    Singles         each item is a unit, in the order of the positions
    ShuffleBuffer   each item is a unit, in the order of a shuffle buffer
    Grouping        a unit has items of one group; a bucket for each group is filled as the items come
    Packing         a unit is a pack, by best fit over a frame; packs that are not full wait for the next frame
    Selected        a unit is a pack that a function selects, or a hook of the task encoder

Items are the outputs of the samples at some positions. For every form, an item is in exactly one unit or is carried
into the next frame. An item that was carried through ``OLDEST`` frames must go into a unit, and so must all items at
the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, derive, derive_array
from headrace.plan.measured.grouping import Grouping, Groups
from headrace.plan.packing.options import Packing
from headrace.plan.packing.planner import arrange


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

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The position and the output of each item, which together identify it in a run."""
        return list(zip(self.positions.tolist(), self.outputs.tolist(), strict=True))

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


@dataclass(frozen=True)
class Singles:
    """Each item is a unit, in the order of the positions. Nothing is carried on.

    A sample that is filtered out has no item, and a generator may have several.
    """


@dataclass(frozen=True)
class ShuffleBuffer:
    """Each item is a unit, shuffled by a buffer: when it holds ``num_items``, every new item pushes out a random one.

    This exists for parity with Energon's shuffle buffer; the order of a plan shuffles as well, and without a state. The
    draw of a unit is a hash of its number. Items that are due leave the buffer out of turn, so frames should be at
    least as long as the buffer.

    Raises:
        ConfigError: the buffer holds less than 1 item.

    Example:
        >>> headrace.plan.framed.ShuffleBuffer(num_items=256)
        ShuffleBuffer(num_items=256)
    """

    num_items: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a buffer below 1."""
        if self.num_items < 1:
            raise ConfigError(f"a shuffle buffer must hold at least 1 item; found num_items={self.num_items}")


Select = Callable[[Items], Sequence[Sequence[int]]]
"""Returns the rows of the items in each pack; rows in no pack wait for the next frame.

It must be a pure function: the result for the same items does not depend on earlier calls.
"""


@dataclass(frozen=True)
class Selected:
    """Packs as a function selects them, in its order. An item that is due but not selected becomes its own pack.

    None stands for ``select_samples_to_pack`` of the task encoder, which needs samples: a reader has them and asks it.

    Example:
        >>> selected = headrace.plan.framed.Selected(lambda items: [[row] for row in range(items.num_items)])
    """

    select: Select | None = None


FramedForm = Singles | ShuffleBuffer | Grouping | Packing | Selected
"""How items become units."""

FULL_PERCENT = 95
"""The items of packs that are less full are carried into the next frame, unless one of them is due."""

CARRIED_IN = 16
"""At most one pack in so many is carried, the emptiest first, but always one is allowed."""


def choose(form: FramedForm, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
    """Return the rows of the items in each unit; rows in no unit are carried on.

    Args:
        form: what a unit is.
        items: what was carried into the frame, and what was found in it.
        is_due: (n,): which of them must be in a unit.
        frame: the frame.

    Raises:
        ConfigError: items lack the lengths or groups that the form needs, or do not fit; a function selects an item
            twice, a row that does not exist, or an empty pack.
    """
    if not items.num_items:
        return []
    match form:
        case ShuffleBuffer():
            return _pushed_out(form.num_items, items, is_due, frame)
        case Grouping():
            return _buckets(form, items, is_due)
        case Packing():
            return _fitted(form, items, is_due, frame)
        case Selected():
            return _selected(form, items, is_due)
    return list(np.arange(items.num_items, dtype=np.int64)[:, None])


def _pushed_out(size: int, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
    """Return each row that leaves the buffer as a unit of its own, then those that are due."""
    buffer: list[int] = []
    chosen: list[int] = []

    def push_out() -> None:
        draw = derive(frame.key, frame.first_unit + len(chosen)) * len(buffer) >> 64
        chosen.append(buffer.pop(draw))

    for row in range(items.num_items):
        buffer.append(row)
        if len(buffer) == size:
            push_out()
    while buffer and frame.is_last:
        push_out()
    chosen += [row for row in buffer if is_due[row]]
    return list(np.array(chosen, dtype=np.int64)[:, None])


def _buckets(form: Grouping, items: Items, is_due: NDArray[np.bool_]) -> list[IntArray]:
    """Return the full buckets in the order in which they fill up, then those with an item that is due."""
    if items.groups is None:
        raise ConfigError("each unit must have items of one group, but the items have no groups")
    numbers: dict[Hashable, int] = {}
    groups = np.array([numbers.setdefault(group, len(numbers)) for group in items.groups], dtype=np.int64)
    sizes = items.sizes if form.size is None else np.full(items.num_items, form.size, dtype=np.int64)
    if sizes is None or (sizes < 1).any():
        row = 0 if sizes is None else int(np.argmax(sizes < 1))
        raise ConfigError(
            f"the item at position {items.positions[row]:,} asks for units of "
            f"{None if sizes is None else sizes[row]} items: give it a size of at least 1"
        )
    of_group = sizes[np.unique(groups, return_index=True)[1]]
    if len(other := np.flatnonzero(sizes != of_group[groups])):
        row = int(other[0])
        raise ConfigError(
            f"the group {items.groups[row]!r} has units of {of_group[groups[row]]} items, and from position "
            f"{items.positions[row]:,} on of {sizes[row]}; a group must have one size"
        )
    found = Groups(groups, Grouping(sizes=dict(enumerate(of_group.tolist()))))
    offsets, rows = found.items(np.arange(found.num_units, dtype=np.int64))
    units = np.split(rows, offsets[1:-1])
    return [unit for unit in units if len(unit) == sizes[unit[0]] or is_due[unit].any()]


def _fitted(packing: Packing, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
    """Return the packs that are delivered in this frame.

    Best fit begins with the longest items. The packs of a frame are then permuted by its key, so that steps do not
    begin with long items.
    """
    if items.lengths is None:
        raise ConfigError("the items are to be packed, but have no lengths")
    if len(wrong := np.flatnonzero((items.lengths < 0) | (items.lengths > packing.seq_len))):
        raise ConfigError(
            f"the item at position {items.positions[wrong[0]]:,} has {items.lengths[wrong[0]]:,} tokens; packs "
            f"hold 0 to {packing.seq_len:,}: truncate, split or skip it while encoding"
        )
    # An item without tokens takes the room of one, since a piece has at least one unit.
    sizes = np.maximum(-(-items.lengths // packing.segment_multiple), 1)
    order, bounds, _ = arrange(sizes, packing)
    rows = np.arange(len(sizes), dtype=np.int64) if order is None else order
    firsts = bounds[:-1].astype(np.int64)
    filled = np.add.reduceat(sizes[rows], firsts)
    waits = (100 * filled < FULL_PERCENT * packing.capacity) & ~np.logical_or.reduceat(is_due[rows], firsts)
    emptiest = np.argsort(np.where(waits, filled, packing.capacity + 1), kind="stable")
    waits[emptiest[max(1, len(filled) // CARRIED_IN) :]] = False
    delivered = np.flatnonzero(~waits)
    delivered = delivered[np.argsort(derive_array(derive(frame.key, frame.number), delivered), kind="stable")]
    packs = np.split(rows, firsts[1:])
    return [np.sort(packs[pack]) for pack in delivered.tolist()]


def _selected(form: Selected, items: Items, is_due: NDArray[np.bool_]) -> list[IntArray]:
    """Return the packs that the function of the form selects, then the items that are due and left."""
    if form.select is None:
        raise ConfigError("select_samples_to_pack needs samples, and only their numbers are known here: use a reader")
    packs = [np.array(pack, dtype=np.int64) for pack in form.select(items)]
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *packs])
    some = rows.min(initial=0) >= 0 and rows.max(initial=0) < items.num_items
    if not some or len(np.unique(rows)) < len(rows) or not all(map(len, packs)):
        raise ConfigError(
            f"the rows {sorted(rows.tolist())[:20]} of {items.num_items} items were selected, in packs of "
            f"{[len(pack) for pack in packs][:20]} items: a pack must have at least one item, and an item may be "
            "in only one pack"
        )
    left = np.ones(items.num_items, dtype=bool)
    left[rows] = False
    return packs + list(np.flatnonzero(left & is_due)[:, None])


Count = Callable[[Items, Sequence[IntArray]], Sequence[int]]
"""Returns, for each choice of rows, how many units it makes: none, one or several."""


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


@dataclass
class FrameTotals:
    """Totals over the frames so far, for a report: sums, and the maximum ``most_carried``."""

    num_frames: int = 0
    num_units: int = 0
    num_items: int = 0
    num_tokens: int = 0
    carried: int = 0
    most_carried: int = 0

    def add(self, formed: Formed) -> None:
        """Add the figures of a frame."""
        carried = formed.carry.num_items
        self.num_frames += 1
        self.num_units += formed.num_units
        self.num_items += formed.items.num_items - carried
        self.num_tokens += _tokens(formed.items) - _tokens(formed.carry)
        self.carried += carried
        self.most_carried = max(self.most_carried, carried)

    def fill(self, max_length: int) -> float:
        """Return the share of the room in packs of ``max_length`` tokens that holds tokens, 0.0 without units."""
        return self.num_tokens / (self.num_units * max_length) if self.num_units else 0.0

    def describe(self, max_length: int | None = None) -> str:
        """Return one line; with the length of packs, it says how full they are."""
        fill = "" if max_length is None else f", {100 * self.fill(max_length):.2f} % full"
        return (
            f"{self.num_frames:,} frames: {self.num_items:,} items in {self.num_units:,} units{fill}; "
            f"{self.carried / max(1, self.num_frames):,.0f} carried on, at most {self.most_carried:,}"
        )


def _tokens(items: Items) -> int:
    return 0 if items.lengths is None else int(items.lengths.sum())
