"""The books of a run: every way in which one number can be wrong is seen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.preparing.ledger import RunLedger
from headrace.preparing.piece import PieceInfo, SpanResult
from headrace.preparing.sources import SourceFile
from headrace.preparing.tally import DUPLICATE, Tally, left_out
from headrace.stores import DocumentLedger, TokenLedger

FILE = SourceFile(name="in.jsonl", path="/in.jsonl", format="jsonl", size_bytes=100, mtime_ns=0, extent=100)
SPAN = SpanResult(
    file=0, begin=0, end=100, lines=10, blank_lines=2, bad=1, documents=7, kept=5, skipped=5, xxh3_128="ff"
)  # fmt: skip
DOCUMENTS = DocumentLedger(read=8, kept=5, dropped={"min_tokens": 2, "bad": 1}, empty=1, blank_lines=2, text_bytes=60)
TOKENS = TokenLedger(made=45, kept=42, eod=5, dropped={"min_tokens": 3})
TALLY = Tally(documents=DOCUMENTS, tokens=TOKENS, lines=10, input_bytes=100)
INFO = PieceInfo(
    task_index=0,
    piece=0,
    is_last=True,
    spans=(SPAN,),
    tally=TALLY,
    errors=((0, 4, "malformed"),),
)


def ledger_of(info: PieceInfo, left: Tally | None = None) -> RunLedger:
    ledger = RunLedger([FILE])
    ledger.add(info, [left] if left else [])
    return ledger


def test_books_that_balance() -> None:
    ledger = ledger_of(INFO)
    balance = ledger.balance(num_documents=5, num_tokens=42, num_origins=5)
    assert list(balance.faults()) == []
    assert (balance.documents.read, balance.documents.kept, balance.documents.blank_lines) == (8, 5, 2)
    assert balance.documents.dropped == {"bad": 1, "min_tokens": 2}
    assert (balance.tokens.made, balance.tokens.dropped) == (45, {"min_tokens": 3})
    assert [(error.file, error.line, error.unit) for error in ledger.state.errors] == [("in.jsonl", 5, "line")]


def test_duplicates_are_taken_off() -> None:
    ledger = ledger_of(INFO, left_out(DUPLICATE, documents=2, empty=1, keys={"text": 12}, supervised=None))
    balance = ledger.balance(num_documents=3, num_tokens=30, num_origins=3)
    assert list(balance.faults()) == []
    assert balance.documents.dropped == {"bad": 1, "duplicate": 2, "min_tokens": 2}
    assert (balance.documents.empty, balance.tokens.dropped["duplicate"]) == (0, 12)


def test_rows_are_counted_from_0() -> None:
    ledger = RunLedger([msgspec.structs.replace(FILE, format="parquet")])
    ledger.add(INFO)
    assert [(error.line, error.unit) for error in ledger.state.errors] == [(4, "row")]


@pytest.mark.parametrize("field", ["lines", "blank_lines", "bad", "documents", "kept", "skipped", "begin", "end"])
@pytest.mark.parametrize("change", [-1, 1])
def test_one_number_of_a_span_is_wrong(field: str, change: int) -> None:
    span = msgspec.structs.replace(SPAN, **{field: getattr(SPAN, field) + change})
    with pytest.raises(HeadraceError, match="does not balance"):
        ledger_of(msgspec.structs.replace(INFO, spans=(span,))).balance(num_documents=5, num_tokens=42, num_origins=5)


def change(**changes: Any) -> Tally:
    return replace(TALLY, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"tally": change(documents=replace(DOCUMENTS, kept=4))},
        {"tally": change(documents=replace(DOCUMENTS, kept=6))},
        {"tally": change(documents=replace(DOCUMENTS, read=7))},
        {"tally": change(documents=replace(DOCUMENTS, dropped={"min_tokens": 1, "bad": 1}))},
        {"tally": change(documents=replace(DOCUMENTS, dropped={"min_tokens": 1, "bad": 2}))},
        {"tally": change(documents=replace(DOCUMENTS, dropped={}))},
        {"tally": change(lines=11)},
        {"errors": ()},
        {"tally": change(tokens=replace(TOKENS, made=44))},
        {"tally": change(tokens=replace(TOKENS, kept=43))},
        {"tally": change(tokens=replace(TOKENS, kept=41, dropped={"min_tokens": 4}))},
        {"spans": (SPAN, SPAN)},
    ],
)
def test_one_number_of_a_piece_is_wrong(changes: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError, match="does not balance"):
        ledger_of(msgspec.structs.replace(INFO, **changes)).balance(num_documents=5, num_tokens=42, num_origins=5)


@pytest.mark.parametrize("wrong", [{"num_documents": 4}, {"num_tokens": 41}, {"num_origins": 6}])
def test_the_store_is_not_what_was_sent(wrong: dict[str, int]) -> None:
    numbers = {"num_documents": 5, "num_tokens": 42, "num_origins": 5, **wrong}
    with pytest.raises(HeadraceError, match="does not balance"):
        ledger_of(INFO).balance(**numbers)


def test_a_file_that_was_not_read_to_its_end() -> None:
    ledger = RunLedger([FILE, FILE])
    ledger.add(INFO)
    with pytest.raises(HeadraceError, match=r"its extent, and what was read: 100 and 0"):
        ledger.balance(num_documents=5, num_tokens=42, num_origins=5)
