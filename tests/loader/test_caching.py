"""A loader tells the cache of its node what comes: hit rates against Belady's, nodes, and two runs on one disk."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from headrace.cache import Cache, block_store
from headrace.cache.eviction import NEVER
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.cache_planner import CachePlanner
from headrace.environment import ranks_on_each_node
from headrace.errors import ConfigError
from headrace.integrations.numpy import NumpyLoader
from headrace.io import PreadReader
from headrace.io.readers import ByteArray, FileRanges, ReadFailure
from headrace.loader import spans
from headrace.loader.ranks import Ranks
from headrace.plan import Share
from headrace.plan.caching import Accesses, simulate
from headrace.plan.caching.dealing import ranks_of
from headrace.plan.slots import taken_by

BLOCK = 1024


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, 60_000, 200) for _ in range(240)]
    path = tmp_path_factory.mktemp("data") / "web"
    corpora.write(path, documents)
    return str(path)


def run_over(store: headrace.stores.Store, kind: str = "full", **options: object) -> headrace.Run:
    order = headrace.Order(kind=kind, seed=3, block_samples=16, window_blocks=4)  # type: ignore[arg-type]
    dataset = headrace.WindowDataset(store, seq_len=50)
    return headrace.Run(dataset, **{"global_batch_size": 16, "order": order, "epochs": 3, **options})  # type: ignore[arg-type]


def fed(run: headrace.Run) -> list[list[int]]:
    loader = headrace.Loader(run, micro_batch_size=16, reading=headrace.loader.Reading(num_threads=0))
    return [batch["input_ids"].flatten().tolist() for batch in loader]


@pytest.mark.parametrize(("kind", "part"), [("full", 2), ("blocks", 4)])
def test_the_hit_rate_is_belady_s(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, part: int
) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 16)  # each step is a read of its own
    plain = run_over(headrace.open(prefix), kind)
    uses = BlockUses.of_run(plain, block_bytes=BLOCK)
    reads = uses.reads(np.arange(plain.length))
    steps = reads.rows // 16
    seen = Accesses.of(steps, np.zeros_like(steps), reads.blocks, reads.used_bytes, reads.epochs, table=uses.table)
    capacity = uses.table.num_blocks // part
    # What is read to open the store is kept as well while there is room, and goes first.
    cache = Cache(tmp_path / "cache", limit=capacity * BLOCK, block=BLOCK)
    run = run_over(headrace.open(prefix, cache=cache), kind)
    before = cache.stats.fetched_blocks + cache.stats.bypassed_blocks
    assert fed(run) == fed(plain)
    missed = cache.stats.fetched_blocks + cache.stats.bypassed_blocks - before
    best = int((~simulate(seen.blocks, capacity, "plan").is_hit).sum())
    assert missed / len(seen.blocks) <= best / len(seen.blocks) + 0.01


def test_a_node_counts_the_reads_of_its_own_ranks(prefix: str, tmp_path: Path) -> None:
    run = run_over(headrace.open(prefix), global_batch_size=12, epochs=None, samples=600)
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    uses = BlockUses.of_run(run, block_bytes=BLOCK)
    reads = uses.reads(np.arange(600))
    # Micro-batches of 3: in each step, rank r takes the slots 3 r to 3 r + 2.
    steps, nodes = reads.rows // 12, reads.rows % 12 // 6
    blocks = np.arange(0, uses.table.num_blocks, 7, dtype=np.int64)
    for rank in range(4):
        planner = CachePlanner(run, Share(rank, 4, 3), cache, per_node=2)
        for step in (0, 13, 49):
            found = planner.next_uses(blocks, np.full_like(blocks, step))
            for block, use in zip(blocks.tolist(), found.tolist(), strict=True):
                mine = (reads.blocks == block) & (nodes == rank // 2) & (steps > step)
                assert use == (int(steps[mine].min()) if mine.any() else NEVER)


def test_an_endless_run_has_a_next_use_for_every_block(prefix: str, tmp_path: Path) -> None:
    store = headrace.open(prefix)
    sources = {
        name: headrace.WindowDataset(store, seq_len=50, stride=stride) for name, stride in (("a", 50), ("b", 31))
    }
    run = headrace.Run(headrace.Blend(sources, weights={"a": 999, "b": 1}), global_batch_size=16)
    planner = CachePlanner(run, Share(0, 1, 16), Cache(tmp_path / "c", limit="1MB", block=BLOCK), per_node=1)
    found = planner.next_uses(np.arange(20, dtype=np.int64), np.full(20, 5, dtype=np.int64))
    assert ((found > 5) & (found < NEVER)).all()


def test_spans_that_are_planned_together_are_pinned_until_the_last_was_read(prefix: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", limit="1MB", block=BLOCK)
    run = run_over(headrace.open(prefix, reader=cache.reader("pread")))
    planner = CachePlanner(run, Share(0, 1, 16), cache, per_node=1)
    planner.begin()

    def planned(first: int, num_spans: int) -> int:
        """Plan some spans from a position on, and return how many plans are pinned."""
        steps = range(first // 16, first // 16 + num_spans)
        spans = [planner.add(np.arange(16 * step, 16 * step + 16), [step], [16]) for step in steps]
        planner.plan(spans[-1])
        query = "SELECT COUNT(DISTINCT span) FROM pins"
        found: int = cache.store._process().index.execute(query).fetchone()[0]
        return found

    assert planner.num_together == 1
    assert planned(0, 1) == 1
    assert 2 <= planner.num_together <= 16
    assert planned(16, 2) == 2, "two spans are one plan"
    planner.done()
    planner.done()
    assert planned(48, 1) == 2, "one of the two spans was not read"
    planner.done()
    assert planned(64, 1) == 2, "both were"


def test_a_span_fetches_its_blocks_of_all_files_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made where spans are read, so that a loop that trains does not wait for them."""
    rng = np.random.default_rng(4)
    for shard in range(4):
        corpora.write(tmp_path / "web" / f"shard-{shard}", [rng.integers(0, 60_000, 200) for _ in range(40)])
    asked: list[set[str]] = []

    class Noting(PreadReader):
        def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
            asked.append({Path(one.path).name for one in files})
            return super()._read_together(files)

    planned: set[str] = set()
    plan = block_store.BlockStore.plan

    def noted(*rest: Any, **more: Any) -> set[str]:
        planned.add(threading.current_thread().name)
        return plan(*rest, **more)

    monkeypatch.setattr(block_store.BlockStore, "plan", noted)
    cache = Cache(tmp_path / "cache", limit="4MB", block=BLOCK)
    run = run_over(headrace.open(str(tmp_path / "web"), reader=cache.reader(Noting())))
    loader = headrace.Loader(run, micro_batch_size=16, reading=headrace.loader.Reading(num_threads=1))
    plain = run_over(headrace.open(str(tmp_path / "web")))
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == fed(plain)
    asked = [names for names in asked if not any(name.endswith(".idx") for name in names)]
    uses = BlockUses.of_run(plain, block_bytes=BLOCK)
    files = uses.table.files(uses.reads(np.arange(16)).blocks)
    assert asked[0] == {Path(uses.files[file]).name for file in files.tolist()}
    assert len(asked[0]) > 1
    assert len(asked) < cache.stats.fetched_blocks / 4
    assert planned == {"headrace-read"}
    assert cache.stats.bypassed_blocks == cache.stats.waited_blocks == 0


FEW = 16 * BLOCK
"""Bytes of blocks of which a batch is a small part."""


class Fetches(PreadReader):
    """Notes the bytes and the files of each fetch of ranges; indexes are mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, set[str]]] = []

    def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
        self.noted.append((sum(int(one.lengths.sum()) for one in files), {Path(one.path).name for one in files}))
        return super()._read_together(files)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards") / "web"
    rng = np.random.default_rng(5)
    for shard in range(4):
        corpora.write(folder / f"shard-{shard}", [rng.integers(0, 60_000, 200) for _ in range(200)])
    return str(folder)


def packed(store: headrace.stores.Store) -> headrace.Run:
    dataset = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=100, strategy="best_fit_split"))
    return headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), epochs=1)


def loaded(run: headrace.Run, **reading: Any) -> list[list[int]]:
    loader = headrace.Loader(run, micro_batch_size=8, reading=headrace.loader.Reading(**reading))
    return [batch["input_ids"].flatten().tolist() for batch in loader]


def in_numpy(run: headrace.Run) -> list[list[int]]:
    loader = NumpyLoader(run, micro_batch_size=8, rank=0, world_size=1, per_node=1)
    return [batch["input_ids"].flatten().tolist() for batch in loader]


@pytest.mark.parametrize("make", [partial(run_over, global_batch_size=8, epochs=1), packed], ids=["windows", "packs"])
@pytest.mark.parametrize(
    "read",
    [
        partial(loaded, num_threads=0),
        partial(loaded, num_threads=1),
        partial(loaded, ahead="40MB"),
        in_numpy,
    ],
    ids=["now", "thread", "ahead", "numpy"],
)
def test_the_first_batch_does_not_wait_for_its_blocks(
    shards: str,
    tmp_path: Path,
    make: Callable[[headrace.stores.Store], headrace.Run],
    read: Callable[[headrace.Run], list[list[int]]],
) -> None:
    plain = make(headrace.open(shards))
    wanted = loaded(plain, num_threads=0)
    cache, inner = Cache(tmp_path / "cache", limit="4MB", block=FEW), Fetches()
    run = make(headrace.open(shards, reader=cache.reader(inner)))
    uses = BlockUses.of_run(run, block_bytes=FEW)
    # What is read to open the store, and to plan packs, is there already.
    inner.noted.clear()
    headrace.cache.clear_cache(cache.folder)
    before = cache.stats.fetched_bytes
    assert read(run) == wanted
    first = uses.touched(np.arange(8))
    files = {Path(uses.files[file]).name for file in uses.table.files(first.blocks).tolist()}
    assert inner.noted[0] == (int(first.used_bytes.sum()), files), "the samples alone, of all files at once"
    assert cache.stats.bypassed_blocks >= len(np.unique(first.blocks))
    assert cache.stats.fetched_bytes - before == int(first.used_bytes.sum()) + uses.table.num_bytes
    inner.noted.clear()
    assert read(run) == wanted
    assert inner.noted == [], "all is there, the blocks of the first batch, too"


def test_a_worker_does_not_wait_for_the_first_blocks(shards: str, tmp_path: Path) -> None:
    plain = run_over(headrace.open(shards), epochs=1)
    cache = Cache(tmp_path / "cache", limit="4MB", block=FEW)
    run = run_over(headrace.open(shards, reader=cache.reader("pread")), epochs=1)
    # A second worker could have fetched whole blocks for the next batch before this one reads the first.
    reading = headrace.loader.Reading(num_workers=1, start_method="fork")
    loader = headrace.Loader(run, micro_batch_size=16, reading=reading)
    assert [batch["input_ids"].flatten().tolist() for batch in loader] == fed(plain)
    loader.close()
    uses = BlockUses.of_run(run, block_bytes=FEW)
    assert cache.stats.bypassed_blocks >= len(np.unique(uses.touched(np.arange(16)).blocks))
    assert cache.store.content().blocks >= uses.table.num_blocks


def test_a_part_that_cannot_be_fetched_is_read_again(shards: str, tmp_path: Path) -> None:
    """A fault while the first samples are fetched leaves them to the reads, which try again."""

    class Failing(Fetches):
        def _read_together(self, files: Sequence[FileRanges]) -> list[list[ByteArray]]:
            found = super()._read_together(files)
            if len(self.noted) == 1:
                raise ReadFailure(0, OSError(errno.EIO, "a fault that passes"))
            return found

    inner = Failing()
    cache = Cache(tmp_path / "cache", limit="4MB", block=FEW)
    run = run_over(headrace.open(shards, reader=cache.reader(inner)), epochs=1)
    inner.noted.clear()
    headrace.cache.clear_cache(cache.folder)
    assert fed(run) == fed(run_over(headrace.open(shards), epochs=1))
    assert len(inner.noted) > 1


def test_ranks_of_slots() -> None:
    for size, world_size, micro in ((12, 2, 3), (13, 2, 2), (7, 4, 3), (1, 5, 1), (31, 3, 4)):
        offsets = np.arange(size)
        found = ranks_of(offsets, np.full(size, size), world_size=world_size, micro_batch_size=micro)
        assert found.tolist() == [taken_by(at, size, world_size, micro)[0] for at in range(size)]


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
    cache = Cache(tmp_path / "cache", limit="1MB", block=BLOCK)
    packing = headrace.Packing(seq_len=256, strategy="best_fit_split", repack=True)

    def packed(through: Cache) -> headrace.Run:
        store = headrace.open(prefix, cache=through)
        return headrace.Run(headrace.PackedSequenceDataset(store, packing), global_batch_size=4, epochs=1)

    with pytest.raises(ConfigError, match=r"made of others in each epoch.* cache .*make it with policy='pin'"):
        headrace.Loader(packed(cache), micro_batch_size=4)
    pinned = Cache(tmp_path / "pinned", limit="1MB", block=BLOCK, policy="pin")
    assert len(list(headrace.Loader(packed(pinned), micro_batch_size=4))) > 2
    with pytest.raises(ConfigError, match="expected a Cache"):
        headrace.open(prefix, cache="/nvme")  # type: ignore[call-overload]
    stores = [headrace.open(prefix, cache=one) for one in (cache, pinned)]
    blend = headrace.Blend(
        {str(at): headrace.WindowDataset(one, seq_len=50) for at, one in enumerate(stores)}, repeats={"0": 1, "1": 1}
    )
    with pytest.raises(ConfigError, match=r"read through 2 caches, .*cache, .*pinned"):
        headrace.Loader(headrace.Run(blend, global_batch_size=4), micro_batch_size=4)


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


def test_a_small_cache_while_reading_ahead(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_ROWS", 4)
    plain = run_over(headrace.open(prefix), "blocks", global_batch_size=4)
    missed = {}
    for name, reading in (("now", headrace.loader.Reading(num_threads=0)), ("ahead", headrace.loader.Reading(ahead=1))):
        cache = Cache(tmp_path / name, limit=12 * BLOCK, block=BLOCK)
        run = run_over(headrace.open(prefix, reader=cache.reader("pread")), "blocks", global_batch_size=4)
        loader = headrace.Loader(run, micro_batch_size=4, reading=reading)
        found = [batch["input_ids"].flatten().tolist() for batch in loader]
        assert found == [batch["input_ids"].flatten().tolist() for batch in headrace.Loader(plain, micro_batch_size=4)]
        missed[name] = cache.stats.fetched_blocks + cache.stats.bypassed_blocks
        assert cache.store.content().num_bytes <= cache.limit_bytes
        cache.store.finish([])
        assert headrace.cache.check_cache(cache.folder) == []
    assert abs(missed["ahead"] - missed["now"]) <= 0.05 * missed["now"]


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


def _trained(prefix: str, folder: str, seed: int, kill: int, fed_to: str) -> None:
    """Feed a run through the cache, a batch a line of a file; the process is killed before write ``kill`` is done."""
    cache = Cache(folder, limit=40 * BLOCK, block=BLOCK)
    whole, num_writes = block_store.write_all, 0

    def write_all(write: Callable[[memoryview], int], data: memoryview) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == kill:
            whole(write, data[:100])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(write, data)

    block_store.write_all = write_all
    run = run_over(headrace.open(prefix, cache=cache), order=headrace.Order(seed=seed), epochs=2)
    with Path(fed_to).open("w", buffering=1) as file:
        for batch in headrace.Loader(run, micro_batch_size=16):
            file.write(json.dumps(batch["input_ids"].flatten().tolist()) + "\n")


def test_two_runs_share_a_cache_and_one_is_killed_in_the_middle_of_a_write(prefix: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    files = [tmp_path / "first", tmp_path / "second"]
    # How much each keeps depends on how far the other one is: from 36 blocks on.
    lives = zip((1, 2), (0, 10), files, strict=True)
    runs = [
        context.Process(target=_trained, args=(prefix, str(folder), seed, kill, str(file)))
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
    assert content.fetching == content.runs == 0
    left = headrace.cache.check_cache(folder)
    assert [line for line in left if "damaged" in line or "missing" in line] == []
    assert headrace.cache.check_cache(folder) == []
