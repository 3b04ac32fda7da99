"""``headrace info``: the numbers of a store."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import headrace
import made
from headrace.cli import main
from headrace.inspect import description
from headrace.inspect.description import histogram
from headrace.stores import IndexedWriter, KeyedWriter

GOLDEN_DIALECTS = Path(__file__).parents[1] / "golden" / "indexed_dialects"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.one_key(tmp_path_factory.mktemp("prepared") / "store")


def test_json_equals_the_store(run: Any, prepared: Path) -> None:
    found = json.loads(run("info", prepared, "--json").stdout)
    with headrace.open(prepared) as store:
        lengths = store.lengths
    assert (found["format"], found["shards"]) == ("indexed", 1)
    assert (found["documents"], found["tokens"]) == (100, int(lengths.sum()))
    (key,) = found["keys"]
    assert (key["name"], key["dtype"], key["documents"], key["tokens"]) == ("text", "uint16", 100, found["tokens"])
    assert key["empty_documents"] == int((lengths == 0).sum()) == 3
    assert key["tokens_per_document"] == {
        "min": 0,
        "median": float(np.median(lengths)),
        "mean": float(lengths.mean()),
        "max": int(lengths.max()),
    }
    assert found["tokenizer"]["vocab_size"] == made.VOCAB_SIZE
    assert [file["path"] for file in found["inputs"]] == list(made.INPUTS)
    assert (found["backend"]["name"], found["order"], found["errors"]) == ("fast", {"kind": "shuffle", "seed": 5}, 1)
    assert found["ledger"]["documents"]["read"] == 101
    assert sum(bar["documents"] for bar in key["histogram"]) == 100
    assert sum(bar["tokens"] for bar in key["histogram"]) == found["tokens"]
    assert found["bytes"] == sum((prepared / f"text_document.{end}").stat().st_size for end in ("bin", "idx"))


@pytest.mark.parametrize("path", ["store", "store/", "store/text_document", "store/text_document.idx"])
def test_any_way_to_name_it(run: Any, prepared: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared.parent)
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


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_several_keys(run: Any, tmp_path: Path, layout: str) -> None:
    folder = made.two_keys(tmp_path / "store", layout)
    found = json.loads(run("info", folder, "--json").stdout)
    shards = 4 if layout == "indexed" else 2
    assert (found["format"], found["shards"], found["documents"], found["tokens"]) == (layout, shards, 3, 13)
    keys = {key["name"]: key for key in found["keys"]}
    assert {name: (key["documents"], key["empty_documents"], key["tokens"]) for name, key in keys.items()} == {
        "title": (3, 1, 3),
        "body": (3, 1, 10),
    }
    assert keys["body"]["tokens_per_document"]["max"] == 6
    data = [file for file in folder.rglob("*") if file.is_file() and file.name != "headrace.json"]
    assert found["bytes"] == sum(file.stat().st_size for file in data)
    text = run("info", folder).stdout
    assert f"  format      {layout}, 2 keys, {shards} shards\n  documents   3\n  tokens      13\n" in text
    assert "key 'title' (uint16)\n  documents     3, 1 of them empty\n  tokens        3\n  per document  min 0" in text
    assert "key 'body' (uint16)" in text
    assert text.count("lengths\n") == 2


@pytest.mark.parametrize("path", ["shard_0000", "shard_0000/meta.json"])
def test_one_keyed_shard(run: Any, tmp_path: Path, path: str) -> None:
    folder = made.two_keys(tmp_path / "store", "keyed")
    found = json.loads(run("info", folder / path, "--json").stdout)
    assert (found["documents"], found["tokens"], found["tokenizer"]["eod"]) == (2, 11, 1)


def test_a_manifest_that_speaks_of_a_pair_does_not_speak_of_a_folder(run: Any, tmp_path: Path) -> None:
    folder = made.one_key(tmp_path / "store")
    with KeyedWriter(folder / "text_document", dtypes={"ids": "uint8"}) as writer:
        writer.finish()
    found = json.loads(run("info", folder / "text_document" / "meta.json", "--json").stdout)
    assert (found["format"], found["tokens"], found["tokenizer"]) == ("keyed", 0, None)
    assert json.loads(run("info", folder / "text_document.bin", "--json").stdout)["tokenizer"]["eod"] == 1


def test_histogram_for_people(run: Any, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.add_documents(np.zeros(1111, np.uint16), np.array([0, 1, 3, 107, 1000]))
        writer.finish()
    result = run("info", tmp_path / "a.bin")
    table = result.stdout.split("lengths\n")[1].splitlines()
    assert table == [
        "        tokens  documents  share  of tokens",
        "             0          1  20.0%       0.0%",
        "             1          1  20.0%       0.1%",
        "        2 to 3          1  20.0%       0.3%",
        "        4 to 7          0   0.0%       0.0%",
        "       8 to 15          0   0.0%       0.0%",
        "      16 to 31          0   0.0%       0.0%",
        "      32 to 63          0   0.0%       0.0%",
        "     64 to 127          1  20.0%       9.6%",
        "    128 to 255          0   0.0%       0.0%",
        "    256 to 511          0   0.0%       0.0%",
        "  512 to 1,023          1  20.0%      90.0%",
    ]
    assert "tokeniser" not in result.stdout


def test_lengths_of_a_sample(run: Any, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store is not read as a whole: what is said of a sample says so, and the sums stay exact."""
    whole = json.loads(run("info", prepared, "--json").stdout)
    for name, value in (("EXACT_DOCUMENTS", 99), ("LOOKED_AT", 64)):
        monkeypatch.setattr(description, name, value)
    found = json.loads(run("info", prepared, "--json").stdout)
    [key] = found["keys"]
    assert (found["documents"], found["tokens"], key["tokens"]) == (100, whole["tokens"], whole["tokens"])
    assert whole["keys"][0]["looked_at"] == 100
    assert key["looked_at"] == sum(bar["documents"] for bar in key["histogram"]) == 64
    text = run("info", prepared).stdout
    assert "\nlengths, from 64 documents, evenly spread\n" in text
    assert f"  documents     100, {key['empty_documents']} of 64 that were looked at empty\n" in text
    shares = [line.split()[-2:] for line in text.split("evenly spread\n")[-1].split("\n\n")[0].splitlines()[1:]]
    for column in zip(*shares, strict=True):
        assert abs(sum(float(share.rstrip("%")) for share in column) - 100) < 1


def test_several_shards(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lengths = [rng.integers(0, 50, 9), rng.integers(0, 50, 6)]
    for number, chosen in enumerate(lengths):
        with IndexedWriter(tmp_path / f"{number}", dtype=np.int32) as writer:
            writer.add_documents(np.zeros(chosen.sum(), np.int32), chosen)
            writer.finish()
    found = json.loads(run("info", tmp_path, "--json").stdout)
    together = np.concatenate(lengths)
    assert (found["shards"], found["documents"], found["tokens"]) == (2, 15, int(together.sum()))
    assert found["keys"][0]["name"] == "tokens"
    assert found["keys"][0]["tokens_per_document"]["median"] == float(np.median(together))
    for name in ("tokenizer", "backend", "order", "inputs", "ledger", "errors"):
        assert found[name] is None


def test_nothing_there(run: Any, tmp_path: Path) -> None:
    result = run("info", tmp_path / "nowhere")
    assert result.exit_code == 4
    assert "nothing is there" in result.stderr


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


def test_who_wrote_a_pair_is_an_option(tmp_path: Path) -> None:
    """NeoX's merge loses the documents: info and check say how to open it, and do."""
    for suffix in (".bin", ".idx"):
        shutil.copy(GOLDEN_DIALECTS / f"neox-merged{suffix}", tmp_path / f"x{suffix}")
    for command in ("info", "check"):
        refused = CliRunner().invoke(main, [command, str(tmp_path / "x")])
        assert refused.exit_code in (1, 4)
        assert "sequences" in refused.output + refused.stderr
        with pytest.warns(UserWarning, match="documents"):
            done = CliRunner().invoke(main, [command, str(tmp_path / "x"), "--documents", "sequences"])
        assert done.exit_code == 0, done.output
    wrong = CliRunner().invoke(main, ["info", str(tmp_path / "x"), "--dialect", "bert"])
    assert wrong.exit_code == 2
    assert "megatron" in wrong.stderr
