"""Shards are cut by documents alone, whatever the pieces and interruptions; pieces come back whole; books balance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import headrace
from headrace.errors import HeadraceError, OutputError, StoreError
from headrace.preparing import store_output
from headrace.preparing.columns import DOMAIN, Column, IntArray, add_ends, keep_rows, total_lengths
from headrace.preparing.ledger import RunLedger
from headrace.preparing.piece import PieceInfo, SpanResult, piece_path, read_piece, write_piece
from headrace.preparing.sources import SourceFile
from headrace.preparing.store_output import OutputState, StoreOutput
from headrace.preparing.tally import DUPLICATE, Tally, left_out
from headrace.stores import DocumentLedger, SampleLedger, TokenLedger

KEYS = ("text", "title")


def open_output(folder: Path, layout: Any, shard_tokens: int | None, state: OutputState) -> StoreOutput:
    columns = [Column(key, "uint16") for key in KEYS]
    return StoreOutput(folder, layout=layout, columns=columns, shard_tokens=shard_tokens, state=state)


def add(output: StoreOutput, lengths: list[tuple[int, int]], first: int) -> None:
    """Append documents from number ``first`` on, whose values are their numbers."""
    rows = [
        (
            np.concatenate([np.full(pair[key], first + at, np.uint16) for at, pair in enumerate(lengths)] or [[]]),
            np.array([pair[key] for pair in lengths], np.int64),
        )
        for key in range(2)
    ]
    output.add(rows, np.arange(first, first + len(lengths)))


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
@example(lengths=[(3, 0), (2, 1), (3, 0)], shard_tokens=6, steps=[])  # two documents fill a shard exactly
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=25),
    shard_tokens=st.none() | st.integers(1, 40),
    steps=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["go on", "checkpoint", "die"])), max_size=12),
)
def test_shards(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    lengths: list[tuple[int, int]],
    shard_tokens: int | None,
    steps: list[tuple[int, str]],
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    output = open_output(folder, layout, shard_tokens, OutputState())
    first = 0
    for count, what in [*steps, (len(lengths), "go on")]:
        last = min(first + count, len(lengths))
        add(output, lengths[first:last], first)
        first = last
        if what != "go on":
            state = output.checkpoint()
        if what == "die":
            # What comes after the last checkpoint is made again.
            if first < len(lengths):
                add(output, lengths[first : first + 1], first)
            output.suspend()
            output = open_output(folder, layout, shard_tokens, state)
    [shards] = output.finish()
    wanted: list[list[int]] = [[]]
    for index, pair in enumerate(lengths):
        size = sum(sum(lengths[one]) for one in wanted[-1])
        if shard_tokens is not None and wanted[-1] and size + sum(pair) > shard_tokens:
            wanted.append([])
        wanted[-1].append(index)
    assert [written[0].num_documents for written in shards] == list(map(len, wanted))
    for written, documents in zip(shards, wanted, strict=True):
        for key in range(2):
            with headrace.open(written[key].prefix if layout == "indexed" else written[0].prefix) as store:
                name = "tokens" if layout == "indexed" else KEYS[key]
                found = [store.document(at, name).tolist() for at in range(len(store))]
            assert found == [[index] * lengths[index][key] for index in documents]


@pytest.mark.parametrize("layout", ["indexed", "keyed", "hdf5", "jsonl"])
def test_a_shard_of_a_layout_that_lists_its_documents_has_not_too_many(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_output, "MAX_DOCUMENTS", 4)
    output = open_output(tmp_path, layout, 1000, OutputState())
    add(output, [(1, 1)] * 3, 0)
    state = output.checkpoint()
    output.suspend()
    output = open_output(tmp_path, layout, 1000, state)
    add(output, [(1, 1)] * 7, 3)
    [shards] = output.finish()
    assert [written[0].num_documents for written in shards] == ([10] if layout == "indexed" else [4, 4, 2])


def test_ordinals_that_the_disk_lost_are_not_made_up(tmp_path: Path) -> None:
    columns = [Column("tokens", "uint16"), DOMAIN]
    output = StoreOutput(tmp_path, layout="indexed", columns=columns, shard_tokens=None, state=OutputState())
    ones = np.ones(4, np.int64)
    rows = [(np.arange(4, dtype=np.uint16), ones), (np.array([0, 1, 1, 0], np.int32), ones)]
    output.add(rows, np.arange(4))
    state = output.checkpoint()
    assert np.concatenate(list(output.ordinals())).tolist() == [0, 3, 1, 2]
    output.suspend()
    (tmp_path / "domain_0001" / "ordinals").write_bytes(bytes(8))
    with pytest.raises(StoreError, match=r"8.*16.*--restart"):
        StoreOutput(tmp_path, layout="indexed", columns=columns, shard_tokens=None, state=state)


# Documents as two arrays, held against lists of lists.


documents = st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=12)


def flat(rows: list[list[int]]) -> tuple[np.ndarray, IntArray]:
    return np.array([token for row in rows for token in row], np.uint16), np.array([len(row) for row in rows], np.int64)


def unflat(tokens: np.ndarray, lengths: IntArray) -> list[list[int]]:
    ends = np.cumsum(lengths)
    assert len(tokens) == (int(ends[-1]) if len(ends) else 0)
    return [tokens[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]


@given(rows=documents, data=st.data())
def test_keep_rows(rows: list[list[int]], data: st.DataObject) -> None:
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), np.bool_)
    tokens, lengths = flat(rows)
    kept = keep_rows(tokens, lengths, keep)
    assert kept.dtype == tokens.dtype
    assert unflat(kept, lengths[keep]) == [row for row, one in zip(rows, keep, strict=True) if one]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@given(rows=documents, bos=st.none() | st.just(7), eod=st.none() | st.just(9))
def test_add_ends(rows: list[list[int]], bos: int | None, eod: int | None, dtype: str) -> None:
    tokens, lengths = flat(rows)
    made, longer = add_ends(tokens.astype(np.uint32), lengths, bos=bos, eod=eod, dtype=np.dtype(dtype))
    assert made.dtype == dtype
    before, after = [bos] * (bos is not None), [eod] * (eod is not None)
    wanted = [[*([] if row[:1] == before else before), *row, *after] if row else [] for row in rows]
    assert unflat(made, longer) == wanted


@given(rows=documents)
def test_total_lengths(rows: list[list[int]]) -> None:
    tokens, lengths = flat(rows)
    before = lengths.copy()
    assert total_lengths([(tokens, lengths), (tokens, lengths)]).tolist() == [2 * len(row) for row in rows]
    assert lengths.tolist() == before.tolist()


# The books of a run: every way in which one number can be wrong is seen.


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
    with pytest.raises(HeadraceError, match="balance"):
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
    with pytest.raises(HeadraceError, match="balance"):
        ledger_of(msgspec.structs.replace(INFO, **changes)).balance(num_documents=5, num_tokens=42, num_origins=5)


@pytest.mark.parametrize("wrong", [{"num_documents": 4}, {"num_tokens": 41}, {"num_origins": 6}])
def test_the_store_is_not_what_was_sent(wrong: dict[str, int]) -> None:
    numbers = {"num_documents": 5, "num_tokens": 42, "num_origins": 5, **wrong}
    with pytest.raises(HeadraceError, match="balance"):
        ledger_of(INFO).balance(**numbers)


def test_a_file_that_was_not_read_to_its_end() -> None:
    ledger = RunLedger([FILE, FILE])
    ledger.add(INFO)
    with pytest.raises(HeadraceError, match=r"100.*0"):
        ledger.balance(num_documents=5, num_tokens=42, num_origins=5)


# Pieces come back as they were written, or are told to be torn.


DTYPES = st.sampled_from(["<u2", "<i4", "<u8", "<i8", "|u1"])
WRITTEN_SPAN = SpanResult(
    file=3, begin=5, end=9, lines=4, blank_lines=1, bad=1, documents=2, kept=1, skipped=3, xxh3_128="abc"
)  # fmt: skip
WRITTEN = PieceInfo(
    task_index=7,
    piece=2,
    is_last=False,
    next_span=1,
    next_lines=12,
    spans=(WRITTEN_SPAN, WRITTEN_SPAN),
    tally=Tally(
        documents=DocumentLedger(read=4, kept=2, dropped={"min_tokens": 1}),
        tokens=TokenLedger(made=11, kept=10, eod=2, dropped={"min_tokens": 1}),
        samples=SampleLedger(records=3, keys={"ids": TokenLedger(made=11, kept=10)}, notes={"split_records": 1}),
        proved=7,
    ),
    errors=((1, 3, "malformed"),),
    reasons=("", "bad"),
)


@st.composite
def blocks(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    """Blocks of one array: of one dtype and width."""
    dtype = np.dtype(draw(DTYPES))
    width = draw(st.sampled_from([None, 2]))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = [length if width is None else (length, width) for length in lengths]
    return [rng.integers(0, 200, shape).astype(dtype) for shape in shapes]


@settings(deadline=None)
@given(arrays=st.dictionaries(st.text("abc.", min_size=1), blocks(), max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, list[np.ndarray[Any, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("piece")
    write_piece(folder, WRITTEN, arrays)
    (path,) = folder.iterdir()
    assert path == piece_path(folder, 7, 2)
    piece = read_piece(path)
    assert piece.info == WRITTEN
    assert piece.size_bytes == path.stat().st_size
    assert piece.arrays.keys() == arrays.keys()
    for name, parts in arrays.items():
        whole = np.concatenate(parts)
        assert piece.arrays[name].dtype == whole.dtype
        np.testing.assert_array_equal(piece.arrays[name], whole)


def test_an_array_that_is_not_contiguous(tmp_path: Path) -> None:
    write_piece(tmp_path, WRITTEN, {"rows": [np.arange(20).reshape(4, 5)[:, ::2]]})
    assert read_piece(piece_path(tmp_path, 7, 2)).arrays["rows"].tolist() == [[r, r + 2, r + 4] for r in (0, 5, 10, 15)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_piece(tmp_path, WRITTEN, {"a": [np.arange(5, dtype=np.uint16)], "b": [np.arange(3), np.arange(2)]})
    return piece_path(tmp_path, 7, 2)


def test_any_damage_is_noticed(written: Path) -> None:
    """Also zeros, which some file systems leave after a loss of power."""
    data = written.read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :] for at in range(len(data))]
    for damaged in [*flipped, *(data[:size] for size in range(len(data))), bytes(16), bytes(100)]:
        written.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"7\.2\.piece"):
            read_piece(written)
    written.unlink()
    with pytest.raises(OutputError, match=r"7\.2\.piece"):
        read_piece(written)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    def fail() -> Any:
        yield np.arange(3)
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"7\.2\.piece"):
        write_piece(tmp_path, WRITTEN, {"a": fail()})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="temporary"):
        write_piece(tmp_path / "none", WRITTEN, {})
