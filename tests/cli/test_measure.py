"""``headrace measure``, and ``info`` and ``check`` of what it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import MeasuredDataset, Packing
from headrace.datasets import MeasuredFacts, measure
from headrace.testing.damage import other_byte
from measured_made import Grouped, Packed, numbers, opened


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers(tmp_path_factory.mktemp("cli") / "ds", 150, (3, 77))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_keeps_what_python_keeps(run: Any, flawed: Path, cache: Path, tmp_path: Path) -> None:
    arguments = ["measure", flawed, "--encoder", "measured_made:Packed", "--set", "draw=4", "--workers", 1]
    bad = tmp_path / "bad.jsonl"
    first = run(*arguments, "--faults", bad)
    assert first.exit_code == 0
    assert first.stderr == f"{bad}: 14 bad samples\n"
    place = Path(first.stdout.splitlines()[0])
    assert place.parent == cache / "facts"
    encoder = Packed(4)
    facts = measure(opened(flawed, encoder), encoder)
    assert facts.path == place
    assert [json.loads(line)["index"] for line in bad.read_text().splitlines()] == [one.index for one in facts.faults()]
    assert len(MeasuredDataset(opened(flawed, encoder), encoder, place, form=Packing(seq_len=32))) > 10
    assert f"tokens           {facts.summary.tokens:,}, " in first.stdout
    assert "\n  bad              hook        kind\n" not in first.stdout
    assert "\n    2              read  DecodeError\n" in first.stdout
    again = json.loads(run(*arguments, "--json").stdout)
    assert (again["path"], again["were_there"]) == (str(place), True)
    assert again["facts"]["outputs"] == facts.summary.outputs
    assert run("info", place).stdout == first.stdout
    assert json.loads(run("info", place, "--json").stdout)["facts"] == again["facts"]
    other = run(*arguments[:-4], "--set", "draw=5", "--set", "most=2", "-o", tmp_path / "out", "--workers", 1)
    found = MeasuredFacts.open(other.stdout.splitlines()[0])
    assert found.path.parent == tmp_path / "out"
    assert found.summary.encoder["attributes"] == {"draw": 5, "most": 2, "failing": 0.1, "groups": 4}


def test_check_reads_every_byte(run: Any, flawed: Path, tmp_path: Path) -> None:
    facts = measure(opened(flawed, Grouped(1)), Grouped(1), folder=tmp_path)
    whole = run("check", facts.path)
    assert (whole.exit_code, whole.stdout.startswith(f"{facts.path}: whole, ")) == (0, True)
    assert json.loads(run("check", facts.path, "--json").stdout)["ok"]
    groups = facts.path / "groups.npy"
    data = bytearray(groups.read_bytes())
    data[-1] ^= 1
    groups.write_bytes(data)
    broken = run("check", facts.path)
    assert (broken.exit_code, broken.stdout) == (
        1,
        f"{groups}: damaged: its xxh3_128 differs from that of the file that was written\n",
    )
    assert json.loads(run("check", facts.path, "--json").stdout)["problems"] == [broken.stdout.strip()]
    assert run("info", facts.path).exit_code == 4
    data[-1] ^= 1
    groups.write_bytes(data)
    shown = run("info", facts.path).stdout
    assert "  outputs  batches of        group\n" in shown
    assert '["group",3]' in shown


def test_check_of_facts_finds_a_flipped_bit_of_the_header(run: Any, flawed: Path, tmp_path: Path) -> None:
    """Also where the bit is of the words by which facts are told from plans."""
    facts = measure(opened(flawed, Grouped(1)), Grouped(1), folder=tmp_path)
    kept = facts.path / "kept.json"
    data = kept.read_bytes()
    places = [data.index(word) + at for word in (b"headrace.facts", b"is_good", b"headrace.kept") for at in (0, 3)]
    for at in [0, *places, len(data) - 2]:
        with other_byte(kept, at, data[at] ^ 4):
            broken = run("check", facts.path)
            assert (broken.exit_code, broken.stdout.count("\n")) == (1, 1)
            assert broken.stdout.startswith(f"{kept}: ")
            assert run("info", facts.path).exit_code == 4
    assert run("check", facts.path).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--encoder", "measured_made"], "write module:function"),
        (["--encoder", "measured_made:Pakced"], "did you mean 'Packed'?"),
        (["--encoder", "measured_made:numbers"], "cannot be made with the arguments"),
        (["--encoder", "measured_made:Packed", "--set", "draw"], "write --set NAME=VALUE"),
        (["--encoder", "measured_made:Packed", "--set", "draw=1", "--set", "draw=2"], "draw is set twice"),
        (["--encoder", "measured_made:Packed", "--set", "colour=1"], "cannot be made with the arguments {'colour': 1}"),
        (["--encoder", "measured_made:Refusing"], "measured_made:Refusing: cannot be made: ValueError: no tokenizer"),
        (["--encoder", "builtins:dict"], "expected a subclass of headrace.encoders.TaskEncoder"),
        (["--encoder", "measured_made:Packed", "--workers", "0"], "1 or more"),
        (["--encoder", "measured_made:Packed", "--split-part", "nowhere"], "nowhere"),
    ],
)
def test_what_is_refused(run: Any, flawed: Path, arguments: list[str], words: str) -> None:
    result = run("measure", flawed, *arguments)
    assert result.exit_code in (2, 4)
    assert words in result.stderr


def test_metadatasets_are_measured_one_by_one(run: Any, tmp_path: Path) -> None:
    result = run("measure", tmp_path / "mix.yaml", "--encoder", "measured_made:Packed")
    assert (result.exit_code, "measure each of its datasets" in result.stderr) == (2, True)
