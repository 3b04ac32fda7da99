"""No document sees another one, and a packed loss is the loss of its documents one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import attention_model
import corpora
import headrace
import packs_made
from attention_model import Attention, Model
from counts import cases
from headrace import Loader, Order, PackedSequenceDataset, Packing, Run
from headrace.loader import Ranks, attention
from headrace.plan import BatchSchedule, Share, micro_batches
from headrace.plan.segments import context_parallel_indices, context_parallel_order
from packs_made import Piece

KINDS = ["dense", "sdpa", "flex", "varlen"]
SPLIT_KINDS = ["dense", "sdpa"]
VOCABULARY = 16
MODEL = Model(vocabulary=VOCABULARY)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def as_torch(batch: packs_made.Batch) -> dict[str, Any]:
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def attention_of(kind: str, batch: dict[str, Any], pads: attention.Pads = "identity") -> Attention:
    """The attention of a kind, set up with what the package makes of the batch."""
    positions, documents = batch["position_ids"], batch["document_ids"]
    if kind == "varlen":
        return attention_model.varlen(**attention.varlen_arguments(batch))
    if kind == "flex":
        return attention_model.flex(attention.flex_block_mask(positions, documents, pads=pads, block_size=4))
    mask = attention.block_causal_mask(positions, documents, pads=pads)
    return attention_model.dense(mask) if kind == "dense" else attention_model.sdpa(mask)


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


def part_losses(kind: str, batch: dict[str, Any], cp_size: int) -> list[tuple[Tensor, dict[str, Any]]]:
    """The summed loss of each context-parallel rank's part of a micro-batch, and the part."""
    parts = [attention.context_parallel(batch, cp_size, rank) for rank in range(cp_size)]
    borders = batch["cu_seqlens"].numpy()
    flat = {name: batch[name].reshape(1, -1) for name in ("position_ids", "document_ids")}
    # Over the flattened rows tokens see by columns of their own; position ids restart, so that the mask is the same.
    mask = attention.block_causal_mask(flat["position_ids"], flat["document_ids"])
    make = attention_model.dense if kind == "dense" else attention_model.sdpa
    own = [make(mask[:, torch.from_numpy(context_parallel_indices(borders, cp_size, r))]) for r in range(cp_size)]
    values = MODEL.forward_split(parts, torch.from_numpy(context_parallel_order(borders, cp_size)), own)
    return [
        (attention_model.summed_loss(found, part["labels"], part["loss_mask"]), part)
        for found, part in zip(values, parts, strict=True)
    ]


@pytest.mark.parametrize("kind", SPLIT_KINDS)
@settings(max_examples=cases(4, 300), deadline=None)
@given(st.sampled_from([1, 1, 2, 3]), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_steps_loss_is_that_of_its_documents(
    kind: str, cp_size: int, world_size: int, micro: int, data: st.DataObject
) -> None:
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
                values = MODEL(batch["input_ids"], batch["position_ids"], attention_of(kind, batch))
                summed = [(attention_model.summed_loss(values, batch["labels"], batch["loss_mask"]), batch)]
            else:
                summed = part_losses(kind, batch, cp_size)
            for part_loss, part in summed:
                loss = loss + part_loss / part["step_supervised_tokens"]
                supervised += part["num_supervised_tokens"]
    assert supervised == count
    assert abs(loss.item() - expected.item()) <= 1e-12 * max(1.0, expected.item())
    found, wanted = gradients(loss), gradients(expected)
    assert (found - wanted).norm() <= 1e-12 * wanted.norm()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", SPLIT_KINDS)
@pytest.mark.parametrize(("world_size", "micro", "cp_size"), [(1, 6, 1), (3, 1, 1), (2, 2, 2), (1, 4, 3)])
def test_the_loaders_step_is_the_loss_of_its_documents(
    tmp_path: Path, kind: str, world_size: int, micro: int, cp_size: int
) -> None:
    """From files to gradients: what the loader hands to all ranks, with its counts, against documents one by one."""
    rng = np.random.default_rng(0)
    lengths = [5, 1, 12, 3, 30, 0, 7, 2, 9, 17, 4, 6, 11]
    documents = [rng.integers(0, VOCABULARY, length).astype(np.uint16) for length in lengths]
    corpora.write(tmp_path / "store", documents)
    packing = Packing(seq_len=12 * cp_size, over_long="split", segment_multiple=2 * cp_size if cp_size > 1 else 1)
    dataset = PackedSequenceDataset(headrace.open(str(tmp_path / "store")), packing)
    run = Run(dataset, global_batch_size=6, order=Order(seed=4), epochs=1)
    iterators = [
        iter(Loader(run, micro_batch_size=micro, ranks=Ranks(rank, world_size), debug=True))
        for rank in range(world_size)
    ]
    for step in range(run.num_steps or 0):
        items = dataset.items(run.locate(run.positions(step)).addresses)
        expected, count = unpacked([[piece_of(documents, *some) for some in zip(*items[1:4], strict=True)]])
        loss = torch.zeros((), dtype=torch.float64)
        for _ in range(-(-len(run.positions(step)) // (world_size * micro))):
            for iterator in iterators:
                batch = next(iterator)
                if not len(batch["input_ids"]):
                    continue
                if cp_size == 1:
                    values = MODEL(batch["input_ids"], batch["position_ids"], attention_of(kind, batch))
                    summed = [(attention_model.summed_loss(values, batch["labels"], batch["loss_mask"]), batch)]
                else:
                    summed = part_losses(kind, batch, cp_size)
                loss = loss + sum(part_loss / part["step_supervised_tokens"] for part_loss, part in summed)
        expected = expected / count
        assert abs(loss.item() - expected.item()) <= 1e-12 * max(1.0, expected.item())
        found, wanted = gradients(loss), gradients(expected)
        assert (found - wanted).norm() <= 1e-12 * wanted.norm()
    assert all(next(iterator, None) is None for iterator in iterators)


def piece_of(documents: list[np.ndarray], document: int, begin: int, length: int) -> Piece:
    tokens = documents[document].tolist()
    after = tokens[begin + length] if begin + length < len(tokens) else None
    return Piece(int(document), tuple(tokens[begin : begin + length]), (True,) * int(length), after)


def test_a_leak_would_be_seen() -> None:
    """Plain causal attention over the row is what the leak test is there to catch."""
    batch = as_torch(packs_made.make([[Piece(1, (1, 2, 3), (True,) * 3), Piece(2, (4, 5), (True,) * 2)]], 6))
    attend = attention_model.dense(torch.ones(1, 6, 6, dtype=torch.bool).tril())
    before = logits(batch, attend)
    batch["input_ids"][0, 0] += 1
    assert not torch.equal(logits(batch, attend)[0, 3:5], before[0, 3:5])
