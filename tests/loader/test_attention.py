"""Masks are those of the documents, and a packed loss is that of each alone; padding-free layouts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import attention_model
import packs_made
from attention_model import Attention, Model
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.loader import attention
from headrace.loader.attention import flatten, flatten_packed
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.segments import context_parallel_indices
from packs_made import Piece

BATCHES = st.tuples(st.integers(1, 10), st.sampled_from([1, 2, 4])).flatmap(
    lambda size: packs_made.drawn_rows(seq_len=size[0] * size[1], multiple=size[1]).map(
        lambda rows: packs_made.make(rows, size[0] * size[1])
    )
)
PADS: list[attention.Pads] = ["identity", "causal"]
KINDS = ["sdpa", "flex", "varlen"]
VOCABULARY = 16
MODEL = Model(vocabulary=VOCABULARY)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


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
    assert torch.equal(attention.block_causal_mask(positions), plainly(batch, "causal")), "no pad is known"
    assert torch.equal(attention.block_causal_mask(positions[0], documents[0], pads=pads), expected[0])
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


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'none'.*'identity'.*'causal'"):
        attention.block_causal_mask(torch.zeros(1, 3), pads="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'te'.*'flash_attn'.*'transformers'"):
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
    borders = whole["cu_seqlens"].numpy()
    taken = [context_parallel_indices(borders, cp_size, rank) for rank in range(cp_size)]
    order = torch.from_numpy(np.argsort(np.concatenate(taken)))
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


def attention_of(kind: str, batch: dict[str, Any], pads: attention.Pads = "identity") -> Attention:
    """The attention of a kind, set up with what the package makes of the batch."""
    positions, documents = batch["position_ids"], batch["document_ids"]
    if kind == "varlen":
        return attention_model.varlen(**attention.varlen_arguments(batch))
    if kind == "flex":
        return attention_model.flex(attention.flex_block_mask(positions, documents, pads=pads, block_size=4))
    return attention_model.sdpa(attention.block_causal_mask(positions, documents, pads=pads))


def logits(batch: dict[str, Any], attend: Attention) -> Tensor:
    with torch.no_grad():
        return MODEL(batch["input_ids"], batch["position_ids"], attend)


def drawn(data: st.DataObject, *, multiple: int, max_rows: int = 3) -> tuple[list[list[Piece]], int]:
    size = multiple * data.draw(st.integers(2, 12 if multiple == 1 else 4))
    rows = packs_made.drawn_rows(seq_len=size, multiple=multiple, vocabulary=VOCABULARY, max_rows=max_rows)
    return data.draw(rows.filter(lambda rows: any(rows))), size


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=cases(3, 300), deadline=None)
@given(st.sampled_from([1, 1, 2]), st.sampled_from(["identity", "causal"]), st.data())
def test_a_changed_document_leaves_the_others_bit_equal(
    kind: str, multiple: int, pads: attention.Pads, data: st.DataObject
) -> None:
    rows, size = drawn(data, multiple=multiple)
    batch = as_torch(packs_made.make(rows, size))
    attend = attention_of(kind, batch, pads)
    before = logits(batch, attend)
    assert before.isfinite().all()
    documents = batch["document_ids"]
    changed = data.draw(st.sampled_from([piece.document for row in rows for piece in row]))
    mine = documents == changed
    batch["input_ids"][mine] = (batch["input_ids"][mine] + data.draw(st.integers(1, VOCABULARY - 1))) % VOCABULARY
    after = logits(batch, attend)
    others = (documents != changed) & (documents != -1)
    assert torch.equal(after[others], before[others])
    first = mine.reshape(-1).nonzero()[0, 0]
    assert not torch.equal(after.flatten(0, 1)[first], before.flatten(0, 1)[first]), "the change was seen"
    # And what pads hold is seen by no document.
    batch["input_ids"][documents == -1] = VOCABULARY - 1
    real = documents != -1
    assert torch.equal(logits(batch, attend)[real], after[real])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=cases(2, 150), deadline=None)
@given(st.sampled_from([1, 2]), st.data())
def test_logits_are_those_of_the_documents_alone(kind: str, multiple: int, data: st.DataObject) -> None:
    rows, size = drawn(data, multiple=multiple)
    batch = as_torch(packs_made.make(rows, size))
    packed = logits(batch, attention_of(kind, batch))
    for piece in (piece for row in rows for piece in row):
        tokens = torch.tensor([piece.tokens])
        alone = logits({"input_ids": tokens, "position_ids": torch.arange(len(piece.tokens))[None]}, causal(tokens))
        torch.testing.assert_close(packed[batch["document_ids"] == piece.document], alone[0], rtol=1e-12, atol=1e-12)


def causal(tokens: Tensor) -> Attention:
    return attention_model.dense(torch.ones(1, tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril())


def gradients(loss: Tensor) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(MODEL.parameters()))])


def unpacked(rows: list[list[Piece]]) -> tuple[Tensor, int]:
    """The summed loss of the documents one by one, and how many tokens are learnt."""
    loss = torch.zeros((), dtype=torch.float64)
    count = 0
    for piece in (piece for row in rows for piece in row):
        tokens, labels = torch.tensor([piece.tokens]), torch.tensor([piece.labels()])
        values = MODEL(tokens, torch.arange(len(piece.tokens))[None], causal(tokens))
        loss = loss + attention_model.summed_loss(values, labels, labels != -100)
        count += sum(label != -100 for label in piece.labels())
    return loss, count


def part_losses(batch: dict[str, Any], cp_size: int) -> list[tuple[Tensor, dict[str, Any]]]:
    """The summed loss of each context-parallel rank's part of a micro-batch, and the part."""
    parts = [attention.context_parallel(batch, cp_size, rank) for rank in range(cp_size)]
    borders = batch["cu_seqlens"].numpy()
    flat = {name: batch[name].reshape(1, -1) for name in ("position_ids", "document_ids")}
    # Over the flattened rows tokens see by columns of their own; position ids restart, so that the mask is the same.
    mask = attention.block_causal_mask(flat["position_ids"], flat["document_ids"])
    taken = [context_parallel_indices(borders, cp_size, rank) for rank in range(cp_size)]
    own = [attention_model.sdpa(mask[:, torch.from_numpy(one)]) for one in taken]
    values = MODEL.forward_split(parts, torch.from_numpy(np.argsort(np.concatenate(taken))), own)
    return [
        (attention_model.summed_loss(found, part["labels"], part["loss_mask"]), part)
        for found, part in zip(values, parts, strict=True)
    ]


@settings(max_examples=cases(4, 300), deadline=None)
@given(st.sampled_from([1, 1, 2, 3]), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_steps_loss_is_that_of_its_documents(cp_size: int, world_size: int, micro: int, data: st.DataObject) -> None:
    multiple = 2 * cp_size if cp_size > 1 else data.draw(st.sampled_from([1, 2]))
    rows, size = drawn(data, multiple=multiple, max_rows=4)
    expected, count = unpacked(rows)
    assume(count > 0)
    expected = expected / count
    loss = torch.zeros((), dtype=torch.float64)
    supervised = 0
    schedule = BatchSchedule.of([(0, len(rows))])
    for rank in range(world_size):
        share = micro_batches(schedule, Share(rank, world_size, micro), position=0, end=len(rows), at_least=len(rows))
        for begin, taken in zip(share.begins.tolist(), share.sizes.tolist(), strict=True):
            if not taken:
                continue
            batch = as_torch(packs_made.make(rows[begin : begin + taken], size, step_tokens=count))
            if cp_size == 1:
                values = MODEL(batch["input_ids"], batch["position_ids"], attention_of("sdpa", batch))
                summed = [(attention_model.summed_loss(values, batch["labels"], batch["loss_mask"]), batch)]
            else:
                summed = part_losses(batch, cp_size)
            for part_loss, part in summed:
                loss = loss + part_loss / part["step_supervised_tokens"]
                supervised += part["num_supervised_tokens"]
    assert supervised == count
    assert abs(loss.item() - expected.item()) <= 1e-12 * max(1.0, expected.item())
    found, wanted = gradients(loss), gradients(expected)
    assert (found - wanted).norm() <= 1e-12 * wanted.norm()


def test_a_leak_would_be_seen() -> None:
    """Plain causal attention over the row is what the leak test is there to catch."""
    batch = as_torch(packs_made.make([[Piece(1, (1, 2, 3), (True,) * 3), Piece(2, (4, 5), (True,) * 2)]], 6))
    attend = attention_model.dense(torch.ones(1, 6, 6, dtype=torch.bool).tril())
    before = logits(batch, attend)
    batch["input_ids"][0, 0] += 1
    assert not torch.equal(logits(batch, attend)[0, 3:5], before[0, 3:5])


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


@settings(max_examples=cases(12, 1_500), deadline=None)
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
