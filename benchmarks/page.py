"""Writes benchmarks/README.md and docs/benchmarks.md from the results of benchmarks on this machine: ``make bench``.

    python benchmarks/page.py [--output FOLDER]

The first has all tables; the second a short table of each section, the bars and whether they hold, and the rows that
README quotes. The docstring of each script says what the benchmark measures, and what it leaves out. ``REASONS`` in a
script has the sentence for a bar that fails, by a part of the bar's name, and ``DEPENDS`` says what the ratios depend
on. The pages are written even if a section has no figures or a bar that fails has no sentence; then both are named, and
the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import common

SCRIPTS = {
    "load": "Batches of token windows",
    "dataloader": "The same samples as torch's loader",
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
MODULES = {"mosaicml-streaming": "streaming", "spdl-core": "spdl"}
"""The modules of packages that are called otherwise."""
OPTIONAL = {"remote": "There are no figures: the servers of object stores that `make remote` installs were not here."}
"""Sections that need more than `make bench` installs, and what the page says without it."""


class Short(NamedTuple):
    """The table of a section on the short page: who, the figures, and how many times the first of them Headrace has."""

    who: tuple[str, ...]
    figures: dict[str, str]
    """Columns, and what they are called; what is ``_per_`` something is better if it is larger."""
    ours: str = ""
    """The row that the others are compared with, within the columns that the table has beside."""
    within: tuple[str, ...] = ()
    lists: str = ".*"
    """The names of the lists of rows in the result, as a regular expression."""


SHORT = {
    "load": (Short(("engine",), {"samples_per_cpu_s": "windows a CPU second"}, "headrace, read ahead"),),
    "dataloader": (
        Short(("engine",), {"cpu_us": "CPU us a sample"}, "headrace", ("batch", "workers"), lists="rows"),
        Short(
            ("engine",),
            {"resume_ms": "ms to the next batch after a resume", "read": "samples read for it"},
            within=("samples", "position"),
            lists="resumes",
        ),
    ),
    "start": (
        Short(
            ("samples",),
            {"first_batch_ms": "ms to the first batch", "resident_mb": "resident MB"},
            within=("window", "sources"),
        ),
    ),
    "prepare": (
        Short(("engine",), {"mb_per_cpu_s": "MB a CPU second, without start-up"}, "headrace", lists="rows"),
        Short(
            ("engine",),
            {"mb_per_cpu_s": "MB a CPU second, start-up included"},
            "headrace, first run",
            ("text",),
            "whole.*",
        ),
    ),
    "packing": (
        Short(("samples",), {"tokens_per_cpu_s": "tokens a CPU second"}, "headrace, packs", ("lengths",), "samples"),
    ),
    "megatron": (
        Short(
            ("engine",),
            {
                "cpu_s": "CPU seconds",
                "samples_per_cpu_s": "samples a CPU second",
                "docs_per_cpu_s": "documents a CPU second",
            },
            "headrace",
            ("what", "of"),
        ),
    ),
    "sft": (
        Short(("engine",), {"cpu_s": "CPU s, start-up included"}, "headrace", ("shape", "conversations"), "whole.*"),
        Short(("engine",), {"per_cpu_s": "conversations a CPU second"}, "headrace", ("model", "shape"), lists="rows"),
    ),
    "tar": (
        Short(("engine",), {"samples_per_cpu_s": "samples a CPU second"}, "headrace, shuffled", lists=".* KB"),
        Short(("engine",), {"samples_per_cpu_s": "samples prepared a CPU second"}, "headrace", lists="prepare"),
    ),
    "multimodal": (
        Short(
            ("system",), {"samples_per_cpu_s": "samples a CPU second"}, "headrace", ("kind", "workers"), lists=".* KB"
        ),
    ),
    "encoder": (
        Short(
            ("system", "form"),
            {"texts_per_cpu_s": "texts a CPU second"},
            "headrace, hook",
            ("encode", "workers"),
            lists="(?!resume).*",
        ),
    ),
    "balance": (
        Short(
            ("samples",),
            {"micro-step": "costliest rank over the mean, balanced", "plain micro-step": "without balance"},
            within=("lengths",),
        ),
    ),
    "scale": (Short(("executor",), {"cpu_s": "CPU seconds", "wall_s": "seconds"}, "local", lists="executors"),),
    "edits": (
        Short(
            ("edits",),
            {"load_s": "s to load the run", "first_batch_s": "s to the first batch", "account_s": "s of an account"},
        ),
    ),
    "remote": (
        Short(
            ("engine",),
            {"mb_per_cpu_s": "MB a CPU second", "first_batch_s": "s to the first batch"},
            "headrace",
            ("data", "latency_ms", "folders"),
            lists="rows",
        ),
    ),
    "interference": (
        Short(
            ("engine",), {"lost_%": "% of launches lost", "lost_ms_a_step": "ms a step"}, within=("kind",), lists="rows"
        ),
        Short(("engine",), {"median_%": "% lost, median of the runs", "p90_%": "90th percentile"}, lists="runs"),
    ),
    "ui": (Short(("page",), {"first, s": "s, first request", "again, s": "s, later ones"}),),
}

Quote = tuple[str, tuple[str, ...]]
QUOTED: dict[str, dict[str, Quote]] = {
    "shuffled windows of 2,048 tokens into batches": {
        "megatron-core": ("load", ("read ahead, times megatron-core",)),
        "a memory map under torch's `DataLoader`": ("load", ("read ahead, times memmap under DataLoader",)),
        "litdata": ("load", ("read ahead, times litdata",)),
        "LanceDB": ("load", ("read ahead, times LanceDB",)),
    },
    "30 MB of text to tokens on disk, with the proof of equal ids, whole commands": {
        "Megatron's way": ("prepare", ("whole command, 30 MB, first run, times Megatron's way, start-up included",)),
        "datatrove": ("prepare", ("whole command, 30 MB, first run, times datatrove, start-up included",)),
    },
    "packs of 4,096 tokens, with reading their tokens": {
        "torchtune": ("packing", tuple(f"{name}: packs, times torchtune" for name in ("sft", "web", "long"))),
    },
    "long conversations to tokens and masks, whole commands": {
        "TRL": ("sft", ("whole command, chat, times TRL, start-up included",)),
        "`datasets.map`": ("sft", ("whole command, chat, times datasets.map, start-up included",)),
    },
    "short conversations to tokens and masks, whole commands": {
        "TRL": ("sft", ("whole command, short, times TRL, start-up included",)),
        "`datasets.map`": ("sft", ("whole command, short, times datasets.map, start-up included",)),
    },
    "small samples of tars, shuffled": {
        "Energon": ("tar", ("1.5 KB, shuffled, times Energon", "55 KB, shuffled, times Energon")),
        "webdataset": ("tar", ("1.5 KB, shuffled, times webdataset", "55 KB, shuffled, times webdataset")),
    },
    "JPEGs of 55 KB decoded into batches": {
        "turboloader": ("multimodal", tuple(f"55 KB, {k}, 0 workers, times turboloader" for k in ("uint8", "floats"))),
        "SPDL": ("multimodal", ("55 KB, uint8, 0 workers, times SPDL",)),
    },
}
"""What README's table says of each job: beside whom, and the section and the claims that have the figures."""
CLAIM = re.compile(r"^(?:holds|FAILS|open)? *(.+): (-?[\d.,]+(?:e[+-]\d+)?)(?: %)?(?: \(.*)?$")

INTRODUCTION = """# Benchmarks: all tables

`make bench` runs the benchmarks and writes this page. Each engine runs in a separate process, and engines take turns.
The figures are medians of CPU seconds, over all processes of an engine, unless a table says otherwise. The ratios
between engines carry over to other machines better than the rates do. Each section says what it leaves out.

A line that begins with `holds` or `FAILS` is a bar that we set before we measured. We leave bars that fail in place.
"""
SUMMARY = """# Benchmarks

`make bench` runs the benchmarks and writes this page. The figures are medians of CPU seconds on one small machine, and
mostly ratios, which carry over to other machines better than rates do. [All tables](../benchmarks/README.md) have
the commands, all versions, and what each figure leaves out.

A line that begins with `holds` or `FAILS` is a bar that we set before we measured. We leave bars that fail in place,
and say in a sentence why they fail.
"""


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1], help="the folder of both pages")
    output: Path = parser.parse_args().output
    results = {name: _result(name) for name in SCRIPTS}
    missing: list[str] = []
    for page, lines in (("benchmarks/README.md", _page(results)), ("docs/benchmarks.md", _summary(results, missing))):
        (output / page).parent.mkdir(parents=True, exist_ok=True)
        (output / page).write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
        print(output / page)
    if missing:
        raise SystemExit("\n".join(missing))


def _result(name: str) -> dict[str, Any] | None:
    path = common.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _lists(result: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lists of rows of a result, with their names, those among them that stand in a dict."""
    for key, value in result.items():
        for name, rows in value.items() if isinstance(value, dict) else ((key, value),):
            if isinstance(rows, list) and rows and isinstance(rows[0], dict):
                yield name, rows


def _summary(results: dict[str, dict[str, Any] | None], missing: list[str]) -> Iterator[str]:
    yield SUMMARY
    yield from _quotes(results, missing)
    for name, result in results.items():
        heading = SCRIPTS[name]
        link = f"../benchmarks/README.md#{heading.lower().replace(' ', '-').replace(chr(39), '')}"
        yield f"## {heading}\n"
        yield f"{_docstring(name)[0]} [Tables]({link}).\n"
        if result is None:
            yield OPTIONAL.get(name, "There are no figures yet.") + "\n"
            if name not in OPTIONAL:
                missing.append(f"{heading}: there are no figures; run benchmarks/{FILES.get(name, name)}.py")
            continue
        yield _machine(result, _used(name, result["machine"]["versions"]))
        for short in SHORT[name]:
            yield from _short(short, result)
        if depends := _constant(name, "DEPENDS"):
            yield f"{depends}\n"
        for line in (*result.get("notes", ()), *result["claims"]):
            yield f"- {_with_reason(name, line, missing)}"
        yield ""


def _with_reason(name: str, line: str, missing: list[str]) -> str:
    """A claim; after one that fails stands the sentence that says why."""
    if not line.startswith("FAILS"):
        return line
    for part, reason in (_constant(name, "REASONS") or {}).items():
        if re.search(part, line):
            return f"{line}. {reason}"
    missing.append(f"REASONS in benchmarks/{FILES.get(name, name)}.py has no sentence for: {line}")
    return line


def _quotes(results: dict[str, dict[str, Any] | None], missing: list[str]) -> Iterator[str]:
    """The rows of README's table, from the claims, and the range of the first batches."""
    yield "## What README quotes\n"
    yield "Each figure stands in a line below.\n"
    yield "| job | Headrace is ... times as fast as |\n|---|---|"
    for job, peers in QUOTED.items():
        cells = []
        for peer, (name, claims) in peers.items():
            lines = [match.groups() for line in (results[name] or {}).get("claims", ()) if (match := CLAIM.match(line))]
            figures = [figure for claim in claims for what, figure in lines if what == claim]
            if figures:
                figures.sort(key=lambda text: float(text.replace(",", "")))
                cells.append(f"{' to '.join(dict.fromkeys((figures[0], figures[-1])))} ({peer})")
            else:
                missing.append(f"no figure for README: {job}, {peer}")
        if cells:
            yield f"| {job} | {', '.join(cells)} |"
    yield ""
    if start := results["start"]:
        times = [row["first_batch_ms"] for row in start["rows"] if row["samples"] == 10**10]
        span = f"{min(times):.0f} to {max(times):.0f} ms"
        yield f"The first batch of 10^10 samples comes after {span}, imports excluded.\n"


def _short(short: Short, result: dict[str, Any]) -> Iterator[str]:
    lists = [(name, rows) for name, rows in _lists(result) if re.fullmatch(short.lists, name)]
    rows = [
        {"of": name, **row} for name, rows in lists for row in rows if any(column in row for column in short.figures)
    ]
    if not rows:
        return
    within = (*(("of",) if len(lists) > 1 and "of" not in short.within else ()), *short.within)
    figures = [column for column in short.figures if any(column in row for row in rows)]
    columns = [
        *within,
        ", ".join(short.who),
        *(short.figures[column] for column in figures),
        *(("times",) if short.ours else ()),
    ]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "|".join(["---"] * (len(within) + 1) + ["---:"] * (len(columns) - len(within) - 1)) + "|"
    ours = {}
    for row in rows:
        if ", ".join(str(row[column]) for column in short.who) == short.ours:
            ours[tuple(row[column] for column in within)] = row
    for row in rows:
        who = ", ".join(common.cell(row[column]) for column in short.who)
        cells = [*(common.cell(row[column]) for column in within), who]
        cells += [common.cell(row[column]) if column in row else "" for column in figures]
        if short.ours:
            cells.append(_times(row, ours.get(tuple(row[column] for column in within)), figures))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    if short.ours:
        yield f"Times: how many times as fast as the row `{short.ours}` is.\n"


def _times(row: dict[str, Any], ours: dict[str, Any] | None, figures: list[str]) -> str:
    """How many times as fast ours is as a row, by the first figure that both have."""
    for column in figures:
        if ours and column in row and column in ours:
            rate = "_per_" in column or column.startswith("per_")
            return common.cell(float(ours[column] / row[column] if rate else row[column] / ours[column]))
    return ""


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
            yield OPTIONAL.get(name, f"There are no figures yet; run `python benchmarks/{script}.py`.") + "\n"
            continue
        if result["machine"] != before:
            before = result["machine"]
            yield _machine(result, result["machine"]["versions"])
        yield f"```text\n{result['command']}\n```\n"
        for key, rows in _lists(result):
            yield from _tables(key, rows)
        for line in (*result.get("notes", ()), *result["claims"]):
            yield f"- {_with_reason(name, line, [])}"
        yield ""


def _sources(name: str) -> Iterator[str]:
    """The text of a script and of those that it runs."""
    script = FILES.get(name, name)
    for path in sorted(Path(__file__).parent.glob(f"{script}*.py")):
        yield path.read_text(encoding="utf-8")


def _used(name: str, versions: dict[str, str]) -> dict[str, str]:
    """The versions of the packages that a script, and those that it runs, name."""
    text = "\n".join(_sources(name))
    patterns = {package: re.sub("[-_]", "[-_. ]", MODULES.get(package, package)) for package in versions}
    return {
        package: version
        for package, version in versions.items()
        if package in ("headrace", "numpy") or re.search(rf"""(?:import |from |["'`]){patterns[package]}\b""", text)
    }


def _constant(name: str, constant: str) -> Any:
    """A literal at the top of a script."""
    path = Path(__file__).parent / f"{FILES.get(name, name)}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == constant:
            return ast.literal_eval(node.value)  # type: ignore[attr-defined]
    return None


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


def _machine(result: dict[str, Any], versions: dict[str, str]) -> str:
    machine, named = result["machine"], ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {result['date']} on {machine['cpus']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB of memory, with Python {machine['python']}: {named}.\n"
    )


def _tables(key: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A separate table for each set of columns."""
    if key != "rows":
        yield f"{key[0].upper()}{key[1:].replace('_', ' ')}:\n"
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
