"""What was measured of every sample once, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.measured.bits import Bits
from headrace.plan.measured.outputs import Outputs

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
