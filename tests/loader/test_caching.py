"""Loaders that read through the cache of their node: what is kept, faults, workers, and two runs on one disk."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from headrace.cache import Cache, block_store
from headrace.datasets.block_uses import BlockUses
from headrace.environment import ranks_on_each_node
from headrace.errors import ConfigError
from headrace.integrations.numpy import NumpyLoader
from headrace.io import PreadReader
from headrace.io.readers import ByteArray, FileRanges, ReadFailure
from headrace.loader import spans
from headrace.loader.ranks import Ranks

BLOCK = 1024


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, 60_000, 200) for _ in range(240)]
    path = tmp_path_factory.mktemp("data") / "web"
    corpora.write(path, documents)
    return str(path)


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


def fed(run: headrace.Run) -> list[list[int]]:
    loader = headrace.Loader(run, micro_batch_size=16, reading=headrace.loader.Reading(num_threads=0))
    return [batch["input_ids"].flatten().tolist() for batch in loader]


def loaded(run: headrace.Run, **reading: Any) -> list[list[int]]:
    loader = headrace.Loader(run, micro_batch_size=16, reading=headrace.loader.Reading(**reading))
    return [batch["input_ids"].flatten().tolist() for batch in loader]


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


READ = {
    "Loader": fed,
    "workers": lambda run: loaded(run, num_workers=1, start_method="fork"),
    "NumpyLoader": lambda run: [
        batch["input_ids"].flatten().tolist() for batch in NumpyLoader(run, micro_batch_size=16)
    ],
}


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
    with pytest.raises(ConfigError, match="not a whole number of the 2 data-parallel ranks"):
        ranks_on_each_node(2, None)
    with pytest.raises(ConfigError, match="per_node is 3; it must divide"):
        Ranks(0, 8, per_node=3)


def test_what_a_loader_refuses(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a Cache"):
        headrace.open(prefix, cache="/nvme")  # type: ignore[call-overload]
    caches = [Cache(tmp_path / name, limit="1MB", block=BLOCK) for name in ("one", "two")]
    sources = {str(at): headrace.WindowDataset.open(prefix, seq_len=50, cache=one) for at, one in enumerate(caches)}
    blend = headrace.Blend(sources, repeats={"0": 1, "1": 1})
    with pytest.raises(ConfigError, match=r"read through 2 caches, .*one, .*two"):
        headrace.Loader(headrace.Run(blend, global_batch_size=4), micro_batch_size=4)


def test_packs_that_change_in_each_epoch_are_read_through_a_cache(prefix: str, tmp_path: Path) -> None:
    packing = headrace.Packing(seq_len=256, strategy="best_fit_split", repack=True)

    def batches(store: headrace.stores.Store) -> list[list[int]]:
        return fed(headrace.Run(headrace.PackedSequenceDataset(store, packing), global_batch_size=4, epochs=2))

    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    assert batches(headrace.open(prefix, cache=cache)) == batches(headrace.open(prefix))
    assert cache.stats.hits > 0


def test_workers_read_through_the_cache(prefix: str, tmp_path: Path) -> None:
    plain = fed(run_over(headrace.open(prefix), epochs=1))
    cache = Cache(tmp_path / "cache", limit=30 * BLOCK, block=BLOCK)
    run = run_over(headrace.open(prefix, cache=cache), epochs=1)
    reading = headrace.loader.Reading(num_workers=2, start_method="fork")
    loader = headrace.Loader(run, micro_batch_size=16, reading=reading)
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == plain
    loader.close()
    assert headrace.cache.describe_cache(cache.folder).blocks >= 29
    assert headrace.cache.check_cache(cache.folder) == []


@pytest.mark.parametrize("kind", ["full", "blocks"])
def test_reading_ahead_fetches_into_the_cache(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Many spans are under way at the same time; each block is fetched once, and the batches are the same."""
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")), kind)
    reading = headrace.loader.Reading(ahead="40MB")
    loader = headrace.Loader(run, micro_batch_size=16, reading=reading)
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == fed(run_over(headrace.open(prefix), kind))
    files = list((cache.folder / "blocks").glob("*/*"))
    assert len(files) >= Path(f"{prefix}.bin").stat().st_size // BLOCK
    assert cache.stats.fetched_blocks == len(files), "none was fetched twice"
    assert cache.stats.fetched_bytes == sum(file.stat().st_size for file in files)
    assert cache.stats.bypassed_blocks == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_small_cache_stays_within_its_limit(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 4)
    plain = run_over(headrace.open(prefix), "blocks")
    cache = Cache(tmp_path / "cache", limit=12 * BLOCK, block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")), "blocks")
    reading = headrace.loader.Reading(ahead=1) if ahead else headrace.loader.Reading(num_threads=0)
    loader = headrace.Loader(run, micro_batch_size=16, reading=reading)
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == fed(plain)
    assert cache.store.content().num_bytes <= cache.limit_bytes
    assert headrace.cache.check_cache(cache.folder) == []


def test_a_loop_that_is_left_keeps_no_room(prefix: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")))
    stream = iter(headrace.Loader(run, micro_batch_size=16, reading=headrace.loader.Reading(ahead="40MB")))
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
