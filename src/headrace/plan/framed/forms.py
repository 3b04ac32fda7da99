"""The forms of units: single items, groups and packs.

Single items are units in the order of the positions, or through a shuffle buffer.

Units of items of the same group: a bucket for each, as the items come.

Units are packs: best fit over a frame, or a user's own selection; what fits badly waits for the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.framed.form import Frame, Items
from headrace.plan.keys import IntArray, derive, derive_array
from headrace.plan.packing.options import Packing
from headrace.plan.packing.planner import arrange


@dataclass(frozen=True)
class Singles:
    """Outputs one by one: none of a sample that is filtered out, several of a generator. Nothing is carried on."""

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """As of ``Form``."""
        return list(np.arange(items.num_items, dtype=np.int64)[:, None])


@dataclass(frozen=True)
class ShuffleBuffer:
    """A buffer of ``num_items`` that is filled, and from then on gives one at random for each that comes.

    For parity with Energon's; an order of the plan shuffles as well without a state. The draw of a unit is a hash of
    its number. Items that are due leave out of turn, so frames are to be as long as the buffer, or longer.

    Raises:
        ConfigError: a buffer below 1.
    """

    num_items: int

    def __post_init__(self) -> None:
        """Check the size."""
        if self.num_items < 1:
            raise ConfigError(f"a shuffle buffer holds at least one item; found {self.num_items}")

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """As of ``Form``."""
        held: list[int] = []
        chosen: list[int] = []

        def give() -> None:
            draw = derive(frame.key, frame.first_unit + len(chosen)) * len(held) >> 64
            chosen.append(held.pop(draw))

        for row in range(items.num_items):
            held.append(row)
            if len(held) == self.num_items:
                give()
        while held and frame.is_last:
            give()
        chosen += [row for row in held if is_due[row]]
        return list(np.array(chosen, dtype=np.int64)[:, None])


@dataclass(frozen=True)
class GroupBatches:
    """Units of ``size`` items of one group; without it each group has its own, the ``sizes`` of its items.

    A bucket gives its unit with the item that fills it. One with an item that is due is given whole, a short unit; at
    the end of a run, all are.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a size below 1."""
        if self.size is not None and self.size < 1:
            raise ConfigError(f"a unit has at least one item; found a size of {self.size}")

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """As of ``Form``.

        Raises:
            ConfigError: items without groups or size, or a group with two sizes.
        """
        if items.groups is None:
            if not items.num_items:
                return []
            raise ConfigError("units are to be of one group each, and the items have no groups")
        buckets: dict[Hashable, list[int]] = {}
        units: list[list[int]] = []
        sizes: dict[Hashable, int] = {}
        for row, group in enumerate(items.groups):
            size = self._size(items, row)
            if sizes.setdefault(group, size) != size:
                raise ConfigError(
                    f"the group {group!r} has units of {sizes[group]} and of {size} items, the latter from position "
                    f"{items.positions[row]:,} on: a group has one size"
                )
            bucket = buckets.setdefault(group, [])
            bucket.append(row)
            if len(bucket) >= size:
                units.append(buckets.pop(group))
        units += [bucket for bucket in buckets.values() if is_due[bucket].any()]
        return [np.array(unit, dtype=np.int64) for unit in units]

    def _size(self, items: Items, row: int) -> int:
        size = int(items.sizes[row]) if self.size is None and items.sizes is not None else self.size
        if size is None or size < 1:
            raise ConfigError(
                f"the item at position {items.positions[row]:,} is for units of {size}: give them a size of at least 1"
            )
        return size


@dataclass(frozen=True)
class BestFit:
    """Packs of ``max_length`` by best-fit decreasing over the frame and its carry.

    Packs that are less than ``full_percent`` full are carried on, the emptiest first, one in ``carried_in`` at most
    (and one at least), unless one of their items is due. ``multiple`` pads each item to a multiple of it, as
    ``Packing`` does.

    Best fit begins with the longest items; the packs of a frame are permuted by its key, so that steps do not.

    Raises:
        ConfigError: numbers that are out of range.
    """

    max_length: int
    multiple: int = 1
    full_percent: int = 95
    carried_in: int = 16

    def __post_init__(self) -> None:
        """Check the numbers."""
        self._packing()
        if not 0 <= self.full_percent <= 100 or self.carried_in < 1:
            raise ConfigError(
                f"full_percent is {self.full_percent} and carried_in {self.carried_in}; allowed are 0 to 100, and at "
                "least 1"
            )

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """As of ``Form``.

        Raises:
            ConfigError: items without lengths, or one that is longer than a pack.
        """
        if not items.num_items:
            return []
        if items.lengths is None:
            raise ConfigError("items are to be packed, and have no lengths")
        if len(wrong := np.flatnonzero((items.lengths < 0) | (items.lengths > self.max_length))):
            raise ConfigError(
                f"the item at position {items.positions[wrong[0]]:,} has {items.lengths[wrong[0]]:,} tokens; packs "
                f"hold 0 to {self.max_length:,}: truncate, split or skip it while encoding"
            )
        packing = self._packing()
        # An item without tokens takes room as if it had one.
        sizes = np.maximum(-(-items.lengths // self.multiple), 1)
        order, bounds, _, _ = arrange(sizes, packing)
        rows = np.arange(len(sizes), dtype=np.int64) if order is None else order
        firsts = bounds[:-1].astype(np.int64)
        filled = np.add.reduceat(sizes[rows], firsts)
        waits = (100 * filled < self.full_percent * packing.capacity) & ~np.logical_or.reduceat(is_due[rows], firsts)
        emptiest = np.argsort(np.where(waits, filled, packing.capacity + 1), kind="stable")
        waits[emptiest[max(1, len(filled) // self.carried_in) :]] = False
        given = np.flatnonzero(~waits)
        given = given[np.argsort(derive_array(derive(frame.key, frame.number), given), kind="stable")]
        packs = np.split(rows, firsts[1:])
        return [np.sort(packs[pack]) for pack in given.tolist()]

    def _packing(self) -> Packing:
        return Packing(seq_len=self.max_length, segment_multiple=self.multiple)


Select = Callable[[Items], Sequence[Sequence[int]]]
"""From items to the rows in each pack; rows in none wait. The same for the same items, whatever came before."""


@dataclass(frozen=True)
class Selected:
    """Packs as a user's function selects them, in its order; an item that is due and not selected is one by itself."""

    select: Select

    def choose(self, items: Items, is_due: NDArray[np.bool_], frame: Frame) -> list[IntArray]:
        """As of ``Form``.

        Raises:
            ConfigError: the function selects an item twice, or one that there is not, or an empty pack.
        """
        if not items.num_items:
            return []
        packs = [np.array(pack, dtype=np.int64) for pack in self.select(items)]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *packs])
        some = rows.min(initial=0) >= 0 and rows.max(initial=0) < items.num_items
        if not some or len(np.unique(rows)) < len(rows) or not all(map(len, packs)):
            raise ConfigError(
                f"of {items.num_items} items the rows {sorted(rows.tolist())[:20]} were selected, in packs of "
                f"{[len(pack) for pack in packs][:20]}: a pack has at least one item, and an item is in one pack or in "
                "none"
            )
        left = np.ones(items.num_items, dtype=bool)
        left[rows] = False
        return packs + list(np.flatnonzero(left & is_due)[:, None])
