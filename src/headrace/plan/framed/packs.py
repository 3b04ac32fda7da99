"""Units are packs: best fit over a frame, or a user's own selection; what fits badly waits for the next frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.framed.form import Frame
from headrace.plan.framed.items import Items
from headrace.plan.keys import IntArray, derive, derive_array
from headrace.plan.packing.arrange import arrange
from headrace.plan.packing.options import Packing


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
        return Packing(max_seq_len=self.max_length, segment_multiple=self.multiple)


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
