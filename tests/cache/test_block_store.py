"""Caches: what a folder keeps and what goes; what survives kills, torn files and full disks; files read through one."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

import headrace
import killing
from children import results_of
from headrace.cache import (
    BlockStore,
    Cache,
    CacheStats,
    block_store as module,
    check_cache,
    clear_cache,
    describe_cache,
    process as process_module,
)
from headrace.cache.block_store import CacheBlock, block_name
from headrace.cache.process import FOLDER_NAME, CacheProcess, IndexFullError
from headrace.cli import main
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.io import FilePool, MmapReader, ObjectReader, PreadReader, Reader
from headrace.testing.readers import ReaderContract
from memory_stores import memory_bucket

BLOCK = 64


def name_of(number: int) -> str:
    return block_name("file", number)


def bytes_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, BLOCK, dtype=np.uint8)


def make(folder: Path, *, blocks: int = 4) -> BlockStore:
    return BlockStore(folder / "cache", limit_bytes=blocks * BLOCK, block_bytes=BLOCK)


def read(store: BlockStore, number: int) -> bool:
    """Whether a block is there, with the bytes that it must have."""
    out = np.zeros(BLOCK, np.uint8)
    is_there = store.read(name_of(number), [(0, out.data)])
    assert not is_there or (out == bytes_of(number)).all()
    return is_there


def claimed(store: BlockStore, number: int, label: str | None = "web") -> str:
    return store.claim([CacheBlock(name_of(number), BLOCK, label)])[0]


def put(store: BlockStore, number: int) -> bool:
    return store.put(name_of(number), bytes_of(number))


def fetch(store: BlockStore, number: int, label: str | None = "web") -> str:
    claim = claimed(store, number, label)
    if claim == "ours":
        put(store, number)
    return claim


@given(st.lists(st.integers(0, 7), max_size=30), st.integers(1, 4))
def test_the_first_blocks_are_kept(blocks: list[int], capacity: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder), blocks=capacity)
        store.use("web")
        hits = []
        for block in blocks:
            hits.append(read(store, block))
            if not hits[-1]:
                fetch(store, block)
            assert store.content().num_bytes <= store.limit_bytes
    kept = list(dict.fromkeys(blocks))[:capacity]
    assert hits == [block in kept and block in blocks[:at] for at, block in enumerate(blocks)]


def test_blocks_that_no_living_process_reads_make_room(tmp_path: Path) -> None:
    old = make(tmp_path, blocks=2)
    old.use("old")
    assert [fetch(old, number, "old") for number in (1, 2)] == ["ours", "ours"]
    store = make(tmp_path, blocks=2)
    store.use("new")
    assert fetch(store, 3, "new") == "bypass", "the other one may still read both"
    old.use_none()
    assert fetch(store, 4, None) == "bypass", "its home is elsewhere, so nothing goes for it"
    assert fetch(store, 3, "new") == "ours"
    assert [read(store, number) for number in (1, 2, 3)].count(True) == 2
    assert fetch(store, 4, "new") == "ours"
    assert [read(store, number) for number in (1, 2, 3, 4)] == [False, False, True, True]
    assert fetch(store, 5, "new") == "bypass"
    assert store.stats.evicted_blocks == 2
    assert store.content().num_bytes == 2 * BLOCK


def test_a_dead_process_keeps_no_blocks(tmp_path: Path) -> None:
    """Until somebody else needs the room, they stay: for the run that is started again."""

    def work() -> None:
        store = make(tmp_path, blocks=2)
        store.use("old")
        fetch(store, 1, "old")
        fetch(store, 2, "old")

    assert killing.run(work, moment=1000)
    store = make(tmp_path, blocks=2)
    assert [read(store, number) for number in (1, 2)] == [True, True]
    store.use("new")
    assert fetch(store, 3, "new") == "ours"
    assert store.content().blocks == 2


def test_a_process_that_is_killed_keeps_its_claims_no_longer(tmp_path: Path) -> None:
    dead = make(tmp_path, blocks=1)
    assert claimed(dead, 1) == "ours"
    for process in dead._processes.values():
        process.leave()
    store = make(tmp_path, blocks=1)
    assert not store.is_being_fetched(name_of(1))
    assert fetch(store, 1) == "ours"
    assert read(store, 1)


def test_a_block_that_another_fetches_is_waited_for(tmp_path: Path) -> None:
    store, other = make(tmp_path), make(tmp_path)
    assert claimed(store, 1) == "ours"
    assert claimed(other, 1) == "theirs"
    assert claimed(store, 1) == "theirs", "as another thread of the same process"
    assert other.is_being_fetched(name_of(1))
    assert put(store, 1)
    assert not other.is_being_fetched(name_of(1))
    assert read(other, 1)
    assert claimed(store, 2) == "ours"
    store.give_up(name_of(2))
    assert claimed(other, 2) == "ours"


@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment(tmp_path: Path, moment: int) -> None:
    """What a killed process has left behind disturbs nobody, and is gone after a look at the cache."""
    make(tmp_path, blocks=2)

    def work() -> None:
        store = make(tmp_path, blocks=2)
        for number in range(4):
            # Two blocks fit, and the last two take their place.
            store.use_none()
            store.use(str(number // 2))
            if not read(store, number):
                fetch(store, number, str(number // 2))

    is_whole = killing.run(work, moment=moment)
    store = make(tmp_path, blocks=2)
    assert store.content().readers == 0
    for number in range(4):
        if not read(store, number):
            fetch(store, number)
    assert store.content().num_bytes <= store.limit_bytes
    assert store.content().fetching == 0
    found = list(store.verify())
    assert not is_whole or found == []
    assert list(store.verify()) == []
    assert not list((tmp_path / "cache" / "blocks").glob("*/.*"))
    total = sum(file.stat().st_size for file in (tmp_path / "cache" / "blocks").glob("*/*"))
    assert total == store.content().num_bytes


def test_torn_and_changed_files_are_fetched_again(tmp_path: Path) -> None:
    store = make(tmp_path)
    for number in range(3):
        fetch(store, number)
    paths = [store._process().path(name_of(number)) for number in range(3)]
    fresh = make(tmp_path)
    os.truncate(paths[0], BLOCK // 2)
    assert [read(fresh, number) for number in range(3)] == [False, True, True]
    assert fresh.stats.torn_blocks == 1
    assert fetch(fresh, 0) == "ours"
    changed = bytearray(paths[1].read_bytes())
    changed[5] ^= 1
    paths[1].write_bytes(changed)
    paths[2].unlink()
    found = list(make(tmp_path).verify())
    assert sorted(line.partition(": ")[2].partition(":")[0] for line in found) == ["damaged", "missing"]
    assert list(make(tmp_path).verify()) == []
    assert fetch(make(tmp_path), 1) == "ours"


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file, whose size and times stay as they are."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("wanted", [(0, BLOCK), (20, 30), (50, 51)])
def test_a_block_is_compared_with_its_hash_before_its_first_byte_is_used(
    tmp_path: Path, wanted: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    store = make(tmp_path)
    fetch(store, 1)
    path = store._process().path(name_of(1))
    flip(path, 40)
    fresh = make(tmp_path)
    out = np.zeros(wanted[1] - wanted[0], np.uint8)
    assert not fresh.read(name_of(1), [(wanted[0], out.data)])
    assert not out.any()
    assert fresh.stats.torn_blocks == 1
    assert "1 damaged blocks fetched again" in fresh.stats.describe()
    assert f"{path}: the file of a block is damaged; it is removed, and fetched again" in caplog.text
    assert fetch(fresh, 1) == "ours"
    assert read(fresh, 1)
    assert read(make(tmp_path), 1)


def test_a_block_is_compared_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(make(tmp_path), 1)
    monkeypatch.setattr(process_module, "_OPEN_BLOCKS", 1)
    compared = []
    digest = process_module._digest
    monkeypatch.setattr(process_module, "_digest", lambda block: compared.append(1) or digest(block))
    store = make(tmp_path)
    fetch(store, 2)
    for _ in range(3):
        assert read(store, 1)
        assert read(store, 2)
    assert len(compared) == 1, "the other one was written by this process"
    # Another process has found it damaged, and written it anew.
    path = store._process().path(name_of(1))
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").rename(path)
    assert read(store, 1)
    assert len(compared) == 2


@pytest.mark.parametrize("damage", ["garbage", "cut short", "a page", "another database", "later"])
def test_a_damaged_index_is_named_and_the_run_goes_on_without_the_cache(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(tmp_path)
    fetch(store, 1)
    index = tmp_path / "cache" / "index.sqlite"
    if damage == "later":
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.executescript("DROP TABLE totals")
    else:
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole = index.read_bytes()
        store = make(tmp_path)
        for left in (tmp_path / "cache").glob("index.sqlite*"):
            left.unlink()
        if damage == "another database":
            with contextlib.closing(sqlite3.connect(index)) as connection:
                connection.execute("CREATE TABLE blocks (name)")
        else:
            damaged = {"cut short": whole[: len(whole) // 2], "a page": whole[:4096] + bytes(4096) + whole[8192:]}
            index.write_bytes(damaged.get(damage, b"no database at all " * 300))
        assert not read(store, 1)
    assert claimed(store, 2) == "bypass"
    store.use("web")
    store.use_none()
    assert not read(store, 2)
    assert claimed(store, 2) == "bypass"
    assert caplog.text.count("index.sqlite: the index of the cache cannot be used: ") == 1
    assert "this process reads without the cache" in caplog.text
    for ask in (store.content, store.clear, lambda: list(store.verify())):
        with pytest.raises(StoreError, match=r"index.sqlite"):
            ask()
    assert len(list((tmp_path / "cache" / "blocks").glob("*/*"))) == 1, "nothing was removed"


def test_a_disk_that_has_no_room_for_the_index_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block whose entry could not be written is read nevertheless, and one that was given up is fetched again."""
    store = make(tmp_path)
    assert fetch(store, 0) == "ours"
    assert claimed(store, 1) == claimed(store, 2) == "ours"

    @contextlib.contextmanager
    def full(_: CacheProcess) -> Iterator[None]:
        raise IndexFullError("database or disk is full")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(CacheProcess, "changing", full)
        assert not put(store, 1)
        store.give_up(name_of(2))
        assert claimed(store, 3) == "bypass"
        with pytest.raises(OutputError, match="room"):
            store.clear()
        with pytest.raises(OutputError, match="room"):
            make(tmp_path).content()
    assert store.stats.failed_writes == 2
    assert read(store, 0)
    assert read(store, 1)
    assert not read(store, 2)
    assert fetch(store, 2) == "ours", "nobody waits for the one that was lost"
    assert read(store, 2)


def test_a_full_disk_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    fetch(store, 0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert claimed(store, 1) == "ours"
        assert not put(store, 1)
    assert store.stats.failed_writes == 1
    assert claimed(store, 1) == "bypass", "it waits a while before it tries again"
    assert read(store, 0)
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    store._no_writes_until = 0.0
    assert fetch(store, 1) == "ours"
    assert list(store.verify()) == []


def test_only_what_is_its_own_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis.tex.*headrace-cache.json"):
        make(tmp_path)
    (tmp_path / "cache" / "thesis.tex").unlink()
    store = make(tmp_path)
    fetch(store, 0)
    own = tmp_path / "cache" / "notes.txt"
    own.write_text("kept")
    assert store.clear() == 1
    assert own.read_text() == "kept"
    assert store.content().blocks == 0
    with pytest.raises(ConfigError, match=r"64.*32.*block=64"):
        BlockStore(tmp_path / "cache", limit_bytes=640, block_bytes=32)
    (tmp_path / "cache" / FOLDER_NAME).write_text("{")
    with pytest.raises(ConfigError, match="version"):
        make(tmp_path)


def test_it_is_usable_in_a_process_that_was_forked(tmp_path: Path) -> None:
    store = make(tmp_path)
    fetch(store, 0)

    def work() -> None:
        assert read(store, 0)
        assert fetch(store, 1) == "ours"
        assert store.stats.hits == 0

    assert killing.run(work, moment=1000)
    assert read(store, 1)
    assert store.content().blocks == 2


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    fetch(make(tmp_path), 0)
    shutil.rmtree(tmp_path / "cache")
    assert make(tmp_path).content().blocks == 0


def _enters(folder: Path, together: Barrier) -> None:
    try:
        for number in range(20):
            store = BlockStore(folder / str(number), limit_bytes=1 << 20, block_bytes=64)
            together.wait()
            store.content()
    except BaseException:
        together.abort()
        raise


def test_a_folder_may_be_made_by_another_process_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has looked for the file of a cache, which is not there, and then sees what the other one has made."""
    iterdir = Path.iterdir

    def late(self: Path) -> Iterator[Path]:
        monkeypatch.undo()
        make(tmp_path)
        return iterdir(self)

    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(Path, "iterdir", late)
    assert make(tmp_path).content().blocks == 0


def test_processes_may_enter_a_new_cache_at_the_same_moment(tmp_path: Path) -> None:
    """As the ranks of a node do: SQLite refuses a change of journal mode at once if another process is at it."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(4)
    processes = [context.Process(target=_enters, args=(tmp_path, together)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4


class TestReaderThroughACache(ReaderContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("cache")

    def make(self, pool: FilePool) -> Reader:
        return Cache(self.folder / "cache", limit="1MB", block=512).reader(PreadReader(pool=pool))


@pytest.fixture
def data(tmp_path: Path) -> np.ndarray:
    values = np.random.default_rng(3).integers(0, 256, 10_000, dtype=np.uint8)
    (tmp_path / "data.bin").write_bytes(values.tobytes())
    return values


def test_each_block_is_fetched_once_and_counted(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=1000)
    reader = cache.reader("pread")
    path = str(tmp_path / "data.bin")
    offsets, lengths = np.array([1500, 100, 9500]), np.array([1200, 50, 500])
    found = reader.read_ranges(path, offsets, lengths)
    assert found.tobytes() == b"".join(
        data[at : at + size].tobytes() for at, size in zip(offsets, lengths, strict=True)
    )
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.fetched_bytes, stats.read_bytes) == (4, 0, 4000, 1750)
    reader.read_ranges(path, offsets, lengths)
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.fetched_bytes) == (4, 4, 4000)
    other = Cache(tmp_path / "cache", limit="1MB", block=1000)
    assert (other.reader("pread").read(path, 0, 10_000) == data).all()
    assert (other.stats.fetched_blocks, other.stats.hits) == (6, 4)


@pytest.mark.parametrize("place", ["disk", "store"])
def test_what_goes_through_a_cache(tmp_path: Path, data: np.ndarray, place: str) -> None:
    """Ranges and whole files do; neither the ends by which a file is known, nor a pass over all of it."""
    with memory_bucket() as bucket:
        bucket.put("data.bin", data.tobytes())
        path = str(tmp_path / "data.bin") if place == "disk" else f"{bucket.url}/data.bin"
        cache = Cache(tmp_path / "cache", limit="1MB", block=1000)
        reader = cache.reader("pread" if place == "disk" else ObjectReader())
        assert reader.ends(path, 4) == data[:4].tobytes() + data[-4:].tobytes()
        assert (reader.for_pass().read(path, 0, 10_000) == data).all()
        assert (cache.stats.fetched_blocks, cache.stats.read_bytes) == (0, 0)
        for hits in (0, 10):
            assert [(found == data).all() for found in reader.read_files([path, path])] == [True, True]
            assert (cache.stats.fetched_blocks, cache.stats.hits - hits) == (10, hits + 10)
        reader.close()
        assert (reader.read(path, 500, 1000) == data[500:1500]).all()
        assert cache.stats.fetched_bytes == 10_000


def test_what_is_not_kept_is_fetched_as_far_as_it_is_read(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit=2000, block=1000)
    reader = cache.reader("pread")
    for offset in range(0, 10_000, 500):
        assert (reader.read(str(tmp_path / "data.bin"), offset, 10) == data[offset : offset + 10]).all()
    stats = cache.stats
    assert (stats.fetched_blocks, stats.hits, stats.bypassed_blocks) == (2, 2, 16)
    assert stats.fetched_bytes == 2 * 1000 + 16 * 10


def test_a_node_keeps_the_blocks_that_it_is_the_home_of(tmp_path: Path, data: np.ndarray) -> None:
    """Also in a worker, whose cache is a copy; and it makes room for them if the number of nodes changes."""
    path = str(tmp_path / "data.bin")
    cache = Cache(tmp_path / "cache", limit=4000, block=1000)
    cache.keep_homes([path], [5], num_nodes=3, node=1)
    copy = pickle.loads(pickle.dumps(cache.reader("pread")))
    for reader in (cache.reader("pread"), copy):
        assert (reader.read(path, 0, 10_000) == data).all()
    # Blocks 5 to 14, of which 7, 10 and 13 have their home here.
    assert (cache.stats.fetched_blocks, cache.stats.bypassed_blocks) == (3, 7)
    assert (copy.cache.stats.fetched_blocks, copy.cache.stats.hits) == (0, 3)
    copy.cache.store.use_none()
    cache.keep_homes([path], [5], num_nodes=2, node=0)
    assert (cache.reader("pread").read(path, 0, 10_000) == data).all()
    # 6, 8, 10, 12 and 14; 10 is there.
    assert cache.stats.evicted_blocks == 3
    assert describe_cache(cache.folder).blocks == 4


@pytest.mark.parametrize("through", ["loader", "step"])
def test_flipped_bits_never_become_tokens(tmp_path: Path, through: str) -> None:
    """Neither of a block, nor of the index: blocks are fetched anew and counted, and a run goes on without an index."""
    with headrace.stores.IndexedWriter(str(tmp_path / "web"), dtype="int32") as writer:
        writer.add_documents(np.arange(5001, dtype=np.int32), np.array([100, 1900, 3001]))
        writer.finish()

    def steps() -> tuple[list[list[int]], CacheStats]:
        cache = Cache(tmp_path / "cache", limit="10MB", block="1KiB")
        dataset = headrace.WindowDataset(headrace.open(tmp_path / "web", cache=cache), seq_len=25)
        run = headrace.Run(dataset, global_batch_size=20, samples=200, order=headrace.Order(seed=1))
        if through == "step":
            found = [run.step(step)["input_ids"] for step in range(10)]
        else:
            found = [batch["input_ids"].numpy() for batch in headrace.Loader(run, micro_batch_size=20)]
        return [batch[:, 0].tolist() for batch in found], cache.stats

    expected, _ = steps()
    blocks = [file for file in (tmp_path / "cache" / "blocks").rglob("*") if file.is_file()]
    for block in blocks:
        status = block.stat()
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 8
        block.write_bytes(data)
        os.utime(block, ns=(status.st_atime_ns, status.st_mtime_ns))
    found, stats = steps()
    assert found == expected
    assert stats.torn_blocks == len(blocks)
    again, stats = steps()
    assert (again, stats.torn_blocks, stats.fetched_bytes) == (expected, 0, 0)
    for file in (tmp_path / "cache").glob("index.sqlite*"):
        file.unlink()
    (tmp_path / "cache" / "index.sqlite").write_bytes(b"damaged" * 1000)
    found, stats = steps()
    assert (found, stats.hits) == (expected, 0)
    assert stats.bypassed_blocks
    checked = CliRunner().invoke(main, ["cache", "info", str(tmp_path / "cache")])
    assert checked.exit_code
    assert "index.sqlite: the index of the cache cannot be used" in checked.output


def test_a_changed_file_is_another_file(tmp_path: Path, data: np.ndarray) -> None:
    cache = Cache(tmp_path / "cache", limit="1MB", block=1000)
    path = tmp_path / "data.bin"
    assert cache.reader("pread").read(str(path), 0, 10).tobytes() == data[:10].tobytes()
    path.write_bytes(bytes(10_000))
    os.utime(path, ns=(1, 1))
    fresh = Cache(tmp_path / "cache", limit="1MB", block=1000)
    assert fresh.reader("pread").read(str(path), 0, 10).tobytes() == bytes(10)


def _read_all(folder: str, order: list[int]) -> tuple[bytes, CacheStats]:
    cache = Cache(Path(folder) / "cache", limit="1MB", block=100)
    reader = cache.reader("pread")
    values = np.concatenate([reader.read(f"{folder}/data.bin", at * 50, 50) for at in order])
    return values.tobytes(), cache.stats


def test_processes_that_read_at_once_fetch_each_block_once(tmp_path: Path, data: np.ndarray) -> None:
    orders = [np.random.default_rng(seed).permutation(200).tolist() for seed in range(4)]
    results = results_of(_read_all, [(str(tmp_path), order) for order in orders])
    expected = {b"".join(data[at * 50 : at * 50 + 50].tobytes() for at in order) for order in orders}
    assert {values for values, _ in results} == expected
    assert sum(stats.fetched_blocks for _, stats in results) == 100
    assert sum(stats.bypassed_blocks for _, stats in results) == 0
    assert sum(stats.fetched_bytes for _, stats in results) == len(data)


def test_what_is_not_allowed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"10.*block"):
        Cache(tmp_path, limit=10, block=100)
    cache = Cache(tmp_path / "cache", limit="1MB", block=100)
    for inner in (MmapReader(), cache.reader(PreadReader())):
        with pytest.raises(ConfigError, match="through"):
            cache.reader(inner)
    with pytest.raises(ConfigError, match="cache"):
        describe_cache(tmp_path / "elsewhere")


def test_commands(tmp_path: Path, data: np.ndarray) -> None:
    folder = tmp_path / "cache"
    cache = Cache(folder, limit="1MB", block=1000)
    cache.reader("pread").read(str(tmp_path / "data.bin"), 0, 3000)
    told = CliRunner().invoke(main, ["cache", "info", str(folder)])
    assert told.exit_code == 0, told.output
    assert "3 blocks, 3.00 kB" in told.output
    assert CliRunner().invoke(main, ["cache", "verify", str(folder)]).exit_code == 0
    next((folder / "blocks").glob("*/*")).write_bytes(b"x")
    wrong = CliRunner().invoke(main, ["cache", "verify", str(folder)])
    assert wrong.exit_code == 1
    assert "damaged" in wrong.output
    assert CliRunner().invoke(main, ["cache", "verify", str(folder)]).exit_code == 0
    assert "2 blocks removed" in CliRunner().invoke(main, ["cache", "clear", str(folder)]).output
    assert describe_cache(folder).blocks == 0
    assert check_cache(folder) == []
    assert clear_cache(folder) == 0
    missing = CliRunner().invoke(main, ["cache", "info", str(tmp_path)])
    assert missing.exit_code == 2


def test_a_wait_that_takes_too_long_says_so(
    tmp_path: Path, data: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.cache.reading.WAIT_S", 0.01)
    path = str(tmp_path / "data.bin")
    cache, other = (Cache(tmp_path / "cache", limit="1MB", block=1000) for _ in range(2))
    reader = cache.reader("pread")
    assert other.store.claim([CacheBlock(block_name(reader.identity(path), 2), 1000, "web")]) == ["ours"]
    with caplog.at_level(logging.WARNING, "headrace"):
        assert (reader.read(path, 2100, 50) == data[2100:2150]).all()
    [line] = caplog.messages
    assert line.startswith(f"{path}: byte 2000: another process has fetched this block for 0 s")
    assert cache.stats.bypassed_blocks == 1
