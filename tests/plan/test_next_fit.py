"""Next-fit against the plain loop."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases, python_steps
from headrace.errors import ConfigError
from headrace.plan.packing.fitting import next_fit

# By its name: `headrace.plan.packing.fitting` may be the function.
MODULE = importlib.import_module("headrace.plan.packing.fitting")


def naive(lengths: list[int], seq_len: int) -> list[int]:
    bounds, held = [0], 0
    for document, length in enumerate(lengths):
        if held + length > seq_len:
            bounds.append(document)
            held = 0
        held += length
    return [*bounds, len(lengths)] if any(lengths) else [len(lengths)]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], int]:
    seq_len = draw(st.one_of(st.integers(1, 20), st.just(2**40)))
    shortest = draw(st.sampled_from([0, seq_len // 2, seq_len]))
    some = st.one_of(st.just(0), st.integers(shortest, seq_len))
    return draw(st.lists(some, max_size=60)), seq_len


@settings(max_examples=cases(60, 5_000), deadline=None)
@given(documents(), st.integers(1, 9))
def test_it_is_the_plain_loop_for_any_chunk(drawn: tuple[list[int], int], chunk: int) -> None:
    lengths, seq_len = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_CHUNK", chunk)
        bounds = next_fit(np.array(lengths, dtype=np.int64), seq_len)
    assert bounds.dtype == np.int64
    assert bounds.tolist() == naive(lengths, seq_len)


def test_many_documents_over_many_chunks() -> None:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(5.5, 1, 100_000).astype(np.int64), 4096)
    assert next_fit(lengths, 4096).tolist() == naive(lengths.tolist(), 4096)
    lengths[20_000:70_000] = 0  # longer than a chunk without a token: one pack
    assert next_fit(lengths, 4096).tolist() == naive(lengths.tolist(), 4096)


def test_the_example_of_the_docstring() -> None:
    assert next_fit(np.array([3, 2, 0, 2, 2]), 6).tolist() == [0, 3, 5]


def test_no_documents_and_no_tokens() -> None:
    assert next_fit(np.empty(0, dtype=np.int64), 5).tolist() == [0]
    assert next_fit(np.zeros(3, dtype=np.int64), 5).tolist() == [3]


def test_it_is_quick() -> None:
    """20 million documents a second are promised: what a Python step a document cannot reach."""
    lengths = np.full(1_000_000, 410, dtype=np.int64)
    assert len(next_fit(lengths, 4100)) == 100_001
    assert python_steps(lambda: next_fit(lengths, 4100)) < 500_000, "three lines a sample"


@pytest.mark.parametrize("wrong", [-1, 9])
def test_a_length_out_of_range_is_named(wrong: int) -> None:
    lengths = np.zeros(40_000, dtype=np.int64)
    lengths[30_001] = wrong
    lengths[0] = 8
    with pytest.raises(ConfigError, match=rf"document 30001 has {wrong} tokens; allowed are 0 to 8"):
        next_fit(lengths, 8)
    with pytest.raises(ConfigError, match="seq_len is at least 1, found 0"):
        next_fit(lengths, 0)
