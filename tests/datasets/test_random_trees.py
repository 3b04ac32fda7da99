"""Drawn metadatasets that differ in one number: what was fed other samples has another past."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mixes_made
from counts import cases
from headrace import ConfigError, Order, Run
from mixes_made import Drawn, Opened, mixes


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(mixes_made.write_sources(tmp_path_factory.mktemp("trees")))


MOVED = {"[2, 7]": [3, 8], "['0%', '50%']": ["50%", "100%"], "['30%', '100%']": ["0%", "70%"]}
"""Ranges of as many samples, or about as many, elsewhere in the source."""


def entries(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every entry of a metadataset, itself first."""
    yield tree
    for kind in ("blend", "blend_epochized", "concat"):
        for child in tree.get(kind, ()):
            yield from entries(child)


def altered(rng: Random, drawn: Drawn) -> Drawn:
    """The same mix but for one number or one range in it."""
    tree = deepcopy(drawn.tree)
    entry = rng.choice(list(entries(tree)))
    numbers = [name for name in ("limit", "weight", "repetitions", "block_samples") if name in entry]
    if "path" in entry and (not numbers or rng.random() < 0.7):
        before = entry.pop("subset", {"range": None})["range"]
        entry["subset"] = {"range": MOVED.get(str(before), [2, 7])}
    elif numbers:
        name = rng.choice(numbers)
        entry[name] += rng.choice([1, 1, entry[name]])
    elif "schedule" in entry:
        piece = rng.choice(entry["schedule"])
        piece["weights"] = [weight + 1 for weight in piece["weights"]]
    return replace(drawn, tree=tree)


@settings(max_examples=cases(40, 5_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=True))
def test_what_fed_other_samples_has_another_past(opened: Opened, rng: Random) -> None:
    drawn = mixes(rng)
    order = Order(kind=rng.choice(["shards", "full", "blocks", "none"]), seed=rng.randint(0, 9))
    try:
        runs = [
            Run(one.data(opened), global_batch_size=drawn.batches, order=order) for one in (drawn, altered(rng, drawn))
        ]
    except ConfigError:
        return  # a limit beyond the samples of what it limits
    end = min(200, *(run.length or 200 for run in runs))
    fed = [
        [
            (run.paths[s], e, i)
            for s, e, i in zip(*(column.tolist() for column in run.lookup(np.arange(end))[:3]), strict=True)
        ]
        for run in runs
    ]
    same = next((at for at in range(end) if fed[0][at] != fed[1][at]), end)
    for position in {end, same + 1, rng.randint(0, end)} - {end + 1}:
        if runs[0].past(position).hashes() == runs[1].past(position).hashes():
            assert position <= same, "the same past, and other samples"
