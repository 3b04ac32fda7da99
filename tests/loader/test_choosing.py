"""How a loader reads that was not told how: what is chosen, and that nobody who said nothing gets an error for it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import corpora
import framed_made
import media_texts
import option_encoder
import records_made
from headrace import (
    Blend,
    Loader,
    MapDataset,
    MediaDataset,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    SFTDataset,
    WindowDataset,
    WorkerError,
)
from headrace.datasets import Dataset
from headrace.datasets.dataset import Traits
from headrace.datasets.encoded import EncodedDataset
from headrace.encoders import DefaultTaskEncoder, TextSample, stateless
from headrace.loader import Reading, choosing
from headrace.loader.choosing import Surroundings, chosen, num_cores, unguarded
from headrace.loader.workers.pool import WorkerPool
from headrace.loader.workers.worker import WorkerSetup

THREAD, TWO = Reading(), Reading(num_workers=2)
PYTHON = Traits(is_ragged=True, holds_interpreter=True)
FREE = Surroundings(num_cores=8, is_daemon=False, unguarded=None)
EXPECTED = [str(number) for number in range(12)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (7, 5))


@pytest.fixture(autouse=True)
def cores_of_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine of the tests has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)


@pytest.fixture
def no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr("headrace.loader.reading.START_METHODS", ("spawn",))


def by_process(sample: Any) -> Any:
    sample.text = f"{sample.text} {os.getpid()}"
    return sample


def mapped(texts: Path, function: Callable[[Any], Any]) -> Loader:
    return loader_of(MapDataset(MediaDataset.open(texts, **media_texts.TEXT), function))


def loader_of(data: Dataset) -> Loader:
    return Loader(Run(data, global_batch_size=2, order=Order(kind="none"), epochs=1), micro_batch_size=2, restart=True)


def read(loader: Loader) -> tuple[list[str], set[int]]:
    """The texts of a run through `by_process`, and the processes that made them."""
    found = [text.split() for batch in loader for text in batch["text"]]
    return [text for text, _ in found], {int(process) for _, process in found}


def warned(caplog: pytest.LogCaptureFixture) -> str:
    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_what_is_chosen() -> None:
    assert chosen(Traits(), THREAD, None).reading == THREAD
    assert chosen(PYTHON, THREAD, FREE).reading == TWO
    assert chosen(PYTHON, THREAD, FREE._replace(num_cores=2)).reading == Reading(num_workers=1), "one core is left"
    for around, why, advice in [
        (FREE._replace(num_cores=1), "one core", ""),
        (FREE._replace(is_daemon=True), "daemon", ""),
        (FREE._replace(unguarded="train.py"), "would run train.py again", 'if __name__ == "__main__"'),
    ]:
        found = chosen(PYTHON, THREAD, around)
        assert found.reading == THREAD
        assert why in found.why
        assert advice in found.advice
        assert bool(advice) == bool(found.advice)
    alone = chosen(msgspec.structs.replace(PYTHON, unrestorable="Mine.encode_sample"), THREAD, FREE)
    assert (alone.reading, "Mine.encode_sample is not marked" in alone.why) == (Reading(num_workers=1), True)
    assert chosen(PYTHON, THREAD, FREE, in_order="of frames").reading == Reading(num_workers=1)


def test_cores_are_shared_by_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [num_cores({}), num_cores({"LOCAL_WORLD_SIZE": "4"}), num_cores({"LOCAL_WORLD_SIZE": "x"})] == [8, 2, 8]


@pytest.mark.parametrize(
    ("text", "is_safe"),
    [
        ("import sys\nif __name__ == '__main__':\n    sys.exit(main())\n", True),
        ("if '__main__' == __name__:\n    main()\nelse:\n    pass\n", True),
        ("train()\n", False),
        ("def main():\n    if __name__ == '__main__':\n        train()\nmain()\n", False),
        ("if __name__ != '__main__':\n    main()\n", False),
        ("if name == '__main__':\n    main()\n", False),
        ("if __name__ == '__main__'\n", False),
    ],
)
def test_a_program_is_not_run_again(tmp_path: Path, text: str, is_safe: bool) -> None:
    main, path = ModuleType("__main__"), tmp_path / "train.py"
    path.write_text(text)
    assert unguarded(main) is None, "no file"
    main.__file__ = str(path)
    assert unguarded(main) == (None if is_safe else str(path))
    path.unlink()
    assert unguarded(main) == str(path)


def test_datasets_say_whether_they_take_python(texts: Path, corpus: list[corpora.Corpus]) -> None:
    windows = WindowDataset(corpus[0].store, seq_len=8)
    media = MediaDataset.open(texts, **media_texts.TEXT)
    assert not windows.traits.holds_interpreter
    both = {"a": windows, "b": MapDataset(windows, dict)}
    for data in (media, EncodedDataset(media, Counting()), both["b"], Blend(both, weights={"a": 1, "b": 1})):
        assert Run(data, global_batch_size=2).traits.holds_interpreter
    plain = Loader(Run(windows, global_batch_size=2), micro_batch_size=2)
    assert plain.reading == THREAD
    assert plain.describe().endswith(
        "rank 0 of 1, micro-batches of 2\nreading: ahead in 1 thread of this process, since these samples take little"
        " Python to make"
    )


def test_large_plans_are_not_sent(
    texts: Path, no_forks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choosing, "MOST_SENT_BYTES", 100)
    assert read(mapped(texts, by_process)) == (EXPECTED, {os.getpid()})
    assert "would have to be sent to each" in warned(caplog)


def test_media_are_read_by_workers(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = mapped(texts, by_process)
    assert loader.reading == TWO
    found, processes = read(loader)
    assert found == EXPECTED
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not read(loader)[1] & processes, "they end with the loop"
    assert loader.describe().endswith(
        "reading: ahead in 2 worker processes (fork), since making these samples takes Python"
    )
    loader.close()
    assert not caplog.records


def test_a_file_that_is_open_is_not_shared(texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "words").write_text("a\n")
    with (tmp_path / "words").open() as words, (tmp_path / "log").open("w") as log:

        def reads(sample: Any) -> Any:
            words.seek(0)
            return by_process(sample) if words.read() else None

        def writes(sample: Any) -> Any:
            log.write("made\n")
            return by_process(sample)

        assert read(mapped(texts, reads)) == (EXPECTED, {os.getpid()})
        said = warned(caplog)
        assert "words', which processes cannot share" in said
        assert "reading=Reading(num_threads=1)" in said
        caplog.clear()
        loader = mapped(texts, writes)
        assert os.getpid() not in read(loader)[1]
        loader.close()
        assert not caplog.records


class StandsForAnother:
    """As a proxy outside its context, or a mapping that reads when it is asked."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("working outside of a context")

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise RuntimeError("working outside of a context")


class ReadsWhenAsked(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError("asked")


def test_the_look_at_what_samples_hold_runs_none_of_it(texts: Path, caplog: pytest.LogCaptureFixture) -> None:
    made: dict[str, Any] = {}
    exec("def nowhere(): return None", made)  # as torch makes the methods of some classes: its module is None
    assert made["nowhere"].__module__ is None
    nameless = type("Nameless", (), {"__module__": None})
    held = [made["nowhere"], StandsForAnother(), ReadsWhenAsked(a=1), nameless, nameless()]

    def makes(sample: Any) -> Any:
        return by_process(sample) if held else None

    loader = mapped(texts, makes)
    assert os.getpid() not in read(loader)[1]
    loader.close()
    assert not caplog.records


def test_what_cannot_be_sent_is_read_here(texts: Path, no_forks: None, caplog: pytest.LogCaptureFixture) -> None:
    loader = mapped(texts, lambda sample: by_process(sample))
    assert read(loader) == (EXPECTED, {os.getpid()})
    assert "replace lambdas and inner functions" in warned(caplog)
    assert loader.reading == THREAD
    assert "this process, since workers start anew here" in loader.describe()
    # Said once.
    assert read(loader) == (EXPECTED, {os.getpid()})
    assert len(caplog.records) == 1


def test_that_workers_start_anew_is_told(
    texts: Path, no_forks: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)  # one worker, which takes seconds
    data = EncodedDataset(MediaDataset.open(texts, **media_texts.TEXT), option_encoder.PadEncoder())
    loader = loader_of(data)
    assert [text for batch in loader for text in batch["text"]] == EXPECTED
    loader.close()
    assert "not what the program set while it ran" in warned(caplog)


def test_packs_and_records_are_read_by_workers(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    packs = PackedSequenceDataset(corpus[0].store, Packing(seq_len=64, strategy="best_fit_split"))
    chats = SFTDataset(records_made.store(tmp_path / "chats", records_made.sft(0, 60)))
    for data in (packs, chats):
        assert Loader(Run(data, global_batch_size=4, samples=24), micro_batch_size=2).reading == TWO


def framed_units(texts: Path, reading: Reading | None = None) -> list[str]:
    """What a framed run begins with; each kind of loader reads the same."""
    loader = Loader(framed_made.framed_run("singles", [texts]), micro_batch_size=2, reading=reading)
    found = [repr(batch) for _, batch in zip(range(9), loader, strict=False)]
    loader.close()
    return found


@pytest.mark.parametrize("fault", ["no memory", "dies"])
def test_workers_that_cannot_start(
    texts: Path, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: Any) -> None:
        raise WorkerError("worker processes cannot be started: no memory")

    def dies(*_: Any) -> None:
        os._exit(3)

    if fault == "dies":
        monkeypatch.setattr(WorkerSetup, "start", dies)
    else:
        monkeypatch.setattr(WorkerPool, "_start_workers", none)
    assert read(mapped(texts, by_process)) == (EXPECTED, {os.getpid()})
    assert ("exit code 3" if fault == "dies" else "no memory") in warned(caplog)
    assert framed_units(texts) == framed_units(texts, Reading(num_threads=0))


def test_workers_are_not_replaced_where_new_ones_cannot_be_used(
    texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, starts, start = tmp_path / "killed", [], WorkerPool._start_workers

    def starting(workers: WorkerPool[Any]) -> None:
        starts.append(workers)
        if len(starts) > 1:
            raise WorkerError("worker processes cannot be started: no memory")
        start(workers)

    def once(sample: Any) -> Any:
        if sample.text == "7" and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return by_process(sample)

    monkeypatch.setattr(WorkerPool, "_start_workers", starting)
    found = [text for batch in mapped(texts, once) for text in batch["text"]]
    assert [text.split()[0] for text in found] == EXPECTED
    assert int(found[0].split()[1]) != os.getpid()
    assert int(found[-1].split()[1]) == os.getpid()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "New workers continue there" in caplog.records[0].getMessage()
    assert "no memory" in caplog.records[1].getMessage()


class Counting(DefaultTaskEncoder[Any, Any, Any, Any]):
    """It has a state, which it does not own up to."""

    count = 0

    def encode_sample(self, sample: TextSample) -> TextSample:
        sample.text = f"{self.count} {os.getpid()}"
        self.count += 1
        return sample


class Drawing(DefaultTaskEncoder[Any, Any, Any, Any]):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: TextSample) -> TextSample:
        return sample


def test_one_worker_makes_all_samples_of_a_hook_with_a_state(texts: Path) -> None:
    loader = loader_of(EncodedDataset(MediaDataset.open(texts, **media_texts.TEXT), Counting()))
    found, processes = read(loader)
    assert found == EXPECTED
    assert len(processes) == 1
    assert os.getpid() not in processes
    assert "Counting.encode_sample is not marked @stateless" in loader.describe()
    loader.close()


def test_hooks_that_draw_are_not_read_by_a_thread(
    texts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    loader = loader_of(EncodedDataset(MediaDataset.open(texts, **media_texts.TEXT), Drawing()))
    assert loader.reading == Reading(num_threads=0)
    assert [text for batch in loader for text in batch["text"]] == EXPECTED
    assert "reading: by the training loop itself" in loader.describe()
    assert not caplog.records


def test_a_framed_run_is_read_ahead_by_one_worker(texts: Path) -> None:
    loader = Loader(framed_made.framed_run("singles", [texts]), micro_batch_size=2)
    assert loader.reading == Reading(num_workers=1)
    assert framed_units(texts) == framed_units(texts, Reading(num_threads=0))


def test_what_the_user_says_stays_as_it_is(texts: Path) -> None:
    data = MapDataset(MediaDataset.open(texts, **media_texts.TEXT), by_process)
    run = Run(data, global_batch_size=2, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=2, reading=Reading())
    assert read(loader) == (EXPECTED, {os.getpid()})
    assert loader.describe().endswith("reading: ahead in 1 thread of this process, since the loader was told so")
