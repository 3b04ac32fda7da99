"""A step as micro-batches: each sample is in the cell that the loader's ranks take it in, and counts add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corpora
import runs_made
from headrace import Loader, Order, PackedSequenceDataset, Packing, Run, WindowDataset
from headrace.errors import ConfigError
from headrace.loader import Ranks
from headrace.plan import Bucketing, Leaf
from headrace.tracing import Topology, grids, history_of, step_grid


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
