"""Units of samples from the same group, in closed form: a counting sort by group, and where each group's units begin.

    groups  a b a a b     size 2, short      units  (0 2) of a, (1 4) of b, then the rest: (3) of a

Whole units come in the order in which they become full, as from a reader that fills a bucket for each group. The rest
of each group comes after them. If the order of a run permutes, it permutes units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_fields
from headrace.errors import ConfigError
from headrace.plan.arithmetic import check_numbers
from headrace.plan.keys import IntArray, KeyArray, derive_array
from headrace.plan.packing.options import MAX_DOCUMENTS
from headrace.plan.permutation import permute_each, unpermute_each

Remainder = Literal["short", "drop", "fill"]


class Grouping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many samples of a group make a unit, and what happens to the rest of the group.

    ``size`` is that of all groups; None is what ``batch_group_criterion`` of the task encoder returns for each.
    ``sizes`` maps groups, by their numbers, to sizes of their own, as facts hold them.

    ``remainder``:
        ``short``   the rest makes a smaller unit;
        ``drop``    the rest is left out;
        ``fill``    the rest is filled up with samples from the beginning of the group, which then come twice.

    With ``regroup`` the members of a group are permuted by the key of the epoch, so that other samples share a unit in
    each epoch, and others are left out.

    Raises:
        ConfigError: a size is below 1, or the remainder is unknown.

    Example:
        >>> measured = headrace.plan.measured
        >>> groups = measured.Groups(np.array([7, 9, 7, 7, 9]), measured.Grouping(size=2))
        >>> offsets, items = groups.items(np.arange(groups.num_units))
        >>> offsets.tolist(), items.tolist()
        ([0, 2, 4, 5], [0, 2, 1, 4, 3])
    """

    size: int | None = None
    sizes: Mapping[int, int] = {}
    remainder: Remainder = "short"
    regroup: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a size below 1 or an unknown remainder."""
        check_fields(self)
        sizes = [*self.sizes.values(), *([] if self.size is None else [self.size])]
        if min(sizes, default=1) < 1:
            raise ConfigError(f"a unit must have at least 1 sample; found the size {min(sizes)}")


class Groups:
    """The units of items whose groups are ``groups``, (num_items,) integers.

    Making them takes one sort; they take 4 bytes an item and 8 bytes a unit.

    Attributes:
        num_units: the number of units, the same in every epoch.
        num_groups: the number of groups that occur.
        num_left_out: how many items ``drop`` leaves out.
        num_added: how many items come twice because of ``fill``.

    Raises:
        ConfigError: the groups are not integers, there are too many items, a group has no size, or there is no unit.

    Example:
        >>> measured = headrace.plan.measured
        >>> groups = measured.Groups(np.array([7, 9, 7, 7, 9]), measured.Grouping(size=2, remainder="drop"))
        >>> groups.num_units, groups.num_left_out, groups.units(4).tolist()
        (2, 1, [1])
    """

    def __init__(self, groups: NDArray[np.integer[Any]], grouping: Grouping) -> None:
        if groups.ndim != 1 or groups.dtype.kind not in "iu" or len(groups) > MAX_DOCUMENTS:
            raise ConfigError(
                f"groups are {groups.dtype} of shape {groups.shape}; expected (num_items,) integers, at most 2^32 - 2"
            )
        self.grouping = grouping
        names, group_of = _named(groups)
        self._items = np.argsort(group_of, kind="stable").astype(np.uint32)
        self._begins: IntArray = np.append(0, np.cumsum(np.bincount(group_of, minlength=len(names))))
        sizes = [grouping.sizes.get(name, grouping.size) for name in names.tolist()]
        if None in sizes:
            raise ConfigError(f"{sizes.count(None):,} of {len(sizes):,} groups have no size: pass Grouping(size=...)")
        self._sizes: IntArray = np.array(sizes, dtype=np.int64)
        counts = np.diff(self._begins)
        whole = counts // self._sizes
        rest = counts - whole * self._sizes
        units = whole if grouping.remainder == "drop" else whole + (rest > 0)
        # Units are numbered by group here, before they are put in order.
        self._first_units: IntArray = np.append(0, np.cumsum(units))
        self.num_units = int(self._first_units[-1])
        self.num_groups = len(names)
        self.num_left_out = int(rest.sum()) if grouping.remainder == "drop" else 0
        self.num_added = int((self._sizes - rest)[rest > 0].sum()) if grouping.remainder == "fill" else 0
        if not self.num_units:
            raise ConfigError(
                f"{len(groups):,} items in {len(names):,} groups make no unit of {grouping.size}: use a smaller size, "
                "or another remainder than 'drop'"
            )
        self._order, self._places = self._ordered(whole)

    def _ordered(self, whole: IntArray) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Place -> unit by group, and back. Units are in the order of their last item; the rests come at the end."""
        group = np.repeat(np.arange(self.num_groups), np.diff(self._first_units))
        number = np.arange(self.num_units) - self._first_units[group]
        is_whole = number < whole[group]
        ends = self._begins[group] + (number + 1) * self._sizes[group] - 1
        starts = self._begins[group] + number * self._sizes[group]
        last = np.where(is_whole, self._items[np.where(is_whole, ends, 0)], self._items[starts] + np.int64(1 << 32))
        order = np.argsort(last, kind="stable").astype(np.uint32)
        places = np.empty_like(order)
        places[order] = np.arange(self.num_units, dtype=np.uint32)
        return order, places

    def items(self, units: IntArray, keys: KeyArray | None = None) -> tuple[IntArray, IntArray]:
        """Return the items of (n,) int64 units: (n + 1,) int64 offsets, and the items of all units, int64.

        Unit i has the items from ``offsets[i]`` to ``offsets[i + 1]``. ``keys``, (n,) uint64, the key of the epoch of
        each unit, are used by ``regroup``. O(log groups) a unit.
        """
        check_numbers(units, self.num_units, "units")
        by_group = self._order[units].astype(np.int64)
        group = np.searchsorted(self._first_units, by_group, side="right").astype(np.int64) - 1
        size = self._sizes[group]
        first = (by_group - self._first_units[group]) * size
        members = self._begins[group + 1] - self._begins[group]
        counts = size if self.grouping.remainder == "fill" else np.minimum(size, members - first)
        offsets = np.zeros(len(units) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        of = np.repeat(np.arange(len(units)), counts)
        ranks = (np.arange(offsets[-1], dtype=np.int64) - offsets[of] + first[of]) % members[of]
        if self.grouping.regroup and keys is not None:
            ranks = permute_each(ranks, members[of], derive_array(keys[of], group[of]))
        return offsets, self._items[self._begins[group][of] + ranks].astype(np.int64)

    def units(self, item: int, keys: KeyArray | None = None) -> IntArray:
        """Return (k,) int64, rising: the units that hold an item: none if it is left out, several if ``fill`` adds it.

        With ``regroup``, ``keys`` is (1,) uint64, the key of the epoch. Takes one pass over all items: 30 ms for 10^8.
        """
        check_numbers(item, len(self._items), "items")
        at = np.flatnonzero(self._items == item)
        group = np.searchsorted(self._begins, at, side="right").astype(np.int64) - 1
        members = self._begins[group + 1] - self._begins[group]
        ranks = at - self._begins[group]
        if self.grouping.regroup and keys is not None:
            ranks = unpermute_each(ranks, members, derive_array(keys, group))
        first, end = self._first_units[group[0]], self._first_units[group[0] + 1]
        size, num_members = int(self._sizes[group[0]]), int(members[0])
        filled = int(end - first) * size if self.grouping.remainder == "fill" else num_members
        found = first + np.unique(np.arange(ranks[0], filled, num_members, dtype=np.int64) // size)
        return np.sort(self._places[found[found < end]].astype(np.int64))


def _named(groups: NDArray[np.integer[Any]]) -> tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]:
    """Return the groups that occur, rising, and for each item the number of its group among them.

    Small groups, as measured ones are, are counted instead of sorted. Their numbers have 16 bits if that is enough: a
    stable sort of those is by radix, in a tenth of the time.
    """
    if not len(groups) or int(groups.min()) < 0 or int(groups.max()) > max(_COUNTED, len(groups)):
        return np.unique(groups, return_inverse=True)
    occurs = np.zeros(int(groups.max()) + 1, dtype=bool)
    occurs[groups] = True
    names = np.flatnonzero(occurs)
    numbers = np.cumsum(occurs, dtype=np.int64) - 1
    return names, numbers.astype(np.min_scalar_type(len(names)))[groups]


_COUNTED = 1 << 16
"""Groups up to this number are counted with a table, even if there are fewer items."""
