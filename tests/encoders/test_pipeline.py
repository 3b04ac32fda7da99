"""Hooks as functions: the same results whatever ran before, in this process or in another."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace import ConfigError
from headrace.encoders import CallKey, EncoderPipeline, HookFailure, TaskEncoder, stateless
from headrace.encoders.pipeline import Output
from headrace.encoders.task_encoder import STAGES, function_hook
from headrace.plan.keys import seed_of

NUMPY: Any = np.random


def draws() -> tuple[float, ...]:
    return (random.random(), float(NUMPY.rand()), torch.rand(1).item())


class Drawing(TaskEncoder[Any, Any, Any, Any]):
    """A sample of n gives n outputs; every hook draws."""

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample: int) -> Iterator[Any]:
        for number in range(sample):
            yield (number, draws())

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample: Any) -> Any:
        return (*sample, draws())

    @stateless(restore_seeds=True)
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        order = NUMPY.permutation(len(samples)).tolist()
        return [[samples[place] for place in order[first : first + 2]] for first in range(0, len(order) - 1, 2)]

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        for _ in range(2):
            yield (draws(), samples)

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        return (draws(), samples)

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Iterator[Any]:
        for _ in range(2):
            yield (draws(), batch)


def through(pipeline: EncoderPipeline, sizes: dict[int, int], order: list[int], key: int = 3) -> Any:
    encoded = {p: pipeline.encode(lambda p=p: sizes[p], CallKey(key, p)) for p in order}  # type: ignore[misc]
    flat = [one for p in sorted(encoded) for one in encoded[p]]
    if not flat:
        return encoded, None
    chosen = pipeline.select([one.sample for one in flat], flat[0].place)
    packs = [pack for numbers in chosen.packs for pack in pipeline.pack([flat[number] for number in numbers])]
    batches = pipeline.batch([pack.sample for pack in packs], packs[0].place) if packs else None
    return encoded, chosen, packs, batches


@settings(max_examples=cases(12, 30), deadline=None)
@given(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=6), data=st.data())
def test_results_are_a_function_of_the_place(sizes: list[int], data: st.DataObject) -> None:
    there = dict(enumerate(sizes))
    order = data.draw(st.permutations(list(there)))
    one = through(EncoderPipeline(Drawing(), packing=True), there, list(there))
    pipeline = EncoderPipeline(Drawing(), packing=True)
    random.seed(data.draw(st.integers(0, 9)))
    outside = random.getstate()
    with pipeline:
        random.random()
        assert through(pipeline, there, order) == one
    assert random.getstate() == outside
    assert through(pickle.loads(pickle.dumps(pipeline)), there, order) == one
    assert [len(found) for _, found in sorted(one[0].items())] == sizes


def test_the_second_half_of_encoding_waits_for_the_pack() -> None:
    for packing, size in ((False, 3), (True, 2)):
        pipeline = EncoderPipeline(Drawing(), packing=packing)
        assert [len(one.sample) for one in pipeline.encode(lambda: 2, CallKey(1, 0))] == [size] * 2
    [first, second] = pipeline.encode(lambda: 2, CallKey(1, 0))
    packs = pipeline.pack([second, first])
    assert [pack.place for pack in packs] == [CallKey(1, 0, 1, 0), CallKey(1, 0, 1, 1)]
    assert [[len(one) for one in pack.sample[1]] for pack in packs] == [[3, 3]] * 2


def test_no_two_calls_share_their_seeds() -> None:
    places = [
        CallKey(key, position, output, part)
        for key in (1, 2)
        for position in (0, 1, 2**62)
        for output in range(3)
        for part in range(3)
    ]
    seeds = [seed_of(place, STAGES[stage], number) for place in places for stage in STAGES for number in range(3)]
    assert len(set(seeds)) == len(seeds)
    found = EncoderPipeline(Drawing()).encode(lambda: 3, CallKey(1, 1))
    drawn = [one for output in found for values in output.sample[1:] for one in values]
    assert len(set(drawn)) == len(drawn) == 18


def test_seeds_are_golden() -> None:
    """They are part of the order: other ones would change the samples of runs that are under way."""
    assert seed_of(CallKey(1, 2, 3, 4), STAGES["batch"], 5) == 205591502684301959
    assert list(STAGES) == [
        "cook",
        "encode",
        "select_samples_to_pack",
        "postencode_sample",
        "pack_selected_samples",
        "batch_group_criterion",
        "batch",
        "encode_batch",
        "sample_length",
    ]


def test_the_cooker_is_seeded() -> None:
    pipeline = EncoderPipeline(TaskEncoder())

    @stateless(restore_seeds=True)
    def cook() -> tuple[float, ...]:
        return draws()

    hook = function_hook("cook_crude_sample", cook)
    found = [pipeline.encode(cook, CallKey(1, place), hook)[0].sample for place in (4, 5, 4)]
    assert found[0] == found[2] != found[1]


def test_selection_tells_what_is_left() -> None:
    class Some(Drawing):
        @stateless
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [[samples[3], samples[0]], [], [samples[2]]]

    equal = [[], [], [], [], []]  # equal samples are told apart  # type: ignore[var-annotated]
    found = EncoderPipeline(Some(), packing=True).select(equal, CallKey(1, 0))
    assert found == ([[3, 0], [2]], [1, 4])


@pytest.mark.parametrize(
    "chosen", [lambda s: [[s[0], s[0]]], lambda s: [[s[0]], [s[0]]], lambda s: [["new"]], lambda s: 3]
)
def test_wrong_selections(chosen: Any) -> None:
    class Wrong(Drawing):
        @stateless
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return chosen(samples)

    with pytest.raises(HookFailure) as found:
        EncoderPipeline(Wrong(), packing=True).select([[1], [2]], CallKey(1, 0))
    assert isinstance(found.value.error, ConfigError | TypeError)


class Grouping(TaskEncoder[Any, Any, Any, Any]):
    @stateless
    def batch_group_criterion(self, sample: Any) -> Any:
        return sample


@pytest.mark.parametrize(
    ("given", "batch_size", "found"),
    [
        (("a", 3), None, ("a", 3)),
        (("a", None), 4, ("a", 4)),
        (("a", 3), 4, "exactly one of the two"),
        (("a", None), None, "exactly one of the two"),
        (("a", 0), None, "at least 1"),
        (("a", 2.5), None, "at least 1"),
        (([], 1), None, "with a hashable key"),
        ("ab", None, "returned 'ab'"),
        (("a", 1, 2), None, "it must return"),
    ],
)
def test_groups(given: Any, batch_size: int | None, found: Any) -> None:
    pipeline = EncoderPipeline(Grouping(), batch_size=batch_size)
    assert pipeline.groups
    one = Output(CallKey(1, 0), given)
    if isinstance(found, tuple):
        assert pipeline.group(one) == found
        return
    with pytest.raises(HookFailure) as raised:
        pipeline.group(one)
    assert found in str(raised.value.error)


def test_failures_name_the_hook() -> None:
    class Failing(TaskEncoder[Any, Any, Any, Any]):
        @stateless(failure_tolerance=4)
        def encode_sample(self, sample: Any) -> Any:
            raise KeyError(sample)

        def encode_batch(self, batch: Any) -> Any:
            yield 1
            raise StopIteration  # becomes a RuntimeError, as of any generator

    pipeline = EncoderPipeline(Failing())
    with pytest.raises(HookFailure) as found:
        pipeline.encode(lambda: 1, CallKey(1, 0))
    assert (found.value.hook.name, found.value.hook.failure_tolerance) == ("encode_sample", 4)
    assert isinstance(found.value.error, KeyError)
    with pytest.raises(HookFailure) as found:
        pipeline.batch([{}], CallKey(1, 0))
    assert (found.value.hook.name, type(found.value.error)) == ("encode_batch", RuntimeError)
    with pytest.raises(HookFailure) as found:
        pipeline.encode(lambda: 1 / 0, CallKey(1, 0))
    assert (found.value.hook.name, found.value.hook.stateless) == ("read", False)


def in_thread(function: Any) -> Any:
    raised: list[Exception | None] = []

    def work() -> None:
        try:
            function()
            raised.append(None)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return raised[0]


def test_hooks_that_draw_are_refused_in_threads() -> None:
    class Unmarked(TaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any: ...

    class Own(TaskEncoder[Any, Any, Any, Any]):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return float(np.random.default_rng(self.current_seed).random())

    assert " is marked as drawing" in str(in_thread(EncoderPipeline(Drawing()).check_thread))
    assert "is not marked @stateless" in str(in_thread(EncoderPipeline(Unmarked()).check_thread))
    pipeline = EncoderPipeline(Own())
    assert in_thread(pipeline.check_thread) is None
    assert isinstance(in_thread(lambda: pipeline.check_thread(function_hook("cook", print))), ConfigError)
    EncoderPipeline(Unmarked()).check_thread()
    here = pipeline.encode(lambda: 1, CallKey(1, 2))
    there: list[Any] = []
    in_thread(lambda: there.append(pipeline.encode(lambda: 1, CallKey(1, 2))))
    assert there == [here]


def test_what_is_not_fixed() -> None:
    found = " ".join(EncoderPipeline(Drawing()).not_fixed)
    assert found == "preencode_sample is a generator select_samples_to_pack packs samples encode_batch is a generator"
    assert EncoderPipeline(Grouping()).not_fixed == ["batch_group_criterion groups samples"]
    assert not EncoderPipeline(TaskEncoder()).not_fixed
