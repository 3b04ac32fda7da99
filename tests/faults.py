"""Runs over text that are ended, or meet a full disk, at any change that they make on disk.

The workers run inside this process, so a whole run takes some hundredths of a second and every moment can be tried;
`tests/preparing/test_faults.py` kills real ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace
import killing
import stored
from headrace.engine import doing, heartbeat
from headrace.engine.processes import WorkerProcesses
from headrace.engine.serving import Parent, Reply
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import HeadraceError, WorkerError
from headrace.preparing import PrepareOptions, documents, finishing, worker as text_task
from headrace.preparing.run_plan import Order, Setup
from headrace.preparing.sources import open_span
from headrace.preparing.worker import TextWorker
from headrace.stores import Manifest

KILLED = killing.KILLED
TAKING_SPACE = ("write", "create")
ANOTHER_NUMBER = {1: 3, 2: 1, 3: 2}


class InlineWorkers:
    """Stands for `WorkerProcesses`. The last task is done first, so that much is done ahead.

    A task waits, in a thread, whenever it says how far it is: a kill finds it half-way.
    """

    def __init__(self, num_workers: int, setup: Setup, main: str, serve: object = None) -> None:
        self._num_workers = num_workers
        self._worker = TextWorker(Parent(self, os.getppid()), setup)  # type: ignore[arg-type]
        self._orders: list[tuple[int, Order]] = []
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._said: queue.SimpleQueue[tuple[Reply, bool]] = queue.SimpleQueue()
        self._may_go_on = threading.Semaphore(0)
        self._current: tuple[int, threading.Thread] | None = None
        self._is_over = False

    def __enter__(self) -> InlineWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._current is not None:
            self._is_over = True
            self._may_go_on.release()
            self._current[1].join()

    def __len__(self) -> int:
        return self._num_workers

    def send_bytes(self, message: bytes) -> None:
        """The worker says something before its task is over."""
        self._said.put((self._decoder.decode(message), False))
        self._may_go_on.acquire()
        if self._is_over:
            raise SystemExit

    def _do(self, order: Order) -> None:
        with contextlib.suppress(SystemExit):
            self._said.put((self._worker.handle(order), True))

    def send(self, worker: int, order: Order) -> None:
        self._orders.append((worker, order))

    def receive(self, timeout_s: float) -> list[tuple[int, Reply]]:
        if self._current is not None:
            self._may_go_on.release()
        elif self._orders:
            worker, order = self._orders.pop()
            thread = threading.Thread(target=self._do, args=(order,), daemon=True)
            self._current = (worker, thread)
            thread.start()
        else:
            return []
        worker, thread = self._current
        reply, is_last = self._said.get()
        if is_last:
            thread.join()
            self._current = None
        return [(worker, reply)]


@contextlib.contextmanager
def small_run() -> Iterator[None]:
    """Blocks of some kB, workers in this process, one document in three proved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doing, "WorkerProcesses", InlineWorkers)
        patch.setattr(heartbeat, "STALE_S", 0.0)  # a process that was killed is not waited for
        patch.setattr(doing, "REFRESH_S", 0.0)
        patch.setattr(os, "fsync", lambda descriptor: None)  # a kill loses nothing that was not synced
        patch.setattr(finishing, "STEP_BYTES", 4000)
        patch.setattr(text_task, "open_span", functools.partial(open_span, block_bytes=2000))
        patch.setattr(documents, "SAMPLE_ONE_IN", 3)
        patch.setattr("headrace.preparing.run.NUM_DOCUMENTS", 5)
        yield


@contextlib.contextmanager
def real_workers() -> Iterator[None]:
    """Within `small_run`: workers in processes of their own, which know of none of its changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doing, "WorkerProcesses", WorkerProcesses)
        yield


class Changes:
    """Counts the changes that are made on disk, and lets ``act`` decide about each: what it returns is not done."""

    def __init__(self, act: Callable[[int, str, Callable[[], object]], None]) -> None:
        self.count = 0
        self._act = act

    def meet(self, kind: str, half: Callable[[], object]) -> None:
        """A change is about to be made; ``half`` does a part of it."""
        self.count += 1
        self._act(self.count - 1, kind, half)


class _CountedFile:
    """A file whose writes are counted."""

    def __init__(self, file: Any, changes: Changes) -> None:
        self._file = file
        self._changes = changes

    def write(self, data: Any) -> int:
        half = memoryview(data)[: len(data) // 2]
        self._changes.meet("write", lambda: self._file.write(half))
        return self._file.write(data)  # type: ignore[no-any-return]

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def watched(changes: Changes) -> Iterator[None]:
    """Every change that prepare makes on disk is met before it is made."""

    def counted(kind: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            half: Callable[[], object] = bool
            if kind == "write":
                data = memoryview(args[1]).cast("B")
                half = lambda: whole(args[0], data[: len(data) // 2], *args[2:])  # noqa: E731
            changes.meet(kind, half)
            return whole(*args, **kwargs)

        return call

    real_open = Path.open

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            changes.meet("create" if not path.exists() else "truncate", bool)
            return _CountedFile(real_open(path, mode, *args, **kwargs), changes)
        return real_open(path, mode, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "pwrite"):
            patch.setattr(os, name, counted("write", getattr(os, name)))
        for name in ("ftruncate", "fsync", "unlink", "rmdir", "rename", "link"):
            patch.setattr(os, name, counted(name, getattr(os, name)))
        for name in ("rename", "unlink"):  # some versions of Python do not go by way of os
            patch.setattr(Path, name, counted(name, getattr(Path, name)))
        patch.setattr(Path, "mkdir", counted("create", Path.mkdir))
        patch.setattr(Path, "open", opened)
        yield


def run_killed(action: Callable[[], object], moment: int) -> bool:
    """Whether ``action`` came to its end in a process that dies, without any clean-up, before its change ``moment``.

    Where that is a write, a half of it is done.
    """

    def die(count: int, kind: str, half: Callable[[], object]) -> None:
        if count == moment:
            half()
            os._exit(KILLED)

    return killing.forked(action, watched(Changes(die)))


def list_changes(action: Callable[[], object]) -> list[str]:
    """What kinds of changes the action makes."""
    kinds: list[str] = []
    with watched(Changes(lambda count, kind, half: kinds.append(kind))):
        action()
    return kinds


@contextlib.contextmanager
def full_disk(moment: int) -> Iterator[None]:
    """From this change on nothing more fits on the disk; of it a half, where it is a write."""

    def refuse(count: int, kind: str, half: Callable[[], object]) -> None:
        if count >= moment and kind in TAKING_SPACE:
            if count == moment:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watched(Changes(refuse)):
        yield


@contextlib.contextmanager
def interrupted(moment: int, then: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C within this change: half of it is done, then ``then``. A worker, which is in this process, fails of it."""

    def stop(count: int, kind: str, half: Callable[[], object]) -> None:
        if count == moment:
            half()
            then()
            raise KeyboardInterrupt

    with watched(Changes(stop)), contextlib.suppress(KeyboardInterrupt, WorkerError):
        yield


def content(folder: Path) -> dict[str, bytes]:
    """All files of a finished output, and nothing else is there."""
    assert not (folder / WORK_NAME).exists()
    return stored.files(folder)


def broken_lines() -> dict[int, str]:
    """Some lines of the corpus that are no records."""
    return {7: '{"text": ', 40: '{"title": "no text"}', 41: "\udcff", 90: "[]", 130: '{"text": 5, "title": "x"}'}


def write_inputs(folder: Path, *, with_bad: bool) -> list[Path]:
    """Plain and compressed files, with empty texts, duplicates, blank lines and, if wanted, bad records."""
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a lazy",
        "dog",
        "while",
        "it",
        "rains",
        "Ålesund",
        "漢字",
    ]
    lines = []
    for number in range(260):
        # The same 100 texts of 0 to 60 words come again and again.
        kind = number * 7919 % 150 if number % 3 else number
        text = " ".join(words[(kind * step + step) % len(words)] for step in range(1, kind * 37 % 61))
        lines.append(json.dumps({"id": f"d{number}", "title": f"title {kind}", "text": text}, ensure_ascii=False))
        if number % 50 == 49:
            lines.append("")
    if with_bad:
        for number, line in broken_lines().items():
            lines[number] = line
    folder.mkdir()
    data = [(line + "\n").encode("utf-8", "surrogateescape") for line in lines]
    (folder / "a.jsonl").write_bytes(b"".join(data[:100]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(data[100:220]), mtime=0))
    for number in range(3):
        (folder / f"c{number}.jsonl").write_bytes(b"".join(data[220 + number :: 3]))
    return sorted(folder.iterdir())


def prepare(
    inputs: Path, folder: Path, tokenizer: Path, options: PrepareOptions, *, workers: int, **changes: Any
) -> Manifest:
    """A run with another number of workers."""
    options = msgspec.structs.replace(options, workers=workers, **changes)
    return headrace.prepare([inputs], folder, tokenizer=tokenizer, options=options)


def error_of(action: Callable[[], object]) -> HeadraceError:
    """The error that the action ends with."""
    with pytest.raises(HeadraceError) as caught:
        action()
    return caught.value
