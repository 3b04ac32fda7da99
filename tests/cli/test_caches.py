"""``headrace export-cache``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.caches import numbers
from headrace.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_cache"
TOKENIZER = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}
TRAIN = "bcb2920e883e4c70d54391dab1f3d247-GPTDataset-train"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = Path(shutil.copytree(GOLDEN, tmp_path / "place"))
    monkeypatch.chdir(copied)
    (copied / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return copied


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_three_parts_as_megatron_writes_them(run: Any) -> None:
    shared = ("--set", "sequence_length=16", "--tokenizer", "tokenizer.json", "--output", "ours")
    more = ("--split", "60,30,10", "--samples", "25,4,all", "--set", "drop_last_partial_validation_sequence=false")
    done = run("export-cache", "data/web", *shared, *more)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"ours/{TRAIN}-description.txt: written: train of data/web, 33 samples"
    assert len(done.stdout.splitlines()) == 3
    words = ("0.7", "data/web", "0.3", "data/code")
    assert run("export-cache", *words, *shared, "--split", "1, 0, 0", "--samples", 40).exit_code == 0
    once = ("--split-part", "train", "--samples", "all")
    assert run("export-cache", "data/web", "data/code", *shared, *once).exit_code == 0
    assert files("ours") == files("cache")
    again = json.loads(run("export-cache", "data/web", *shared, *more, "--json").stdout)
    assert [(cache["part"], cache["samples"], cache["written"]) for cache in again["caches"]] == [
        ("train", 33, False),
        ("valid", 6, False),
        ("test", 5, False),
    ]


def test_a_single_prefix_with_a_weight(run: Any) -> None:
    """megatron-core 0.16.1: of ``--train-data-path 1.0 A`` the four files of a dataset, of ``--data-path`` a blend."""
    shared = ("1.0", "data/web", "--set", "sequence_length=16", "--tokenizer", "tokenizer.json", "--samples")
    own = ("--split-part", "train", "--output")
    for arguments, folder, num_files in (
        ((200, *own), "own", 4),
        ((200, "--split", "1,0,0", "--output"), "blend", 7),
        ((200, "--set", "era=core_v0.5", *own), "old", 7),  # Megatron-core before 0.7 blends it
    ):
        assert run("export-cache", *shared, *arguments, folder).exit_code == 0
        assert len(files(folder)) == num_files
    refused = run("export-cache", *shared, "all", *own, "none")
    assert (refused.exit_code, "num_samples" in refused.stderr) == (2, True)
    assert not Path("none").exists()


def test_options_of_another_description(run: Any) -> None:
    done = run("export-cache", "data/web", "--like", f"cache/{TRAIN}-description.txt", "--samples", 25)
    assert done.exit_code == 0
    assert files("data/web/cache/GPTDataset_indices") == {
        name: data for name, data in files("cache").items() if name.startswith(TRAIN)
    }


def test_megatrons_default_split_is_in_the_name_to_the_letter(run: Any) -> None:
    options = ("--set", "sequence_length=8", "--tokenizer", "tokenizer.json", "--samples", "5,-")
    assert run("export-cache", "data/web", *options).exit_code == 0
    [path] = Path("data/web/cache/GPTDataset_indices").glob("*-description.txt")
    assert '"split": "969, 30, 1"' in path.read_text()


def test_another_cache_gives_way_only_on_purpose(run: Any) -> None:
    options = ("--like", f"cache/{TRAIN}-description.txt", "--samples", 25, "--output", "cache")
    before = files("cache")
    done = run("export-cache", "data/web", *options, "--set", "add_extra_token_to_sequence=false")
    assert done.exit_code == 6
    assert "another cache of this name exists" in done.stderr
    assert files("cache") == before
    more = ("--set", "add_extra_token_to_sequence=false", "--overwrite")
    assert run("export-cache", "data/web", *options, *more).exit_code == 0
    assert files("cache") != before


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--set", "era=core_v0.4"], [134, 268]),
        (["--set", "era=core", "--tokenizer", "tokenizer.json"], [135, 269]),
        (["--set", "era=core_v0.4", "--set", "blend_era=core"], [135, 269]),
    ],
)
def test_older_names_and_counts(run: Any, options: list[str], wanted: list[int]) -> None:
    """ceil(n * weight * 1.005) before 2025-02, ceil(ceil(n * weight) * 1.005) since."""
    words = ("1", "data/web", "2", "data/code")
    shared = ("--set", "sequence_length=4", "--split", "1", "--samples", 400, "--output", "old")
    assert run("export-cache", *words, *shared, *options).exit_code == 0
    found = [json.loads(path.read_text()) for path in Path("old").glob("*GPTDataset*-description.txt")]
    assert sorted(each["num_samples"] for each in found) == wanted
    assert all(("path_prefix" in each) == ("era=core_v0.4" in options) for each in found)


@pytest.mark.parametrize(
    ("text", "data_of"), [("", None), ("1,2,3,4", None), ("-", None), ("1.5", None), ("-1", None), ("1,2", "valid")]
)
def test_numbers_that_are_none(text: str, data_of: str | None) -> None:
    with pytest.raises(ConfigError, match=rf"--samples.*{text}"):
        numbers(text, data_of)
