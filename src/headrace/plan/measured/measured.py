"""Measured facts, and the units that follow from them.

`Facts` holds as arrays what was measured once of every sample. `Measured` makes units from them, which are the samples
of a leaf of the plan.

`Outputs` maps the number of an output to its sample and back. Counts stay as they were measured, mostly a byte a
sample, and a directory says how many outputs precede each block of 16 samples:

    counts  2 0 1 ... | 1 1 0 ...       directory  0 | 24 | ...       output 25 is the only one of sample 17

A sample that is left out counts as one without outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.arithmetic import check_numbers
from headrace.plan.keys import IntArray, KeyArray
from headrace.plan.measured.grouping import Grouping, Groups
from headrace.plan.packing import Packing, PackPlan, plan_packs

_BLOCK = 16
"""Samples in a block: with more of them a query is slower, with fewer the directory is larger."""


class Outputs:
    """The outputs of samples; ``counts`` says how many each has, (num_samples,) integers of at least 0.

    Raises:
        ConfigError: the counts are not such integers.

    Example:
        >>> outputs = headrace.plan.measured.Outputs(np.array([2, 0, 1]))
        >>> samples, numbers = outputs.locate(np.arange(outputs.num_outputs))
        >>> samples.tolist(), numbers.tolist()
        ([0, 0, 2], [0, 1, 0])
    """

    def __init__(self, counts: NDArray[np.integer[Any]]) -> None:
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts.size and int(counts.min()) < 0):
            raise ConfigError(
                f"the counts of outputs are {counts.dtype} of shape {counts.shape}"
                f"{f', the smallest is {counts.min()}' if counts.size else ''}; expected (num_samples,) integers of at "
                "least 0"
            )
        self._counts = counts
        self.num_samples = len(counts)
        whole = len(counts) - len(counts) % _BLOCK
        sums = counts[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.int64)
        self._begins: IntArray = np.cumsum(np.concatenate([[0], sums, [counts[whole:].sum(dtype=np.int64)]]))
        self.num_outputs = int(self._begins[-1])

    def begins(self, samples: IntArray) -> IntArray:
        """Return (n,) int64: the first output of each sample; for ``num_samples``, the number of all outputs."""
        check_numbers(samples, self.num_samples + 1, "bounds of samples")
        blocks = samples // _BLOCK
        before = np.arange(_BLOCK) < (samples - blocks * _BLOCK)[:, None]
        within: IntArray = np.where(before, self._block(blocks), 0).sum(axis=1, dtype=np.int64)
        return self._begins[blocks] + within

    def locate(self, outputs: IntArray) -> tuple[IntArray, IntArray]:
        """Return for (n,) int64 outputs their samples, and their numbers within the samples; both (n,) int64."""
        check_numbers(outputs, self.num_outputs, "outputs")
        blocks = np.searchsorted(self._begins, outputs, side="right").astype(np.int64) - 1
        numbers = outputs - self._begins[blocks]
        ends = np.cumsum(self._block(blocks), axis=1, dtype=np.int64)
        before = ends <= numbers[:, None]
        return blocks * _BLOCK + before.sum(axis=1), numbers - np.where(before, ends, 0).max(axis=1, initial=0)

    def _block(self, blocks: IntArray) -> NDArray[np.integer[Any]]:
        """(n, 16): the counts in each block; behind the last sample that of the last sample, which is not asked for."""
        samples = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        return self._counts[np.minimum(samples, self.num_samples - 1)] if self.num_samples else np.zeros_like(samples)


Integers = NDArray[np.integer[Any]]


class Facts:
    """The measured facts of ``num_samples`` samples; a fact that was not measured is None.

    ``is_good`` is (num_samples,) bool: samples that are not good are left out; by default all are good. ``num_outputs``
    is (num_samples,) integers of at least 0; by default every sample has one output. ``lengths``, integers of at least
    0, and ``groups``, any integers, have a row for each output, in the order of the samples, including those that are
    not good.

    An *item* is an output of a good sample; items are numbered in the order of the samples.

    Raises:
        ConfigError: an array has another dtype or length, or there is no item.

    Example:
        >>> facts = headrace.plan.measured.Facts(3, is_good=np.array([True, False, True]))
        >>> samples, outputs = facts.locate(np.arange(facts.num_items))
        >>> samples.tolist()
        [0, 2]
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
        self._items = self.outputs
        rows = None
        if is_good is not None and not is_good.all():
            self._items = Outputs(is_good.view(np.uint8) if num_outputs is None else num_outputs * is_good)
            rows = is_good if num_outputs is None else np.repeat(is_good, num_outputs)
        self.num_items = num_samples if self._items is None else self._items.num_outputs
        if not self.num_items:
            raise ConfigError(
                f"none of the {num_samples:,} samples is good and has an output: check what the filter leaves out"
            )
        self.lengths = lengths if lengths is None or rows is None else lengths[rows]
        self.groups = groups if groups is None or rows is None else groups[rows]

    def locate(self, items: IntArray) -> tuple[IntArray, IntArray]:
        """Return for (n,) int64 items their samples, and the numbers of the outputs within them; both (n,) int64.

        Raises:
            ConfigError: there is no such item.
        """
        check_numbers(items, self.num_items, "items")
        return self._items.locate(items) if self._items is not None else (items, np.zeros_like(items))

    def rows(self, samples: IntArray, outputs: IntArray) -> IntArray:
        """Return (n,) int64: the numbers of some outputs of samples among the outputs of all samples."""
        return samples if self.outputs is None else self.outputs.begins(samples) + outputs

    def begins(self, samples: IntArray) -> IntArray:
        """Return (n,) int64: the first item of each sample; for ``num_samples``, the number of all items."""
        return samples if self._items is None else self._items.begins(samples)

    def items(self, sample: int) -> IntArray:
        """Return (k,) int64: the items of a sample, none if it is left out. Undoes ``locate``.

        Raises:
            ConfigError: there is no such sample.
        """
        check_numbers(sample, self.num_samples, "samples")
        return np.arange(*self.begins(np.array([sample, sample + 1], dtype=np.int64)), dtype=np.int64)


def _check(name: str, values: NDArray[Any] | None, num_rows: int, kinds: str) -> None:
    if values is not None and (values.shape != (num_rows,) or values.dtype.kind not in kinds):
        what = "booleans" if kinds == "b" else "integers"
        raise ConfigError(f"{name} is {values.dtype} of shape {values.shape}; expected ({num_rows:,},) {what}")


class Members(NamedTuple):
    """The outputs of samples that make up some units; unit i has the rows from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` is (num_units + 1,) int64. ``samples`` are the samples of the dataset and ``outputs`` the numbers of the
    outputs within them, both (num_rows,) int64. For packs ``begins`` and ``lengths``, (num_rows,) int64, say which
    tokens of the output are in the pack; otherwise they are None.
    """

    offsets: IntArray
    samples: IntArray
    outputs: IntArray
    begins: IntArray | None = None
    lengths: IntArray | None = None


class Measured:
    """Units over facts: the items themselves, groups of them, or packs of them.

        samples --- is_good ---> num_outputs ---> items ---> Grouping | Packing | each by itself ---> units

    ``num_units`` is the same in every epoch, so that units are the samples of a leaf, and a run over them needs no
    state but its position.

    Raises:
        ConfigError: the facts lack the groups or lengths that ``form`` needs, or there is no unit.

    Example:
        >>> facts = headrace.plan.measured.Facts(4, lengths=np.array([3, 4, 2, 5]))
        >>> measured = headrace.plan.measured.Measured(facts, form=headrace.Packing(seq_len=8))
        >>> measured.num_units, measured.members(np.array([0])).samples.tolist()
        (2, [3, 0])
    """

    def __init__(self, facts: Facts, *, form: Grouping | Packing | None = None) -> None:
        self.facts = facts
        self.form = form
        self.groups: Groups | None = None
        """The units as groups, if ``form`` is a ``Grouping``."""
        self.packs: PackPlan | None = None
        """The plan of the packs with its ledger, if ``form`` is a ``Packing``."""
        self.num_units = facts.num_items
        if isinstance(form, Grouping):
            if facts.groups is None:
                raise ConfigError("each unit must have items of one group, but the facts have no groups: measure them")
            self.groups = Groups(facts.groups, form)
            self.num_units = self.groups.num_units
        elif form is not None:
            if facts.lengths is None:
                raise ConfigError("the samples are to be packed, but the facts have no lengths: measure them")
            self.packs = plan_packs(facts.lengths.astype(np.int64, copy=False), form)
            self.num_units = len(self.packs)
            if not self.num_units:
                raise ConfigError(f"the {facts.num_items:,} items make no pack, since they have no tokens")

    def members(self, units: IntArray, keys: KeyArray | None = None) -> Members:
        """Return what (n,) int64 units are made of.

        ``keys``, (n,) uint64, are those of a ``Lookup``; they matter if the members of units differ by epoch
        (``regroup``, ``repack``).

        Raises:
            ConfigError: there is no such unit.
        """
        check_numbers(units, self.num_units, "units")
        if self.packs is not None:
            found = self.packs.items(units, keys if self.packs.packing.repack else None)
            samples, outputs = self.facts.locate(found.documents)
            return Members(found.offsets, samples, outputs, found.begins, found.lengths)
        if self.groups is not None:
            offsets, items = self.groups.items(units, keys)
            return Members(offsets, *self.facts.locate(items))
        return Members(np.arange(len(units) + 1, dtype=np.int64), *self.facts.locate(units))

    def units(self, sample: int, keys: KeyArray | None = None) -> IntArray:
        """Return (k,) int64, rising: the units that hold any part of a sample.

        ``keys`` is (1,) uint64, the key of the epoch. This is a closed form for single items, one pass over the items
        for groups, and one pass over all packs for packs.
        """
        items = self.facts.items(sample)
        if self.groups is not None:
            none = np.zeros(0, dtype=np.int64)
            return np.unique(np.concatenate([none, *(self.groups.units(item, keys) for item in items.tolist())]))
        if self.packs is None:
            return items
        found = []
        for first in range(0, self.num_units, _PACKS):
            packs = np.arange(first, min(first + _PACKS, self.num_units), dtype=np.int64)
            repeated = keys[np.zeros_like(packs)] if keys is not None and self.packs.packing.repack else None
            offsets, documents = self.packs.items(packs, repeated)[:2]
            rows = np.flatnonzero(np.isin(documents, items))
            found.append(packs[np.searchsorted(offsets, rows, side="right") - 1])
        return np.unique(np.concatenate(found))


_PACKS = 1 << 16
"""How many packs ``Measured.units`` searches at a time."""
