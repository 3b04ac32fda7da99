"""What a run over shards says of itself: how well its order mixes, and how much is read in one go."""

from __future__ import annotations

import re
from pathlib import Path

from headrace import Blend, MediaDataset, Order, Run
from headrace.plan import Shards, order_quality
from media_texts import TEXT, shards

FIGURES = re.compile(
    r"mixing(?: of (?P<source>\S+), the largest source)?: (?P<pairs>[\d.]+) times .*shards \((?P<shards>\d+)\) has, "
    r"median displacement (?P<share>\d+)% .*'s, (?P<run>[\d.]+) neighbours read together"
)


def test_the_three_figures_of_an_order_for_shards(tmp_path: Path) -> None:
    counts = tuple(range(20, 36))
    dataset = MediaDataset.open(shards(tmp_path / "texts", counts), **TEXT)
    order = Order(kind="shards", seed=3, max_samples_per_sequence=8, parallel_shard_iters=16)
    said = FIGURES.search(Run(dataset, global_batch_size=32, order=order).describe())
    assert said is not None
    found = order_quality(order, len(dataset), Shards.of_counts(list(counts)), batch_samples=32)
    assert said["source"] is None
    assert float(said["pairs"]) == round(found.same_shard_pairs, 2) <= 1.5
    assert int(said["shards"]) == found.open_shards == 16
    assert int(said["share"]) == round(100 * found.displacement) >= 80
    assert float(said["run"]) == round(found.mean_run_samples, 1) >= 4


def test_of_several_sources_the_largest_is_measured(tmp_path: Path) -> None:
    few = MediaDataset.open(shards(tmp_path / "few", (5, 5)), **TEXT)
    many = MediaDataset.open(shards(tmp_path / "many", (30, 30, 30)), **TEXT)
    blend = Blend({"few": few, "many": many}, weights={"few": 1, "many": 1})
    order = Order(kind="shards", max_samples_per_sequence=5, parallel_shard_iters=4)
    said = FIGURES.search(Run(blend, global_batch_size=8, order=order).describe())
    assert said is not None
    assert said["source"] == "many"
    assert "mixing" not in Run(blend, global_batch_size=8, order=Order()).describe()
