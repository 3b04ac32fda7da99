"""What a run will read, from its file: against going through the run, with edits, blends and some of the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import corpora
import headrace
from headrace.cli import main
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError
from headrace.plan.dealing import FileBlocks
from headrace.tracing import reading_plan, save_run


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
    num_reads = used = 0
    for step in range(run.num_steps or 0):
        slots = run.positions(step)
        for node in range(3):
            reads = uses.reads(run.draw.positions(slots)[node * 4 : node * 4 + 4])
            num_reads += len(np.unique(reads.blocks))
            used += int(reads.used_bytes.sum())
    assert (found.reads, found.read_bytes) == (num_reads, used)
    assert (found.counted_steps, found.end_step, found.stored_files) == (50, 50, 2)
    assert (found.stored_blocks, found.stored_bytes) == (uses.table.num_blocks, uses.table.num_bytes)
    assert (found.cache.blocks, found.cache.kept_blocks) == (uses.table.num_blocks, 16)
    assert found.dealt is not None
    assert (found.dealt.blocks, found.dealt.kept_blocks) == (-(-uses.table.num_blocks // 3), 16)
    assert 0 < found.foreign < 0.3


def kept_by(blocks: list[int], used: list[int], table: FileBlocks, capacity: int) -> tuple[int, int]:
    """The requests and bytes of a cache that keeps the first blocks that come."""
    kept: set[int] = set()
    gets = num_bytes = 0
    for block, num_used in zip(blocks, used, strict=True):
        if block in kept:
            continue
        gets += 1
        is_kept = len(kept) < capacity
        num_bytes += table.block_bytes if is_kept else num_used
        kept |= {block} if is_kept else set()
    return gets, num_bytes


@pytest.mark.parametrize("capacity", [1, 10, 40, 10_000])
def test_what_caches_fetch_is_near_to_what_they_do(
    stores: dict[str, headrace.stores.Store], tmp_path: Path, capacity: int
) -> None:
    data = headrace.WindowDataset(stores["web"], seq_len=32)
    run = headrace.Run(data, global_batch_size=12, epochs=4)
    save_run(run, tmp_path / "run.json")
    found = reading_plan(tmp_path / "run.json", limit=capacity * 256, nodes=1, block=256)
    uses = BlockUses.of_run(run, block_bytes=256)
    seen: list[int] = []
    used: list[int] = []
    for step in range(run.num_steps or 0):
        reads = uses.reads(run.positions(step))
        blocks, rows = np.unique(reads.blocks, return_inverse=True)
        seen += blocks.tolist()
        used += np.bincount(rows, reads.used_bytes).astype(int).tolist()
    gets, num_bytes = kept_by(seen, used, uses.table, capacity)
    assert found.cache.gets == pytest.approx(gets, rel=0.1)
    assert found.cache.fetched_bytes == pytest.approx(num_bytes, rel=0.1)
    if capacity == 10_000:
        assert (found.cache.gets, found.cache.fetched_bytes) == (uses.table.num_blocks, uses.table.num_bytes)


def test_of_many_samples_some_steps_are_counted(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    save_run(headrace.Run(blend(stores), global_batch_size=12, samples=6000), tmp_path / "run.json")
    exact = reading_plan(tmp_path / "run.json", limit=8192, nodes=2, block=64)
    some = reading_plan(tmp_path / "run.json", limit=8192, nodes=2, block=64, most_samples=600)
    assert (exact.counted_steps, some.counted_steps) == (500, 50)
    assert some.reads == pytest.approx(exact.reads, rel=0.05)
    assert some.read_bytes == pytest.approx(exact.read_bytes, rel=0.05)
    assert some.stored_blocks == exact.stored_blocks


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
    with pytest.raises(ConfigError, match="steps"):
        reading_plan(tmp_path / "run.json", limit="1MB")
    with pytest.raises(ConfigError, match=r"5:5.*0"):
        reading_plan(tmp_path / "run.json", limit="1MB", steps=(5, 5))
    with pytest.raises(ConfigError, match=r"nodes.*0"):
        reading_plan(tmp_path / "run.json", limit="1MB", steps=(0, 5), nodes=0)


def test_the_command(stores: dict[str, headrace.stores.Store], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_run(headrace.Run(blend(stores), global_batch_size=12, samples=600), path)
    options = ["cache", "plan", str(path), "--limit", "4KiB", "--block", "256", "--nodes", "2", "--steps", "10:40"]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    found = reading_plan(path, limit=4096, nodes=2, steps=(10, 40), block=256)
    assert found.dealt is not None
    assert "steps 10 to 39 on 2 nodes" in done.output
    for number in (found.reads, found.stored_blocks, found.cache.gets, found.dealt.gets):
        assert f"{number:,}" in done.output
    wrong = CliRunner().invoke(main, [*options[:-1], "10"])
    assert (wrong.exit_code, "--steps 10" in wrong.output) == (2, True)
