"""The folder of a cache: what it keeps, and what goes; what survives kills, torn files and full disks."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import killing
from headrace.cache import BlockStore
from headrace.cache import block_store as module
from headrace.cache import process as process_module
from headrace.cache.folder import FOLDER_NAME
from headrace.cache.process import CacheProcess, IndexFullError
from headrace.cache.transaction import CacheBlock, block_name
from headrace.errors import ConfigError, OutputError, StoreError

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
        with pytest.raises(
            StoreError, match=r"index.sqlite: .*: if it is damaged, remove .*cache and everything in it"
        ):
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
        with pytest.raises(OutputError, match="disk is full: make room"):
            store.clear()
        with pytest.raises(OutputError, match="disk is full: make room"):
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
    with pytest.raises(ConfigError, match=r"holds thesis.tex and no headrace-cache.json, so it is no cache"):
        make(tmp_path)
    (tmp_path / "cache" / "thesis.tex").unlink()
    store = make(tmp_path)
    fetch(store, 0)
    own = tmp_path / "cache" / "notes.txt"
    own.write_text("kept")
    assert store.clear() == 1
    assert own.read_text() == "kept"
    assert store.content().blocks == 0
    with pytest.raises(ConfigError, match=r"holds blocks of 64 bytes, and 32 are asked for: use block=64"):
        BlockStore(tmp_path / "cache", limit_bytes=640, block_bytes=32)
    (tmp_path / "cache" / FOLDER_NAME).write_text("{")
    with pytest.raises(ConfigError, match="damaged, or of another version"):
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
