"""Megatron's splits, with the borders of both eras."""

from __future__ import annotations

from fractions import Fraction

import pytest

from headrace.errors import ConfigError
from headrace.plan.megatron import parse_split, split_ranges


def test_golden_borders() -> None:
    assert split_ranges("969,30,1", 49, era="core") == ((0, 47), (47, 49), (49, 49))
    assert split_ranges("969,30,1", 49, era="legacy") == ((0, 48), (48, 49), (49, 49))
    assert split_ranges("1,0,0", 7, era="core") == ((0, 7), None, None)
    assert split_ranges("0,1,0", 7, era="legacy") == (None, (0, 7), None)
    assert split_ranges("99,1", 1000, era="core") == ((0, 990), (990, 1000), None)


def test_halves_are_rounded_to_even() -> None:
    assert [split_ranges("1,1,0", n, era="core")[0] for n in (1, 3, 5, 7)] == [(0, 0), (0, 2), (0, 2), (0, 4)]
    # Each share on its own: 2.5 and 2.5 are 2 and 2, so one sequence is missing and all borders move up by it.
    assert split_ranges("1,1,0", 5, era="legacy") == ((0, 3), (3, 5), None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("split", "percent"), [("969,30,1", 24.3), ("949,50,1", 24.7), ("99,1,0", 0.0)])
def test_how_often_the_eras_differ(split: str, percent: float) -> None:
    """Counted over 1 to 20,000 sequences, as measured with both originals."""
    differing = 0
    for count in range(1, 20_001):
        core, legacy = (split_ranges(split, count, era=era) for era in ("core", "legacy"))
        differing += core != legacy
        for ranges in (core, legacy):
            borders = [border for part in ranges if part for border in part]
            assert borders == sorted(borders)
            assert (borders[0], borders[-1]) == (0, count)
    assert round(differing / 200, 1) == percent


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("969,30,1", (969, 30, 1)),
        ("969/30/1", (969, 30, 1)),
        ("969, 30, 1", (969, 30, 1)),
        ("[.5 .5]", (1, 1, 0)),
        ("3", (1, 0, 0)),
        ("98.5,1.5", (197, 3, 0)),
    ],
)
def test_text(split: str, shares: tuple[int, int, int]) -> None:
    assert parse_split(split) == pytest.approx([float(Fraction(share, sum(shares))) for share in shares], abs=1e-15)


@pytest.mark.parametrize("split", ["", "a", "1,-1", "1e3,1", "1,2,3,4", "0,0,0", "0", "1,,2", "1.2.3", "nan,1"])
def test_text_that_is_none(split: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        parse_split(split)


def test_what_is_refused() -> None:
    # Megatron would take the last sequence for validation, and all of them again.
    with pytest.raises(ConfigError, match=r"\[0.*-1.*1"):
        split_ranges("0,1,1", 3, era="legacy")
    assert split_ranges("0,1,1", 3, era="core") == (None, (0, 2), (2, 3))
    with pytest.raises(ConfigError, match=r"'core'.*'legacy'"):
        split_ranges("1", 3, era="neox")  # type: ignore[arg-type]
