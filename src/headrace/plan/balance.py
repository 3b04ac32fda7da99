"""Balance: the samples of a step are assigned to ranks so that all have equal costs in each micro-step.

The step still consists of the same samples, and each rank has as many of them in each micro-step as before. Only the
assignment of samples to ranks changes; it is a pure function of the costs, the number of ranks and the micro-batch
size. Slots are those of `micro_batches`: micro-step j of rank r of R has the micro-batch at (j*R + r)*M.

    costs 9 9 1 1 1 1 1 1, 2 ranks, micro-batches of 2     unbalanced     9 9 | 1 1     18 and  2
                                                                          1 1 | 1 1      2 and  2
                                                           balanced       9 1 | 9 1     10 and 10
                                                                          1 1 | 1 1      2 and  2

If possible, all micro-batches of a step get the same cost. A sample that costs more than an average micro-batch makes
this impossible: it is then put into the first micro-step together with other heavy samples, so that the cost of that
micro-step is higher for all ranks alike.

1. Each micro-step has a level, the cost that its micro-batches aim at. That of the first is the cost which its heaviest
   sample needs, or the mean if that is higher; then the same for the rest of the samples and micro-steps.
2. Samples, heaviest first, go to the micro-batch that is furthest below its level and has room (Graham's LPT rule).
3. Pairs of micro-batches, one above and one below its level, exchange samples for some rounds.
4. Micro-batches of similar cost make up a micro-step, within which samples are exchanged once more.
5. In each micro-step the heaviest micro-batch goes to the rank with the lowest cost so far.

A balanced step may be stopped in the middle and resumed on other ranks. The ranks that worked on it have then taken a
prefix of their assignment, and the samples that are left are assigned anew:

    8 samples, 2 ranks with micro-batches of 1, stopped after 2 micro-steps    took 4 samples, say 0 3 5 6
    then 3 ranks with micro-batches of 1                                       take   1 2 4 7

With the same number of ranks and the same micro-batch size, the first assignment simply continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.cursor import StepPart
from headrace.plan.keys import IntArray
from headrace.plan.slots import uneven_bounds

ASSIGNMENT_VERSION = 1
"""Version of this algorithm. A change to the assignment of any step raises it, since saved states may lie in a step."""

_FLOAT_SCALE = 1 << 30
_ROUNDS = 6
_PAIRS = 1 << 18
"""The most pairs of samples that a round compares; if there are more, those of the worst micro-batches are compared."""

_CLOSE = 500
"""A micro-batch whose cost is within 1/500 of its level is close enough."""


class Assignment(NamedTuple):
    """The assignment of the samples of a step to slots, and the cost of each micro-batch.

    ``order`` is (num_samples,) int64: the sample, numbered within the step, that each slot takes. ``cost`` is
    (num_micro_steps, world_size) float64: the cost of each micro-batch, in the unit of the costs.
    """

    order: IntArray
    cost: NDArray[np.float64]

    @property
    def micro_step_imbalance(self) -> float:
        """The cost of the costliest rank over the mean of the ranks, in the worst micro-step; 1.0 is ideal."""
        return max((_over_mean(row) for row in self.cost), default=1.0)

    @property
    def rank_imbalance(self) -> float:
        """The cost of the costliest rank over the mean of the ranks, in the whole step; 1.0 is ideal."""
        return _over_mean(self.cost.sum(axis=0))

    @property
    def waiting(self) -> float:
        """The mean fraction of the step that a rank waits if all ranks wait for the costliest in each micro-step."""
        slowest = float(self.cost.max(axis=1, initial=0.0).sum())
        return 1 - float(self.cost.sum()) / (slowest * self.cost.shape[1]) if slowest else 0.0


def balanced(costs: NDArray[Any], *, world_size: int, micro_batch_size: int) -> Assignment:
    """Assign the samples of a step to slots; ``costs`` is (num_samples,), at least 0, in the order of their positions.

    Costs that are not integers are rounded to 1 / 2^30 of the largest. The result is the same on every machine. About
    1.5 us a sample. If ranks times micro-batch size do not divide the step, the last micro-step has fewer samples,
    taken from the whole range of costs. The time of the step, which is the sum over the micro-steps of the cost of the
    costliest rank, is never higher than in the unbalanced order.

    Raises:
        ConfigError: the costs are not finite numbers of at least 0, or the number of ranks or the micro-batch size is
            below 1.
    """
    exact = _integers(costs, world_size, micro_batch_size)
    together = world_size * micro_batch_size
    num_micro_steps = len(exact) // together
    by_cost = np.argsort(-exact, kind="stable")
    left = len(exact) - num_micro_steps * together
    # The last micro-step of an uneven step takes samples from all over the range of the costs.
    is_last = np.zeros(len(exact), dtype=bool)
    is_last[(2 * np.arange(left, dtype=np.int64) + 1) * len(exact) // (2 * max(1, left))] = True
    order = np.empty(len(exact), dtype=np.int64)
    totals = np.zeros(world_size, dtype=np.int64)
    batches = _even(exact, by_cost[~is_last], num_micro_steps * world_size, world_size, micro_batch_size)
    for micro_step, rows in enumerate(batches.reshape(num_micro_steps, world_size, micro_batch_size)):
        loads = exact[rows].sum(axis=1)
        ranks = np.empty(world_size, dtype=np.int64)
        ranks[np.argsort(totals, kind="stable")] = np.argsort(-loads, kind="stable")
        totals += loads[ranks]
        order[micro_step * together : (micro_step + 1) * together] = np.sort(rows[ranks], axis=1).ravel()
    if left:
        bounds = uneven_bounds(left, world_size)
        capacities = np.diff(bounds)
        last = by_cost[is_last]
        # All micro-batches have the same level, whose value does not matter: only the differences decide.
        bins = _fill_bins(exact[last], [0] * world_size, capacities.tolist())
        # Samples of the same micro-batch stand in the order of the step.
        order[len(exact) - left :] = last[np.lexsort((last, bins))]
    plain = np.arange(len(exact), dtype=np.int64)
    # For a handful of samples the unbalanced order may be better. Integers make all ranks decide alike.
    if _slowest(exact, plain, world_size, micro_batch_size) < _slowest(exact, order, world_size, micro_batch_size):
        order = plain
    return Assignment(order, costs_of(costs, order, world_size=world_size, micro_batch_size=micro_batch_size))


def unbalanced(costs: NDArray[Any], *, world_size: int, micro_batch_size: int) -> Assignment:
    """Return the assignment without balance, sample i in slot i, for comparison."""
    order = np.arange(len(costs), dtype=np.int64)
    return Assignment(order, costs_of(costs, order, world_size=world_size, micro_batch_size=micro_batch_size))


def costs_of(costs: NDArray[Any], order: IntArray, *, world_size: int, micro_batch_size: int) -> NDArray[np.float64]:
    """Return (num_micro_steps, world_size) float64: the cost of each micro-batch in an order.

    ``order`` is as in `Assignment`; ``np.arange(num_samples)`` is the unbalanced one. The last micro-step of an uneven
    step is divided as in `micro_batches`.
    """
    found: NDArray[np.float64] = _sums(np.asarray(costs, dtype=np.float64)[order], world_size, micro_batch_size)
    return found


def _sums(costs: NDArray[Any], world_size: int, micro_batch_size: int) -> NDArray[Any]:
    """(num_micro_steps, world_size): the sum of each micro-batch; ``costs`` are in the order of their slots."""
    together = world_size * micro_batch_size
    full = len(costs) // together * together
    found: NDArray[Any] = costs[:full].reshape(-1, world_size, micro_batch_size).sum(axis=2)
    if left := len(costs) - full:
        sums = np.append(np.zeros(1, dtype=costs.dtype), np.cumsum(costs[full:]))
        bounds = uneven_bounds(left, world_size)
        found = np.vstack([found, np.diff(sums[bounds])])
    return found


def _slowest(exact: IntArray, order: IntArray, world_size: int, micro_batch_size: int) -> int:
    return int(_sums(exact[order], world_size, micro_batch_size).max(axis=1, initial=0).sum())


def _integers(costs: NDArray[Any], world_size: int, micro_batch_size: int) -> IntArray:
    """(num_samples,) int64 in proportion to the costs."""
    if min(world_size, micro_batch_size) < 1:
        raise ConfigError(
            f"the step is divided over {world_size} ranks with micro-batches of {micro_batch_size}; both numbers must "
            "be at least 1"
        )
    if costs.ndim != 1 or costs.dtype.kind not in "iuf":
        raise ConfigError(f"costs are {costs.dtype} of shape {costs.shape}; expected (num_samples,) numbers")
    wrong = np.flatnonzero(~((costs >= 0) & np.isfinite(costs)))
    if len(wrong):
        raise ConfigError(f"sample {wrong[0]} of the step costs {costs[wrong[0]]}; a cost is finite and at least 0")
    largest = costs.max(initial=0)
    if costs.dtype.kind == "f":
        in_units: IntArray = np.rint(costs.astype(np.float64) / (largest or 1) * _FLOAT_SCALE).astype(np.int64)
        return in_units
    # Sums of a step stay far below 2^63.
    shift = max(0, int(largest).bit_length() - 40)
    return (costs >> shift).astype(np.int64)


def _even(costs: IntArray, by_cost: IntArray, num_bins: int, world_size: int, micro_batch_size: int) -> IntArray:
    """(num_bins, micro_batch_size) int64: the samples of each micro-batch, the costliest micro-batch first."""
    if not num_bins:
        return np.zeros((0, micro_batch_size), dtype=np.int64)
    sizes = costs[by_cost]
    levels = np.repeat(_levels(sizes, num_bins, world_size, micro_batch_size), world_size)
    bins = _fill_bins(sizes, levels.tolist(), [micro_batch_size] * num_bins)
    members = by_cost[np.argsort(bins, kind="stable")].reshape(num_bins, micro_batch_size)
    _exchange(members, costs, levels, num_bins)
    members = members[np.argsort(-costs[members].sum(axis=1), kind="stable")]
    means = costs[members].reshape(-1, world_size * micro_batch_size).sum(axis=1) // world_size
    _exchange(members, costs, np.repeat(means, world_size), world_size)
    return members


def _levels(sizes: IntArray, num_bins: int, world_size: int, micro_batch_size: int) -> IntArray:
    """(num_micro_steps,) int64: the cost that the micro-batches of each micro-step aim at, never rising.

    ``sizes`` are the costs of the samples, falling.
    """
    num_micro_steps = num_bins // world_size
    total = int(sizes.sum())
    least = int(sizes[len(sizes) - micro_batch_size + 1 :].sum())
    levels = np.empty(num_micro_steps, dtype=np.int64)
    for micro_step in range(num_micro_steps):
        mean = -(-total // (world_size * (num_micro_steps - micro_step)))
        needed = int(sizes[micro_step * world_size]) + least
        if needed <= mean:
            levels[micro_step:] = mean
            break
        levels[micro_step] = needed
        total = max(0, total - needed * world_size)
    return levels


def _fill_bins(sizes: IntArray, levels: list[int], capacities: list[int]) -> IntArray:
    """(n,) int64: the bin of each sample; ``sizes`` are falling, and all bins are filled to their capacity."""
    room = list(capacities)
    heap = [(-level, number) for number, level in enumerate(levels) if capacities[number]]
    heapify(heap)
    bins = []
    for size in sizes.tolist():
        above, number = heappop(heap)
        bins.append(number)
        room[number] -= 1
        if room[number]:
            heappush(heap, (above + size, number))
    return np.array(bins, dtype=np.int64)


def _exchange(members: IntArray, costs: IntArray, levels: IntArray, among: int) -> None:
    """Swap samples, in place, between the micro-batches furthest above their level and those furthest below it.

    Micro-batches are paired within groups of ``among`` neighbours: all of them, or those of a micro-step. Each pair
    makes the one swap after which the worse of the two is closest to its level, if that is closer than before.
    """
    num_bins, size = members.shape
    half = among // 2
    if size == 1 or not half:
        return
    sizes = costs[members]
    off = sizes.sum(axis=1) - levels
    firsts = np.arange(0, num_bins, among, dtype=np.int64)[:, None]
    for turn in range(_ROUNDS):
        if (np.abs(off) * _CLOSE <= levels).all():
            return
        ranked = firsts + np.argsort(off.reshape(-1, among), axis=1, kind="stable")
        # The roll gives each micro-batch another partner in the next round, in case this pair finds no swap.
        above = ranked[:, ::-1][:, :half].ravel()
        below = np.roll(ranked[:, :half], turn, axis=1).ravel()
        if len(above) * size * size > _PAIRS:
            worst = np.argsort(-np.maximum(np.abs(off[above]), np.abs(off[below])), kind="stable")
            worst = worst[: max(1, _PAIRS // (size * size))]
            above, below = above[worst], below[worst]
        # The cost that moves from the upper micro-batch to the lower one, for each pair of their samples.
        moved = (sizes[above][:, :, None] - sizes[below][:, None, :]).reshape(len(above), -1)
        after = np.maximum(np.abs(off[above][:, None] - moved), np.abs(off[below][:, None] + moved))
        best = np.argmin(after, axis=1)
        row = np.arange(len(above))
        better = np.flatnonzero(after[row, best] < np.maximum(np.abs(off[above]), np.abs(off[below])))
        if not len(better):
            return
        above, below, best, change = above[better], below[better], best[better], moved[better, best[better]]
        mine, theirs = best // size, best % size
        for array in (sizes, members):
            array[above, mine], array[below, theirs] = array[below, theirs], array[above, mine]
        off[above] -= change
        off[below] += change


def _over_mean(values: NDArray[np.float64]) -> float:
    mean = float(values.mean()) if values.size else 0.0
    return float(values.max()) / mean if mean else 1.0


def step_order(
    costs: NDArray[Any],
    taken: Sequence[StepPart] = (),
    *,
    first: IntArray | None = None,
    world_size: int,
    micro_batch_size: int,
) -> IntArray:
    """Return (num_samples,) int64: the sample, numbered within the step, that each slot takes; a permutation.

    ``costs`` is (num_samples,). The first slots hold the samples that were taken before: the samples in ``first``,
    (n,) int64, without balance, and then those of each part in ``taken``. The rest is balanced over ``world_size``
    ranks with micro-batches of ``micro_batch_size``.
    """

    def assign(left: IntArray, part: StepPart) -> IntArray:
        return balanced(costs[left], world_size=part.world_size, micro_batch_size=part.micro_batch_size).order

    return continued_order(assign, taken, StepPart(len(costs), world_size, micro_batch_size, len(costs)), first=first)


def continued_order(
    assign: Callable[[IntArray, StepPart], IntArray],
    taken: Sequence[StepPart],
    last: StepPart,
    *,
    first: IntArray | None = None,
) -> IntArray:
    """Return (num_samples,) int64: the sample that each slot of a step takes that was assigned in several parts.

    Args:
        assign: returns the order of the samples that are left, (n,) int64, under the assignment of a part.
        taken: the parts that were taken, of each the first ``num_taken`` slots.
        last: the part that takes the rest, unless it continues the last one in ``taken``.
        first: (n,) int64, the samples in the first slots, which were taken before all parts.
    """
    num_samples = last.num_samples
    order = np.arange(num_samples, dtype=np.int64)
    is_left = np.ones(num_samples, dtype=bool)
    begin = 0 if first is None else len(first)
    if first is not None:
        order[:begin] = first
        is_left[first] = False
    step_parts = list(taken)
    mine = (num_samples, last.world_size, last.micro_batch_size, last.per_node)
    if not (step_parts and step_parts[-1].is_assigned_by(*mine)):
        step_parts.append(last)
    for step_part in step_parts:
        left = np.flatnonzero(is_left[: step_part.num_samples])
        order[begin : begin + len(left)] = left[assign(left, step_part)]
        begin += step_part.num_taken
        is_left[order[:begin]] = False
    return order
