"""The mix over the steps: what came is what a lookup of every position says, and the planned line is exact."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import runs_made
from counts import cases
from headrace.datasets import Run
from headrace.errors import ConfigError
from headrace.plan import Branch, Leaf, Node, Order
from headrace.plan.blend import quantised
from headrace.tracing import curves, mix_curve


def slowly(run: Run, step: int, end_step: int) -> Counter[str]:
    """Count the sources of some steps, position by position."""
    plan = run.plan
    found: Counter[str] = Counter()
    for one in range(step, end_step):
        for position in run.positions(one).tolist():
            sources, _ = plan.ranks(np.array([position], dtype=np.int64))
            found[plan.chapter_at(position).paths[int(sources[0])] or "."] += 1
    return found


@settings(max_examples=cases(24, 300), deadline=None)
@given(runs_made.trees(), runs_made.schedules, st.integers(0, 4), st.sampled_from([3, 120]))
def test_what_came_is_what_comes(root: Node, pieces: list[tuple[int, int]], first: int, most: int) -> None:
    run = Run(runs_made.Tree(root), global_batch_size=pieces, order=Order(seed=1), samples=200)
    assert run.num_steps is not None
    if first >= run.num_steps:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "MAX_POINTS", most)
        curve = mix_curve(run, first)
    assert (curve.first_step, curve.end_step, curve.num_steps) == (first, run.num_steps, run.num_steps)
    assert [point.step for point in curve.points] == [first, *(point.end_step for point in curve.points)][:-1]
    for point in curve.points:
        counted = slowly(run, point.step, point.end_step)
        assert point.samples == counted.total()
        assert point.came == dict(counted)
        assert sum(point.planned.values()) == pytest.approx(1)


def edited() -> Run:
    leaves = (Leaf("web", 400), Leaf("code", 400))
    blend = Branch("", leaves, tuple(quantised([3, 1])), None)
    run = Run(runs_made.Tree(blend), global_batch_size=8, samples=8 * 60)
    run = run.edit(20, data=runs_made.Tree(Branch("", leaves, tuple(quantised([1, 1])), None)), reason="more code")
    return run.skip(range(40, 45), reason="a spike")


def test_edits_are_marks_and_breaks_of_the_line() -> None:
    run = edited()
    curve = mix_curve(run)
    assert [(mark.step, mark.what, mark.reason) for mark in curve.marks] == [
        (20, "data", "more code"),
        (40, "skip", "a spike"),
    ]
    steps = {point.step: point for point in curve.points}
    assert {20, 40} <= steps.keys()
    assert steps[0].planned["web"] == pytest.approx(0.75)
    assert steps[20].planned["web"] == pytest.approx(0.5)
    for point in curve.points:
        counted = slowly(run, point.step, point.end_step)
        assert point.came == dict(counted)
    assert curve.sources == ("web", "code")


def test_steps_that_there_are_not() -> None:
    run = edited()
    with pytest.raises(ConfigError, match=r"steps.*0"):
        mix_curve(run, 0, 1000)
    with pytest.raises(ConfigError, match=r"steps.*30.*9"):
        mix_curve(run, 30, 10)
    endless = Run(runs_made.Tree(Leaf("web", 7)), global_batch_size=2)
    curve = mix_curve(endless)
    assert (curve.end_step, curve.num_steps, curve.sources) == (1000, None, ("web",))
