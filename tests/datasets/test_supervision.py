"""Steps without a supervised token are found before the run, or ahead of their turn; never skipped."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import records_made
from headrace import (
    Blend,
    ConfigError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    PromptDataset,
    Run,
    SFTDataset,
    WindowDataset,
)
from headrace.datasets import Collation, accounts, check_supervised, count_step
from headrace.integrations.numpy import NumpyLoader

IN_ORDER = Order(kind="none")


def records(num_supervised: list[int]) -> list[records_made.Record]:
    """Ten tokens each, so many of them supervised."""
    return [
        {"tokens": list(range(1, 11)), "loss_mask": [0] * (10 - count) + [1] * count, "num_supervised": [count]}
        for count in num_supervised
    ]


def dataset(folder: Path, num_supervised: list[int], **collation: Any) -> SFTDataset:
    return SFTDataset(records_made.store(folder, records(num_supervised)), Collation(**collation))


def test_the_step_is_named_before_anything_is_delivered(tmp_path: Path) -> None:
    run = Run(dataset(tmp_path / "s", [3, 1, 0, 0, 2, 1]), global_batch_size=2, order=IN_ORDER, epochs=1)
    loader = Loader(run, micro_batch_size=1)
    with pytest.raises(
        ConfigError, match=r"step 1 has no supervised token in any of its 2 samples \(the first: sample 2"
    ):
        next(iter(loader))
    assert loader.position == 0
    with pytest.raises(ConfigError, match="step 1"):
        check_supervised(run, 3)
    check_supervised(run, 4)  # behind it all is well
    check_supervised(run, 6)  # at the end there is nothing to look at
    # Samples without a label do no harm where the step has others.
    check_supervised(Run(run.data, global_batch_size=3, order=IN_ORDER, epochs=1))


def test_what_is_cut_off_counts(tmp_path: Path) -> None:
    """Every record has labels; of the third nothing is left."""
    short = dataset(tmp_path / "s", [9, 8, 2, 9], max_length=8, over_long="truncate_right")
    run = Run(short, global_batch_size=1, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match="step 2 has no supervised token"):
        check_supervised(run)


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
    with pytest.raises(ConfigError, match="step 30"):
        check_supervised(run, 25)
    monkeypatch.setattr("headrace.datasets.accounts.COUNT_POSITIONS", 10)
    steps = []

    def train() -> None:
        loader = Loader(run, micro_batch_size=1)
        for _ in itertools.islice(loader, 40):
            steps.append(loader.step - 1)

    with pytest.raises(ConfigError, match="step 30"):
        train()
    assert steps == list(range(len(steps)))
    assert 10 <= len(steps) <= 30, "ahead of its turn, and never skipped"


def test_the_source_is_named_in_a_blend(tmp_path: Path) -> None:
    sources = {"good": dataset(tmp_path / "a", [1, 1]), "bad": dataset(tmp_path / "b", [0, 0])}
    run = Run(Blend(sources, repeats={"good": 1, "bad": 1}), global_batch_size=1)
    with pytest.raises(ConfigError, match=r"step \d has no supervised token .*source 'bad', sample \d"):
        check_supervised(run)


def test_packs_with_a_mask_too(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", records([3, 0, 0, 2]))
    packing = Packing(seq_len=10, strategy="greedy")
    run = Run(
        PackedSequenceDataset(store, packing, loss_mask_key="loss_mask"), global_batch_size=2, order=IN_ORDER, epochs=1
    )
    check_supervised(run)
    one = Run(run.data, global_batch_size=1, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match="step 1 has no supervised token"):
        next(iter(Loader(one, micro_batch_size=1)))


def single_tokens(folder: Path, **packing: Any) -> PackedSequenceDataset:
    """Packs of 4 tokens; documents of a single token predict nothing."""
    lengths = [1] * 8 + [2, 1, 1] + [1] * 20 + [4]
    store = records_made.store(folder, [{"tokens": [7] * length} for length in lengths])
    return PackedSequenceDataset(store, Packing(seq_len=4, **{"strategy": "greedy", **packing}))


@pytest.mark.parametrize("face", [Loader, NumpyLoader])
def test_packs_without_a_mask_too(tmp_path: Path, face: Any) -> None:
    run = Run(single_tokens(tmp_path / "s"), global_batch_size=2, order=IN_ORDER, epochs=1)
    for train in (lambda: check_supervised(run), lambda: next(iter(face(run, micro_batch_size=2)))):
        with pytest.raises(ConfigError, match=r"step 0 has no supervised token in any of its 2 samples"):
            train()
    check_supervised(Run(run.data, global_batch_size=3, order=IN_ORDER, samples=3))
    with pytest.raises(ConfigError, match="step 0 has no"):
        check_supervised(Run(single_tokens(tmp_path / "w", strategy="wrapped"), global_batch_size=2, order=IN_ORDER))


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


def test_records_without_a_mask_too(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * length} for length in (3, 1, 1, 2)])
    run = Run(SFTDataset(store, loss_mask_key=None), global_batch_size=2, order=IN_ORDER, epochs=1)
    check_supervised(run)
    one = Run(run.data, global_batch_size=1, order=IN_ORDER, epochs=1)
    with pytest.raises(ConfigError, match="step 1 has no supervised token"):
        next(iter(Loader(one, micro_batch_size=1)))


def test_windows_that_never_have_a_label_are_refused(tmp_path: Path) -> None:
    store = records_made.store(tmp_path / "s", [{"tokens": [7] * 9}])
    assert len(WindowDataset(store, seq_len=1)) == 8
    with pytest.raises(ConfigError, match="with labels='same' the first token of a window has no label"):
        WindowDataset(store, seq_len=1, labels="same")


def test_nothing_is_counted_where_nothing_is_masked(tmp_path: Path) -> None:
    prompts = PromptDataset(records_made.store(tmp_path / "s", records_made.prompts(1, 4)))
    run = Run(prompts, global_batch_size=2, epochs=1)
    check_supervised(run)
    assert not run.traits.is_counted
    assert "step_supervised_tokens" not in next(iter(Loader(run, micro_batch_size=2)))
    with pytest.raises(ConfigError, match="PromptDataset: only packs, records and masked windows are counted"):
        count_step(run, 0)
