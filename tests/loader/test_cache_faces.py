"""A cache is named once, where the data are opened: every loader of them reads through it, and tells what was read."""

from __future__ import annotations

import errno
import logging
import pickle
import re
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
from headrace.compat.energon import WorkerConfig, get_train_dataset
from headrace.datasets import MediaDataset
from headrace.datasets.mix import cache_of
from headrace.encoders import DefaultTaskEncoder
from headrace.errors import StoreError
from headrace.integrations.stateful import StatefulLoader
from headrace.io import PreadReader, ReadFailure, RetryPolicy
from headrace.loader import Reading, spans

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
def test_loaders_find_the_cache(face: str, prefix: str, cache: Cache) -> None:
    run = run_over(headrace.open(prefix, cache=cache))
    assert FACES[face](run) == FACES[face](run_over(headrace.open(prefix)))
    assert cache.stats.hits > 0
    assert cache.stats.bypassed_blocks > 0


def test_a_loader_for_paths(prefix: str, cache: Cache) -> None:
    loader = headrace.loader_for(prefix, seq_len=50, batch_size=16, cache=cache)
    plain = headrace.loader_for(prefix, seq_len=50, batch_size=16)
    for number, (batch, expected) in enumerate(zip(loader, plain, strict=False)):
        assert (batch["input_ids"] == expected["input_ids"]).all()
        if number == 20:
            break
    assert cache.stats.hits > 0


def texts(data: Any, num_batches: int = 12, num_workers: int = 0, **options: Any) -> list[list[str]]:
    config = WorkerConfig(0, 1, num_workers)
    dataset = get_train_dataset(data, worker_config=config, batch_size=5, **options)
    loader = get_loader(dataset)
    found = [list(batch["__key__"]) for _, batch in zip(range(num_batches), loader, strict=False)]
    loader.close()
    return found


def test_energon_reads_through_a_cache(shards: Path, cache: Cache) -> None:
    assert texts(shards, cache=cache, **media_texts.TEXT) == texts(shards, **media_texts.TEXT)
    assert cache.stats.hits > 0


def test_a_metadataset_reads_through_a_cache(shards: Path, cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    blend = [{"weight": 1, "path": str(shards), "subflavors": {"of": "one"}}]
    mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    path.write_text(yaml.safe_dump(mix))
    assert texts(path, cache=cache) == texts(path)
    assert cache.stats.read_bytes > 0


def test_orders_that_are_not_known_before_read_through_a_cache(shards: Path, cache: Cache) -> None:
    energon = {"order": "energon", **media_texts.TEXT}
    assert texts(shards, cache=cache, **energon) == texts(shards, **energon)
    assert cache.stats.read_bytes > 0

    def framed(through: Cache | None) -> list[list[str]]:
        data = MediaDataset.open(shards, cache=through, **media_texts.TEXT)
        run = headrace.FramedRun(headrace.datasets.Framed(data, DefaultTaskEncoder()), global_batch_size=4, samples=20)
        return [list(batch["__key__"]) for batch in headrace.Loader(run, micro_batch_size=4)]

    before = cache.stats.read_bytes
    assert framed(cache) == framed(None)
    assert cache.stats.read_bytes > before


def test_the_cache_of_datasets_within_datasets(prefix: str, shards: Path, cache: Cache) -> None:
    windows = headrace.WindowDataset.open(prefix, seq_len=50, cache=cache)
    changed = headrace.datasets.MapDataset(windows, _same)
    media = MediaDataset.open(shards, cache=cache, **media_texts.TEXT)
    for dataset in (windows, changed, media):
        assert cache_of([dataset], order="full") is cache
    assert cache_of([headrace.WindowDataset.open(prefix, seq_len=50)], order="full") is None


def _same(sample: Any) -> Any:
    return sample


def windows_read(prefix: str, cache: Cache, **options: Any) -> tuple[headrace.Loader, int]:
    """Read a run to its end, and return the loader, and how many bytes of samples went through the cache."""
    run = run_over(headrace.open(prefix, cache=cache))
    loader = headrace.Loader(run, micro_batch_size=8, **options)
    before = cache.stats.read_bytes
    rows(iter(loader))
    return loader, cache.stats.read_bytes - before


def test_what_workers_read_is_added_up_and_told(prefix: str, tmp_path: Path) -> None:
    caches = [Cache(tmp_path / str(number), limit=16 * BLOCK, block=BLOCK) for number in range(3)]
    _, wanted = windows_read(prefix, caches[0], reading=Reading(num_threads=0))
    reports: list[dict[str, float]] = []
    metrics = headrace.Metrics(on_step=reports.append, every_s=0)
    reading = Reading(num_workers=2, start_method="fork")
    assert windows_read(prefix, caches[2], reading=reading)[1] == wanted
    # With metrics some bytes are read twice, to time a file alone.
    loader, found = windows_read(prefix, caches[1], reading=reading, metrics=metrics)
    assert found >= wanted
    before = caches[1].stats
    loader.close()
    stats = caches[1].stats
    assert stats == before
    assert (stats.hits, stats.misses) > (50, 50)
    assert stats.misses == stats.fetched_blocks + stats.waited_blocks + stats.bypassed_blocks
    last = {name: value for name, value in reports[-1].items() if name.startswith("cache_")}
    names = ("hits", "misses", "fetched_bytes", "read_bytes", "evicted_blocks")
    assert last == {f"cache_{name}": getattr(stats, name) for name in names}
    [line] = [line for line in loader.describe().splitlines() if line.startswith("cache: ")]
    assert f"{caches[1].folder}, 16,384 bytes: " in line
    assert f"{stats.fetched_bytes:,} bytes fetched for {stats.read_bytes:,} bytes read" in line
    # Another iteration has other workers, which begin to count anew.
    loader.start_at(0, allow_repeats=True)
    rows(iter(loader))
    assert caches[1].stats.read_bytes - stats.read_bytes >= wanted


def test_a_worker_that_starts_anew_counts_what_its_stores_read(prefix: str, cache: Cache) -> None:
    store = headrace.open(prefix, cache=cache)
    twin, counts = pickle.loads(pickle.dumps((store, cache.own_counts)))
    assert counts.__self__ is next(iter(twin.readers)).cache
    before = counts()
    twin.fetch(0, 50)
    assert counts() != before


class Failing(PreadReader):
    """Fails after some reads: with an error that passes, or for good."""

    left = 20
    passes = False

    def _fill(self, file: Any, path: str, offsets: Any, lengths: Any, out: Any) -> None:
        type(self).left -= 1
        if self.left == 0 and self.passes:
            raise ReadFailure(int(offsets[0]), OSError(errno.EIO, "faulty"))
        if self.left < 0 and not self.passes:
            raise StoreError(f"{path}: gone")
        super()._fill(file, path, offsets, lengths, out)


HOW = {
    "asked": Reading(num_threads=0),
    "threads": Reading(num_threads=2),
    "workers": Reading(num_workers=2, start_method="fork"),
    "numpy": None,
}


@pytest.mark.parametrize("how", HOW)
def test_an_error_says_for_which_samples_step_and_rank(how: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "left", 20)
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    run = run_over(headrace.open(prefix, reader=Failing()))
    reading = HOW[how]
    loader: Any = (
        headrace.NumpyLoader(run, micro_batch_size=8, rank=1, world_size=2)
        if reading is None
        else headrace.Loader(run, micro_batch_size=8, ranks=headrace.loader.Ranks(1, 2), reading=reading)
    )
    with pytest.raises(StoreError, match="gone") as raised:
        rows(iter(loader))
    [note] = [note for note in raised.value.__notes__ if note.startswith("while reading")]
    what = r"8 samples" if how == "numpy" else r"samples at positions \d+ to \d+"
    assert re.fullmatch(rf"while reading {what} of steps? \d+( to \d+)? on rank 1 of 2", note)


def test_an_error_of_a_framed_run_says_so_too(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MediaDataset.open(shards, reader=Failing(), **media_texts.TEXT)
    run = headrace.FramedRun(headrace.datasets.Framed(data, DefaultTaskEncoder()), global_batch_size=4, samples=20)
    monkeypatch.setattr(Failing, "left", 2)
    with pytest.raises(StoreError, match="gone") as raised:
        list(headrace.Loader(run, micro_batch_size=4))
    assert "of step 0 on rank 0 of 1" in "\n".join(raised.value.__notes__)


def test_a_wait_says_for_which_samples_step_and_rank(
    prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Failing, "left", 20)
    monkeypatch.setattr(Failing, "passes", True)
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    run = run_over(headrace.open(prefix, reader=Failing(retries=RetryPolicy(first_delay_s=0))))
    with caplog.at_level(logging.WARNING, "headrace"):
        rows(iter(headrace.Loader(run, micro_batch_size=8, reading=Reading(num_threads=1))))
    [line] = caplog.messages
    pattern = r".*web.bin: byte \d+: cannot be read for samples at positions \d+ to \d+ of steps? .* on rank 0 of 1: .*"
    assert re.fullmatch(pattern, line), line
