"""Megatron's blends: the options that write them, the sizes they ask for, and the greedy rule that assigns samples.

Which dataset of a blend each sample is of, and the how-manieth of it: Megatron's greedy rule, bit for bit.

At step t the dataset is taken that is furthest behind: the greatest ``weight * max(t, 1) - count``, in float64, the
first of equals.

    weights .5 .25 .25      datasets 0 1 2 0      samples 0 0 0 1

Every choice depends on all before it. With numba (extra ``fast``) it takes about as long as Megatron's compiled helper
or less; without it NumPy compares the datasets at each step, 2 to 5 us whatever their number.

Megatron's helper, built by a compiler that fuses products and sums (GCC on ARM), may choose otherwise at a tie.

How many samples a blend takes of each dataset, as Megatron's builder counts them, and whether each has so many.

A blend as Megatron's options write it: ``0.3 A 0.7 B``, or prefixes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

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


SURPLUS = 0.005
"""Megatron's ``mid_level_dataset_surplus``."""


class BlendSizes(NamedTuple):
    """``num_samples``: what each dataset is built for; ``size``: samples of the blend."""

    num_samples: list[int]
    size: int


def normalised_weights(weights: Sequence[float]) -> list[float]:
    """Weights of sum 1, divided in float64 as Megatron does.

    Megatron's builder normalises, and its `BlendedDataset` does so once more: `blend_sizes` takes the result of the
    first, `build_blending_indices` that of the second. The two may differ in the last bit.

    Raises:
        ConfigError: a weight is not positive and finite.
    """
    for number, weight in enumerate(weights):
        if not 0 < weight < float("inf"):
            raise ConfigError(
                f"dataset {number} has weight {weight}; weights are positive and finite: leave a dataset out instead of"
                " giving it 0"
            )
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
    """What `BlendedMegatronDatasetBuilder` asks of each dataset for a blend of ``size`` samples.

    ``weights`` are normalised. ``core``: a dataset is drawn from ceil(size * weight) times and built for 0.5 % more;
    the blend has the sum of the draws, which is a little above ``size``. ``before_2025_02`` (Megatron-LM before commit
    85676ca489): both are ceil(size * weight * 1.005). What a dataset is built for decides its order.

        1,000,000 samples of 10 datasets with weights 1 to 10: the blend has 1,000,005
    """
    if era == "core":
        draws = [ceil(size * weight) for weight in weights]
        return BlendSizes([ceil(draw * (1 + surplus)) for draw in draws], sum(draws))
    if era == "before_2025_02":
        draws = [ceil(size * weight * (1 + surplus)) for weight in weights]
        return BlendSizes(draws, sum(draws))
    raise ConfigError(f"era is {era!r}; allowed are 'core' and 'before_2025_02'")


def check_draws(
    dataset_index: NDArray[np.integer[Any]], num_samples: Sequence[int], names: Sequence[str] | None = None
) -> None:
    """See that no dataset is drawn from more often than it has samples; one pass over the blend.

    Raises:
        ConfigError: one is; names it, what it has, and what the blend draws.
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
    """Prefixes, and their weights or None without.

        ["0.3", "A", "0.7", "B"] and "[0.3 A 0.7 B]"      (["A", "B"], [0.3, 0.7])
        ["A", "B"]                                        (["A", "B"], None)

    A string is divided at white space, and brackets around it are left out. As in Megatron an odd number of words are
    prefixes; of an even number, each first of two is a weight if all of them are numbers.

    Raises:
        ConfigError: nothing is there; only some of the weights are numbers; a weight is not positive and finite; or a
            prefix of an odd number is a number, so a weight or a prefix is missing.
    """
    words = blend.strip().removeprefix("[").removesuffix("]").split() if isinstance(blend, str) else list(blend)
    words = [word.strip() for word in words]
    if not words or not all(words):
        raise ConfigError(f"the blend is {blend!r}; write prefixes, or weights and prefixes as in '0.3 A 0.7 B'")
    if len(words) % 2:
        for place, word in enumerate(words):
            if len(words) > 1 and _number(word) is not None:
                raise ConfigError(
                    f"word {place} of the blend, {word!r}, is a number, but {len(words)} words are no pairs of weight"
                    " and prefix: one is missing (a prefix that looks like a number is written './0.3')"
                )
        return words, None
    weights = [_number(word) for word in words[::2]]
    known = [weight for weight in weights if weight is not None]
    if not known:
        return words, None
    if len(known) < len(weights):
        place = 2 * weights.index(None)
        raise ConfigError(
            f"word {place} of the blend, {words[place]!r}, is no weight, but others are: give every prefix a weight, or"
            " none"
        )
    prefixes = words[1::2]
    for prefix, weight in zip(prefixes, known, strict=True):
        if not 0 < weight < float("inf"):
            raise ConfigError(f"{prefix!r} has weight {weight}; weights are positive and finite: leave it out instead")
    return prefixes, known


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
