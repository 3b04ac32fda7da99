"""Megatron's blends: how options write them, how many samples they need, and which dataset each sample comes from.

The dataset of each sample is chosen by Megatron's greedy rule, bit for bit: at step t, the dataset that is furthest
behind, which is the one with the greatest ``weight * max(t, 1) - count`` in float64, the first of equals.

    weights .5 .25 .25      datasets 0 1 2 0      samples 0 0 0 1

Every choice depends on all earlier ones. With numba (extra ``fast``) this takes about as long as Megatron's compiled
helper, or less. Without it NumPy compares the datasets at each step, in 2 to 5 us for any number of datasets.

Megatron's helper may choose differently at a tie if it was built by a compiler that fuses products and sums (GCC on
ARM).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice
from headrace.errors import ConfigError
from headrace.plan.arithmetic import check_positive
from headrace.plan.keys import IntArray
from headrace.plan.megatron.kernels import blend_kernel, compiled, is_loaded

MAX_DATASETS = 32766
"""The most datasets in a blend: Megatron stores the dataset of a sample as int16."""

_NO_LIMIT = 1 << 62
_FEW = 1 << 16
"""Below this many samples, importing numba takes longer than it saves."""

Blend = tuple[NDArray[np.int16], IntArray]


def build_blending_indices(weights: Sequence[float] | NDArray[np.float64], size: int) -> Blend:
    """Return the dataset of each sample, (size,) int16, and its number within that dataset, (size,) int64.

    ``weights`` are used as they are; Megatron normalises them first (see `normalised_weights`). O(size * datasets).

    Raises:
        ConfigError: a weight is not positive and finite, the size is below 0, or there are more than 32,766 datasets.
    """
    values = np.array(weights, dtype=np.float64)
    for number, weight in enumerate(values.tolist()):
        check_positive(f"dataset {number} has weight", weight)
    if size < 0:
        raise ConfigError(f"size is {size}; it must be at least 0")
    return _blend(values, np.full(len(values), _NO_LIMIT, dtype=np.int64), size)


def build_exhaustive_blending_indices(sizes: Sequence[int] | NDArray[np.integer[Any]]) -> Blend:
    """Return the same for a blend of all samples of all datasets.

    The weights are the sizes, and a dataset drops out when all its samples are used.

    Raises:
        ConfigError: a dataset has no samples, or there are more than 32,766 datasets.
    """
    limits = np.array(sizes, dtype=np.int64)
    for number, size in enumerate(limits.tolist()):
        if size < 1:
            raise ConfigError(f"dataset {number} has {size} samples; it needs at least 1: leave it out of the blend")
    total = sum(limits.tolist())
    return _blend(limits / np.float64(total), limits, total)


def _blend(weights: NDArray[np.float64], limits: IntArray, size: int) -> Blend:
    if not 1 <= len(weights) <= MAX_DATASETS:
        raise ConfigError(f"a Megatron blend must have 1 to {MAX_DATASETS:,} datasets, found {len(weights):,}")
    dataset_index = np.empty(size, dtype=np.int16)
    dataset_sample_index = np.empty(size, dtype=np.int64)
    kernel = compiled(blend_kernel) if size >= _FEW or is_loaded() else None
    (kernel or blend_plainly)(weights, limits, dataset_index, dataset_sample_index)
    return dataset_index, dataset_sample_index


def blend_plainly(
    weights: NDArray[np.float64], limits: IntArray, dataset_index: NDArray[np.int16], dataset_sample_index: IntArray
) -> None:
    """Do the same as `blend_kernel`, with NumPy over the datasets."""
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
            # The dataset is used up; it is never the greatest again.
            counts[chosen] = np.inf


SURPLUS = 0.005
"""Megatron's ``mid_level_dataset_surplus``."""


class BlendSizes(NamedTuple):
    """``num_samples``: how many samples each dataset is built for; ``size``: the number of samples in the blend."""

    num_samples: list[int]
    size: int


def normalised_weights(weights: Sequence[float]) -> list[float]:
    """Return the weights with the sum 1, divided in float64 as in Megatron.

    Megatron's builder normalises the weights, and its `BlendedDataset` normalises them again: `blend_sizes` needs the
    result of the first, and `build_blending_indices` that of the second. They may differ in the last bit.

    Raises:
        ConfigError: a weight is not positive and finite.
    """
    for number, weight in enumerate(weights):
        check_positive(f"dataset {number} has weight", weight)
    values = np.array(weights, dtype=np.float64)
    shares: list[float] = (values / np.sum(values)).tolist()
    return shares


def blend_sizes(
    weights: Sequence[float],
    size: int,
    *,
    surplus: float = SURPLUS,
    era: Literal["core", "before_2025_02"] = "core",
) -> BlendSizes:
    """Return how many samples `BlendedMegatronDatasetBuilder` asks of each dataset, for a blend of ``size`` samples.

    ``weights`` must be normalised. With ``core``, ceil(size * weight) samples are drawn from a dataset, and it is built
    for 0.5 % more; the size of the blend is the sum of the draws, a little above ``size``. With ``before_2025_02``
    (Megatron-LM before commit 85676ca489) both numbers are ceil(size * weight * 1.005). The number that a dataset is
    built for decides its order.

        1,000,000 samples of 10 datasets with weights 1 to 10: the blend has 1,000,005

    Raises:
        ConfigError: the surplus or the size is below 0.
    """
    if not 0 <= surplus < inf or size < 0:
        raise ConfigError(f"surplus is {surplus} and size is {size}; both must be at least 0")
    check_choice("era", era, ("core", "before_2025_02"))
    if era == "core":
        draws = [ceil(size * weight) for weight in weights]
        return BlendSizes([ceil(draw * (1 + surplus)) for draw in draws], sum(draws))
    draws = [ceil(size * weight * (1 + surplus)) for weight in weights]
    return BlendSizes(draws, sum(draws))


def check_draws(
    dataset_index: NDArray[np.integer[Any]], num_samples: Sequence[int], names: Sequence[str] | None = None
) -> None:
    """Check that the blend draws no more samples from a dataset than it has. Takes one pass over the blend.

    Raises:
        ConfigError: it draws more; the message names the dataset, its samples and the draws.
    """
    draws = np.bincount(dataset_index, minlength=len(num_samples)).tolist()
    over = [number for number, draw in enumerate(draws) if number >= len(num_samples) or draw > num_samples[number]]
    if not over:
        return
    first = over[0]
    name = f" ({names[first]})" if names and first < len(names) else ""
    has = f"{num_samples[first]:,}" if first < len(num_samples) else "none"
    others = f", and {len(over) - 1} more datasets are drawn from too often" if len(over) > 1 else ""
    raise ConfigError(
        f"the blend draws {draws[first]:,} samples from dataset {first}{name}, which has {has}{others}; build the"
        " datasets with a greater surplus, lower the weight, or ask for fewer samples"
    )


def parse_blend(blend: str | Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Return the prefixes of a blend, and their weights or None.

        ["0.3", "A", "0.7", "B"] and "[0.3 A 0.7 B]"      (["A", "B"], [0.3, 0.7])
        ["A", "B"]                                        (["A", "B"], None)

    A string is divided at white space, and brackets around it are ignored. As in Megatron, an odd number of words are
    all prefixes; of an even number, the first word of each pair is a weight if all of these are numbers.

    Raises:
        ConfigError: the blend is empty; only some of the weights are numbers; a weight is not positive and finite; or
            the number of words is odd and one is a number, so that a weight or a prefix is missing.
    """
    words = blend.strip().removeprefix("[").removesuffix("]").split() if isinstance(blend, str) else list(blend)
    words = [word.strip() for word in words]
    if not words or not all(words):
        raise ConfigError(f"the blend is {blend!r}; write prefixes, or weights and prefixes as in '0.3 A 0.7 B'")
    if len(words) % 2:
        for place, word in enumerate(words):
            if len(words) > 1 and _number(word) is not None:
                raise ConfigError(
                    f"word {place} of the blend, {word!r}, is a number, but {len(words)} words cannot be pairs of"
                    " weight and prefix: one is missing (write a prefix that looks like a number as './0.3')"
                )
        return words, None
    weights = [_number(word) for word in words[::2]]
    known = [weight for weight in weights if weight is not None]
    if not known:
        return words, None
    if len(known) < len(weights):
        place = 2 * weights.index(None)
        raise ConfigError(
            f"word {place} of the blend, {words[place]!r}, is not a weight, but others are: give every prefix a weight,"
            " or none"
        )
    prefixes = words[1::2]
    for prefix, weight in zip(prefixes, known, strict=True):
        check_positive(f"{prefix!r} has weight", weight)
    return prefixes, known


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
