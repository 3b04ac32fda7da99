"""``headrace preview`` of samples: lines and pages; hostile data is never markup."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import energon_made
import media_made
import media_stores_made as stores
from counts import cases
from headrace.inspect.samples import LookedAtSample, PartViewer, look_at
from headrace.samples.media import parse_field_map
from headrace.stores.store import RawSample
from headrace.ui import files
from headrace.ui.files import shown_samples
from headrace.ui.rendering import environment

VOID = {"meta", "input", "br", "img"}
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "dl",
        "dt",
        "dd",
        "div",
        "b",
    ),
    *("section", "pre", "svg", "rect", "img", "video", "audio", "span"),
}
SOURCE = re.compile(r"data:(image/(png|jpeg)|video/(mp4|webm|x-matroska)|audio/(flac|mpeg|wav));base64,[A-Za-z0-9+/=]*")


class Checker(HTMLParser):
    """Follows a page: well-formed, nothing but known elements, sources of our own making."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.sources: dict[str, list[str]] = {}
        self.text = ""
        self.rects: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("href", "style", "srcset", "action", "poster"), name
            if name == "src":
                assert SOURCE.fullmatch(value or ""), value
                self.sources.setdefault(tag, []).append(value or "")
        if tag == "rect":
            self.rects.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def html_of(*samples: LookedAtSample) -> str:
    """Samples as they stand in a page."""
    values = {"found": {"path": "x"}, "style": "", "about": "", "fields": {}, "samples": shown_samples(list(samples))}
    return environment().get_template("file_samples.html").render(values)


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


def test_lines(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "mixed", "--samples", "0,2").stdout.splitlines()
    assert lines[:5] == [
        f"{folder}/mixed: energon, 2 shards",
        "2 of 7 samples",
        "",
        "sample 0: cats/0001  (s/a000.tar, 0)",
        f"  jpg: image, 53 x 37, {len(stores.jpeg()) / 1000:.2f} kB",
    ]
    assert lines[6] == "      a cat <script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31m \\u202e &amp; \"'"
    assert "  1 box of lines on jpg" in lines
    assert lines[-1].startswith("  2 boxes of words on jpg: Hello | <script>")
    assert "          [30, 20, 15, 5, 0.9]" in lines
    assert not any("\x1b" in line for line in lines)


def test_fields_of_a_typed_sample(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "ocr", "--split-part", "val", "--num", 1).stdout.splitlines()
    assert lines[:2] == [f"{folder}/ocr: energon, part val, 1 shard, OCRSample", "1 of 4 samples"]
    assert lines[-4:] == [
        "  image = the image in jpg",
        "  text = number 2 0",
        "  words_boxes = [[5, 5, 40, 20]]",
        '  words_text = ["w"]',
    ]


def test_media_and_what_cannot_be_shown(run: Any, folder: Path) -> None:
    lines = run("preview", folder / "mixed", "--samples", "3-6").stdout.splitlines()
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
    lines = run("preview", tmp_path, "--max-chars", 40).stdout.splitlines()
    assert "  npy: array, float32 (2, 3), 152 B" in lines
    assert "      [[0. 1. 2.]" in lines
    assert lines[lines.index("  txt: text, 50 B") + 1 :][:2] == ["      " + "x" * 40, "      ... 10 characters more"]


def test_json(run: Any, folder: Path) -> None:
    found = json.loads(run("preview", folder / "mixed", "--key", "ocr/1", "--json").stdout)
    assert (found["format"], found["num_samples"], found["num_shards"]) == ("energon", 7, 2)
    (sample,) = found["samples"]
    assert (sample["number"], sample["key"], sample["shard"], sample["index"]) == (2, "ocr/1", "s/a000.tar", 2)
    assert sample["parts"][0] == {
        "name": "jpg",
        "size": len(stores.jpeg()),
        "kind": "image",
        "facts": {"width": 53, "height": 37},
    }
    assert json.loads(sample["parts"][1]["text"]) == stores.BOXES
    lines, words = sample["boxes"]
    assert (lines["kind"], lines["boxes"], lines["texts"]) == ("lines", [[1, 1, 50, 12]], [])
    assert (words["picture"], words["boxes"]) == ("jpg", [[2, 3, 20, 10], [30, 20, 15, 5]])
    assert words["texts"] == stores.BOXES["words_text"]


@pytest.mark.parametrize("name", ["plain", "t.jsonl"])
def test_other_layouts(run: Any, folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    assert len(json.loads(run("preview", folder / name, "--json").stdout)["samples"]) == 3
    assert run("preview", folder / name).exit_code == 0
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("how", "begin"), [("blocks", "      \x1b[")])
def test_pictures_in_the_terminal(run: Any, folder: Path, how: str, begin: str) -> None:
    out = run("preview", folder / "mixed", "--samples", "0,3", "--images", how).stdout
    jpg, mp4 = (at for at, line in enumerate(out.split("\n")) if line.startswith(("  jpg: ", "  mp4: ")))
    for at in (jpg, mp4):  # of a video the first frame
        assert out.split("\n")[at + 1].startswith(begin)
    assert "\x1b" not in run("preview", folder / "mixed", "--samples", "0,3", "--images", "none").stdout


def test_a_page(run: Any, folder: Path, tmp_path: Path) -> None:
    result = run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert result.stdout.startswith(f"{tmp_path}/x.html: ")
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:" in text
    page = checked(text)
    assert {tag: len(found) for tag, found in page.sources.items()} == {"img": 4, "video": 1, "audio": 1}
    assert base64.b64decode(page.sources["video"][0].partition(",")[2]) == media_made.video(
        "mp4", "libx264", sound="aac"
    )
    sizes = [Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size for uri in page.sources["img"]]
    assert sizes == [(53, 37), (1024, 47), (53, 37), (53, 37)]  # of 1300 x 60
    assert "<script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31m \\u202e &amp; \"'" in page.text
    assert "sample 6: b/2 (s/a001.tar, 3)" in page.text.replace("  ", " ")
    assert "if you trust whoever made it" in page.text, "why a part cannot be shown"
    assert '<svg class="boxes" viewBox="0 0 53 37" preserveAspectRatio="none">' in text
    assert [(rect["x"], rect["y"], rect["width"], rect["height"], rect["class"]) for rect in page.rects] == [
        ("1", "1", "50", "12", "box b-lines"),
        ("2", "3", "20", "10", "box b-words"),
        ("30", "20", "15", "5", "box b-words"),
    ]


def test_small_pictures_are_exact_in_a_page() -> None:
    small = Image.fromarray(media_made.pixels(100, 100))
    uri = files.picture_uri(small)
    assert uri.startswith("data:image/png;base64,")
    shown = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert np.array_equal(np.asarray(shown), np.asarray(small))
    assert files.picture_uri(Image.fromarray(media_made.pixels(400, 400))).startswith("data:image/jpeg;base64,")


def test_media_that_are_too_large_for_a_page(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MEDIA_BYTES", 1000)
    run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    page = checked((tmp_path / "x.html").read_text())
    assert set(page.sources) == {"img"}
    assert page.text.count("too large for a page") == 2
    monkeypatch.undo()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "PAGE_BYTES", 65_000)  # the video, and then not the sound
    run("preview", folder / "mixed", "--num", 7, "--html", tmp_path / "x.html")
    assert set(checked((tmp_path / "x.html").read_text()).sources) == {"img", "video"}


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
    page = checked(html_of(sample))
    assert len(page.sources["img"]) == 1
    assert len(page.rects) == len(words)


@pytest.mark.parametrize(
    "boxes",
    [
        "x",
        [1, 2, 3, 4],
        [[1, 2, 3]],
        [["1", 2, 3, 4]],
        [[1, 2, 3, 4], {"x": 1}],
        [[float("nan"), 0, 1, 1]],
        [[1e300, 0, 1, 1]],
        [[10**400, 0, 1, 1]],
        None,
    ],
)
def test_boxes_that_are_none(boxes: Any) -> None:
    parts = {"jpg": stores.jpeg(8, 8), "json": json.dumps({"words_boxes": boxes, "words_text": ["x"]}).encode()}
    sample = look_at(RawSample("k", "s", 0, parts), 0, None, PartViewer(max_chars=500))
    assert sample.shown.boxes == ()


def test_texts_that_do_not_fit_their_boxes() -> None:
    facts = {"words_boxes": [[1, 2, 3, 4], [-5, -5, -1, 2]], "words_text": ["one"]}
    parts = {"jpg": stores.jpeg(8, 8), "json": json.dumps(facts).encode()}
    sample = look_at(RawSample("k", "s", 0, parts), 0, None, PartViewer(max_chars=500))
    (boxes,) = sample.shown.boxes
    assert (len(boxes.boxes), boxes.texts) == (2, ())
    page = checked(html_of(sample))
    assert [rect["width"] for rect in page.rects] == ["3", "0"]


def test_page_and_json_at_once(run: Any, folder: Path, tmp_path: Path) -> None:
    result = run("preview", folder / "ocr", "--html", tmp_path / "x.html", "--json")
    assert len(json.loads(result.stdout)["samples"]) == 3
    assert (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--html", "x.txt"], "must end in .html"),
        (["--images", "ascii"], "allowed are terminal"),
        (["--samples", "7"], "has no sample 7; its 7 samples are counted from 0"),
        (["--samples", "x"], "write them as 0,5,10-12"),
        (["--key", "none"], "has no sample 'none'"),
        (["--key", "v/1", "--num", "2"], "leave out --samples and --num"),
        (["--num", "0"], "from 1 to 1,000 samples"),
        (["--num", "1001"], "from 1 to 1,000 samples"),
        (["--max-chars", "0"], "--max-chars 0: must be at least 1"),
        (["--pack", "8"], "--pack is for stores of tokens"),
        (["--max-tokens", "8"], "--max-tokens is for stores of tokens"),
        (["--split-part", "vall"], "did you mean 'val'?"),
    ],
)
def test_wrong_options(run: Any, folder: Path, options: list[str], said: str) -> None:
    result = run("preview", folder / "mixed", *options)
    assert (result.exit_code, result.stdout, said in result.stderr) == (2, "", True), result.stderr


@pytest.mark.parametrize("options", [["--images", "none"], ["--split-part", "train"]])
def test_options_of_samples_are_none_of_tokens(run: Any, prepared: Path, options: list[str]) -> None:
    result = run("preview", prepared, *options)
    assert (result.exit_code, f"{options[0]} is for samples" in result.stderr) == (2, True)


def test_without_pillow_there_is_a_line_that_says_so(run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    result = run("preview", folder / "mixed", "--num", 1)
    assert result.exit_code == 0
    assert "pip install 'headrace[image]'" in result.stdout
