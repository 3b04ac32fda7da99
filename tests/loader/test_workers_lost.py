"""Workers that are killed, hang, or give nothing: replaced with the same bytes, or an error that says all; in time."""

from __future__ import annotations

import logging
import os
import pickle
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import media_texts
from counts import PATIENCE_S
from headrace import InputError, Loader, MediaDataset, Order, Run, WorkerError
from headrace.datasets.dataset import Traits
from headrace.datasets.encoded import EncodedDataset
from headrace.encoders import DefaultTaskEncoder, stateless
from headrace.loader import Reading, reading as threads
from headrace.loader.reading import Work
from headrace.loader.workers import pool
from headrace.loader.workers.messages import _HEAD, Channel
from headrace.loader.workers.pool import Due, WorkerPool
from headrace.samples.media import TextSample
from waiting import Clock, clock_that, descendants, workers_now

EXPECTED = [str(number) for number in range(40)]
NAME = r"'0013'.*00\.tar.*13.*3"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (20, 11, 9))


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    others = descendants()
    yield
    assert not descendants() - others


def loader_of(data: Any, *, micro_batch_size: int = 2, method: str = "fork", **reading: Any) -> Loader:
    run = Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    given = {"num_workers": 2, "start_method": method, **reading}
    return Loader(run, micro_batch_size=micro_batch_size, reading=Reading(**given))


def texts_of(loader: Loader) -> list[str]:
    found = [text for batch in loader for text in batch["text"]]
    loader.close()
    return found


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def crew() -> list[int]:
    return [worker.pid for worker in workers_now()]


@pytest.mark.parametrize(
    "action", [media_texts.dies, media_texts.hangs, media_texts.stops, media_texts.holds_the_interpreter]
)
def test_a_lost_worker_is_replaced_and_nothing_changes(
    texts: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[Any], Any],
) -> None:
    Clock(monkeypatch, runs_on=action is media_texts.stops, flag=tmp_path / "done")
    once = media_texts.Once(tmp_path / "done", action)
    assert texts_of(loader_of(media_texts.loaded(texts, once), timeout_s=0.4)) == EXPECTED
    # On a busy machine a server may take longer than a tenth of this time to answer.
    [warning] = [one for one in warnings_in(caplog) if "did not answer" not in one]
    assert "killed by SIGKILL" in warning if action is media_texts.dies else "sent nothing for 0.4 s" in warning
    assert "sample '0013' of 00.tar (position 13, step 3)" in warning
    # The worker itself says in which line it hangs, even where its interpreter is held; one that is stopped does not.
    if action in (media_texts.hangs, media_texts.holds_the_interpreter):
        assert f"in {action.__name__}\n" in warning


def test_a_sample_that_kills_every_worker_is_named(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(media_texts.loaded(texts, media_texts.dies), max_replacements=2)
    given: list[str] = []
    with pytest.raises(WorkerError, match=rf"SIGKILL.*{NAME}.*2"):
        given.extend(text for batch in loader for text in batch["text"])
    assert given == EXPECTED[: loader.position]
    assert 6 <= loader.position < media_texts.BAD
    # One batch may have come in between, and then what follows is the first time again.
    assert [one[-3:] for one in warnings_in(caplog)][-2:] == ["(1)", "(2)"]
    # What was delivered is all that counts: whoever reads the rest has it once.
    rest = loader_of(MediaDataset.open(texts, **media_texts.TEXT))
    rest.start_at(loader.position, allow_repeats=True)
    assert texts_of(rest) == EXPECTED[loader.position :]


def test_what_was_read_before_a_worker_hung_is_delivered(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that holds its interpreter keeps back what it read before, too; so in the end it is not sent ahead."""
    Clock(monkeypatch)
    data = media_texts.loaded(texts, media_texts.holds_the_interpreter)
    loader = loader_of(data, num_workers=1, prefetch=4, timeout_s=0.4, max_replacements=2)
    with pytest.raises(WorkerError, match="2"):
        list(loader)
    assert 6 <= loader.position < media_texts.BAD


def test_a_lost_worker_may_be_an_error(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    monkeypatch.setattr("headrace.loader.workers.pool.not_in_forks", lambda: ["CUDA", "thread 'one'"])
    data = media_texts.loaded(texts, media_texts.hangs)
    loader = loader_of(data, num_workers=1, timeout_s=0.3, on_lost_worker="raise")
    with pytest.raises(WorkerError, match=r"0.*0.3") as found:
        list(loader)
    assert "It was forked beside CUDA, thread 'one': a lock that was held there" in str(found.value)
    assert 6 <= loader.position < media_texts.BAD


def test_workers_killed_while_the_training_computes(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody notices, until the next batch is due."""
    loader = loader_of(MediaDataset.open(texts, **media_texts.TEXT))
    iterator = iter(loader)
    found = list(next(iterator)["text"])
    for worker in workers_now():
        worker.kill()
        while worker.is_alive():
            time.sleep(0.001)
    for _ in range(1000):
        sum(range(1000))
    found += [text for batch in iterator for text in batch["text"]]
    loader.close()
    assert found == EXPECTED
    assert "was killed by SIGKILL" in warnings_in(caplog)[0]


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_in_the_middle_of_a_message(
    texts: Path,
    tmp_path: Path,
    what: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rest of the message never comes, and nobody waits for it for ever."""
    flag, send = tmp_path / "done", Channel.send

    def half(channel: Channel, data: bytes, descriptors: Sequence[int] = ()) -> None:
        if getattr(pickle.loads(data), "number", None) == 3 and not flag.exists():
            flag.touch()
            channel._socket.sendall(_HEAD.pack(len(data), 0) + data[: len(data) // 2])
            os.kill(os.getpid(), what)
        send(channel, data, descriptors)

    def is_stopped() -> bool:
        return any(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" for pid in crew())

    monkeypatch.setattr(Channel, "send", half)
    clock_that(monkeypatch, pool, runs_when=is_stopped)
    loader = loader_of(MediaDataset.open(texts, **media_texts.TEXT), micro_batch_size=1, timeout_s=0.4)
    assert texts_of(loader) == EXPECTED
    [warning] = warnings_in(caplog)
    assert ("SIGKILL" if what == signal.SIGKILL else "sent nothing for 0.4 s") in warning


def test_killed_before_the_first_task(
    texts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[Any] = []
    start = WorkerPool._start_workers

    def killed(workers: WorkerPool[Any]) -> None:
        start(workers)
        starts.append(workers)
        if len(starts) <= 2:
            workers.workers[0].kill()

    monkeypatch.setattr(WorkerPool, "_start_workers", killed)
    assert texts_of(loader_of(MediaDataset.open(texts, **media_texts.TEXT))) == EXPECTED
    assert len(warnings_in(caplog)) == 2


class Dies:
    """Kills its worker, as often as said for all processes together."""

    def __init__(self, folder: Path, times: int) -> None:
        self._folder = folder
        self._times = times

    def __call__(self, parts: dict[str, Any]) -> dict[str, Any]:
        if parts["txt"] == str(media_texts.BAD):
            self._folder.mkdir(exist_ok=True)
            done = len(list(self._folder.iterdir()))
            if done < self._times:
                (self._folder / str(done)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"text": parts["txt"]}


@pytest.mark.parametrize(("num_workers", "prefetch", "times"), [(2, None, 2), (2, None, 3), (1, 8, 4), (2, 5, 3)])
def test_killed_several_times_in_a_row(
    texts: Path, tmp_path: Path, num_workers: int, prefetch: int | None, times: int
) -> None:
    """New workers are given fewer tasks at once than those before had: the rest of these must not be forgotten."""
    data = media_texts.loaded(texts, Dies(tmp_path / "killed", times))
    loader = loader_of(data, num_workers=num_workers, prefetch=prefetch, micro_batch_size=1, max_replacements=times)
    assert texts_of(loader) == EXPECTED
    assert len(list((tmp_path / "killed").iterdir())) == times


def test_what_the_plan_raises_is_not_forgotten_when_workers_are_lost(texts: Path, tmp_path: Path) -> None:
    def tasks() -> Iterator[int]:
        yield from range(4)
        raise InputError("the plan ends here")

    flag = tmp_path / "killed"

    def read(task: int, tell: Any, memory: Any) -> int:
        if task == 1 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    class Numbers(Work[int, int]):
        traits = Traits()
        words = str

        def readers(self, num_readers: int, *, pin: bool) -> list[Callable[[int], int]]:
            raise NotImplementedError

        def for_workers(self) -> Callable[[int, Any, Any], int]:
            return read

        def pinned(self, made: int) -> int:
            raise NotImplementedError

    workers: WorkerPool[int] = WorkerPool(Numbers(), Reading(num_workers=2, prefetch=4, start_method="fork"))
    found: list[tuple[int, int]] = []
    with pytest.raises(InputError, match="here"):
        found.extend(workers.filled(Due(tasks())))
    workers.close()
    assert found == [(number, number) for number in range(4)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("method", "kills", "seed"), [("fork", 6, 1), ("spawn", 2, 2)])
def test_killed_at_random_moments(texts: Path, method: str, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    data = media_texts.loaded(texts, media_texts.slow)
    loader = loader_of(data, method=method, micro_batch_size=1, max_replacements=100)
    done = threading.Event()

    def kill() -> None:
        for _ in range(kills):
            if done.wait(draw.uniform(0.0, 0.25)):
                return
            if pids := crew():
                os.kill(draw.choice(pids), signal.SIGKILL)

    iterator = iter(loader)
    found = list(next(iterator)["text"])
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found += [text for batch in iterator for text in batch["text"]]
    finally:
        done.set()
        killer.join()
        loader.close()
    assert found == EXPECTED


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        """May depend on what it was given before: nothing says that it does not."""
        if sample.text == str(media_texts.BAD):
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


class Stateless(Plain):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


def test_code_that_may_have_a_state_cannot_be_replaced(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    media = MediaDataset.open(texts, sample_type=TextSample, field_map={"text": "txt"})
    assert media.traits.unrestorable is None
    loader = loader_of(EncodedDataset(media, Plain()))
    with pytest.raises(WorkerError, match=r"Plain\.encode_sample"):
        list(loader)
    assert not warnings_in(caplog)
    loader = loader_of(EncodedDataset(media, Stateless()), max_replacements=1)
    with pytest.raises(WorkerError, match=r"replaced.*1"):
        list(loader)
    # How often depends on what came in between; twice in a row it never was.
    assert warnings_in(caplog)
    assert {one[-3:] for one in warnings_in(caplog)} == {"(1)"}


def test_errors_of_memory_and_of_pickling_stay_what_they_are(texts: Path) -> None:
    loader = loader_of(media_texts.loaded(texts, media_texts.takes_all_memory))
    with pytest.raises(MemoryError, match=r"4.*TiB"):
        list(loader)
    loader.close()
    # Found in the worker, not by a thread that says so on stderr while the loader waits for ever.
    loader = loader_of(media_texts.loaded(texts, media_texts.unpicklable))
    with pytest.raises(TypeError, match="pickle") as found:
        list(loader)
    assert "in worker 0:" in found.value.__notes__[0]
    loader.close()


def test_the_watchdog_says_what_each_worker_is_at(
    texts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    data = media_texts.loaded(texts, media_texts.hangs)
    loader = loader_of(data, timeout_s=0.7, watchdog_s=0.2, on_lost_worker="raise")
    with pytest.raises(WorkerError):
        list(loader)
    lines = capfd.readouterr().err.splitlines()
    assert re.match(r"headrace: waiting \d+ s for worker \d", lines[0])
    assert any("s in read of sample '0013' of 00.tar (position 13, step 3)" in line for line in lines)
    assert any(line.startswith("  worker ") and line.endswith("without work") for line in lines)


def test_closing_does_not_wait_for_a_worker_that_hangs(texts: Path) -> None:
    loader = loader_of(media_texts.loaded(texts, media_texts.hangs), prefetch=5)
    iterator = iter(loader)
    next(iterator)
    processes = workers_now()
    assert len(processes) == 2
    table = loader._feed.reader._workers._table  # type: ignore[union-attr]
    until = time.monotonic() + PATIENCE_S
    while all(table.row(worker).sample != media_texts.BAD for worker in range(2)) and time.monotonic() < until:
        time.sleep(0.001)
    loader.close()
    assert not any(Path(f"/proc/{process.pid}").exists() for process in processes)
    # Nobody waited until it went on: it was ended where it stood.
    assert any(table.row(worker).sample == media_texts.BAD for worker in range(2))


def test_a_thread_that_hangs_is_an_error(
    texts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, released = threading.Event(), threading.Event()
    # What one thread has read before it hangs is there when it does.
    clock_that(monkeypatch, threads, runs_when=hung.is_set)

    def hangs(parts: dict[str, Any]) -> dict[str, Any]:
        if parts["txt"] == str(media_texts.BAD):
            hung.set()
            released.wait(PATIENCE_S)
        return {"text": parts["txt"]}

    run = Run(media_texts.loaded(texts, hangs), global_batch_size=4, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=2, reading=Reading(num_threads=1, timeout_s=0.5, watchdog_s=0.2))
    found: list[str] = []
    with pytest.raises(WorkerError, match=r"(?s)0\.5.*1[3-9].*hangs"):
        found.extend(text for batch in loader for text in batch["text"])
    released.set()
    assert found == EXPECTED[: loader.position]
    assert 6 <= loader.position < media_texts.BAD
    said = capfd.readouterr().err
    assert re.search(r"waiting \d+ s for a thread that reads samples at positions", said)
