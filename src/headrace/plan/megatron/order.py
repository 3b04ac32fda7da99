"""Any of Megatron's orders by its dialect."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.plan.keys import IntArray
from headrace.plan.megatron.aleph_alpha import AlephAlphaOrder
from headrace.plan.megatron.gpt_order import GPTOrder
from headrace.plan.megatron.pieces import SamplePieces
from headrace.plan.megatron.sampling import GPTSampling


class SampleOrder(Protocol):
    """What a dataset asks of an order."""

    sampling: GPTSampling

    @property
    def num_samples(self) -> int:
        """Samples of the run."""

    @property
    def num_epochs(self) -> int:
        """Epochs that they are cut from."""

    @property
    def num_bytes(self) -> int:
        """Of all arrays that are kept, the sizes not among them."""

    def locate(self, samples: IntArray) -> SamplePieces:
        """The pieces of (n,) int64 ``samples`` of the run."""


def order_samples(
    sizes: NDArray[np.integer[Any]], sampling: GPTSampling, *, first_sequence: int = 0
) -> GPTOrder | AlephAlphaOrder:
    """The order of the samples over sequences of these sizes, of whichever dialect ``sampling`` names."""
    made = AlephAlphaOrder if sampling.dialect == "aleph_alpha" else GPTOrder
    return made(sizes, sampling, first_sequence=first_sequence)
