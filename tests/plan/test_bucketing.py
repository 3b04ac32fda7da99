"""Bucketing is a permutation of a window that keeps the sizes of its groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace import ConfigError
from headrace.plan import Bucketing, bucketed


def test_the_example_of_the_module() -> None:
    lengths = np.array([9, 2, 7, 3, 8, 1])
    found = {tuple(bucketed(lengths, np.array([3, 3]), key).tolist()) for key in range(20)}
    assert found == {(5, 1, 3, 2, 4, 0), (2, 4, 0, 5, 1, 3)}, "either group may be the one of the short ones"


@settings(max_examples=cases(20, 2_000), deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.data())
def test_each_sample_has_one_place_and_groups_are_runs_of_the_sorted(lengths: list[int], data: st.DataObject) -> None:
    sizes: list[int] = []
    while sum(sizes) < len(lengths):
        sizes.append(data.draw(st.integers(1, len(lengths) - sum(sizes))))
    key = data.draw(st.integers(0, 2**64 - 1))
    places = bucketed(np.array(lengths, np.int64), np.array(sizes, np.int64), key)
    assert sorted(places.tolist()) == list(range(len(lengths)))
    by_length = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    groups = np.split(places, np.cumsum(sizes)[:-1]) if sizes else []
    assert sorted((group.tolist() for group in groups), key=lambda group: by_length.index(group[0])) == [
        part.tolist() for part in _runs(by_length, groups)
    ]


def _runs(by_length: list[int], groups: list[np.ndarray]) -> list[np.ndarray]:
    sizes = [len(group) for group in sorted(groups, key=lambda group: by_length.index(group[0]))]
    return np.split(np.array(by_length), np.cumsum(sizes)[:-1]) if sizes else []


def test_steps_are_cut_into_groups() -> None:
    assert Bucketing().group_sizes([8, 8, 3]).tolist() == [8, 8, 3]
    assert Bucketing(group_samples=3).group_sizes([8, 6, 2]).tolist() == [3, 3, 2, 3, 3, 2]
    assert Bucketing(group_samples=9).group_sizes([8]).tolist() == [8]
    assert Bucketing().group_sizes([]).tolist() == []


@pytest.mark.parametrize("sizes", [{"window_steps": 0}, {"group_samples": 0}, {"window_steps": -1}])
def test_sizes_below_1_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"least.*1"):
        Bucketing(**sizes)
