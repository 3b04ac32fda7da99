"""Forks that fail, or end without a word, fail the test that waits for them."""

from __future__ import annotations

import os
import signal

import pytest

from children import results_of


def _made(value: int) -> int:
    if value == 3:
        raise ValueError("no threes")
    if value == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return value * 2


def test_results_come_in_order() -> None:
    assert results_of(_made, [(1,), (2,), (5,)]) == [2, 4, 10]


def test_a_child_that_fails_or_is_killed_is_told() -> None:
    with pytest.raises(AssertionError, match=r"(?s)1.*ValueError"):
        results_of(_made, [(1,), (3,)])
    with pytest.raises(AssertionError, match=r"0.*-9.*nothing"):
        results_of(_made, [(4,), (1,)])
