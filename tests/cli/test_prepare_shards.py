"""``headrace prepare --format tar``, and ``headrace where`` on what it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.stores import load_manifest
from shards_made import inline, read_all, rows, write_pictures, write_table


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    with inline():
        yield


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_pictures(tmp_path, 20)
    write_table(tmp_path / "t.csv", rows(20))
    return tmp_path / "t.csv"


def headrace(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


PARTS = ("--part", "jpg=path:file", "--part", "txt=column:caption")


def test_a_table(table: Path, tmp_path: Path) -> None:
    done = headrace(
        *("prepare", table, "-o", tmp_path / "out", "--format", "tar", *PARTS, "--key-field", "id"),
        *("--samples-per-shard", 6, "--shuffle", 3, "--split-ratio", "8,1,1"),
    )
    assert done.exit_code == 0, done.output
    assert "samples  20" in done.stdout
    assert "split    train 16, val 2, test 2" in done.stdout
    assert sorted(read_all(tmp_path / "out")) == sorted(row["id"] for row in rows(20))
    options = load_manifest(tmp_path / "out").options
    assert options["parts"] == [["jpg=path:file", "txt=column:caption"]]
    found = json.loads(headrace("where", tmp_path / "out", "s7", "--json").stdout)["samples"][0]
    assert (found["input"], found["unit"], found["number"]) == (str(table), "record", 8)
    assert "record 8" in headrace("where", tmp_path / "out", "s7").stdout
    assert headrace("where", tmp_path / "out", "nobody").exit_code == 2


def test_json(table: Path, tmp_path: Path) -> None:
    done = headrace(
        "prepare", table, "-o", tmp_path / "out", "--format", "tar", *PARTS, "--json", "--shard-size", "9kB"
    )
    found = json.loads(done.stdout)
    assert (found["samples"], found["format"], found["samples_dropped"]) == (20, "tar", {})
    assert found["shards"] == len(list((tmp_path / "out").glob("*.tar"))) > 1
    assert set(found["parts"]) == {"jpg", "txt"}


def test_a_dry_run(table: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = headrace("prepare", table, "--format", "tar", *PARTS, "--dry-run", "--json")
    assert json.loads(done.stdout)["samples"] == 20
    lines = headrace("prepare", table, "--format", "tar", *PARTS, "--dry-run").stdout.splitlines()
    assert {"  sample   all of it", "  samples  20"} <= set(lines)
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_says_that_its_sample_is_scaled_up(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.shards.estimate.MAX_TASKS", 2)
    tables = [table, *(table.with_name(f"{number}.csv") for number in range(3))]
    for path in tables[1:]:
        write_table(path, rows(20))
    lines = headrace("prepare", *tables, "--format", "tar", *PARTS, "--dry-run").stdout.splitlines()
    assert lines[2:4] == ["  sample   40 samples, scaled up", "  samples  about 80"]


def test_skipped_samples_are_listed(table: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "004.jpg").unlink()
    command = ("prepare", table, "-o", tmp_path / "out", "--format", "tar", *PARTS)
    stopped = headrace(*command)
    assert stopped.exit_code == 3
    assert "record 5: the file 'pictures/004.jpg'" in stopped.stderr
    done = headrace(*command, "--on-error", "skip", "--max-errors", "10%")
    assert "samples  19 (bad 1 dropped)" in done.stdout
    assert "1 bad sample skipped" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "tar", "--append-eod"), "--append-eod is for texts"),
        (("--format", "tar", "--tokenizer", "t"), "--tokenizer is for texts (headrace prepare text) and a recipe"),
        (("--tokenizer", "t", "--root", "x"), "--root is for media"),
        (("--tokenizer", "t", "--part", "a=row"), "--part is for media"),
        (("--format", "tar", "--part", "a"), "--part 'a': the forms are"),
        (("--format", "tar", "--split-ratio", "a,b"), "--split-ratio"),
        (("--format", "tar", "--field-map", "{"), "--field-map"),
        (("--format", "tar", "--field-map", "[]"), "--field-map"),
        (("--format", "tar", "--max-errors", "3"), "--max-errors needs"),
        (("--format", "tar", "--single", "--shard-size", "3"), "cut it into several: use one"),
        (("--format", "tar", "--shard-size", "big"), "--shard-size big"),
    ],
)
def test_options_that_do_not_go_together(table: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = headrace("prepare", table, "-o", tmp_path / "out", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
