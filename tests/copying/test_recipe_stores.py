"""Copies of the stores of recipes count as the first manifest did; finished files are those of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import faults
import headrace
import prepared_made
import recipe_runs as runs
from headrace.copying import CopyOptions
from headrace.stores import Ledger, SampleLedger, load_manifest

KINDS: dict[str, tuple[str, list[Any], tuple[str, ...]]] = {
    "sft": (runs.SFT + "output: {position_ids: doc_reset}\n", runs.conversations(30), ("loss_mask",)),
    "dpo": (runs.DPO, runs.pairs(30), ("chosen_mask", "rejected_mask")),
    "grpo": (runs.GRPO + "output: {names: {masks: trained}}\n", runs.groups(30), ("trained",)),
}


@pytest.fixture
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


def samples(ledger: Ledger) -> SampleLedger:
    assert ledger.samples is not None
    return ledger.samples


@pytest.mark.usefixtures("small_run")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["indexed", "keyed", "jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_count_as_the_first_manifest_did(tmp_path: Path, kind: str, layout: str) -> None:
    recipe, records, masks = KINDS[kind]
    runs.make_model(tmp_path / "model")
    runs.write_lines(tmp_path / "data" / "a.jsonl", records)
    recipe = recipe.replace("output: {", "output: {format: %s, " % layout)  # noqa: UP031 - braces
    recipe += "" if "output" in recipe else f"output: {{format: {layout}}}\n"
    first = runs.prepare(recipe, tmp_path, tmp_path / "first").ledger
    assert samples(first).supervised > 0

    headrace.convert(tmp_path / "first", tmp_path / "keyed", format="keyed")
    copy = load_manifest(tmp_path / "keyed")
    assert copy.ledger.tokens.kept == first.tokens.kept
    assert {key: one.kept for key, one in samples(copy.ledger).keys.items()} == {
        key: one.kept for key, one in samples(first).keys.items()
    }
    assert samples(copy.ledger).supervised == samples(first).supervised
    assert {key for shard in copy.outputs for key, info in shard.keys.items() if info.mask} == set(masks)

    # Parts, of copies of a copy, each with its own share; and together again.
    headrace.split(tmp_path / "keyed", tmp_path / "parts", into=3)
    parts = [load_manifest(place).ledger for place in sorted((tmp_path / "parts").iterdir()) if place.is_dir()]
    assert len(parts) == 3
    assert sum(part.tokens.kept for part in parts) == first.tokens.kept
    for number, part in enumerate(parts):
        with headrace.open(sorted((tmp_path / "parts").iterdir())[number]) as store:
            trained = sum(int(np.count_nonzero(store.document(at, key))) for at in range(len(store)) for key in masks)
        assert samples(part).supervised == trained
    places = [tmp_path / "first", tmp_path / "keyed"]
    headrace.merge(places, tmp_path / "both", options=CopyOptions(format="indexed"))
    both = load_manifest(tmp_path / "both").ledger
    assert (both.tokens.kept, samples(both).supervised) == (2 * first.tokens.kept, 2 * samples(first).supervised)


GOLDEN = Path(__file__).parents[1] / "golden" / "prepared.json"


def test_finished_files_are_those_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, known = prepared_made.made(), json.loads(GOLDEN.read_text())
    assert sorted(found) == sorted(known)
    for name, files in known.items():
        assert found[name] == files, name
