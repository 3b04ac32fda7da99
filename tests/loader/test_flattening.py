"""Hugging Face's padding-free layouts; `tests/golden/README.md` says how the golden ones were made."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.loader.attention import flatten, flatten_packed

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "packing" / "flattening.json").read_text()
)
ALL = {"return_flash_attn_kwargs": True, "return_seq_idx": True}


def shown(flat: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int) else {"dtype": str(value.dtype), "values": value.tolist()}
        for name, value in flat.items()
    }


@pytest.mark.parametrize("case", GOLDEN)
def test_transformers_own_results(case: dict[str, Any]) -> None:
    assert shown(flatten(case["features"], **case["options"])) == case["batch"]


@settings(max_examples=cases(20, 1_500), deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=3))
def test_a_packed_batch_is_its_documents_flattened(lengths: list[list[int]]) -> None:
    """Each was cut behind its last token; some have a pad behind them."""
    size = 25
    batch = {
        "input_ids": np.zeros((len(lengths), size), dtype=np.int64),
        "labels": np.full((len(lengths), size), -100),
        "position_ids": np.zeros((len(lengths), size), dtype=np.int64),
        "document_ids": np.full((len(lengths), size), -1),
    }
    features = []
    for row, sizes in enumerate(lengths):
        column = 0
        for length in sizes:
            tokens = np.arange(length) + 10 * len(features)
            labels = np.where(tokens % 3, tokens, -100)  # some are not trained on
            batch["input_ids"][row, column : column + length] = tokens
            batch["labels"][row, column : column + length] = [*labels[1:], 7]
            batch["position_ids"][row, column : column + length] = np.arange(length)
            batch["document_ids"][row, column : column + length] = len(features)
            features.append({"input_ids": tokens, "labels": labels})
            column += length + length % 2
        batch["position_ids"][row, column:] = np.arange(size - column)
    tensors = {name: torch.from_numpy(values.copy()) for name, values in batch.items()}
    found = shown(flatten_packed(tensors))
    assert all((tensors[name].numpy() == values).all() for name, values in batch.items()), "it is left as it was"
    # As packs with labels="same" have them.
    is_label = (tensors["document_ids"] >= 0) & (tensors["position_ids"] > 0) & (tensors["input_ids"] % 3 > 0)
    tensors["labels"] = torch.where(is_label, tensors["input_ids"], -100)
    assert shown(flatten_packed(tensors, is_unshifted=True)) == found
    if features:
        assert found == shown(flatten(features, **ALL))
    else:
        assert found["input_ids"]["values"] == found["position_ids"]["values"] == found["seq_idx"]["values"] == [[]]
        assert found["cu_seq_lens_q"] == {"dtype": "torch.int32", "values": [0]}
        assert found["max_length_q"] == 0


def test_documents_of_a_store_are_taken_as_they_are() -> None:
    """Read-only arrays of small dtypes, without a warning and without being written to."""
    tokens = np.array([1, 2, 3], dtype=np.uint16)
    tokens.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = flatten([{"input_ids": tokens, "labels": tokens}])
    assert found["labels"].tolist() == [[-100, 2, 3]]  # type: ignore[union-attr]
    mine = torch.tensor([4, 5])
    flatten([{"input_ids": mine, "labels": mine}])
    assert mine.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("features", "kind", "named"),
    [
        ([], ConfigError, "features"),
        ([{"input_ids": [1]}, {"input_ids": []}], InputError, "1.*tokens"),
        ([{"input_ids": [1, 2], "labels": [1]}], InputError, "0.*2.*input_ids.*1.*labels"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [2]}], InputError, "1.*'labels'"),
        ([{"ids": [1]}], InputError, r"0.*'input_ids'.*\['ids'\]"),
        ([{"input_ids": [0.5]}], InputError, "0.*input_ids.*float64"),
    ],
)
def test_what_is_refused(features: list[dict[str, Any]], kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        flatten(features)
