"""Steps without a supervised token are found before the run, or ahead of their turn; never skipped."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import records_made
from headrace import ConfigError, Loader, Order, Packing, PromptDataset, Run, SFTDataset, WindowDataset
from headrace.datasets import Blend, Collation, PackedSequenceDataset, accounts, check_supervised, count_step
from headrace.integrations.numpy import NumpyLoader
from headrace.stores import Store

IN_ORDER = Order(kind="none")


def records(num_supervised: list[int]) -> list[records_made.Record]:
    """Ten tokens each, so many of them supervised."""
    return [
        {"tokens": list(range(1, 11)), "loss_mask": [0] * (10 - count) + [1] * count, "num_supervised": [count]}
        for count in num_supervised
    ]


def dataset(folder: Path, num_supervised: list[int], **collation: Any) -> SFTDataset:
    return SFTDataset(records_made.store(folder, records(num_supervised)), Collation(**collation))


def without_mask(folder: Path, lengths: list[int]) -> Store:
    """A document of a single token predicts nothing."""
    return records_made.store(folder, [{"tokens": [7] * length} for length in lengths])


def packed(store: Store, strategy: Any = "greedy", seq_len: int = 4) -> PackedSequenceDataset:
    return PackedSequenceDataset(store, Packing(seq_len=seq_len, strategy=strategy))


SINGLE_TOKENS = [1] * 8 + [2, 1, 1] + [1] * 20 + [4]
UNSUPERVISED: dict[str, tuple[Callable[[Path], Any], int, int, int]] = {
    "masks": (lambda folder: dataset(folder, [3, 1, 0, 0, 2, 1]), 2, 1, 3),
    "cut off": (lambda folder: dataset(folder, [9, 8, 2, 9], max_length=8, over_long="truncate_right"), 1, 2, 4),
    "records without a mask": (
        lambda folder: SFTDataset(without_mask(folder, [3, 1, 1, 2]), loss_mask_key=None),
        1,
        1,
        2,
    ),
    "packs": (lambda folder: packed(records_made.store(folder, records([3, 0, 0, 2])), seq_len=10), 1, 1, 2),
    "packs without a mask": (lambda folder: packed(without_mask(folder, SINGLE_TOKENS)), 2, 0, 3),
    "wrapped": (lambda folder: packed(without_mask(folder, SINGLE_TOKENS), "wrapped"), 2, 0, 9),
}
"""A dataset, the samples of a step, the first step without a label, and so many samples that each step has one."""


@pytest.mark.parametrize("case", UNSUPERVISED)
def test_the_step_is_named_before_anything_is_delivered(tmp_path: Path, case: str) -> None:
    make, size, step, enough = UNSUPERVISED[case]
    data = make(tmp_path / "s")
    run = Run(data, global_batch_size=size, order=IN_ORDER, epochs=1)
    loaders = [Loader(run, micro_batch_size=1), NumpyLoader(run, micro_batch_size=1)]
    for train in (lambda: check_supervised(run), *(partial(next, iter(loader)) for loader in loaders)):
        with pytest.raises(ConfigError, match=rf"step.*{step}.*supervised"):
            train()
    assert loaders[0].position == 0
    # Samples without a label do no harm where the step has others.
    check_supervised(Run(data, global_batch_size=enough, order=IN_ORDER, samples=enough))


def test_steps_that_are_over_are_not_looked_at(tmp_path: Path) -> None:
    run = Run(dataset(tmp_path / "s", [3, 1, 0, 0, 2, 1]), global_batch_size=2, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match=r"step.*1"):
        check_supervised(run, 3)
    check_supervised(run, 4)  # behind it all is well
    check_supervised(run, 6)  # at the end there is nothing to look at


def test_each_sample_is_looked_at_once_where_all_are_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    well = dataset(tmp_path / "s", [1] * 7)
    looked = []
    count = SFTDataset.count
    monkeypatch.setattr(SFTDataset, "count", lambda self, some: looked.append(len(some)) or count(self, some))
    run = Run(well, global_batch_size=2)  # without an end
    check_supervised(run)
    check_supervised(run, 5)
    assert looked == [7]


def test_an_endless_run_is_looked_at_as_far_as_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "CHECKED_SAMPLES", 8)
    far = dataset(tmp_path / "s", [1] * 30 + [0] * 3 + [1])
    run = Run(far, global_batch_size=1, order=IN_ORDER)
    check_supervised(run)
    with pytest.raises(ConfigError, match=r"step.*30"):
        check_supervised(run, 25)
    monkeypatch.setattr("headrace.datasets.accounts.COUNT_POSITIONS", 10)
    steps = []

    def train() -> None:
        loader = Loader(run, micro_batch_size=1)
        for _ in itertools.islice(loader, 40):
            steps.append(loader.step - 1)

    with pytest.raises(ConfigError, match=r"step.*30"):
        train()
    assert steps == list(range(len(steps)))
    assert 10 <= len(steps) <= 30, "ahead of its turn, and never skipped"


def test_the_source_is_named_in_a_blend(tmp_path: Path) -> None:
    sources = {"good": dataset(tmp_path / "a", [1, 1]), "bad": dataset(tmp_path / "b", [0, 0])}
    run = Run(Blend(sources, repeats={"good": 1, "bad": 1}), global_batch_size=1)
    with pytest.raises(ConfigError, match="'bad'"):
        check_supervised(run)


def test_packs_that_cannot_be_without_labels_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * (2 + number % 9)} for number in range(50)])
    looked = []
    count = PackedSequenceDataset.count
    monkeypatch.setattr(PackedSequenceDataset, "count", lambda self, some: looked.append(some) or count(self, some))

    def checks(**packing: Any) -> bool:
        looked.clear()
        check_supervised(Run(PackedSequenceDataset(store, Packing(**packing)), global_batch_size=1))
        return bool(looked)

    assert not checks(seq_len=10)
    assert not checks(seq_len=10, repack=True)
    assert not checks(seq_len=4, over_long="truncate_left")
    assert checks(seq_len=4, strategy="best_fit_split"), "a piece of one token is left of 5"
    assert not checks(seq_len=1 << 8, strategy="best_fit_split")
    assert checks(seq_len=10, strategy="wrapped")


def test_windows_that_never_have_a_label_are_refused(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * 9}])
    assert len(WindowDataset(store, seq_len=1)) == 8
    with pytest.raises(ConfigError, match="labels='same'"):
        WindowDataset(store, seq_len=1, labels="same")


def test_nothing_is_counted_where_nothing_is_masked(tmp_path: Path) -> None:
    prompts = PromptDataset(records_made.store(tmp_path / "s", records_made.prompts(1, 4)))
    run = Run(prompts, global_batch_size=2, epochs=1)
    check_supervised(run)
    assert not run.traits.is_counted
    assert "step_supervised_tokens" not in next(iter(Loader(run, micro_batch_size=2)))
    with pytest.raises(ConfigError, match="PromptDataset"):
        count_step(run, 0)
