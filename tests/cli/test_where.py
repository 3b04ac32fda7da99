"""``headrace where``: from a document back to its line, for every kind of input and of store."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.inspect import document_origins
from headrace.io import file_sum
from headrace.stores import (
    DocumentLedger,
    IndexedWriter,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    ProvenanceWriter,
    TokenLedger,
    load_manifest,
    save_manifest,
)
from headrace.stores.keyed.writer import KeyedWriter

TEXTS = [f"text {number}\n" + "é" * number * 20 for number in range(10)]
ORDER = [7, 2, 9, 0, 5, 1, 3, 8, 4, 6]


def write_jsonl(path: Path) -> None:
    """Ten documents on the lines 1, 3, 4, 6, 7, ...: line 2 is blank, line 5 is no document."""
    lines = [json.dumps({"text": text, "title": f"title {number}"}) for number, text in enumerate(TEXTS)]
    data = "\n".join([lines[0], " ", *lines[1:3], '{"text": 5}', *lines[3:], ""]).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_rows(path: Path) -> None:
    """The same as rows, of which 1 and 4 are no documents."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    texts = [TEXTS[0], None, *TEXTS[1:3], None, *TEXTS[3:]]
    table = pa.table({"text": texts, "title": [f"title {text}" for text in texts]})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=4)
    else:
        feather.write_feather(table, path, compression="uncompressed", chunksize=4)


def prepare(
    folder: Path,
    source: Path,
    *,
    keys: tuple[str, ...] = ("text",),
    layout: str = "indexed",
    order: list[int] | None = None,
    ids: list[str] | None = None,
    skipped: tuple[int, ...] = (1, 4),
    **records: Any,
) -> Path:
    """A store of ten documents in shards of four, as `prepare` writes it; document i of the input has i tokens."""
    store = folder / "store"
    store.mkdir()
    lengths = np.array(order or range(10), np.int64)
    outputs = []
    for number, at in enumerate(range(0, 10, 4)):
        part = lengths[at : at + 4]
        if layout == "keyed":
            with KeyedWriter(store / f"shard_{number:04d}", dtypes=dict.fromkeys(keys, np.int32)) as keyed:
                keyed.add_documents(
                    {key: np.zeros(part.sum() * (1 + index), np.int32) for index, key in enumerate(keys)},
                    {key: part * (1 + index) for index, key in enumerate(keys)},
                )
                outputs.append(OutputShard.of(keyed.finish(), store))
            continue
        for index, key in enumerate(keys):
            with IndexedWriter(store / f"{key}_document_{number:05d}", dtype=np.uint16) as writer:
                writer.add_documents(np.zeros(part.sum() * (1 + index), np.uint16), part * (1 + index))
                outputs.append(OutputShard.of(writer.finish(), store, key=key))
    writer = ProvenanceWriter(store / "provenance", with_order=order is not None, with_ids=ids is not None)
    writer.add_span(0, 10, 0, 0, 10 + len(skipped), np.array(skipped, np.int64), ["bad"] * len(skipped))
    if order is not None:
        writer.add_order(lengths)
    if ids is not None:
        writer.add_ids(ids)
    tokens = sum(shard.tokens for shard in outputs)
    manifest = Manifest(
        inputs=(InputFile(path=str(source), size=source.stat().st_size, xxh3_128=file_sum(source).xxh3_128),),
        options={"records": {"fields": ["text"], "sample_by": "document", **records}},
        outputs=tuple(outputs),
        ledger=Ledger(documents=DocumentLedger(read=10, kept=10), tokens=TokenLedger(made=tokens, kept=tokens)),
        provenance=writer.finish(),
    )
    save_manifest(store, manifest)
    return store


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in.jsonl")
    return tmp_path / "in.jsonl"


def ask(run: Any, *arguments: Any) -> list[dict[str, Any]]:
    result = run("where", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["documents"]
    return found


@pytest.mark.parametrize(
    ("name", "write", "unit"),
    [
        ("in.jsonl", write_jsonl, "line"),
        ("in.jsonl.gz", write_jsonl, "line"),
        ("in.parquet", write_rows, "row"),
        ("in.arrow", write_rows, "row"),
    ],
)
@pytest.mark.parametrize("order", [None, ORDER])
def test_every_document(
    run: Any, tmp_path: Path, name: str, write: Callable[[Path], None], unit: str, order: list[int] | None
) -> None:
    write(tmp_path / name)
    store = prepare(tmp_path, tmp_path / name, order=order)
    places = [0, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    for document, found in enumerate(ask(run, store, *range(10))):
        ordinal = order[document] if order else document
        assert found == {
            "document": document,
            "input": str(tmp_path / name),
            "unit": unit,
            "number": places[ordinal] + (unit == "line"),
            "counted_from": int(unit == "line"),
            "id": None,
            "shards": [
                {
                    "key": "text",
                    "prefix": f"text_document_{document // 4:05d}",
                    "document": document % 4,
                    "tokens": ordinal,
                }
            ],
            "texts": {"text": TEXTS[ordinal]},
            "note": "",
            "copied_from": [],
        }


def test_for_people(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl, order=ORDER, ids=[f"doc-{number}" for number in range(10)])
    result = run("where", store, 0, 3)
    assert result.exit_code == 0
    shown = repr(TEXTS[7][:80])
    assert result.stdout.splitlines() == [
        f"{store}: document 0",
        f"  input  {jsonl}, line 10",
        "  id     doc-7",
        "  shard  text_document_00000, document 0, 7 tokens",
        f"  text   {shown} ... {len(TEXTS[7])} characters",
        "",
        f"{store}: document 3",
        f"  input  {jsonl}, line 1",
        "  id     doc-0",
        "  shard  text_document_00000, document 3, 0 tokens",
        "  text   'text 0\\n'",
    ]


def test_show(run: Any, jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepare(tmp_path, jsonl)
    assert run("where", store, 9, "--show").stdout.endswith(f"\n\ntext:\n{TEXTS[9]}\n")
    monkeypatch.setattr(document_origins, "FREE_BYTES", 10)
    [found] = ask(run, store, 9)
    assert (found["texts"], found["note"]) == (
        None,
        "the input is large, and was not read; with --show it is read up to the record",
    )
    assert run("where", store, 9, "--show").stdout.endswith(f"\n\ntext:\n{TEXTS[9]}\n")


def test_rows_are_counted_from_zero(run: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.parquet")
    store = prepare(tmp_path, tmp_path / "in.parquet")
    assert f"  input  {tmp_path / 'in.parquet'}, row 11, counted from 0" in run("where", store, 9).stdout


@pytest.mark.parametrize(
    ("sample_by", "content", "place", "text"),
    [
        ("line", "\n".join(f"text {number}" for number in range(10)), "line 10", "text 9"),
        ("paragraph", "\n\n\n".join(f"text\n{number}" for number in range(10)), "paragraph 10", "text\n9"),
        ("document", "all of\nit\n", "the whole file", "all of\nit\n"),
    ],
)
def test_plain_text(run: Any, tmp_path: Path, sample_by: str, content: str, place: str, text: str) -> None:
    path = tmp_path / "in.txt"
    path.write_text(content)
    store = prepare(tmp_path, path, skipped=(), sample_by=sample_by)
    lines = run("where", store, 0 if sample_by == "document" else 9).stdout.splitlines()
    assert f"  input  {path}, {place}" in lines
    assert f"  text   {text!r}" in lines


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_several_keys(run: Any, jsonl: Path, tmp_path: Path, layout: str) -> None:
    store = prepare(tmp_path, jsonl, keys=("text", "title"), layout=layout, fields=["text", "title"])
    [found] = ask(run, store, 6)
    prefixes = ["shard_0001"] * 2 if layout == "keyed" else ["text_document_00001", "title_document_00001"]
    assert found["shards"] == [
        {"key": "text", "prefix": prefixes[0], "document": 2, "tokens": 6},
        {"key": "title", "prefix": prefixes[1], "document": 2, "tokens": 12},
    ]
    assert found["texts"] == {"text": TEXTS[6], "title": "title 6"}
    lines = run("where", store, 6).stdout.splitlines()
    assert f"  shard of title  {prefixes[1]}, document 2, 12 tokens" in lines
    assert "  text of title   'title 6'" in lines


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_within_a_shard(run: Any, jsonl: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepare(tmp_path, jsonl)
    monkeypatch.chdir(tmp_path)
    [found] = ask(run, f"store/text_document_00001{ending}", 2)
    assert (found["document"], found["number"]) == (6, 9)
    monkeypatch.chdir(store)
    assert ask(run, f"text_document_00001{ending}", 2) == [found]
    result = run("where", f"text_document_00002{ending}", 2)
    assert result.exit_code == 2
    assert f"text_document_00002{ending} has no document 2; it has 2, counted from 0" in result.stderr


def test_within_a_keyed_shard(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl, layout="keyed")
    assert [found["document"] for found in ask(run, store / "shard_0002", 0, 1)] == [8, 9]


@pytest.mark.parametrize("document", ["10", "99999999999"])
def test_a_document_that_is_not_there(run: Any, jsonl: Path, tmp_path: Path, document: str) -> None:
    store = prepare(tmp_path, jsonl)
    result = run("where", store, 0, document, "--json")
    assert result.exit_code == 2
    assert f"store has no document {document}; it has 10, counted from 0" in result.stderr
    assert json.loads(result.stdout)["error"]["kind"] == "ConfigError"


def test_the_input_has_changed(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    size = jsonl.stat().st_size
    with jsonl.open("a") as file:
        file.write("{}\n")
    line = f"  text   the input has changed: it had {size:,} bytes, and has {size + 3:,}"
    assert line in run("where", store, 0).stdout.splitlines()
    jsonl.write_bytes(b" " * size)
    assert ask(run, store, 5)[0]["note"] == "the record cannot be found; the input has changed"
    jsonl.unlink()
    assert "  text   the input cannot be read: No such file or directory" in run("where", store, 0).stdout.splitlines()


def test_standard_input_is_gone(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    manifest = load_manifest(store)
    inputs = (msgspec.structs.replace(manifest.inputs[0], path="-"),)
    save_manifest(store, msgspec.structs.replace(manifest, inputs=inputs))
    [found] = ask(run, store, 0)
    assert (found["input"], found["number"]) == ("-", 1)
    assert found["note"] == "the input was standard input, which is gone"


def test_not_a_prepared_store(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    shutil.copy(store / "text_document_00000.bin", tmp_path / "bare.bin")
    for path, message in (
        (tmp_path / "nowhere", "does not exist; expected a folder that headrace prepare wrote"),
        (tmp_path / "bare.bin", "no headrace.json lists it"),
        (store / "provenance", "no headrace.json lists it"),
    ):
        result = run("where", path, 0)
        assert result.exit_code == 4
        assert f"{path}: {message}" in result.stderr


def test_a_store_without_provenance(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    save_manifest(store, msgspec.structs.replace(load_manifest(store), provenance=()))
    result = run("where", store, 0)
    assert result.exit_code == 4
    assert "does not keep where its documents come from: headrace.json lists no files of provenance/" in result.stderr


def test_provenance_of_another_store(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    for documents, file, message in (
        (9, 0, "holds the origins of 9 documents, but headrace.json lists 10"),
        (10, 1, "names input 1, but headrace.json lists 1 inputs"),
    ):
        writer = ProvenanceWriter(store / "provenance", with_order=False, with_ids=False)
        writer.add_span(0, documents, file, 0, documents, np.zeros(0, np.int64), [])
        writer.finish()
        result = run("where", store, 0)
        assert result.exit_code == 4
        assert message in result.stderr


def test_no_document_is_asked_for(run: Any, jsonl: Path, tmp_path: Path) -> None:
    result = run("where", prepare(tmp_path, jsonl))
    assert result.exit_code == 2
    assert "Missing argument 'DOC...'" in result.output


@given(
    lines=st.lists(st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=40),
    size=st.integers(1, 30),
    data=st.data(),
)
def test_where_lines_begin(
    lines: list[bytes], size: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"\n".join(lines))
    wanted = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    begins = [sum(len(line) + 1 for line in lines[:number]) for number in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_origins, "_READ_BYTES", size)
        for given, found in ((wanted, list(zip(wanted, begins, strict=True))), ([len(lines) + 5], [])):
            with FileIO(path) as file:
                assert list(document_origins._offsets(file, given)) == found
