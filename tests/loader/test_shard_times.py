"""Files that are timed alone: a slow one is found, no batch changes, and it takes little of the time of reading."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpora
import headrace
import media_texts
from headrace import Loader, MediaDataset, Metrics, Order, Run, WindowDataset
from headrace.io import PreadReader
from headrace.loader import Reading, shard_times, spans
from headrace.loader.metrics import Page
from headrace.loader.shard_times import FileTimer, ShardTimes
from headrace.loader.spans import FileTime, SpanRows, read_rows
from headrace.loader.workers.messages import SpanMessage

SEQ_LEN = 16


class Clock:
    """Stands still but for the seconds that readers spend."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowReader(PreadReader):
    """Spends time of a clock for each byte, and five times as much on the files of a name."""

    def __init__(self, clock: Clock, slow: str) -> None:
        super().__init__()
        self.clock, self.slow = clock, slow

    def read_ranges(self, path: str, offsets: Any, lengths: Any, out: Any = None) -> Any:
        self.clock.now += 0.001 * (5 if self.slow in path else 1) * int(np.sum(lengths))
        return super().read_ranges(path, offsets, lengths, out)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(shard_times, "perf_counter", found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    for name in ("0", "1", "2", "3"):
        corpora.write(root / "tokens" / name, [rng.integers(0, 90, 200) for _ in range(12)])
    media_texts.shards(root / "texts", (12, 12, 12))
    return root


def run_of(kind: str, folder: Path, clock: Clock) -> Run:
    if kind == "media":
        dataset: Any = MediaDataset.open(str(folder / "texts"), reader=SlowReader(clock, "02.tar"))
    else:
        store = headrace.open(str(folder / "tokens"), reader=SlowReader(clock, "2.bin"))
        dataset = WindowDataset(store, seq_len=SEQ_LEN)
        if kind == "packs":
            dataset = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=64, over_long="truncate_right"))
    return Run(dataset, global_batch_size=8, order=Order(seed=1), samples=480)


def times(*found: tuple[str, float]) -> ShardTimes:
    counted = ShardTimes()
    for file, seconds in found:
        counted.add(FileTime(file, seconds, 1000))
    return counted


QUICK = [("a", 0.001), ("b", 0.001), ("c", 0.001)] * 6


def test_the_slowest_shard_is_named_once_it_is_sure() -> None:
    assert times(*QUICK, *[("d", 0.004)] * 3).names() == {}, "the first time does not count, and three are needed"
    assert times(*QUICK, *[("d", 0.004)] * 4).names() == {"slowest_shard/d": 4.0}
    assert times(*QUICK, *[("d", 0.0015)] * 9).names() == {}, "not twice as long"
    assert times(*QUICK, ("d", 9.0), *[("d", 0.001)] * 9).names() == {}, "the first time opens the file"
    assert times(*QUICK, *[("d", 0.001)] * 4, ("d", 9.0)).names() == {}, "held up once"
    assert times(*[("d", 9.0)] * 9).names() == {}, "there is nothing to compare it with"
    assert times(*[("a", 1e-6)] * 6, *[("d", 1e-4)] * 6).names() == {}, "too fast to hold up anybody"


def test_a_shard_that_recovers_is_named_no_more() -> None:
    counted = times(*QUICK * 9, *[("slower", 0.02)] * 9, *[("slow", 0.01)] * 9)
    assert list(counted.names()) == ["slowest_shard/slower"]
    for _ in range(5):
        counted.add(FileTime("slower", 0.001, 1000))
    assert list(counted.names()) == ["slowest_shard/slow"]


def test_the_files_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_times, "KEPT_FILES", 3)
    counted = times(*[(str(number), 0.001) for number in range(9)] * 9, *[("8", 0.9)] * 9)
    assert counted.names() == {}
    assert len(counted._files) == 3


@pytest.mark.parametrize("kind", ["windows", "packs", "media"])
@pytest.mark.parametrize("num_threads", [0, 1])
def test_a_slow_file_is_found(
    kind: str, num_threads: int, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every span is one micro-batch and times a file here, and batches are those of a loader that measures nothing."""
    monkeypatch.setattr(shard_times, "TIMED_SHARE", 1e9)
    monkeypatch.setattr(spans, "SPAN_ROWS", 8)
    monkeypatch.setattr(spans, "SPAN_ROWS_HERE", 8)
    reports: list[Any] = []
    metrics = Metrics(on_step=reports.append, every_s=0)
    run, reading = run_of(kind, folder, clock), Reading(num_threads=num_threads)
    measured = list(Loader(run, micro_batch_size=8, reading=reading, metrics=metrics))
    plain = list(Loader(run_of(kind, folder, clock), micro_batch_size=8))
    assert len(measured) == len(plain)
    for one, other in zip(measured, plain, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
    assert {name for report in reports for name in report if name.startswith("slowest_shard/")} == {
        f"slowest_shard/{folder}/" + ("texts/02.tar" if kind == "media" else "tokens/2.bin")
    }


def test_it_takes_a_four_hundredth_of_the_time_of_reading(folder: Path, clock: Clock) -> None:
    run = run_of("windows", folder, clock)
    span = next(spans.spans(run, headrace.plan.Share(0, 1, 8), 0))
    timer = FileTimer(read_rows)
    found = [timer(run, span, None) for _ in range(2000)]
    timed = [rows.timed for rows in found]
    assert timed[0] is None, "the first batch comes at once"
    assert 2 < sum(one is not None for one in timed) < 20
    spent = sum(one.seconds for one in timed if one is not None)
    longest = max(one.seconds for one in timed if one is not None)
    assert spent <= shard_times.TIMED_SHARE * clock.now + longest


def test_where_it_is_not_known_nothing_is_timed(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_times, "TIMED_SHARE", 1e9)
    run = run_of("windows", folder, clock)
    asked = itertools.count()

    def unknown(addresses: Any) -> Any:
        next(asked)
        raise headrace.ConfigError("it is not known")

    monkeypatch.setattr(run.datasets[0], "extents", unknown)
    list(Loader(run, micro_batch_size=8, reading=Reading(num_threads=0), metrics=Metrics(every_s=0)))
    assert next(asked) == 1, "it is asked once"


def test_times_come_from_workers() -> None:
    timed = FileTime("a.bin", 0.5, 10)
    message = SpanMessage(SpanRows({"input_ids": torch.zeros(3)}, timed=timed))
    assert pickle.loads(pickle.dumps(message)).rows.timed == timed
    assert isinstance(pickle.loads(pickle.dumps(FileTimer(read_rows))), FileTimer)


def test_prometheus_calls_it_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page.__new__(Page)
    page._rank, page._text = 3, [b""]
    page.show({"slowest_shard/a.bin": 4.0}, headrace.datasets.waits.RankWaits(rank=3))
    assert page._text[0].decode().splitlines()[-1] == 'headrace_slowest_shard{rank="3",file="a.bin"} 4.0'
