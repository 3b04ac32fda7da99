"""Megatron's caches written: the golden ones byte for byte, and never over others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.compat.megatron import GPTBlend, GPTDataset, export_cache
from headrace.errors import ConfigError, OutputError

GOLDEN = Path(__file__).parents[2] / "golden" / "megatron_cache"
TOKENIZER = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}
KEEP = {"drop_last_partial_validation_sequence": False}
TRAIN = "bcb2920e883e4c70d54391dab1f3d247"
"""25 samples of data/web: two epochs, the last one apart."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of data and caches; the paths in them are relative to it."""
    copied = shutil.copytree(GOLDEN, tmp_path / "place")
    monkeypatch.chdir(copied)
    return Path(copied)


def description(md5: str) -> Path:
    [path] = Path("cache").glob(f"{md5}-*-description.txt")
    return path


def files(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def dataset(prefix: str = "data/web", **options: Any) -> GPTDataset:
    return GPTDataset(prefix, **{"sequence_length": 16, "num_samples": 25, "split": "60,30,10", **options})


@pytest.mark.usefixtures("place")
def test_ours_are_megatrons_to_the_byte() -> None:
    """All nine caches of megatron-core's builder: a split, a weighted blend, a blend of training data alone."""
    for part, wanted in (("train", 25), ("valid", 4), ("test", None)):
        export_cache(dataset(num_samples=wanted, split_part=part, **KEEP), tokenizer=TOKENIZER, path_to_cache="ours")
    weighted = GPTBlend.of(
        "0.7 data/web 0.3 data/code",
        num_samples=40,
        build=lambda prefix, wanted: dataset(prefix, num_samples=wanted, split="1, 0, 0"),
    )
    made = export_cache(weighted, tokenizer=TOKENIZER, path_to_cache="ours")
    assert [(each.of, each.samples, each.written) for each in made] == [
        ("data/web", 54, True),
        ("data/code", 24, True),
        ("a blend of 2 datasets", 40, True),
    ]
    once = GPTBlend.of(
        ["data/web", "data/code"],
        num_samples=None,
        build=lambda prefix, wanted: dataset(prefix, num_samples=wanted, split="1,0,0"),
    )
    export_cache(once, tokenizer=TOKENIZER, path_to_cache="ours", one_part=True)
    assert files("ours") == files("cache")
    assert not any(each.written for each in export_cache(weighted, tokenizer=TOKENIZER, path_to_cache="cache"))


@pytest.mark.usefixtures("place")
def test_b6_data_replaced_at_the_same_path() -> None:
    """Megatron goes on with the old indices. Here the order follows the data, and the export names the cache."""
    for suffix in (".bin", ".idx"):
        shutil.copy(f"data/code{suffix}", f"data/web{suffix}")
    assert np.array_equal(dataset().sample_index, dataset("data/code").sample_index)
    before = files("cache")
    with pytest.raises(OutputError, match=f"cache/{TRAIN}-GPTDataset-train-document_index.npy: another cache"):
        export_cache(dataset(), tokenizer=TOKENIZER, path_to_cache="cache")
    assert files("cache") == before


@pytest.mark.usefixtures("place")
def test_b6_another_extra_token_has_the_same_name() -> None:
    without = dataset(add_extra_token_to_sequence=False)
    [made] = export_cache(without, tokenizer=TOKENIZER, path_to_cache="other")
    assert Path(made.description).name == description(TRAIN).name
    with pytest.raises(OutputError, match="another cache of this name exists"):
        export_cache(without, tokenizer=TOKENIZER, path_to_cache="cache")
    assert export_cache(without, tokenizer=TOKENIZER, path_to_cache="cache", replace=True)[0].written
    assert files("other").items() <= files("cache").items()


@pytest.mark.usefixtures("place")
def test_beside_the_data() -> None:
    [made] = export_cache(dataset(), tokenizer=TOKENIZER)
    assert made.description == f"data/web/cache/GPTDataset_indices/{TRAIN}-GPTDataset-train-description.txt"
    assert made.samples == 33
    blend = GPTBlend([dataset(), dataset("data/code", split="1")], weights=[1, 1], size=20)
    assert [each.of for each in export_cache(blend, tokenizer=TOKENIZER)] == ["data/web", "data/code"]
    old = export_cache(dataset(), tokenizer=None, era="core_v0.4", class_name="Mine", path_to_cache="old")[0]
    assert (Path(old.description).name[32:], old.samples) == ("-Mine-description.txt", 33)


@pytest.mark.usefixtures("place")
def test_what_megatron_has_no_cache_of() -> None:
    with pytest.raises(ConfigError, match="dialect 'neox'"):
        export_cache(dataset(dialect="neox"), tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="last_epoch='together'"):
        export_cache(dataset(last_epoch="together"), tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="Megatron has caches only for GPTDataset and blends of it"):
        export_cache(headrace.WindowDataset(headrace.open("data/web"), seq_len=8), tokenizer=TOKENIZER)
    store = headrace.open("data/web")
    with pytest.raises(ConfigError, match="Megatron reads sequences"):
        export_cache(dataset(store), tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Megatron reads single pairs"):
        export_cache(dataset(headrace.open("data/", documents="sequences")), tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the tokenizer is None and the era 'core'"):
        export_cache(dataset(), tokenizer=None)
    with pytest.raises(ConfigError, match="cannot be written as JSON: "):
        export_cache(dataset(), tokenizer={"x": object()})
    with pytest.raises(ConfigError, match="data of one part only have split='1,0,0', found '60,30,10'"):
        export_cache(dataset(), tokenizer=TOKENIZER, one_part=True)
    parts = GPTBlend([dataset(), dataset(split_part="valid", num_samples=4)])
    with pytest.raises(ConfigError, match="all datasets of a Megatron blend belong to one part, found train, valid"):
        export_cache(parts, tokenizer=TOKENIZER, path_to_cache="x")
    assert not Path("x").exists()
    assert not Path("data/web/cache").exists()
