"""Facts: what is kept, that it is the same however it was made, by jobs and with deaths too, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import multiprocessing
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import jobs_by_hand
import killing
from headrace import MeasuredDataset, StoreError, WorkerError
from headrace.datasets import MeasuredFacts, measure
from headrace.datasets.measuring.chunk import Measuring, key_of, key_text
from headrace.encoders import SkipSample, stateless
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.engine.planning import JobPlace, NewPlan
from headrace.errors import ConfigError, OutputError
from headrace.inspect.measure_job import MeasureRequest, plan_measure
from headrace.kinds import finish_job, open_job
from headrace.plan.measured import Grouping
from measured_made import Drawing, Drawn, Filter, Grouped, Packed, numbers, opened, plain_outputs
from nfs import OnNfs

COUNT, BROKEN = 150, (3, 77, 120)
ENCODERS = [Filter(1), Drawn(2), Grouped(3), Packed(4), Drawn(5, most=1, failing=0)]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda one: type(one).__name__)
def test_facts_are_those_of_the_plain_way(encoder: Drawing, flawed_numbers: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    dataset = opened(flawed_numbers, encoder)
    facts = measure(dataset, encoder, folder=tmp_path, on_samples=lambda *both: told.append(both))
    rows = plain_outputs(encoder, COUNT, BROKEN)
    counts = Counter(number for number, *_ in rows)
    assert facts.arrays["num_outputs"].tolist() == [counts[number] for number in range(COUNT)]
    failing = [number for number in range(COUNT) if number in BROKEN or raises(encoder, number)]
    assert np.flatnonzero(~facts.arrays["is_good"]).tolist() == failing
    assert ("lengths" in facts.arrays) == isinstance(encoder, Packed)
    if isinstance(encoder, Packed):
        assert facts.arrays["lengths"].tolist() == [row[2] for row in rows]
        assert facts.summary.tokens == sum(row[2] for row in rows)
    if isinstance(encoder, Grouped):
        keys = [facts.keys[group] for group in facts.arrays["groups"].tolist()]
        assert keys == [("group", row[3]) for row in rows]
        assert list(dict.fromkeys(keys)) == facts.keys
        assert [group.outputs for group in facts.summary.groups] == [Counter(keys)[key] for key in facts.keys]
    found = list(facts.faults())
    assert [fault.index for fault in found] == failing
    assert {fault.key for fault in found if fault.index in BROKEN} == {f"s/{number:04d}" for number in BROKEN}
    assert Counter((fault.hook, fault.kind) for fault in found) == {
        (one.hook, one.kind): one.count for one in facts.summary.faults
    }
    summary = facts.summary
    empty = sum(counts[number] == 0 for number in range(COUNT))
    assert (summary.bad_samples, summary.skipped_samples) == (len(failing), empty - len(failing))
    assert (summary.outputs, summary.samples) == (len(rows), COUNT)
    assert told == sorted(told)
    assert told[-1] == (COUNT, COUNT)
    assert facts.check() == []
    again = MeasuredFacts.find(facts.path)
    assert again is not None
    assert again.summary == summary


def raises(encoder: Drawing, number: int) -> bool:
    try:
        encoder.facts(number)
    except ValueError:
        return True
    return False


def test_any_number_of_processes_makes_the_same_bytes(
    flawed_numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    encoder = Grouped(3)
    alone = measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path / "one")
    by_two = measure(opened(flawed_numbers, encoder), encoder, workers=2)
    assert by_two.path.parent == tmp_path / "cache" / "facts"
    assert content(by_two.path) == content(alone.path)
    assert not multiprocessing.active_children()


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    encoder = Grouped(3)
    root = numbers(tmp_path / "ds", 150, (3, 77))
    whole = content(measure(opened(root, encoder), encoder, folder=tmp_path / "whole").path)
    kills = 0
    for first in (0, 2):
        folder = tmp_path / f"killed-{first}"
        for moment in itertools.count(first, 5):
            if killing.run(partial(measure, opened(root, encoder), encoder, folder=folder), moment=moment):
                break
            kills += 1
        assert content(MeasuredFacts.open(next(folder.glob("[!.]*"))).path) == whole
        measure(opened(root, encoder), encoder, folder=folder)
        assert [path.name for path in folder.iterdir()] == [next((tmp_path / "whole").iterdir()).name]
    assert kills >= 8


def test_chunks_that_are_done_are_not_measured_again(tmp_path: Path) -> None:
    root = numbers(tmp_path / "ds", 200)

    class Ending(Drawn):
        calls = 0

        @stateless
        def encode_sample(self, sample: Any) -> Iterator[Any]:
            type(self).calls += 1
            if sample["number"] == 130 and type(self).calls < 200:
                raise OSError("the disk is away")
            yield sample

    encoder = Ending(0, failing=0)
    with pytest.raises(OSError, match="away"):
        measure(opened(root, encoder), encoder, folder=tmp_path / "facts")
    assert Ending.calls == 131
    Ending.calls = 200
    told: list[int] = []
    tell = lambda done, _: told.append(done)  # noqa: E731
    facts = measure(opened(root, encoder), encoder, folder=tmp_path / "facts", on_samples=tell)
    assert (Ending.calls - 200, told[0]) == (200 - 128, 128)
    assert facts.summary.outputs == 200


def test_what_decides_the_facts_is_in_their_address(flawed_numbers: Path, facts_folder: Path, tmp_path: Path) -> None:
    class Later(Drawn):
        version = "2"

    class Other(Drawn):
        pass

    other_data = numbers(tmp_path / "ds", 70)
    Later.__qualname__ = Drawn.__qualname__
    encoders = [Drawn(0), Drawn(1), Later(0), Other(0)]
    cases = [(flawed_numbers, encoder, None) for encoder in encoders]
    cases += [(flawed_numbers, Drawn(0), {"mood": "good"}), (other_data, Drawn(0), None)]
    names = {measure(opened(root, one), one, folder=facts_folder, settings=more).name for root, one, more in cases}
    assert len(names) == 6


def test_damaged_facts_are_refused(flawed_numbers: Path, tmp_path: Path) -> None:
    encoder = Packed(4)
    dataset = opened(flawed_numbers, encoder)
    facts = measure(dataset, encoder, folder=tmp_path)
    lengths = facts.path / "lengths.npy"
    data = lengths.read_bytes()
    for damage in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data.replace(b"(", b"((")):
        lengths.write_bytes(damage)
        assert [fault.partition(":")[0] for fault in facts.check()] == [str(lengths)]
        with pytest.raises(StoreError, match=r"lengths\.npy"):
            MeasuredFacts.open(facts.path)
    with pytest.raises(StoreError, match=r"lengths\.npy"):
        measure(dataset, encoder, folder=tmp_path)
    shutil.rmtree(facts.path)
    with pytest.raises(StoreError, match=r"`headrace.*measure`"):
        MeasuredFacts.open(facts.path)
    kept = facts.path / "kept.json"
    measure(dataset, encoder, folder=tmp_path)
    kept.write_text(kept.read_text().replace("headrace.facts", "headrace.facta"))
    with pytest.raises(StoreError, match="damaged"):
        MeasuredFacts.open(facts.path)


def test_attributes_that_json_cannot_hold(flawed_numbers: Path, facts_folder: Path) -> None:
    """They tell two encoders apart, and are the same when the facts are read again."""

    class Limited(Drawn):
        def __init__(self, limit: Any) -> None:
            super().__init__()
            self.limit = limit

    limits: list[Any] = [None, float("inf"), -float("inf"), float("nan"), 1 << 70, "\ud800", 1]
    encoders = [Limited(limit) for limit in limits]
    found = [measure(opened(flawed_numbers, one), one, folder=facts_folder) for one in encoders]
    assert len({facts.name for facts in found}) == len(limits)
    for encoder, facts in zip(encoders, found, strict=True):
        assert len(MeasuredDataset(opened(flawed_numbers, encoder), encoder, facts.path)) == facts.summary.outputs


def test_attributes_are_those_before_hooks_are_run(flawed_numbers: Path, tmp_path: Path) -> None:
    class Counting(Drawn):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        @stateless
        def encode_sample(self, sample: Any) -> Iterator[Any]:
            self.calls += 1
            yield from super().encode_sample(sample)

    encoder = Counting()
    facts = measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path)
    assert encoder.calls > 100
    fresh = Counting()
    assert len(MeasuredDataset(opened(flawed_numbers, fresh), fresh, facts)) == facts.summary.outputs


def test_a_disk_that_is_full_is_an_error(flawed_numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, whole = Packed(4), Path.open

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def limited(path: Path, *arguments: Any, **options: Any) -> Any:
        return Full() if path.parent.name.startswith("merged-") else whole(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", limited)
        with pytest.raises(OutputError, match="device"):
            measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path)
    assert not list(tmp_path.glob("[!.]*"))
    assert measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path).check() == []


def test_several_that_measure_the_same_at_once(flawed_numbers: Path, tmp_path: Path) -> None:
    encoder = Grouped(6)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(measure, opened(flawed_numbers, encoder), encoder, folder=tmp_path) for _ in range(3)]
        found = [future.result() for future in futures]
    assert [path.name for path in tmp_path.iterdir()] == [found[0].name]
    assert found[0].check() == []


def test_what_processes_cannot_be_sent(flawed_numbers: Path, tmp_path: Path) -> None:
    encoder = Drawn(0)
    encoder.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"TypeError.*workers=1"):
        measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path, workers=2)
    assert measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path).summary.outputs


def test_keys_of_groups() -> None:
    keys = [1, True, "a", ("a", (1, None)), 0.5, (), -3, 2**63]
    assert [key_of(key_text(key)) for key in keys] == keys
    assert len({key_text(key) for key in keys}) == len(keys)
    assert key_text((np.int64(3), np.float64(0.5))) == key_text((3, 0.5))
    for wrong in (b"bytes", frozenset({1}), 2**64, float("nan"), ("a", object())):
        with pytest.raises(ConfigError, match="JSON"):
            key_text(wrong)


class Choosy(Packed):
    """Finds out by the length that it does not want a sample, or cannot have it."""

    @stateless
    def sample_length(self, sample: Any) -> int:
        if sample["number"] % 5 == 0 and sample["output"]:
            raise SkipSample
        if sample["number"] % 5 == 1:
            raise ValueError("no length")
        return super().sample_length(sample)


def test_hooks_that_measure_may_skip_and_fail(tmp_path: Path) -> None:
    encoder = Choosy(2, failing=0)
    facts = measure(opened(numbers(tmp_path / "ds", 60), encoder), encoder, folder=tmp_path / "facts")
    drawn = [len(encoder.facts(number)) for number in range(60)]
    skipped = [number % 5 == 0 and drawn[number] > 1 for number in range(60)]
    bad = [number % 5 == 1 and drawn[number] > 0 for number in range(60)]
    assert (~facts.arrays["is_good"]).tolist() == bad
    wanted = [0 if skipped[number] or bad[number] else drawn[number] for number in range(60)]
    assert facts.arrays["num_outputs"].tolist() == wanted
    assert len(facts.arrays["lengths"]) == sum(wanted)
    first = next(facts.faults())
    assert (first.index, first.key) == (bad.index(True), "s/0001")
    assert (first.hook, first.kind) == ("sample_length", "ValueError")
    assert (first.shard, first.reason) == ("0000.tar", "no length")


def two_sizes(self: Any, sample: Any) -> tuple[str, int]:
    return "one", 2 + sample["number"] % 2


@pytest.mark.parametrize(
    ("base", "hook", "function", "error", "named"),
    [
        (Packed, "sample_length", stateless(lambda self, sample: 1 << 32), ConfigError, "32"),
        (Grouped, "batch_group_criterion", lambda self, sample: (1, 2), ConfigError, "@stateless"),
        (Grouped, "batch_group_criterion", stateless(lambda self, sample: ({1}, 2)), ConfigError, "hashable"),
        (Grouped, "batch_group_criterion", stateless(lambda self, sample: (b"1", 2)), ConfigError, "JSON"),
        (Grouped, "batch_group_criterion", stateless(two_sizes), ConfigError, '"one"'),
        (Filter, "encode_sample", stateless(lambda self, sample: undefined), NameError, "undefined"),  # type: ignore[name-defined]  # noqa: F821
    ],
    ids=["length of 33 bits", "not stateless", "unhashable", "no JSON", "two sizes of a group", "wrong code"],
)
def test_what_is_no_fault_of_a_sample_ends_it(
    flawed_numbers: Path, tmp_path: Path, base: Any, hook: str, function: Any, error: type[Exception], named: str
) -> None:
    encoder = type("Own", (base,), {hook: function})(0)
    with pytest.raises(error, match=named):
        measure(opened(flawed_numbers, encoder), encoder, folder=tmp_path)
    assert not list(tmp_path.glob("[!.]*"))


class Deadly(Drawn):
    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        import os

        os._exit(3)
        yield sample


@pytest.mark.usefixtures("warm_workers")
def test_a_process_that_ends_is_an_error(tmp_path: Path) -> None:
    root = numbers(tmp_path / "ds", 130)
    with pytest.raises(WorkerError, match=r"samples (0|64) to"):
        measure(opened(root, Deadly()), Deadly(), folder=tmp_path / "facts", workers=2)
    with pytest.raises(ConfigError, match=r"workers.*0"):
        measure(opened(root, Deadly()), Deadly(), workers=0)


def test_sizes_of_batches_are_said_once(flawed_numbers: Path, facts_folder: Path) -> None:
    facts = measure(opened(flawed_numbers, Grouped(3)), Grouped(3), folder=facts_folder)
    grouping = facts.sized(Grouping(remainder="drop"))
    assert grouping.remainder == "drop"
    sizes = {number: grouping.sizes.get(number, grouping.size) for number in range(len(facts.keys))}
    assert {facts.keys[number]: size for number, size in sizes.items()} == {
        ("group", group): 2 + group % 2 for group in range(4)
    }
    group = msgspec.structs.replace(facts.summary.groups[0], size=None)
    unsized = MeasuredFacts(facts.path, msgspec.structs.replace(facts.summary, groups=(group,)), facts.arrays)
    with pytest.raises(ConfigError, match=r"0 of 1.*size"):
        unsized.sized(Grouping())


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch, flawed_numbers: Path) -> Iterator[None]:
    """Workers inside this process, and the dataset at a relative path, which faults name."""
    monkeypatch.chdir(flawed_numbers.parent)
    with jobs_by_hand.inline():
        yield


@pytest.fixture
def wanted(inline: None, flawed_numbers: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a local run."""
    encoder = Grouped(3)
    return content(measure(opened(Path(flawed_numbers.name), encoder), encoder, folder=tmp_path / "local").path)


def requested(path: str, encoder: str = "measured_made:Grouped", draw: int = 3) -> MeasureRequest:
    return MeasureRequest(path=path, encoder=encoder, arguments={"draw": draw})


def with_all_chunks(place: Path) -> tuple[Any, Any]:
    """The job of a plan and its phase, all of whose chunks are measured."""
    job = open_job(place)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)
    return job, phase


def finished(output: Path) -> Any:
    return finish_job(output, LocalExecutor(workers=1), Show())


class TestMeasuring(OnNfs):
    """The facts lie in a folder."""

    @pytest.fixture(autouse=True)
    def dataset(self, flawed_numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(flawed_numbers.parent)
        self.request = requested(flawed_numbers.name)

    @pytest.fixture
    def output(self, tmp_path: Path) -> str:
        return str(tmp_path / "out")

    def plan(self, output: str) -> None:
        plan_measure(self.request, folder=output)

    def place(self, output: str) -> str:
        return str(Path(output, Measuring(*self.request.opened()).name))


@pytest.mark.usefixtures("inline")
def test_finish_is_killed_at_any_change(flawed_numbers: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    with_all_chunks(place)
    moment = 0
    while not killing.run(lambda: finished(place), moment=moment):
        moment += 1
        with contextlib.suppress(OutputError):
            open_job(place)
            continue
        break
    assert content(place) == wanted


@pytest.mark.usefixtures("inline")
def test_a_chunk_that_is_lost_is_measured_again(
    flawed_numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, bytes]
) -> None:
    """From whatever folder: the faults name the dataset as it was planned."""
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    job, phase = with_all_chunks(place)
    (chunk,) = job.receipts(phase).folder.glob("*/0-64")
    shutil.rmtree(chunk)
    monkeypatch.chdir(tmp_path)
    finished(Path("facts", place.name))
    assert content(place) == wanted


@pytest.mark.usefixtures("inline")
def test_other_code_or_data_are_refused(flawed_numbers: Path, tmp_path: Path) -> None:
    place = plan_measure(requested(flawed_numbers.name), folder=tmp_path / "facts")
    plan = tmp_path / "facts" / f".{place.name}.measuring" / "plan.json"
    kept = msgspec.json.decode(plan.read_bytes())
    for name, what in (("code", "code"), ("facts", "dataset")):
        JobPlace(plan.parent).save(NewPlan(kept["kind"], {**kept["plan"], name: "other"}))
        with pytest.raises(ConfigError, match=what):
            finished(place)
    plan.write_bytes(msgspec.json.encode(kept))
    assert isinstance(finished(place), MeasuredFacts)


@pytest.mark.usefixtures("inline")
def test_an_empty_dataset(tmp_path: Path) -> None:
    empty = numbers(tmp_path / "empty", 1, (0,))
    place = plan_measure(requested(str(empty)), folder=tmp_path / "facts")
    assert finished(place).summary.bad_samples == 1
