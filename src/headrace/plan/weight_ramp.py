"""Weights that move in a straight line from one mix to another, as segments of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from headrace.errors import ConfigError
from headrace.plan.arithmetic import Weight
from headrace.plan.blend import quantised

MOST_SEGMENTS = 1024

Shares = tuple[int, ...]


def linear_ramp(
    first: Sequence[Weight], last: Sequence[Weight], *, begin: int, end: int, num_segments: int = MOST_SEGMENTS
) -> tuple[tuple[int, Shares], ...]:
    """(first position, shares of sum 2^31) for each segment of a ramp, and at ``end`` the last weights.

    A ramp is defined as ``num_segments`` constant segments, or as many as there are positions: segment k of m has the
    weights half-way through it, first + (last - first) (2 k + 1) / (2 m), of weights of sum 1, and begins at
    begin + floor((end - begin) k / m). All is exact; a weight may be 0 at either end, or at both if the source comes
    in elsewhere, and is share 0 then.

        (1, 0) to (0, 1) over 4 positions in 2 segments     0: 3/4, 1/4     2: 1/4, 3/4     4: 0, 1

    Raises:
        ConfigError: not as many weights at both ends, a weight below 0, all of them 0, no positions, or not 1 to 1,024
            segments.
    """
    if len(first) != len(last):
        raise ConfigError(f"a ramp has a weight of each source at both ends, found {len(first)} and {len(last)}")
    if not 0 <= begin < end or not 1 <= num_segments <= MOST_SEGMENTS:
        raise ConfigError(
            f"a ramp goes over at least one position in 1 to {MOST_SEGMENTS:,} segments, found positions {begin} to "
            f"{end} and {num_segments} segments"
        )
    low, high = _of_sum_one(first), _of_sum_one(last)
    number = min(num_segments, end - begin)
    pieces = []
    for k in range(number):
        along = Fraction(2 * k + 1, 2 * number)
        weights = [a + (b - a) * along for a, b in zip(low, high, strict=True)]
        pieces.append((begin + (end - begin) * k // number, quantised_with_zeros(weights)))
    return (*pieces, (end, quantised_with_zeros(high)))


def quantised_with_zeros(weights: Sequence[Weight]) -> Shares:
    """Shares of sum 2^31, where a weight of 0 is a share of 0."""
    positive = iter(quantised([weight for weight in weights if weight]))
    return tuple(next(positive) if weight else 0 for weight in weights)


def _of_sum_one(weights: Sequence[Weight]) -> list[Fraction]:
    if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ConfigError(f"the weights of a ramp are finite and not below 0, and one is above, found {list(weights)}")
    exact = [Fraction(weight) for weight in weights]
    return [weight / sum(exact) for weight in exact]
