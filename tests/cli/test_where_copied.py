"""``headrace where`` of copies: through any number of them to the line of the input, or as far as it goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from obstore import delete

import headrace
import made
from copies_made import documents, pair
from headrace.copying import CopyOptions
from headrace.stores import load_manifest
from memory_stores import MemoryBucket


def ask(run: Any, *arguments: Any) -> list[dict[str, Any]]:
    result = run("where", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["documents"]
    return found


def test_through_a_merge_and_a_split_to_the_line(run: Any, prepared: Path, tmp_path: Path) -> None:
    """Each document of the last copy is the line that the prepared store says."""
    headrace.merge([prepared, prepared], tmp_path / "merged")
    headrace.split(tmp_path / "merged", tmp_path / "split", into=3, options=CopyOptions(shards=1000, format="keyed"))
    lines = ask(run, prepared, *range(100))
    whole = documents(prepared) * 2
    before = 0
    for part in range(3):
        folder = tmp_path / "split" / f"part_{part:05d}"
        here = documents(folder)
        for number, found in enumerate(ask(run, folder, *range(len(here)))):
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
    shard = load_manifest(folder).outputs[1]
    [found] = ask(run, folder / shard.prefix, 0)
    assert found["document"] == load_manifest(folder).outputs[0].documents


def test_through_stores_at_urls(run: Any, prepared: Path, bucket: MemoryBucket, tmp_path: Path) -> None:
    """The same lines as through the local stores; a store that was changed or removed there ends the way."""
    url = bucket.upload(prepared, "web")
    headrace.merge([url, url], f"{bucket.url}/merged")
    headrace.split(f"{bucket.url}/merged", tmp_path / "split", into=2)
    lines = ask(run, prepared, *range(100))
    for number, found in enumerate(ask(run, tmp_path / "split/part_00001", *range(100))):
        assert (found["input"], found["number"]) == (lines[number]["input"], lines[number]["number"])
        assert found["copied_from"] == [
            {"path": f"{bucket.url}/merged", "document": 100 + number},
            {"path": url, "document": number},
        ]
    delete(bucket.store, ["merged/headrace.json"])
    said = run("where", tmp_path / "split/part_00001", 0).stdout
    assert f"the store {bucket.url}/merged has no headrace.json, so the origin is not known further" in said


def test_what_people_read(run: Any, prepared: Path, tmp_path: Path) -> None:
    headrace.merge([prepared], tmp_path / "out")
    lines = run("where", tmp_path / "out", 5).stdout.splitlines()
    assert lines[1].split() == ["copied", "from", f"{prepared},", "document", "5"]
    assert lines[2].split()[0] == "input"
    assert lines[2].endswith("a.jsonl, line 6")
    assert "w" in lines[-1]


def test_a_shard_of_the_source(run: Any, prepared: Path, tmp_path: Path) -> None:
    headrace.convert(prepared / "text_document", tmp_path / "out", format="keyed")
    [found] = ask(run, tmp_path / "out", 7)
    [line] = ask(run, prepared, 7)
    assert (found["number"], found["input"]) == (line["number"], line["input"])


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (shutil.rmtree, "no longer exists, so the origin is not known further"),
        (lambda store: (store / "headrace.json").unlink(), "has no headrace.json"),
        (lambda store: (store / "headrace.json").write_text("{}"), "not a Headrace manifest"),
    ],
)
def test_the_way_ends_at_a_source_that_is_gone(run: Any, store: Path, tmp_path: Path, change: Any, note: str) -> None:
    headrace.merge([store], tmp_path / "out")
    change(store)
    [found] = ask(run, tmp_path / "out", 3)
    assert (found["input"], found["unit"], found["number"], found["texts"]) == (str(store), "stored document", 3, None)
    assert note in found["note"]
    assert f"{store}, document 3" in run("where", tmp_path / "out", 3).stdout


def test_a_source_that_was_written_anew_is_not_trusted(run: Any, tmp_path: Path, store: Path) -> None:
    headrace.merge([store], tmp_path / "out")
    other = pair(tmp_path / "other", [[[1]]] * 100)
    shutil.rmtree(store)
    headrace.merge([other], store)
    [found] = ask(run, tmp_path / "out", 3)
    assert "has been written anew" in found["note"]


def test_bare_pairs_and_stores_without_lines(run: Any, tmp_path: Path) -> None:
    bare = pair(tmp_path / "bare", [[[1]], [[2]], [[3], [4]]])
    headrace.merge([bare, bare], tmp_path / "out")
    first, last = ask(run, tmp_path / "out", 1, 5)
    assert (first["number"], last["number"]) == (1, 2)
    assert "has no headrace.json" in last["note"]
    headrace.merge([bare], tmp_path / "sequences", options=CopyOptions(documents="sequences"))
    [found] = ask(run, tmp_path / "sequences", 3)
    assert "each sequence was read as a document" in found["note"]
    folder = made.two_keys(tmp_path / "two", "indexed")
    headrace.merge([folder], tmp_path / "of_two")
    [found] = ask(run, tmp_path / "of_two", 2)
    assert "does not keep where its documents come from" in found["note"]
    assert [part["key"] for part in found["shards"]] == ["title", "body"]


def test_a_document_that_is_not_there(run: Any, tmp_path: Path) -> None:
    headrace.merge([pair(tmp_path / "a", [[[1]]])], tmp_path / "out")
    result = run("where", tmp_path / "out", 1)
    assert result.exit_code == 2
    assert "has no document 1; it has 1, counted from 0" in result.stderr
