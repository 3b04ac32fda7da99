"""The server that forks workers: locks that it finds frozen, its end, and what it and its workers share with others."""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import media_texts
from counts import PATIENCE_S
from headrace import Loader, MapDataset, MediaDataset, Order, Run, WorkerError
from headrace.loader import Reading, choosing
from headrace.loader.workers import pool
from waiting import descendants

EXPECTED = [str(number) for number in range(12)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (7, 5))


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    others = descendants()
    yield
    assert not descendants() - others


def by_process(sample: Any) -> Any:
    sample.text = f"{sample.text} {os.getpid()}"
    return sample


def loader_of(texts: Path, function: Callable[[Any], Any], reading: Reading | None = None) -> Loader:
    data = MapDataset(MediaDataset.open(texts, **media_texts.TEXT), function)
    run = Run(data, global_batch_size=2, order=Order(kind="none"), epochs=1)
    return Loader(run, micro_batch_size=2, reading=reading)


def read(loader: Loader) -> tuple[list[str], set[int]]:
    """The texts, and the processes that made them."""
    found = [text.split() for batch in loader for text in batch["text"]]
    loader.close()
    return [text for text, _ in found], {int(process) for _, process in found}


class Frozen(logging.Handler):
    """Has a lock that Python does not make anew in a fork, as handlers of other packages may."""

    def createLock(self) -> None:  # noqa: N802 -- logging calls it
        self.lock = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Nothing."""


class Releases(logging.Handler):
    """Sets an event when the loader warns."""

    def __init__(self, released: threading.Event, thread: threading.Thread) -> None:
        super().__init__(logging.WARNING)
        self._released = released
        self._thread = thread

    def emit(self, record: logging.LogRecord) -> None:
        self._released.set()
        self._thread.join()


@contextmanager
def held_by_another_thread(lock: Any, *, until_warned: bool) -> Iterator[None]:
    """Hold a lock in another thread; until the loader has warned, or for the whole time."""
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            released.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    handler = Releases(released, thread)
    if until_warned:
        logging.getLogger("headrace").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("headrace").removeHandler(handler)
        released.set()
        thread.join()


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    handler = Frozen()
    logging.getLogger("of.a.library").addHandler(handler)
    yield handler
    logging.getLogger("of.a.library").removeHandler(handler)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


LIBRARY: Any = threading.Lock()


def takes_the_lock(sample: Any) -> Any:
    with LIBRARY:
        return by_process(sample)


@pytest.mark.parametrize("whose", ["of logging", "of a library"])
def test_a_lock_that_a_thread_holds_at_the_moment_of_the_fork(
    texts: Path, frozen: Frozen, whose: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server takes the locks of logging itself; of others the first task tells. It is forked anew."""
    # A server that hangs is given up at once; one that works has seconds to come to the task that hangs.
    monkeypatch.setattr(pool, "_FIRST_LIMITS", (0.001 if whose == "of logging" else 0.01, 1.0, 1.0))
    with held_by_another_thread(frozen.lock if whose == "of logging" else LIBRARY, until_warned=True):
        found, processes = read(loader_of(texts, takes_the_lock, Reading(num_workers=2, start_method="fork")))
    assert found == EXPECTED
    assert os.getpid() not in processes
    [warning] = messages(caplog)
    assert ("did not answer" if whose == "of logging" else "takes_the_lock") in warning
    assert warning.endswith("Workers are forked anew, from the program as it is now (1)")


def test_the_third_time_the_loader_reads_itself_and_says_so(
    texts: Path, frozen: Frozen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choosing, "num_cores", lambda _: 4)
    monkeypatch.setattr(pool, "_FIRST_LIMITS", (0.001, 0.001, 0.001))
    with held_by_another_thread(frozen.lock, until_warned=False):
        assert read(loader_of(texts, by_process)) == (EXPECTED, {os.getpid()})
        *anew, last = messages(caplog)
        assert len(anew) == 2
        assert "processes forked from this program hang, 3 times in a row" in last
        assert "start_method='spawn'" in last
        # Who asks for workers is told.
        with pytest.raises(WorkerError, match="start_method='spawn'"):
            read(loader_of(texts, by_process, Reading(num_workers=1)))


def slowly(sample: Any) -> Any:
    time.sleep(0.02)
    return by_process(sample)


def test_a_server_that_is_killed_is_replaced_aloud(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(texts, slowly, Reading(num_workers=2, start_method="fork", prefetch=1))
    found = []
    for number, batch in enumerate(loader):
        found += batch["text"]
        if number == 1:
            [server] = [one.server for one in list(pool._living) if one.server is not None]
            os.kill(server.pid, signal.SIGKILL)
    loader.close()
    assert [text.split()[0] for text in found] == EXPECTED
    [warning] = messages(caplog)
    assert f"the server that forks workers (process {server.pid}) has ended" in warning
    assert "forked from the program as it is now, which may have changed globals since" in warning


def test_files_that_the_program_has_open_stay_open(texts: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        file["numbers"] = np.arange(100)
    with sqlite3.connect(tmp_path / "names.sqlite") as names:
        names.execute("CREATE TABLE names (number INTEGER, name TEXT)")
        names.executemany("INSERT INTO names VALUES (?, ?)", [(n, f"name{n}") for n in range(12)])
    with h5py.File(tmp_path / "numbers.h5") as file:

        def named(sample: Any) -> Any:
            number = int(sample.text)
            with sqlite3.connect(tmp_path / "names.sqlite") as own:
                [name] = own.execute("SELECT name FROM names WHERE number = ?", (number,)).fetchone()
            sample.text = f"{name}+{file['numbers'][number]}"
            return sample

        loader = loader_of(texts, named, Reading(num_workers=2, start_method="fork"))
        found = [text for batch in loader for text in batch["text"]]
        loader.close()
        assert found == [f"name{number}+{number}" for number in range(12)]
        assert file["numbers"][99] == 99
    assert names.execute("SELECT COUNT(*) FROM names").fetchone() == (12,)
    names.close()


def has_little_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)


def takes_much(sample: Any) -> Any:
    sample.text = str(len(np.ones(1 << 30, np.uint8))) if sample.text == "7" else sample.text
    return sample


def test_a_worker_that_runs_out_of_memory_says_so(texts: Path) -> None:
    reading = Reading(num_workers=1, start_method="fork", worker_init=has_little_memory)
    with pytest.raises(MemoryError, match="allocate"):
        list(loader_of(texts, takes_much, reading))


RANK = """
import sys
import threading

sys.path.insert(0, {tests!r})

import torch
import torch.distributed as dist

import media_texts
from headrace import Loader, MediaDataset, Order, Run
from headrace.loader import Ranks, Reading

rank, root, place = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
if rank == 0:
    run = Run(MediaDataset.open(root, **media_texts.TEXT), global_batch_size=2, order=Order(kind="none"), epochs=9)
    reading = Reading(num_workers=1, start_method="fork")
    loader = Loader(run, micro_batch_size=2, ranks=Ranks(0, 1, agree=False), reading=reading)
    batches = iter(loader)
    next(batches)
    workers = loader._feed.reader._workers
    print(workers.server.pid, workers.workers[0].pid, flush=True)
    threading.Event().wait()
print("waits", flush=True)
dist.all_reduce(torch.ones(1))
"""


def test_the_end_of_a_trainer_is_seen_by_its_peers(texts: Path, tmp_path: Path) -> None:
    """Its server and workers have none of its connections, and may live on a moment: here they are stopped."""
    (tmp_path / "rank.py").write_text(RANK.format(tests=str(Path(__file__).parents[1])))
    commands = [
        [sys.executable, str(tmp_path / "rank.py"), str(n), str(texts), str(tmp_path / "store")] for n in (0, 1)
    ]
    ranks = [
        subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        for one in commands
    ]
    stopped: list[int] = []
    try:
        lines = []
        for rank in ranks:
            assert rank.stdout is not None
            assert select.select([rank.stdout], [], [], PATIENCE_S)[0]
            lines.append(rank.stdout.readline())
        stopped = list(map(int, lines[0].split()))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        ranks[0].kill()
        ranks[0].wait(PATIENCE_S)
        assert ranks[1].wait(PATIENCE_S) not in (0, -signal.SIGKILL)
        assert all(Path(f"/proc/{pid}").exists() for pid in stopped)
    finally:
        for pid in stopped[::-1]:
            os.kill(pid, signal.SIGKILL)
        for rank in ranks:
            rank.kill()
            rank.wait(PATIENCE_S)
            if rank.stdout is not None:
                rank.stdout.close()
