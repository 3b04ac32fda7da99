"""Megatron's blends of datasets; whole blends beside its builder are in tests/interop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import corpora
from headrace import ConfigError, Loader, Order, Run
from headrace.compat.megatron.blend import GPTBlend
from headrace.compat.megatron.gpt import GPTDataset, GPTMasks
from headrace.datasets import Dataset


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


def test_without_weights_every_sample_comes_once(folder: Path) -> None:
    parts = [build(folder, name) for name in "ab"]
    blend = GPTBlend(parts)
    assert len(blend) == sum(map(len, parts))
    pairs = set(zip(blend.dataset_index.tolist(), blend.dataset_sample_index.tolist(), strict=True))
    assert pairs == {(number, i) for number, part in enumerate(parts) for i in range(len(part))}


def test_data_paths_as_megatron_writes_them(folder: Path) -> None:
    wanted: list[tuple[str, int | None]] = []

    def remember(prefix: str, num_samples: int | None) -> GPTDataset:
        wanted.append((Path(prefix).name, num_samples))
        return build(folder, Path(prefix).name, num_samples)

    blend = GPTBlend.of(f"0.75 {folder}/a 0.25 {folder}/b", num_samples=100, build=remember)
    assert wanted == [("a", 76), ("b", 26)], "half a percent more than is drawn"
    assert len(blend) == 100
    wanted.clear()
    GPTBlend.of(f"0.75 {folder}/a 0.25 {folder}/b", num_samples=1000, build=remember, era="before_2025_02")
    assert wanted == [("a", 754), ("b", 252)]
    one = GPTBlend.of(str(folder / "a"), num_samples=7, build=remember)
    assert isinstance(one, GPTDataset)
    assert len(GPTBlend.of(f"{folder}/a {folder}/b", num_samples=9, build=remember)) == 9
    assert len(GPTBlend.of(f"{folder}/a {folder}/b", num_samples=9999, build=remember)) == 19 + 11


def test_the_surplus_is_that_of_the_option(folder: Path) -> None:
    """``--mid-level-dataset-surplus`` decides what the datasets are built for, and not the length of the blend."""
    wanted: list[int | None] = []

    def remember(prefix: str, num_samples: int | None) -> GPTDataset:
        wanted.append(num_samples)
        return build(folder, Path(prefix).name, num_samples)

    for surplus, most in ((0, [75, 25]), (0.01, [76, 26]), (0.2, [90, 30])):
        wanted.clear()
        path = f"0.75 {folder}/a 0.25 {folder}/b"
        assert len(GPTBlend.of(path, num_samples=100, build=remember, surplus=surplus)) == 100
        assert wanted == most


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
    with pytest.raises(ConfigError, match="not enough for a sample"):
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
    with pytest.raises(ConfigError, match="has weights, but num_samples is None"):
        GPTBlend.of(words.format(folder), num_samples=None, build=lambda prefix, _: build(folder, Path(prefix).name))


def test_what_a_blend_refuses(folder: Path) -> None:
    parts = [build(folder, name) for name in "ab"]
    with pytest.raises(ConfigError, match=r"the blend draws 30 samples from dataset 1 \(.*/b\), which has 11"):
        GPTBlend(parts, weights=[1, 3], size=40)
    with pytest.raises(ConfigError, match="dataset 1 has weight 0"):
        GPTBlend(parts, weights=[1, 0], size=4)
    with pytest.raises(ConfigError, match="weights and size go together"):
        GPTBlend(parts, weights=[1, 1])
    with pytest.raises(ConfigError, match="2 datasets and 1 weights"):
        GPTBlend(parts, weights=[1], size=4)
    with pytest.raises(ConfigError, match=r"surplus is -0\.1 and size is 9; both must be at least 0"):
        GPTBlend.of(f"1 {folder}/a 1 {folder}/b", num_samples=9, build=lambda prefix, _: parts[0], surplus=-0.1)
    other = build(folder, "c", masks=GPTMasks(create_attention_mask=True))
    with pytest.raises(ConfigError, match="attention_mask"):
        GPTBlend([parts[0], other])


def test_recipe_tells_what_changes_the_samples(folder: Path) -> None:
    a, b = (build(folder, name) for name in "ab")
    blends = [GPTBlend([a, b]), GPTBlend([b, a]), GPTBlend([a, b], weights=[1, 1], size=8)]
    blends += [GPTBlend([a, b], weights=[1, 1], size=9), GPTBlend([a, b], weights=[2, 1], size=9)]
    assert len({blend.fingerprint for blend in blends}) == len(blends)
    assert "2 datasets" in blends[0].describe()
