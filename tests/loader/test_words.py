"""What is said of wrong arguments, other weights and jumps; loaders in one call, and what trainers look for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

import corpora
import headrace
import records_made
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    StateError,
    WindowDataset,
    loader_for,
)
from headrace.datasets import Concat, FilledDataset, Limit
from headrace.loader import Ranks, Reading, collate_fn
from headrace.loader.loader import fed_between
from headrace.plan.recipe import RunRecipe
from headrace.tracing import history_of, save_run


@pytest.fixture
def paths(corpus: list[corpora.Corpus]) -> list[Path]:
    """Paths of stores, by the names that they are opened by."""
    return [Path(one.store.path) for one in corpus[:2]]


@pytest.fixture
def windows(paths: list[Path]) -> WindowDataset:
    return WindowDataset(headrace.open(paths[0]), seq_len=16)


def test_the_wrong_thing_is_said_in_a_line(windows: WindowDataset) -> None:
    store: Any = windows.store
    run: Any = Run(windows, global_batch_size=4)
    some: Any = [windows, windows]
    for act, named in [
        (lambda: Run(store, global_batch_size=4), r"headrace\.WindowDataset"),
        (lambda: Run("stores/web", global_batch_size=4), r"'stores/web'.*headrace\.open"),
        (lambda: Run(run, global_batch_size=4), "data"),
        (lambda: Run(some, global_batch_size=4), r"headrace\.Blend"),
        (lambda: Limit(store, 3), r"headrace\.WindowDataset"),
        (lambda: FilledDataset(store, multiple_of=4), r"headrace\.WindowDataset"),
        (lambda: Blend({"a": store}, weights={"a": 1}), r"'a'.*headrace\.WindowDataset"),
        (lambda: Blend({"a": windows}, weights={"a": "1"}), "'1'"),
        (lambda: Blend({"a": windows}, weights=[1]), "weights"),
        (lambda: Blend(some), "datasets"),
        (lambda: Blend(some, weights=[1, 2]), "datasets"),
        (lambda: Concat(some), "datasets"),
        (lambda: save_run(store, "run.json"), "FramedRun"),
        (lambda: history_of(store), "FramedRun.*framed_history"),
    ]:
        with pytest.raises(ConfigError, match=named):
            act()  # type: ignore[no-untyped-call]


def test_differences_are_of_the_weights_that_were_typed(windows: WindowDataset) -> None:
    def blended(share: float) -> Run:
        data = {"web": windows, "code": windows}
        return Run(Blend(data, weights={"web": share, "code": 1 - share}), global_batch_size=4)

    saved = blended(0.5)
    state = Loader(saved, micro_batch_size=4, position=8).state_dict()
    now = Loader(blended(0.3), micro_batch_size=4)
    with pytest.raises(StateError) as told:
        now.load_state_dict(state, recipe=saved.recipe)
    assert "\n  blend: web 50 % -> 30 %\n" in str(told.value)
    assert str(told.value).endswith("; to change the mix from here on: run.edit(2, ...)")
    assert "1073741824" not in str(told.value)
    assert saved.recipe.differences(saved.recipe) == []
    with pytest.raises(StateError, match="weights"):
        now.load_state_dict(state)
    # One part in 2^31 is a difference, too.
    near = blended(0.5 + 2**-31).recipe.differences(saved.recipe)
    assert near[0] == "blend: web 50 % -> 50.00000005 %"


def test_a_field_of_a_single_dataset_has_no_empty_name() -> None:
    one, other = (
        RunRecipe(format={}, dataset={"": {"on_error": value}}, blend={}, order={}, batch={})
        for value in ("skip", "raise")
    )
    assert one.differences(other) == ['dataset.on_error: "skip" here, "raise" in the saved recipe']


def test_packs_under_torchs_loader(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", records_made.sft(3, 60))
    packed = PackedSequenceDataset(store, Packing(seq_len=64, strategy="best_fit_split"))
    run = Run(packed, global_batch_size=4, order=Order(kind="none"), epochs=1)
    theirs: Any = torch.utils.data.DataLoader(packed, batch_size=4, collate_fn=collate_fn(packed))  # type: ignore[arg-type]
    for ours, batch in zip(Loader(run, micro_batch_size=4), theirs, strict=True):
        assert set(ours) - set(batch) == {"sample_positions", "step_supervised_tokens"}
        for name, value in batch.items():
            assert np.array_equal(value, ours[name]), name
    windows = WindowDataset(store, seq_len=16)
    batch = next(iter(torch.utils.data.DataLoader(windows, batch_size=4, collate_fn=collate_fn(windows))))  # type: ignore[arg-type]
    assert batch["input_ids"].shape == batch["position_ids"].shape == (4, 16)
    assert batch["num_supervised_tokens"] == int((batch["labels"] != -100).sum())


def first(loader: Loader) -> list[list[int]]:
    return [batch["input_ids"].tolist() for batch in islice(loader, 3)]


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
    assert [batch["sample_positions"].tolist() for batch in islice(loader, 2)] == [[2, 3], [8, 9]]
    for bad, options, named in (
        (paths[0], {"batch_size": 7}, "3.*9"),
        ({"a": paths[0], "b": paths[1]}, {"weights": [1, 2, 3]}, "3.*weights.*2"),
        ([paths[0], paths[0]], {}, "part"),
        ([], {}, "empty"),
    ):
        with pytest.raises(ConfigError, match=named):
            loader_for(bad, **{"seq_len": 8, "batch_size": 6, **options})


def test_what_trainers_look_for(corpus: list[corpora.Corpus]) -> None:
    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=4, samples=10)
    loader = Loader(run, micro_batch_size=2)
    assert (len(loader), loader.batch_size, len(loader.dataset)) == (5, 2, 10)
    for batch, step in zip(DataLoader(loader.dataset, batch_size=4), range(3), strict=True):
        expected = run.step(step)
        assert all((batch[name].numpy() == expected[name]).all() for name in batch)
    for position in (10, -1):
        with pytest.raises(IndexError, match="position"):
            loader.dataset[position]
    endless = Loader(Run(run.data, global_batch_size=4), micro_batch_size=2)
    for sized in (endless, endless.dataset):
        with pytest.raises(TypeError, match="endless"):
            len(sized)
    assert endless.dataset[10**9]["input_ids"].shape == (8,)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, headrace.WindowDataset]:
    folder = tmp_path_factory.mktemp("jumps")
    found = {}
    for name, count in (("web", 33), ("code", 16)):
        corpora.write(folder / name / "text_document", [np.arange(count * 4 + 1)])
        found[name] = headrace.WindowDataset(headrace.open(folder / name), seq_len=4)
    return found


def loader_of(run: Run, **options: Any) -> Loader:
    return Loader(run, micro_batch_size=2, ranks=Ranks(0, 1), reading=Reading(num_threads=0), **options)


def test_what_would_come_twice_or_never(data: dict[str, headrace.WindowDataset]) -> None:
    run = Run(Blend(data, weights={"web": 3, "code": 1}), global_batch_size=8)
    loader = loader_of(run)
    loader.start_at(16)
    loader.start_at(8)
    assert len(list(islice(loader, 12))) == 12
    assert loader.position == 32
    with pytest.raises(ConfigError, match=r"32.*24.*18"):
        loader.start_at(8)
    with pytest.raises(ConfigError, match=r"8.*samples.*6"):
        loader.start_at(40)
    assert loader.position == 32
    loader.start_at(32)
    loader.start_at(40, allow_repeats=True)
    assert loader.step == 5
    resumed = loader_of(run)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="twice"):
        resumed.start_at(0)
    resumed.start_at(0, allow_repeats=True)
    # One source is not named.
    single = Run(data["web"], global_batch_size=8)
    for one in (single, single.edit(1, global_batch_size=4)):
        loader = loader_of(one)
        assert len(list(islice(loader, 4))) == 4
        with pytest.raises(ConfigError, match=r"8.*samples"):
            loader.start_at(0)


def test_a_position_within_a_step(data: dict[str, headrace.WindowDataset]) -> None:
    run = Run(data["web"], global_batch_size=[(0, 8), (3, 10)], samples=57)
    for begin in (lambda: loader_of(run, position=29), lambda: loader_of(run).start_at(29)):
        with pytest.raises(ConfigError, match=r"position.*29.*3"):
            begin()
    loader = loader_of(run)
    loader.start_at(57)
    assert list(loader) == []
    loader.start_at(29, allow_repeats=True)
    assert next(iter(loader))["sample_positions"].tolist() == [29, 30]


@settings(max_examples=cases(15, 300), deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 90), st.integers(0, 90))
def test_counts(data: dict[str, headrace.WindowDataset], first: int, more: int, one: int, other: int) -> None:
    run = Run(Blend(data, weights={"web": 3, "code": 1}), global_batch_size=4)
    run = run.edit(first, weights={"web": 1, "code": 2}).skip(range(first + more, first + more + 2), then="defer")
    begin, end = sorted((one, other))
    sources = run.plan.lookup(np.arange(begin, end)).sources
    paths = [run.plan.leaves[source].path for source in sources.tolist()]
    found = fed_between(run, begin, end)
    assert {path: number for path, number in found.items() if number} == {path: paths.count(path) for path in {*paths}}
