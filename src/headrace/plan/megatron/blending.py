"""Which dataset of a blend each sample is of, and the how-manieth of it: Megatron's greedy rule, bit for bit.

At step t the dataset is taken that is furthest behind: the greatest ``weight * max(t, 1) - count``, in float64, the
first of equals.

    weights .5 .25 .25      datasets 0 1 2 0      samples 0 0 0 1

Every choice depends on all before it. With numba (extra ``fast``) it takes about as long as Megatron's compiled helper
or less; without it NumPy compares the datasets at each step, 2 to 5 us whatever their number.

Megatron's helper, built by a compiler that fuses products and sums (GCC on ARM), may choose otherwise at a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.megatron.kernels import blend_kernel, compiled, is_loaded

MAX_DATASETS = 32766
"""Megatron keeps the dataset of a sample as int16."""

_NO_LIMIT = 1 << 62
_FEW = 1 << 16
"""Samples below which importing numba takes longer than to do without."""

Blend = tuple[NDArray[np.int16], IntArray]


def build_blending_indices(weights: Sequence[float] | NDArray[np.float64], size: int) -> Blend:
    """Two (size,) arrays: the dataset of each sample, int16, and its number within that dataset, int64.

    ``weights`` are taken as they are; Megatron normalises them first, see `normalised_weights`. O(size * datasets).

    Raises:
        ConfigError: a weight is not positive and finite, or there are more than 32,766 datasets.
    """
    values = np.array(weights, dtype=np.float64)
    for number, weight in enumerate(values.tolist()):
        if not 0 < weight < np.inf:
            raise ConfigError(
                f"dataset {number} has weight {weight}; weights are positive and finite: leave a dataset out instead of"
                " giving it 0"
            )
    if size < 0:
        raise ConfigError(f"size is {size}; at least 0")
    return _blend(values, np.full(len(values), _NO_LIMIT, dtype=np.int64), size)


def build_exhaustive_blending_indices(sizes: Sequence[int] | NDArray[np.integer[Any]]) -> Blend:
    """The same over all samples of all datasets: weights are the sizes, and a dataset that is used up drops out.

    Raises:
        ConfigError: a dataset has no samples, or there are more than 32,766 datasets.
    """
    limits = np.array(sizes, dtype=np.int64)
    for number, size in enumerate(limits.tolist()):
        if size < 1:
            raise ConfigError(f"dataset {number} has {size} samples; leave it out of the blend")
    total = sum(limits.tolist())
    return _blend(limits / np.float64(total), limits, total)


def _blend(weights: NDArray[np.float64], limits: IntArray, size: int) -> Blend:
    if not 1 <= len(weights) <= MAX_DATASETS:
        raise ConfigError(f"a Megatron blend has 1 to {MAX_DATASETS:,} datasets, found {len(weights):,}")
    dataset_index = np.empty(size, dtype=np.int16)
    dataset_sample_index = np.empty(size, dtype=np.int64)
    kernel = compiled(blend_kernel) if size >= _FEW or is_loaded() else None
    (kernel or blend_plainly)(weights, limits, dataset_index, dataset_sample_index)
    return dataset_index, dataset_sample_index


def blend_plainly(
    weights: NDArray[np.float64], limits: IntArray, dataset_index: NDArray[np.int16], dataset_sample_index: IntArray
) -> None:
    """What `blend_kernel` does, with NumPy over the datasets."""
    counts = np.zeros(len(weights), dtype=np.float64)
    errors = np.empty(len(weights), dtype=np.float64)
    left = limits.tolist()
    for t in range(len(dataset_index)):
        np.multiply(weights, float(max(t, 1)), out=errors)
        np.subtract(errors, counts, out=errors)
        chosen = int(errors.argmax())
        dataset_index[t] = chosen
        dataset_sample_index[t] = counts[chosen]
        counts[chosen] += 1.0
        left[chosen] -= 1
        if not left[chosen]:
            # Used up: never the greatest again.
            counts[chosen] = np.inf
