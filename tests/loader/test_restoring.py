"""`restore_sample` of loaders: any sample or batch that was given, again, from its keys or its positions."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import framed_encoders
import measured_made
import media_texts
from columned import get_loader
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Run
from headrace.compat.energon import WorkerConfig, get_train_dataset
from headrace.datasets import EncodedDataset, FramedRun, MeasuredDataset, measure
from headrace.encoders import DefaultTaskEncoder, stateless
from headrace.loader import Reading
from headrace.plan.measured import Grouping
from headrace.samples.media import TextSample

ADDED = ("sample_positions", "unit_numbers")


class Noisy(DefaultTaskEncoder[Any, Any, Any, Any]):
    @stateless(restore_seeds=("numpy",))
    def encode_sample(self, sample: TextSample) -> dict[str, Any]:
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__, "noise": np.random.rand(2)}  # noqa: NPY002

    @stateless(restore_seeds=("torch",))
    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "of_batch": torch.rand(3)}


class Remembering(Noisy):
    def encode_sample(self, sample: TextSample) -> dict[str, Any]:
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    folder = tmp_path_factory.mktemp("restoring")
    return MediaDataset.open(media_texts.shards(folder / "one", (20, 11)), **media_texts.TEXT)


def assert_same(found: dict[str, Any], batch: dict[str, Any]) -> None:
    assert set(found) == {name for name in batch if name not in ADDED}
    for name, value in found.items():
        assert type(value) is type(batch[name])
        if isinstance(value, torch.Tensor):
            assert value.dtype == batch[name].dtype
            assert torch.equal(value, batch[name])
        else:
            assert repr(value) == repr(batch[name])


def assert_restored(loader: Loader, count: int = 8) -> None:
    for batch in islice(loader, count):
        assert_same(loader.restore_sample(batch["__restore_key__"]), batch)
        for row, key in enumerate(batch["__restore_key__"]):
            sample = loader.restore_sample(key)
            found = sample.__restore_key__ if isinstance(sample, TextSample) else sample["__restore_key__"]
            assert found == batch["__restore_key__"][row] == key
        if "sample_positions" in batch:
            assert_same(loader.restore_sample(batch["sample_positions"]), batch)
            assert_same(loader.restore_sample(batch["sample_positions"].tolist()), batch)


def loader_of(run: Run, micro_batch_size: int) -> Loader:
    return Loader(run, micro_batch_size=micro_batch_size, reading=Reading(num_threads=0))


def run_of(data: Any) -> Run:
    return Run(data, global_batch_size=4, order=Order(kind="full", seed=1))


def test_samples_as_they_are_and_encoded(media: MediaDataset) -> None:
    """Some epochs, of which each draws on its own."""
    assert_restored(loader_of(run_of(media), 3), 20)
    assert_restored(loader_of(run_of(EncodedDataset(media, Noisy(), seed=4)), 3), 20)


@pytest.mark.parametrize("kind", ["singles", "sized", "packs", "torn"])
def test_units(tmp_path: Path, kind: str) -> None:
    encoder, form = framed_encoders.KINDS[kind]
    size = form.size if isinstance(form, Grouping) else None
    packing: Any = {"packing_buffer_size": 6} if kind in ("packs", "torn") else {}
    place = framed_encoders.numbers(tmp_path / "framed", 40)
    dataset = get_train_dataset(
        place, worker_config=WorkerConfig(0, 1, 0), batch_size=size or 2, task_encoder=encoder(), **packing
    )
    loader = get_loader(dataset)
    assert isinstance(dataset.framed, FramedRun)
    for batch in islice(loader, 6):
        assert_same(loader.restore_sample(batch["__restore_key__"]), batch)
        key = batch["__restore_key__"][0]
        assert repr(loader.restore_sample(key)["n"]) == repr(batch["n"][0])
    with pytest.raises(ConfigError, match="restore"):
        loader.restore_sample(3)


@pytest.mark.parametrize(("encoder", "batch_size"), [(measured_made.Drawn, 2), (measured_made.Grouped, None)])
def test_measured(tmp_path: Path, encoder: type[measured_made.Drawing], batch_size: int | None) -> None:
    hooks: Any = encoder(failing=0.0)
    media = measured_made.opened(measured_made.numbers(tmp_path / "numbers", 60), hooks)
    data = MeasuredDataset(media, hooks, measure(media, hooks, folder=tmp_path / "facts"))
    assert_restored(loader_of(run_of(data), batch_size or 1))
    faced = get_loader(get_train_dataset(data, worker_config=WorkerConfig(0, 1, 0), batch_size=batch_size))
    batch = next(iter(faced))
    assert_same(faced.restore_sample(batch["__restore_key__"]), batch)


def test_in_a_mix_a_position_tells_what_a_key_does_not(media: MediaDataset, tmp_path: Path) -> None:
    other = MediaDataset.open(media_texts.shards(tmp_path / "other", (50,)), **media_texts.TEXT)
    one, two = EncodedDataset(media, Noisy()), EncodedDataset(other, Noisy())
    for pair in ((media, other), (one, two)):
        loader = loader_of(run_of(Blend(dict(zip("ab", pair, strict=True)), weights={"a": 1, "b": 1})), 4)
        for batch in islice(loader, 4):
            assert_same(loader.restore_sample(batch["sample_positions"]), batch)
            sample = loader.restore_sample(int(batch["sample_positions"][2]))
            key = sample["__key__"] if isinstance(sample, dict) else sample.__key__
            assert key == batch["__key__"][2]
        with pytest.raises(ConfigError, match=r"'a'.*'b'"):
            loader.restore_sample((["Webdataset", "Encoded"][pair[0] is one], 7))
    twice = loader_of(run_of(Blend({"a": media, "b": media}, weights={"a": 1, "b": 1})), 4)
    assert_restored(twice, 2)
    assert twice.restore_sample(("Webdataset", 30)).text == "30"


def test_what_cannot_be_made_again(media: MediaDataset) -> None:
    loader = loader_of(Run(media, global_batch_size=4, samples=9), 4)
    for key, named in [
        (("Webdataset", 31), "Webdataset.*31"),
        (("Encoded", 1), "Encoded.*1"),
        ((), r"\(\)"),
        ("Webdataset", "Webdataset.*tuple.*integer"),
        ([1, ("Webdataset", 1)], "Webdataset"),
        ([3, 9], "position.*9"),
        (-1, "position.*-1"),
    ]:
        with pytest.raises(ConfigError, match=named):
            loader.restore_sample(key)
    forgetful = loader_of(run_of(EncodedDataset(media, Remembering())), 2)
    batch = next(iter(forgetful))
    with pytest.raises(ConfigError, match="encode_sample"):
        forgetful.restore_sample(batch["__restore_key__"])
    own = get_loader(
        get_train_dataset(
            media, worker_config=WorkerConfig(0, 1, 0), batch_size=2, order="energon", task_encoder=Noisy()
        )
    )
    batch = next(iter(own))
    assert_same(own.restore_sample(batch["__restore_key__"]), batch)
    with pytest.raises(ConfigError, match="Energon's"):
        own.restore_sample(batch["sample_positions"])
