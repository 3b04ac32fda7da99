"""Megatron's blends of datasets, and caches for it that are never written over others; see tests/interop too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from headrace import ConfigError, Loader, Order, Run
from headrace.compat.megatron import GPTBlend, GPTDataset, GPTMasks, export_cache
from headrace.datasets import Dataset
from headrace.errors import OutputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora of 100, 60 and 400 tokens, each of ids of its own."""
    place = tmp_path_factory.mktemp("blend")
    for number, (name, size) in enumerate((("a", 100), ("b", 60), ("c", 400))):
        tokens = np.arange(size) + 1000 * number
        corpora.write(place / name, np.split(tokens.astype(np.uint16), [size // 3]))
    return place


def build(folder: Path, name: str, num_samples: int | None = None, **options: object) -> GPTDataset:
    return GPTDataset(folder / name, sequence_length=5, num_samples=num_samples, **options)  # type: ignore[arg-type]


def test_each_position_is_the_next_sample_of_its_dataset(folder: Path) -> None:
    parts = [build(folder, name, 40) for name in "abc"]
    blend = GPTBlend(parts, weights=[2, 1, 1], size=44)
    assert np.bincount(blend.dataset_index).tolist() == [22, 11, 11]
    assert blend.dataset_index[:8].tolist() == [0, 1, 2, 0, 0, 1, 2, 0]
    seen = [0, 0, 0]
    for i, item in enumerate(blend.__getitems__(range(44))):
        number = int(item["dataset_id"])
        assert item["tokens"].tolist() == parts[number][seen[number]]["tokens"].tolist(), i
        seen[number] += 1
    run = Run(blend, global_batch_size=11, order=Order(kind="none"), epochs=1)
    rows = [row for batch in Loader(run, micro_batch_size=4) for row in batch["tokens"].tolist()]
    assert rows == [blend[i]["tokens"].tolist() for i in range(44)]


@pytest.mark.parametrize(
    ("num_samples", "options", "wanted", "length"),
    [
        (100, {}, [("a", 76), ("b", 26)], 100),  # half a percent more than is drawn
        (1000, {"era": "before_2025_02"}, [("a", 754), ("b", 252)], 1006),
        (100, {"surplus": 0}, [("a", 75), ("b", 25)], 100),
        (100, {"surplus": 0.2}, [("a", 90), ("b", 30)], 100),
    ],
)
def test_data_paths_as_megatron_writes_them(
    folder: Path, num_samples: int, options: dict[str, Any], wanted: list[tuple[str, int]], length: int
) -> None:
    """``--mid-level-dataset-surplus`` decides what the datasets are built for, and not the length of the blend."""
    asked: list[tuple[str, int | None]] = []

    def remember(prefix: str, num_samples: int | None) -> GPTDataset:
        asked.append((Path(prefix).name, num_samples))
        return build(folder, Path(prefix).name, num_samples)

    blend = GPTBlend.of(f"0.75 {folder}/a 0.25 {folder}/b", num_samples=num_samples, build=remember, **options)
    assert (asked, len(blend)) == (wanted, length)


def test_data_paths_without_weights(folder: Path) -> None:
    def of(path: str, num_samples: int) -> Dataset:
        return GPTBlend.of(path, num_samples=num_samples, build=lambda prefix, n: build(folder, Path(prefix).name, n))

    assert isinstance(of(str(folder / "a"), 7), GPTDataset)
    assert len(of(f"{folder}/a {folder}/b", 9)) == 9
    assert len(of(f"{folder}/a {folder}/b", 9999)) == 19 + 11


def test_no_samples_are_an_empty_dataset(folder: Path) -> None:
    """As ``--eval-iters 0`` asks for; a part that is too small for one sample does not matter then."""
    parts = {"split": "98,1,1", "split_part": "valid"}
    small = GPTDataset(folder / "a", sequence_length=5, num_samples=0, **parts)  # type: ignore[arg-type]
    assert (len(small), small.order.num_epochs, list(small.fields)) == (0, 1, ["tokens", "labels", "loss_mask"])
    assert len(build(folder, "a", 0)) == len(build(folder, "a"))

    def valid(prefix: str, num_samples: int | None) -> GPTDataset:
        return build(folder, Path(prefix).name, num_samples, **parts)

    for path in (f"0.7 {folder}/a 0.3 {folder}/b", f"1 {folder}/a"):
        blend = GPTBlend.of(path, num_samples=0, build=valid)
        assert len(blend) == 0
        assert blend.fingerprint
        assert "Megatron" in blend.describe()
    assert len(GPTBlend([build(folder, name) for name in "ab"], weights=[1, 1], size=0)) == 0
    with pytest.raises(ConfigError, match="sample"):
        valid(str(folder / "a"), None)


def test_a_single_prefix_with_a_weight(folder: Path) -> None:
    """Of the list of one part it is the dataset itself, of ``--data-path`` a blend; see tests/interop."""
    wanted: list[int | None] = []
    path = f"1.0 {folder}/a"

    def of(split: str, one_part: bool | None = None) -> Dataset:
        def remember(prefix: str, num_samples: int | None) -> GPTDataset:
            wanted.append(num_samples)
            return build(folder, Path(prefix).name, num_samples, split=split)

        wanted.clear()
        return GPTBlend.of(path, num_samples=200, build=remember, one_part=one_part)

    for split, one_part in (("1,0,0", None), ("1,0,0", True), ("98,2", True)):
        assert isinstance(of(split, one_part), GPTDataset)
        assert wanted == [200]
    for split, one_part in (("98,2", None), ("1,0,0", False), ("98,2", False)):
        blend = of(split, one_part)
        assert isinstance(blend, GPTBlend)
        assert len(blend) == 200
        assert wanted[-1] == 201, "half a percent more"


@pytest.mark.parametrize("words", ["0.9 {0}/a 0.1 {0}/b", "1.0 {0}/a"])
def test_weights_need_a_number_of_samples(folder: Path, words: str) -> None:
    """Megatron refuses them too; each sample once would be another mix."""
    with pytest.raises(ConfigError, match="num_samples"):
        GPTBlend.of(words.format(folder), num_samples=None, build=lambda prefix, _: build(folder, Path(prefix).name))


def test_what_a_blend_refuses(folder: Path) -> None:
    parts = [build(folder, name) for name in "ab"]
    masked = [parts[0], build(folder, "c", masks=GPTMasks(create_attention_mask=True))]
    for datasets, options, named in (
        (parts, {"weights": [1, 3], "size": 40}, r"30.*1.*/b"),
        (parts, {"weights": [1, 0], "size": 4}, r"dataset.*1.*0"),
        (parts, {"weights": [1, 1]}, "together"),
        (parts, {"weights": [1], "size": 4}, r"2.*datasets.*1"),
        (masked, {}, "attention_mask"),
    ):
        with pytest.raises(ConfigError, match=named):
            GPTBlend(datasets, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"-0\.1.*9.*0"):
        GPTBlend.of(f"1 {folder}/a 1 {folder}/b", num_samples=9, build=lambda prefix, _: parts[0], surplus=-0.1)


def test_recipe_tells_what_changes_the_samples(folder: Path) -> None:
    a, b = (build(folder, name) for name in "ab")
    blends = [GPTBlend([a, b]), GPTBlend([b, a]), GPTBlend([a, b], weights=[1, 1], size=8)]
    blends += [GPTBlend([a, b], weights=[1, 1], size=9), GPTBlend([a, b], weights=[2, 1], size=9)]
    assert len({blend.fingerprint for blend in blends}) == len(blends)
    assert "2 datasets" in blends[0].describe()


GOLDEN = Path(__file__).parents[2] / "golden" / "megatron_cache"
TOKENIZER = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}
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
def test_b6_data_replaced_at_the_same_path() -> None:
    """Megatron goes on with the old indices. Here the order follows the data, and the export names the cache."""
    for suffix in (".bin", ".idx"):
        shutil.copy(f"data/code{suffix}", f"data/web{suffix}")
    assert np.array_equal(dataset().sample_index, dataset("data/code").sample_index)
    before = files("cache")
    with pytest.raises(OutputError, match=rf"cache/{TRAIN}-GPTDataset-train-document_index.npy"):
        export_cache(dataset(), tokenizer=TOKENIZER, path_to_cache="cache")
    assert files("cache") == before


@pytest.mark.usefixtures("place")
def test_b6_another_extra_token_has_the_same_name() -> None:
    without = dataset(add_extra_token_to_sequence=False)
    [made] = export_cache(without, tokenizer=TOKENIZER, path_to_cache="other")
    assert Path(made.description).name == description(TRAIN).name
    with pytest.raises(OutputError, match="another"):
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
    store = headrace.open("data/web")
    given: dict[str, Any] = {"tokenizer": TOKENIZER, "path_to_cache": "x"}
    parts = GPTBlend([dataset(), dataset(split_part="valid", num_samples=4)])
    for data, options, named in (
        (dataset(dialect="neox"), {}, "'neox'"),
        (dataset(last_epoch="together"), {}, "last_epoch='together'"),
        (headrace.WindowDataset(store, seq_len=8), {}, "GPTDataset"),
        (dataset(store), {}, "sequences"),  # type: ignore[arg-type]
        (dataset(headrace.open("data/", documents="sequences")), {}, "Megatron"),  # type: ignore[arg-type]
        (dataset(), {"tokenizer": None}, "'core'"),
        (dataset(), {"tokenizer": {"x": object()}}, "JSON"),
        (dataset(), {"one_part": True}, r"split='1,0,0'.*'60,30,10'"),
        (parts, {}, "Megatron"),
    ):
        with pytest.raises(ConfigError, match=named):
            export_cache(data, **{**given, **options})
    assert not Path("x").exists()
