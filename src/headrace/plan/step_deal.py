"""Who takes what of a step that is balanced, also where it was stopped in its midst and goes on with other ranks.

A step that is begun anew is dealt as a whole. Where it was stopped, those who went on with it have each taken a prefix
of what they dealt, and what is left is dealt to the next:

    8 samples, 2 ranks with micro-batches of 1, stopped after 2 micro-steps    took 4 samples, say 0 3 5 6
    then 3 ranks with micro-batches of 1                                       deal 1 2 4 7

The same ranks and micro-batch go on with the deal that they had, so that for them nothing has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.plan.balance import balanced
from headrace.plan.keys import IntArray


class Leg(NamedTuple):
    """What was taken of a step in one go: the first ``num_taken`` of those left of its ``num_samples``, as they dealt.

    ``num_samples`` are those of the step at that time; a run that is made longer may add some to its last step.
    """

    num_samples: int
    world_size: int
    micro_batch_size: int
    num_taken: int

    def is_dealt_by(self, num_samples: int, world_size: int, micro_batch_size: int) -> bool:
        """Whether these go on with this deal."""
        return self[:3] == (num_samples, world_size, micro_batch_size)


def step_order(
    costs: NDArray[Any],
    taken: Sequence[Leg] = (),
    *,
    first: IntArray | None = None,
    world_size: int,
    micro_batch_size: int,
) -> IntArray:
    """(num_samples,) int64: the sample, numbered within the step, that each slot takes; a permutation.

    ``costs`` are (num_samples,). The first slots are those that were taken before: those of ``first``, (n,) int64,
    without balance, then those of each leg; the others are what these ranks make of the rest.
    """
    order = np.arange(len(costs), dtype=np.int64)
    is_left = np.ones(len(costs), dtype=bool)
    begin = 0 if first is None else len(first)
    if first is not None:
        order[:begin] = first
        is_left[first] = False
    legs = list(taken)
    if not (legs and legs[-1].is_dealt_by(len(costs), world_size, micro_batch_size)):
        legs.append(Leg(len(costs), world_size, micro_batch_size, len(costs)))
    for leg in legs:
        left = np.flatnonzero(is_left[: leg.num_samples])
        deal = balanced(costs[left], world_size=leg.world_size, micro_batch_size=leg.micro_batch_size)
        order[begin : begin + len(left)] = left[deal.order]
        begin += leg.num_taken
        is_left[order[:begin]] = False
    return order
