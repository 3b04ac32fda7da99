"""Random numbers in the function of a `MapDataset`: by sample and epoch where they are asked for, else an error."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpora
from headrace import Blend, ConfigError, Loader, MapDataset, Order, PackedSequenceDataset, Packing, Run, WindowDataset
from headrace.datasets import Dataset
from headrace.loader import Ranks
from headrace.tracing import Sources, read_run_file, save_run, trace_step

Sample = dict[str, Any]


def noisy(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "labels": rng.integers(0, 1 << 40, sample["labels"].shape)}


def twice(sample: Sample, rng: np.random.Generator) -> Sample:
    return {**sample, "input_ids": rng.integers(0, 1 << 40, sample["labels"].shape)}


def by_random(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + random.randrange(1 << 30)}


def by_numpy(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + np.random.randint(1 << 30)}  # noqa: NPY002 - what is found


def by_torch(sample: Sample) -> Sample:
    return {**sample, "labels": sample["labels"] + int(torch.randint(1 << 30, ()))}


def idle(sample: Sample) -> Sample:
    random.random()  # moves the generator, as another thread may, and changes nothing
    return sample


@pytest.fixture
def windows(tmp_path: Path) -> WindowDataset:
    return WindowDataset(corpora.make(tmp_path / "plain", 1, 60).store, seq_len=16, phase=True)


def labels(loader: Loader) -> dict[int, list[int]]:
    return {
        position: row
        for batch in loader
        for position, row in zip(batch["sample_positions"].tolist(), batch["labels"].tolist(), strict=True)
    }


def test_draws_are_of_the_sample_and_the_epoch(windows: WindowDataset) -> None:
    dataset = MapDataset(windows, noisy, seeded=True)
    assert {**dataset.recipe, "seeded": True} == dataset.recipe
    assert "seeded" not in MapDataset(windows, dict).recipe, "states saved before still load"
    mix = Blend({"a": dataset, "b": MapDataset(windows, noisy, seeded=True)}, repeats={"a": 1, "b": 1})
    run = Run(mix, global_batch_size=8, order=Order(seed=3), epochs=2)
    every = labels(Loader(run, micro_batch_size=4))
    assert len({tuple(row) for row in every.values()}) == len(every), "each path, epoch and sample draws others"
    assert every == {
        k: v for rank in range(3) for k, v in labels(Loader(run, micro_batch_size=1, ranks=Ranks(rank, 3))).items()
    }
    resumed = Loader(run, micro_batch_size=2, position=24)
    assert labels(resumed) == {k: v for k, v in every.items() if k >= 24}
    item = dataset[5]["labels"].tolist()
    assert item == dataset[5]["labels"].tolist()
    ordered = Run(dataset, global_batch_size=4, order=Order(kind="none"), epochs=1)
    assert labels(Loader(ordered, micro_batch_size=4))[5] == item, "without epochs a sample always draws the same"


def test_one_over_the_other_draws_others(windows: WindowDataset) -> None:
    both = MapDataset(MapDataset(windows, noisy, seeded=True), twice, seeded=True)
    assert both[3]["labels"].tolist() != both[3]["input_ids"].tolist()
    keys = np.array([7 << 40], dtype=np.uint64)
    address = both.locate(np.array([3]), keys)
    assert both.read(address)["labels"].tolist() != [both[3]["labels"].tolist()]


def test_a_trace_finds_what_was_fed(tmp_path: Path) -> None:
    """What varies from epoch to epoch within: the phase of windows, the documents of packs."""
    store = corpora.make(tmp_path / "plain", 1, 80).store
    packs = PackedSequenceDataset(store, Packing(seq_len=64, strategy="best_fit", over_long="split", repack=True))
    for inner in (WindowDataset(store, seq_len=16, stride=9, phase=True, document_ids=True), packs):
        dataset: Dataset = MapDataset(inner, lambda sample, rng: sample, seeded=True)
        run = Run(dataset, global_batch_size=8, order=Order(seed=3), samples=3 * len(dataset))
        place = tmp_path / f"{type(inner).__name__}.json"
        save_run(run, place)
        history = Sources(read_run_file(place)).history()
        for step in (0, run.num_steps - 1):  # type: ignore[operator]
            fed = [sorted(set(row.tolist()) - {-1}) for row in run.step(step)["document_ids"]]
            for traced in (trace_step(run, step), history.step(step)):
                assert [sorted({origin.document for origin in one.origins}) for one in traced] == fed


@pytest.mark.parametrize(
    ("function", "generator"), [(by_random, "random"), (by_numpy, "numpy.random"), (by_torch, "torch")]
)
def test_draws_that_nobody_seeds_are_an_error(windows: WindowDataset, function: Any, generator: str) -> None:
    run = Run(MapDataset(windows, function), global_batch_size=4)
    with pytest.raises(ConfigError, match=f"{function.__name__} draws random numbers.*{generator}.*seeded=True"):
        next(iter(Loader(run, micro_batch_size=4)))


def test_a_generator_that_others_move_is_none_of_its_business(windows: WindowDataset) -> None:
    next(iter(Loader(Run(MapDataset(windows, idle), global_batch_size=4), micro_batch_size=4)))
