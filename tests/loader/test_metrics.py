"""What a loader measures: the same names everywhere, sums that agree with the run, slow files; no batch changes."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import pickle
import socket
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch

import corpora
import framed_encoders
import headrace
import media_texts
import records_made
from headrace import Blend, Loader, MediaDataset, Metrics, Order, Run, SFTDataset, WindowDataset
from headrace.datasets.encoded import EncodedDataset, Framed, FramedRun
from headrace.datasets.waits import RankWaits, verdict_of
from headrace.encoders import Cooker, ErrorPolicy, TaskEncoder, stateless
from headrace.errors import ConfigError, OutputError, StateError
from headrace.io import PreadReader
from headrace.loader import Ranks, Reading, shard_times, spans
from headrace.loader.metrics import Page
from headrace.loader.reading import METRICS_THREAD
from headrace.loader.shard_times import FileTimer, ShardTimes
from headrace.loader.spans import FileTime, SpanRows, read_rows
from headrace.loader.workers.messages import dumped
from headrace.loader.workers.server import not_in_forks
from waiting import workers_now

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SEQ_LEN = 16
WAITS = ("read", "decode", "encode", "pack", "collate", "hand_over")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("metrics")
    rng = np.random.default_rng(0)
    for name, count in (("a", 90), ("b", 40)):
        corpora.write(folder / name, [rng.integers(0, 90, rng.integers(5, 60)) for _ in range(count)])
    return [headrace.open(str(folder / name)) for name in ("a", "b")]


def windows(stores: list[Any], **options: Any) -> Run:
    dataset = WindowDataset(stores[0], seq_len=SEQ_LEN)
    return Run(dataset, **{"global_batch_size": 8, "order": Order(seed=1), "samples": 60, **options})


def mixed(stores: list[Any], **options: Any) -> Run:
    parts = {name: WindowDataset(store, seq_len=SEQ_LEN) for name, store in zip("ab", stores, strict=True)}
    blend = Blend(parts, weights={"a": 3, "b": 1})
    return Run(blend, **{"global_batch_size": 8, "order": Order(seed=1), "samples": 160, **options})


def fed(run: Any, *, micro: int = 4, every_s: float = 0, **options: Any) -> tuple[list[Any], list[dict[str, float]]]:
    """The batches, and the reports."""
    reports: list[dict[str, float]] = []
    metrics = Metrics(on_step=reports.append, every_s=every_s)
    loader = Loader(run, micro_batch_size=micro, metrics=metrics, **options)
    batches = list(loader)
    loader.close()
    return batches, reports


@pytest.mark.parametrize("reading", [Reading(num_threads=0), Reading(), Reading(num_threads=3, prefetch=2)])
def test_each_step_has_a_report_and_the_sums_are_those_of_the_run(stores: list[Any], reading: Reading) -> None:
    run = windows(stores)
    batches, reports = fed(run, reading=reading)
    assert [one["step"] for one in reports] == list(range(run.num_steps or 0))
    assert [one["position"] for one in reports] == [8, 16, 24, 32, 40, 48, 56, 60]
    assert sum(one["samples"] for one in reports) == 60
    assert sum(one["tokens"] for one in reports) == 60 * SEQ_LEN
    assert sum(one["bytes"] for one in reports) == sum(
        value.nbytes for batch in batches for name, value in batch.items() if name != "position_ids"
    )
    for one in reports:
        assert (one["fill"], one["supervised_share"]) == (1, 1)
        assert one["wait_s"] == pytest.approx(sum(one[f"wait_{stage}_s"] for stage in WAITS))
        assert 0 <= one["wait_s"] <= one["seconds"] * (1 + 1e-9)
        assert min(one[f"wait_{stage}_s"] for stage in WAITS) > -1e-9
        assert one["epochs/run"] == one["position"] / len(run.datasets[0])
    plain = list(Loader(run, micro_batch_size=4, reading=reading))
    assert all((one["input_ids"] == other["input_ids"]).all() for one, other in zip(batches, plain, strict=True))


def test_the_mix_as_it_came_beside_the_plan(stores: list[Any]) -> None:
    run = mixed(stores)
    batches, reports = fed(run, ranks=Ranks(1, 2, agree=False))
    positions = np.concatenate([batch["sample_positions"].numpy() for batch in batches])
    came = Counter(run.lookup(positions).sources.tolist())
    last = reports[-1]
    assert (last["mix/a"], last["mix/b"]) == (came[0] / 80, came[1] / 80)
    assert (last["plan/a"], last["plan/b"]) == (0.75, 0.25)
    assert last["epochs/a"] == run.plan.counts(160)[0] / len(run.datasets[0])
    # An edited run has the plan of each chapter.
    _, reports = fed(run.edit(10, weights={"a": 1, "b": 1}))
    assert reports[9]["plan/a"] == pytest.approx(0.75)
    assert reports[-1]["plan/a"] == pytest.approx((0.75 + 0.5) / 2)
    assert reports[-1]["mix/a"] == pytest.approx((0.75 + 0.5) / 2, abs=0.02)
    fed_a = run.plan.counts(80)[0] + 40
    assert reports[-1]["epochs/a"] == pytest.approx(fed_a / len(run.datasets[0]), abs=0.02)


def test_packs_and_records_tell_their_pads_and_labels(stores: list[Any], tmp_path: Path) -> None:
    packed = headrace.PackedSequenceDataset(stores[0], headrace.Packing(seq_len=64))
    batches, reports = fed(Run(packed, global_batch_size=4, samples=len(packed)))
    documents = torch.cat([batch["document_ids"] for batch in batches])
    assert sum(one["fill"] * one["samples"] for one in reports) / len(packed) == pytest.approx(
        float((documents >= 0).float().mean())
    )
    records = SFTDataset(records_made.store(tmp_path / "sft", records_made.sft(1, 20)))
    batches, reports = fed(Run(records, global_batch_size=4, epochs=1))
    assert [one["tokens"] for one in reports] == [int(batch["attention_mask"].sum()) for batch in batches]
    for one, batch in zip(reports, batches, strict=True):
        assert one["fill"] == one["tokens"] / batch["input_ids"].numel()
        assert one["supervised_share"] == batch["num_supervised_tokens"] / one["tokens"]


class Slow(TaskEncoder[Any, Any, Any, Any]):
    """Spends most of its time in the hook, and has a sample that fails."""

    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.002)
        if sample["n"] == 3:
            raise ValueError("three")
        return sample


@pytest.mark.parametrize("reading", [Reading(num_threads=0), Reading(), Reading(num_workers=1)])
def test_hooks_are_told_from_decoding_and_faults_are_counted(tmp_path: Path, reading: Reading) -> None:
    place = framed_encoders.numbers(tmp_path / "a", 12)
    dataset = EncodedDataset.open(place, Slow(), errors=ErrorPolicy(on_error="substitute"))
    _, reports = fed(Run(dataset, global_batch_size=4, epochs=1), reading=reading)
    waits = {stage: sum(one[f"wait_{stage}_s"] for one in reports) for stage in WAITS}
    assert waits["encode"] > waits["decode"] > 0
    assert waits["encode"] > waits["read"] > 0
    assert reports[-1]["faults/ValueError in encode_sample"] == 1


def test_a_framed_run_tells_what_it_knows(tmp_path: Path) -> None:
    place = framed_encoders.numbers(tmp_path / "a", 12)
    data = Framed(MediaDataset.open(place), Slow(), frame_positions=3, errors=ErrorPolicy(on_error="substitute"))
    run = FramedRun(data, global_batch_size=4, order=Order(kind="none"), epochs=1)
    batches, reports = fed(run)
    assert sum(one["samples"] for one in reports) == sum(len(batch["unit_numbers"]) for batch in batches)
    assert sum(one["wait_encode_s"] for one in reports) > 0
    assert not any(name.partition("/")[0] in ("mix", "plan", "epochs") for name in reports[-1])


def test_replaced_workers_are_counted(stores: list[Any]) -> None:
    reports: list[dict[str, float]] = []
    loader = Loader(
        windows(stores, samples=4_000),
        micro_batch_size=4,
        reading=Reading(num_workers=1, start_method="fork"),
        metrics=Metrics(on_step=reports.append, every_s=0),
    )
    for number, _ in enumerate(loader):
        if number == 1:
            for worker in workers_now():
                worker.kill()
    loader.close()
    assert reports[0]["replaced_workers"] == 0
    assert reports[-1]["replaced_workers"] == 1
    assert reports[-1]["position"] == 4_000


def test_one_set_of_names(stores: list[Any], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    before = not_in_forks()
    found: list[dict[str, float]] = []
    path = tmp_path / "metrics-{rank}.jsonl"
    metrics = Metrics(jsonl=path, prometheus=port, on_step=found.append, every_s=0)
    loader = Loader(mixed(stores), micro_batch_size=4, ranks=Ranks(1, 2, agree=False), metrics=metrics)
    list(loader)
    *lines, last = [json.loads(line) for line in (tmp_path / "metrics-1.jsonl").read_text().splitlines()]
    assert lines == found
    assert last == {"rank": 1, "verdict": last["verdict"]}
    assert loader.verdict().split(":")[0] in ("data-bound", "not data-bound")
    with urlopen(f"http://localhost:{port}/metrics") as page:
        text = page.read().decode()
    names = {line.split("{")[0].removeprefix("headrace_").removesuffix("_total") for line in text.splitlines()}
    assert {name for name in names if not name.startswith("#")} == {name.partition("/")[0] for name in lines[-1]}
    assert 'headrace_mix{rank="1",source="a"} ' in text
    assert 'headrace_samples_total{rank="1"} 80\n' in text
    with pytest.raises(OutputError, match="cannot"):
        Loader(mixed(stores), micro_batch_size=4, ranks=Ranks(1, 2), metrics=Metrics(prometheus=port))
    assert not_in_forks() == before, "the thread that serves them holds no lock"
    del loader
    gc.collect()
    for _ in range(1_000):
        if not any(thread.name == METRICS_THREAD for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("", port))


def test_a_loop_that_stops_early_and_goes_on(stores: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    _, rare = fed(windows(stores), every_s=1_000)
    assert [one["samples"] for one in rare] == [60], "no more often than asked"
    capfd.readouterr()
    reports: list[dict[str, float]] = []
    loader = Loader(windows(stores), micro_batch_size=4, metrics=Metrics(on_step=reports.append, every_s=0))
    assert loader.verdict() == "nothing was watched yet"
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert [one["samples"] for one in reports] == [8, 4]
    list(loader)
    assert sum(one["samples"] for one in reports) == 60
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith("headrace: rank 0: ") for line in said)


def watched(rank: int, seconds: float, **waits: float) -> RankWaits:
    return RankWaits(rank=rank, seconds=seconds, stages={**dict.fromkeys(WAITS, 0.0), **waits})


def test_the_verdict() -> None:
    calm = [watched(rank, 100, read=0.05) for rank in range(3)]
    assert verdict_of([*calm, watched(3, 100, read=0.65)]) == (
        "not data-bound: 0.2 % of the time was waited, most of it for read, and most by rank 3 (0.7 % of its time)"
    )
    assert verdict_of([*calm, watched(3, 100, decode=30.0, hand_over=1.0)]) == (
        "data-bound: 7.8 % of the time was waited, most of it for decode, and most by rank 3 (31.0 % of its time); a "
        "perfect loader would save up to 31.0 %"
    )
    assert verdict_of([watched(0, 10)]) == "not data-bound: 0.0 % of the time was waited"


def test_the_verdict_of_all_ranks_needs_a_group(stores: list[Any]) -> None:
    loader = Loader(windows(stores), micro_batch_size=4, ranks=Ranks(0, 2, agree=False), metrics=Metrics())
    with pytest.raises(StateError, match="rank"):
        loader.gather_verdict()
    one = Loader(windows(stores), micro_batch_size=4, metrics=Metrics())
    list(one)
    assert one.gather_verdict().split(":")[1:] == one.verdict().split(":")[1:]
    with pytest.raises(ConfigError, match=r"metrics=headrace.Metrics\(\)"):
        Loader(windows(stores), micro_batch_size=4).verdict()


def test_what_is_no_metrics_is_refused(stores: list[Any], tmp_path: Path) -> None:
    for wrong in ({"prometheus": 0}, {"prometheus": "9"}, {"on_step": 3}, {"every_s": -1.0}, {"every_s": float("inf")}):
        with pytest.raises(ConfigError):
            Metrics(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metrics"):
        Loader(windows(stores), micro_batch_size=4, ranks=Ranks(0, 2), metrics=Metrics(jsonl=tmp_path / "m.jsonl"))
    loader = Loader(windows(stores), micro_batch_size=4, metrics=Metrics(jsonl=tmp_path / "no" / "m.jsonl"))
    with pytest.raises(OutputError, match="written"):
        list(loader)


@pytest.mark.parametrize("metrics", [None, Metrics(every_s=0)])
def test_batches_are_replayed_for_ever(
    stores: list[Any],
    metrics: Metrics | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = [batch["sample_positions"].tolist() for batch in islice(Loader(windows(stores), micro_batch_size=4), 3)]
    monkeypatch.setenv("HEADRACE_REPLAY", "3")
    loader = Loader(windows(stores), micro_batch_size=4, metrics=metrics)
    with caplog.at_level(logging.WARNING):
        found = [batch.pop("sample_positions").tolist() for batch in islice(loader, 100)]
    assert found == [plain[number % 3] for number in range(100)]
    assert "its first 3 batches for ever" in caplog.text
    assert loader.position == 12
    monkeypatch.delenv("HEADRACE_REPLAY")
    resumed = Loader(windows(stores), micro_batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["sample_positions"].tolist() == [12, 13]
    monkeypatch.setenv("HEADRACE_REPLAY", "none")
    with pytest.raises(ConfigError, match="HEADRACE_REPLAY"):
        next(iter(Loader(windows(stores), micro_batch_size=4)))


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
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    for name in ("0", "1", "2", "3"):
        corpora.write(root / "tokens" / name, [rng.integers(0, 90, 200) for _ in range(12)])
    media_texts.shards(root / "texts", (12, 12, 12))
    return root


def slow_run(kind: str, shards: Path, clock: Clock) -> Run:
    if kind == "media":
        dataset: Any = MediaDataset.open(str(shards / "texts"), reader=SlowReader(clock, "02.tar"))
    else:
        store = headrace.open(str(shards / "tokens"), reader=SlowReader(clock, "2.bin"))
        dataset = WindowDataset(store, seq_len=SEQ_LEN)
        if kind == "packs":
            dataset = headrace.PackedSequenceDataset(store, headrace.Packing(seq_len=64, over_long="truncate_right"))
    return Run(dataset, global_batch_size=8, order=Order(seed=1), samples=480)


def timed(*found: tuple[str, float]) -> ShardTimes:
    counted = ShardTimes()
    for file, seconds in found:
        counted.add(FileTime(file, seconds, 1000))
    return counted


QUICK = [("a", 0.001), ("b", 0.001), ("c", 0.001)] * 6


def test_the_slowest_shard_is_named_once_it_is_sure() -> None:
    assert timed(*QUICK, *[("d", 0.004)] * 3).names() == {}, "the first time does not count, and three are needed"
    assert timed(*QUICK, *[("d", 0.004)] * 4).names() == {"slowest_shard/d": 4.0}
    assert timed(*QUICK, *[("d", 0.0015)] * 9).names() == {}, "not twice as long"
    assert timed(*QUICK, ("d", 9.0), *[("d", 0.001)] * 9).names() == {}, "the first time opens the file"
    assert timed(*QUICK, *[("d", 0.001)] * 4, ("d", 9.0)).names() == {}, "held up once"
    assert timed(*[("d", 9.0)] * 9).names() == {}, "there is nothing to compare it with"
    assert timed(*[("a", 1e-6)] * 6, *[("d", 1e-4)] * 6).names() == {}, "too fast to hold up anybody"


def test_a_shard_that_recovers_is_named_no_more() -> None:
    counted = timed(*QUICK * 9, *[("slower", 0.02)] * 9, *[("slow", 0.01)] * 9)
    assert list(counted.names()) == ["slowest_shard/slower"]
    for _ in range(5):
        counted.add(FileTime("slower", 0.001, 1000))
    assert list(counted.names()) == ["slowest_shard/slow"]


def test_the_files_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_times, "KEPT_FILES", 3)
    counted = timed(*[(str(number), 0.001) for number in range(9)] * 9, *[("8", 0.9)] * 9)
    assert counted.names() == {}
    assert len(counted._files) == 3


@pytest.mark.parametrize("kind", ["windows", "packs", "media"])
@pytest.mark.parametrize("num_threads", [0, 1])
def test_a_slow_file_is_found(
    kind: str, num_threads: int, shards: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every span is one micro-batch and times a file here, and batches are those of a loader that measures nothing."""
    monkeypatch.setattr(shard_times, "TIMED_SHARE", 1e9)
    monkeypatch.setattr(spans, "SPAN_ROWS", 8)
    monkeypatch.setattr(spans, "SPAN_ROWS_HERE", 8)
    reports: list[Any] = []
    metrics = Metrics(on_step=reports.append, every_s=0)
    run, reading = slow_run(kind, shards, clock), Reading(num_threads=num_threads)
    measured = list(Loader(run, micro_batch_size=8, reading=reading, metrics=metrics))
    plain = list(Loader(slow_run(kind, shards, clock), micro_batch_size=8))
    assert len(measured) == len(plain)
    for one, other in zip(measured, plain, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
    assert {name for report in reports for name in report if name.startswith("slowest_shard/")} == {
        f"slowest_shard/{shards}/" + ("texts/02.tar" if kind == "media" else "tokens/2.bin")
    }


def test_it_takes_a_four_hundredth_of_the_time_of_reading(shards: Path, clock: Clock) -> None:
    run = slow_run("windows", shards, clock)
    span = next(spans.spans(run, headrace.plan.Share(0, 1, 8), 0))
    timer = FileTimer(read_rows)
    found = [timer(run, span, None) for _ in range(2000)]
    timed = [rows.timed for rows in found]
    assert timed[0] is None, "the first batch comes at once"
    assert 2 < sum(one is not None for one in timed) < 20
    spent = sum(one.seconds for one in timed if one is not None)
    longest = max(one.seconds for one in timed if one is not None)
    assert spent <= shard_times.TIMED_SHARE * clock.now + longest


def test_where_it_is_not_known_nothing_is_timed(shards: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_times, "TIMED_SHARE", 1e9)
    run = slow_run("windows", shards, clock)
    asked = itertools.count()

    def unknown(addresses: Any) -> Any:
        next(asked)
        raise headrace.ConfigError("it is not known")

    monkeypatch.setattr(run.datasets[0], "extents", unknown)
    list(Loader(run, micro_batch_size=8, reading=Reading(num_threads=0), metrics=Metrics(every_s=0)))
    assert next(asked) == 1, "it is asked once"


def test_times_come_from_workers() -> None:
    timed = FileTime("a.bin", 0.5, 10)
    message = dumped(SpanRows({"input_ids": torch.zeros(3)}, timed=timed))
    assert pickle.loads(message).timed == timed
    assert isinstance(pickle.loads(pickle.dumps(FileTimer(read_rows))), FileTimer)


def test_prometheus_calls_it_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page.__new__(Page)
    page._rank, page._text = 3, [b""]
    page.show({"slowest_shard/a.bin": 4.0}, headrace.datasets.waits.RankWaits(rank=3))
    assert page._text[0].decode().splitlines()[-1] == 'headrace_slowest_shard{rank="3",file="a.bin"} 4.0'
