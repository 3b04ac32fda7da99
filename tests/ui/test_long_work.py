"""Searches and checks, whose pages are sent as they go on, and which end where the page is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import pytest

from counts import PATIENCE_S
from headrace.errors import StoreError
from headrace.inspect import views
from headrace.ui import Places, application, store_pages
from ui_pages import TOKEN, Pages


def test_a_search(pages: Pages) -> None:
    text = pages.get("search?path=stores/web&q=permutation")
    expected = [one for one in views.search("stores/web", "permutation") if isinstance(one, views.SearchHit)]
    assert re.findall(r"<a href=\"documents\?path=stores%2Fweb&amp;number=(\d+)\">", text) == [
        str(hit.number) for hit in expected
    ]
    assert text.count("<mark>") == len(expected) > 0
    assert f"everything was searched; {len(expected)} hits in documents 0 to 360" in text
    assert "there are 361 to search" in pages.get("search?path=stores/web&q=a&first=999")
    pages.get("search?path=/etc/passwd&q=root", 404)
    pages.get("search?path=stores/web&q=a&first=x", 400)


def test_a_search_that_goes_on(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "search", lambda path, text, first: search(path, text, first=first, max_hits=2))
    search = views.finding.search  # type: ignore[attr-defined]
    text = pages.get("search?path=stores/web&q=a")
    assert "2 hits; 2 hits in documents 0 to" in text
    assert re.search(r'<a rel="next" href="search\?path=stores%2Fweb&amp;q=a&amp;first=\d+">Search on from', text)


def test_a_check(pages: Pages) -> None:
    assert "whole" not in pages.get("check?path=stores/web")
    text = pages.get("check?path=stores/web&begin=yes")
    assert "stores/web: whole: " in text
    assert "<progress" in text
    pages.get("check?path=run.json&begin=yes", 404)


def left_after(url: str, pieces: int) -> bytes:
    """Ask for a page as a browser that leaves after so many pieces of it; returns what had come."""
    asked = {"type": "http", "method": "GET", "path": f"/{TOKEN}/{url.partition('?')[0]}", "headers": []}
    came = [b""]
    left = anyio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        came.append(message.get("body", b""))
        if len(came) > pieces:
            left.set()

    async def ask() -> None:
        query = url.partition("?")[2].encode()
        await application(Places(["."]), token=TOKEN)({**asked, "query_string": query}, receive, send)

    anyio.run(ask)
    return b"".join(came)


@pytest.mark.usefixtures("inside")
def test_a_search_ends_when_the_page_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    def found(*asked: Any, **more: Any) -> Iterator[views.SearchProgress]:
        try:
            for until in range(10**9):
                yield views.SearchProgress(first=0, until=until, total=10**9, hits=0)
        finally:
            closed.set()

    monkeypatch.setattr(views, "search", found)
    came = left_after("search?path=stores/web&q=a", 200)
    assert b"of 1,000,000,000 documents" in came
    assert b"</html>" not in came
    assert closed.wait(PATIENCE_S)


@pytest.mark.usefixtures("inside")
def test_a_check_ends_when_the_page_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works on in a thread, whose next report ends it."""
    ended = threading.Event()

    def checking(path: str, *, on_progress: Any) -> Any:
        try:
            for number in range(10**9):
                on_progress("checking", number, 10**9)
        finally:
            ended.set()

    monkeypatch.setattr("headrace.inspect.check", checking)
    monkeypatch.setattr(store_pages, "TELL_EVERY_S", 0.01)
    came = left_after("check?path=stores/web&begin=yes", 200)
    assert b"checking" in came
    assert b"</html>" not in came
    assert ended.wait(PATIENCE_S)


def test_what_a_check_cannot_do_is_told(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: str, *, on_progress: Any) -> Any:
        raise StoreError("no store <here>")

    monkeypatch.setattr("headrace.inspect.check", failing)
    assert '<p class="progress bad">no store &lt;here&gt;</p>' in pages.get("check?path=stores/web&begin=yes")


ENDLESS = """
from headrace.cli import main
from headrace.inspect import views

def search(*asked, **more):
    while True:
        yield views.SearchProgress(first=0, until=0, total=1, hits=0)

views.search = search
main(["ui", "stores/code", "--port", "0"])
"""


def test_the_server_ends_while_a_page_is_sent(demo: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", ENDLESS], cwd=demo, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with urlopen(f"{url}search?path=stores/code&q=a") as page:
            assert page.read(2000)
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.communicate()
