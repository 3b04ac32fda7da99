"""JSONL to a store of tokens: Headrace compared with its peers and the limit, in CPU seconds of all processes.

    python benchmarks/prepare.py [--quick] [--megabytes 200] [--small-megabytes 30,100] [--processes 2] [--rounds 3]
                                 [--engines "a;b"] [--folder FOLDER]...

`corpus.py` gathers the text on this machine. The tokeniser is trained on it: byte-level BPE with GPT-2's pattern and
50,257 entries. The limit is the time in which gigatoken and fastokens encode texts in memory, without reading or
writing anything, in as many processes as the pipelines have (two processes share a core's caches, so one process is
shown, too). Every run is a fresh process, so that all caches are cold, and engines take turns. Slow engines get the
first 30 MB of the same texts. Megabytes are those of the text in UTF-8, and each document ends with the end-of-document
token.

In the first table start-up is not counted. The limits measure their time after it. For the pipelines, the time of a run
over a few short texts with the same options is subtracted. For Headrace this covers the interpreter, the libraries, the
vocabulary and the fixed probe text, while the proof over the corpus counts as work. In a large run the first 1,000
documents always cost the same, so their time and the rate after them are printed, too. The more text there is, the less
they matter; ``--folder`` adds more text. The limits keep all texts in memory, so their memory is not shown.

The whole commands show what a user sees in a small run: all CPU seconds of all processes, from the start of the
interpreter on, over each of ``--small-megabytes``. The first run has an empty cache folder, and the second run uses
what the first one stored. The peers' are the same runs of 30 MB as in the first table, with their start-up.
"""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import corpus
from watch import Usage, watch

PEERS = str(Path(__file__).parent / "prepare_peers.py")
REASONS = {
    "share of": "Reading JSON, the proof over the corpus, writing and hashing come on top of the encoder.",
    "times (Megatron|datatrove)": "The proof over the corpus counts as work, and weighs more the less text there is.",
    "first run": (
        "A first run also encodes a fixed probe text by the reference, which is the proof of equal ids; both libraries"
        " read `tokenizer.json`."
    ),
    "second run": "Much of it is start-up: imports, and both libraries reading `tokenizer.json`.",
    "disk": "The parts of the workers are there until the last of them is in the output.",
}
DEPENDS = (
    "The ratios without start-up hold for large runs; for 30 MB start-up decides, so that the second table counts it."
    " The text is what is installed here: sources and documentation."
)
NUM_PROVED = 1_000
"""The number of documents at the beginning of a large run that Headrace encodes twice."""
WHOLE = ("first run", "second run")
GOALS = {
    ("30 MB", "first run"): 20,
    ("30 MB", "second run"): 30,
    ("100 MB", "first run"): 30,
    ("100 MB", "second run"): 45,
}
"""MB a CPU second of whole commands."""
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


@dataclasses.dataclass(frozen=True)
class Engine:
    """One row."""

    name: str
    options: tuple[str, ...] = ()
    """Options of ``headrace prepare``."""
    peer: str = ""
    is_limit: bool = False
    is_slow: bool = False
    processes: int | None = None


ENGINES = [
    Engine("gigatoken from memory", peer="gigatoken", is_limit=True),
    Engine("fastokens from memory", peer="fastokens", is_limit=True),
    Engine("fastokens from memory, 1 process", peer="fastokens", is_limit=True, processes=1),
    Engine("headrace"),
    Engine("headrace, 1 worker", processes=1),
    Engine("headrace with tokenizers", ("--backend", "tokenizers"), is_slow=True),
    Engine("Megatron's way", peer="megatron", is_slow=True),
    Engine("datatrove", peer="datatrove", is_slow=True),
]


@dataclasses.dataclass(frozen=True)
class Part:
    """Texts to prepare, as one file, and as a folder with a file for each process."""

    file: Path
    folder: Path
    megabytes: float


def make_part(root: Path, name: str, documents: list[str], processes: int, *, padding: str = "") -> Part:
    part = Part(root / f"{name}.jsonl", root / name, corpus.text_bytes(documents) / 1e6)
    corpus.write_jsonl(part.file, documents, padding=padding)
    part.folder.mkdir()
    for number in range(processes):
        share = slice(number * len(documents) // processes, (number + 1) * len(documents) // processes)
        corpus.write_jsonl(part.folder / f"{number:03d}.jsonl", documents[share], padding=padding)
    return part


class Bench:
    """Runs engines, each in its own folder."""

    def __init__(self, root: Path, tokenizer: Path, tiny: Part, processes: int) -> None:
        self._root = root
        self._tokenizer = tokenizer
        self._tiny = tiny
        self._processes = processes
        self._starts: dict[tuple[str, int], Usage] = {}

    def measure(self, engine: Engine, part: Part) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """One run: its row, and that of the whole command, with start-up, of a pipeline."""
        processes = engine.processes or self._processes
        if engine.is_limit:
            arguments = (engine.peer, str(part.file), str(self._tokenizer), "-", str(processes))
            found = common.run_apart(PEERS, *arguments)
            return _row(engine, part, Usage(cpu_s=found["cpu_s"], wall_s=found["wall_s"]), found["tokens"]), None
        start = self._start(engine, processes)
        usage = self._run(engine, part, processes, "cache")
        whole = _whole_row(engine.name, part, usage)
        usage.cpu_s -= start.cpu_s
        usage.wall_s -= start.wall_s
        tokens = sum(file.stat().st_size for file in self.outputs(engine)) // 2
        return _row(engine, part, usage, tokens), whole

    def whole(self, part: Part) -> list[dict[str, Any]]:
        """Measure two whole commands with start-up: with an empty cache folder, and with what the first run stored."""
        engine = next(engine for engine in ENGINES if engine.name == "headrace")
        shutil.rmtree(self._root / "cache-whole", ignore_errors=True)
        usages = [self._run(engine, part, self._processes, "cache-whole") for _ in WHOLE]
        return [_whole_row(f"headrace, {which}", part, usage) for which, usage in zip(WHOLE, usages, strict=True)]

    def first_documents(self, engine: Engine, first: Part, row: dict[str, Any]) -> str:
        """The time of the first documents, all of which are proved, and the rate of the others."""
        cpu_s = statistics.median(self.measure(engine, first)[0]["cpu_s"] for _ in range(3))
        rate = (row["text_mb"] - first.megabytes) / (row["cpu_s"] - cpu_s)
        return f"{engine.name}: {cpu_s:.2f} CPU s for the first {NUM_PROVED:,} documents, {rate:,.1f} MB/CPU s beyond"

    def outputs(self, engine: Engine) -> list[Path]:
        """The token files that the engine wrote, in order."""
        return sorted(file for file in self._folder(engine).rglob("*") if file.suffix in (".bin", ".ds"))

    def _start(self, engine: Engine, processes: int) -> Usage:
        key = engine.name, processes
        if key not in self._starts:
            runs = [self._run(engine, self._tiny, processes, "cache") for _ in range(3)]
            median = {name: statistics.median(getattr(run, name) for run in runs) for name in ("cpu_s", "wall_s")}
            self._starts[key] = Usage(**median)
        return self._starts[key]

    def _run(self, engine: Engine, part: Part, processes: int, cache: str) -> Usage:
        folder = self._folder(engine)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        output, tokenizer = str(folder / "out"), str(self._tokenizer)
        if engine.peer:
            source = part.folder if engine.peer == "datatrove" else part.file
            command = [PEERS, "--one", engine.peer, str(source), tokenizer, output, str(processes)]
        else:
            command = ["-m", "headrace", "prepare", str(part.file), "--output", output, "--tokenizer", tokenizer,
                       "--append-eod", "--shard-tokens", "none", "--quiet", "--workers", str(processes),
                       *engine.options]  # fmt: skip
        environment = {**ENVIRONMENT, "HEADRACE_CACHE": str(self._root / cache)}
        return watch([sys.executable, "-W", "ignore", *command], folder, environment)

    def _folder(self, engine: Engine) -> Path:
        return self._root / f"engine-{ENGINES.index(engine)}"


def _whole_row(name: str, part: Part, usage: Usage) -> dict[str, Any]:
    return {
        "engine": name,
        "text": f"{part.file.stem.partition('-')[2]} MB",
        "mb_per_cpu_s": part.megabytes / usage.cpu_s,
        "cpu_s": usage.cpu_s,
        "wall_s": usage.wall_s,
    }


def _row(engine: Engine, part: Part, usage: Usage, tokens: int) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "mb_per_cpu_s": part.megabytes / usage.cpu_s,
        "cpu_s": usage.cpu_s,
        "mb_per_s": part.megabytes / usage.wall_s,
        "peak_mb": "" if engine.is_limit else usage.peak_mb,
        "worst_process_mb": "" if engine.is_limit else usage.worst_mb,
        "peak_disk_of_output": "" if engine.is_limit else usage.peak_disk_mb / usage.disk_mb,
        "text_mb": part.megabytes,
        "tokens": tokens,
    }


def whole_claims(rows: list[dict[str, Any]]) -> list[str]:
    """The claims of whole commands, start-up included."""
    rate = {(row["text"], row["engine"]): row["mb_per_cpu_s"] for row in rows}
    lines = []
    for (text, which), goal in GOALS.items():
        if (text, f"headrace, {which}") not in rate:
            continue
        ours, what = rate[text, f"headrace, {which}"], f"whole command, {text}, {which}"
        lines.append(common.verdict(f"{what}, MB a CPU second, start-up included", ours, goal))
        for peer in ("Megatron's way", "datatrove"):
            if (text, peer) in rate:
                lines.append(f"       {what}, times {peer}, start-up included: {ours / rate[text, peer]:,.3g}")
    return lines


def claims(rows: dict[str, dict[str, Any]], equal: Callable[[], float]) -> list[str]:
    rate = {name: row["mb_per_cpu_s"] for name, row in rows.items()}
    ratios = [
        ("headrace, share of fastokens from memory", "headrace", "fastokens from memory", 0.5),
        ("headrace, share of it with one process each", "headrace, 1 worker", "fastokens from memory, 1 process", 0.5),
        ("headrace, times Megatron's way", "headrace", "Megatron's way", 30),
        ("headrace, times datatrove", "headrace", "datatrove", 20),
    ]
    lines = [
        common.verdict(what, rate[mine] / rate[theirs], bar)
        for what, mine, theirs, bar in ratios
        if mine in rate and theirs in rate
    ]
    ours = [row for name, row in rows.items() if name.startswith("headrace")]
    if ours:
        largest = [row for row in ours if row["text_mb"] == max(one["text_mb"] for one in ours)]
        worst = max(row["worst_process_mb"] for row in ours)
        disk = max(row["peak_disk_of_output"] for row in largest)
        lines.append(common.verdict("memory of headrace's largest process, MB", worst, 400, at_most=True))
        lines.append(common.verdict("peak of headrace's disk, times its output", disk, 1.1, at_most=True))
        counts = {row["tokens"] for row in largest}
        lines.append(common.verdict("different numbers of tokens among headrace's runs", len(counts), 1, at_most=True))
    lines.append(common.verdict("pipelines with other tokens than the first", equal(), 0, at_most=True))
    return lines


def count_different(bench: Bench, engines: list[Engine], scratch: Path) -> int:
    """The pipelines whose tokens differ from those of the first, compared as far as both have tokens."""
    contents = []
    for number, engine in enumerate(engines):
        path = scratch / f"{number}.tokens"
        with path.open("wb") as file:
            for output in bench.outputs(engine):
                with output.open("rb") as source:
                    shutil.copyfileobj(source, file)
        contents.append(path)
    shortest = min(path.stat().st_size for path in contents)
    for path in contents:
        with path.open("r+b") as file:
            file.truncate(shortest)
    return sum(not filecmp.cmp(contents[0], path, shallow=False) for path in contents[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little text, one round: whether it runs")
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--small-megabytes", default="30,100", help="of whole commands; slow engines get the first")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default=";".join(engine.name for engine in ENGINES), help="separated by ;")
    parser.add_argument("--folder", action="append", default=[], help="search this one for text as well")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.small_megabytes, options.rounds = 8, "2,4", 1
    names = [name.strip() for name in options.engines.split(";")]
    engines = [engine for engine in ENGINES if engine.name in names]
    found: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    wholes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        root = Path(folder)
        documents = corpus.gather(options.megabytes, options.folder)
        corpus.train_tokenizer(root / "tokenizer.json", documents)

        a_megabyte = len(documents) * 1e6 / corpus.text_bytes(documents)
        whole = make_part(root, "whole", documents, options.processes)
        smalls = [
            make_part(root, f"small-{text}", documents[: max(1, round(float(text) * a_megabyte))], options.processes)
            for text in options.small_megabytes.split(",")
        ]
        # Large enough for every process to get a record, and to start.
        padding = "x" * (2 << 20)
        tiny = make_part(root, "tiny", documents[: 2 * options.processes], options.processes, padding=padding)
        first = make_part(root, "first", documents[:NUM_PROVED], options.processes)
        del documents
        bench = Bench(root, root / "tokenizer.json", tiny, options.processes)
        for _ in range(options.rounds):
            for engine in engines:
                more = [row for small in smalls for row in bench.whole(small)] if engine.name == "headrace" else []
                row, started = bench.measure(engine, smalls[0] if engine.is_slow else whole)
                found[engine.name].append(row)
                for row in more + ([started] if started and engine.is_slow else []):
                    wholes.setdefault((row["text"], row["engine"]), []).append(row)
        rows = {name: common.medians(measured) for name, measured in found.items()}
        whole_rows = sorted(map(common.medians, wholes.values()), key=lambda row: float(row["text"].split()[0]))
        print(common.table(list(rows.values())))
        print(common.table(whole_rows))
        ordered = [engine for engine in engines if not engine.is_limit]
        lines = claims(rows, lambda: count_different(bench, ordered, root) if ordered else 0) + whole_claims(whole_rows)
        notes = [
            bench.first_documents(engine, first, rows[engine.name])
            for engine in engines
            if not engine.is_slow and not engine.peer
        ]
    print("\n".join(notes + lines))
    result = {"rows": list(rows.values()), "whole_commands": whole_rows, "notes": notes, "claims": lines}
    common.save("prepare", {"options": vars(options), **result})


if __name__ == "__main__":
    main()
