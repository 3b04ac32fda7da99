"""What megatron-core itself made, and the numbers printed in its rules; `tests/golden/README.md` says how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.megatron import (
    GPTOrder,
    GPTSampling,
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    build_sample_idx,
    normalised_weights,
    torch_randperm,
)
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
    ranks = [Share(rank, 2, 2) for rank in (0, 1)]
    schedule = BatchSchedule.of(4)
    taken = [micro_batches(schedule, share, position=4, end=20, at_least=16) for share in ranks]
    single = [found.slots().reshape(-1, 2).tolist() for found in taken]
    assert single[0] == [[4, 5], [8, 9], [12, 13], [16, 17]]
    assert single[1] == [[6, 7], [10, 11], [14, 15], [18, 19]]
    cyclic = [plainly.cyclic_batches(21, 0, share) for share in ranks]
    assert cyclic[0] == [[4, 1], [7, 5], [3, 9], [0, 8], [6, 2]]
    assert cyclic[1] == [[first + 10, second + 10] for first, second in cyclic[0]]
