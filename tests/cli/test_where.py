"""``headrace where``: from a document back to its line, for every kind of input and store, through copies too."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from obstore import delete

import headrace
import made
from copies_made import documents, pair
from headrace.copying import CopyOptions
from headrace.inspect import origins as document_origins
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
from memory_stores import MemoryBucket

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


@pytest.fixture
def where(of_json: Any) -> Callable[..., Any]:
    """What is found of each document."""
    return lambda *arguments: of_json("where", *arguments)["documents"]


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
    run: Any,
    where: Any,
    tmp_path: Path,
    name: str,
    write: Any,
    unit: str,
    order: list[int] | None,
) -> None:
    write(tmp_path / name)
    store = prepare(tmp_path, tmp_path / name, order=order)
    places = [0, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    for document, found in enumerate(where(store, *range(10))):
        ordinal = order[document] if order else document
        prefix = f"text_document_{document // 4:05d}"
        assert found == {
            "document": document,
            "input": str(tmp_path / name),
            "unit": unit,
            "number": places[ordinal] + (unit == "line"),
            "counted_from": int(unit == "line"),
            "id": None,
            "shards": [{"key": "text", "prefix": prefix, "document": document % 4, "tokens": ordinal}],
            "texts": {"text": TEXTS[ordinal]},
            "note": "",
            "copied_from": [],
        }
    if unit == "row" and order is None:
        assert f"  input  {tmp_path / name}, row 11, counted from 0" in run("where", store, 9).stdout


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


def test_show(run: Any, where: Any, jsonl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepare(tmp_path, jsonl)
    lines = TEXTS[9].split("\n")
    shown = "\n  text:\n" + "".join(f"      {line}⏎\n" for line in lines[:-1]) + f"      {lines[-1]}\n"
    assert run("where", store, 9, "--long").stdout.endswith(shown)
    monkeypatch.setattr(document_origins, "FREE_BYTES", 10)
    [found] = where(store, 9)
    assert (found["texts"], "--long" in found["note"]) == (None, True)
    assert run("where", store, 9, "--long").stdout.endswith(shown)


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


@pytest.mark.parametrize(
    ("layout", "prefixes"),
    [("indexed", ("text_document_00001", "title_document_00001")), ("keyed", ("shard_0001", "shard_0001"))],
)
def test_several_keys(
    run: Any, where: Any, jsonl: Path, tmp_path: Path, layout: str, prefixes: tuple[str, str]
) -> None:
    store = prepare(tmp_path, jsonl, keys=("text", "title"), layout=layout, fields=["text", "title"])
    [found] = where(store, 6)
    assert found["shards"] == [
        {"key": "text", "prefix": prefixes[0], "document": 2, "tokens": 6},
        {"key": "title", "prefix": prefixes[1], "document": 2, "tokens": 12},
    ]
    assert found["texts"] == {"text": TEXTS[6], "title": "title 6"}
    lines = run("where", store, 6).stdout.splitlines()
    assert f"  shard of title  {prefixes[1]}, document 2, 12 tokens" in lines
    assert "  text of title   'title 6'" in lines
    if layout == "keyed":
        assert [found["document"] for found in where(store / "shard_0002", 0, 1)] == [8, 9]


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_within_a_shard(
    run: Any, where: Any, jsonl: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = prepare(tmp_path, jsonl)
    monkeypatch.chdir(tmp_path)
    [found] = where(f"store/text_document_00001{ending}", 2)
    assert (found["document"], found["number"]) == (6, 9)
    monkeypatch.chdir(store)
    assert where(f"text_document_00001{ending}", 2) == [found]
    result = run("where", f"text_document_00002{ending}", 2)
    named = f"text_document_00002{ending} has no document 2; it has 2, counted from 0"
    assert (result.exit_code, named in result.stderr) == (2, True)


@pytest.mark.parametrize("document", ["10", "99999999999"])
def test_a_document_that_is_not_there(run: Any, jsonl: Path, tmp_path: Path, document: str) -> None:
    result = run("where", prepare(tmp_path, jsonl), 0, document)
    named = f"store has no document {document}; it has 10, counted from 0"
    assert (result.exit_code, named in result.stderr) == (2, True)


def test_the_input_has_changed(run: Any, where: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    size = jsonl.stat().st_size
    with jsonl.open("a") as file:
        file.write("{}\n")
    line = f"  text   the input has changed: it had {size:,} bytes, and has {size + 3:,}"
    assert line in run("where", store, 0).stdout.splitlines()
    jsonl.write_bytes(b" " * size)
    assert "cannot be found" in where(store, 5)[0]["note"]
    jsonl.unlink()
    assert "No such file" in where(store, 0)[0]["note"]


def test_standard_input_is_gone(where: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    manifest = load_manifest(store)
    inputs = (msgspec.structs.replace(manifest.inputs[0], path="-"),)
    save_manifest(store, msgspec.structs.replace(manifest, inputs=inputs))
    [found] = where(store, 0)
    assert (found["input"], found["number"], "standard input" in found["note"]) == ("-", 1, True)


def test_not_a_prepared_store(run: Any, jsonl: Path, tmp_path: Path) -> None:
    store = prepare(tmp_path, jsonl)
    shutil.copy(store / "text_document_00000.bin", tmp_path / "bare.bin")
    without = shutil.copytree(store, tmp_path / "without")
    save_manifest(without, msgspec.structs.replace(load_manifest(without), provenance=()))
    for path, named in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "bare.bin", "no headrace.json lists it"),
        (store / "provenance", "no headrace.json lists it"),
        (without, "lists no files of provenance/"),
    ):
        result = run("where", path, 0)
        assert (result.exit_code, str(path) in result.stderr, named in result.stderr) == (4, True, True)


@pytest.mark.parametrize(
    ("documents", "file", "named"), [(9, 0, "origins of 9.*lists 10"), (10, 1, "input 1.*lists 1")]
)
def test_provenance_of_another_store(
    run: Any, jsonl: Path, tmp_path: Path, documents: int, file: int, named: str
) -> None:
    store = prepare(tmp_path, jsonl)
    writer = ProvenanceWriter(store / "provenance", with_order=False, with_ids=False)
    writer.add_span(0, documents, file, 0, documents, np.zeros(0, np.int64), [])
    writer.finish()
    result = run("where", store, 0)
    assert result.exit_code == 4
    assert re.search(named, result.stderr)


def test_through_a_merge_and_a_split_to_the_line(run: Any, where: Any, prepared: Path, tmp_path: Path) -> None:
    """Each document of the last copy is the line that the prepared store says."""
    headrace.merge([prepared, prepared], tmp_path / "merged")
    headrace.split(tmp_path / "merged", tmp_path / "split", into=3, options=CopyOptions(shards=1000, format="keyed"))
    lines = where(prepared, *range(100))
    whole = documents(prepared) * 2
    before = 0
    for part in range(3):
        folder = tmp_path / "split" / f"part_{part:05d}"
        here = documents(folder)
        for number, found in enumerate(where(folder, *range(len(here)))):
            at = before + number
            assert here[number] == whole[at]
            line = lines[at % 100]
            for name in ("input", "unit", "number", "texts"):
                assert found[name] == line[name]
            assert found["copied_from"] == [
                {"path": str(tmp_path / "merged"), "document": at},
                {"path": str(prepared), "document": at % 100},
            ]
            assert (found["document"], found["shards"][0]["tokens"]) == (number, len(here[number]))
        before += len(here)
    assert before == 200
    printed = [line.split() for line in run("where", folder, 0).stdout.splitlines()]
    assert ["copied", "from", f"{tmp_path / 'merged'},", "document", str(before - len(here))] in printed
    shard = load_manifest(folder).outputs[1]
    [found] = where(folder / shard.prefix, 0)
    assert found["document"] == load_manifest(folder).outputs[0].documents


def test_through_stores_at_urls(run: Any, where: Any, prepared: Path, bucket: MemoryBucket, tmp_path: Path) -> None:
    """The same lines as through the local stores; a store that was changed or removed there ends the way."""
    url = bucket.upload(prepared, "web")
    headrace.merge([url, url], f"{bucket.url}/merged")
    headrace.split(f"{bucket.url}/merged", tmp_path / "split", into=2)
    last = tmp_path / "split/part_00001"
    for number, (found, line) in enumerate(zip(where(last, *range(100)), where(prepared, *range(100)), strict=True)):
        assert (found["input"], found["number"]) == (line["input"], line["number"])
        assert [one["path"] for one in found["copied_from"]] == [f"{bucket.url}/merged", url]
        assert [one["document"] for one in found["copied_from"]] == [100 + number, number]
    delete(bucket.store, ["merged/headrace.json"])
    assert f"the store {bucket.url}/merged has no headrace.json" in run("where", last, 0).stdout


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (shutil.rmtree, "no longer exists, so the origin is not known further"),
        (lambda store: (store / "headrace.json").unlink(), "has no headrace.json"),
        (lambda store: (store / "headrace.json").write_text("{}"), "not a Headrace manifest"),
    ],
)
def test_the_way_ends_at_a_source_that_is_gone(
    run: Any, where: Any, store: Path, tmp_path: Path, change: Any, note: str
) -> None:
    headrace.merge([store], tmp_path / "out")
    change(store)
    [found] = where(tmp_path / "out", 3)
    assert (found["input"], found["unit"], found["number"], found["texts"]) == (str(store), "stored document", 3, None)
    assert note in found["note"]
    assert f"{store}, document 3" in run("where", tmp_path / "out", 3).stdout


def test_a_source_that_was_written_anew_is_not_trusted(where: Any, tmp_path: Path, store: Path) -> None:
    headrace.merge([store], tmp_path / "out")
    other = pair(tmp_path / "other", [[[1]]] * 100)
    shutil.rmtree(store)
    headrace.merge([other], store)
    [found] = where(tmp_path / "out", 3)
    assert "has been written anew" in found["note"]


def test_bare_pairs_and_stores_without_lines(where: Any, tmp_path: Path) -> None:
    bare = pair(tmp_path / "bare", [[[1]], [[2]], [[3], [4]]])
    headrace.merge([bare, bare], tmp_path / "out")
    first, last = where(tmp_path / "out", 1, 5)
    assert (first["number"], last["number"]) == (1, 2)
    assert "has no headrace.json" in last["note"]
    headrace.merge([bare], tmp_path / "sequences", options=CopyOptions(documents="sequences"))
    [found] = where(tmp_path / "sequences", 3)
    assert "each sequence was read as a document" in found["note"]
    folder = made.two_keys(tmp_path / "two", "indexed")
    headrace.merge([folder], tmp_path / "of_two")
    [found] = where(tmp_path / "of_two", 2)
    assert "does not keep where its documents come from" in found["note"]
    assert [part["key"] for part in found["shards"]] == ["title", "body"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of two files: some blank, some too short, some bad."""
    texts = [" ".join(f"w{(number * 7 + word) % 98}" for word in range(number % 9)) for number in range(120)]
    rows = [{"text": text, "url": f"u{number}"} for number, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("where")
    for name, part in (("a.jsonl", rows[:70]), ("b.jsonl", rows[70:])):
        lines = [json.dumps(row) for row in part]
        lines.insert(3, " ")
        lines.insert(11, "no JSON")
        (folder / name).write_text("\n".join(lines))
    return folder


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("form", [(), ("--format", "keyed")])
def test_every_document_of_a_prepared_store(
    run: Any, inputs: Path, tokenizer: Path, tmp_path: Path, form: tuple[Any, ...]
) -> None:
    """Both files are there twice, by way of a copy: of each text the first place stays."""
    for name in ("a", "b"):
        shutil.copy(inputs / f"{name}.jsonl", tmp_path)
    options = [
        "--shard-tokens",
        50,
        "--id-field",
        "url",
        "--filter",
        "min_tokens=2",
        "--on-error",
        "skip",
        "--deduplicate",
    ]
    store = tmp_path / "store"
    arguments = [inputs, tmp_path / "*.jsonl", "-o", store, "--tokenizer", tokenizer, *options, *form]
    assert run("prepare", *arguments).exit_code == 0
    with headrace.open(store) as opened:
        tokens = [opened.document(number).tolist() for number in range(opened.num_documents)]
    result = run("where", store, *range(len(tokens)), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["documents"]
    assert len({one["shards"][0]["prefix"] for one in found}) > 3
    assert {Path(one["input"]).parent for one in found} == {inputs}
    for one, ids in zip(found, tokens, strict=True):
        record = json.loads(Path(one["input"]).read_text().split("\n")[one["number"] - 1])
        assert one["unit"] == "line"
        assert one["id"] == record["url"]
        assert one["texts"] == {"text": record["text"]}
        assert one["shards"][0]["tokens"] == len(ids)
        assert ids == [int(word[1:]) + 2 for word in record["text"].split()]
    assert len({one["id"] for one in found}) == len(tokens)
    places = [(one["input"], one["number"]) for one in found]
    assert places == sorted(places)
