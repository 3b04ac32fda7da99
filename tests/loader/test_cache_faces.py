"""A cache is named once, where the data are opened: every loader of them finds it, and tells it what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import corpora
import headrace
import media_texts
from columned import get_loader
from headrace.cache import Cache
from headrace.cache.block_store import BlockStore
from headrace.compat.energon import WorkerConfig, get_train_dataset
from headrace.datasets import MediaDataset
from headrace.datasets.mix import cache_of
from headrace.encoders import DefaultTaskEncoder
from headrace.errors import ConfigError
from headrace.integrations.stateful import StatefulLoader
from headrace.loader import Reading

BLOCK = 1024
Fed = list[list[int]]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "web"
    rng = np.random.default_rng(2)
    corpora.write(path, [rng.integers(0, 60_000, 200) for _ in range(120)])
    return str(path)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("shards") / "texts", (20, 11, 9), val=(7, 7, 7))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", limit=16 * BLOCK, block=BLOCK)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The runs that caches were told of."""
    found: set[str] = set()
    expect = BlockStore.expect

    def noted(self: BlockStore, run: str, *rest: Any) -> None:
        found.add(run)
        expect(self, run, *rest)

    monkeypatch.setattr(BlockStore, "expect", noted)
    return found


def run_over(store: headrace.stores.Store) -> headrace.Run:
    dataset = headrace.WindowDataset(store, seq_len=50)
    return headrace.Run(dataset, global_batch_size=16, order=headrace.Order(seed=3), epochs=2)


def rows(batches: Iterator[dict[str, Any]]) -> Fed:
    return [np.asarray(batch["input_ids"]).flatten().tolist() for batch in batches]


FACES: dict[str, Callable[[headrace.Run], Fed]] = {
    "Loader": lambda run: rows(iter(headrace.Loader(run, micro_batch_size=8))),
    "NumpyLoader": lambda run: rows(iter(headrace.NumpyLoader(run, micro_batch_size=8))),
    "StatefulLoader": lambda run: rows(iter(StatefulLoader(run, micro_batch_size=8))),
}


@pytest.mark.parametrize("face", FACES)
def test_loaders_find_the_cache(face: str, prefix: str, cache: Cache, told: set[str]) -> None:
    run = run_over(headrace.open(prefix, cache=cache))
    assert FACES[face](run) == FACES[face](run_over(headrace.open(prefix)))
    assert told == {run.recipe.digest().hex()[:32]}
    assert cache.stats.hits > 0
    assert cache.stats.evicted_blocks > 0


def test_a_numpy_loader_evicts_as_the_plan_says(prefix: str, tmp_path: Path) -> None:
    """As a `Loader` that reads a batch when it is asked for, block by block."""
    hits = []
    for name in ("torch", "numpy"):
        cache = Cache(tmp_path / name, limit=16 * BLOCK, block=BLOCK)
        run = run_over(headrace.open(prefix, cache=cache))
        before = cache.stats.hits
        if name == "torch":
            rows(iter(headrace.Loader(run, micro_batch_size=16, reading=Reading(num_threads=0))))
        else:
            rows(iter(headrace.NumpyLoader(run, micro_batch_size=16, per_node=1)))
        hits.append(cache.stats.hits - before)
    assert hits[1] >= 0.95 * hits[0]
    with pytest.raises(ConfigError, match="per_node is 3; it must divide the number of ranks, 4"):
        headrace.NumpyLoader(run, micro_batch_size=4, world_size=4, per_node=3)


def test_a_loader_for_paths(prefix: str, cache: Cache, told: set[str]) -> None:
    loader = headrace.loader_for(prefix, seq_len=50, batch_size=16, cache=cache)
    plain = headrace.loader_for(prefix, seq_len=50, batch_size=16)
    for number, (batch, expected) in enumerate(zip(loader, plain, strict=False)):
        assert (batch["input_ids"] == expected["input_ids"]).all()
        if number == 20:
            break
    assert len(told) == 1
    assert cache.stats.hits > 0


def texts(data: Any, num_batches: int = 12, num_workers: int = 0, **options: Any) -> list[list[str]]:
    config = WorkerConfig(0, 1, num_workers)
    dataset = get_train_dataset(data, worker_config=config, batch_size=5, **options)
    loader = get_loader(dataset)
    found = [list(batch["__key__"]) for _, batch in zip(range(num_batches), loader, strict=False)]
    loader.close()
    return found


def test_energon_reads_through_a_cache(shards: Path, cache: Cache, told: set[str]) -> None:
    assert texts(shards, cache=cache, **media_texts.TEXT) == texts(shards, **media_texts.TEXT)
    assert told
    assert cache.stats.hits > 0


def test_a_metadataset_reads_through_a_cache(shards: Path, cache: Cache, told: set[str], tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    blend = [{"weight": 1, "path": str(shards), "subflavors": {"of": "one"}}]
    mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    path.write_text(yaml.safe_dump(mix))
    assert texts(path, cache=cache) == texts(path)
    assert told
    assert cache.stats.read_bytes > 0


def test_what_no_plan_knows_needs_a_pinned_cache(shards: Path, cache: Cache, tmp_path: Path) -> None:
    pinned = Cache(tmp_path / "pinned", limit=16 * BLOCK, block=BLOCK, policy="pin")
    with pytest.raises(ConfigError, match=r"Energon's own order: choose another order, or make the cache with policy"):
        texts(shards, cache=cache, order="energon", **media_texts.TEXT)
    assert len(texts(shards, cache=pinned, order="energon", **media_texts.TEXT)) == 12

    def framed(through: Cache) -> headrace.loader.Loader:
        data = MediaDataset.open(shards, cache=through, **media_texts.TEXT)
        run = headrace.FramedRun(headrace.datasets.Framed(data, DefaultTaskEncoder()), global_batch_size=4, samples=20)
        return headrace.Loader(run, micro_batch_size=4)

    with pytest.raises(
        ConfigError, match=r"FramedRun comes is only known when it is fed: make the cache with policy='pin'"
    ):
        framed(cache)
    assert len(list(framed(pinned))) == 5


def test_the_cache_of_datasets_within_datasets(prefix: str, shards: Path, cache: Cache) -> None:
    windows = headrace.WindowDataset.open(prefix, seq_len=50, cache=cache)
    changed = headrace.datasets.MapDataset(windows, _same)
    media = MediaDataset.open(shards, cache=cache, **media_texts.TEXT)
    for dataset in (windows, changed, media):
        assert cache_of([dataset]) is cache
    assert cache_of([headrace.WindowDataset.open(prefix, seq_len=50)]) is None


def _same(sample: Any) -> Any:
    return sample
