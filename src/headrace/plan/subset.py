"""Parts of a source by range, with Energon's arithmetic: numbers of samples first, then percentages of what is left.

    1,000 samples   [100, 900]              samples 100 to 899
                    [25%, 75%]              samples 250 to 749
                    [25%, 75%] in [0%, 50%] samples 250 to 499: the outer range is of what the inner one leaves

Fractions are floats and are composed as floats, and an end is int(samples * fraction), as there: this is the one place
of the plan where a float decides a number of a sample. Source: Energon 7.4, ``DatasetSubset``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import ConfigError


class SubsetRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range of samples: ``absolute`` in samples (an end of None is the last), then ``fractions`` of those."""

    absolute: tuple[int, int | None] | None = None
    fractions: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of(cls, given: Sequence[int | str]) -> SubsetRange:
        """From the two ends as they are written: ``[100, 200]``, ``[100, "end"]``, ``["25%", "75%"]``.

        Energon fails on ``["80%", "end"]``; here it goes to 100 %.

        Raises:
            ConfigError: not two ends of one kind, out of range, or in the wrong order.
        """
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
            raise ConfigError(f"a subset is a range of two ends, as [100, 200] or [25%, 75%]; found {given!r}")
        first, last = given
        to_end = isinstance(last, str) and last.strip() == "end"
        if _is_count(first) and (_is_count(last) or to_end):
            begin, end = int(first), None if to_end else int(last)
            if max(begin, end or 0) >= 1 << 62:
                raise ConfigError(f"the subset {str(list(given))[:80]} ends beyond 2^62 samples")
            if begin < 0 or (end is not None and end < begin):
                raise ConfigError(f"the subset {list(given)} runs from {begin} to {end}; ends are from 0 on and rise")
            return cls(absolute=(begin, end))
        low, high = _fraction(first, given), 1.0 if to_end else _fraction(last, given)
        if low > high:
            raise ConfigError(f"the subset {list(given)} begins after its end")
        return cls(fractions=(low, high))

    def inside(self, outer: SubsetRange | None) -> SubsetRange:
        """This range, and of what it leaves the ``outer`` one, of a blend around the source.

        Raises:
            ConfigError: the outer one is in samples, which only a source itself can have.
        """
        if outer is None:
            return self
        if outer.absolute is not None:
            raise ConfigError(
                f"a subset in samples, {list(outer.absolute)}, goes with a dataset; of a blend or of a metadataset "
                "give percentages"
            )
        low, high = self.fractions
        part = high - low
        return SubsetRange(
            absolute=self.absolute, fractions=(low + outer.fractions[0] * part, low + outer.fractions[1] * part)
        )

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """The first sample, and the one after the last, of ``num_samples``; they may be the same.

        Raises:
            ConfigError: the range in samples goes beyond them.
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


def _fraction(value: int | str, given: Sequence[int | str]) -> float:
    try:
        percent = float(value.strip().removesuffix("%")) if isinstance(value, str) and "%" in value else None
    except ValueError:
        percent = None
    if percent is None or not 0 <= percent <= 100:
        raise ConfigError(
            f"the subset {list(given)} has the end {value!r}; ends are both numbers of samples, or both percentages "
            "from 0% to 100%; the second may be 'end'"
        )
    return percent / 100.0
