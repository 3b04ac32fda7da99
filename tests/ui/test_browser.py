"""The pages in a real browser, Debian's Chromium, driven by Playwright: ``make ui-test``.

With ``HEADRACE_SHOTS=FOLDER`` each page is kept as a picture, light and dark, to be looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import media_stores_made
import ui_made
from counts import PATIENCE_S

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium")
SHOTS = os.environ.get("HEADRACE_SHOTS")
PAGES = {
    "home": "",
    "store": "store?path=stores/web",
    "documents": "documents?path=stores/chats&first=3&num=3",
    "document": "documents?path=stores/web&number=122",
    "find": "search?path=stores/web&id=docs-0004",
    "search": "search?path=stores/web&q=order",
    "captions": "store?path=stores/captions",
    "samples": "samples?path=stores/captions",
    "sample": "samples?path=stores/captions&number=4",
    "mix": "mix?path=mix.yaml&steps=100",
    "run": "run?path=run.json&step=220",
    "step": "step?path=chats.json&step=3&ranks=4&micro=1",
    "fed": "fed?path=chats.json&position=25",
    "media": "fed?path=captions.json&position=25",
    "live": "live?path=metrics-%7Brank%7D.jsonl",
    "diff": "diff?one=other.json&other=run.json",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install Debian's package")
    with sync_api.sync_playwright() as playwright:
        # Chromium refuses to run as root with its sandbox, and what it opens here is ours.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """The URL of a server of the real command."""
    program = [sys.executable, "-m", "headrace", "ui", *arguments, "--port", "0"]
    server = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def url(demo: Path) -> Iterator[str]:
    with served(demo, ".") as found:
        yield found


class Tab:
    """A page of the browser that collects what goes wrong, and every request that leaves the server."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: request.url.startswith(url) or self.wrong.append(request.url))

    def open(self, place: str = "") -> Any:
        self.page.goto(self.url + place)
        return self.page


CONTRAST = """
() => {
  const parsed = text => {
    const [, kind, parts] = text.match(/^(rgba?|color)\\((?:srgb )?([^)]+)\\)/) || [];
    const found = parts ? parts.split(/[ ,\\/]+/).map(Number) : [0, 0, 0, 0];
    return [...found.slice(0, 3).map(one => kind === "color" ? 255 * one : one), found[3] ?? 1];
  };
  const over = (top, ground) => top.slice(0, 3).map((one, at) => one * top[3] + ground[at] * (1 - top[3]));
  const light = colour => {
    const [r, g, b] = colour.map(one => (one /= 255) <= .03928 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    const grounds = [];
    for (let one = element; one; one = one.parentElement) {
      grounds.unshift(parsed(getComputedStyle(one).backgroundColor));
    }
    return grounds.reduce((below, one) => over(one, below), [255, 255, 255]);
  };
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), svg = element.closest("svg"), mark = element.closest(".mark");
    const below = mark ? parsed(getComputedStyle(mark.querySelector("circle")).fill)
      : ground(svg ? svg.parentElement : element);
    const [a, b] = [light(over(parsed(svg ? style.fill : style.color), below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05), size = parseFloat(style.fontSize);
    const least = size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5;
    if (ratio < least) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}
"""
"""Texts whose contrast is below what WCAG AA asks for: 4.5, and 3 for large ones."""


def follow(page: Any, selector: str) -> None:
    """Clicks what leads to another page, and waits for it: a click alone does not."""
    with page.expect_navigation():
        page.click(selector)


@contextmanager
def tab_at(browser: Any, url: str, **options: Any) -> Iterator[Tab]:
    """A tab of its own, in which nothing may go wrong."""
    context = browser.new_context(viewport={"width": 1180, "height": 800}, **options)
    context.set_default_timeout(30_000)
    found = Tab(context.new_page(), url)
    yield found
    context.close()
    # A page that is refused is an error of the network, which Chromium notes.
    assert [text for text in found.wrong if "404" not in text] == []


@pytest.fixture
def tab(browser: Any, url: str) -> Iterator[Tab]:
    with tab_at(browser, url) as found:
        yield found


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(247, 246, 243)"), ("dark", "rgb(20, 23, 26)")])
def test_every_page(browser: Any, url: str, scheme: str, ground: str) -> None:
    """All load without an error, ask nobody else, and are no wider than the window."""
    with tab_at(browser, url, color_scheme=scheme) as found:
        for name, place in PAGES.items():
            page = found.open(place)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            if name == "samples":
                page.wait_for_load_state("networkidle")
            # Pictures below the window are loaded when they are scrolled to.
            assert page.evaluate("[...document.images].every(image => !image.complete || image.naturalWidth)"), name
            assert page.evaluate(CONTRAST) == [], name
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
            if SHOTS:
                Path(SHOTS).mkdir(parents=True, exist_ok=True)
                page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}.png", full_page=True)


def test_search(tab: Tab) -> None:
    page = tab.open("search?path=stores/web")
    page.keyboard.press("/")
    page.keyboard.type("Micro-BATCH")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "everything was searched" in page.text_content("#hits")
    assert {text.casefold() for text in page.locator(".hit mark").all_text_contents()} == {"micro-batch"}
    follow(page, ".hit a >> nth=0")
    assert page.text_content("h1").startswith("Document")


def test_the_slider_of_a_run(tab: Tab) -> None:
    page = tab.open("run?path=run.json&step=100")
    slider = page.locator("#at")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=look into step 101")
    assert "step=101" in page.url, "the view can be sent on"
    assert page.evaluate("document.activeElement.id") == "at", "the slider keeps the focus"
    assert page.input_value("input[name=step]") == "101"
    page.reload()
    assert page.input_value("input[name=step]") == "101"


def test_live(browser: Any, tmp_path: Path) -> None:
    """Reports that are appended are on the page, without a reload."""
    ui_made.metrics(tmp_path, steps=3)
    with served(tmp_path, "metrics-{rank}.jsonl") as place, tab_at(browser, place) as found:
        page = found.open()
        follow(page, "a:has-text('metrics-{rank}.jsonl')")
        page.wait_for_selector("#pulse:has-text('waiting for the next report')")
        assert page.text_content(".fact b >> nth=0") == "2"
        ui_made.metrics(tmp_path, steps=1, first=7)
        page.wait_for_selector(".fact b:text-is('7')")


def test_keys(tab: Tab) -> None:
    page = tab.open("documents?path=stores/web&number=5")

    def leads_to(key: str, heading: str) -> None:
        with page.expect_navigation():
            page.keyboard.press(key)
        assert page.text_content("h1").startswith(heading)

    leads_to("j", "Document 6")
    leads_to("k", "Document 5")
    page.keyboard.press("c")
    assert "headrace preview stores/web --documents 5" in page.text_content("#copy")
    page.locator("body").focus()
    leads_to("u", "")
    assert page.locator("a:has-text('document 5')").count() == 1
    leads_to("g", "What is here")


def test_copying(tab: Tab) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.open("store?path=stores/web")
    page.click("#copy summary")
    page.click("#copy .code >> button")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "headrace info stores/web"


def test_borders_and_fading(tab: Tab) -> None:
    page = tab.open("documents?path=stores/chats&number=3")
    page.check("[data-toggle=borders]")
    page.check("[data-toggle=fade]")
    assert page.evaluate("getComputedStyle(document.querySelector('section .text i')).outlineStyle") == "solid"
    opacity = "getComputedStyle(document.querySelector('section .text span:not(.on)')).opacity"
    assert float(page.evaluate(opacity)) < 0.5


def test_hostile_data_run_nothing(browser: Any, tmp_path: Path) -> None:
    """Scripts in texts, captions, keys, file names, reasons and metrics are text, also in what a search finds."""
    ui_made.hostile(tmp_path)
    path = quote(f"a {ui_made.NAME}")
    urls = (
        "",
        f"store?path={path}/tokens",
        f"documents?path={path}/tokens",
        f"store?path={path}/samples",
        f"samples?path={path}/samples",
        f"samples?path={path}/samples&number=0",
        f"run?path={path}/run.json&step=5",
        f"step?path={path}/run.json&step=5",
        f"fed?path={path}/run.json&position=9",
        f"live?path={path}/metrics-%7Brank%7D.jsonl",
        f"search?path={path}/samples&q=script",
        f"store?path={quote(ui_made.HOSTILE)}",
    )
    with served(tmp_path, ".") as place, tab_at(browser, place) as found:
        for url in urls:
            page = found.open(url)
            if url.startswith("search"):
                assert page.locator(".hit").count() == 1
            page.wait_for_timeout(50)
            assert page.evaluate("window.pwned") is None, url
            assert page.locator("img[src=x]").count() == 0, url


LOADED = """
player => new Promise(done => {
  const tell = () => done([player.error?.code ?? 0, player.duration]);
  player.readyState ? tell() : (player.onloadedmetadata = player.onerror = tell);
})
"""


def test_video_and_sound_play(browser: Any, tmp_path: Path) -> None:
    """The policy lets the players of the browser have them; Debian's Chromium knows these formats."""
    media_stores_made.mixed(tmp_path / "mixed")
    with served(tmp_path, "mixed") as url, tab_at(browser, url) as found:
        for key, name in (("v/1", "video"), ("v/2", "audio")):
            error, seconds = found.open(f"samples?path=mixed&key={key}").locator(name).evaluate(LOADED)
            assert (error, seconds > 0.5) == (0, True), name


def test_without_scripts(browser: Any, url: str) -> None:
    with tab_at(browser, url, java_script_enabled=False) as found:
        page = found.open()
        follow(page, "text=run.json >> nth=-1")
        assert "The mix over the steps" in page.text_content("main")
        page.fill("input[name=step]", "7")
        follow(page, "text=Show")
        assert "step=7" in page.url
        assert "look into step 7" in page.text_content("main")


def test_what_it_costs_to_open(tab: Tab) -> None:
    """No timing: how much is asked for. A page is one answer, its styles and its scripts."""
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url.removeprefix(tab.url)))
    tab.open("run?path=run.json")
    tab.page.wait_for_load_state("networkidle")
    assert [name for name in asked if name.startswith("run")] == ["run?path=run.json"]
    assert len(asked) <= 5
    assert sum("static/" in name for name in asked) >= 2
