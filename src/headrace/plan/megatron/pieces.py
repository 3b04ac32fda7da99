"""Which parts of which sequences make up some samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.plan.keys import IntArray


class SamplePieces(NamedTuple):
    """The pieces of some samples, in order; sample i has those from ``offsets[i]`` to ``offsets[i + 1]``.

    ``offsets`` (samples + 1,) int64; the others (pieces,) int64: tokens ``[begin, begin + length)`` of the sequence.
    They are the parts that Megatron reads, those without a token among them: empty sequences within a sample, and
    without an extra token the end of the sequence before it.
    """

    offsets: IntArray
    sequences: IntArray
    begins: IntArray
    lengths: IntArray

    @property
    def num_tokens(self) -> IntArray:
        """(samples,) int64: tokens of each sample: S + e, fewer in a partial last one."""
        ends = np.zeros(len(self.lengths) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        tokens: IntArray = np.diff(ends[self.offsets])
        return tokens
