"""The folder of a cache: what it keeps, against the plan; what survives kills, torn files and full disks."""

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
from headrace.cache.eviction import NEVER, PlannedBlock, Policy, Wanted, block_name
from headrace.cache.folder import FOLDER_NAME
from headrace.cache.process import CacheProcess, IndexFullError
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.plan.caching import next_uses, simulate

BLOCK = 64


def name_of(number: int) -> str:
    return block_name("file", number)


def bytes_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, BLOCK, dtype=np.uint8)


def make(folder: Path, *, blocks: int = 4, policy: Policy = "plan") -> BlockStore:
    return BlockStore(folder / "cache", limit_bytes=blocks * BLOCK, block_bytes=BLOCK, policy=policy)


def read(store: BlockStore, number: int) -> bool:
    """Whether a block is there, with the bytes that it must have."""
    out = np.zeros(BLOCK, np.uint8)
    is_there = store.read(Wanted(name_of(number), BLOCK, 0, BLOCK), [(0, out.data)])
    assert not is_there or (out == bytes_of(number)).all()
    return is_there


def claimed(store: BlockStore, number: int) -> str:
    return store.claim([Wanted(name_of(number), BLOCK, 0, BLOCK)])[0].who


def put(store: BlockStore, number: int) -> bool:
    return store.put(name_of(number), BLOCK, 0, bytes_of(number))


def fetch(store: BlockStore, number: int) -> str:
    claim = claimed(store, number)
    if claim == "ours":
        put(store, number)
    return claim


def plan(store: BlockStore, run: str, step: int, step_s: float, next_uses: dict[int, int]) -> None:
    """Plan a span that uses whole blocks, after the one before was read."""
    blocks = [
        PlannedBlock(Wanted(name_of(number), BLOCK, 0, BLOCK), use, lambda _: (0, BLOCK))
        for number, use in next_uses.items()
    ]
    span = store.next_span()
    store.plan(run, step, step_s, span=span, blocks=blocks, done=[span - 1])


@given(st.lists(st.integers(0, 7), max_size=30), st.integers(1, 4))
def test_the_hits_are_those_of_the_plan(blocks: list[int], capacity: int) -> None:
    array = np.array(blocks, dtype=np.int64)
    later = next_uses(array)
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder), blocks=capacity)
        hits = []
        for step, (block, use) in enumerate(zip(blocks, later.tolist(), strict=True)):
            plan(store, "run", step, 1.0, {block: NEVER if use == len(blocks) else use})
            hits.append(read(store, block))
            if not hits[-1]:
                fetch(store, block)
            assert store.content().num_bytes <= store.limit_bytes
    assert hits == simulate(array, capacity, "plan").is_hit.tolist()


@given(st.lists(st.integers(0, 7), max_size=20), st.integers(1, 4))
def test_pinned_blocks_are_the_first(blocks: list[int], capacity: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder), blocks=capacity, policy="pin")
        hits = [read(store, block) or fetch(store, block) == "never" for block in blocks]
    assert hits == simulate(np.array(blocks, dtype=np.int64), capacity, "pin").is_hit.tolist()


def test_blocks_that_nobody_knows_go_first(tmp_path: Path) -> None:
    store = make(tmp_path, blocks=2)
    assert fetch(store, 1) == "ours"
    plan(store, "run", 0, 1.0, {2: 5})
    assert fetch(store, 2) == "ours"
    assert fetch(store, 3) == "bypass", "it is not known when it is used, so nothing goes for it"
    plan(store, "run", 1, 1.0, {4: 9})
    assert fetch(store, 4) == "ours"
    assert [read(store, one) for one in (1, 2, 4)] == [False, True, True]
    plan(store, "run", 2, 1.0, {6: 20})
    assert fetch(store, 6) == "bypass"


def test_two_runs_are_compared_by_their_pace(tmp_path: Path) -> None:
    store, other = make(tmp_path, blocks=2), make(tmp_path, blocks=2)
    plan(store, "slow", 0, 10.0, {1: 3})
    assert fetch(store, 1) == "ours"
    plan(other, "fast", 0, 0.1, {2: 50})
    assert fetch(other, 2) == "ours"
    # In 5 s, in 30 s, and now one in 20 s: the slow run's block goes.
    plan(other, "fast", 0, 0.1, {3: 200})
    assert fetch(other, 3) == "ours"
    assert store.content().blocks == 2
    assert [read(store, one) for one in (1, 2, 3)] == [True, True, True], "its reader is not done yet"
    store.finish([0])
    assert [read(store, one) for one in (1, 2, 3)] == [False, True, True]


def test_a_block_that_another_fetches_is_waited_for(tmp_path: Path) -> None:
    store, other = make(tmp_path, policy="pin"), make(tmp_path, policy="pin")
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
            plan(store, "run", number, 1.0, {number: 10 - number})
            if not read(store, number):
                fetch(store, number)

    is_whole = killing.run(work, moment=moment)
    store = make(tmp_path, blocks=2)
    assert store.content().runs == 0
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
    store = make(tmp_path, policy="pin")
    for number in range(3):
        fetch(store, number)
    paths = [store._path(name_of(number)) for number in range(3)]
    fresh = make(tmp_path, policy="pin")
    os.truncate(paths[0], BLOCK // 2)
    assert [read(fresh, number) for number in range(3)] == [False, True, True]
    assert fresh.stats.torn_blocks == 1
    assert fetch(fresh, 0) == "ours"
    changed = bytearray(paths[1].read_bytes())
    changed[5] ^= 1
    paths[1].write_bytes(changed)
    paths[2].unlink()
    found = list(make(tmp_path, policy="pin").verify())
    assert sorted(line.partition(": ")[2].partition(":")[0] for line in found) == ["damaged", "missing"]
    assert list(make(tmp_path, policy="pin").verify()) == []
    assert fetch(make(tmp_path, policy="pin"), 1) == "ours"


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
    store = make(tmp_path, policy="pin")
    fetch(store, 1)
    path = store._path(name_of(1))
    flip(path, 40)
    fresh = make(tmp_path, policy="pin")
    out = np.zeros(wanted[1] - wanted[0], np.uint8)
    assert not fresh.read(Wanted(name_of(1), BLOCK, *wanted), [(wanted[0], out.data)])
    assert not out.any()
    assert fresh.stats.torn_blocks == 1
    assert "1 damaged blocks fetched again" in fresh.stats.describe()
    assert f"{path}: the file of a block is damaged; it is removed, and fetched again" in caplog.text
    assert fetch(fresh, 1) == "ours"
    assert read(fresh, 1)
    assert read(make(tmp_path, policy="pin"), 1)


def test_a_part_of_a_block_is_compared_too(tmp_path: Path) -> None:
    """The index cannot be wrong about where the part begins, either."""
    wanted = Wanted(name_of(1), BLOCK, 16, 48)
    out = np.zeros(32, np.uint8)

    def kept() -> Path:
        store = make(tmp_path, blocks=1)
        # Without room for all of a block only what is read of it is kept.
        plan(store, "run", 0, 1.0, {2: 50})
        assert fetch(store, 2) == "ours"
        part = PlannedBlock(wanted, 5, lambda _: (16, 48))
        store.plan("run", 0, 1.0, span=store.next_span(), blocks=[part], done=[0])
        assert not store.read(wanted, [(16, out.data)])
        assert store.claim([wanted]) == [("ours", 16, 48)]
        assert store.put(name_of(1), BLOCK, 16, bytes_of(1)[16:48])
        assert store.read(wanted, [(16, out.data)])
        assert (out == bytes_of(1)[16:48]).all()
        return store._path(f"{name_of(1)}@16-48")

    flip(kept(), 3)
    assert not make(tmp_path).read(wanted, [(16, out.data)])
    kept()
    with sqlite3.connect(tmp_path / "cache" / "index.sqlite") as index:
        index.execute("UPDATE blocks SET first = 8, bytes = 40")
    out[:] = 0
    assert not make(tmp_path).read(wanted, [(16, out.data)])
    assert not out.any()


def test_a_block_is_compared_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(make(tmp_path, policy="pin"), 1)
    monkeypatch.setattr(process_module, "_OPEN_BLOCKS", 1)
    compared = []
    digest = process_module._digest
    monkeypatch.setattr(process_module, "_digest", lambda block: compared.append(1) or digest(block))
    store = make(tmp_path, policy="pin")
    fetch(store, 2)
    for _ in range(3):
        assert read(store, 1)
        assert read(store, 2)
    assert len(compared) == 1, "the other one was written by this process"
    # Another process has found it damaged, and written it anew.
    path = store._path(name_of(1))
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").rename(path)
    assert read(store, 1)
    assert len(compared) == 2


@pytest.mark.parametrize("damage", ["garbage", "cut short", "a page", "another database", "later"])
def test_a_damaged_index_is_named_and_the_run_goes_on_without_the_cache(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(tmp_path, policy="pin")
    fetch(store, 1)
    index = tmp_path / "cache" / "index.sqlite"
    if damage == "later":
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.executescript("DROP TABLE totals")
    else:
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole = index.read_bytes()
        store = make(tmp_path, policy="pin")
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
    plan(store, "run", 0, 1.0, {2: 5})
    store.finish([0])
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
    store = make(tmp_path, policy="pin")
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
    store = make(tmp_path, policy="pin")
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
        BlockStore(tmp_path / "cache", limit_bytes=640, block_bytes=32, policy="pin")
    (tmp_path / "cache" / FOLDER_NAME).write_text("{")
    with pytest.raises(ConfigError, match="damaged, or of another version"):
        make(tmp_path)


def test_it_is_usable_in_a_process_that_was_forked(tmp_path: Path) -> None:
    store = make(tmp_path, policy="pin")
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
            store = BlockStore(folder / str(number), limit_bytes=1 << 20, block_bytes=64, policy="plan")
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
