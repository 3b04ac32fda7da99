"""What each command prints with ``--json``, and what planned jobs keep, of small fixed inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import prepared_made
from headrace import Blend, Order, Run, WindowDataset
from headrace.cli import main
from headrace.loader import Loader, Reading
from headrace.tracing import save_run

MODEL = ("--tokenizer", "model", "--backend", "tokenizers", "--workers", "1")
RECIPE = ("--backend", "tokenizers", "--workers", "1")
TEXT = f"prepare text ./text --output made/text {' '.join(MODEL)} --append-eod --eod <eos> --id-field id"
CACHES = "--set sequence_length=16 --samples 40,0,0 --seed 1 --tokenizer ids.json --output caches"
TABLE = ("rows/table.jsonl", "--id-field", "id", "--part", "jpg=path:file")
COMMANDS: dict[str, str] = {
    "prepare text, dry run": f"prepare text ./text --output made/text {' '.join(MODEL)} --dry-run",
    "prepare text": TEXT,
    "prepare text, again": TEXT,
    "prepare plain text": f"prepare text plain --output made/plain {' '.join(MODEL)} --bos <bos>",
    "prepare bad text": f"prepare text bad --output made/bad {' '.join(MODEL)} --on-error skip",
    "prepare torn text": f"prepare text bad --output made/torn {' '.join(MODEL)}",
    "prepare recipe": f"prepare text --recipe sft.yaml --output made/sft {' '.join(RECIPE)}",
    "prepare pairs": f"prepare text --recipe dpo.yaml --output made/dpo {' '.join(RECIPE)}",
    "prepare media": f"prepare media {' '.join(TABLE)} --part txt=column:caption --workers 1 --output made/tar",
    "prepare in place": "prepare energon tars --split-ratio 1,1,0 --workers 1",
    "render": "render sft.yaml --record 3",
    "merge": "merge made/text made/plain --output made/merged",
    "convert": "convert made/text made/keyed --format keyed",
    "split": "split made/text made/parts --split 8,1,1",
    "info": "info made/text",
    "info of records": "info made/sft",
    "info of media": "info made/tar",
    "info of packs": "info made/text --pack 64",
    "info of nothing": "info nowhere",
    "check": "check made/text",
    "check of media": "check tars --decode --workers 1",
    "check of packs": "check made/text --pack 256",
    "preview": "preview made/text --num 2",
    "preview of records": "preview made/sft --num 1",
    "preview of media": "preview made/tar --num 1 --images blocks",
    "ls": "ls made/tar",
    "cat": "cat made/tar s3",
    "where": "where made/text 5 120",
    "quarantine": "quarantine tars --key 00 --reason blurred",
    "measure": "measure tars --encoder measured_made:Grouped --set draw=3 --workers 1 --output made/facts",
    "run show": "run show run.json",
    "run edit": "run edit run.json --at-step 9 --weights text=3,plain=1 --reason decay",
    "run skip": "run skip run.json 12:14 --reason spike",
    "run undo": "run undo run.json",
    "trace step": "trace step 9 --ranks 2,micro_batch_size=2",
    "trace sample": "trace sample text 3 --until-step 40",
    "account": "account run.json --until-step 9",
    "cache plan": "cache plan run.json --limit 64KiB --block 4KiB --steps 5:20",
    "export-cache": f"export-cache made/text/text_document {CACHES}",
    "job plan": f"job plan prepare text ./text --output planned {' '.join(MODEL[:4])}",
    "job status": "job status planned",
    "job task": "job task planned --workers 1 --num 1",
    "job status, half done": "job status planned",
    "job finish": "job finish planned --workers 1",
    "copy plan": "job plan split made/text planned-parts --split 8,1,1",
    "copy task": "job task planned-parts --workers 1 --tasks 0",
    "copy status, half done": "job status planned-parts",
    "copy finish": "job finish planned-parts --workers 1",
}
"""A name, and the command, in the order in which they run; each is given --json."""


_DRAWN = re.compile(r"0x[0-9a-f]{6,}|(?<=-)[0-9a-f]{8}(?![0-9a-f])|[\w-]+\.[0-9]+\.[0-9a-f]{8}")
"""Addresses of objects, hashes of phases, to which times of files belong, and names of attempts."""
_DECODER = json.JSONDecoder()  # a hash of the object may follow it

VOLATILE = (
    "seconds",
    "finished_s",
    "host",
    "library_version",
    "headrace_version",
    "mtime_ns",
    "date",
    "software",
    "digest",
    "bytes_per_s",
    "tasks_per_s",
    "left_s",
)
"""Fields that are not the same everywhere."""


def write_run(path: str) -> None:
    """The file of a run over two of the stores, which has come to step 5."""
    children = {name: WindowDataset.open(f"made/{name}", seq_len=16) for name in ("text", "plain")}
    run = Run(Blend(children, weights={"text": 1, "plain": 1}), global_batch_size=4, order=Order(seed=7), samples=400)
    save_run(run, path, position=20)
    loader = Loader(run, micro_batch_size=4, reading=Reading(num_threads=0), position=20)
    loader.state_dict()
    loader.close()


def write_inputs() -> None:
    """Those of `prepared_made`, and the identifiers of Megatron's tokeniser."""
    prepared_made.write_inputs(Path())
    Path("ids.json").write_text(json.dumps({"class": "MegatronTokenizer", "tokenizer_path": ["model"]}))


def fixed(value: Any) -> Any:
    """A printed value without what is not the same everywhere, and with paths below the current folder."""
    if isinstance(value, dict):
        if isinstance(status := value.get("status"), list):
            value = {**value, "status": status[:2]}  # the last is when the file was written
        return {name: fixed(one) for name, one in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [fixed(one) for one in value]
    if not isinstance(value, str):
        return value
    return _DRAWN.sub("...", value.replace(str(Path.cwd()), "."))


def printed(command: str) -> dict[str, Any]:
    """The exit code of a command with --json, and what it printed on standard output."""
    done = CliRunner().invoke(main, [*command.split(), "--json"])
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return {"exit": done.exit_code, "printed": fixed(json.loads(done.stdout))}


def kept(folder: Path) -> dict[str, Any]:
    """What a planned job keeps: its plan and its receipts, by their paths."""
    files = sorted(one for one in folder.rglob("*.json") if any(".headrace" in part for part in one.parts))
    return {fixed(one.relative_to(folder).as_posix()): fixed(_DECODER.raw_decode(one.read_text())[0]) for one in files}


def made() -> dict[str, Any]:
    """What all commands print in the current folder, which is empty at first."""
    write_inputs()
    found: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        if name == "run show":
            write_run("run.json")
        found[name] = printed(command)
        if name.endswith("half done"):
            found[f"{name}: what is kept"] = kept(Path())
    return found
