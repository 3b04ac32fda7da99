"""What is said of wrong arguments, other weights, ended loaders; and batches of packs under torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpora
import records_made
from headrace import Blend, ConfigError, Loader, Order, PackedSequenceDataset, Packing, Run, StateError, WindowDataset
from headrace.datasets import Concat, FilledDataset, Limit
from headrace.loader import collate_fn
from headrace.plan.recipe import RunRecipe
from headrace.tracing import history_of, save_run


@pytest.fixture
def windows(tmp_path: Path) -> WindowDataset:
    return WindowDataset(corpora.make(tmp_path / "plain", 1, 60).store, seq_len=16)


def test_the_wrong_thing_is_said_in_a_line(windows: WindowDataset) -> None:
    store: Any = windows.store
    cut = r"expected a dataset, or a mix of them: cut the store into samples, for example headrace.WindowDataset"
    with pytest.raises(ConfigError, match=rf"^data is .*; {cut}"):
        Run(store, global_batch_size=4)
    with pytest.raises(ConfigError, match=r"^data is 'stores/web'; .*headrace.open\(path\)"):
        Run("stores/web", global_batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"^data is .*; {cut}"):
        Limit(store, 3)
    with pytest.raises(ConfigError, match=rf"^source 'a' is .*; {cut}"):
        Blend({"a": store}, weights={"a": 1})
    run: Any = Run(windows, global_batch_size=4)
    with pytest.raises(
        ConfigError, match=r"^data is <Run: .*; expected a dataset.*: this Run is made of one; pass its data$"
    ):
        Run(run, global_batch_size=4)
    some: Any = [windows, windows]
    with pytest.raises(ConfigError, match=r"^data is \[.*mix several datasets by name, for example headrace.Blend"):
        Run(some, global_batch_size=4)
    with pytest.raises(ConfigError, match=rf"^dataset is .*; {cut}"):
        FilledDataset(store, multiple_of=4)
    with pytest.raises(ConfigError, match="expected a Run or a FramedRun"):
        save_run(store, "run.json")
    with pytest.raises(ConfigError, match="expected a Run, and for a FramedRun use framed_history"):
        history_of(store)
    with pytest.raises(ConfigError, match="has weight or repeat '1'; it must be positive"):
        Blend({"a": windows}, weights={"a": "1"})  # type: ignore[dict-item]
    for make in (lambda: Blend(some), lambda: Blend(some, weights=[1, 2]), lambda: Concat(some)):
        with pytest.raises(ConfigError, match=r"the sources of a mix are .*; expected a dict of names and datasets"):
            make()  # type: ignore[no-untyped-call]
    with pytest.raises(
        ConfigError, match=r"weights or repeats are .*; expected a number for each name, such as {'a': 0.5}"
    ):
        Blend({"a": windows}, weights=[1])  # type: ignore[arg-type]


def blended(windows: WindowDataset, share: float) -> Run:
    return Run(Blend({"web": windows, "code": windows}, weights={"web": share, "code": 1 - share}), global_batch_size=4)


def test_differences_are_of_the_weights_that_were_typed(windows: WindowDataset) -> None:
    saved = blended(windows, 0.5)
    state = Loader(saved, micro_batch_size=4, position=8).state_dict()
    now = Loader(blended(windows, 0.3), micro_batch_size=4)
    with pytest.raises(StateError) as told:
        now.load_state_dict(state, recipe=saved.recipe)
    assert "\n  blend: web 50 % -> 30 %\n" in str(told.value)
    assert str(told.value).endswith("; to change the mix from here on: run.edit(2, ...)")
    assert "1073741824" not in str(told.value)
    assert saved.recipe.differences(saved.recipe) == []
    with pytest.raises(StateError, match=r"blend differ \(blend: sources, their weights .*pass the recipe saved"):
        now.load_state_dict(state)
    # One part in 2^31 is a difference, too.
    near = blended(windows, 0.5 + 2**-31).recipe.differences(saved.recipe)
    assert near[0] == "blend: web 50 % -> 50.00000005 %"


def test_a_field_of_a_single_dataset_has_no_empty_name() -> None:
    one, other = (
        RunRecipe(format={}, dataset={"": {"on_error": value}}, blend={}, order={}, batch={})
        for value in ("skip", "raise")
    )
    assert one.differences(other) == ['dataset.on_error: "skip" here, "raise" in the saved recipe']


def test_an_ended_loader_does_not_give_empty_epochs(windows: WindowDataset) -> None:
    run = Run(windows, global_batch_size=4, epochs=1)
    loader = Loader(run, micro_batch_size=4)
    first = [batch["input_ids"] for batch in loader]
    with pytest.raises(
        StateError, match=r"reached the end of its run.*epochs=.*restart=True.*start_at\(0, allow_repeats=True\)"
    ):
        iter(loader)
    end = loader.state_dict()
    loader.start_at(0, allow_repeats=True)
    assert all(torch.equal(one, batch["input_ids"]) for one, batch in zip(first, loader, strict=True))
    resumed = Loader(run, micro_batch_size=4)
    resumed.load_state_dict(end)
    assert list(resumed) == [], "a run that was over is over"
    longer = Loader(Run(windows, global_batch_size=4, epochs=2), micro_batch_size=4)
    longer.load_state_dict(end)
    assert sum(len(batch["input_ids"]) for batch in longer) == len(windows)
    again = Loader(run, micro_batch_size=4, restart=True)
    assert len(list(again)) == len(list(again)) == len(first)


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
