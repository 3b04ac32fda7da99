"""Plans of all strategies: the packs of the plain model, their books, their forecast, and options that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import packs_plainly
from counts import cases
from headrace.errors import ConfigError, HeadraceError
from headrace.plan import IntArray
from headrace.plan.packing import ArrayLengths, Packing, PackingLedger, PackPlan, plan_packs
from headrace.plan.packing.forecast import Forecast, forecast
from packs_plainly import ChunkedLengths, drawn, unpacked

Drawn = tuple[list[int], Packing]


def planned(lengths: list[int], packing: Packing) -> PackPlan:
    return plan_packs(np.array(lengths, dtype=np.int64), packing)


def packs_of(plan: PackPlan) -> list[list[packs_plainly.Piece]]:
    return unpacked(plan.items(np.arange(len(plan))))


@settings(max_examples=cases(20, 10_000), deadline=None)
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


@settings(max_examples=cases(15, 10_000), deadline=None)
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


@settings(max_examples=cases(20, 5_000), deadline=None)
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


@settings(max_examples=cases(15, 5_000), deadline=None)
@given(drawn())
def test_what_is_said_of_the_plan(given_: Drawn) -> None:
    lengths, packing = given_
    plan = planned(lengths, packing)
    tokens = [sum(piece.length for piece in pack) for pack in packs_of(plan)]
    assert len(plan) == plan.meta.num_packs == plan.ledger.num_packs == len(tokens)
    assert plan.meta.num_documents == len(lengths)
    assert plan.packing == packing
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


@pytest.mark.sampled(3)
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seq_len": 0}, "seq_len.*0.*4,194,304"),
        ({"seq_len": (1 << 22) + 1}, "4194305.*4,194,304"),
        ({"seq_len": 8, "strategy": "bfd"}, "'bfd'.*'greedy'"),
        ({"seq_len": 8, "over_long": "cut"}, "'cut'.*'truncate_left'"),
        ({"seq_len": 8, "window_documents": 0}, "window_documents.*0"),
        ({"seq_len": 8, "segment_multiple": 0}, "segment_multiple.*0.*seq_len"),
        ({"seq_len": 8, "segment_multiple": 3}, "segment_multiple.*3.*seq_len.*8"),
        ({"seq_len": 8, "segment_multiple": 16}, "segment_multiple.*16"),
        ({"seq_len": 8, "strategy": "wrapped", "over_long": "drop"}, "'wrapped'.*'drop'"),
        (
            {"seq_len": 8, "strategy": "best_fit_split", "over_long": "truncate_left"},
            "'best_fit_split'.*'truncate_left'",
        ),
        ({"seq_len": 8, "repack": True, "strategy": "greedy"}, "repack"),
        ({"seq_len": 8, "repack": True, "strategy": "first_fit"}, "repack"),
        ({"seq_len": 8, "repack": True, "strategy": "wrapped"}, "repack"),
        ({"seq_len": 8, "repack": True, "window_documents": 5}, "repack"),
        ({"seq_len": 8, "strategy": "wrapped", "window_documents": 5}, "'wrapped'.*window_documents"),
        ({"seq_len": 8, "strategy": "wrapped", "segment_multiple": 2}, "'wrapped'.*segment_multiple"),
        ({"seq_len": 8, "strategy": "wrapped", "max_documents": 2}, "'wrapped'.*max_documents"),
        ({"seq_len": 8, "max_documents": 0}, "max_documents.*0"),
        ({"seq_len": 8, "max_documents": 1.5}, r"max_documents.*1\.5"),
    ],
)
def test_refused_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Packing(**options)
    # From a file, too: the check is part of decoding.
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(options), type=Packing)


@pytest.mark.parametrize(
    "options",
    [
        {"seq_len": 1},
        {"seq_len": 1 << 22, "segment_multiple": 1 << 22},
        {"seq_len": 8, "strategy": "wrapped", "over_long": "error"},
        {"seq_len": 8, "strategy": "best_fit_split", "repack": True, "segment_multiple": 8},
        {"seq_len": 8, "window_documents": 1},
    ],
)
def test_allowed_options(options: dict[str, Any]) -> None:
    packing = Packing(**options)
    assert msgspec.json.decode(msgspec.json.encode(packing), type=Packing) == packing
    assert len(plan_packs(np.array([1, 1]), packing)) >= 1


@pytest.mark.parametrize("strategy", ["greedy", "best_fit", "first_fit"])
@pytest.mark.parametrize("window", [None, 2])
def test_over_long_documents_without_a_policy(strategy: Any, window: int | None) -> None:
    packing = Packing(seq_len=1000, strategy=strategy, window_documents=window)
    lengths = [5, 1000, 0, 1001, 7, 40_000, 1002]
    # How many of all, the room, the first and its tokens, the longest, and the policies that there are.
    named = r"3.*7.*1,000.*3.*1,001.*40,000.*'split'.*'truncate_right'.*'truncate_left'.*'drop'"
    for source in (np.array(lengths), ChunkedLengths(lengths, [1, 3])):
        with pytest.raises(ConfigError, match=named):
            plan_packs(source, packing)
    assert len(plan_packs(np.array(lengths[:3]), packing)) == 2


def test_negative_lengths() -> None:
    for strategy in ("greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"):
        with pytest.raises(ConfigError, match=r"document.*-3.*0"):
            plan_packs(np.array([4, -1, -3]), Packing(seq_len=8, strategy=strategy))  # type: ignore[arg-type]


def test_a_cap_is_part_of_a_packing_only_if_it_is_set() -> None:
    unset = Packing(seq_len=8)
    assert Packing(seq_len=8, max_documents=None) == unset == msgspec.convert({"max_seq_len": 8}, Packing)
    assert "max_documents" not in msgspec.to_builtins(unset)
    capped = Packing(seq_len=8, max_documents=2)
    assert msgspec.to_builtins(capped) == {**msgspec.to_builtins(unset), "max_documents": 2}
    assert msgspec.convert(msgspec.to_builtins(capped), Packing) == capped


ADDENDS = [
    "raw_documents", "empty_documents", "whole_documents", "split_documents", "truncated_documents",
    "dropped_documents", "raw_tokens", "packed_tokens", "split_remainder_tokens", "truncated_tokens", "dropped_tokens",
]  # fmt: skip


def counted(lengths: list[int], packing: Packing) -> dict[str, int]:
    """Every number of the ledger, from the plain packs."""
    packs = packs_plainly.packs(lengths, packing)
    of: dict[int, list[packs_plainly.Piece]] = {}
    for piece in (piece for pack in packs for piece in pack):
        of.setdefault(piece.document, []).append(piece)
    packed = {document: sum(piece.length for piece in mine) for document, mine in of.items()}
    split = [mine for mine in of.values() if len(mine) > 1]
    # The last piece of a split document is its remainder, unless it is as full as those before it; of documents that
    # lie across packs as they come, it is what is in the last of them.
    last = [max(mine, key=lambda piece: piece.begin).length for mine in split]
    remainders = [length for length in last if packing.strategy == "wrapped" or length < packing.seq_len]
    lost = {number: length - packed.get(number, 0) for number, length in enumerate(lengths)}
    return {
        "raw_documents": len(lengths),
        "empty_documents": lengths.count(0),
        "whole_documents": sum(len(mine) == 1 and not lost[number] for number, mine in of.items()),
        "split_documents": len(split),
        "truncated_documents": sum(0 < lost[number] < length for number, length in enumerate(lengths)),
        "dropped_documents": sum(0 < lost[number] == length for number, length in enumerate(lengths)),
        "raw_tokens": sum(lengths),
        "packed_tokens": sum(packed.values()) - sum(remainders),
        "split_remainder_tokens": sum(remainders),
        "truncated_tokens": sum(lost[number] for number in of),
        "dropped_tokens": sum(gone for number, gone in lost.items() if number not in of),
        "num_packs": len(packs),
        "pad_tokens": len(packs) * packing.seq_len - sum(packed.values()),
    }


@settings(max_examples=cases(30, 10_000), deadline=None)
@given(packs_plainly.drawn())
def test_every_number_is_counted(drawn: tuple[list[int], Packing]) -> None:
    lengths, packing = drawn
    ledger = plan_packs(np.array(lengths, dtype=np.int64), packing).ledger
    assert msgspec.to_builtins(ledger) == counted(lengths, packing)
    assert ledger.num_tokens + ledger.lost_tokens == sum(lengths)
    assert ledger.lost_share == (ledger.lost_tokens / sum(lengths) if sum(lengths) else 0)
    assert ledger.fill == (ledger.num_tokens / (ledger.num_packs * packing.seq_len) if ledger.num_packs else 0)
    ledger.verify()


def example() -> PackingLedger:
    """Numbers that all differ, and balance."""
    return PackingLedger(
        raw_documents=1 + 20 + 3 + 4 + 5,
        empty_documents=1,
        whole_documents=20,
        split_documents=3,
        truncated_documents=4,
        dropped_documents=5,
        raw_tokens=700 + 11 + 13 + 17,
        packed_tokens=700,
        split_remainder_tokens=11,
        truncated_tokens=13,
        dropped_tokens=17,
        num_packs=8,
        pad_tokens=89,
    )


@pytest.mark.parametrize("name", ADDENDS)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_number_that_is_off_by_one_is_noticed(name: str, by: int) -> None:
    ledger = example()
    ledger.verify()
    wrong: Any = msgspec.structs.replace(ledger, **{name: getattr(ledger, name) + by})
    with pytest.raises(HeadraceError, match="balance"):
        wrong.verify()


def test_two_faults_of_different_kinds_do_not_cancel_out() -> None:
    ledger = example()
    both = msgspec.structs.replace(ledger, raw_documents=ledger.raw_documents + 1, raw_tokens=ledger.raw_tokens - 1)
    with pytest.raises(HeadraceError, match="balance"):
        both.verify()


def check(found: Forecast, lengths: IntArray, first_fit_documents: int) -> None:
    """Every figure against the ledger of the plan."""
    assert (found.documents, found.tokens) == (len(lengths), lengths.sum())
    assert found.over_long_documents == np.count_nonzero(lengths > found.seq_len)
    assert found.longest == lengths.max(initial=0)
    names = ["greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"]
    assert [strategy.strategy for strategy in found.strategies] == names
    for figures in found.strategies:
        chosen = lengths[:first_fit_documents] if figures.strategy == "first_fit" else lengths
        packing = Packing(seq_len=found.seq_len, strategy=figures.strategy, over_long=figures.over_long)
        ledger = plan_packs(chosen, packing).ledger
        assert figures.documents == ledger.raw_documents
        assert figures.packs == ledger.num_packs
        assert figures.fill == ledger.fill
        with_tokens = ledger.raw_documents - ledger.empty_documents
        assert figures.documents_per_pack == with_tokens / max(1, ledger.num_packs)
        assert figures.cut_documents == ledger.split_documents + ledger.truncated_documents
        assert figures.cut_share == figures.cut_documents / max(1, ledger.raw_documents)
        assert figures.lost_tokens == ledger.lost_tokens
        assert figures.lost_share == ledger.lost_share


@settings(max_examples=cases(15, 3000))
@given(
    st.lists(st.integers(0, 25), max_size=60),
    st.integers(1, 17),
    st.integers(0, 70),
)
def test_equal_to_the_plans(drawn: list[int], seq_len: int, first_fit_documents: int) -> None:
    lengths = np.array(drawn, dtype=np.int64)
    found = forecast(ArrayLengths(lengths), seq_len, first_fit_documents=first_fit_documents)
    check(found, lengths, first_fit_documents)


def test_what_no_plan_takes() -> None:
    for seq_len in (0, (1 << 22) + 1):
        with pytest.raises(ConfigError, match="seq_len"):
            forecast(ArrayLengths(np.array([1])), seq_len, first_fit_documents=1)
    with pytest.raises(ConfigError, match=r"document.*-3"):
        forecast(ArrayLengths(np.array([4, -3])), 8, first_fit_documents=1)
