"""``headrace prepare`` of tar shards in place, and of media with ``--format tar``."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from counts import PATIENCE_S
from energon_made import PNG, write_tar
from headrace.preparing.energon import EnergonReport
from headrace.stores import load_manifest
from headrace.stores.energon import EnergonStore, read_splits
from shards_made import inline, read_all, rows, write_pictures, write_table


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    for shard in range(4):
        info = {"caption": f"a picture of number {shard} of four", "boxes": [1, 2, 3, 4, 5]}
        members = [
            (f"k{shard}{number}.{part}", data)
            for number in range(3)
            for part, data in (("png", PNG), ("json", json.dumps(info).encode()), ("txt", b"text"))
        ]
        write_tar(tmp_path / f"tars/s{shard}.tar", members)
    return tmp_path / "tars"


def test_a_folder_of_tars(run: Any, tars: Path) -> None:
    result = run("prepare", tars, "--split-ratio", "2,1,1", "--media-metadata", "*.png,*.jpg")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{tars}: 12 samples in 4 shards\n")
    for line in ("train    2 shards, 6 samples", "parts    json, png, txt", "media    metadata of 12"):
        assert line in result.stdout
    assert "note: dataset.yaml: samples are crude" in result.stderr
    assert len(EnergonStore(tars, split_part="train")) == 6
    again = run("prepare", tars, "--split-ratio", "2,1,1")
    assert "written  nothing, all files are unchanged" in again.stdout
    assert "0 read, 4 unchanged, 0 removed" in again.stdout


def test_the_options_of_energon(run: Any, tars: Path) -> None:
    field_map = '{"image": "png", "caption": "json[caption]"}'
    result = run(
        "prepare", tars, "--overwrite", "--workers", 1,
        "--split-part", "train:s{0..1}", "--split-part", "val:s2", "--exclude", "s3",
        "--sample-type", "CaptioningSample", "--field-map", field_map, "--dataset-config", "captions.yaml",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert read_splits(tars).parts == {"train": ("s0.tar", "s1.tar"), "val": ("s2.tar",)}
    assert yaml.safe_load((tars / ".nv-meta/captions.yaml").read_text()) == {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": json.loads(field_map),
    }
    run("prepare", tars, "--part-filter", "png,txt", "--split-ratio", "1,0,0", "--shuffle-tars", "--overwrite")
    assert yaml.safe_load((tars / ".nv-meta/dataset.yaml").read_text())["part_filter"] == ["png", "txt"]
    assert len(read_splits(tars).parts["train"]) == 4
    run("prepare", tars, "--tar-index-only", "--overwrite")
    assert not (tars / ".nv-meta/index.sqlite").exists()


def test_other_kinds(run: Any, tars: Path, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert "2 records, indexed in" in run("prepare", tmp_path / "x.jsonl").stdout
    assert (tmp_path / "x.jsonl.idx").stat().st_size == 24
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.png").write_bytes(PNG)
    result = run("prepare", tmp_path / "files", "--media-only", "--media-metadata", "extension")
    assert "metadata of 1 media in 1 file" in result.stdout


def test_a_metadataset(run: Any, of_json: Any, tars: Path, tmp_path: Path) -> None:
    """Its options, exit codes and output are those of a folder; what refuses them is told before it is read."""
    other = tmp_path / "other"
    write_tar(other / "s0.tar", [(f"k{number}0.txt", b"text") for number in range(3)])
    for folder in (tars, other):
        run("prepare", folder, "--split-part", "train:.*", "--skip-dataset-yaml")
    joiner = "joiner: {__module__: m, __class__: C}"
    join = f"join: [{{path: {tars}}}, {{path: other, nonmatch: skip}}], {joiner}"
    path = tmp_path / "m.yaml"
    path.write_text(f"splits: {{train: {{blend: [{{{join}}}]}}, val: {{{join}, split_part: train}}}}\n")
    done = run("prepare", "energon", path)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{path}: 1 join, 6 joined samples\n"
    told = "3 joined samples, 9 without a partner left out"
    assert done.stderr == "".join(f"note: {path}: splits.{place}: {told}\n" for place in ("train.blend[0]", "val"))
    (index,) = (tmp_path / "m.yaml.cache").iterdir()
    found = of_json("prepare", path)
    report = EnergonReport(kind="metadataset", path=str(path), samples=6, written=(str(index),))
    assert found == {**json.loads(msgspec.json.encode(report)), "seconds": found["seconds"]}

    refused = (
        (2, "gathered", path, "--media-metadata", "extension"),
        (2, "can be split", path, "--split-ratio", "1"),
        (2, "shuffling", path, "--shuffle-tars"),
        (2, "one step", path, "--executor", "slurm"),
        (2, "web server", "http://127.0.0.1:9/m.yaml"),
        (3, "expected a folder of tars", tmp_path / "none.yaml"),
    )
    for code, message, *arguments in refused:
        done = run("prepare", "energon", *arguments)
        assert (done.exit_code, message in done.stderr) == (code, True), done.output
    assert index.exists()
    path.write_text(f"splits: {{train: {{path: {tars}}}}}\n")
    done = run("prepare", "energon", path)
    assert (done.exit_code, done.stdout) == (0, f"{path}: 0 joins, 0 joined samples\n")
    assert done.stderr == f"note: {path}: holds no join, so there is nothing to prepare\n"
    assert not index.exists()
    folder = tars.rename(tmp_path / "tars.yaml")
    assert run("prepare", "energon", folder).stdout.startswith(f"{folder}: 12 samples in 4 shards\n")


def test_faults_are_listed(run: Any, tars: Path) -> None:
    data = (tars / "s2.tar").read_bytes()
    (tars / "s2.tar").write_bytes(data[:6200])
    assert run("prepare", tars, "--split-ratio", "1").exit_code == 3
    write_tar(tars / "s3.tar", [("k00.txt", b"again")])
    result = run("prepare", tars, "--split-ratio", "1", "--on-error", "skip", "--duplicates", "drop")
    assert result.exit_code == 0
    assert "malformed: 1 shard; samples are missing or cannot be read\n  s2.tar: sample 1, byte" in result.stdout
    assert "duplicate keys: 1 sample\n  'k00': s3.tar, first in s0.tar" in result.stdout


def test_a_real_terminal(tars: Path) -> None:
    code = "import sys; from headrace.cli import main; main()"
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", code, "prepare", str(tars), "--split-ratio", "1,0,0"])
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other side is closed
            break
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown.decode()
    assert b"12 samples in 4 shards" in shown
    assert b"\x1b[?25h" in shown, "the bar of a phase gave the cursor back"
    assert (tars / ".nv-meta/dataset.yaml").exists()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    write_pictures(tmp_path, 20)
    write_table(tmp_path / "t.csv", rows(20))
    with inline():
        yield tmp_path / "t.csv"


PARTS = ("--part", "jpg=path:file", "--part", "txt=column:caption")


def test_a_table(run: Any, table: Path, tmp_path: Path) -> None:
    done = run(
        *("prepare", table, "-o", tmp_path / "out", "--format", "tar", *PARTS, "--id-field", "id"),
        *("--samples-per-shard", 6, "--shuffle", 3, "--split-ratio", "8,1,1"),
    )
    assert done.exit_code == 0, done.output
    assert "samples  20" in done.stdout
    assert "split    train 16, val 2, test 2" in done.stdout
    assert sorted(read_all(tmp_path / "out")) == sorted(row["id"] for row in rows(20))
    options = load_manifest(tmp_path / "out").options
    assert options["parts"] == [["jpg=path:file", "txt=column:caption"]]
    found = json.loads(run("where", tmp_path / "out", "s7", "--json").stdout)["samples"][0]
    assert (found["input"], found["unit"], found["number"]) == (str(table), "record", 8)
    assert "record 8" in run("where", tmp_path / "out", "s7").stdout
    assert run("where", tmp_path / "out", "nobody").exit_code == 2


def test_a_dry_run(run: Any, table: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    lines = run("prepare", table, "--format", "tar", *PARTS, "--dry-run").stdout.splitlines()
    assert {"  sample   all of it", "  samples  20"} <= set(lines)
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_says_that_its_sample_is_scaled_up(run: Any, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.preparing.shards.estimate._A_TASK", 40)
    tables = [table, *(table.with_name(f"{number}.csv") for number in range(3))]
    for path in tables[1:]:
        write_table(path, rows(20))
    lines = run("prepare", *tables, "--format", "tar", *PARTS, "--dry-run").stdout.splitlines()
    assert lines[2:4] == ["  sample   40 samples, scaled up", "  samples  about 80"]


def test_skipped_samples_are_listed(run: Any, table: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "004.jpg").unlink()
    command = ("prepare", table, "-o", tmp_path / "out", "--format", "tar", *PARTS)
    stopped = run(*command)
    assert stopped.exit_code == 3
    assert "record 5: the file 'pictures/004.jpg'" in stopped.stderr
    done = run(*command, "--on-error", "skip,max_errors=10%")
    assert "samples  19 (bad 1 dropped)" in done.stdout
    assert "1 bad sample skipped" in done.stdout
