"""``headrace info`` of tar shards, Energon's datasets, JSON lines and folders."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import media_stores_made as stores
from headrace.stores.energon import update_media


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("media")
    stores.mixed(root / "mixed")
    stores.ocr(root / "ocr")
    stores.plain(root / "plain")
    stores.lines(root)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_a_crude_dataset(run: Any, folder: Path) -> None:
    found = json.loads(run("info", folder / "mixed", "--json").stdout)
    assert (found["format"], found["samples"], found["shards"], found["type"]) == ("energon", 7, 2, None)
    assert found["energon_version"] == "7.4.1"
    assert found["uuid"] == (folder / "mixed/.nv-meta/index.uuid").read_text().strip()
    assert [tuple(split.values()) for split in found["splits"]] == [
        ("train", 1, 3, 0, 0),
        ("val", 1, 3, 1, 0),
        ("test", 0, 0, 0, 0),
    ]
    contents = stores.mixed_contents()
    jpegs = [len(data) for name, data in contents.items() if name.endswith(".jpg")]
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["jpg"] == {
        "name": "jpg",
        "samples": 4,
        "bytes": sum(jpegs),
        "min": min(jpegs),
        "max": max(jpegs),
    }
    assert {name: part["samples"] for name, part in parts.items() if name != "jpg"} == {
        "txt": 2,
        "json": 2,
        **dict.fromkeys(["bin", "cap", "cls", "mp4", "pkl", "png", "wav"], 1),
    }
    assert found["looked_at"] == 7
    assert set(found["index"]) == {"samples", "sample_parts"}
    assert found["media"] is None
    on_disk = [file for file in (folder / "mixed").rglob("*") if file.is_file()]
    unlisted = {"split.yaml", "index.uuid"}  # of the store as a whole neither is a file that it needs
    assert found["bytes"] == sum(file.stat().st_size for file in on_disk if file.name not in unlisted)


def test_a_typed_dataset_in_words(run: Any, folder: Path) -> None:
    lines = run("info", folder / "ocr").stdout.splitlines()
    assert lines[0] == str(folder / "ocr")
    assert "  format        energon, 3 shards" in lines
    assert "  sample type   megatron.energon.OCRSample (dataset.yaml)" in lines
    assert '  subflavors    {"lang": "en"}' in lines
    assert "  words_boxes  json[words_boxes]" in lines
    assert "  train        8  66.7%       2                 0                0" in lines
    assert "parts of all samples" in lines
    assert any(line.startswith("   jpg       12  100.0%") for line in lines)


@pytest.mark.parametrize(("name", "layout", "samples"), [("plain", "tar", 7), ("t.jsonl", "jsonl samples", 20)])
def test_others(run: Any, folder: Path, name: str, layout: str, samples: int) -> None:
    before = sorted(folder.rglob("*"))
    found = json.loads(run("info", folder / name, "--json").stdout)
    assert (found["format"], found["samples"], found["splits"], found["index"]) == (layout, samples, None, None)
    assert f"  samples  {samples}\n" in run("info", folder / name).stdout
    assert sorted(folder.rglob("*")) == before  # looking changes nothing: no index beside the tar


def test_a_folder_of_files_with_media_metadata(run: Any, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.jpg").write_bytes(stores.jpeg())
    (tmp_path / "files/a.txt").write_text("a")
    facts = [("a.jpg", "image", '{"width": 53, "height": 37, "format": "JPEG", "mode": "RGB"}')]
    update_media(tmp_path / "files", facts, [("EXTENSION", "jpg,png")])
    found = json.loads(run("info", tmp_path / "files", "--json").stdout)
    assert (found["format"], found["samples"]) == ("files", 1)
    assert found["media"] == {"entries": {"image": 1}, "filters": [["EXTENSION", "jpg,png"]]}
    assert "1 image (by extension: jpg,png)" in run("info", tmp_path / "files").stdout


def test_other_files_of_the_dataset(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    meta = root / ".nv-meta"
    (meta / "other.yaml").write_text("split_parts:\n  all: ['c{00..02}.tar']\nexclude: [c01.tar, c02.tar/k2_0]\n")
    (meta / "crude.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    options = ["--split-config", "other.yaml", "--dataset-config", "crude.yaml"]
    found = json.loads(run("info", root, "--json", *options).stdout)
    assert found["type"]["kind"] == "crude"
    (split,) = found["splits"]
    assert (split["name"], split["samples"], split["excluded"], split["excluded_shards"]) == ("all", 7, 1, 1)
    result = run("info", root, *options)
    assert "  sample type   crude, megatron.energon.CrudeWebdataset (crude.yaml)" in result.stdout.splitlines()


def test_a_sample_loader_is_named_and_never_run(run: Any, folder: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(folder / "ocr", tmp_path / "ocr"))
    (root / ".nv-meta/loader.py").write_text("raise SystemExit(99)")
    (root / ".nv-meta/dataset.yaml").write_text(
        "sample_type:\n  __module__: evil\n  __class__: Type\nsample_loader: loader.py:load\npart_filter: [jpg, json]\n"
    )
    result = run("info", root)
    assert result.exit_code == 0
    assert "loader        loader.py:load, which is code and was not run" in result.stdout
    assert "part filter   jpg, json" in result.stdout
    assert "evil.Type (dataset.yaml)" in result.stdout
    assert run("preview", root, "--num", 1).exit_code == 0
    assert run("check", root, "--decode", "--workers", 1).exit_code == 0


def test_wrong_options(run: Any, folder: Path, prepared: Path) -> None:
    for place in (folder / "plain", folder / "t.jsonl", prepared):
        result = run("info", place, "--split-config", "x.yaml")
        assert (result.exit_code, "--split-config is only for Energon datasets" in result.stderr) == (2, True)
    result = run("info", folder / "mixed", "--key", "x")
    assert (result.exit_code, result.stdout) == (2, "")


def test_no_command_imports_torch(folder: Path) -> None:
    """Not even to decode videos."""
    root = str(folder / "mixed")
    commands = [
        ["info", root],
        ["check", root, "--decode", "--workers", "1"],
        ["preview", root, "--num", "7", "--images", "blocks"],
        ["ls", root, "-l"],
        ["cat", root, "v/1"],
    ]
    program = (
        "import sys, json; from headrace.cli import main\n"
        "codes = []\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: codes.append(end.code)\n"
        "print(codes, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, json.dumps(commands)], capture_output=True, text=True)
    assert done.stdout.endswith("[0, 0, 0, 0, 0] False\n"), done.stderr
