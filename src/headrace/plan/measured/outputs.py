"""Samples that become none, one or several outputs: output u is number k of which sample, and back.

The counts are kept in unary where they are small, in a bitmap with rank and select: a one for each output, a zero
after the last one of each sample. That takes a bit a sample and a bit an output; where prefix sums of 64 bits a sample
are smaller, from some 60 outputs a sample on, they are kept instead.

    counts  2 0 1     bits  1 1 0 | 0 | 1 0     output 2 is bit 4, before which two zeros are: of sample 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.measured.bits import Bits

_CHUNK = 1 << 20


class Outputs:
    """The outputs of samples that have ``counts`` of them: (num_samples,) integers of at least 0.

    Raises:
        ConfigError: counts that are not such integers.
    """

    def __init__(self, counts: NDArray[np.integer[Any]]) -> None:
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts.size and int(counts.min()) < 0):
            raise ConfigError(
                f"counts of outputs are {counts.dtype} of shape {counts.shape}"
                f"{f', from {counts.min()} on' if counts.size else ''}; expected (num_samples,) integers of at least 0"
            )
        self.num_samples = len(counts)
        self.num_outputs = int(counts.sum(dtype=np.int64))
        self._bits: Bits | None = None
        self._begins: IntArray = np.zeros(0, dtype=np.int64)
        if self.num_outputs + self.num_samples < 62 * self.num_samples:
            self._bits = Bits(_unary(counts))
        else:
            self._begins = np.zeros(self.num_samples + 1, dtype=np.int64)
            np.cumsum(counts, out=self._begins[1:])

    @property
    def num_bytes(self) -> int:
        """Of what is kept."""
        if self._bits is not None:
            return self._bits.num_bytes
        return self._begins.nbytes

    def begins(self, samples: IntArray) -> IntArray:
        """(n,) int64: the first output of each sample; of ``num_samples`` the number of all outputs."""
        if samples.size and (int(samples.min()) < 0 or int(samples.max()) > self.num_samples):
            raise ConfigError(f"samples run from 0 to {self.num_samples:,}; found {samples.min():,}..{samples.max():,}")
        if self._bits is None:
            return self._begins[samples]
        found = np.zeros_like(samples)
        later = samples > 0
        # Before the end of sample i - 1 lie i - 1 zeros; all else there are outputs.
        found[later] = self._bits.select(samples[later] - 1, member=False) - (samples[later] - 1)
        return found

    def locate(self, outputs: IntArray) -> tuple[IntArray, IntArray]:
        """The sample of each of (n,) int64 outputs, and which of its outputs it is, both (n,) int64."""
        if outputs.size and (int(outputs.min()) < 0 or int(outputs.max()) >= self.num_outputs):
            raise ConfigError(
                f"there are {self.num_outputs:,} outputs, from 0 on; found {outputs.min():,} to {outputs.max():,}"
            )
        if self._bits is not None:
            samples = self._bits.select(outputs) - outputs
        else:
            samples = np.searchsorted(self._begins, outputs, side="right").astype(np.int64) - 1
        return samples, outputs - self.begins(samples)


def _unary(counts: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.bool_]]:
    for first in range(0, len(counts), _CHUNK):
        ends = np.cumsum(counts[first : first + _CHUNK].astype(np.int64) + 1)
        bits = np.ones(int(ends[-1]), dtype=bool)
        bits[ends - 1] = False
        yield bits
