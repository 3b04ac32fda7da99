"""Units of items of the same group: a bucket for each, as the items come."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.framed.form import Frame
from headrace.plan.framed.items import Items
from headrace.plan.keys import IntArray


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
