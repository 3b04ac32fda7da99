"""Substitutes: pure, within bounds, even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError
from headrace.plan.keys import substitute_index


@given(
    key=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**63 - 1),
    attempt=st.integers(1, 10_000),
    num_samples=st.sampled_from([1, 2, 2**31 - 1, 2**31, 2**32 + 1, 2**41]),
)
def test_in_bounds_and_pure(key: int, position: int, attempt: int, num_samples: int) -> None:
    found = substitute_index(key, position, attempt, num_samples)
    assert 0 <= found < num_samples
    assert found == substitute_index(key, position, attempt, num_samples)


def test_even_and_of_all_arguments() -> None:
    found = [substitute_index(9, position, 1, 10) for position in range(10_000)]
    counts = np.bincount(found, minlength=10)
    assert abs(counts - 1000).max() < 150  # five standard deviations
    others = (
        [substitute_index(8, position, 1, 10) for position in range(10_000)],
        [substitute_index(9, position, 2, 10) for position in range(10_000)],
        found[1:] + found[:1],
    )
    for other in others:
        assert 850 < sum(one == two for one, two in zip(found, other, strict=True)) < 1150


def test_golden() -> None:
    assert [substitute_index(1, 2, attempt, 1000) for attempt in (1, 2, 3)] == GOLDEN


GOLDEN = [412, 679, 845]


@pytest.mark.parametrize(("position", "attempt", "num_samples"), [(-1, 1, 3), (0, 0, 3), (0, 1, 0)])
def test_refused(position: int, attempt: int, num_samples: int) -> None:
    with pytest.raises(ConfigError, match="attempts count from 1"):
        substitute_index(1, position, attempt, num_samples)
