"""What became of some positions: the outputs of their samples, and what decides which of them make a unit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray


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
