"""``headrace ls`` and ``headrace cat``."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import energon_made
import media_stores_made as stores
from counts import PATIENCE_S
from headrace.inspect import sample_description

KEYS = ["cats/0001", "cats/0002", "ocr/1", "v/1", "v/2", "b/1", "b/2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("media")
    stores.mixed(root / "mixed")
    stores.plain(root / "plain")
    stores.lines(root)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["mixed", "plain"])
@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        (None, KEYS),
        ("cats/*", KEYS[:2]),
        ("*1", ["cats/0001", "ocr/1", "v/1", "b/1"]),
        ("?/[12]", KEYS[3:]),
        ("v/2", ["v/2"]),
        ("v/3", []),
        ("V/*", []),
    ],
)
def test_keys(run: Any, folder: Path, name: str, pattern: str | None, keys: list[str]) -> None:
    result = run("ls", folder / name, *([] if pattern is None else [pattern]))
    assert (result.exit_code, result.stdout.splitlines()) == (0, keys)


def test_places_and_sizes(run: Any, folder: Path) -> None:
    contents = stores.mixed_contents()
    found = json.loads(run("ls", folder / "mixed", "--json").stdout)
    assert found["path"] == str(folder / "mixed")
    assert [one["key"] for one in found["samples"]] == KEYS
    assert found["samples"][3] == {
        "key": "v/1",
        "number": 3,
        "shard": "s/a001.tar",
        "index": 0,
        "parts": {"mp4": len(contents["v/1.mp4"])},
    }
    for one in found["samples"]:
        for part, size in one["parts"].items():
            assert size == len(contents[f"{one['key']}.{part}"])
    assert run("ls", "-l", folder / "mixed", "b/1").stdout == "b/1  s/a001.tar, 2  png 6.15 kB, cls 2 B, bin 256 B\n"


def test_a_part_of_the_split_leaves_out_what_is_excluded(run: Any, folder: Path) -> None:
    assert run("ls", folder / "mixed", "--split-part", "val").stdout.split() == ["v/1", "v/2", "b/1"]
    result = run("ls", folder / "mixed", "--split-part", "vall")
    assert (result.exit_code, "did you mean 'val'?" in result.stderr) == (2, True)
    assert run("ls", folder / "plain", "--split-part", "val").exit_code == 2


def test_records(run: Any, folder: Path) -> None:
    assert run("ls", folder / "t.jsonl", "1?").stdout.split() == [str(number) for number in range(10, 20)]
    assert json.loads(run("cat", folder / "t.jsonl", "7.json").stdout) == {"i": 7, "text": "text 7"}


def test_samples_come_before_a_fault_and_the_fault_after_them(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_description, "_BATCH", 2)
    root = stores.ocr(tmp_path / "ocr")
    with (root / "c01.tar").open("r+b") as file:  # the header of the second sample of the second shard
        offset = int.from_bytes((root / "c01.tar.idx").read_bytes()[8:16], "little")
        file.seek(offset + 148)
        file.write(b"9999999\0")
    result = run("ls", root)
    assert result.stdout.split() == [f"k0_{number}" for number in range(4)]
    assert (result.exit_code, "checksum" in result.stderr) == (3, True)
    result = run("ls", root, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, [one["key"] for one in found["samples"]]) == (3, [f"k0_{number}" for number in range(4)])
    assert (found["error"]["kind"], found["error"]["exit_code"]) == ("InputError", 3)


def test_names_that_are_no_text(run: Any, tmp_path: Path) -> None:
    energon_made.write_tar(tmp_path / "x.tar", [("a\udcff\x1b[2J.txt", b"one")])
    assert run("ls", tmp_path).stdout == "a\\udcff\\x1b[2J\n"
    (one,) = json.loads(run("ls", tmp_path, "--json").stdout)["samples"]
    assert one["key"] == "a\udcff\x1b[2J"
    assert run("cat", tmp_path, f"{one['key']}.txt").stdout == "one"
    assert json.loads(run("cat", tmp_path, one["key"], "--json").stdout)["key"] == "a\\udcff\x1b[2J"
    assert run("info", tmp_path, "--json").exit_code == run("preview", tmp_path, "--json").exit_code == 0


@pytest.mark.parametrize("command", ["ls", "cat"])
def test_tokens_have_no_keys(run: Any, prepared: Path, tmp_path: Path, command: str) -> None:
    more = ["x"] if command == "cat" else []
    result = run(command, prepared, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds 100 documents of tokens" in result.stderr
    assert "headrace preview shows them" in result.stderr
    assert run(command, tmp_path / "nothing", *more).exit_code == 4


def test_bytes_of_every_part(run: Any, folder: Path) -> None:
    for name, data in stores.mixed_contents().items():
        for place in ("mixed", "plain"):
            result = run("cat", folder / place, name)
            assert (result.exit_code, result.stdout_bytes) == (0, data)


def test_dots_and_hidden_names(run: Any, tmp_path: Path) -> None:
    members = [("v1.2/a.seg.png", b"one"), ("v1.2/a.png", b"two"), ("d/.hid", b"three"), ("e.", b"four")]
    energon_made.write_tar(tmp_path / "x.tar", members)
    for name, data in members:
        assert run("cat", tmp_path, name).stdout_bytes == data
    assert run("ls", tmp_path).stdout.split() == ["v1.2/a", "d/", "e"]


def test_to_a_file(run: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jpg"
    assert run("cat", folder / "mixed", "ocr/1.jpg", "-o", out).stdout == ""
    assert out.read_bytes() == stores.jpeg()
    result = run("cat", folder / "mixed", "ocr/1.json", "-o", out)
    assert (result.exit_code, "the file exists" in result.stderr) == (6, True)
    assert out.read_bytes() == stores.jpeg()
    assert run("cat", folder / "mixed", "b/1.cls", "-o", out, "--force").exit_code == 0
    assert out.read_bytes() == b"17"
    assert run("cat", folder / "mixed", "b/1", "-o", tmp_path / "other").exit_code == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("b/9", "has no sample 'b/9'; headrace ls lists the keys"),
        ("b/9.txt", "has no sample 'b/9'"),
        ("b/1.txt", "sample 'b/1' has no part 'txt'; it has png, cls, bin"),
        ("../x", "has no sample"),
    ],
)
def test_nothing_of_this_name(run: Any, folder: Path, name: str, said: str) -> None:
    result = run("cat", folder / "mixed", name)
    assert (result.exit_code, result.stdout_bytes, said in result.stderr) == (2, b"", True)


def test_a_sample_in_words(run: Any, folder: Path) -> None:
    assert run("cat", folder / "mixed", "cats/0002").stdout.splitlines() == [
        "sample 1: cats/0002  (s/a000.tar, 1)",
        f"  jpg: image, 1300 x 60, {len(stores.jpeg(1300, 60)) / 1000:.1f} kB",
        "  txt: text, 23 B",
        "      eine Kätzchen 猫⏎",
        "      zwei",
    ]
    found = json.loads(run("cat", folder / "mixed", "b/1", "--json").stdout)
    assert [(part["name"], part["kind"]) for part in found["parts"]] == [
        ("png", "image"),
        ("cls", "number"),
        ("bin", "bytes"),
    ]
    found = json.loads(run("cat", folder / "mixed", "cats/0002.txt", "--json").stdout)
    assert [part["text"] for part in found["parts"]] == ["eine Kätzchen 猫\nzwei"]


def test_a_terminal_gets_text_alone(folder: Path) -> None:
    def shown(name: str, *more: str) -> tuple[int, bytes, str]:
        ours, theirs = pty.openpty()
        arguments = [sys.executable, "-m", "headrace", "cat", str(folder / "mixed"), name, *more]
        with subprocess.Popen(arguments, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
            _, error = process.communicate(timeout=PATIENCE_S)
        os.close(theirs)
        out = b""
        try:
            while piece := os.read(ours, 1 << 16):
                out += piece
        except OSError:  # the end, on Linux
            pass
        os.close(ours)
        return process.returncode, out, error

    code, out, error = shown("b/1.bin")
    assert (code, out, "the output is a terminal" in error) == (2, b"", True)
    assert shown("b/1.cls")[:2] == (0, b"17")
    code, out, error = shown("cats/0001.txt")  # text that would move the cursor
    assert (code, out) == (2, b"")
