"""A bit is flipped in every file of a store: ``headrace check`` finds it, or says that nobody vouches for the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import corpora
import headrace
import recipe_runs
import shards_made
from copies_made import drawn
from counts import cases
from headrace.copying import convert, merge, split
from headrace.datasets.packed_sequences import plan_name
from headrace.preparing import OutputOptions, TextOptions, TokenOptions, prepare_text
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.preparing.shards import ShardOptions
from headrace.testing.damage import other_byte
from tars_made import write_tar

TOKENS: Final = TokenOptions(append_eod=True, backend="tokenizers")


def text(**output: Any) -> Callable[[Path, Path, Path], Path]:
    def make(folder: Path, corpus: Path, tokenizer: Path) -> Path:
        options = TextOptions(tokens=TOKENS, output=OutputOptions(**output), workers=1)
        prepare_text([corpus], folder / "out", tokenizer=tokenizer, options=options)
        return folder / "out"

    return make


def domains(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    recipe_runs.make_model(folder / "model")
    recipe_runs.write_lines(folder / "data" / "a.jsonl", recipe_runs.conversations(30))
    recipe_runs.prepare(recipe_runs.SFT + "output: {domain_key: source}\n", folder, folder / "out")
    return folder / "out"


def new_tars(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(12):
        (folder / "in" / f"{number}.jpg").write_bytes(shards_made.image(number))
        (folder / "in" / f"{number}.txt").write_text(f"number {number}")
    with shards_made.inline():
        shards_made.prepare(folder / "in", folder / "out", ShardOptions())
    return folder / "out"


def tars_in_place(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    for shard in range(2):
        write_tar(folder / "ds" / f"{shard}.tar", [(f"{shard}{n}.txt", b"some text" * 30) for n in range(5)])
    options = EnergonOptions(split=SplitChoice(ratio=(1, 1, 0)), workers=1)
    prepare_energon(folder / "ds", options=options)
    return folder / "ds"


def plan(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    corpora.write(folder / "a", [np.arange(length) for length in (50, 3, 20, 7, 9, 31, 12)])
    store, packing = headrace.open(folder / "a"), headrace.Packing(seq_len=20, over_long="split")
    headrace.PackedSequenceDataset(store, packing, plan_folder=folder / "plans")
    return folder / "plans" / plan_name(store, packing)


def merged(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    merge([drawn(folder / "a", 1, 20), drawn(folder / "b", 2, 20)], folder / "out")
    return folder / "out"


def converted(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    convert(text()(folder, corpus, tokenizer), folder / "keyed", format="keyed")
    return folder / "keyed"


def divided(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    split(text()(folder, corpus, tokenizer), folder / "parts", into="8,1,1")
    return folder / "parts" / "train"


def raw(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    drawn(folder / "raw" / "a", 1, 20)
    return folder / "raw"


STORES: Final[dict[str, Callable[[Path, Path, Path], Path]]] = {
    "plain": text(),
    "in shards": text(shard_tokens=9000),
    "keyed": text(format="keyed"),
    "domains": domains,
    "new tars": new_tars,
    "tars in place": tars_in_place,
    "a kept plan": plan,
    "merged": merged,
    "converted": converted,
    "split": divided,
    "raw": raw,
}
UNVOUCHED: Final = {
    "new tars": {"dataset.yaml", "split.yaml"},
    "tars in place": {"0.tar", "1.tar", "dataset.yaml", "split.yaml"},
    "raw": {"a.bin", "a.idx"},
}
"""What is people's to edit, or would have to be read for nothing but its hash."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.mark.parametrize("name", STORES)
def test_a_flipped_bit_in_every_file(name: str, tmp_path: Path, corpus: Path, tokenizer: Path, run: Any) -> None:
    root = STORES[name](tmp_path, corpus, tokenizer)
    whole = json.loads(run("check", root, "--json").stdout)
    assert whole["ok"]
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    unvouched = {Path(file).name for file in whole.get("unvouched", ())}
    if whole.get("hashed") is False and "unvouched" not in whole:
        unvouched = {file.name for file in files}
    assert unvouched == UNVOUCHED.get(name, set())
    rng = random.Random(name)
    for file in files:
        if file.name in unvouched:
            continue
        content = file.read_bytes()
        for _ in range(cases(1, 40)):
            at, bit = rng.randrange(len(content)), rng.randrange(8)
            with other_byte(file, at, content[at] ^ 1 << bit):
                found = run("check", root, "--json")
            assert found.exit_code in (1, 4), f"bit {bit} of byte {at:,} of {file.relative_to(root)}"
            assert file.name in found.output, f"bit {bit} of byte {at:,} of {file.relative_to(root)}: {found.output}"
    shutil.rmtree(tmp_path)


def test_a_damaged_state_is_told_and_made_anew(tmp_path: Path, corpus: Path, tokenizer: Path, run: Any) -> None:
    root = tars_in_place(tmp_path, corpus, tokenizer)
    (root / ".nv-meta" / "headrace.json").write_text("[" * 100_000)
    assert "damaged" in run("check", root).stdout
    assert prepare_energon(root, options=EnergonOptions(workers=1)).read == 2
    assert run("check", root).exit_code == 0
