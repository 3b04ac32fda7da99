"""Datasets by the names of Energon's classes, and their iterable faces."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import media_texts
from headrace import ConfigError, Loader, MediaDataset, StoreError
from headrace.compat import energon
from headrace.samples.media import CaptioningSample, OCRSample, SampleDecoder, TextSample, VQASample

Make = Callable[..., Path]
CHW = SampleDecoder(image_decode="chwrgb8")
MAP = {"image": "jpg", "caption": "txt,json[text]"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("named") / "texts", (20, 11, 9), val=(7,))


def training(root: Path, **options: Any) -> energon.DefaultGenericWebdataset:
    options |= {"decoder": SampleDecoder(), "max_samples_per_sequence": 4, "parallel_shard_iters": 3}
    return energon.DefaultGenericWebdataset(root, TextSample, field_map={"text": "txt"}, training=True, **options)


def test_samples_of_each_type(captions: Path, texts: Path) -> None:
    named = energon.CaptioningWebdataset(captions, field_map=MAP, training=False, decoder=CHW, subflavors={"a": 1})
    found = list(named.samples())
    wanted = MediaDataset.open(captions, decoder=CHW)
    assert [one.caption for one in found] == [one.caption for one in wanted.samples(np.arange(20))]
    assert np.array_equal(found[3].image, wanted[3].image)
    assert isinstance(found[0], CaptioningSample)
    assert found[0].__subflavors__ == {"a": 1}, "the dataset.yaml is not looked at"
    assert len(named) == len(found) == 20
    image = next(energon.ImageWebdataset(captions, field_map={"image": "jpg"}, training=False, decoder=CHW).samples())
    assert np.array_equal(image.image, wanted[0].image)
    of = {"image": "txt", "context": "txt", "answers": "txt"}
    assert isinstance(next(energon.VQAWebdataset(texts, field_map=of, training=False).samples()), VQASample)
    ocr = next(energon.OCRWebdataset(texts, field_map={"image": "txt", "text": "txt"}, training=False).samples())
    assert isinstance(ocr, OCRSample)
    crude = list(energon.CrudeWebdataset(texts, training=False, split_part="val", part_filter=["txt"]).samples())
    assert [one["txt"] for one in crude] == [str(number) for number in range(40, 47)]


def test_decoders(texts: Path) -> None:
    for kind, text in [(energon.DefaultGenericWebdataset, b"0"), (energon.DefaultDecoderWebdataset, "0")]:
        named = kind(texts, TextSample, field_map={"text": "txt"}, training=False)
        assert next(named.samples()).text == text


def test_training_is_the_order_of_the_run(texts: Path) -> None:
    named = training(texts, seed=5)
    stream = named.samples()
    found = [next(stream).text for _ in range(100)]
    loader = Loader(named.run(8), micro_batch_size=8)
    assert found == [text for batch, _ in zip(loader, range(13), strict=False) for text in batch["text"]][:100]
    assert sorted(found[:40], key=int) == [str(number) for number in range(40)]
    other = training(texts, seed=6).samples()
    assert found != [next(other).text for _ in range(100)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_comes_in_order_for_any_workers(texts: Path, num_workers: int) -> None:
    named = training(texts, subset=["10%", "90%"])
    stream = named.samples()
    expected = [next(stream).text for _ in range(90)]
    assert sorted(expected[:32], key=int) == [str(number) for number in range(4, 36)]
    context = {"multiprocessing_context": "fork"} if num_workers else {}
    for rank in range(2):
        view = pickle.loads(pickle.dumps(named.iterable(rank=rank, world_size=2, first=10)))
        assert isinstance(view, torch.utils.data.IterableDataset)
        loader: Any = torch.utils.data.DataLoader(view, batch_size=None, num_workers=num_workers, **context)  # type: ignore[arg-type]
        found = [sample.text for sample, _ in zip(loader, range(40), strict=False)]
        assert found == expected[10 + rank :: 2]


def test_validation_ends_for_all(texts: Path) -> None:
    named = energon.BaseCoreDataset(MediaDataset.open(texts, "val", **media_texts.TEXT), training=False)
    parts = [[one.text for one in named.iterable(rank=rank, world_size=3)] for rank in range(3)]
    assert parts == [["40", "43", "46"], ["41", "44"], ["42", "45"]]
    assert list(named.samples(first=7)) == []


def test_what_does_not_go(texts: Path, tmp_path: Path) -> None:
    named = training(texts)
    with pytest.raises(ConfigError, match=r"rank.*2.*2"):
        named.iterable(rank=2, world_size=2)
    with pytest.raises(ConfigError, match=r"every.*1"):
        next(named.samples(every=0))
    with pytest.raises(ConfigError, match=r"train.*val"):
        training(texts, split_part="test")
    with pytest.raises(StoreError):
        training(tmp_path / "nothing")
    (tmp_path / "a.jsonl").write_text('{"a": "b"}\n')
    with pytest.raises(ConfigError, match="split"):
        energon.CrudeWebdataset(tmp_path / "a.jsonl", training=False, split_part="val")
