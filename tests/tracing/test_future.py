"""What a run will read, from its file: against going through the run, with edits, blends and samples of blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import corpora
import headrace
from headrace.cli import main
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError
from headrace.plan.caching import simulate
from headrace.tracing import reading_plan, save_run
from headrace.tracing.future import _Followed


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, headrace.stores.Store]:
    folder = tmp_path_factory.mktemp("stores")
    return {name: corpora.make(folder / name, seed, 300).store for seed, name in enumerate(("web", "code"))}


def blend(stores: dict[str, headrace.stores.Store]) -> headrace.Blend:
    sources = {name: headrace.WindowDataset(store, seq_len=32) for name, store in stores.items()}
    return headrace.Blend(sources, weights={"web": 2, "code": 1})


def test_figures_are_those_of_the_run(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    run = headrace.Run(blend(stores), global_batch_size=12, samples=600)
    save_run(run, tmp_path / "run.json")
    found = reading_plan(tmp_path / "run.json", limit=4096, nodes=3, block=256)
    uses = BlockUses.of_run(run, block_bytes=256)
    seen: list[list[int]] = [[], [], []]
    used = 0
    for step in range(run.num_steps or 0):
        slots = run.positions(step)
        for node in range(3):
            reads = uses.reads(run.draw.positions(slots)[node * 4 : node * 4 + 4])
            blocks = np.unique(reads.blocks)
            seen[node] += blocks.tolist()
            for block in blocks.tolist():
                size = int(uses.table.sizes(np.array([block]))[0])
                used += min(int(reads.used_bytes[reads.blocks == block].sum()), size)
    assert found.reads == sum(map(len, seen))
    assert found.read_bytes == used
    assert (found.followed, found.end_step, found.stored_files) == (1.0, 50, 2)
    for cache in found.caches:
        hits = sum(int(simulate(np.array(one), 16, cache.policy).is_hit.sum()) for one in seen)
        assert cache.hit_rate == hits / found.reads
        assert cache.gets == found.reads - hits
        assert sum(epoch.reads for epoch in cache.epochs) == found.reads
    assert 0 < found.foreign < 0.3
    assert found.dealt[0].hit_rate > found.caches[0].hit_rate
    assert found.dealt[0].fetched_bytes < found.caches[0].fetched_bytes
    assert found.caches[0].hit_rate == max(cache.hit_rate for cache in found.caches)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_sample_of_blocks_is_found_from_both_ends(
    stores: dict[str, headrace.stores.Store], tmp_path: Path, rate: float
) -> None:
    run = headrace.Run(blend(stores), global_batch_size=12, samples=600)
    followed = _Followed(run, BlockUses.of_run(run, block_bytes=128), 2, rate)
    ways = [
        np.concatenate([np.array(one) for one in way(24, 480)], axis=1) for way in (followed._scanned, followed._found)
    ]
    rows = [sorted(map(tuple, way.T.tolist())) for way in ways]
    assert rows[0] == rows[1]
    assert rows[0]


def test_a_sampled_plan_has_errors(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    save_run(headrace.Run(blend(stores), global_batch_size=12, samples=3000), tmp_path / "run.json")
    options = {"limit": 8192, "nodes": 2, "block": 64}
    exact = reading_plan(tmp_path / "run.json", **options)
    some = reading_plan(tmp_path / "run.json", **options, most_reads=1500)
    assert some.followed < 0.3
    for one, other in zip(exact.caches, some.caches, strict=True):
        assert one.hit_rate_error == 0 < other.hit_rate_error
        assert abs(one.hit_rate - other.hit_rate) < 4 * other.hit_rate_error + 0.02
    assert abs(some.reads - exact.reads) < 0.2 * exact.reads


def test_steps_of_an_edited_run(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    run = headrace.Run(blend(stores), global_batch_size=12, samples=600)
    run = run.edit(20, weights={"web": 1, "code": 5})
    save_run(run, tmp_path / "run.json")
    parts = [reading_plan(tmp_path / "run.json", limit=4096, steps=steps, block=256) for steps in ((0, 20), (20, 50))]
    whole = reading_plan(tmp_path / "run.json", limit=4096, block=256)
    assert sum(part.reads for part in parts) == whole.reads
    uses = BlockUses.of_run(run, block_bytes=256)
    expected = [len(np.unique(uses.reads(run.positions(step)).blocks)) for step in range(50)]
    assert [part.reads for part in parts] == [sum(expected[:20]), sum(expected[20:])]


def test_what_cannot_be_planned_is_refused(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    save_run(headrace.Run(blend(stores), global_batch_size=12), tmp_path / "run.json")
    with pytest.raises(ConfigError, match="has no end: say which steps"):
        reading_plan(tmp_path / "run.json", limit="1MB")
    with pytest.raises(ConfigError, match="no steps 5:5: the run has the steps from 0 on"):
        reading_plan(tmp_path / "run.json", limit="1MB", steps=(5, 5))
    with pytest.raises(ConfigError, match="nodes is 0"):
        reading_plan(tmp_path / "run.json", limit="1MB", steps=(0, 5), nodes=0)


def test_the_command(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_run(headrace.Run(blend(stores), global_batch_size=12, samples=600), path)
    options = ["cache", "plan", str(path), "--limit", "4KiB", "--block", "256", "--nodes", "2", "--steps", "10:40"]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "steps 10 to 39 on 2 nodes" in done.output
    for policy in ("plan", "pin", "lru", "fifo"):
        assert f" {policy} " in done.output
    told = json.loads(CliRunner().invoke(main, [*options, "--json"]).output)
    assert (
        told["caches"][0]["hit_rate"]
        == reading_plan(path, limit=4096, nodes=2, steps=(10, 40), block=256).caches[0].hit_rate
    )
    wrong = CliRunner().invoke(main, [*options[:-1], "10"])
    assert wrong.exit_code == 2
    assert "--steps 10: write A:B" in wrong.output
