"""What a run will read, its mix over the steps, a step as micro-batches, and files of states."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import corpora
import headrace
import runs_made
from counts import cases
from headrace import Loader, PackedSequenceDataset, Packing, WindowDataset
from headrace.cli import main
from headrace.datasets import Run
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError, StateError
from headrace.loader import Ranks
from headrace.plan import Branch, Bucketing, Leaf, Node, Order
from headrace.plan.blend import quantised
from headrace.plan.dealing import FileBlocks
from headrace.tracing import (
    Topology,
    curves,
    grids,
    history_of,
    mix_curve,
    read_state,
    reading_plan,
    save_run,
    step_grid,
)


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


def slowly(run: Run, step: int, end_step: int) -> Counter[str]:
    """Count the sources of some steps, position by position."""
    plan = run.plan
    found: Counter[str] = Counter()
    for one in range(step, end_step):
        for position in run.positions(one).tolist():
            sources, _ = plan.ranks(np.array([position], dtype=np.int64))
            found[plan.chapter_at(position).paths[int(sources[0])] or "."] += 1
    return found


@settings(max_examples=cases(12, 300), deadline=None)
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


@pytest.fixture
def packs(tmp_path: Path) -> Run:
    store = corpora.make(tmp_path / "store", 1, 300).store
    return Run(PackedSequenceDataset(store, Packing(seq_len=64)), global_batch_size=12, order=Order(seed=2))


def test_cells_are_what_the_ranks_read(packs: Run) -> None:
    topology = Topology(ranks=3, micro_batch_size=2)
    grid = step_grid(history_of(packs), 1, topology, packs)
    assert [(cell.rank, cell.micro_step) for cell in grid.cells] == [(r, j) for r in range(3) for j in range(2)]
    for rank in range(3):
        loader = Loader(packs, micro_batch_size=2, ranks=Ranks(rank, 3))
        batches = iter(loader)
        of_step = [next(batches) for _ in range(4)][2:]
        for micro_step, batch in enumerate(of_step):
            cell = next(one for one in grid.cells if (one.rank, one.micro_step) == (rank, micro_step))
            assert [grid.samples[row].position for row in cell.rows] == batch["sample_positions"].tolist()
            assert cell.held is not None
            documents = batch["document_ids"].numpy()
            assert cell.held.tokens == np.count_nonzero(documents >= 0)
            assert cell.held.places == documents.size
            assert cell.held.supervised_tokens == np.count_nonzero(batch["labels"].numpy() != -100)
            pairs = 0
            for row, positions in zip(documents, batch["position_ids"].numpy(), strict=True):
                pairs += int((positions[row >= 0] + 1).sum())
            assert cell.held.pairs == pairs, "token i of a document attends to i + 1 tokens"
    assert grid.notes == ()


def test_without_the_data(packs: Run) -> None:
    grid = step_grid(history_of(packs), 0, Topology(ranks=2, micro_batch_size=3))
    assert all(cell.held is None for cell in grid.cells)
    assert sorted(row for cell in grid.cells for row in cell.rows) == list(range(12))
    assert grid.notes == ("without the data, nothing is known of the tokens",)


def test_uneven_steps_and_large_ones(packs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = step_grid(history_of(packs), 0, Topology(ranks=5, micro_batch_size=2), packs)
    assert sorted(row for cell in grid.cells for row in cell.rows) == list(range(12))
    monkeypatch.setattr(grids, "COUNTED_SAMPLES", 11)
    many = step_grid(history_of(packs), 0, Topology(ranks=1, micro_batch_size=4), packs)
    assert many.notes == ("more than 11 samples, which are not counted",)
    assert not many.held
    with pytest.raises(ConfigError, match="there"):
        step_grid(history_of(packs), -1, Topology(ranks=1, micro_batch_size=4), packs)


def test_windows_are_all_alike(tmp_path: Path) -> None:
    windows = WindowDataset(corpora.make(tmp_path / "a", 0, 80).store, seq_len=16)
    run = Run(windows, global_batch_size=8)
    grid = step_grid(history_of(run), 0, Topology(ranks=2, micro_batch_size=2), run)
    assert {(held.tokens, held.places, held.pairs) for held in grid.held} == {(16, 16, 136)}


def test_bucketing_hides_the_ranks() -> None:
    run = Run(runs_made.Tree(Leaf("web", 50)), global_batch_size=4, samples=40, bucketing=Bucketing(window_steps=2))
    vague = history_of(run)
    vague.chapters[0].trace._arranged = None
    grid = step_grid(vague, 1, Topology(ranks=2, micro_batch_size=1), run)
    assert len(grid.samples) == 8
    assert not grid.cells
    assert "bucketing" in grid.notes[0]


def test_files_that_are_no_states(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot"):
        read_state(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(StateError, match="state_dict"):
        read_state(tmp_path / "list.json")
