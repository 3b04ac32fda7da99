"""Every form of the mask is the same mask, and it is the one of the documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import packs_made
from counts import cases
from headrace.errors import ConfigError
from headrace.loader import attention
from headrace.plan.segments import context_parallel_indices, context_parallel_order
from packs_made import Piece

BATCHES = st.tuples(st.integers(1, 10), st.sampled_from([1, 2, 4])).flatmap(
    lambda size: packs_made.drawn_rows(seq_len=size[0] * size[1], multiple=size[1]).map(
        lambda rows: packs_made.make(rows, size[0] * size[1])
    )
)
PADS: list[attention.Pads] = ["identity", "causal"]


def as_torch(batch: packs_made.Batch) -> dict[str, Any]:
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def plainly(batch: packs_made.Batch, pads: str) -> Tensor:
    """Token by token."""
    rows, size = batch["input_ids"].shape
    mask = torch.zeros(rows, size, size, dtype=torch.bool)
    for row in range(rows):
        for q in range(size):
            for k in range(q + 1):
                one_segment = batch["seq_idx"][row, q] == batch["seq_idx"][row, k]
                alone = pads == "identity" and batch["document_ids"][row, q] == -1
                mask[row, q, k] = bool(q == k or (one_segment and not alone))
    return mask


@settings(max_examples=cases(12, 600), deadline=None)
@given(BATCHES, st.sampled_from(PADS), st.sampled_from([1, 2, 3, 4, 128]))
def test_all_masks_are_one(batch: packs_made.Batch, pads: attention.Pads, block_size: int) -> None:
    fields = as_torch(batch)
    positions, documents = fields["position_ids"], fields["document_ids"]
    expected = plainly(batch, pads)
    dense = attention.block_causal_mask(positions, documents, pads=pads)
    assert dense.dtype == torch.bool
    assert torch.equal(dense, expected)
    assert torch.equal(attention.block_causal_mask(positions[0], documents[0], pads=pads), expected[0])
    assert torch.equal(attention.mask_from_seq_idx(fields["seq_idx"], documents, pads=pads), expected)
    rows, size = positions.shape
    see = attention.mask_mod(positions, documents, pads=pads)
    b, q, k = torch.meshgrid(torch.arange(rows), torch.arange(size), torch.arange(size), indexing="ij")
    assert torch.equal(see(b, torch.zeros_like(b), q, k), expected)
    ours = attention.flex_block_mask(positions, documents, pads=pads, block_size=block_size)
    theirs = create_block_mask(see, rows, None, size, size, device="cpu", BLOCK_SIZE=block_size)
    for name in ("kv", "full_kv", "q", "full_q"):
        assert torch.equal(getattr(ours, f"{name}_num_blocks"), getattr(theirs, f"{name}_num_blocks"))
        assert torch.equal(getattr(ours, f"{name}_indices"), getattr(theirs, f"{name}_indices"))
    assert ours.shape == theirs.shape
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE


def test_the_seeds_mask() -> None:
    batch = as_torch(packs_made.make([[Piece(1, (1, 1, 1), (True,) * 3), Piece(2, (2, 2), (True,) * 2)]], 6))
    expected = [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0],
                [0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]]  # fmt: skip
    mask = attention.block_causal_mask(batch["position_ids"], batch["document_ids"])
    assert mask[0].int().tolist() == expected


def test_pads_at_the_end_by_option() -> None:
    batch = as_torch(packs_made.make([[Piece(1, (1,), (True,))]], 3))
    positions, documents = batch["position_ids"], batch["document_ids"]
    identity = attention.block_causal_mask(positions, documents)
    assert identity[0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    causal = attention.block_causal_mask(positions, documents, pads="causal")
    assert causal[0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert torch.equal(attention.block_causal_mask(positions), causal), "without documents no pad is known"


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="pads is 'none'; allowed are 'identity', 'causal'"):
        attention.block_causal_mask(torch.zeros(1, 3), pads="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names is 'te'; allowed are 'flash_attn', 'transformers', 'megatron'"):
        attention.varlen_arguments({}, "te")  # type: ignore[arg-type]


def test_varlen_names() -> None:
    batch = as_torch(packs_made.make([[Piece(1, (1, 2, 3), (True,) * 3, pads=1)], []], 8, step_tokens=40))
    borders = [0, 4, 8, 16]
    plain = attention.varlen_arguments(batch)
    assert {name: value.tolist() for name, value in plain.items() if isinstance(value, Tensor)} == {
        "cu_seqlens_q": borders, "cu_seqlens_k": borders
    }  # fmt: skip
    assert plain["cu_seqlens_q"].dtype == torch.int32
    assert (plain["max_seqlen_q"], plain["max_seqlen_k"]) == (8, 8)
    assert type(plain["max_seqlen_q"]) is int
    assert list(attention.varlen_arguments(batch, "transformers")) == [
        "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"
    ]  # fmt: skip
    assert "cu_seqlens_q_padded" not in attention.varlen_arguments(batch, "megatron")
    megatron = attention.varlen_arguments(attention.context_parallel(batch, 2, 1), "megatron")
    assert megatron["qkv_format"] == "thd"
    for name in ("q", "kv"):
        assert megatron[f"cu_seqlens_{name}"].tolist() == [0, 3, 7, 15]
        assert megatron[f"cu_seqlens_{name}_padded"].tolist() == borders
        assert megatron[f"max_seqlen_{name}"] == 8


@settings(max_examples=cases(12, 600), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_parts_of_context_parallel_ranks(cp_size: int, blocks: int, data: st.DataObject) -> None:
    size = 2 * cp_size * blocks
    rows = data.draw(packs_made.drawn_rows(seq_len=size, multiple=2 * cp_size))
    whole = as_torch(packs_made.make(rows, size, step_tokens=1000))
    before = {name: value.clone() if isinstance(value, Tensor) else value for name, value in whole.items()}
    parts = [attention.context_parallel(whole, cp_size, rank) for rank in range(cp_size)]
    order = torch.from_numpy(context_parallel_order(whole["cu_seqlens"].numpy(), cp_size))
    for name in ("input_ids", "labels", "position_ids", "document_ids", "loss_mask"):
        assert all(part[name].shape == (1, len(rows) * size // cp_size) for part in parts)
        together = torch.cat([part[name] for part in parts], dim=1)[:, order]
        assert together.dtype == whole[name].dtype
        assert torch.equal(together, whole[name].reshape(1, -1))
    for rank, part in enumerate(parts):
        assert set(part) == set(whole) - {"seq_lens", "seq_idx"} | {"cu_seqlens_padded"}
        indices = context_parallel_indices(whole["cu_seqlens"].numpy(), cp_size, rank)
        assert torch.equal(part["input_ids"][0], whole["input_ids"].reshape(-1)[torch.from_numpy(indices)])
        assert torch.equal(part["cu_seqlens_padded"], whole["cu_seqlens"])
        assert part["cu_seqlens"].dtype == torch.int32
        assert len(part["cu_seqlens"]) == len(whole["cu_seqlens"])
        assert part["max_seqlen"] == whole["max_seqlen"]
        assert part["step_supervised_tokens"] == 1000
        assert type(part["num_supervised_tokens"]) is int
        assert torch.equal(part["sample_positions"], whole["sample_positions"])
    assert sum(part["num_supervised_tokens"] for part in parts) == whole["num_supervised_tokens"]
    assert all(torch.equal(value, before[name]) for name, value in whole.items() if isinstance(value, Tensor))


def test_no_rows() -> None:
    batch = as_torch(packs_made.make([], 8))
    part = attention.context_parallel(batch, 2, 0)
    assert part["input_ids"].shape == (1, 0)
    assert part["cu_seqlens"].tolist() == part["cu_seqlens_padded"].tolist() == [0]
    assert attention.block_causal_mask(batch["position_ids"], batch["document_ids"]).shape == (0, 8, 8)
