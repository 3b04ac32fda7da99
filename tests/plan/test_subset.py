"""Ranges of a source, with the numbers that Energon's own arithmetic gives."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError
from headrace.plan import SubsetRange


@pytest.mark.parametrize(
    ("given_range", "num_samples", "bounds"),
    [
        ([100, 900], 1_000, (100, 900)),
        ([100, "end"], 1_000, (100, 1_000)),
        (["25%", "75%"], 1_000, (250, 750)),
        (["33%", "100%"], 78, (25, 78)),
        (["10%", "90%"], 22, (2, 19)),
        (["0%", "29%"], 100, (0, 28)),
        (["80%", "end"], 10, (8, 10)),
        ([5, 5], 10, (5, 5)),
    ],
)
def test_one_range(given_range: list[int | str], num_samples: int, bounds: tuple[int, int]) -> None:
    """int(100 * 0.29) is 28: the floats are Energon's."""
    assert SubsetRange.of(given_range).bounds(num_samples) == bounds


def test_ranges_of_ranges() -> None:
    half = SubsetRange.of(["0%", "50%"])
    assert SubsetRange.of(["25%", "75%"]).inside(half).bounds(1_000) == (250, 500)
    assert SubsetRange.of([100, 200]).inside(half).bounds(1_000) == (100, 150)
    assert SubsetRange.of([100, 200]).inside(half.inside(SubsetRange.of(["10%", "20%"]))).bounds(1_000) == (105, 110)
    assert SubsetRange().inside(half).bounds(7) == (0, 3)
    assert half.inside(None) == half


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 10**6))
def test_parts_lie_within(low: int, high: int, num_samples: int) -> None:
    low, high = sorted((low, high))
    begin, end = SubsetRange.of([f"{low}%", f"{high}%"]).bounds(num_samples)
    assert 0 <= begin <= end <= num_samples


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([1], "two"),
        ("10%", "two"),
        ([3, 2], "rise"),
        ([-1, 2], "rise"),
        ([1, "50%"], "end.*1"),
        (["10%", 50], "end.*50"),
        (["101%", "end"], "'101%'"),
        (["x%", "50%"], "'x%'"),
        (["60%", "50%"], "after"),
        (["end", "end"], "'end'"),
        ([5, 11], "10.*samples"),
        ([11, "end"], "10.*samples"),
    ],
)
def test_what_is_no_range_of_ten_is_refused(wrong: list[int | str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SubsetRange.of(wrong).bounds(10)


def test_parts_of_numbered_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="percentages"):
        SubsetRange.of(["0%", "50%"]).inside(SubsetRange.of([1, 2]))
