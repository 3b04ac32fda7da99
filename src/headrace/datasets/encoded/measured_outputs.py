"""Outputs of measured samples, each compared with what was measured of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace.datasets.encoded.batches import raised
from headrace.datasets.encoded.measured_units import Form, Rows
from headrace.datasets.encoded.samples import SampleEncoder
from headrace.datasets.measuring.facts import MeasuredFacts
from headrace.datasets.measuring.group_keys import key_text
from headrace.encoders import HookFailure
from headrace.encoders.pipeline import Output
from headrace.errors import StateError
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing


class _Source:
    """The outputs of one sample, made when the first is asked for, each handed out once."""

    def __init__(self, make: Callable[[], list[Output]], count: int) -> None:
        self.count = count
        self._make = make
        self._outputs: dict[int, Output] = {}

    def outputs(self, number: int) -> int | None:
        """Make the outputs where this one is not there; how many there are, if not as many as were measured."""
        if number not in self._outputs:
            made = self._make()
            if len(made) != self.count:
                return len(made)
            self._outputs = dict(enumerate(made))
        return None

    def take(self, number: int) -> Output:
        # Whoever gets it may change it: asked for twice, it is made twice.
        return self._outputs.pop(number)


class Row(NamedTuple):
    """An output that a unit is made of: of which ``sample``, which ``output``, and its number among all ``fact``."""

    source: _Source
    sample: int
    output: int
    fact: int


class MeasuredOutputs:
    """Makes the outputs that units are made of.

    Args:
        outputs: of the dataset that was measured.
        facts: of it.
        form: of the units, which says what is compared beside the number of outputs.
    """

    def __init__(self, outputs: SampleEncoder, facts: MeasuredFacts, form: Form | None) -> None:
        self._outputs = outputs
        self._pipeline = outputs.pipeline
        self._facts = facts
        self._form = form

    def of(self, rows: Rows) -> list[Row]:
        """One for each row; the bytes of their samples are read, all together."""
        samples, places = np.unique(self._outputs.addresses(rows.samples, rows.keys), return_inverse=True)
        counts = self._facts.arrays["num_outputs"][self._outputs.indices(samples)].tolist()
        sources = [_Source(make, count) for make, count in zip(self._outputs.makers(samples), counts, strict=True)]
        numbers = zip(rows.samples.tolist(), rows.outputs.tolist(), rows.facts.tolist(), strict=True)
        return [Row(sources[place], *one) for place, one in zip(places.tolist(), numbers, strict=True)]

    def output(self, row: Row) -> Output:
        """The output of a row.

        Raises:
            StateError: it is not what was measured.
            Exception: what hooks raise, with a note that says where.
        """
        found = row.source.outputs(row.output)
        if found is not None:
            raise self._differs(row, f"{found} outputs", f"{row.source.count}")
        one = row.source.take(row.output)
        try:
            if isinstance(self._form, Packing):
                measured = int(self._facts.arrays["lengths"][row.fact])
                if (length := self._pipeline.length(one)) != measured:
                    raise self._differs(row, f"an output of length {length:,}", f"{measured:,}")
            elif isinstance(self._form, Grouping):
                group = self._facts.summary.groups[int(self._facts.arrays["groups"][row.fact])]
                key, size = self._pipeline.criterion(one)
                if (key_text(key), size) != (group.key, group.size):
                    raise self._differs(row, f"an output of the group {key!r}, {size}", f"{group.key}, {group.size}")
        except HookFailure as failure:
            where = f"sample {row.sample:,} of {self._outputs.dataset.store.path}"
            error = raised(failure, type(self._pipeline.encoder).__name__, where)
            raise error from error.__cause__
        return one

    def _differs(self, row: Row, found: str, measured: str) -> StateError:
        return StateError(
            f"{type(self._pipeline.encoder).__name__} gave {found} for sample {row.sample:,} of"
            f" {self._outputs.dataset.store.path}, where {measured} was measured ({self._facts.path}): if its code was"
            " changed, raise its `version` and measure again; hooks may not decide such facts by random numbers"
        )
