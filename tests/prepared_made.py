"""What `headrace prepare`, `merge`, `split` and `convert` write of small fixed inputs: a hash of each finished file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import xxhash
from click.testing import CliRunner

import recipe_runs
import shards_made
from headrace.cli import main

TOKENS = ("--tokenizer", "model", "--backend", "tokenizers", "--workers", "1")
PICTURES = ("prepare", "rows/table.jsonl", "--format", "tar", "--id-field", "id", "--workers", "1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "text": ("prepare", "text", "text", *TOKENS, "--append-eod", "--eod", "<eos>"),
    "text-shards": ("prepare", "text", "text", *TOKENS, "--shard-tokens", "9000", "--bos", "<bos>"),
    "text-keyed": ("prepare", "text", "text", *TOKENS, "--format", "keyed", "--field", "text", "--field", "title"),
    "text-ids": ("prepare", "text", "text", *TOKENS, "--id-field", "id", "--deduplicate", "--filter", "min_chars=40"),
    "text-paragraphs": ("prepare", "plain", *TOKENS, "--sample-by", "paragraph"),
    "text-skipped": ("prepare", "bad", *TOKENS, "--on-error", "skip"),
    "sft": ("prepare", "--recipe", "sft.yaml", "--backend", "tokenizers", "--workers", "1"),
    "dpo": ("prepare", "--recipe", "dpo.yaml", "--backend", "tokenizers", "--workers", "1"),
    "grpo-jsonl": ("prepare", "--recipe", "grpo.yaml", "--backend", "tokenizers", "--workers", "1"),
    "tar": (*PICTURES, "--part", "jpg=path:file", "--part", "txt=column:caption"),
    "tar-split": (
        *(*PICTURES, "--part", "jpg=path:file", "--part", "json=row", "--samples-per-shard", "7"),
        *("--split-ratio", "8,1,1", "--sample-type", "CaptioningSample"),
        *("--field-map", '{"image": "jpg", "caption": "json[caption]"}'),
    ),
    "merged-shards": ("merge", "text", "text-shards"),
    "merged-keyed": ("merge", "text", "text-shards", "--format", "keyed", "--shard-tokens", "9000"),
    "split": ("split", "text", "--split", "8,1,1"),
    "split-parts": ("split", "text-keyed", "--split", "3"),
    "converted": ("convert", "text-keyed", "--format", "keyed", "--dtype", "int32"),
    "converted-indexed": ("convert", "grpo-jsonl", "--format", "keyed"),
}
"""A name of the output, and the command but for it; those that copy take an output before them."""
DRAWN = ("index.uuid",)
"""Files of random content, as Energon's own."""


def write_inputs(folder: Path) -> None:
    """Texts, conversations, pairs, groups and pictures, by formula."""
    records = [
        {"id": f"d{number}", "text": "so it is, " * (number * 7 % 23) + f"é{number % 60}", "title": f"T {number}"}
        for number in range(150)
    ]
    recipe_runs.write_lines(folder / "text" / "a.jsonl", records[:90])
    recipe_runs.write_lines(folder / "text" / "b.jsonl", records[90:])
    recipe_runs.write_lines(folder / "bad" / "a.jsonl", [*records[:20], "{torn", {"no": "text"}, *records[20:40]])
    (folder / "plain").mkdir()
    (folder / "plain" / "a.txt").write_text("\n\n".join(record["text"] for record in records[:30]), encoding="utf-8")
    recipe_runs.make_model(folder / "model")
    for name, made in (("sft", recipe_runs.conversations), ("dpo", recipe_runs.pairs), ("grpo", recipe_runs.groups)):
        recipe_runs.write_lines(folder / name / "a.jsonl", made(60))
        ending = "output: {format: jsonl}\n" if name == "grpo" else ""
        (folder / f"{name}.yaml").write_text(f"type: {name}\ninputs: {name}\ntokenizer: model\n{ending}")
    (folder / "rows").mkdir()
    shards_made.write_pictures(folder / "rows", 25)
    shards_made.write_table(folder / "rows" / "table.jsonl", shards_made.rows(25))
    (folder / "tars").mkdir()
    for shard in range(2):
        samples = {f"{shard}{one}": {"txt": f"text {one}".encode(), "cls": b"1"} for one in range(4)}
        (folder / "tars" / f"{shard}.tar").write_bytes(shards_made.tar_of(samples))


def run(*arguments: Any) -> None:
    """A command in this process; its errors come through."""
    CliRunner().invoke(main, [*map(str, arguments), "--quiet"], catch_exceptions=False, standalone_mode=False)


def make(name: str) -> None:
    """Write the output of that name into the folder ``made`` of the current one."""
    command, *rest = COMMANDS[name]
    output = Path("made") / name
    if command == "prepare":
        run(command, *rest, "--output", output)
        return
    sources = [Path("made") / one if one in COMMANDS else one for one in rest]
    if command == "merge":
        run(command, *sources, "--output", output)
    else:
        run(command, sources[0], output, *sources[1:])


def digests(folder: Path) -> dict[str, str]:
    """A hash of each file at any depth, by its path below the folder."""
    return {
        path.relative_to(folder).as_posix(): xxhash.xxh3_128(content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in DRAWN
    }


def content(path: Path) -> bytes:
    """What is in a file, without what is not the same everywhere."""
    if path.suffix == ".sqlite":  # its header names the version of SQLite
        with contextlib.closing(sqlite3.connect(path)) as database:
            return "\n".join(database.iterdump()).encode()
    if path.name == "headrace.json":
        manifest = json.loads(path.read_bytes())
        del manifest["xxh3_128"]
        if "index" in manifest:  # of a folder of tars: the size of the database
            del manifest["index"]["size"]
        return json.dumps(_fixed(manifest), sort_keys=True).encode()
    return path.read_bytes()


def _fixed(value: Any) -> Any:
    """A manifest without versions of libraries, times, and the hashes of databases and drawn files."""
    if isinstance(value, dict):
        return {name: _fixed(one) for name, one in value.items() if not _is_left_out(name, one)}
    return [_fixed(one) for one in value if not _is_drawn(one)] if isinstance(value, list) else value


def _is_left_out(name: str, value: Any) -> bool:
    return name in ("library_version", "mtime_ns") or (name == "version" and isinstance(value, str))


def _is_drawn(entry: Any) -> bool:
    return isinstance(entry, dict) and str(entry.get("name", "")).endswith((".uuid", ".sqlite"))


def made() -> dict[str, dict[str, str]]:
    """The hashes of the files of each output, made of inputs in the current folder, which is empty at first."""
    write_inputs(Path())
    found = {}
    for name in COMMANDS:
        make(name)
        found[name] = digests(Path("made") / name)
    run("prepare", "tars", "--split-ratio", "1,1,0", "--workers", "1")
    return {**found, "in place": digests(Path("tars"))}
