"""How many samples a blend takes of each dataset, as Megatron's builder counts them, and whether each has so many."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

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
