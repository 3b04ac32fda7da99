"""From paths to a loader in one call, and what trainers look for on a loader."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import corpora
import headrace
from headrace import Blend, ConfigError, Loader, Order, Run, WindowDataset, loader_for


@pytest.fixture
def paths(corpus: list[corpora.Corpus]) -> list[Path]:
    """Paths of stores, by the names that they are opened by."""
    return [Path(one.store.path) for one in corpus[:2]]


def first(loader: Loader) -> list[list[int]]:
    return [batch["input_ids"].tolist() for batch in itertools.islice(loader, 3)]


def test_it_is_what_is_written_out(paths: list[Path]) -> None:
    run = Run(WindowDataset(headrace.open(paths[0]), seq_len=8), global_batch_size=6, order=Order(seed=5))
    made = loader_for(paths[0], seq_len=8, batch_size=6, seed=5)
    assert first(made) == first(Loader(run, micro_batch_size=6))
    made = loader_for(str(paths[0]), seq_len=8, batch_size=6, seed=5)
    made.load_state_dict(Loader(run, micro_batch_size=1, position=12).state_dict())
    assert made.step == 2


def test_several_stores(paths: list[Path]) -> None:
    named = dict(zip(("a", "b"), paths, strict=True))
    datasets = {name: WindowDataset(headrace.open(path), seq_len=8) for name, path in named.items()}
    run = Run(Blend(datasets, weights={"a": 3, "b": 1}), global_batch_size=6)
    expected = first(Loader(run, micro_batch_size=6))
    for weights in ([3, 1], {"a": 3, "b": 1}):
        assert first(loader_for(named, seq_len=8, batch_size=6, weights=weights)) == expected
    evenly = loader_for(named, seq_len=8, batch_size=6).run
    assert isinstance(evenly, Run)
    total = sum(map(len, datasets.values()))
    counts = np.bincount(evenly.lookup(np.arange(total)).sources)
    assert np.abs(counts - [len(dataset) for dataset in datasets.values()]).max() <= 2


def test_each_rank_gets_its_share_of_a_batch(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = loader_for(paths[0], seq_len=8, batch_size=6)
    assert [batch["sample_positions"].tolist() for batch in itertools.islice(loader, 2)] == [[2, 3], [8, 9]]
    with pytest.raises(ConfigError, match=r"3 ranks times micro-batches of 3 = 9 do not divide"):
        loader_for(paths[0], seq_len=8, batch_size=7)


def test_what_is_refused(paths: list[Path]) -> None:
    with pytest.raises(ConfigError, match="3 weights for 2 paths"):
        loader_for({"a": paths[0], "b": paths[1]}, seq_len=8, batch_size=6, weights=[1, 2, 3])
    with pytest.raises(ConfigError, match="have the same last part"):
        loader_for([paths[0], paths[0]], seq_len=8, batch_size=6)
    with pytest.raises(ConfigError, match="paths is empty"):
        loader_for([], seq_len=8, batch_size=6)


def test_what_trainers_look_for(corpus: list[corpora.Corpus]) -> None:
    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=4, samples=10)
    loader = Loader(run, micro_batch_size=2)
    assert (len(loader), loader.batch_size, len(loader.dataset)) == (5, 2, 10)
    for batch, step in zip(DataLoader(loader.dataset, batch_size=4), range(3), strict=True):
        expected = run.step(step)
        assert all((batch[name].numpy() == expected[name]).all() for name in batch)
    for position in (10, -1):
        with pytest.raises(IndexError, match="no position"):
            loader.dataset[position]
    endless = Loader(Run(run.data, global_batch_size=4), micro_batch_size=2)
    for sized in (endless, endless.dataset):
        with pytest.raises(TypeError, match="this run is endless"):
            len(sized)
    assert endless.dataset[10**9]["input_ids"].shape == (8,)
