"""Worker processes: what they raise, how they end, how they start, and that none of it changes what comes."""

from __future__ import annotations

import sys
from multiprocessing import active_children
from pathlib import Path

import pytest

import media_texts
from headrace import ConfigError, Loader, MediaDataset, Order, Run, StateError, WorkerError
from headrace.errors import SampleError
from headrace.loader import Reading
from headrace.samples.media import TextSample

ORDER = Order(kind="shards", seed=1, max_samples_per_sequence=5, parallel_shard_iters=4)
TWO = Reading(num_workers=2, start_method="fork")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("texts") / "t", (20, 11, 9))


def run_of(dataset: MediaDataset, order: Order = ORDER) -> Run:
    return Run(dataset, global_batch_size=4, order=order, epochs=1)


def texts_of(loader: Loader) -> list[str]:
    return [text for batch in loader for text in batch["text"]]


def test_every_start_method_gives_the_same(texts: Path) -> None:
    run = run_of(MediaDataset.open(texts, **media_texts.TEXT))
    expected = texts_of(Loader(run, micro_batch_size=2, reading=Reading(num_threads=0)))
    assert sorted(expected, key=int) == [str(number) for number in range(40)]
    for method in ("fork", "forkserver"):
        reading = Reading(num_workers=1, start_method=method, prefetch=3)  # type: ignore[arg-type]
        assert texts_of(Loader(run, micro_batch_size=2, reading=reading)) == expected, method


def test_workers_stay_for_the_next_iteration_or_not(texts: Path) -> None:
    run = run_of(MediaDataset.open(texts, **media_texts.TEXT), Order(kind="none"))
    others = set(active_children())
    for persistent in (True, False):
        reading = Reading(num_workers=2, start_method="fork", persistent_workers=persistent)
        loader = Loader(run, micro_batch_size=4, reading=reading, restart=True)
        ours = []
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator)["text"] == ["0", "1", "2", "3"]
            ours.append(set(active_children()) - others)
            assert len(ours[-1]) == 2
            assert [int(text) for batch in iterator for text in batch["text"]] == list(range(4, 40))
        assert (ours[0] == ours[1]) == persistent
        # One that was left in the middle, with batches on their way, gives nothing to the next one.
        assert next(iter(loader))["text"] == next(iter(loader))["text"] == ["0", "1", "2", "3"]
        loader.close()
        assert not set(active_children()) - others


def test_an_older_iterator_takes_nothing_from_a_newer_one(texts: Path) -> None:
    loader = Loader(
        run_of(MediaDataset.open(texts, **media_texts.TEXT), Order(kind="none")), micro_batch_size=4, reading=TWO
    )
    old = iter(loader)
    assert next(old)["text"][0] == "0"
    new = iter(loader)
    assert next(new)["text"][0] == "4"
    with pytest.raises(StateError, match="iterated anew"):
        next(old)
    assert next(new)["text"][0] == "8"


def test_errors_keep_type_and_message(texts: Path, tmp_path: Path) -> None:
    dataset = MediaDataset.open(texts, sample_type=TextSample, field_map={"text": "json"})
    with pytest.raises(SampleError) as alone:
        dataset[0]
    with pytest.raises(type(alone.value)) as found:
        list(Loader(run_of(dataset, Order(kind="none")), micro_batch_size=2, reading=TWO))
    assert str(found.value) == str(alone.value)
    assert isinstance(found.value, SampleError)
    assert found.value.key == "0000"
    assert "in worker 0:" in found.value.__notes__[1]
    strange = run_of(media_texts.loaded(texts, media_texts.fails_strangely), Order(kind="none"))
    with pytest.raises(WorkerError, match="strange words"):
        list(Loader(strange, micro_batch_size=2, reading=TWO))


def test_what_does_not_pickle_is_told(texts: Path) -> None:
    run = run_of(media_texts.loaded(texts, lambda parts: {"text": parts["txt"]}))
    fork = Loader(run, micro_batch_size=4, reading=TWO)
    assert len(next(iter(fork))["text"]) == 4
    spawned = Loader(run, micro_batch_size=4, reading=Reading(num_workers=1, start_method="forkserver"))
    with pytest.raises(ConfigError, match="start_method='fork'"):
        next(iter(spawned))


def test_how_workers_start_follows_from_the_platform_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert Reading().starts_by == ("fork" if sys.platform == "linux" else "forkserver")
    assert Reading(start_method="spawn").starts_by == "spawn"


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout_s": 0.0},
        {"timeout_s": float("inf")},
        {"watchdog_s": -1.0},
        {"prefetch": 0},
        {"num_workers": -1},
        {"max_replacements": -1},
        {"on_lost_worker": "ignore"},
        {"start_method": "thread"},
    ],
)
def test_bad_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"at least|above 0|allowed are"):
        Reading(**bad)  # type: ignore[arg-type]


def test_more_workers_than_batches(texts: Path) -> None:
    run = Run(MediaDataset.open(texts, **media_texts.TEXT), global_batch_size=40, order=Order(kind="none"), epochs=1)
    loader = Loader(run, micro_batch_size=40, reading=Reading(num_workers=2, start_method="fork"))
    assert [len(batch["text"]) for batch in loader] == [40]
