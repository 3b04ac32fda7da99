"""What workers take from torch and Python and give back: interrupts, generators, private names, the end of a loader."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

import framed_made
import media_texts
from counts import PATIENCE_S
from headrace import ConfigError, Loader, MediaDataset, Order, Run
from headrace.loader import Reading
from headrace.loader import reading as threads
from headrace.loader.workers import processes as worker_processes
from waiting import waits_for_the_bad_sample

EXPECTED = [str(number) for number in range(40)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (20, 11, 9))


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    others = set(active_children())
    yield
    assert not set(active_children()) - others


def loader_of(data: Any, *, restart: bool = False, **reading: Any) -> Loader:
    run = Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    given = {"num_workers": 2, "start_method": "fork", **reading}
    return Loader(run, micro_batch_size=2, reading=Reading(**given), restart=restart)


def texts_of(loader: Loader) -> list[str]:
    return [text for batch in loader for text in batch["text"]]


def test_after_an_interrupt_the_rest_comes(texts: Path, tmp_path: Path) -> None:
    """It may have come in the midst of a message: whoever reads on from there reads nonsense."""
    others = set(active_children())
    flag = tmp_path / "done"
    loader = loader_of(media_texts.loaded(texts, media_texts.Once(flag, media_texts.hangs)))
    found: list[str] = []

    def interrupt() -> None:
        # The worker says that it is at the sample before it notes, by the file, that it has hung once.
        while waits_for_the_bad_sample(only_for_it=True) is None or not flag.exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        found.extend(text for batch in loader for text in batch["text"])
    assert found == EXPECTED[: loader.position]
    assert 4 <= len(found) <= media_texts.BAD, "all before the message that is waited for, which may begin earlier"
    assert not set(active_children()) - others, "nobody knows where they are"
    assert found + texts_of(loader) == EXPECTED
    loader.close()


def test_a_worker_of_whose_end_somebody_else_has_taken_note(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a handler of SIGCHLD does that waits for any child: Python then says that it lives, for ever."""
    loader = loader_of(media_texts.loaded(texts, media_texts.slow))
    found: list[str] = []
    for batch in loader:
        found += batch["text"]
        if len(found) == 4:
            process = worker_set_of(loader).processes[0]
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            assert process.is_alive()
    assert found == EXPECTED
    assert f"(process {process.pid}) has ended" in caplog.text
    loader.close()


def worker_set_of(loader: Loader) -> Any:
    return loader._feed._reader._workers._worker_set  # type: ignore[attr-defined]


@pytest.mark.parametrize("persistent", [True, False])
def test_global_generators_are_left_alone(texts: Path, persistent: bool) -> None:
    """Torch draws a seed for its workers: dropout would depend on whether there are any, and on how many were lost."""
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    loader = loader_of(MediaDataset.open(texts, **media_texts.TEXT), restart=True, persistent_workers=persistent)
    for _ in range(2):
        assert texts_of(loader) == EXPECTED
    loader.close()
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("is_framed", [False, True])
def test_workers_end_with_their_loader(texts: Path, is_framed: bool) -> None:
    others = set(active_children())
    gc.disable()
    try:
        if is_framed:
            run = framed_made.framed_run("singles", [texts])
            loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=1, start_method="fork"))
        else:
            loader = loader_of(MediaDataset.open(texts, **media_texts.TEXT), num_workers=1)
        next(iter(loader))
        assert set(active_children()) - others
        del loader
        assert not set(active_children()) - others, "not only when the garbage collector comes by"
    finally:
        gc.enable()


PRIVATE = ("_workers", "_remove_worker_pids", "_worker_result_queue", "_index_queues", "_workers_done_event")


@pytest.mark.parametrize("names", [PRIVATE, ("_shutdown_workers",)])
def test_a_torch_that_names_otherwise_what_is_its_own(
    texts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    def without(thing: Any, name: str, default: Any) -> Any:
        return default if name in names else getattr(thing, name, default)

    monkeypatch.setattr(worker_processes, "getattr", without, raising=False)
    loader = loader_of(MediaDataset.open(texts, **media_texts.TEXT), restart=True)
    assert texts_of(loader) == texts_of(loader) == EXPECTED
    loader.close()
    assert ("does not know torch" in caplog.text) == (names is PRIVATE)


@pytest.mark.soak
def test_worker_sets_that_start_at_once_have_their_own_workers(texts: Path) -> None:
    data = MediaDataset.open(texts, **media_texts.TEXT)
    loaders = [loader_of(data, num_workers=1, start_method="forkserver") for _ in range(2)]
    ready = threading.Barrier(2)
    found: dict[int, list[str]] = {}

    def take(number: int) -> None:
        ready.wait()
        found[number] = texts_of(loaders[number])

    both = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    pids = [[process.pid for process in worker_set_of(loader).processes] for loader in loaders]
    for loader in loaders:
        loader.close()
    assert found == {0: EXPECTED, 1: EXPECTED}
    assert [len(one) for one in pids] == [1, 1]
    assert pids[0] != pids[1]


def test_pinning_without_a_device_is_refused(texts: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here, for which memory can be pinned")
    with pytest.raises(ConfigError, match="pin_memory"):
        loader_of(MediaDataset.open(texts, **media_texts.TEXT), pin_memory=True)


class TakenFrom(SimpleQueue[Any]):
    """Whoever looks whether something is in it finds that a thread has taken it when it comes to take it."""

    def empty(self) -> bool:
        found = super().empty()
        while not super().empty():
            self.get_nowait()
        return found


def test_threads_stop_that_take_their_last_task_at_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(threads, "SimpleQueue", TakenFrom)
    monkeypatch.setattr(threads, "STOP_S", PATIENCE_S)
    held = threading.Event()

    def read(task: int) -> int:
        return task if task == 0 or held.wait(PATIENCE_S) else -1

    stream = threads.in_threads([read], ((n, n) for n in range(9)), Reading(prefetch=4), str)
    assert next(stream) == (0, 0)
    threading.Timer(0.05, held.set).start()
    stream.close()  # type: ignore[attr-defined]
    assert {one for one in threading.enumerate() if not isinstance(one, threading.Timer)} <= before
