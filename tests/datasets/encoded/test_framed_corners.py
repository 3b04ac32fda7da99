"""Corners of framed sources: outputs that are skipped late, one object given twice, all generators at once, mixes."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from framed_encoders import Packed, cook, numbers
from headrace import ConfigError, MediaDataset, Order
from headrace.compat.energon import FilterDataset, IterMapDataset
from headrace.datasets import (
    Concat,
    Framed,
    FramedRun,
    Limit,
    MapDataset,
    Repeat,
    ScheduledBlend,
    Stage,
    Subset,
)
from headrace.datasets.encoded.samples import restore_key_of
from headrace.datasets.encoded.unit_reader import size_of
from headrace.encoders import Cooker, ErrorPolicy, SkipSample, TaskEncoder, stateless
from headrace.errors import StateError
from headrace.plan.framed import LaneState

NUMPY: Any = np.random
SUBSTITUTE = ErrorPolicy(on_error="substitute")
IN_ORDER = Order(kind="none")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("corners") / "ds", 12)).cooked_by([Cooker(cook)])


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    root = numbers(tmp_path_factory.mktemp("flawed") / "ds", 12, broken=(1, 2, 4, 7, 8))
    return MediaDataset.open(root).cooked_by([Cooker(cook)])


def units(framed: Framed, count: int = 80, **options: Any) -> list[Any]:
    """All of one pass, in the order of the samples, each of which its key gives again."""
    run = FramedRun(framed, global_batch_size=1, **{"epochs": 1, "order": IN_ORDER, **options})
    found = [unit for unit in run.reader().samples(range(count)) if unit is not None]
    keys = [restore_key_of(unit) for unit in found]
    assert len(set(keys)) == len(keys)
    assert [run.restore_sample(key) for key in keys] == found
    return found


class Thrice(TaskEncoder[Any, Any, Any, Any]):
    """The very object that it was given, several times."""

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        yield from [sample] * 3


class ThricePacked(Thrice):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 4] for at in range(0, len(samples), 4)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        pack = {"n": [sample["n"] for sample in samples]}
        yield pack
        yield pack


def test_one_object_given_twice_is_two_samples(whole: MediaDataset) -> None:
    assert [unit["n"] for unit in units(Framed(whole, Thrice()))] == [n for n in range(12) for _ in range(3)]
    packs = units(Framed(whole, ThricePacked()))
    assert [pack["n"] for pack in packs[:3]] == [[0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 2, 2]]
    assert len(packs) == 18


class SkipsLate(TaskEncoder[Any, Any, Any, Any]):
    """Of odd numbers, one of two outputs is skipped: after the first, or when it is encoded to the end."""

    def __init__(self, where: str) -> None:
        self.where = where

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        yield {**sample, "k": 0}
        if self.where == "pre" and sample["n"] % 2:
            raise SkipSample
        yield {**sample, "k": 1}

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        if self.where == "post" and sample["n"] % 2 and not sample["k"]:
            raise SkipSample
        return sample


@pytest.mark.parametrize("where", ["pre", "post"])
def test_a_late_skip_leaves_out_that_output_alone(whole: MediaDataset, where: str) -> None:
    found = [(unit["n"], unit["k"]) for unit in units(Framed(whole, SkipsLate(where)))]
    left_out = {(n, int(where == "pre")) for n in range(1, 12, 2)}
    assert found == [one for one in ((n, k) for n in range(12) for k in range(2)) if one not in left_out]


@stateless
def two(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield {**sample, "k": 0}
        yield {**sample, "k": 1}


@stateless
def keeps(sample: Any) -> bool:
    if sample["n"] % 2 and not sample["k"]:
        raise SkipSample
    return bool(sample["n"] < 6)


@stateless
def ends(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        raise SkipSample


def test_a_skip_in_a_row_of_functions_is_of_one_of_them(whole: MediaDataset) -> None:
    kept = [(n, k) for n in range(6) for k in range(2) if not (n % 2 and not k)]
    row = FilterDataset(IterMapDataset(whole, two), keeps)
    assert [(unit["n"], unit["k"]) for unit in units(row)] == kept
    assert [(unit["n"], unit["k"]) for unit in units(IterMapDataset(row, ends))] == kept
    # A map in front, which gives one, and skips one.
    mapped = FilterDataset(IterMapDataset(MapDataset(whole, doubled), two), keeps)
    assert [(unit["n"], unit["k"]) for unit in units(mapped)] == [(n, k) for n in (0, 4) for k in range(2)]


@stateless
def doubled(sample: Any) -> Any:
    if sample["n"] == 1:
        raise SkipSample
    return {**sample, "n": 2 * sample["n"]}


class SkipsFrames(Packed):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        raise SkipSample


def test_a_frame_is_not_skipped(whole: MediaDataset) -> None:
    """In Energon the samples of the buffer are lost."""
    run = FramedRun(Framed(whole, SkipsFrames()), global_batch_size=1)
    with pytest.raises(ConfigError, match="SkipSample in select_samples_to_pack of SkipsFrames: the frame that begins"):
        run.reader().samples([0])


class Substituted(TaskEncoder[Any, Any, Any, Any]):
    """Two outputs of each sample, of which the group hook leaves out the first, or both."""

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        yield {**sample, "k": 0}
        yield {**sample, "k": 1}

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[int, int]:
        if not sample["k"] or sample["n"] == 3:
            raise SkipSample
        return sample["n"] % 2, 3


def test_faults_are_told_though_the_first_output_is_left_out(flawed: MediaDataset) -> None:
    run = FramedRun(
        Framed(flawed, Substituted(), frame_positions=4, errors=SUBSTITUTE), global_batch_size=2, samples=48
    )
    reader = run.reader()
    made = [one for unit in reader.samples(range(60)) if unit is not None for one in unit]
    samples = run.new_sources().outputs(*run.locate(np.arange(48))[1:])
    assert reader.faults.total == sum(len(sample.faults) for sample in samples) > 15
    assert {one["k"] for one in made} == {1}
    assert not reader._faults


class DrawsAll(TaskEncoder[Any, Any, Any, Any]):
    """Every hook draws from the generators of Python, NumPy and torch, one or more numbers."""

    def _drawn(self) -> tuple[float, ...]:
        return random.gauss(0, 1), float(NUMPY.normal()), float(torch.randn(1)), self.current_seed % 1000

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        for _ in range(1 + int(NUMPY.randint(2))):
            yield {**sample, "pre": self._drawn()}

    @stateless(restore_seeds=True)
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        order = random.sample(range(len(samples)), len(samples))
        size = 1 + int(torch.randint(3, (1,)))
        return [[samples[at] for at in order[begin : begin + size]] for begin in range(0, len(order) - size, size)]

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample: Any) -> Any:
        return {**sample, "post": self._drawn()}

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        for _ in range(1 + int(torch.randint(2, (1,)))):
            yield {"members": [(one["n"], one["pre"], one["post"]) for one in samples], "packed": self._drawn()}

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        keys = [one["__restore_key__"] for one in samples]
        return {"samples": samples, "batched": self._drawn(), "__restore_key__": keys}

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "encoded": self._drawn()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
def test_all_that_hooks_draw_is_drawn_again(flawed: MediaDataset, buffer_bytes: int) -> None:
    framed = Framed(flawed, DrawsAll(), frame_positions=5, errors=SUBSTITUTE, buffer_bytes=buffer_bytes)
    run = FramedRun(framed, global_batch_size=2, samples=36, order=Order(kind="full", seed=2))

    def batches(reader: Any, first: int) -> list[Any]:
        found = []
        for step in range(first, 34):
            random.seed(step)  # what else is drawn in the process
            made = reader.collate(reader.samples(range(2 * step, 2 * step + 2)))
            found.append((made, reader.marks()))
        return found

    wanted = batches(run.reader(), 0)
    drawn = [batch["batched"] for batch, _ in wanted if "batched" in batch]
    assert len(set(drawn)) == len(drawn) > 15
    states = {lane: LaneState(lane) for lane in range(2)}
    for step, (batch, marks) in enumerate(wanted):
        resumed = batches(run.reader([state.at(step) for state in states.values()]), step)
        assert [again for again, _ in resumed] == [later for later, _ in wanted[step:]]
        if "batched" in batch:
            assert pickle.loads(pickle.dumps(run)).restore_sample(batch["__restore_key__"]) == batch
        for mark in marks:
            if mark.first_unit <= step + 1:
                states[mark.lane] = mark


class Forgets(TaskEncoder[Any, Any, Any, Any]):
    """Says that it is stateless, and makes two outputs of each sample only for the first few times."""

    calls = 0

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        type(self).calls += 1
        yield from [sample] * (2 if self.calls <= 12 else 1)


def test_hooks_that_make_something_else_again(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Forgets(), frame_positions=12, buffer_bytes=0), global_batch_size=1, samples=12)
    reader = run.reader()
    reader.samples([0])
    with pytest.raises(StateError, match="Forgets made output 1 of the sample at position 0, and now makes 1 outputs"):
        reader.samples([1])


class Counted(TaskEncoder[Any, Any, Any, Any]):
    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[int, Any]:
        return 0, np.int64(4)


def test_sizes_of_groups_may_be_numpys(whole: MediaDataset) -> None:
    run = FramedRun(Framed(whole, Counted()), global_batch_size=1, samples=12)
    assert [len(unit) for unit in run.reader().samples(range(3))] == [4, 4, 4]


def test_mixes_of_every_kind_lose_nothing(whole: MediaDataset) -> None:
    part = Subset(whole, [3, 9])
    full = Order(kind="full", seed=1)
    mix = Concat({"a": Repeat(part, 2), "b": whole, "c": Limit(whole, 4)})
    made = units(Framed(mix, Thrice()), 120, order=full)
    found = Counter((unit["n"], restore_key_of(unit)[1]) for unit in made)
    assert {key: count for key, count in found.items() if key[1] != "c"} == {
        **{(n, "a"): 6 for n in range(3, 9)}, **{(n, "b"): 3 for n in range(12)}
    }  # fmt: skip
    assert sorted(count for (_, path), count in found.items() if path == "c") == [3] * 4
    shift = ScheduledBlend({"a": whole, "b": whole}, [Stage(until=10, weights={"a": 1}), Stage(weights={"b": 1})])
    paths = [restore_key_of(unit)[1] for unit in units(Framed(shift, Thrice()), 66, epochs=None, samples=22)]
    assert paths == ["a"] * 30 + ["b"] * 36


def test_sizes_of_mixed_tuples() -> None:
    assert size_of((3, np.zeros(100_000, dtype=np.uint8))) > 100_000
    assert size_of({"pair": [None, "x" * 9_000]}) > 9_000


@pytest.mark.parametrize("name", ["datasets.measure", "MeasuredDataset", "datasets.Framed"])
def test_each_name_can_be_the_first_that_is_imported(name: str) -> None:
    package, _, name = f"headrace.{name}".rpartition(".")
    code = f"from {package} import {name}"
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


class LateFaults(TaskEncoder[Any, Any, Any, Any]):
    """Packs of three neighbours, of which some show only then that they cannot be made, or are not wanted."""

    def __init__(self, bad: tuple[int, ...], skipped: tuple[int, ...] = ()) -> None:
        self.bad, self.skipped = bad, skipped

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        if sample["n"] in self.bad:
            raise ValueError("no such picture")
        if sample["n"] in self.skipped:
            raise SkipSample
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"n": [sample["n"] for sample in samples]}


def test_what_fails_after_the_selection_is_left_out_of_its_pack(whole: MediaDataset) -> None:
    encoder = LateFaults(bad=(0, 4), skipped=(1, 8))
    framed = Framed(whole, encoder, frame_positions=12, errors=SUBSTITUTE)
    assert [unit["n"] for unit in units(framed)] == [[2], [3, 5], [6, 7], [9, 10, 11]]
    reader = FramedRun(framed, global_batch_size=1, epochs=1, order=IN_ORDER).reader()
    reader.samples([0])
    assert [(fault.index, fault.hook, fault.position) for fault in reader.faults.faults] == [
        (0, "postencode_sample", 0)
    ]
    reader.samples(range(1, 4))
    assert [fault.index for fault in reader.faults.faults] == [0, 4]


def test_a_pack_without_samples_is_an_error(whole: MediaDataset) -> None:
    """As is the first fault where no other policy is said, and one that is no sample's."""
    for encoder, errors, wanted in [
        (LateFaults(bad=(3, 4, 5)), SUBSTITUTE, "no such picture"),
        (LateFaults(bad=(4,)), None, "no such picture"),
        (LateFaults(bad=(), skipped=(3, 4, 5)), SUBSTITUTE, "has its place already"),
    ]:
        reader = FramedRun(
            Framed(whole, encoder, frame_positions=12, errors=errors), global_batch_size=1, epochs=1, order=IN_ORDER
        ).reader()
        assert reader.samples([0])[0]["n"] == [0, 1, 2]
        with pytest.raises((ValueError, ConfigError), match=wanted):
            reader.samples([1])
