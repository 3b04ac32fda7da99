"""``headrace info --pack``: what each strategy makes of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import made
from headrace.inspect import description
from headrace.plan.packing import plan_packs
from headrace.stores import IndexedWriter

LENGTHS = np.array([3, 3, 2, 9, 0, 4])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.add_documents(np.zeros(LENGTHS.sum(), np.uint16), LENGTHS)
        writer.finish()
    return tmp_path / "a"


def test_for_people(run: Any, store: Path) -> None:
    result = run("info", store, "--pack", 4, "--pack", 16)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{store}: 6 documents, 21 tokens",
        "",
        "packs of 4 tokens",
        "  1 document is longer (16.67%), up to 9 tokens: best_fit_split and wrapped cut, the others truncate here",
        "        strategy  packs     fill  documents a pack  documents cut  tokens lost",
        "          greedy      5  80.000%               1.0         16.67%       23.81%",
        "        best_fit      5  80.000%               1.0         16.67%       23.81%",
        "  best_fit_split      6  87.500%               0.8         16.67%        0.00%",
        "       first_fit      5  80.000%               1.0         16.67%       23.81%",
        "         wrapped      6  87.500%               0.8         50.00%        0.00%",
        "",
        "packs of 16 tokens",
        "  no document is longer: the longest has 9",
        "        strategy  packs     fill  documents a pack  documents cut  tokens lost",
        "          greedy      2  65.625%               2.5          0.00%        0.00%",
        "        best_fit      2  65.625%               2.5          0.00%        0.00%",
        "  best_fit_split      2  65.625%               2.5          0.00%        0.00%",
        "       first_fit      2  65.625%               2.5          0.00%        0.00%",
        "         wrapped      2  65.625%               2.5         16.67%        0.00%",
    ]


def test_json_equals_the_plans(run: Any, store: Path) -> None:
    found = json.loads(run("info", store, "--pack", 4, "--json").stdout)
    assert (found["path"], found["key"], found["documents"], found["tokens"]) == (str(store), "tokens", 6, 21)
    (packs,) = found["packs"]
    assert (packs["max_seq_len"], packs["over_long_documents"], packs["longest"]) == (4, 1, 9)
    for figures in packs["strategies"]:
        packing = headrace.Packing(seq_len=4, strategy=figures["strategy"], over_long=figures["over_long"])
        ledger = plan_packs(LENGTHS, packing).ledger
        assert (figures["packs"], figures["fill"]) == (ledger.num_packs, ledger.fill)
        assert (figures["documents"], figures["lost_tokens"]) == (6, ledger.lost_tokens)


def test_first_fit_looks_at_the_first_documents(run: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "FIRST_FIT_DOCUMENTS", 3)
    lines = run("info", store, "--pack", 4).stdout.splitlines()
    assert lines[-1] == "  (first_fit: only of the first 3 documents)"
    assert "       first_fit      3  66.667%               1.0          0.00%        0.00%" in lines


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_the_key_that_is_packed(run: Any, tmp_path: Path, layout: str) -> None:
    folder = made.two_keys(tmp_path / "store", layout)
    for chosen, name, tokens in (((), "title", 3), (("--key", "title"), "title", 3), (("--key", "body"), "body", 10)):
        found = json.loads(run("info", folder, "--pack", 8, *chosen, "--json").stdout)
        assert (found["key"], found["tokens"], found["packs"][0]["tokens"]) == (name, tokens, tokens)
    wrong = run("info", folder, "--pack", 8, "--key", "none")
    assert wrong.exit_code == 2
    assert "no key 'none'; its keys are 'title', 'body'" in wrong.stderr


def test_what_is_refused(run: Any, store: Path) -> None:
    for arguments, said in (
        (("--pack", 0), "seq_len is 0; allowed are 1 to"),
        (("--pack", 8, "--pack", 1 << 30), "seq_len is 1073741824"),
        (("--key", "tokens"), "needs --pack N: add it"),
    ):
        result = run("info", store, *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
    assert run("info", store.parent / "nowhere", "--pack", 8).exit_code == 4


def test_an_empty_store(run: Any, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.finish()
    found = json.loads(run("info", tmp_path / "a", "--pack", 8, "--json").stdout)
    assert [figures["packs"] for figures in found["packs"][0]["strategies"]] == [0] * 5
    assert "no document is longer" in run("info", tmp_path / "a", "--pack", 8).stdout
