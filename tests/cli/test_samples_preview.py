"""``headrace preview``, ``ls`` and ``cat`` of samples: lines, bytes and pages; hostile data is never markup."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from PIL import Image

import energon_made
import media_made
import media_stores_made as stores
from counts import PATIENCE_S, cases
from headrace.inspect import sample_description
from headrace.inspect.blocks import Title
from headrace.inspect.samples import LookedAtSample, PartViewer, look_at
from headrace.samples.media import parse_field_map
from headrace.stores.store import RawSample
from headrace.ui import rendering
from page_checked import CheckedPage

pytestmark = pytest.mark.usefixtures("fresh_cache")


def html_of(*samples: LookedAtSample) -> str:
    """Samples as they stand in a page."""
    shown = [Title("x"), *(sample.section() for sample in samples)]
    return (
        rendering.environment()
        .get_template("file.html")
        .render(style="", shown=shown, media_of=rendering.Embedded().source)
    )


def test_lines(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "mixed", "--documents", "0,2").stdout.splitlines()
    assert lines[:5] == [
        f"{folder}/mixed: energon, 2 shards",
        "2 of 7 samples",
        "",
        "sample 0: cats/0001  (s/a000.tar, 0)",
        f"  jpg: image, 53 x 37, {len(stores.jpeg()) / 1000:.2f} kB",
    ]
    assert lines[6] == "      a cat <script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31m \\u202e &amp; \"'"
    assert "          [30, 20, 15, 5, 0.9]" in lines
    assert not any("\x1b" in line for line in lines)


def test_fields_of_a_typed_sample(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "ocr", "--split-part", "val", "--num", 1).stdout.splitlines()
    assert lines[:2] == [f"{folder}/ocr: energon, part val, 1 shard, OCRSample", "1 of 4 samples"]
    assert lines[-4:] == [
        "  image        the image in jpg",
        "  text         number 2 0",
        "  words_boxes  [[5, 5, 40, 20]]",
        '  words_text   ["w"]',
    ]


def test_media_and_what_cannot_be_shown(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "mixed", "--documents", "3-6").stdout.splitlines()
    said = "\n".join(lines)
    assert "  mp4: video, 64 x 48, 1.2 s, 25 frames/s, sound 16000 Hz, 1 channel, " in said
    assert "  wav: audio, 2.0 s, sound 16000 Hz, 1 channel, 64.1 kB" in lines
    assert "  cls: number, 2 B" in lines
    assert "  bin: bytes, 256 B: 00 01 02 03 " in said
    assert "  jpg: image, 900 B: cannot be shown: " in said
    assert "  pkl: bytes, 1 B: cannot be shown: .pkl may run any code" in said
    assert lines[-2:] == ["  cap: text, 13 B", "      plain caption"]


def test_arrays_and_long_texts(run: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype=np.float32).reshape(2, 3))
    members = [
        ("a.npy", buffer.getvalue()),
        ("a.txt", b"x" * 50),
        ("a.json", b'{"deep": ' + b"[" * 50 + b"]" * 50 + b"}"),
    ]
    energon_made.write_tar(tmp_path / "x.tar", members)
    lines = run("preview", tmp_path, "--limit", 40).stdout.splitlines()
    assert "  npy: array, float32 (2, 3), 152 B" in lines
    assert "      [[0. 1. 2.]" in lines
    assert lines[lines.index("  txt: text, 50 B") + 1 :][:2] == ["      " + "x" * 40, "      ... 10 characters more"]


def test_pictures_in_the_terminal(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "mixed", "--documents", "0,3", "--images", "blocks").stdout.split("\n")
    places = [at for at, line in enumerate(lines) if line.startswith(("  jpg: ", "  mp4: "))]
    assert len(places) == 2
    for at in places:  # of a video the first frame
        assert lines[at + 1].startswith("      \x1b[")
    assert "\x1b" not in run("preview", folder / "mixed", "--documents", "0,3", "--images", "none").stdout


def test_a_page(run: Any, folder: Path, tmp_path: Path) -> None:
    result = run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert result.stdout.startswith(f"{tmp_path}/x.html: ")
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:" in text
    page = CheckedPage(text)
    assert {tag: len(found) for tag, found in page.sources.items()} == {"img": 4, "video": 1, "audio": 1}
    assert base64.b64decode(page.sources["video"][0].partition(",")[2]) == media_made.video(
        "mp4", "libx264", sound="aac"
    )
    sizes = [Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size for uri in page.sources["img"]]
    assert sizes == [(53, 37), (1024, 47), (53, 37), (53, 37)]  # of 1300 x 60
    assert "<script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31m \\u202e &amp; \"'" in page.text
    assert "sample 6: b/2 (s/a001.tar, 3)" in page.text.replace("  ", " ")
    assert "if you trust whoever made it" in page.text, "why a part cannot be shown"


def test_small_pictures_are_exact_in_a_page() -> None:
    small = Image.fromarray(media_made.pixels(100, 100))
    uri = rendering.data_uri(*rendering.encoded(small))
    assert uri.startswith("data:image/png;base64,")
    shown = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert np.array_equal(np.asarray(shown), np.asarray(small))
    assert rendering.data_uri(*rendering.encoded(Image.fromarray(media_made.pixels(400, 400)))).startswith(
        "data:image/jpeg;base64,"
    )


def test_media_that_are_too_large_for_a_page(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "MEDIA_BYTES", 1000)
    run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    page = CheckedPage((tmp_path / "x.html").read_text())
    assert set(page.sources) == {"img"}
    assert page.text.count("too large for a page") == 2
    monkeypatch.undo()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rendering, "PAGE_BYTES", 65_000)  # the video, and then not the sound
    run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    assert set(CheckedPage((tmp_path / "x.html").read_text()).sources) == {"img", "video"}


@given(st.text(), st.text(max_size=20), st.lists(st.text(max_size=10), min_size=1, max_size=2))
@example(stores.EVIL, "</script>\"'><b>", [stores.EVIL, "]]>"])
@settings(max_examples=cases(16, 1000), deadline=None)
def test_no_data_is_markup(text: str, name: str, words: list[str]) -> None:
    facts = {"words_boxes": [[1, 2, 3, 4]] * len(words), "words_text": words, name: text}
    parts = {
        "jpg": stores.jpeg(8, 8),
        "json": json.dumps(facts).encode(),
        f"{name}.txt": text.encode("utf-8", "replace"),
        f"{name}.mp4": text.encode("utf-8", "replace"),
    }
    raw = RawSample(text[:20], name, 0, parts)
    sample = look_at(
        raw, 0, parse_field_map({"image": "jpg", "words_boxes": "json[words_boxes]"}), PartViewer(max_chars=500)
    )
    page = CheckedPage(html_of(sample))
    assert len(page.sources["img"]) == 1
    assert "<svg" not in html_of(sample)


def test_without_pillow_there_is_a_line_that_says_so(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    result = run("preview", folder / "mixed", "--num", 1)
    assert result.exit_code == 0
    assert "pip install 'headrace[image]'" in result.stdout


KEYS = ["cats/0001", "cats/0002", "ocr/1", "v/1", "v/2", "b/1", "b/2"]


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


def test_a_line_of_ls(run: Any, folder: Path) -> None:
    assert run("ls", "-l", folder / "mixed", "b/1").stdout == "b/1  s/a001.tar, 2  png 6.15 kB, cls 2 B, bin 256 B\n"


def test_a_part_of_the_split_leaves_out_what_is_excluded(run: Any, folder: Path) -> None:
    assert run("ls", folder / "mixed", "--split-part", "val").stdout.split() == ["v/1", "v/2", "b/1"]
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
    assert run("cat", folder / "mixed", "b/1.cls", "-o", out, "--overwrite").exit_code == 0
    assert out.read_bytes() == b"17"
    assert run("cat", folder / "mixed", "b/1", "-o", tmp_path / "other").exit_code == 2


def test_a_sample_in_words(run: Any, folder: Path) -> None:
    assert run("cat", folder / "mixed", "cats/0002").stdout.splitlines() == [
        "sample 1: cats/0002  (s/a000.tar, 1)",
        f"  jpg: image, 1300 x 60, {len(stores.jpeg(1300, 60)) / 1000:.1f} kB",
        "  txt: text, 23 B",
        "      eine Kätzchen 猫⏎",
        "      zwei",
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
        with contextlib.suppress(OSError):  # the end, on Linux
            while piece := os.read(ours, 1 << 16):
                out += piece
        os.close(ours)
        return process.returncode, out, error

    code, out, error = shown("b/1.bin")
    assert (code, out, "the output is a terminal" in error) == (2, b"", True)
    assert shown("b/1.cls")[:2] == (0, b"17")
    code, out, error = shown("cats/0001.txt")  # text that would move the cursor
    assert (code, out) == (2, b"")
