"""Files of `preview --html` and `render --html`: valid, self-contained, and data is never markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import previews_made
from counts import cases
from headrace.inspect import Preview, Rendering, preview
from headrace.inspect.figures import size
from headrace.inspect.shown import RecordPart, ShownSample, ShownSequence, Stretch
from headrace.plan.packing import Packing
from headrace.ui import page_of

VOID = {"meta", "input", "br"}
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
        "p",
        "dl",
        "dt",
        "dd",
        "div",
        "label",
    ),
    *("input", "section", "span", "i", "b", "pre", "svg", "g", "rect", "text", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


class Checker(HTMLParser):
    """Follows a page, and holds what it says."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.num_trained = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "style", "srcset", "action"), name
            if name == "id" and value is not None:
                self.ids.append(value)
        self.num_trained += tag == "span" and "on" in (dict(attrs).get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:\"" in text
    assert not any(mark in text.lower() for mark in ("<script", "http:", "https:", "@import", "url(", "\x1b"))
    return checker


@pytest.mark.parametrize("kind", list(previews_made.RECORDS))
def test_every_kind(tmp_path: Path, kind: str) -> None:
    path = previews_made.store(tmp_path / "store", kind)
    model = str(previews_made.model(tmp_path / "model"))
    found = preview(path, tokenizer=model, with_figures=True)
    checker = checked(page_of(found))
    said = "".join(checker.texts["i"])
    for sample in found.samples:
        for sequence in sample.sequences:
            for stretch in sequence.stretches:
                if stretch.text.isprintable():
                    assert stretch.text in said
    trained = sum(bool(part.is_trained) for one in found.samples for row in one.sequences for part in row.stretches)
    legend = 1
    assert checker.num_trained == trained + legend
    figures = found.figures
    assert figures is not None
    assert f"{figures.tokens} of '{figures.key}'" in checker.texts["dd"]
    drawn = checker.texts["title"][1:]
    lengths = [text for text in drawn if "trained" not in text]
    assert [text.split(": ")[1].split()[0] for text in lengths] == [str(bar.documents) for bar in figures.histogram]
    assert (figures.shares is None) == (kind not in ("sft", "dpo"))
    wanted = () if figures.shares is None else figures.shares.documents
    assert [text.split(": ")[1].split()[0] for text in drawn[len(lengths) :]] == [str(count) for count in wanted]


def test_packs(tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "store", "sft")
    packing = Packing(seq_len=48, over_long="truncate_right")
    checker = checked(page_of(preview(path, ids=True, packing=packing, with_figures=True)))
    assert "2 (best_fit), fill 95.833%, 59 tokens lost" in checker.texts["dd"]
    assert "4 pads" in checker.texts["p"]


def test_what_a_user_writes_is_text(tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "<b>", "sft")
    model = previews_made.model(tmp_path / "model")
    text = page_of(preview(path, tokenizer=str(model), max_tokens=200))
    checker = checked(text)
    assert "<script>alert(1)</script>" in "".join(checker.texts["i"])
    assert "\\x1b[31mred\\u202eabc" in "".join(checker.texts["i"])
    assert str(path) in checker.texts["h1"]


@given(st.text(max_size=40))
@example("</i></span></pre></h3><script>alert(1)</script>")
@example('" onload="alert(1)')
@settings(max_examples=cases(24, 60))
def test_any_text(text: str) -> None:
    stretch = Stretch(begin=0, position=0, ids=(1,), texts=(text,), role=text, is_trained=True)
    sequence = ShownSequence(name=text, document=0, num_tokens=3, stretches=(stretch,))
    part = RecordPart(name=text, messages=[{"role": text, "content": text, text: [text]}], tools=[text], rendered=text)
    words = ("recipe", "input", "place", "layout", "layout_why", "template", "reason", "message")
    rendering = Rendering(
        type="sft",
        record=0,
        source={text: text},
        parts=(part,),
        columns={text: text},
        outcome="bad",
        sequences=(),
        **dict.fromkeys(words, text),
    )
    rendered = checked(page_of(rendering))
    names = ("path", "kind", "format", "tokenizer", "note", "chosen_by")
    sample = ShownSample(number=0, sequences=(sequence,), columns={text: text})
    shown = Preview(
        **dict.fromkeys(names, text), keys=(text,), num_documents=1, num_samples=1, samples=(sample,), left_out=(text,)
    )
    checker = checked(page_of(shown))
    if text.isprintable() and text:
        assert checker.texts["i"] == checker.texts["b"] == [text]
        assert checker.texts["h1"] == [text]
        assert "\n" + text in rendered.texts["pre"]


def test_the_command_writes_it(run: Any, tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "store", "sft")
    target = tmp_path / "page.html"
    result = run("preview", path, "--ids", "--html", target)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{target}: {size(target.stat().st_size)}\n"
    checked(target.read_text(encoding="utf-8"))
    assert run("preview", path, "--ids", "--html", target, "--json").stdout.startswith("{")
    assert run("preview", path, "--ids", "--html", tmp_path / "no" / "page.html").exit_code == 6


def test_pages_of_records(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft")
    target = tmp_path / "page.html"
    assert run("render", recipe, "--record", 0, "--html", target).exit_code == 0
    checker = checked(target.read_text(encoding="utf-8"))
    assert "evidence" in checker.texts["summary"]
    assert "after the end of the turn" in checker.texts["td"]
    assert "<script>alert(1)</script>" in "".join(checker.texts["pre"])
