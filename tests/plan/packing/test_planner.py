"""Plans of all strategies and options: the packs of the plain model, every token once, whatever the source is like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_plainly
from counts import cases
from headrace.plan.packing import Packing, PackPlan, plan_packs
from packs_plainly import ChunkedLengths, drawn, unpacked

Drawn = tuple[list[int], Packing]


def planned(lengths: list[int], packing: Packing) -> PackPlan:
    return plan_packs(np.array(lengths, dtype=np.int64), packing)


def packs_of(plan: PackPlan) -> list[list[packs_plainly.Piece]]:
    return unpacked(plan.items(np.arange(len(plan))))


@settings(max_examples=cases(40, 10_000), deadline=None)
@given(drawn(), st.integers(0, 99))
def test_packs_are_those_of_the_plain_model_in_any_order(given_: Drawn, seed: int) -> None:
    lengths, packing = given_
    plan = planned(lengths, packing)
    every = packs_plainly.packs(lengths, packing)
    assert packs_of(plan) == every
    some = np.random.default_rng(seed).integers(0, max(1, len(plan)), 7 if len(plan) else 0)
    assert unpacked(plan.items(some)) == [every[pack] for pack in some.tolist()]
    assert unpacked(plan.items(some[:0])) == []
    items = plan.items(np.arange(len(plan)))
    begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    assert items.starts.tolist() == (begins[items.documents] + items.begins).tolist()
    assert {column.dtype for column in items[:5]} == {np.dtype(np.int64)}
    assert items.continues.dtype == np.bool_
    assert items.offsets[0] == 0


@settings(max_examples=cases(30, 10_000), deadline=None)
@given(drawn())
def test_every_token_once_or_lost_by_the_policy(given_: Drawn) -> None:
    """Counted token by token, without the model."""
    lengths, packing = given_
    seen = [np.zeros(length, dtype=int) for length in lengths]
    size, multiple = packing.seq_len, packing.segment_multiple
    plan = planned(lengths, packing)
    for pack in packs_of(plan):
        assert pack, "no pack is empty"
        assert len(pack) <= (packing.max_documents or len(pack))
        assert sum(-(-piece.length // multiple) * multiple for piece in pack) <= size
        for piece in pack:
            assert piece.length > 0
            assert 0 <= piece.begin <= piece.begin + piece.length <= lengths[piece.document]
            seen[piece.document][piece.begin : piece.begin + piece.length] += 1
    truncated = dropped = 0
    for tokens in seen:
        if len(tokens) <= size or packing.cuts or packing.over_long == "split":
            assert tokens.tolist() == [1] * len(tokens)
            continue
        left_out = [0] * (len(tokens) - size)
        wanted = {"truncate_right": [1] * size + left_out, "truncate_left": left_out + [1] * size}
        assert tokens.tolist() == wanted.get(packing.over_long, [0] * len(tokens))
        if packing.over_long == "drop":
            dropped += len(tokens)
        else:
            truncated += len(left_out)
    assert (plan.ledger.truncated_tokens, plan.ledger.dropped_tokens) == (truncated, dropped)
    assert plan.ledger.num_tokens == sum(int(tokens.sum()) for tokens in seen)


@settings(max_examples=cases(40, 5_000), deadline=None)
@given(
    drawn(),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i8"]),
)
def test_neither_chunks_nor_dtype_change_anything(given_: Drawn, sizes: list[int], dtype: str) -> None:
    lengths, packing = given_
    whole = planned(lengths, packing)
    # Of 8 bits there are lengths up to 127 only; these are shorter, but where packs are the longest of all.
    in_chunks = plan_packs(ChunkedLengths(lengths, sizes, dtype if max(lengths, default=0) < 128 else "int64"), packing)
    assert whole.meta == in_chunks.meta
    assert whole.arrays.keys() == in_chunks.arrays.keys()
    for name, array in whole.arrays.items():
        assert array.dtype == in_chunks.arrays[name].dtype
        assert array.tolist() == in_chunks.arrays[name].tolist()


@settings(max_examples=cases(30, 5_000), deadline=None)
@given(drawn())
def test_what_is_said_of_the_plan(given_: Drawn) -> None:
    lengths, packing = given_
    plan = planned(lengths, packing)
    multiple = packing.segment_multiple
    tokens = [sum(piece.length for piece in pack) for pack in packs_of(plan)]
    places = [sum(-(-piece.length // multiple) * multiple for piece in pack) for pack in packs_of(plan)]
    assert len(plan) == plan.meta.num_packs == plan.ledger.num_packs == len(tokens)
    assert plan.meta.num_documents == len(lengths)
    assert plan.packing == packing
    # Pads between the documents of a pack count as if they were tokens.
    assert plan.meta.deviation_tokens == pytest.approx(np.std(places) if tokens else 0, abs=1e-5)
    if packing.strategy == "wrapped":
        assert plan.num_bytes == 8 * len(lengths)
    else:
        # Bounds and pieces; ranks by length and their classes where epochs re-pack; which documents are split.
        num_pieces = sum(len(pack) for pack in packs_of(plan))
        long = sum(length >= packing.seq_len for length in lengths)
        most = 4 * (len(tokens) + 1) + 4 * num_pieces + 8 * long
        most += 4 * (num_pieces + len(set(lengths)) + 1) if packing.repack else 0
        assert plan.num_bytes <= most


def test_lengths_decide_the_digest() -> None:
    packing = Packing(seq_len=8)
    digests = {planned(lengths, packing).meta.lengths_xxh3_128 for lengths in ([1, 2], [2, 1], [1, 2, 0], [])}
    assert len(digests) == 4


@pytest.mark.parametrize("num_sizes", [65_535, 65_536, 65_537])
def test_more_distinct_lengths_than_16_bits_can_tell(num_sizes: int) -> None:
    """All but one document find their partner: a size and what is left of the pack beside it."""
    lengths = np.random.default_rng(1).permutation(np.arange(1, num_sizes + 1))
    plan = plan_packs(lengths, Packing(seq_len=num_sizes + 1, repack=True))
    items = plan.items(np.arange(len(plan)))
    assert np.array_equal(np.sort(items.documents), np.arange(num_sizes))
    assert np.array_equal(items.lengths, lengths[items.documents])
    assert plan.ledger.pad_tokens == (0 if num_sizes % 2 == 0 else (num_sizes + 1) // 2)
    assert len(plan) == (num_sizes + 1) // 2


@pytest.mark.parametrize("strategy", ["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"])
def test_over_more_documents_than_a_chunk(strategy: Any) -> None:
    """300,000 documents pass through the real sizes of chunks; sums and ledger as the lengths say."""
    lengths = np.minimum(np.random.default_rng(2).lognormal(5.5, 1, 300_000).astype(np.int32), 30_000)
    plan = plan_packs(lengths, Packing(seq_len=4096, strategy=strategy, over_long="split"))
    items = plan.items(np.arange(len(plan)))
    found = np.zeros(len(lengths), dtype=np.int64)
    np.add.at(found, items.documents, items.lengths)
    assert np.array_equal(found, lengths)
    sums = np.add.reduceat(items.lengths, items.offsets[:-1])
    assert sums.max() <= 4096
    assert plan.meta.deviation_tokens == pytest.approx(sums.std(), abs=1e-5)
    order = np.lexsort((items.begins, items.documents))
    begins, ends = items.begins[order], (items.begins + items.lengths)[order]
    same = items.documents[order][1:] == items.documents[order][:-1]
    assert np.array_equal(begins[1:][same], ends[:-1][same]), "each piece begins where the one before it ends"
    assert np.array_equal(items.continues[order][:-1], same)


GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "golden" / "packing" / "trl.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_packs_and_their_order(case: dict[str, Any]) -> None:
    is_split = case["strategy"] == "bfd_split"
    packing = Packing(
        seq_len=case["seq_length"],
        strategy="best_fit_split" if is_split else "best_fit",
        over_long="split" if is_split else "truncate_right",
        window_documents=case["batch_size"] if case["batch_size"] < len(case["lengths"]) else None,
    )
    plan = plan_packs(np.array(case["lengths"], dtype=np.int64), packing)
    items = plan.items(np.arange(len(plan)))
    pieces = np.stack([items.documents, items.begins, items.lengths], axis=1)
    assert [some.tolist() for some in np.split(pieces, items.offsets[1:-1])] == case["packs"]
