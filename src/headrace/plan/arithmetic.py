"""Checked numbers, and exact integer arithmetic: products that would overflow int64, shares that add up exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from numbers import Real
from typing import Any

import numpy as np

from headrace.errors import ConfigError, InputError
from headrace.plan.keys import IntArray

Weight = float | Fraction


def check_numbers(numbers: IntArray | int, count: int, what: str) -> None:
    """Raise ConfigError unless all ``numbers`` are from 0 to ``count`` - 1; ``what`` they number is for the message."""
    found = np.asarray(numbers)
    if found.size and (int(found.min()) < 0 or int(found.max()) >= count):
        values = f"{found:,}" if not found.ndim else f"{found.min():,} to {found.max():,}"
        raise ConfigError(f"there are {count:,} {what}, numbered from 0; found {values}")


def scaled(values: IntArray, shares: IntArray, totals: IntArray) -> tuple[IntArray, IntArray]:
    """Return the quotient and remainder of ``values * shares / totals``, exact for products of any size.

    All arrays are (n,) int64, with 0 <= share <= total <= 2^61 and values >= 0. The first division takes whole totals
    out of the value. The rest is divided digit by digit, as in long division on paper. The digits are as wide as int64
    allows: one digit for totals up to 2^31, two up to 2^41.
    """
    whole = values // totals
    left = values - whole * totals
    total_bits = int(totals.max(initial=1) - 1).bit_length()
    digit_bits = 62 - total_bits
    num_digits = max(1, -(-total_bits // digit_bits))
    quotient = whole * shares
    if num_digits == 1:
        product = left * shares
        part = product // totals
        return quotient + part, product - part * totals
    part = np.zeros_like(left)
    remainder = np.zeros_like(left)
    mask = (1 << digit_bits) - 1
    for digit in reversed(range(num_digits)):
        # remainder < 2^total_bits and digit < 2^digit_bits, so each product stays below 2^62.
        carried = (remainder << digit_bits) + ((left >> (digit * digit_bits)) & mask) * shares
        step = carried // totals
        remainder = carried - step * totals
        part = (part << digit_bits) + step
    return quotient + part, remainder


def apportion(total: int, weights: Sequence[int | Fraction]) -> list[int]:
    """Return integers in proportion to ``weights`` that sum to exactly ``total``.

    This is the method of largest remainders; in a tie the first weight wins.
    """
    parts = _over_one(weights)
    whole = sum(parts)
    counts = [total * part // whole for part in parts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(total * parts[i] % whole), i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def check_positive(what: str, weight: Weight) -> None:
    """Raise a `ConfigError` that begins with ``what`` (``"weight 3 is"``) unless a weight is positive and finite."""
    if not isinstance(weight, Real) or not 0 < weight < float("inf"):
        raise ConfigError(f"{what} {weight!r}; it must be positive and finite: leave it out instead of giving it 0")


def exact_weights(weights: Sequence[Weight]) -> list[Fraction]:
    """Return the weights as exact fractions with the sum 1. Raises ConfigError unless all are positive and finite."""
    for i, weight in enumerate(weights):
        check_positive(f"weight {i} is", weight)
    parts = _over_one([Fraction(weight) for weight in weights])
    whole = sum(parts)
    return [Fraction(part, whole) for part in parts]


def _over_one(weights: Sequence[int | Fraction]) -> list[int]:
    """Return integers in exactly the proportion of ``weights``; sums of them cost a tenth of those of fractions."""
    scale = lcm(*(weight.denominator for weight in weights))
    return [weight.numerator * (scale // weight.denominator) for weight in weights]


def integers(values: Any, what: str) -> IntArray:
    """Return a list, array or tensor of integers as (n,) int64; raise InputError, naming ``what``, for other values."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} are not a sequence of integers: {error}") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise InputError(f"{what} are {array.dtype} of shape {array.shape}; expected a sequence of integers")
    return array.astype(np.int64, copy=False)


def rounded(value: Fraction) -> int:
    """Return the nearest integer; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)
