"""Measured facts, and the units that follow from them: what a leaf of the plan counts as its samples.

What was measured of every sample once, as arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.measured.grouping import Grouping, Groups
from headrace.plan.measured.outputs import Bits, Outputs
from headrace.plan.nodes import Leaf
from headrace.plan.packing import Packing, PackPlan, plan_packs

Integers = NDArray[np.integer[Any]]


class Facts:
    """The facts of ``num_samples`` samples; what was not measured is None, and every sample then good and one output.

    ``is_good`` (num_samples,) bool: samples that are not are left out. ``num_outputs`` (num_samples,) integers of at
    least 0. A row for each output, in the order of the samples, those that are not good among them: ``lengths``
    integers of at least 0, ``groups`` any integers.

    An *item* is an output of a good sample; items are numbered in the order of the samples. Of the first two only
    bitmaps are kept.

    Raises:
        ConfigError: an array of another kind or length, or no item at all.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        is_good: NDArray[np.bool_] | None = None,
        num_outputs: Integers | None = None,
        lengths: Integers | None = None,
        groups: Integers | None = None,
    ) -> None:
        self.num_samples = num_samples
        _check("is_good", is_good, num_samples, "b")
        _check("num_outputs", num_outputs, num_samples, "iu")
        self.outputs = None if num_outputs is None else Outputs(num_outputs)
        self.num_outputs = num_samples if self.outputs is None else self.outputs.num_outputs
        _check("lengths", lengths, self.num_outputs, "iu")
        _check("groups", groups, self.num_outputs, "iu")
        rows = is_good
        if is_good is not None and num_outputs is not None:
            rows = np.repeat(is_good, num_outputs)
        self.kept = None if rows is None or bool(rows.all()) else Bits(rows)
        self.num_items = self.num_outputs if self.kept is None else self.kept.num_ones
        if not self.num_items:
            raise ConfigError(f"of {num_samples:,} samples none is left that is good and has an output")
        self.lengths = lengths if lengths is None or self.kept is None else lengths[rows]
        self.groups = groups if groups is None or self.kept is None else groups[rows]

    @property
    def num_bytes(self) -> int:
        """Of what is kept, without lengths and groups."""
        return (self.kept.num_bytes if self.kept else 0) + (self.outputs.num_bytes if self.outputs else 0)

    def locate(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """The sample of each of (n,) int64 items and which of its outputs it is, both (n,) int64.

        Raises:
            ConfigError: there are not so many items.
        """
        if items.size and (int(items.min()) < 0 or int(items.max()) >= self.num_items):
            raise ConfigError(f"there are {self.num_items:,} items, from 0 on; found {items.min():,}..{items.max():,}")
        outputs = items if self.kept is None else self.kept.select(items)
        return self.outputs.locate(outputs) if self.outputs is not None else (outputs, np.zeros_like(outputs))

    def items(self, sample: int) -> IntArray:
        """(k,) int64: the items of a sample, none where it is left out. Undoes ``locate``.

        Raises:
            ConfigError: there are not so many samples.
        """
        if not 0 <= sample < self.num_samples:
            raise ConfigError(f"there are {self.num_samples:,} samples, from 0 on; found {sample:,}")
        ends = np.array([sample, sample + 1], dtype=np.int64)
        if self.outputs is not None:
            ends = self.outputs.begins(ends)
        if self.kept is not None:
            ends = self.kept.rank(ends)
        return np.arange(ends[0], ends[1], dtype=np.int64)


def _check(name: str, values: NDArray[Any] | None, num_rows: int, kinds: str) -> None:
    if values is not None and (values.shape != (num_rows,) or values.dtype.kind not in kinds):
        what = "booleans" if kinds == "b" else "integers"
        raise ConfigError(f"{name} is {values.dtype} of shape {values.shape}; expected ({num_rows:,},) {what}")


class Members(NamedTuple):
    """What some units are made of; unit i has the rows from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` (units + 1,) int64; (rows,) int64: ``samples`` of the dataset and which of their ``outputs``. For packs
    also ``begins`` and ``lengths`` (rows,) int64, the part of the output that is in the pack; else None.
    """

    offsets: IntArray
    samples: IntArray
    outputs: IntArray
    begins: IntArray | None = None
    lengths: IntArray | None = None


class Measured:
    """Units over facts: the items themselves, groups of them, or packs of them.

        samples --- is_good ---> num_outputs ---> items ---> Grouping | Packing | each by itself ---> units

    ``num_units`` are as many in every epoch, so that they are the samples of a leaf, and a run over them needs no
    state but its position.

    Raises:
        ConfigError: both a grouping and a packing, or facts without the groups or lengths that these need, or no unit.
    """

    def __init__(self, facts: Facts, *, form: Grouping | Packing | None = None) -> None:
        self.facts = facts
        self.form = form
        self._groups: Groups | None = None
        self._packs: PackPlan | None = None
        self.num_units = facts.num_items
        if isinstance(form, Grouping):
            if facts.groups is None:
                raise ConfigError("units are to be of one group each, and the facts have no groups: measure them")
            self._groups = Groups(facts.groups, form)
            self.num_units = self._groups.num_units
        elif form is not None:
            if facts.lengths is None:
                raise ConfigError("samples are to be packed, and the facts have no lengths: measure them")
            self._packs = plan_packs(facts.lengths.astype(np.int64, copy=False), form)
            self.num_units = len(self._packs)
            if not self.num_units:
                raise ConfigError(f"{facts.num_items:,} items make no pack: they have no tokens")

    @property
    def groups(self) -> Groups | None:
        """The units of groups, if they are."""
        return self._groups

    @property
    def packs(self) -> PackPlan | None:
        """The plan of the packs, if they are, with its ledger."""
        return self._packs

    def leaf(self, path: str) -> Leaf:
        """The units as a source of a plan."""
        return Leaf(path, self.num_units)

    def members(self, units: IntArray, keys: KeyArray | None = None) -> Members:
        """What (n,) int64 units are made of; ``keys`` (n,) uint64, as of a ``Lookup``, where they differ by epoch.

        Raises:
            ConfigError: there are not so many units.
        """
        if units.size and (int(units.min()) < 0 or int(units.max()) >= self.num_units):
            raise ConfigError(f"there are {self.num_units:,} units, from 0 on; found {units.min():,}..{units.max():,}")
        if self._packs is not None:
            found = self._packs.items(units, keys if self._packs.packing.repack else None)
            samples, outputs = self.facts.locate(found.documents)
            return Members(found.offsets, samples, outputs, found.begins, found.lengths)
        if self._groups is not None:
            offsets, items = self._groups.items(units, keys)
            return Members(offsets, *self.facts.locate(items))
        return Members(np.arange(len(units) + 1, dtype=np.int64), *self.facts.locate(units))

    def units(self, sample: int, keys: KeyArray | None = None) -> IntArray:
        """(k,) int64, rising: the units that hold something of a sample, in the epoch of the one key in ``keys``.

        Closed form for single items, one look over what is kept for groups, and one over all packs for packs.
        """
        items = self.facts.items(sample)
        if self._groups is not None:
            none = np.zeros(0, dtype=np.int64)
            return np.unique(np.concatenate([none, *(self._groups.units(item, keys) for item in items.tolist())]))
        if self._packs is None:
            return items
        found = []
        for first in range(0, self.num_units, _PACKS):
            packs = np.arange(first, min(first + _PACKS, self.num_units), dtype=np.int64)
            repeated = keys[np.zeros_like(packs)] if keys is not None and self._packs.packing.repack else None
            offsets, documents = self._packs.items(packs, repeated)[:2]
            rows = np.flatnonzero(np.isin(documents, items))
            found.append(packs[np.searchsorted(offsets, rows, side="right") - 1])
        return np.unique(np.concatenate(found))


_PACKS = 1 << 16
"""Looked through together."""
