"""``headrace where`` on what ``headrace prepare`` really wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Lines of two files: some blank, some too short, some twice, some bad."""
    texts = [" ".join(f"w{(number * 7 + word) % 98}" for word in range(number % 9)) for number in range(120)]
    return [{"text": text, "url": f"u{number}"} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def inputs(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("where")
    for name, part in (("a.jsonl", rows[:70]), ("b.jsonl", rows[70:])):
        lines = [json.dumps(row) for row in part]
        lines.insert(3, " ")
        lines.insert(11, "no JSON")
        (folder / name).write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("form", [(), ("--format", "keyed")])
def test_every_document_of_a_prepared_store(
    run: Any, inputs: Path, tokenizer: Path, tmp_path: Path, form: tuple[Any, ...]
) -> None:
    options = ["--shard-tokens", 50, "--id-field", "url", "--min-tokens", 2, "--on-error", "skip", *form]
    store = tmp_path / "store"
    assert run("prepare", inputs, "-o", store, "--tokenizer", tokenizer, *options).exit_code == 0
    with headrace.open(store) as opened:
        tokens = [opened.document(number).tolist() for number in range(opened.num_documents)]
    result = run("where", store, *range(len(tokens)), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["documents"]
    assert len({one["shards"][0]["prefix"] for one in found}) > 3
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


def test_several_outputs_without_duplicates(run: Any, inputs: Path, tokenizer: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    # Both files twice over, by way of a copy: of each text the first place stays.
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes((inputs / f"{name}.jsonl").read_bytes())
    options = ["--field", "text", "--field", "url", "--deduplicate", "--on-error", "skip"]
    arguments = [inputs, tmp_path / "*.jsonl", "-o", store, "--tokenizer", tokenizer, *options]
    assert run("prepare", *arguments).exit_code == 0
    found = json.loads(run("where", store, *range(120), "--json").stdout)["documents"]
    assert {Path(one["input"]).parent for one in found} == {inputs}
    for one in found:
        assert [shard["key"] for shard in one["shards"]] == ["text", "url"]
        record = json.loads(Path(one["input"]).read_text().split("\n")[one["number"] - 1])
        assert one["texts"] == record
