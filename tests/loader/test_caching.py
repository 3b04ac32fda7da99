"""A cache is named once, where the data are opened: all loaders of them read through it, and tell what was read.

What is kept, faults, workers, and two runs on one disk.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import re
import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import corpora
import headrace
import media_texts
from columned import get_loader
from headrace.cache import Cache, block_store
from headrace.compat.energon import WorkerConfig, get_train_dataset
from headrace.datasets import MediaDataset
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.mix import cache_of
from headrace.encoders import DefaultTaskEncoder
from headrace.environment import ranks_on_each_node
from headrace.errors import ConfigError, StoreError
from headrace.integrations.stateful import StatefulLoader
from headrace.io import PreadReader, ReadFailure
from headrace.io.readers import ByteArray, FileRanges
from headrace.loader import Reading, spans
from headrace.loader.ranks import Ranks

BLOCK = 1024


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, 60_000, 200) for _ in range(240)]
    path = tmp_path_factory.mktemp("data") / "web"
    corpora.write(path, documents)
    return str(path)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("shards") / "texts", (20, 11, 9), val=(7, 7, 7))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "small", limit=16 * BLOCK, block=BLOCK)


def run_over(store: headrace.stores.Store, kind: str = "full", **options: object) -> headrace.Run:
    order = headrace.Order(
        kind=kind,  # type: ignore[arg-type]
        seed=3,
        block_samples=16,
        window_blocks=4,
        max_samples_per_sequence=16,
        parallel_shard_iters=4,
    )
    dataset = headrace.WindowDataset(store, seq_len=50)
    return headrace.Run(dataset, **{"global_batch_size": 16, "order": order, "epochs": 3, **options})  # type: ignore[arg-type]


def rows(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["input_ids"]).flatten().tolist() for batch in batches]


def fed(run: headrace.Run, **reading: Any) -> list[list[int]]:
    """By the training loop itself, if nothing else is said."""
    return rows(headrace.Loader(run, micro_batch_size=16, reading=Reading(**{"num_threads": 0, **reading})))


def test_a_full_cache_keeps_the_first_blocks(prefix: str, tmp_path: Path) -> None:
    """Each later epoch finds so much of the reads in it as it holds of the data."""
    plain = run_over(headrace.open(prefix))
    uses = BlockUses.of_run(plain, block_bytes=BLOCK)
    cache = Cache(tmp_path / "cache", limit=uses.table.num_blocks // 2 * BLOCK, block=BLOCK)
    run = run_over(headrace.open(prefix, cache=cache))
    assert fed(run) == fed(plain)
    kept = {file.name for file in (cache.folder / "blocks").glob("*/*")}
    assert len(kept) == uses.table.num_blocks // 2
    assert (cache.stats.fetched_blocks, cache.stats.evicted_blocks) == (len(kept), 0)
    before = cache.stats
    assert fed(run) == fed(plain)
    assert cache.stats.fetched_blocks == before.fetched_blocks
    num_reads = cache.stats.hits + cache.stats.bypassed_blocks - before.hits - before.bypassed_blocks
    assert 0.4 < (cache.stats.hits - before.hits) / num_reads < 0.6
    assert {file.name for file in (cache.folder / "blocks").glob("*/*")} == kept


READ: dict[str, Callable[[headrace.Run], list[list[int]]]] = {
    "Loader": fed,
    "workers": lambda run: fed(run, num_workers=1, start_method="fork"),
    "NumpyLoader": lambda run: rows(headrace.NumpyLoader(run, micro_batch_size=16)),
    "StatefulLoader": lambda run: rows(StatefulLoader(run, micro_batch_size=16)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("kind", ["blocks", "shards", "none"])
def test_blocks_of_an_order_by_blocks_pass(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """A cache that holds a window of the order fetches each block about once an epoch, and none by ranges."""
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    plain = run_over(headrace.open(prefix), kind)
    cache = Cache(tmp_path / "cache", limit=96 * 256, block=256)
    run = run_over(headrace.open(prefix, cache=cache), kind)
    before = cache.stats.fetched_bytes
    assert READ[name](run) == fed(plain)
    size = Path(f"{prefix}.bin").stat().st_size
    assert cache.stats.bypassed_blocks == 0
    assert cache.stats.evicted_blocks > 0
    assert cache.stats.fetched_bytes - before < 1.2 * 3 * size
    assert cache.store.content().num_bytes <= cache.limit_bytes


def test_a_block_that_cannot_be_fetched_is_fetched_again(prefix: str, tmp_path: Path) -> None:
    class Failing(PreadReader):
        left = 3

        def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
            self.left -= 1
            if self.left == 0:
                raise ReadFailure(0, OSError(errno.EIO, "a fault that passes"))
            return super()._read_together(files)

    cache = Cache(tmp_path / "cache", limit="4MB", block=BLOCK)
    reader = cache.reader(Failing())
    assert fed(run_over(headrace.open(prefix, reader=reader), epochs=1)) == fed(
        run_over(headrace.open(prefix), epochs=1)
    )
    assert reader.num_retries == 1
    assert cache.store.content().fetching == 0
    files = list((cache.folder / "blocks").glob("*/*"))
    assert len(files) == cache.stats.fetched_blocks >= Path(f"{prefix}.bin").stat().st_size // BLOCK


def test_ranks_on_a_node_follow_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks_on_each_node(8, 2) == 2
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert ranks_on_each_node(8, None) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("WORLD_SIZE", "32")
    assert ranks_on_each_node(32, None) == 8
    assert ranks_on_each_node(16, None) == 4, "each rank has two processes"
    with pytest.raises(ConfigError, match="2"):
        ranks_on_each_node(2, None)
    with pytest.raises(ConfigError, match=r"per_node.*3"):
        Ranks(0, 8, per_node=3)


def test_what_a_loader_refuses(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected"):
        headrace.open(prefix, cache="/nvme")  # type: ignore[call-overload]
    caches = [Cache(tmp_path / name, limit="1MB", block=BLOCK) for name in ("one", "two")]
    sources = {str(at): headrace.WindowDataset.open(prefix, seq_len=50, cache=one) for at, one in enumerate(caches)}
    blend = headrace.Blend(sources, repeats={"0": 1, "1": 1})
    with pytest.raises(ConfigError, match=r"through.*2"):
        headrace.Loader(headrace.Run(blend, global_batch_size=4), micro_batch_size=4)


@pytest.mark.parametrize("kind", ["full", "blocks"])
def test_reading_ahead_fetches_into_the_cache(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Many spans are under way at the same time; each block is fetched once, and the batches are the same."""
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")), kind)
    assert fed(run, num_threads=1, ahead="40MB") == fed(run_over(headrace.open(prefix), kind))
    files = list((cache.folder / "blocks").glob("*/*"))
    assert len(files) >= Path(f"{prefix}.bin").stat().st_size // BLOCK
    assert cache.stats.fetched_blocks == len(files), "none was fetched twice"
    assert cache.stats.fetched_bytes == sum(file.stat().st_size for file in files)
    assert cache.stats.bypassed_blocks == 0


def test_a_small_cache_stays_within_its_limit(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 4)
    plain = run_over(headrace.open(prefix), "blocks")
    cache = Cache(tmp_path / "cache", limit=12 * BLOCK, block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")), "blocks")
    assert fed(run, num_threads=1, ahead=1) == fed(plain)
    assert cache.store.content().num_bytes <= cache.limit_bytes
    assert headrace.cache.check_cache(cache.folder) == []


def test_a_loop_that_is_left_keeps_no_room(prefix: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")))
    stream = iter(headrace.Loader(run, micro_batch_size=16, reading=Reading(ahead="40MB")))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    content = cache.store.content()
    assert content.fetching == 0
    files = list((cache.folder / "blocks").glob("*/*"))
    assert len(files) == content.blocks
    assert sum(file.stat().st_size for file in files) == content.num_bytes


def _trained(prefix: str, folder: str, seed: int, kill: int, fed_to: str, begun: Event) -> None:
    """Feed a run through the cache, a batch a line of a file; the process is killed before write ``kill`` is done.

    One that is not killed begins when the other one has written some blocks, so that it leaves it room for others.
    """
    cache = Cache(folder, limit=40 * BLOCK, block=BLOCK)
    whole, num_writes = block_store.write_all, 0

    def write_all(write: Callable[[memoryview], int], data: memoryview) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 5:
            begun.set()
        if num_writes == kill:
            whole(write, data[:100])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(write, data)

    block_store.write_all = write_all
    if not kill:
        assert begun.wait(60)
    run = run_over(headrace.open(prefix, cache=cache), order=headrace.Order(seed=seed), epochs=2)
    with Path(fed_to).open("w", buffering=1) as file:
        for batch in headrace.Loader(run, micro_batch_size=16):
            file.write(json.dumps(batch["input_ids"].flatten().tolist()) + "\n")


def test_two_runs_share_a_cache_and_one_is_killed_in_the_middle_of_a_write(prefix: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    files = [tmp_path / "first", tmp_path / "second"]
    lives = zip((1, 2), (0, 10), files, strict=True)
    runs = [
        context.Process(target=_trained, args=(prefix, str(folder), seed, kill, str(file), begun))
        for seed, kill, file in lives
    ]
    for one in runs:
        one.start()
    plain = [run_over(headrace.open(prefix), order=headrace.Order(seed=seed), epochs=2) for seed in (1, 2)]
    for one in runs:
        one.join()
    assert [one.exitcode for one in runs] == [0, -signal.SIGKILL]
    first, second = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert first == fed(plain[0])
    assert second == fed(plain[1])[: len(second)]
    content = headrace.cache.describe_cache(folder)
    assert 0 < content.num_bytes <= 40 * BLOCK
    assert content.fetching == content.readers == 0
    left = headrace.cache.check_cache(folder)
    assert [line for line in left if "damaged" in line or "missing" in line] == []
    assert headrace.cache.check_cache(folder) == []


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


@pytest.mark.parametrize("order", [{}, {"order": "energon"}], ids=["ours", "energon"])
def test_energon_reads_through_a_cache(shards: Path, cache: Cache, order: Any) -> None:
    """Also in an order that is not known before."""
    options = {**order, **media_texts.TEXT}
    assert texts(shards, cache=cache, **options) == texts(shards, **options)
    assert cache.stats.read_bytes > 0


def test_a_framed_run_reads_through_a_cache(shards: Path, cache: Cache) -> None:
    def framed(through: Cache | None) -> list[list[str]]:
        data = MediaDataset.open(shards, cache=through, **media_texts.TEXT)
        run = headrace.FramedRun(headrace.datasets.Framed(data, DefaultTaskEncoder()), global_batch_size=4, samples=20)
        return [list(batch["__key__"]) for batch in headrace.Loader(run, micro_batch_size=4)]

    assert framed(cache) == framed(None)
    assert cache.stats.read_bytes > 0


def test_a_metadataset_reads_through_a_cache(shards: Path, cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    blend = [{"weight": 1, "path": str(shards), "subflavors": {"of": "one"}}]
    mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    path.write_text(yaml.safe_dump(mix))
    assert texts(path, cache=cache) == texts(path)
    assert cache.stats.read_bytes > 0


def test_the_cache_of_datasets_within_datasets(prefix: str, shards: Path, cache: Cache) -> None:
    windows = headrace.WindowDataset.open(prefix, seq_len=50, cache=cache)
    changed = headrace.datasets.MapDataset(windows, _same)
    media = MediaDataset.open(shards, cache=cache, **media_texts.TEXT)
    for dataset in (windows, changed, media):
        assert cache_of([dataset], headrace.Order()) is cache
    assert cache_of([headrace.WindowDataset.open(prefix, seq_len=50)], headrace.Order()) is None


def _same(sample: Any) -> Any:
    return sample


def windows_read(prefix: str, cache: Cache, **options: Any) -> tuple[headrace.Loader, int]:
    """Read a run to its end, and return the loader, and how many bytes of samples went through the cache."""
    run = run_over(headrace.open(prefix, cache=cache), epochs=2)
    loader = headrace.Loader(run, micro_batch_size=8, **options)
    before = cache.stats.read_bytes
    rows(loader)
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
    rows(loader)
    assert caches[1].stats.read_bytes - stats.read_bytes >= wanted


def test_a_worker_that_starts_anew_counts_what_its_stores_read(prefix: str, cache: Cache) -> None:
    store = headrace.open(prefix, cache=cache)
    twin, counts = pickle.loads(pickle.dumps((store, cache.own_counts)))
    assert counts.__self__ is next(iter(twin.readers)).cache
    before = counts()
    twin.fetch(0, 50)
    assert counts() != before


class Gone(PreadReader):
    """Fails for good after some reads."""

    left = 20

    def _fill(self, file: Any, path: str, offsets: Any, lengths: Any, out: Any) -> None:
        type(self).left -= 1
        if self.left < 0:
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
    monkeypatch.setattr(Gone, "left", 20)
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    run = run_over(headrace.open(prefix, reader=Gone()))
    reading = HOW[how]
    loader: Any = (
        headrace.NumpyLoader(run, micro_batch_size=8, rank=1, world_size=2)
        if reading is None
        else headrace.Loader(run, micro_batch_size=8, ranks=headrace.loader.Ranks(1, 2), reading=reading)
    )
    with pytest.raises(StoreError, match="gone") as raised:
        rows(loader)
    [note] = [note for note in raised.value.__notes__ if note.startswith("while reading")]
    what = r"8 samples" if how == "numpy" else r"samples at positions \d+ to \d+"
    assert re.fullmatch(rf"while reading {what} of steps? \d+( to \d+)? on rank 1 of 2", note)


def test_an_error_of_a_framed_run_says_so_too(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MediaDataset.open(shards, reader=Gone(), **media_texts.TEXT)
    run = headrace.FramedRun(headrace.datasets.Framed(data, DefaultTaskEncoder()), global_batch_size=4, samples=20)
    monkeypatch.setattr(Gone, "left", 2)
    with pytest.raises(StoreError, match="gone") as raised:
        list(headrace.Loader(run, micro_batch_size=4))
    assert "of step 0 on rank 0 of 1" in "\n".join(raised.value.__notes__)
