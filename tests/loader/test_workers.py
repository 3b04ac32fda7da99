"""Worker processes: how they start and end, what they raise, what they take from torch and Python and give back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.distributed as dist

import framed_made
import media_texts
from counts import PATIENCE_S
from headrace import ConfigError, Loader, MediaDataset, Order, Run, StateError, WorkerError
from headrace.errors import SampleError
from headrace.loader import Reading, reading as threads
from headrace.samples.media import TextSample
from waiting import descendants, waits_for_the_bad_sample, workers_now

EXPECTED = [str(number) for number in range(40)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (20, 11, 9))


@pytest.fixture
def media(texts: Path) -> MediaDataset:
    return MediaDataset.open(texts, **media_texts.TEXT)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    others = descendants()
    yield
    assert not descendants() - others


def loader_of(data: Any, *, micro_batch_size: int = 2, restart: bool = False, **reading: Any) -> Loader:
    run = Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    given = {"num_workers": 2, "start_method": "fork", **reading}
    return Loader(run, micro_batch_size=micro_batch_size, reading=Reading(**given), restart=restart)


def texts_of(loader: Loader) -> list[str]:
    return [text for batch in loader for text in batch["text"]]


def test_every_start_method_gives_the_same(media: MediaDataset) -> None:
    order = Order(kind="shards", seed=1, max_samples_per_sequence=5, parallel_shard_iters=4)
    run = Run(media, global_batch_size=4, order=order, epochs=1)
    expected = texts_of(Loader(run, micro_batch_size=2, reading=Reading(num_threads=0)))
    assert sorted(expected, key=int) == EXPECTED
    for method in ("fork", "spawn"):
        loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=1, start_method=method, prefetch=3))  # type: ignore[arg-type]
        assert texts_of(loader) == expected, method
        loader.close()


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_stay_for_the_next_iteration_or_not(media: MediaDataset, persistent: bool) -> None:
    """Torch draws a seed for its workers: dropout would depend on whether there are any; here nothing is drawn."""
    others = descendants()
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    loader = loader_of(media, micro_batch_size=4, persistent_workers=persistent, restart=True)
    ours = []
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator)["text"] == ["0", "1", "2", "3"]
        ours.append(workers_now())
        assert len(ours[-1]) == 2
        assert [text for batch in iterator for text in batch["text"]] == EXPECTED[4:]
    assert (ours[0] == ours[1]) == persistent
    # One that was left in the middle, with batches on their way, gives nothing to the next one.
    assert next(iter(loader))["text"] == next(iter(loader))["text"] == ["0", "1", "2", "3"]
    loader.close()
    assert not descendants() - others
    assert torch.equal(torch.get_rng_state(), expected)


def test_an_older_iterator_takes_nothing_from_a_newer_one(media: MediaDataset) -> None:
    loader = loader_of(media, micro_batch_size=4)
    old = iter(loader)
    assert next(old)["text"][0] == "0"
    new = iter(loader)
    assert next(new)["text"][0] == "4"
    with pytest.raises(StateError, match="iterated"):
        next(old)
    assert next(new)["text"][0] == "8"
    loader.close()


def test_errors_keep_type_and_message(texts: Path) -> None:
    dataset = MediaDataset.open(texts, sample_type=TextSample, field_map={"text": "json"})
    with pytest.raises(SampleError) as alone:
        dataset[0]
    loader = loader_of(dataset)
    with pytest.raises(type(alone.value)) as found:
        list(loader)
    loader.close()
    assert str(found.value) == str(alone.value)
    assert isinstance(found.value, SampleError)
    assert found.value.key == "0000"
    assert "in worker 0:" in found.value.__notes__[1]
    loader = loader_of(media_texts.loaded(texts, media_texts.fails_strangely))
    with pytest.raises(WorkerError, match="strange"):
        list(loader)
    loader.close()


def test_what_does_not_pickle_is_told(texts: Path) -> None:
    data = media_texts.loaded(texts, lambda parts: {"text": parts["txt"]})
    fork = loader_of(data)
    assert len(next(iter(fork))["text"]) == 2
    fork.close()
    with pytest.raises(ConfigError, match="start_method='fork'"):
        next(iter(loader_of(data, num_workers=1, start_method="spawn")))


def test_how_workers_start_if_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert Reading().starts_by == ("fork" if sys.platform == "linux" else "spawn")
    assert Reading(start_method="spawn").starts_by == "spawn"
    with pytest.raises(ConfigError, match="'spawn'"):
        Reading(start_method="forkserver")  # type: ignore[arg-type]
    # JAX computes in threads that Python does not list. `tests/interop/jax_rank.py` has the real one.
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", Namespace())  # type: ignore[arg-type]
    assert Reading().starts_by == "spawn"
    assert Reading(start_method="fork").starts_by == "fork"
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for backends, method in [("cpu:gloo,cuda:nccl", "fork"), ("mpi", "spawn"), ("cpu:ucc,cuda:ucc", "spawn")]:
        monkeypatch.setattr(dist, "get_backend_config", lambda backends=backends: backends)
        assert Reading().starts_by == method


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("timeout_s", 0.0),
        ("timeout_s", float("inf")),
        ("watchdog_s", -1.0),
        ("prefetch", 0),
        ("num_threads", -1),
        ("num_workers", -1),
        ("max_replacements", -1),
        ("on_lost_worker", "ignore"),
        ("start_method", "thread"),
    ],
)
def test_bad_options_are_refused(option: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        Reading(**{option: bad})


def test_more_workers_than_batches(media: MediaDataset) -> None:
    run = Run(media, global_batch_size=40, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=40, reading=Reading(num_workers=2, start_method="fork"))
    assert [len(batch["text"]) for batch in loader] == [40]
    loader.close()


def test_after_an_interrupt_the_rest_comes(texts: Path, tmp_path: Path) -> None:
    """It may have come in the midst of a message: whoever reads on from there reads nonsense."""
    others = descendants()
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
    assert not descendants() - others, "nobody knows where they are"
    assert found + texts_of(loader) == EXPECTED
    loader.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_whose_end_somebody_else_has_taken_note(
    texts: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """As a handler of SIGCHLD does that waits for any child: Python then says that it lives, for ever."""
    # A worker that starts anew takes seconds.
    loader = loader_of(media_texts.loaded(texts, media_texts.slow), num_workers=1, start_method=method)
    found: list[str] = []
    for batch in loader:
        found += batch["text"]
        if len(found) == 4:
            server, worker = pool_of(loader).server, pool_of(loader).workers[0]
            pid = worker.pid if server is None else server.pid
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert found == EXPECTED
    assert f"(process {pid}) has ended" in caplog.text
    loader.close()


def pool_of(loader: Loader) -> Any:
    return loader._feed.reader._workers


@pytest.mark.parametrize("is_framed", [False, True])
def test_workers_end_with_their_loader(texts: Path, media: MediaDataset, is_framed: bool) -> None:
    others = descendants()
    gc.disable()
    try:
        if is_framed:
            run = framed_made.framed_run("singles", [texts])
            loader = Loader(run, micro_batch_size=2, reading=Reading(num_workers=1, start_method="fork"))
        else:
            loader = loader_of(media, num_workers=1)
        batches = iter(loader)
        next(batches)
        assert descendants() - others
        del batches, loader
        assert not descendants() - others, "not only when the garbage collector comes by"
    finally:
        gc.enable()


@pytest.mark.soak
def test_pools_that_start_at_once_have_their_own_workers(media: MediaDataset) -> None:
    loaders = [loader_of(media, num_workers=1, start_method="spawn", persistent_workers=True) for _ in range(2)]
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
    pids = [[worker.pid for worker in pool_of(loader).workers] for loader in loaders]
    for loader in loaders:
        loader.close()
    assert found == {0: EXPECTED, 1: EXPECTED}
    assert [len(one) for one in pids] == [1, 1]
    assert pids[0] != pids[1]


def test_pinning_without_a_device_is_refused(media: MediaDataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here, for which memory can be pinned")
    with pytest.raises(ConfigError, match="pin_memory"):
        loader_of(media, pin_memory=True)


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

    stream = threads.in_threads([read], iter(range(9)), Reading(prefetch=4), str)
    assert next(stream) == (0, 0)
    threading.Timer(0.05, held.set).start()
    stream.close()  # type: ignore[attr-defined]
    assert {one for one in threading.enumerate() if not isinstance(one, threading.Timer)} <= before
