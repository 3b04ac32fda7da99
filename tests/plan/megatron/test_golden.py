"""What megatron-core itself made, the numbers printed in its rules, and what goes by its own names."""

from __future__ import annotations

import doctest
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.megatron import (
    CyclicOrder,
    GPTOrder,
    GPTSampling,
    blend_sizes,
    build_blending_indices,
    build_doc_idx,
    build_exhaustive_blending_indices,
    build_sample_idx,
    build_shuffle_idx,
    count_epochs,
    indices,
    normalised_weights,
    torch_randperm,
)
from headrace.plan.megatron.indices import SequenceStream
from plan.megatron import plainly

GOLDEN = Path(__file__).parents[2] / "golden" / "megatron_order"
README_SIZES = [20, 50, 60, 30, 100, 5]


def read(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())
    assert cases
    return cases


def sha1(array: Any) -> str:
    return hashlib.sha1(np.ascontiguousarray(array, dtype="<i8").tobytes()).hexdigest()[:16]


def order_of(sizes: str, num_samples: int | None, options: dict[str, Any]) -> tuple[GPTOrder, Any]:
    lengths = np.array(README_SIZES)
    if sizes == "lognormal":
        lengths = np.maximum(1, np.random.default_rng(0).lognormal(6, 1.2, 1000)).astype(np.int32)
    return GPTOrder(lengths, GPTSampling(num_samples=num_samples, **options)), lengths


@pytest.mark.parametrize("case", read("orders"))
def test_indices_and_tokens(case: dict[str, Any]) -> None:
    order, lengths = order_of(case["sizes"], case["num_samples"], case["options"])
    for name in ("document_index", "sample_index", "shuffle_index"):
        array = getattr(order, name)
        assert str(array.dtype) == case[name]["dtype"]
        assert array.tolist() == case[name].get("values", array.tolist())
        assert sha1(array) == case[name]["sha1"]
    found = order.locate(np.arange(len(case["first_tokens"])))
    # Token i of the stream of all sequences is i modulo 50,021; a piece of no tokens may come first.
    begins = np.cumsum(lengths) - lengths
    first = [
        next(i for i in range(low, high) if found.lengths[i])
        for low, high in zip(found.offsets[:-1], found.offsets[1:], strict=True)
    ]
    tokens = (begins[found.sequences[first]] + found.begins[first]) % 50021
    assert tokens.tolist() == case["first_tokens"]


@pytest.mark.parametrize("case", read("sample_index"))
def test_sample_index(case: dict[str, Any]) -> None:
    options = case["drop_last_partial"], case["add_extra_token"]
    assert build_sample_idx(README_SIZES, list(range(6)), 30, 1, 265, *options).tolist() == case["rows"]


@pytest.mark.parametrize("case", read("blends"))
def test_blends(case: dict[str, Any]) -> None:
    if case["size"] is None:
        datasets, samples = build_exhaustive_blending_indices(case["weights"])
    else:
        datasets, samples = build_blending_indices(normalised_weights(case["weights"]), case["size"])
    assert (datasets.dtype, samples.dtype) == (np.int16, np.int64)
    assert datasets[:20].tolist() == case["first_datasets"]
    assert (sha1(datasets), sha1(samples)) == (case["datasets_sha1"], case["samples_sha1"])


@pytest.mark.parametrize("case", read("randperm"))
def test_randperm(case: dict[str, Any]) -> None:
    found = torch_randperm(case["length"], case["seed"])
    assert found.dtype == np.int64
    assert found[:12].tolist() == case["first"]
    assert sha1(found) == case["sha1"]


def test_the_printed_order() -> None:
    """Section 2.3 of the rules, as printed there."""
    order, _ = order_of("readme", 20, {"sequence_length": 30, "seed": 1234})
    assert order.document_index.tolist() == [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4]
    assert order.shuffle_index[-9:].tolist() == [25, 22, 23, 18, 21, 24, 19, 20, 17]
    assert (order.num_epochs, order.separate_last_epoch) == (3, True)


def test_the_printed_blends() -> None:
    shares = normalised_weights(range(1, 11))
    datasets, _ = build_blending_indices(shares, 20)
    assert datasets.tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 9, 8, 7, 1, 6, 5, 9, 8, 4, 7, 0, 9]
    assert blend_sizes(shares, 1_000_000).size == 1_000_005


def test_the_printed_batches() -> None:
    split = [
        micro_batches(BatchSchedule.of(4), Share(rank, 2, 2), position=4, end=20, at_least=16).begins.tolist()
        for rank in (0, 1)
    ]
    assert split == [[4, 8, 12, 16], [6, 10, 14, 18]]
    found = CyclicOrder(21, micro_batch_size=2, data_parallel_size=2).locate(np.arange(20)).reshape(-1, 2, 2)
    cyclic = [found[:, rank].tolist() for rank in (0, 1)]
    assert cyclic[0] == [[4, 1], [7, 5], [3, 9], [0, 8], [6, 2]]
    assert cyclic[1] == [[first + 10, second + 10] for first, second in cyclic[0]]


SIZES = [20, 50, 60, 30, 100, 5]


def test_examples() -> None:
    failed, tried = doctest.testmod(indices)
    assert (failed, tried >= 6) == (0, True)


@settings(max_examples=cases(12, 2000), deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any),
    st.integers(1, 3),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_sample_idx_equals_the_plain_loop(
    sizes: list[int], epochs: int, size: int, drop: bool, extra: bool, random: Any
) -> None:
    entries = list(range(len(sizes))) * epochs
    random.shuffle(entries)
    lengths = [sizes[entry] for entry in entries]
    assume(drop or not extra or lengths[-1] > 0)
    left = epochs * sum(sizes) - extra
    num_samples = left // size if drop else -(-left // size)
    expected = plainly.sample_rows(lengths, size, num_samples, int(extra))
    found = build_sample_idx(sizes, entries, size, epochs, sum(sizes), drop, extra)
    assert found.dtype == np.int32
    assert found.tolist() == [list(row) for row in expected]
    stream = SequenceStream(np.arange(len(lengths)), np.array(lengths))
    rows = stream.sample_index(size, num_samples, int(extra))
    assert np.array_equal(found, rows)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_073])
def test_sample_idx_over_several_chunks(count: int) -> None:
    """Against prefix sums of all documents, at the sizes where a pass ends."""
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 9, count)
    entries = rng.permutation(count).astype(np.int32)
    found = build_sample_idx(sizes, entries, 7, 1, int(sizes.sum()))
    ends = np.cumsum(sizes[entries])
    tokens = np.arange(1, (ends[-1] - 1) // 7 + 1) * 7
    place = np.searchsorted(ends, tokens, side="right")
    assert np.array_equal(found[1:, 0], place)
    assert np.array_equal(found[1:, 1], tokens - (ends - sizes[entries])[place])
    assert found[0].tolist() == [0, 0]


def test_a_partial_sample_ends_with_the_last_token_there_is() -> None:
    """Megatron cannot: its offset would be -1."""
    assert build_sample_idx([4, 3, 0], [0, 1, 2], 5, 1, 7, False).tolist() == [[0, 0], [1, 1], [1, 2]]
    # Without the extra token it can, and ends in the empty document.
    assert build_sample_idx([4, 3, 0], [0, 1, 2], 5, 1, 7, False, False).tolist() == [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize(
    ("tokens", "exact", "in_float32"), [(134_217_730, 16385, 16384), (2**40 + 70_000, 134_217_737, 134_217_744)]
)
def test_the_number_of_samples_is_exact_unless_asked(tokens: int, exact: int, in_float32: int) -> None:
    for float32_ceil, expected in ((False, exact), (True, in_float32)):
        sampling = GPTSampling(
            sequence_length=8192, num_samples=1, seed=0, drop_last_partial=False, float32_ceil=float32_ceil
        )
        assert count_epochs(tokens, sampling).num_samples == expected


def test_samples_past_the_end_are_the_last_token() -> None:
    """Where float32 counts too many, as Megatron does: rows that stand still, samples of one token."""
    stream = SequenceStream(np.array([0, 1]), np.array([9, 21]))
    assert stream.sample_index(10, 5, 1).tolist() == [[0, 0], [1, 1], [1, 11], [1, 20], [1, 20], [1, 20]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((SIZES, [0], 0, 1, 265), "0.*1.*265"),
        ((SIZES, [0], 30, 0, 265), "30.*0.*265"),
        ((SIZES, [0, 1, 2, 3, 4, 6], 30, 1, 265), "0.*6.*6.*sizes"),
        ((SIZES, [0, -1], 30, 1, 25), "-1.*0.*6.*sizes"),
        ((SIZES, [0, 1, 2, 3, 4, 5], 30, 2, 265), "265.*2.*265.*530"),
        ((SIZES, [], 30, 1, 265), "0.*tokens"),
        (([2.5], [0], 30, 1, 2), "float64"),
    ],
)
def test_what_sample_idx_refuses(arguments: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build_sample_idx(*arguments)


def test_what_the_others_refuse() -> None:
    rng = np.random.RandomState(0)
    with pytest.raises(ConfigError, match=r"num_epochs.*0"):
        build_doc_idx([1], 0, rng, False)
    for documents in ([2**31], range(2**31 - 1, 2**31 + 1)):
        with pytest.raises(ConfigError, match="int32"):
            build_doc_idx(list(documents), 1, rng, False)
    with pytest.raises(ConfigError, match=r"0.*total_size.*3"):
        build_shuffle_idx(4, 3, rng)
