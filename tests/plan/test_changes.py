"""Changes of a plan against a slow model, which moves sample by sample and keeps explicit lists."""

from __future__ import annotations

import random

import numpy as np
import pytest

from counts import cases
from headrace.plan import BatchSchedule
from headrace.plan.chaptered.changes import PlanEditor
from plan.changes_model import ENDLESS, Model, random_changes, random_leaf, random_order, random_tree

KINDS = ["tree", "tree", "order", "left_out", "skip", "defer", "batch", "fresh", "remove", "add"]


@pytest.mark.parametrize("seed", range(cases(60, 5000)))
def test_random_changes(seed: int) -> None:
    rng = random.Random(seed)
    names = {name: random_leaf(rng, name) for name in ["a", "b", "c", "d"][: rng.randrange(2, 5)]}
    order = random_order(rng)
    root = random_tree(rng, names)
    schedule = BatchSchedule.of(rng.choice([1, 4, 5, 8]))
    editor, model = PlanEditor(root, order, schedule, ENDLESS), Model(root, order)
    step, wanted = random_changes(rng, editor, model, names, KINDS, rng.randrange(1, 9))
    for _ in range(12):
        wanted += [model.take() for _ in range(editor.schedule.size(step))]
        step += 1
    plan = editor.plan()
    positions = np.arange(len(wanted), dtype=np.int64)
    found = plan.lookup(positions)
    sources = [plan.source_of[series] for series in found.sources.tolist()]
    got = list(zip(sources, zip(found.epochs.tolist(), found.indices.tolist(), strict=True), strict=True))
    assert got == wanted
    assert editor.schedule.begin(step) == len(wanted)
    # Each sample is found where it comes, and nowhere else.
    for series, index in {*zip(found.sources.tolist(), found.indices.tolist(), strict=True)}:
        times = plan.find(series, index, begin=0, end=len(wanted))
        rows = np.flatnonzero((found.sources == series) & (found.indices == index))
        assert times.positions.tolist() == rows.tolist()
        assert times.epochs.tolist() == found.epochs[rows].tolist()
        assert plan.keys(series, found.epochs[rows]).tolist() == found.keys[rows].tolist()
