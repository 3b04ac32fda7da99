"""Hooks as functions: their promises, and the same results whatever ran before, in this process or in another."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace import ConfigError
from headrace.encoders import EncoderPipeline, HookFailure, TaskEncoder, get_failure_tolerance, get_stateless, stateless
from headrace.encoders.pipeline import Output, SavedGenerators
from headrace.encoders.task_encoder import GENERATORS, STAGES, CallKey, function_hook, generators_of, may_draw
from headrace.plan.keys import seed_of

NUMPY: Any = np.random
"""The global generator, which is what is tested."""


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
    assert all(len(output.sample) == 2 for found in one[0].values() for output in found), "postencode_sample waits"
    if one[1] is not None:
        assert [pack.place.part for pack in one[2]] == [0, 1] * len(one[1].packs)


def test_no_two_calls_share_their_seeds() -> None:
    places = itertools.starmap(CallKey, itertools.product((1, 2), (0, 1, 2**62), range(3), range(3)))
    seeds = [seed_of(place, STAGES[stage], number) for place in places for stage in STAGES for number in range(3)]
    assert len(set(seeds)) == len(seeds)
    found = EncoderPipeline(Drawing()).encode(lambda: 3, CallKey(1, 1))
    drawn = [one for output in found for values in output.sample[1:] for one in values]
    assert len(set(drawn)) == len(drawn) == 18


def test_seeds_are_golden() -> None:
    """They are part of the order: other ones would change the samples of runs that are under way."""
    assert seed_of(CallKey(1, 2, 3, 4), STAGES["batch"], 5) == 205591502684301959
    packing = ["select_samples_to_pack", "postencode_sample", "pack_selected_samples"]
    batching = ["batch_group_criterion", "batch", "encode_batch"]
    assert list(STAGES) == ["cook", "encode", *packing, *batching, "sample_length"]


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
        (("a", 3), 4, "one"),
        (("a", None), None, "one"),
        (("a", 0), None, "at least 1"),
        (("a", 2.5), None, "at least 1"),
        (([], 1), None, "hashable"),
        ("ab", None, "'ab'"),
        (("a", 1, 2), None, "return"),
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


def test_what_is_not_fixed() -> None:
    found = " ".join(EncoderPipeline(Drawing()).not_fixed)
    assert found == "preencode_sample is a generator select_samples_to_pack packs samples encode_batch is a generator"
    assert EncoderPipeline(Grouping()).not_fixed == ["batch_group_criterion groups samples"]
    assert not EncoderPipeline(TaskEncoder()).not_fixed


@stateless
def plain() -> None: ...


@stateless(restore_seeds=True, failure_tolerance=7)
def drawing() -> None: ...


@stateless(restore_seeds=("numpy", "torch"))
def some() -> None: ...


@stateless(restore_seeds=())
def none() -> None: ...


def unmarked() -> None: ...


def test_marks() -> None:
    assert [get_stateless(one) for one in (plain, drawing, some, none, unmarked)] == [True] * 4 + [False]
    assert get_failure_tolerance(drawing) == 7  # both hold, restore_seeds and failure_tolerance
    assert get_failure_tolerance(plain) is None
    assert get_failure_tolerance(plain, 100) == 100
    assert [generators_of(one) for one in (plain, drawing)] == [GENERATORS] * 2
    assert [generators_of(one) for one in (some, none)] == [("numpy", "torch"), ()]
    assert [may_draw(one) for one in (plain, drawing, some, none, unmarked)] == [False, True, True, False, True]


def test_wrong_marks() -> None:
    with pytest.raises(ConfigError, match=r"\['nmpy'\]"):
        stateless(restore_seeds=("nmpy",))(lambda: None)
    with pytest.raises(ConfigError, match=r"failure_tolerance.*-1"):
        stateless(failure_tolerance=-1)(lambda: None)


def drawn() -> list[float]:
    return [random.random(), NUMPY.rand(), NUMPY.randn(), torch.rand(1).item(), random.gauss(0, 1)]


def test_generators_are_seeded_and_put_back() -> None:
    for seed in (random.seed, NUMPY.seed, torch.manual_seed):
        seed(5)
    drawn()  # leaves half a pair of normal numbers in each generator
    kept = random.getstate(), NUMPY.get_state(), torch.get_rng_state(), NUMPY.get_bit_generator()
    wanted = drawn()
    random.setstate(kept[0])
    NUMPY.set_state(kept[1])
    torch.set_rng_state(kept[2])
    aside = SavedGenerators()
    found = []
    for seed in ((1 << 64) - 1, 12, 12):
        with aside, aside:
            aside.seed(seed, GENERATORS)
            found.append(drawn())
    with contextlib.suppress(KeyError), aside:
        aside.seed(3, GENERATORS)
        raise KeyError
    assert found[1] == found[2]
    assert all(one != other for one, other in zip(found[0], found[1], strict=True))
    assert NUMPY.get_bit_generator() is kept[3]
    assert drawn() == wanted


def _draws(outside: str, aside: SavedGenerators | None) -> list[float]:
    """Return what a program draws; at each letter ``s`` samples are made, which leave half a pair of normal numbers."""
    NUMPY.seed(7)
    found = []
    for letter in outside:
        if letter == "n":
            found.append(NUMPY.standard_normal())
        elif letter == "u":
            found.append(NUMPY.random())
        elif letter == "r":
            NUMPY.seed(8)
        elif aside is not None:
            with aside:
                aside.seed(9, GENERATORS)
                NUMPY.standard_normal()
    return found


@given(st.text("nurs", max_size=14))
def test_normal_numbers_come_in_pairs_around_samples(outside: str) -> None:
    """Whether one is kept is looked up only if something was drawn since; the same one is used all the time."""
    assert _draws(outside, SavedGenerators()) == _draws(outside, None)


def test_only_the_named_ones_are_seeded() -> None:
    found: list[list[float]] = []
    for _ in range(2):
        with SavedGenerators() as aside:
            random.seed(len(found))
            torch.manual_seed(len(found))
            aside.seed(3, ("numpy",))
            found.append(drawn())
    differ = [one != other for one, other in zip(*found, strict=True)]
    assert differ == [True, False, False, True, True]


def test_other_threads_leave_the_generators_alone() -> None:
    NUMPY.seed(4)
    before = NUMPY.get_state()[1].copy()
    seen: list[Any] = []

    def work() -> None:
        with SavedGenerators() as aside:
            aside.seed(1, GENERATORS)
            seen.append(NUMPY.get_state()[1].copy())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert np.array_equal(seen[0], before)


def test_aside_pickles() -> None:
    with pickle.loads(pickle.dumps(SavedGenerators())) as aside:
        aside.seed(1, GENERATORS)
