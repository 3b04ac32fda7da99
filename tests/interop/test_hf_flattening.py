"""Flattened batches, and the borders that Transformers derives from position ids, against its own code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import packs_made
from counts import cases
from headrace.loader.attention import flatten, flatten_packed
from headrace.plan.segments import cu_seqlens, seq_idx

pytestmark = pytest.mark.interop

FLAGS = ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")
KINDS = {"list": list, "numpy": np.array, "tensor": torch.tensor}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        if isinstance(values, int):
            assert type(found[name]) is int
            assert found[name] == values, name
        else:
            assert found[name].dtype == values.dtype, name
            assert torch.equal(found[name], values), name


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.data())
def test_flattened_as_theirs(hf: Any, data: st.DataObject) -> None:
    has_labels = data.draw(st.booleans())
    kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    features = []
    for length in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)):
        ids = data.draw(st.lists(st.integers(0, 60_000), min_size=length, max_size=length))
        feature = {"input_ids": kind(ids)}
        if has_labels:
            feature["labels"] = kind([-100 if token % 3 == 0 else token for token in ids])
        features.append(feature)
    options = {flag: data.draw(st.booleans()) for flag in FLAGS}
    options |= {
        "separator_id": data.draw(st.sampled_from([-100, -1])),
        "position_ids_start": data.draw(st.integers(0, 2)),
    }
    assert_equal(flatten(features, **options), hf.DataCollatorWithFlattening(**options)(features))


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.sampled_from([1, 4]).flatmap(lambda multiple: packs_made.drawn_rows(seq_len=12, multiple=multiple)))
def test_packed_batches_as_their_documents(hf: Any, rows: list[list[packs_made.Piece]]) -> None:
    """A packed batch without its pads is its documents flattened by their collator."""
    batch = {
        name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        for name, values in packs_made.make(rows, 12).items()
    }
    features = [
        {
            "input_ids": list(piece.tokens),
            "labels": [token if trained else -100 for token, trained in zip(piece.tokens, piece.trained, strict=True)],
        }
        for row in rows
        for piece in row
    ]
    found = flatten_packed(batch)
    if not features:
        assert {name: getattr(value, "shape", value) for name, value in found.items()} == {
            "input_ids": (1, 0), "labels": (1, 0), "position_ids": (1, 0), "seq_idx": (1, 0),
            "cu_seq_lens_q": (1,), "cu_seq_lens_k": (1,), "max_length_q": 0, "max_length_k": 0,
        }  # fmt: skip
        return
    collate = hf.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    assert_equal(found, collate(features))


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.sampled_from([1, 4]).flatmap(lambda multiple: packs_made.drawn_rows(seq_len=12, multiple=multiple)))
def test_borders_as_transformers_derives_them(hf: Any, rows: list[list[packs_made.Piece]]) -> None:
    """Both of its ways, which disagree elsewhere, find our segments: for flash attention, and for masks."""
    batch = packs_made.make(rows, 12)
    position_ids = torch.from_numpy(batch["position_ids"])
    flash = hf.modeling_flash_attention_utils
    (for_q, for_k), (longest_q, longest_k) = flash.prepare_fa_kwargs_from_position_ids(position_ids)
    for theirs in (for_q, for_k):
        assert theirs.dtype == torch.int32
        assert theirs.tolist() == batch["cu_seqlens"].tolist() == cu_seqlens(batch["position_ids"]).tolist()
    assert int(longest_q) == int(longest_k) == batch["max_seqlen"]
    find = hf.masking_utils.find_packed_sequence_indices
    indices = find(position_ids)
    ours = seq_idx(batch["position_ids"])
    if indices is None:
        assert not ours.any(), "one segment a row"
    else:
        assert indices.tolist() == ours.tolist()
    # The same rows as one.
    flat = position_ids.reshape(1, -1)
    is_packed = bool(flash._is_packed_sequence(flat, 1))
    assert is_packed == (len(batch["cu_seqlens"]) > 2) == (find(flat) is not None)
