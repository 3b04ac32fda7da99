"""Subsets of a source by range, with Energon's arithmetic: absolute ranges first, then percentages of the rest.

    1,000 samples   [100, 900]              samples 100 to 899
                    [25%, 75%]              samples 250 to 749
                    [25%, 75%] in [0%, 50%] samples 250 to 499: the outer range applies to the samples of the inner one

As in Energon, fractions are floats and are composed as floats, and an end is int(samples * fraction). This is the only
place in the plan where a float decides the number of a sample. Source: Energon 7.4, ``DatasetSubset``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import ConfigError


class SubsetRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range of samples: ``absolute`` in samples (an end of None is the last one), then ``fractions`` of those.

    Example:
        >>> subset = headrace.plan.SubsetRange.of(["25%", "75%"])
        >>> subset.bounds(1000), subset.inside(headrace.plan.SubsetRange.of(["0%", "50%"])).bounds(1000)
        ((250, 750), (250, 500))
    """

    absolute: tuple[int, int | None] | None = None
    fractions: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of(cls, given: Sequence[int | str]) -> SubsetRange:
        """Return the range of two ends as users write them: ``[100, 200]``, ``[100, "end"]``, ``["25%", "75%"]``.

        Energon fails on ``["80%", "end"]``; here it goes to 100 %.

        Raises:
            ConfigError: these are not two ends of one kind, or they are out of range or in the wrong order.
        """
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
            raise ConfigError(f"a subset is a range with two ends, such as [100, 200] or [25%, 75%]; found {given!r}")
        first, last = given
        to_end = isinstance(last, str) and last.strip() == "end"
        if _is_count(first) and (_is_count(last) or to_end):
            return cls(absolute=_counts(int(first), None if to_end else int(last), given))
        low, high = _fraction(first, given), 1.0 if to_end else _fraction(last, given)
        if low > high:
            raise ConfigError(f"the subset {list(given)} begins after its end")
        return cls(fractions=(low, high))

    def inside(self, outer: SubsetRange | None) -> SubsetRange:
        """Return the ``outer`` range, of a blend around the source, applied to the samples of this range.

        Raises:
            ConfigError: the outer range is in samples; only a source itself can have such a range.
        """
        if outer is None:
            return self
        if outer.absolute is not None:
            raise ConfigError(
                f"the subset {list(outer.absolute)} is in samples, which only a dataset can have; for a blend or a "
                "metadataset give percentages"
            )
        low, high = self.fractions
        part = high - low
        return SubsetRange(
            absolute=self.absolute, fractions=(low + outer.fractions[0] * part, low + outer.fractions[1] * part)
        )

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """Return the first sample and the one after the last, for a source of ``num_samples``; they may be equal.

        Raises:
            ConfigError: the absolute range goes beyond ``num_samples``.
        """
        begin, end = 0, num_samples
        if self.absolute is not None:
            begin, end = self.absolute[0], num_samples if self.absolute[1] is None else self.absolute[1]
            if not begin <= end <= num_samples:
                raise ConfigError(f"the subset from {begin:,} to {end:,} is not within the {num_samples:,} samples")
        low, high = self.fractions
        return begin + int((end - begin) * low), begin + int((end - begin) * high)


def _is_count(value: int | str) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(begin: int, end: int | None, given: Sequence[int | str]) -> tuple[int, int | None]:
    last = begin if end is None else end
    if max(begin, last) >= 1 << 62:
        raise ConfigError(f"the subset {str(list(given))[:80]} ends beyond 2^62 samples")
    if not 0 <= begin <= last:
        raise ConfigError(
            f"the subset {list(given)} runs from {begin} to {end}; both must be at least 0, and they must rise"
        )
    return begin, end


def _fraction(value: int | str, given: Sequence[int | str]) -> float:
    try:
        percent = float(value.strip().removesuffix("%")) if isinstance(value, str) and "%" in value else None
    except ValueError:
        percent = None
    if percent is None or not 0 <= percent <= 100:
        raise ConfigError(
            f"the subset {list(given)} has the end {value!r}; both ends must be numbers of samples, or both "
            "percentages from 0% to 100%; the second may be 'end'"
        )
    return percent / 100.0
