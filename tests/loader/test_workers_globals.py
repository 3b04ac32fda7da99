"""Globals that the program has set while it ran, as options are: forks have them, others are told of."""

from __future__ import annotations

import io
import logging
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from PIL import Image, ImageFile

import media_texts
import option_encoder
from headrace import ConfigError, Loader, MediaDataset, Order, Run
from headrace.datasets.encoded import EncodedDataset
from headrace.loader import Reading
from headrace.loader.workers.server import not_in_forks
from headrace.samples.media import CaptioningSample
from headrace.stores.tar.writer import TarWriter
from waiting import workers_now

PADDED = [str(number).ljust(4, ".") for number in range(8)]
SPAWN: dict[str, Any] = {"num_workers": 1, "start_method": "spawn"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (5, 3))


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(option_encoder, "_LENGTHS", {})
    yield
    option_encoder.set_args(None)
    option_encoder.set_group(None)
    option_encoder.set_pad(1)
    option_encoder.multiple.cache_clear()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def loader_of(texts: Path, encoder: Any, **reading: Any) -> Loader:
    data = EncodedDataset(MediaDataset.open(texts, **media_texts.TEXT), encoder)
    run = Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    return Loader(run, micro_batch_size=2, reading=Reading(num_threads=0, **reading), restart=True)


def texts_of(loader: Loader) -> list[str]:
    try:
        return [text for batch in loader for text in batch["text"]]
    finally:
        loader.close()


@pytest.mark.usefixtures("process_group")
def test_beside_a_process_group_no_number_of_workers_changes_the_samples(texts: Path) -> None:
    """The loader forks: gloo's threads hold nothing that workers want."""
    option_encoder.set_two()
    encoder = option_encoder.PadEncoder()
    for num_workers in (0, 1, 2):
        assert texts_of(loader_of(texts, encoder, num_workers=num_workers)) == PADDED, num_workers


@pytest.mark.usefixtures("process_group")
def test_a_worker_that_starts_anew_is_told_of_or_set_up(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    option_encoder.set_two()
    encoder = option_encoder.PadEncoder()
    loader = loader_of(texts, encoder, **SPAWN)
    assert [text for _ in range(2) for batch in loader for text in batch["text"]] == [str(n) for n in range(8)] * 2
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "not what the program set while it ran" in warning, "once a loader"
    assert "worker_init" in warning
    caplog.clear()
    init = partial(option_encoder.set_args, option_encoder.get_args())
    assert texts_of(loader_of(texts, encoder, worker_init=init, **SPAWN)) == PADDED
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def thread() -> Iterator[Callable[[], None]]:
    """Starts another thread, as libraries do at any moment."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, name="of a library")
    yield other.start
    stop.set()
    other.join()


def long_loader(texts: Path) -> Loader:
    data = EncodedDataset(MediaDataset.open(texts, **media_texts.TEXT), option_encoder.PadEncoder())
    return Loader(Run(data, global_batch_size=2, samples=400), micro_batch_size=2, reading=Reading(num_workers=1))


def test_workers_that_replace_others_have_what_the_first_ones_had(
    texts: Path, thread: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that runs by then changes nothing, and what the program changes is not seen."""
    option_encoder.set_two()
    loader = long_loader(texts)
    found = []
    with caplog.at_level(logging.INFO, logger="headrace"):
        for step, batch in enumerate(loader):
            found += batch["text"]
            if step == 1:
                thread()
                option_encoder.set_args(Namespace(context_parallel_size=3, iteration=5))
                [worker] = workers_now()
                worker.kill()
    loader.close()
    assert len(found) == 400
    assert set(found) == set(PADDED)
    first, lost, *_ = (record.getMessage() for record in caplog.records)
    assert first == "1 worker processes start by fork"
    assert "SIGKILL" in lost


def test_what_the_program_set_in_pillow_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No code of the program names it: Headrace's own decoder goes by it."""
    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(file, "JPEG")
    jpg = file.getvalue()[: file.tell() // 2]
    with TarWriter(tmp_path / "t.tar") as tar:
        tar.add("0", {"jpg": jpg, "txt": b"half"})
    fields = {"image": "jpg", "caption": "txt"}
    data = MediaDataset.open(tmp_path / "t.tar", sample_type=CaptioningSample, field_map=fields)
    run = Run(data, global_batch_size=1, epochs=1)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setitem(Image.OPEN, "MINE", (Namespace, None))
    for reading in (Reading(num_workers=0), Reading(num_workers=1)):
        [batch] = Loader(run, micro_batch_size=1, reading=reading)
        assert batch["caption"] == ["half"]


def test_what_a_fork_lacks_is_told(monkeypatch: pytest.MonkeyPatch, thread: Callable[[], None]) -> None:
    assert not_in_forks() == []
    thread()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not_in_forks() == ["CUDA", "thread 'of a library'"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for backends, told in [("cpu:gloo,cuda:gloo", []), ("cpu:gloo,cuda:nccl", ["nccl"]), ("mpi", ["mpi"])]:
        monkeypatch.setattr(dist, "get_backend_config", lambda backends=backends: backends)
        assert not_in_forks() == [*told, "thread 'of a library'"]
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    for names, told in [
        ({"backends_are_initialized": lambda: False}, []),
        ({"backends_are_initialized": lambda: True}, ["JAX"]),
        ({}, ["JAX"]),
    ]:
        # JAX computes in threads that Python does not list. `tests/interop/jax_rank.py` has the real one.
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", Namespace(**names))  # type: ignore[arg-type]
        assert not_in_forks() == [*told, "thread 'of a library'"]


def test_globals_that_change_between_two_iterations(texts: Path) -> None:
    """Workers start with each loop, and have what is there then."""
    loader = loader_of(texts, option_encoder.PadEncoder(), num_workers=1, start_method="fork")
    assert [text for batch in loader for text in batch["text"]] == [str(number) for number in range(8)]
    option_encoder.set_two()
    assert texts_of(loader) == PADDED


def test_workers_that_replace_others_are_set_up_too(texts: Path, tmp_path: Path) -> None:
    option_encoder.set_two()
    data = EncodedDataset(
        media_texts.loaded(texts, media_texts.Once(tmp_path / "done", media_texts.dies, at=6)),
        option_encoder.PadEncoder(),
    )
    run = Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    reading = Reading(worker_init="option_encoder:set_two", **SPAWN)
    assert texts_of(Loader(run, micro_batch_size=2, reading=reading)) == PADDED
    assert (tmp_path / "done").exists()


def test_what_worker_init_raises_comes_back(texts: Path) -> None:
    encoder = option_encoder.PadEncoder()
    with pytest.raises(LookupError, match="options") as found:
        texts_of(loader_of(texts, encoder, num_workers=1, worker_init=option_encoder.fails))
    assert "in worker 0:" in found.value.__notes__[0]
    with pytest.raises(ConfigError, match="function"):
        texts_of(loader_of(texts, encoder, num_workers=1, worker_init="option_encoder:nothing"))
    for bad in ("no_function", 3):
        with pytest.raises(ConfigError, match="worker_init"):
            Reading(worker_init=bad)  # type: ignore[arg-type]
