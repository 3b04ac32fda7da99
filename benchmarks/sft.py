"""Conversations in JSONL to a store of ids and loss masks: Headrace, TRL and `datasets`, in CPU seconds.

    python benchmarks/sft.py [--quick] [--conversations 10000] [--slow-conversations 400]
                             [--whole-conversations 20000] [--rounds 3] [--models "a;b"] [--folder FOLDER]...

`sft_chats.py` makes conversations from real text: long ones with one to five exchanges, and short ones with one
exchange. The tokenisers are trained on the same text. The templates are those of our suite, with generation blocks,
which Hugging Face's mask needs. Before anything is timed, the ids and masks of all engines are compared, conversation
by conversation. The recipe says ``straddle: train``, which is what Hugging Face does.

Everything runs in one process. Start-up is not counted. The peers measure their time after it; for Headrace, the time
of a run over a few conversations is subtracted. The proof over the data, a hundredth of the text, counts as work. Every
run is a fresh process, and the engines take turns. Slow engines get the first part of the same conversations.

The whole commands show what a user sees, for the first model: all CPU seconds of all processes, including imports and
loading, over ``--whole-conversations`` short ones and a fourth as many long ones. Headrace has probed the tokeniser in
an earlier run. `datasets` is `datasets.map` over whole batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import corpus
import numpy as np
import sft_chats
from sft_chats import MODELS, SHAPES, Model
from watch import watch

REASONS = {
    "whole command, short": (
        "20,000 short conversations are 14 MB: imports, the tokeniser and the processes that render templates take"
        " two fifths of the time, and rendering and masks most of the rest."
    ),
    "whole command": "Imports, the tokeniser and the processes that render templates take nearly half of the time.",
    "Unigram|Metaspace": "Only `tokenizers` encodes this kind of tokeniser, in both.",
    "short: times": "Little is encoded; rendering the template and checking the masks take most of the time.",
    "times": "The proof counts as work, which encodes a hundredth of the text with the slow library, too.",
}
DEPENDS = (
    "The ratios depend on the length of the conversations and on the tokeniser: byte-level BPE has fast libraries, and"
    " the others are encoded by the same library in all."
)
PEERS = str(Path(__file__).parent / "sft_peers.py")
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
NUM_FEW = 8


@dataclasses.dataclass(frozen=True)
class Engine:
    """One row for each model and shape."""

    name: str
    options: tuple[str, ...] = ()
    """Options of ``headrace prepare``."""
    peer: str = ""
    is_slow: bool = True


ENGINES = [
    Engine("headrace", is_slow=False),
    Engine("headrace with tokenizers", ("--backend", "tokenizers")),
    Engine("TRL", peer="trl"),
    Engine("datasets, batched", peer="datasets"),
]


@dataclasses.dataclass(frozen=True)
class Part:
    """A file of conversations."""

    file: Path
    conversations: int
    megabytes: float


class Bench:
    """Runs engines for one model."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder
        self._starts: dict[tuple[str, Path], float] = {}

    def cpu_s(self, engine: Engine, part: Part, few: Part) -> float:
        """CPU seconds of one run, without start-up."""
        if engine.peer:
            found = common.run_apart(PEERS, engine.peer, str(part.file), str(self._folder), str(self._output(engine)))
            return float(found["cpu_s"])
        key = engine.name, few.file
        if key not in self._starts:
            self._starts[key] = sorted(self._run(engine, few) for _ in range(3))[1]
        return self._run(engine, part) - self._starts[key]

    def whole_cpu_s(self, engine: Engine, part: Part) -> float:
        """CPU seconds of the whole command, from the start of the interpreter on."""
        if engine.peer:
            command = [PEERS, "--one", engine.peer, str(part.file), str(self._folder), "-"]
            return watch([sys.executable, "-W", "ignore", *command], self._root, ENVIRONMENT).cpu_s
        return self._run(engine, part)

    def made(self, engine: Engine, part: Part) -> dict[str, np.ndarray[Any, Any]]:
        """The ids, masks and lengths that the last run of an engine made."""
        if engine.peer:
            return dict(np.load(f"{self._output(engine)}.npz"))
        from headrace.stores import open_keys

        stores = open_keys(self._output(engine))
        tokens, mask = stores["tokens"], stores["loss_mask"]
        return {
            "ids": tokens.fetch(0, tokens.num_tokens).astype(np.int64),
            "mask": mask.fetch(0, mask.num_tokens) == 1,
            "lengths": np.asarray(tokens.lengths),
        }

    def _run(self, engine: Engine, part: Part) -> float:
        output, recipe = self._output(engine), self._root / "recipe.json"
        shutil.rmtree(output, ignore_errors=True)
        asked = {
            "type": "sft",
            "inputs": [{"paths": str(part.file), "layout": "messages"}],
            "tokenizer": str(self._folder),
            "mask": {"straddle": "train"},
        }
        recipe.write_text(json.dumps(asked))
        command = ["-m", "headrace", "prepare", "--recipe", str(recipe), "--output", str(output),
                   "--shard-tokens", "none", "--quiet", "--workers", "1", *engine.options]  # fmt: skip
        environment = {**ENVIRONMENT, "HEADRACE_CACHE": str(self._root / "cache")}
        return watch([sys.executable, "-W", "ignore", *command], self._root, environment).cpu_s

    def _output(self, engine: Engine) -> Path:
        return self._root / f"engine-{ENGINES.index(engine)}"


def different(bench: Bench, part: Part, few: Part) -> int:
    """The conversations for which some engine makes other ids, or another mask, than the first engine."""
    odd: set[int] = set()
    first: dict[str, np.ndarray[Any, Any]] | None = None
    for engine in ENGINES:
        bench.cpu_s(engine, part, few)
        made = bench.made(engine, part)
        if first is None:
            first = made
        rows = [np.split(one["ids"] * 2 + one["mask"], np.cumsum(one["lengths"])[:-1]) for one in (first, made)]
        if len(rows[0]) != len(rows[1]):
            return part.conversations
        odd |= {number for number, pair in enumerate(zip(*rows, strict=True)) if not np.array_equal(*pair)}
    return len(odd)


def claims(rows: list[dict[str, Any]], num_different: int) -> list[str]:
    rate = {(row["model"], row["shape"], row["engine"]): row["per_cpu_s"] for row in rows}
    lines = [
        common.verdict("conversations with other ids or another mask", num_different, 0, at_most=True),
    ]
    for model, shape in dict.fromkeys((row["model"], row["shape"]) for row in rows):
        bar = 10 if model.startswith("byte-level") else 2
        ours = rate[model, shape, "headrace"]
        lines.append(common.verdict(f"{model}, {shape}: times TRL", ours / rate[model, shape, "TRL"], bar))
        batched = ours / rate[model, shape, "datasets, batched"]
        lines.append(f"       {model}, {shape}: times datasets.map over whole batches: {batched:,.3g}")
    return lines


def whole_claims(rows: list[dict[str, Any]]) -> list[str]:
    """The claims from the rows of whole commands."""
    took = {(row["shape"], row["engine"]): row["cpu_s"] for row in rows}
    bars = {
        ("chat", "TRL"): 8,
        ("chat", "datasets, batched"): 7,
        ("short", "TRL"): 4.5,
        ("short", "datasets, batched"): 3,
    }
    lines = []
    for (shape, peer), bar in bars.items():
        name = {"datasets, batched": "datasets.map"}.get(peer, peer)
        what = f"whole command, {shape}, times {name}, start-up included"
        lines.append(common.verdict(what, took[shape, peer] / took[shape, "headrace"], bar))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few conversations, one round: whether it runs")
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--slow-conversations", type=int, default=400)
    parser.add_argument("--whole-conversations", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=MODELS[0].name, help=f"of {'; '.join(model.name for model in MODELS)}")
    parser.add_argument("--folder", action="append", default=[], help="search this one for text as well")
    options = parser.parse_args()
    if options.quick:
        options.conversations, options.slow_conversations, options.rounds = 400, 40, 1
        options.whole_conversations = 400
    names = [name.strip() for name in options.models.split(";")]
    rows: list[dict[str, Any]] = []
    whole_rows: list[dict[str, Any]] = []
    num_different = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        root = Path(name)
        documents = corpus.gather(5e-3 * options.conversations, options.folder)
        parts = {shape: _parts(root, documents, shape, options) for shape in SHAPES}
        for number, model in enumerate(model for model in MODELS if model.name in names):
            folder = sft_chats.make_tokenizer(root / f"tokenizer-{number}", model, documents)
            bench = Bench(root, folder)
            for shape, (whole, slow, few) in parts.items():
                num_different += different(bench, slow, few)
                rows += _measured(bench, model, shape, (whole, slow, few), options.rounds)
                print(common.table(rows[-len(ENGINES) :]), flush=True)
                if not number:
                    number_of = options.whole_conversations // (4 if shape == "chat" else 1)
                    part = _part(root, documents, shape, number_of)
                    whole_rows += _whole(bench, shape, part, options.rounds)
        print(common.table(whole_rows), flush=True)
    lines = claims(rows, num_different) + whole_claims(whole_rows)
    print("\n".join(lines))
    common.save("sft", {"options": vars(options), "rows": rows, "whole_commands": whole_rows, "claims": lines})


def _parts(root: Path, documents: list[str], shape: str, options: argparse.Namespace) -> tuple[Part, Part, Part]:
    """Write all conversations, the first ones for slow engines, and a few to measure start-up."""
    # Slow engines get more of the short ones, or there would be too little to measure.
    slow = options.slow_conversations * (1 if shape == "chat" else 5)
    whole, slow_part, few = (_part(root, documents, shape, count) for count in (options.conversations, slow, NUM_FEW))
    return whole, slow_part, few


def _part(root: Path, documents: list[str], shape: str, count: int) -> Part:
    file = root / f"{shape}-{count}.jsonl"
    _, size = sft_chats.write_jsonl(file, sft_chats.conversations(documents, SHAPES[shape], count))
    return Part(file, count, size / 1e6)


def _whole(bench: Bench, shape: str, part: Part, rounds: int) -> list[dict[str, Any]]:
    """The rows of whole commands, for all engines except the one that only provides the reference."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for engine in (engine for engine in ENGINES if not engine.options):
            cpu_s = bench.whole_cpu_s(engine, part)
            row = {"engine": engine.name, "shape": shape, "cpu_s": cpu_s, "conversations": part.conversations}
            found.setdefault(engine.name, []).append(row)
    return [common.medians(measured) for measured in found.values()]


def _measured(
    bench: Bench, model: Model, shape: str, parts: tuple[Part, Part, Part], rounds: int
) -> list[dict[str, Any]]:
    whole, slow, few = parts
    found: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine in ENGINES:
            part = slow if engine.is_slow else whole
            cpu_s = bench.cpu_s(engine, part, few)
            found[engine.name].append(
                {
                    "engine": engine.name,
                    "model": model.name,
                    "shape": shape,
                    "per_cpu_s": part.conversations / cpu_s,
                    "mb_per_cpu_s": part.megabytes / cpu_s,
                    "cpu_s": cpu_s,
                    "conversations": part.conversations,
                    "text_mb": part.megabytes,
                }
            )
    return [common.medians(measured) for measured in found.values()]


if __name__ == "__main__":
    main()
