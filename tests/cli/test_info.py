"""``headrace info``: the numbers of a store, and what each strategy makes of it with ``--pack``."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import made
from headrace.inspect import description
from headrace.inspect.description import histogram
from headrace.stores import IndexedWriter, KeyedWriter

GOLDEN_DIALECTS = Path(__file__).parents[1] / "golden" / "indexed_dialects"


@pytest.mark.parametrize("path", ["store", "store/", "store/text_document", "store/text_document.idx"])
def test_any_way_to_name_it(run: Any, whole: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole.parent)
    result = run("info", path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == path
    assert "  documents     100, 3 of them empty" in lines
    assert any("vocabulary 100, end of document 1," in line for line in lines)
    assert "  encoded by    fast 1.2, proved on 1,000 first documents, 7 probe texts" in lines
    assert "  order         shuffled with seed 5" in lines
    assert "  skipped       1 record (headrace.json lists them)" in lines
    assert "inputs (2)" in lines


@pytest.mark.parametrize(("layout", "shards"), [("indexed", 4), ("keyed", 2)])
def test_several_keys(run: Any, of_json: Any, tmp_path: Path, layout: str, shards: int) -> None:
    folder = made.two_keys(tmp_path / "store", layout)
    found = of_json("info", folder)
    data = [file for file in folder.rglob("*") if file.is_file() and file.name != "headrace.json"]
    assert found["bytes"] == sum(file.stat().st_size for file in data)
    text = run("info", folder).stdout
    assert f"  format      {layout}, 2 keys, {shards} shards\n  documents   3\n  tokens      13\n" in text
    for key, tokens in (("title", 3), ("body", 10)):
        line = f"key '{key}' (uint16)\n  documents     3, 1 of them empty\n  tokens        {tokens}\n"
        assert f"{line}  per document  min 0" in text
    assert text.count("lengths\n") == 2


@pytest.mark.parametrize("path", ["shard_0000", "shard_0000/meta.json"])
def test_one_keyed_shard(of_json: Any, tmp_path: Path, path: str) -> None:
    found = of_json("info", made.two_keys(tmp_path / "store", "keyed") / path)
    assert (found["documents"], found["tokens"], found["tokenizer"]["eod"]) == (2, 11, 1)


def test_a_manifest_that_speaks_of_a_pair_does_not_speak_of_a_folder(of_json: Any, tmp_path: Path) -> None:
    folder = made.one_key(tmp_path / "store")
    with KeyedWriter(folder / "text_document", dtypes={"ids": "uint8"}) as writer:
        writer.finish()
    found = of_json("info", folder / "text_document" / "meta.json")
    assert (found["format"], found["tokens"], found["tokenizer"]) == ("keyed", 0, None)
    assert of_json("info", folder / "text_document.bin")["tokenizer"]["eod"] == 1


def test_histogram_for_people(run: Any, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.add_documents(np.zeros(20, np.uint16), np.array([0, 1, 6, 13]))
        writer.finish()
    result = run("info", tmp_path / "a.bin")
    table = result.stdout.split("lengths\n")[1].splitlines()
    assert table == [
        "   tokens  documents  share  of tokens",
        "        0          1  25.0%       0.0%",
        "        1          1  25.0%       5.0%",
        "   2 to 3          0   0.0%       0.0%",
        "   4 to 7          1  25.0%      30.0%",
        "  8 to 15          1  25.0%      65.0%",
    ]
    assert "tokeniser" not in result.stdout


def test_lengths_of_a_sample(run: Any, of_json: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store is not read as a whole: what is said of a sample says so, and the sums stay exact."""
    exact = of_json("info", whole)
    for name, value in (("EXACT_DOCUMENTS", 99), ("LOOKED_AT", 64)):
        monkeypatch.setattr(description, name, value)
    found = of_json("info", whole)
    [key] = found["keys"]
    assert (found["documents"], found["tokens"], key["tokens"]) == (100, exact["tokens"], exact["tokens"])
    assert exact["keys"][0]["looked_at"] == 100
    assert key["looked_at"] == sum(bar["documents"] for bar in key["histogram"]) == 64
    text = run("info", whole).stdout
    assert "\nlengths, from 64 documents, evenly spread\n" in text
    assert f"  documents     100, {key['empty_documents']} of 64 that were looked at empty\n" in text
    shares = [line.split()[-2:] for line in text.split("evenly spread\n")[-1].split("\n\n")[0].splitlines()[1:]]
    for column in zip(*shares, strict=True):
        assert abs(sum(float(share.rstrip("%")) for share in column) - 100) < 1


def test_several_shards(of_json: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lengths = [rng.integers(0, 50, 9), rng.integers(0, 50, 6)]
    for number, chosen in enumerate(lengths):
        with IndexedWriter(tmp_path / f"{number}", dtype=np.int32) as writer:
            writer.add_documents(np.zeros(chosen.sum(), np.int32), chosen)
            writer.finish()
    found = of_json("info", tmp_path)
    together = np.concatenate(lengths)
    assert (found["shards"], found["documents"], found["tokens"]) == (2, 15, int(together.sum()))
    assert found["keys"][0]["tokens_per_document"]["median"] == float(np.median(together))
    for name in ("tokenizer", "backend", "order", "inputs", "ledger", "errors"):
        assert found[name] is None


@given(st.dictionaries(st.integers(0, 1 << 31), st.integers(1, 1 << 30), max_size=40))
def test_histogram(counts_by_length: dict[int, int]) -> None:
    lengths = np.array(sorted(counts_by_length), np.int64)
    counts = np.array([counts_by_length[length] for length in sorted(counts_by_length)], np.int64)
    bars = histogram(lengths, counts)
    for bar in bars:
        inside = [length for length in counts_by_length if bar.first <= length <= bar.last]
        assert bar.documents == sum(counts_by_length[length] for length in inside)
        assert bar.tokens == sum(length * counts_by_length[length] for length in inside)
    assert sum(bar.documents for bar in bars) == counts.sum()
    assert all(before.last + 1 == after.first for before, after in itertools.pairwise(bars))


def test_packs_of_nothing(of_json: Any, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "empty", dtype=np.uint16) as writer:
        writer.finish()
    found = of_json("info", tmp_path / "empty", "--pack", 8)
    assert [figures["packs"] for figures in found["packs"][0]["strategies"]] == [0] * 5


def test_who_wrote_a_pair_is_an_option(run: Any, tmp_path: Path) -> None:
    """NeoX's merge loses the documents: info and check say how to open it, and do."""
    for suffix in (".bin", ".idx"):
        shutil.copy(GOLDEN_DIALECTS / f"neox-merged{suffix}", tmp_path / f"x{suffix}")
    for command in ("info", "check"):
        refused = run(command, tmp_path / "x")
        assert refused.exit_code in (1, 4)
        assert "sequences" in refused.output + refused.stderr
        with pytest.warns(UserWarning, match="documents"):
            done = run(command, tmp_path / "x", "--documents", "sequences")
        assert done.exit_code == 0, done.output
    wrong = run("info", tmp_path / "x", "--dialect", "bert")
    assert wrong.exit_code == 2
    assert "megatron" in wrong.stderr


LENGTHS = np.array([3, 3, 2, 9, 0, 4])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.add_documents(np.zeros(LENGTHS.sum(), np.uint16), LENGTHS)
        writer.finish()
    return tmp_path / "a"


def test_packs_for_people(run: Any, store: Path) -> None:
    result = run("info", store, "--pack", 4, "--pack", 16)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:-6] == [
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
    ]
    assert lines[-1] == "         wrapped      2  65.625%               2.5         16.67%        0.00%"


def test_first_fit_looks_at_the_first_documents(run: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "FIRST_FIT_DOCUMENTS", 3)
    lines = run("info", store, "--pack", 4).stdout.splitlines()
    assert lines[-1] == "  (first_fit: only of the first 3 documents)"
    assert "       first_fit      3  66.667%               1.0          0.00%        0.00%" in lines


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_the_key_that_is_packed(run: Any, of_json: Any, tmp_path: Path, layout: str) -> None:
    folder = made.two_keys(tmp_path / "store", layout)
    for chosen, name, tokens in (((), "title", 3), (("--key", "title"), "title", 3), (("--key", "body"), "body", 10)):
        found = of_json("info", folder, "--pack", 8, *chosen)
        assert (found["key"], found["tokens"], found["packs"][0]["tokens"]) == (name, tokens, tokens)
