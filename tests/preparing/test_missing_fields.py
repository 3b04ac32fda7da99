"""A field that a file lacks is an error of configuration in every format, whatever happens to bad records."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recipe_runs
from headrace.errors import ConfigError, HeadraceError
from headrace.preparing import (
    ErrorOptions,
    RecordOptions,
    ShardOptions,
    TextOptions,
    TokenOptions,
    estimate_text,
    plan_text,
    prepare_recipe,
    prepare_shards,
    prepare_text,
)
from headrace.preparing.shards.options import PartSpec, ShardSource

TOKENS = TokenOptions(backend="tokenizers")
SKIP = TextOptions(tokens=TOKENS, errors=ErrorOptions(on_error="skip", max_errors=0.99), workers=1)
GOOD = [{"text": f"line {number}", "id": str(number)} for number in range(100)]
OTHER = [{"content": f"row {number}", "id": str(number)} for number in range(5000)]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_arrow(path: Path, rows: list[Any]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_csv(path: Path, rows: list[Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


WRITERS: dict[str, Callable[[Path, list[Any]], object]] = {
    "jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(lines(rows))),
    "parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
    "arrow": write_arrow,
}


def write(folder: Path, ending: str, rows: list[Any] = OTHER) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(lines(GOOD))
    WRITERS[ending](folder / f"b.{ending}", rows)
    return [folder / "a.jsonl", folder / f"b.{ending}"]


@pytest.mark.parametrize("ending", WRITERS)
def test_texts(kit: Any, tmp_path: Path, ending: str) -> None:
    inputs = write(tmp_path / "in", ending)
    for call in (prepare_text, plan_text):
        with pytest.raises(ConfigError, match=rf"b\.{ending}: n.*'text'.*'content'.*\(choose with --text-field\)"):
            call(inputs, tmp_path / call.__name__, tokenizer=kit.tokenizer, options=SKIP)
    with pytest.raises(ConfigError, match="'text'"):
        estimate_text(inputs, tokenizer=kit.tokenizer, options=SKIP)


@pytest.mark.parametrize("ending", WRITERS)
def test_ids(kit: Any, tmp_path: Path, ending: str) -> None:
    inputs = write(tmp_path / "in", ending, [{"text": "a"}] * 101)
    options = TextOptions(tokens=TOKENS, errors=SKIP.errors, records=RecordOptions(id_field="id"))
    with pytest.raises(ConfigError, match=rf"b\.{ending}: n.*'id'.*\(choose with --id-field\)"):
        prepare_text(inputs, tmp_path / "out", tokenizer=kit.tokenizer, options=options)


def test_a_column_that_is_no_text_does_not_cost_its_file(kit: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", "parquet", [{"text": number} for number in range(5000)])
    with pytest.raises(ConfigError, match=r"b\.parquet: column 'text' is int64, not text"):
        prepare_text(inputs, tmp_path / "out", tokenizer=kit.tokenizer, options=SKIP)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_field_that_comes_among_the_first_100_records(kit: Any, tmp_path: Path, ending: str) -> None:
    rows: list[Any] = [{"content": "a"}] * 99 + [{"text": "b"}]
    manifest = prepare_text(
        write(tmp_path / "in", ending, rows), tmp_path / "out", tokenizer=kit.tokenizer, options=SKIP
    )
    assert manifest.ledger.documents.dropped == {"bad": 99}
    late: list[Any] = [{"content": "a"}] * 100 + [{"text": "b"}]
    with pytest.raises(ConfigError, match="none of its first 100 records has the field 'text'"):
        prepare_text(write(tmp_path / "late", ending, late), tmp_path / "no", tokenizer=kit.tokenizer, options=SKIP)
    with pytest.raises(ConfigError, match="none of its first 3 records has the field 'text'"):
        prepare_text(write(tmp_path / "few", ending, late[:3]), tmp_path / "no", tokenizer=kit.tokenizer, options=SKIP)


def test_null_is_a_bad_record_and_no_missing_field(kit: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", "jsonl", [{"text": None}] * 3)
    manifest = prepare_text(inputs, tmp_path / "out", tokenizer=kit.tokenizer, options=SKIP)
    assert manifest.ledger.documents.dropped == {"bad": 3}


@pytest.mark.parametrize("ending", WRITERS)
def test_recipes(tmp_path: Path, ending: str) -> None:
    recipe_runs.make_model(tmp_path / "model")
    write(tmp_path / "in", ending)
    head = f"tokenizer: {tmp_path}/model\nerrors: {{on_error: skip, max_errors: 0.99}}\n"
    files = f"{{paths: [{tmp_path}/in/a.jsonl, {tmp_path}/in/b.{ending}], layout: text}}"
    inputs = f"{{paths: [{tmp_path}/in/a.jsonl, {tmp_path}/in/b.{ending}]}}"
    for number, (recipe, what) in enumerate(
        [
            (f"type: seq\ninputs: {files}\n", "the layout text needs it"),
            (f"type: seq\ninputs: {inputs}\nsections: [{{field: text, action: train}}]\n", "the sections need it"),
        ]
    ):
        (tmp_path / "r.yaml").write_text(head + recipe)
        with pytest.raises(ConfigError, match=rf"b\.{ending}: none of its first 100 .* field 'text'; .*{what}"):
            prepare_recipe(tmp_path / "r.yaml", tmp_path / f"out{number}")


@pytest.mark.parametrize("ending", ["jsonl", "arrow", "parquet", "csv"])
def test_tables_of_media(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table.{ending}"
    {**WRITERS, "csv": write_csv}[ending](path, [{"caption": "a", "key": "k"}] * 3)
    for source in (
        ShardSource(parts=(PartSpec(part="txt", kind="column", column="text"),)),
        ShardSource(parts=(PartSpec(part="txt", kind="column", column="caption"),), key_field="name"),
    ):
        options = ShardOptions(source=source, errors=ErrorOptions(on_error="skip", max_errors=0.99))
        with pytest.raises(HeadraceError) as caught:
            prepare_shards([path], tmp_path / "out", options=options)
        assert isinstance(caught.value, ConfigError)
        assert "none of its first 3 records has the field" in str(caught.value)
