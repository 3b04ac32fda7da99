"""Units of measured samples: what a leaf of the plan counts as its samples where facts decide how many there are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.measured.facts import Facts
from headrace.plan.measured.grouping import Grouping, Groups
from headrace.plan.nodes import Leaf
from headrace.plan.packing import Packing, PackPlan, plan_packs


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
