"""What hooks promise, and how the global generators are set for them and put back."""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError
from headrace.encoders import get_failure_tolerance, get_stateless, stateless
from headrace.encoders.pipeline import SavedGenerators
from headrace.encoders.task_encoder import GENERATORS, generators_of, may_draw

NUMPY: Any = np.random
"""The global generator, which is what is tested."""


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
    assert [generators_of(one) for one in (plain, drawing, some, none)] == [
        GENERATORS,
        GENERATORS,
        ("numpy", "torch"),
        (),
    ]
    assert [may_draw(one) for one in (plain, drawing, some, none, unmarked)] == [False, True, True, False, True]


def test_wrong_marks() -> None:
    with pytest.raises(ConfigError, match=r"names \['nmpy'\]; allowed are numpy, random, torch"):
        stateless(restore_seeds=("nmpy",))(lambda: None)
    with pytest.raises(ConfigError, match="failure_tolerance is -1"):
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


def test_generators_are_put_back_after_an_error() -> None:
    torch.manual_seed(1)
    random.seed(1)
    NUMPY.seed(1)
    wanted = drawn()
    torch.manual_seed(1)
    random.seed(1)
    NUMPY.seed(1)
    with contextlib.suppress(KeyError), SavedGenerators() as aside:
        aside.seed(3, GENERATORS)
        raise KeyError
    assert drawn() == wanted


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
