"""Writes benchmarks/README.md and docs/benchmarks.md from the results of benchmarks on this machine: ``make bench``.

    python benchmarks/page.py [--output FOLDER]

The first has all tables; the second the bars, and whether they hold. The docstring of each script says what the
benchmark measures, and what it leaves out. A benchmark without a result is named as missing.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common

SCRIPTS = {
    "load": "Batches of token windows",
    "start": "Time to the first batch",
    "prepare": "Text to tokens",
    "packing": "Packing",
    "megatron": "Megatron's order and files",
    "sft": "Conversations to tokens and loss masks",
    "tar": "Samples in tar shards",
    "multimodal": "Images and captions into batches",
    "encoder": "Task encoders that pack",
    "balance": "Balanced steps",
    "scale": "Preparation on many machines",
    "edits": "Runs that are edited",
    "remote": "Samples from an object store",
    "interference": "Launches lost beside a loader",
    "ui": "Pages in the browser",
}
"""The name and the heading of each result, in the order of the page."""
FILES = {"megatron": "megatron_gpt"}
INTRODUCTION = """# Benchmarks: all tables

`make bench` runs the benchmarks and writes this page. Each engine runs in a separate process, and engines take turns.
The figures are medians of CPU seconds, over all processes of an engine, unless a table says otherwise. The ratios
between engines carry over to other machines better than the rates do. Each section says what it leaves out.

A line that begins with `holds` or `FAILS` is a bar that we set before we measured. We leave bars that fail in place.
"""
SUMMARY = """# Benchmarks

`make bench` runs the benchmarks and writes this page. The figures are medians of CPU seconds on one small machine, and
mostly ratios, which carry over to other machines better than rates do. [All tables](../benchmarks/README.md) have the
machine, the versions, the commands, and what each figure leaves out.

A line that begins with `holds` or `FAILS` is a bar that we set before we measured. We leave bars that fail in place.
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1], help="the folder of both pages")
    output: Path = parser.parse_args().output
    results = {name: _result(name) for name in SCRIPTS}
    for page, lines in (("benchmarks/README.md", _page(results)), ("docs/benchmarks.md", _summary(results))):
        (output / page).parent.mkdir(parents=True, exist_ok=True)
        (output / page).write_text("\n".join(lines), encoding="utf-8")
        print(output / page)


def _result(name: str) -> dict[str, Any] | None:
    path = common.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _summary(results: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    yield SUMMARY
    for name, result in results.items():
        heading = SCRIPTS[name]
        link = f"../benchmarks/README.md#{heading.lower().replace(' ', '-').replace(chr(39), '')}"
        yield f"## {heading}\n"
        yield f"{_docstring(name)[0]} [Tables]({link}).\n"
        for line in (*result.get("notes", ()), *result["claims"]) if result else ("there are no figures yet",):
            yield f"- {line}"
        yield ""


def _page(results: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    yield INTRODUCTION
    before: dict[str, Any] | None = None
    for name, result in results.items():
        script = FILES.get(name, name)
        yield f"## {SCRIPTS[name]}\n"
        title, method = _docstring(name)
        yield f"{title}\n"
        yield from _paragraphs(method)
        if result is None:
            yield f"There are no figures yet; run `python benchmarks/{script}.py`.\n"
            continue
        if result["machine"] != before:
            before = result["machine"]
            yield _machine(result["machine"])
        yield f"```text\n{result['command']}\n```\n"
        for key, rows in result.items():
            if isinstance(rows, list) and rows and isinstance(rows[0], dict):
                yield from _tables(key, rows)
        for line in (*result.get("notes", ()), *result["claims"]):
            yield f"- {line}"
        yield ""


def _docstring(name: str) -> tuple[str, str]:
    """Return what a script measures, in a sentence, and how."""
    tree = ast.parse((Path(__file__).parent / f"{FILES.get(name, name)}.py").read_text(encoding="utf-8"))
    title, _, method = (ast.get_docstring(tree) or "").partition("\n\n")
    return " ".join(title.split()), method


def _paragraphs(method: str) -> Iterator[str]:
    """The text of a script without its usage line, since the page shows the command."""
    for paragraph in method.split("\n\n"):
        if not paragraph.startswith("    python"):
            yield paragraph.replace("``", "`") + "\n"


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Measured on {machine['cpus']} cores of {machine['processor']}, {machine['memory_gib']} GiB of memory, with "
        f"Python {machine['python']}: {versions}.\n"
    )


def _tables(key: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A separate table for each set of columns."""
    if key != "rows":
        yield f"{key.replace('_', ' ').capitalize()}:\n"
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    for names, chosen in kinds.items():
        numbers = [any(isinstance(row[name], int | float) for row in chosen) for name in names]
        yield "| " + " | ".join(names) + " |"
        yield "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
        for row in chosen:
            yield "| " + " | ".join(common.cell(row[name]) for name in names) + " |"
        yield ""


if __name__ == "__main__":
    main()
