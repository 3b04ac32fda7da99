"""The contract of kinds of work: tests that every kind of offline work passes, see `headrace.engine.job`."""
# ruff: noqa: D102 - the names of the tests are sentences

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import resource
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import msgspec
import pytest

from headrace.engine import doing
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Job, Show
from headrace.engine.receipts import RECEIPTS_NAME, Receipt, Receipts
from headrace.engine.serving import Parent, Reply
from headrace.errors import HeadraceError
from headrace.kinds import finish_job, open_job

KILLED = 9


class Killed(BaseException):
    """Stands for the end of a process where it cannot be killed: beside a store in its memory."""


class InlineWorkers:
    """Stands for `WorkerProcesses`, inside this process; of several orders the last is carried out first."""

    def __init__(self, num_workers: int, setup: msgspec.Struct, main: str, serve: object = None) -> None:
        module, _, function = main.partition(":")
        served: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{module}.serve", lambda *arguments: served.extend(arguments))
            getattr(importlib.import_module(module), function)(-1)
        _, setup_type, self._orders, handler = served
        first = msgspec.msgpack.decode(msgspec.msgpack.encode(setup), type=setup_type)
        self._handle = handler(Mock(spec=Parent), first)
        self._num_workers = num_workers
        self._sent: deque[tuple[int, bytes]] = deque()

    def __enter__(self) -> InlineWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        # As a process that ends, which leaves the folder that it works in: a fault of a sample may keep that open.
        worker = getattr(self._handle, "__self__", None)
        getattr(worker, "_opened", contextlib.nullcontext()).__exit__(None, None, None)
        del self._handle

    def __len__(self) -> int:
        return self._num_workers

    def send(self, worker: int, order: object) -> None:
        """See `WorkerProcesses`."""
        self._sent.append((worker, msgspec.msgpack.encode(order)))

    def receive(self, timeout_s: float) -> list[tuple[int, Reply]]:
        """See `WorkerProcesses`."""
        if not self._sent:
            return []
        worker, data = self._sent.pop()
        return [(worker, self._handle(msgspec.msgpack.decode(data, type=self._orders)))]


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Workers of jobs are inside this process, which has no patience with processes that are gone.

    Nothing is synced, since the end of a process, unlike that of the machine, loses nothing that was not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr("headrace.io.once._TORN_AFTER_S", 0.05)
        patch.setattr(doing, "WorkerProcesses", InlineWorkers)
        patch.setattr(doing, "REFRESH_S", 0.0)
        patch.setattr("headrace.engine.executors.REFRESH_S", 0.0)
        patch.setattr("headrace.engine.heartbeat.STALE_S", 0.0)
        for name in ("pause_s", "beat_s"):
            patch.setattr(f"headrace.engine.shared_objects.SharedObjects.{name}", 0.0)
        yield


def killed_at_a_receipt(action: Callable[[], object], *, is_created: bool) -> None:
    """This process ends where ``action`` creates its first receipt, before it or after it."""
    create = Receipts.create

    def last(receipts: Receipts, receipt: Receipt) -> bool:
        if is_created:
            create(receipts, receipt)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receipts, "create", last)
        action()


def ending(action: Callable[[], object], *, apart: bool) -> int:
    """Return how ``action`` ends, in a process of its own or in this one.

    Returns:
        0: to the end; `KILLED`: by `Killed`, after which nothing of a process of its own runs any more; 3: with an
        error of Headrace; 1: with another error, which is printed.
    """
    if apart and (child := os.fork()):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        action()
        code = 0
    except Killed:
        code = KILLED
    except HeadraceError:
        code = 3
    except BaseException:
        traceback.print_exc()
    if apart:
        os._exit(code)
    return code


class WorkContract:
    """Inherit it and define `plan`, and `plan_poisoned` if records of this kind of work can be wrong.

    Each test runs with the output in a folder and below a URL, in a store that a fixture ``bucket`` returns: it has a
    ``url``, and ``content(key)`` returns the bytes of all objects below a folder, by their names there.
    """

    bucket: Any = None
    """The store that the output of this test is in; None if it is a folder."""

    file_limit: ClassVar[int] = 64
    """Bytes after which a file meets the full disk; below the size of the smallest file of the output."""

    def plan(self, output: str) -> None:
        """Plan the work, always the same, for an output. It may be planned for this already."""
        raise NotImplementedError

    def plan_poisoned(self, output: str) -> str:
        """Plan work with a record that cannot be done, and return what names it in an error."""
        pytest.skip("no record of this kind of work can be wrong")

    def place(self, output: str) -> str:
        """Return where the job for an output is, as `headrace.kinds.open_job` finds it."""
        return output

    def content(self, output: str) -> dict[str, bytes]:
        """Return what the work has made in a folder."""
        files = (path for path in sorted(Path(output).rglob("*")) if path.is_file())
        return {path.relative_to(output).as_posix(): path.read_bytes() for path in files}

    @pytest.fixture(autouse=True)
    def workers_inside(self) -> Iterator[None]:
        with inline():
            yield

    @pytest.fixture(params=["folder", "url"])
    def output(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        if request.param == "folder":
            return str(tmp_path / "out")
        self.bucket = request.getfixturevalue("bucket")
        return f"{self.bucket.url}/out"

    @pytest.fixture
    def wanted(self, tmp_path: Path) -> dict[str, bytes]:
        whole = str(tmp_path / "whole")
        self.plan(whole)
        self.finish(whole)
        return self.content(whole)

    def made(self, output: str) -> dict[str, bytes]:
        return self.bucket.content(output.rpartition("/")[2]) if self.bucket else self.content(output)

    def finish(self, output: str, workers: int = 1) -> object:
        return finish_job(self.place(output), LocalExecutor(workers=workers), Show())

    @contextlib.contextmanager
    def on(self, folder: Path, host: int) -> Iterator[None]:
        """On a host, whose scratch folder no other has."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(folder / f"host-{host}"))
            yield

    def doer(self, job: Job, wanted: list[int] | None = None) -> Doer:
        """Return what does tasks of the phase that may be done now, by default all, whatever others do."""
        phase = job.phase()
        assert phase is not None
        return Doer(
            job, phase, wanted=wanted, workers=1, claims=False, waits=False, limits=Limits(), on_progress=lambda _: None
        )

    def test_any_number_of_workers(self, output: str, wanted: dict[str, bytes]) -> None:
        for workers in (1, 2, 5):
            self.plan(f"{output}-{workers}")
            self.finish(f"{output}-{workers}", workers)
            assert self.made(f"{output}-{workers}") == wanted

    def test_killed_at_every_receipt(self, output: str, wanted: dict[str, bytes]) -> None:
        self.plan(output)
        num_killed = 0
        finishing = partial(killed_at_a_receipt, partial(self.finish, output))
        while code := ending(partial(finishing, is_created=num_killed % 2 == 1), apart=not self.bucket):
            assert code == KILLED, "the process failed, see its report"
            num_killed += 1
            assert self.made(output) != wanted
        assert num_killed > (0 if self.bucket else 2), "receipts at a URL may be created by several threads at a time"
        assert self.made(output) == wanted

    def test_two_hosts_in_any_order(self, output: str, wanted: dict[str, bytes], tmp_path: Path) -> None:
        for seed in range(2):
            chooser = random.Random(seed)
            place = f"{output}-{seed}"
            self.plan(place)
            while (phase := (job := open_job(self.place(place))).phase()) is not None:
                tasks = list(job.receipts(phase).tasks)
                chooser.shuffle(tasks)
                with self.on(tmp_path, 0):
                    first = self.doer(open_job(self.place(place)), tasks[: -(-2 * len(tasks) // 3)])
                with self.on(tmp_path, 1):
                    num_done = self.doer(open_job(self.place(place)), tasks[len(tasks) // 3 :]).run()
                with self.on(tmp_path, 0), pytest.MonkeyPatch.context() as patch:
                    patch.setattr(first, "_refresh", lambda: None)  # it does not see what the second has done
                    patch.setattr(first, "_is_done_meanwhile", lambda task: False)
                    assert first.run() == len(tasks) - num_done
            del job, first
            with self.on(tmp_path, 2):
                self.finish(place)
            assert self.made(place) == wanted
            gc.collect()
            assert not list(tmp_path.glob("host-*/outputs/*")), "something is left in a scratch folder"

    def test_two_finishers(self, output: str, wanted: dict[str, bytes]) -> None:
        """The second comes when the first has done all tasks, and is to put the output into place."""
        self.plan(output)
        kind = type(open_job(self.place(output)))
        finish = kind.finish

        def late(job: Job, show: Show) -> object:
            patch.undo()
            self.finish(output)
            assert self.made(output) == wanted
            return finish(job, show)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "finish", late)
            with contextlib.suppress(HeadraceError):  # it may say that another has done it
                self.finish(output)
        assert self.made(output) == wanted

    def test_a_full_disk(self, tmp_path: Path, wanted: dict[str, bytes]) -> None:
        output = str(tmp_path / "out")
        self.plan(output)

        def limited() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_limit, resource.RLIM_INFINITY))
            self.finish(output)

        assert ending(limited, apart=True) == 3
        assert self.made(output) != wanted
        self.finish(output)
        assert self.made(output) == wanted

    def test_a_poisonous_record(self, output: str, wanted: dict[str, bytes]) -> None:
        named = self.plan_poisoned(output)
        for _ in range(2):
            with pytest.raises(HeadraceError) as error:
                self.finish(output)
            assert named in str(error.value)
            assert not wanted.keys() <= self.made(output).keys()

    def test_a_receipt_that_is_cut_or_gone(self, output: str, wanted: dict[str, bytes]) -> None:
        self.plan(output)
        job = open_job(self.place(output))
        phase = job.phase()
        assert phase is not None
        self.doer(job).run()
        shared, receipts = job.shared, job.receipts(phase)
        for number, task in enumerate(receipts.tasks):
            name = f"{receipts.name}/{RECEIPTS_NAME}/{task // 1000:05d}/{task}.json"
            data = shared.read(name)
            assert data is not None
            if number % 3 == 0:
                shared.remove(name)
            elif number % 3 == 1 and not self.bucket:
                whole = (shared.here / name).read_bytes()
                (shared.here / name).write_bytes(whole[: len(whole) // 2])
        left = open_job(self.place(output)).receipts(phase)
        left.refresh()
        assert 0 < len(left.done) < len(receipts.tasks)
        self.finish(output)
        assert self.made(output) == wanted

    def test_results_that_are_gone(self, output: str, wanted: dict[str, bytes]) -> None:
        """Either the task is done again, or an error says what is not there."""
        self.plan(output)
        while (phase := (job := open_job(self.place(output))).phase()) is not None:
            self.doer(job).run()
            if lost := [receipt for receipt in job.receipts(phase).done.values() if receipt.files][:1]:
                job.shared.withdraw(f"{job.receipts(phase).name}/{lost[0].attempt}", lost[0].files[:1])
                break
        told = ""
        try:
            self.finish(output)
        except HeadraceError as error:
            told = str(error)
        assert lost[0].files[0] in told or self.made(output) == wanted
