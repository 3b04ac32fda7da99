"""Each item is a unit: in the order of the positions, or through a shuffle buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.framed.form import Frame
from headrace.plan.framed.items import Items
from headrace.plan.keys import IntArray, derive


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
