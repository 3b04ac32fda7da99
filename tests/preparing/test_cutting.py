"""Shards are cut by documents alone, whatever the parts; what is read of a part is what was written; books balance."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from msgspec.structs import replace

import headrace
from counts import cases
from headrace.engine.serving import load, save
from headrace.errors import HeadraceError, OutputError, StoreError
from headrace.io import FileSum, reader
from headrace.preparing import OutputOptions, PrepareOptions, cutting, finishing, parts
from headrace.preparing.backends import Choice
from headrace.preparing.backends.tokenizer import TextTokenizer
from headrace.preparing.columns import DOMAIN, Column, IntArray, add_ends, keep_rows, total_lengths
from headrace.preparing.cutting import CUT_NAME, CutResult, Cutter, PlacedPart, order_name
from headrace.preparing.documents import Documents
from headrace.preparing.duplicates import FoundDuplicates, duplicates_path, find_duplicates
from headrace.preparing.finishing import Joined, join
from headrace.preparing.ledger import DUPLICATE, RunLedger, Tally, check_counts, left_out
from headrace.preparing.parts import (
    DocumentPart,
    PartBuilder,
    PartInfo,
    SpanResult,
    hashes_name,
    part_name,
    read_saved,
    read_values,
)
from headrace.preparing.run_plan import FindTask, JoinTask, RecipeSetup, RunPlan, Setup
from headrace.preparing.sources import SourceFile
from headrace.stores import (
    DocumentLedger,
    KeyInfo,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenLedger,
)

FILE = SourceFile(name="in.jsonl", path="/in.jsonl", format="jsonl", size_bytes=100, mtime_ns=0, extent=100)
TOKENIZER = TextTokenizer(name="", fingerprint="", vocab_size=100, special_tokens={}, known_tokens={})


class Made(NamedTuple):
    """A document of a run: ``length`` ids that are its number, and a mask of as many values."""

    length: int
    domain: str
    text: int
    """The same for duplicates."""

    is_further: bool = False
    """Whether it is of the same record as the document before it."""


def plan_of(layout: Any, shard_tokens: int | None, *, unique: bool, domains: bool, limit: int | None) -> RunPlan:
    columns = [Column("ids", "uint16"), Column("mask", "uint8", "mask"), *([DOMAIN] if domains else [])]
    making = RecipeSetup(recipe=b"", sources=(0,), template=None, special_tokens={}, before_text=())
    return RunPlan(
        files=(FILE,),
        options=PrepareOptions(deduplicate=unique, output=OutputOptions(format=layout, shard_tokens=shard_tokens)),
        tokenizer=TOKENIZER,
        eod=None,
        bos=None,
        choice=Choice(name="tokenizers", version="", reasons={}),
        task_bytes=1,
        columns=tuple(columns),
        recipe=making,
        max_records=limit,
    )


def setup_of(plan: RunPlan, results: Path) -> Setup:
    setup = plan.setup(results=str(results), tokenizer="", backend="tokenizers")
    return replace(setup, work=str(results.parent), parent=os.getpid())


def write_part(plan: RunPlan, folder: Path, task_index: int, first: int, made: list[Made], blocks: int) -> None:
    """Write the part of a task, whose first document has the number ``first``, in some blocks."""
    setup = setup_of(plan, folder)
    with PartBuilder(setup, task_index) as part:
        part.begin_span(0)
        line = -1
        edges = sorted({round(len(made) * block / blocks) for block in range(blocks + 1)})
        for begin, end in itertools.pairwise(
            [edge for edge in edges if not (edge < len(made) and made[edge].is_further)]
        ):
            some = made[begin:end]
            lengths = np.array([one.length for one in some], np.int64)
            lines = []
            for one in some:
                line += not one.is_further
                lines.append(line)
            ids = np.repeat(np.arange(first + begin, first + end), lengths).astype(np.uint16)
            names = list(dict.fromkeys(one.domain for one in some))
            domain = np.array([names.index(one.domain) for one in some], np.int32)
            is_split = plan.columns[-1].kind == "domain"
            num_records = len(set(lines))
            count = TokenLedger(made=len(ids), kept=len(ids))
            documents = Documents(
                rows=[
                    (ids, lengths),
                    ((ids % 2).astype(np.uint8), lengths),
                    *([(domain, np.ones(len(some), np.int64))] if is_split else []),
                ],
                lines=np.array(lines),
                ids=None,
                text_hashes=np.array([[one.text, one.text] for one in some], np.uint64) if setup.num_ranges else None,
                skipped=[],
                bad=[],
                tally=Tally(
                    documents=DocumentLedger(read=len(some), kept=len(some), empty=int((lengths == 0).sum())),
                    tokens=count,
                    samples=SampleLedger(records=num_records, keys={"ids": count}, supervised=int((ids % 2).sum())),
                    lines=num_records,
                    split=len(some) - num_records,
                ),
                domains=names if is_split else [],
            )
            part.add(SimpleNamespace(num_lines=num_records, num_blank=0), documents)  # type: ignore[arg-type]
        part.end_span(0, 0, "")
        part.write()


def kept_of(made: list[Made], *, unique: bool, limit: int | None) -> list[int]:
    """The numbers of the documents that a run keeps, by the plain rule."""
    seen: set[int] = set()
    records: list[int] = []
    kept, record = [], -1
    for number, one in enumerate(made):
        record += not one.is_further
        if unique and one.text in seen:
            continue
        seen.add(one.text)
        if record not in records:
            records.append(record)
        if limit is None or len(records) <= limit:
            kept.append(number)
    return kept


def shards_of(made: list[Made], kept: list[int], shard_tokens: int | None, most: int | None) -> list[list[int]]:
    """The documents of each shard, by the plain rule."""
    shards: list[list[int]] = []
    for number in kept:
        size = sum(2 * made[one].length for one in shards[-1]) if shards else 0
        is_full = shard_tokens is not None and size + 2 * made[number].length > shard_tokens
        if not shards or is_full or (most is not None and shard_tokens is not None and len(shards[-1]) == most):
            shards.append([])
        shards[-1].append(number)
    return shards


MADE = st.builds(
    Made, st.integers(0, 9), st.sampled_from(["web", "code", "books"]), st.integers(0, 20), st.integers(0, 3).map(bool)
)
MOST = 5


@pytest.mark.parametrize("layout", ["indexed", "keyed", "hdf5", "jsonl"])
@settings(max_examples=cases(12, 1000), deadline=None)
@example(
    made=[Made(3, "web", 0), Made(3, "web", 1), Made(3, "web", 2)],  # two documents fill a shard exactly
    cuts=[1],
    blocks=1,
    shard_tokens=12,
    unique=False,
    domains=False,
    limit=None,
)
@given(
    made=st.lists(MADE, min_size=1, max_size=25),
    cuts=st.lists(st.integers(0, 25), max_size=5),
    blocks=st.integers(1, 3),
    shard_tokens=st.none() | st.integers(1, 60),
    unique=st.booleans(),
    domains=st.booleans(),
    limit=st.none() | st.integers(0, 20),
)
def test_shards(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    made: list[Made],
    cuts: list[int],
    blocks: int,
    shard_tokens: int | None,
    unique: bool,
    domains: bool,
    limit: int | None,
) -> None:
    """For any parts: what is kept, which shard has it, in which order, and its values."""
    made = [made[0]._replace(is_further=False), *made[1:]]
    work = tmp_path_factory.mktemp("work")
    folder = work / "parts"
    folder.mkdir()
    plan = plan_of(layout, shard_tokens, unique=unique, domains=domains, limit=limit)
    using = reader("pread")
    borders = sorted({0, len(made), *(cut for cut in cuts if cut < len(made) and not made[cut].is_further)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishing, "STEP_BYTES", 20)
        patch.setattr(cutting, "MAX_DOCUMENTS", MOST)
        for task_index, (first, last) in enumerate(itertools.pairwise(borders)):
            write_part(plan, folder, task_index, first, made[first:last], blocks)
        found = None
        if unique:
            hashes = [str(folder / hashes_name(task_index)) for task_index in range(len(borders) - 1)]
            find_duplicates(str(work), hashes, using, FindTask(0))
            found = FoundDuplicates([str(duplicates_path(work, 0))], using)
        cutter = Cutter(plan, [""], found, work)
        for task_index in range(len(borders) - 1):
            part = read_saved(using, str(folder / part_name(task_index)), DocumentPart)
            cutter.take(PlacedPart("parts", part))
        cutter.finish()
        cutter.close()
        cut = load(work / CUT_NAME, CutResult)
        assert cut is not None
        kept = kept_of(made, unique=unique, limit=limit)
        names = list(dict.fromkeys(one.domain for one in made)) if domains else [""]
        assert list(cut.domains) == (names if domains else [])
        assert cut.ledger.tally.documents.kept == len(kept)
        results = work / "results"
        most = None if layout == "indexed" else MOST
        at = {(shard.series, shard.number): index for index, shard in enumerate(cut.shards)}
        num_shards = 0
        for series, name in enumerate(names):
            own = [number for number in kept if not domains or made[number].domain == name]
            wanted = shards_of(made, own, shard_tokens, most)
            for number, documents in enumerate(wanted):
                index = at[series, number]
                task = JoinTask(index, order_name(index), name if domains else "", number, len(wanted) == 1)
                done = join(setup_of(plan, results), task, using, lambda counts: None)
                joined = msgspec.convert(done.value, Joined)
                assert joined.supervised == sum(made[one].length for one in documents if one % 2)
                check_shard(results / task.folder, joined, made, documents, task)
            num_shards += len(wanted)
        assert num_shards == len(cut.shards)
        assert cut.value_bytes == sum(3 * made[number].length for number in kept)


def check_shard(folder: Path, joined: Joined, made: list[Made], documents: list[int], task: JoinTask) -> None:
    for key in ("ids", "mask"):
        (shard,) = (one for one in joined.outputs if key in one.keys)
        stem = f"{key}_document" if shard.format == "indexed" else "shard" if shard.format == "keyed" else "data"
        number = f"_{task.number:0{5 if shard.format == 'indexed' else 4}d}"
        assert shard.prefix == (stem if shard.format == "indexed" and task.is_single else stem + number)
        suffix = {"hdf5": ".h5", "jsonl": ".jsonl"}.get(shard.format, "")
        with headrace.open(f"{folder / shard.prefix}{suffix}") as store:
            name = key if key in store.keys else "tokens"
            found = [store.document(at, name).tolist() for at in range(len(store))]
        assert found == [[one if key == "ids" else one % 2] * made[one].length for one in documents]


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
    _, lengths = flat(rows)
    before = lengths.copy()
    assert total_lengths([lengths, lengths], len(lengths)).tolist() == [2 * len(row) for row in rows]
    assert lengths.tolist() == before.tolist()


# The books of a run: every way in which one number can be wrong is seen.


SPAN = SpanResult(
    file=0, begin=0, end=100, lines=10, blank_lines=2, bad=1, documents=7, kept=5, skipped=5, xxh3_128="ff"
)  # fmt: skip
DOCUMENTS = DocumentLedger(read=8, kept=5, dropped={"min_tokens": 2, "bad": 1}, empty=1, blank_lines=2, text_bytes=60)
TOKENS = TokenLedger(made=45, kept=42, eod=5, dropped={"min_tokens": 3})
TALLY = Tally(documents=DOCUMENTS, tokens=TOKENS, lines=10, input_bytes=100)
INFO = PartInfo(
    task_index=0,
    spans=(SPAN,),
    tally=TALLY,
    errors=((0, 4, "malformed"),),
)


def ledger_of(info: PartInfo, left: Tally | None = None) -> RunLedger:
    ledger = RunLedger.of([""])
    ledger.add([FILE], info, [left] if left else [])
    return ledger


def balanced(ledger: RunLedger, num_documents: int = 5, num_tokens: int = 42) -> Ledger:
    """Compare the books with a store that holds so much, as the end of a run does."""
    shard = OutputShard(
        prefix="text_document",
        documents=num_documents,
        keys={"text": KeyInfo(dtype="uint16", tokens=num_tokens)},
        contiguous=True,
        files=tuple(
            FileSum(name=f"text_document.{end}", size=0, xxh3_128="", block_bytes=1, xxh3_64=())
            for end in ("bin", "idx")
        ),
    )
    manifest = Manifest(outputs=(shard,), ledger=ledger.balance([FILE]))
    check_counts(manifest, "the store")
    return manifest.ledger


def test_books_that_balance() -> None:
    ledger = ledger_of(INFO)
    balance = balanced(ledger)
    assert (balance.documents.read, balance.documents.kept, balance.documents.blank_lines) == (8, 5, 2)
    assert balance.documents.dropped == {"bad": 1, "min_tokens": 2}
    assert (balance.tokens.made, balance.tokens.dropped) == (45, {"min_tokens": 3})
    assert [(error.file, error.line, error.unit) for error in ledger.errors] == [("in.jsonl", 5, "line")]


def test_duplicates_are_taken_off() -> None:
    ledger = ledger_of(INFO, left_out(DUPLICATE, documents=2, empty=1, keys={"text": 12}, supervised=None))
    balance = balanced(ledger, num_documents=3, num_tokens=30)
    assert balance.documents.dropped == {"bad": 1, "duplicate": 2, "min_tokens": 2}
    assert (balance.documents.empty, balance.tokens.dropped["duplicate"]) == (0, 12)


def test_rows_are_counted_from_0() -> None:
    ledger = RunLedger.of([""])
    ledger.add([msgspec.structs.replace(FILE, format="parquet")], INFO)
    assert [(error.line, error.unit) for error in ledger.errors] == [(4, "row")]


@pytest.mark.parametrize("field", ["lines", "blank_lines", "bad", "documents", "kept", "skipped", "begin", "end"])
@pytest.mark.parametrize("change", [-1, 1])
def test_one_number_of_a_span_is_wrong(field: str, change: int) -> None:
    span = msgspec.structs.replace(SPAN, **{field: getattr(SPAN, field) + change})
    with pytest.raises(HeadraceError, match="balance"):
        balanced(ledger_of(msgspec.structs.replace(INFO, spans=(span,))))


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
def test_one_number_of_a_part_is_wrong(changes: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError, match="balance"):
        balanced(ledger_of(msgspec.structs.replace(INFO, **changes)))


@pytest.mark.parametrize("wrong", [{"num_documents": 4}, {"num_tokens": 41}])
def test_the_store_is_not_what_was_sent(wrong: dict[str, int]) -> None:
    with pytest.raises(HeadraceError, match="balance"):
        balanced(ledger_of(INFO), **wrong)


def test_a_file_that_was_not_read_to_its_end() -> None:
    ledger = RunLedger.of(["", ""])
    ledger.add([FILE, FILE], INFO)
    with pytest.raises(HeadraceError, match=r"100.*0"):
        ledger.balance([FILE, FILE])


# Parts come back as they were written, or are told to be torn.


DTYPES = st.sampled_from(["<u2", "<i4", "<u8", "<i8", "|u1"])
WRITTEN_SPAN = SpanResult(
    file=3, begin=5, end=9, lines=4, blank_lines=1, bad=1, documents=2, kept=1, skipped=3, xxh3_128="abc"
)  # fmt: skip
WRITTEN = PartInfo(
    task_index=7,
    spans=(WRITTEN_SPAN, WRITTEN_SPAN),
    tally=Tally(
        documents=DocumentLedger(read=4, kept=2, dropped={"min_tokens": 1}),
        tokens=TokenLedger(made=11, kept=10, eod=2, dropped={"min_tokens": 1}),
        samples=SampleLedger(records=3, keys={"ids": TokenLedger(made=11, kept=10)}, notes={"split_records": 1}),
        proved=7,
    ),
    errors=((1, 3, "malformed"),),
    reasons=("", "bad"),
    hashes=(b"12345678", b""),
)


@st.composite
def an_array(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(DTYPES))
    width = draw(st.sampled_from([None, 2]))
    length = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.integers(0, 200, length if width is None else (length, width)).astype(dtype)


@settings(deadline=None)
@given(arrays=st.dictionaries(st.text("abc.", min_size=1), an_array(), max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    path = tmp_path_factory.mktemp("part") / "7.part"
    save(path, DocumentPart(WRITTEN, arrays))
    part = read_saved(reader("pread"), str(path), DocumentPart)
    assert part.info == WRITTEN
    assert part.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert part.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(part.arrays[name], array)


@settings(deadline=None)
@given(blocks=st.lists(st.integers(0, 30), max_size=6), first=st.integers(0, 60), last=st.integers(0, 60))
def test_values_of_some_documents(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[int], first: int, last: int
) -> None:
    path = tmp_path_factory.mktemp("part") / "7.0.values"
    rng = np.random.default_rng(sum(blocks))
    arrays = [rng.integers(0, 60_000, size).astype(np.uint16) for size in blocks]
    whole = np.concatenate([np.zeros(0, np.uint16), *arrays])
    first, last = sorted((min(first, len(whole)), min(last, len(whole))))
    values = parts._Values(path)
    for array in arrays:
        values.add(array)
    values.close()
    hashes = bytes(values.hashes)
    using = reader("pread")
    found = read_values(using, str(path), hashes, np.dtype("<u2"), first, last)
    np.testing.assert_array_equal(found, whole[first:last])
    for at in range(2 * first, 2 * last):
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(OutputError, match=r"7\.0\.values: .*damaged"):
            read_values(reader("pread"), str(path), hashes, np.dtype("<u2"), first, last)
        path.write_bytes(data)


def test_an_array_that_is_not_contiguous(tmp_path: Path) -> None:
    save(tmp_path / "7.part", DocumentPart(WRITTEN, {"rows": np.arange(20).reshape(4, 5)[:, ::2]}))
    part = read_saved(reader("pread"), str(tmp_path / "7.part"), DocumentPart)
    assert part.arrays["rows"].tolist() == [[r, r + 2, r + 4] for r in (0, 5, 10, 15)]


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    """Also zeros, which some file systems leave after a loss of power."""
    written = tmp_path / "7.part"
    save(written, DocumentPart(WRITTEN, {"a": np.arange(5, dtype=np.uint16), "b": np.arange(5)}))
    data = written.read_bytes()
    flipped = [data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :] for at in range(len(data))]
    for damaged in [*flipped, *(data[:size] for size in range(len(data))), bytes(16), bytes(100)]:
        written.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"7\.part"):
            read_saved(reader("pread"), str(written), DocumentPart)
    written.unlink()
    with pytest.raises(StoreError, match=r"7\.part"):
        read_saved(reader("pread"), str(written), DocumentPart)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "7.part").mkdir()
    for path in (tmp_path / "7.part", tmp_path / "none" / "7.part"):
        with pytest.raises(OutputError, match=r"7\.part"):
            save(path, DocumentPart(WRITTEN, {"a": np.arange(3)}))
