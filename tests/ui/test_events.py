"""Streams of events: searches and checks as they go on, files that grow, and an end where the page is left."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from counts import PATIENCE_S
from headrace.errors import StoreError
from headrace.inspect import views
from headrace.ui import events
from ui_pages import Pages


def parsed(data: str) -> list[tuple[str, Any]]:
    found = []
    for block in data.split("\n\n"):
        if block.startswith("event: "):
            kind, _, value = block.partition("\ndata: ")
            found.append((kind.removeprefix("event: "), msgspec.json.decode(value)))
    return found


def test_a_search(pages: Pages) -> None:
    told = parsed(pages.get("events-search?path=stores/web&q=permutation"))
    hits = [value for kind, value in told if kind == "SearchHit"]
    expected = [one for one in views.search("stores/web", "permutation") if isinstance(one, views.SearchHit)]
    assert [hit["number"] for hit in hits] == [hit.number for hit in expected]
    assert (told[-1][0], told[-1][1]["is_done"]) == ("SearchProgress", True)
    assert parsed(pages.get("events-search?path=stores/web&q="))[-1][0] == "failed"
    assert parsed(pages.get("events-search?path=stores/web&q=a&first=999"))[-1][0] == "failed"
    pages.get("events-search?path=/etc/passwd&q=root", 404)
    pages.get("events-search?path=stores/web&q=a&first=x", 400)


def test_a_check(pages: Pages) -> None:
    told = parsed(pages.get("events-check?path=stores/web"))
    assert told[-1][0] == "verdict"
    assert told[-1][1]["ok"]
    assert told[-1][1]["lines"][-1].startswith("stores/web: whole: ")
    pages.get("events-check?path=run.json", 404)


async def first_of(stream: AsyncIterator[bytes]) -> bytes:
    async for one in stream:
        return one
    raise AssertionError("the stream is empty")


def test_a_search_ends_when_the_page_is_left() -> None:
    asked, closed = 0, False

    def found() -> Iterator[views.SearchProgress]:
        nonlocal asked, closed
        try:
            while True:
                asked += 1
                yield views.SearchProgress(first=0, until=asked, total=10**9, hits=0)
        finally:
            closed = True

    async def leave() -> None:
        stream = events.searching(found(), threading.Event())
        await first_of(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    anyio.run(leave)
    assert closed
    assert asked == 1


def test_a_check_ends_when_the_page_is_left() -> None:
    """It works on in a thread, whose next report ends it."""
    ended, may_go_on = threading.Event(), threading.Event()
    reports = 0

    def checking(on_progress: Any) -> Any:
        nonlocal reports
        try:
            while True:
                reports += 1
                on_progress("checking", reports, 10**9)
                may_go_on.wait(PATIENCE_S)
        finally:
            ended.set()

    async def leave() -> None:
        stream = events.checking(checking, threading.Event())
        told = parsed((await first_of(stream)).decode())
        assert told == [("progress", {"phase": "checking", "done": 1, "total": 10**9, "text": ""})]
        await stream.aclose()  # type: ignore[attr-defined]

    anyio.run(leave)
    may_go_on.set()
    assert ended.wait(PATIENCE_S)
    assert reports == 2


def test_what_a_check_cannot_do_is_told(inside: Path) -> None:
    def failing(on_progress: Any) -> Any:
        raise StoreError("no store <here>")

    async def all_of() -> str:
        return b"".join([one async for one in events.checking(failing, threading.Event())]).decode()

    assert parsed(anyio.run(all_of)) == [("failed", {"message": "no store <here>"})]


def test_files_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.001)
    file = tmp_path / "metrics-0.jsonl"
    file.write_text("{}\n")

    async def grow() -> list[str]:
        told = []
        async for one in events.growing(lambda: [str(file), str(tmp_path / "none")], threading.Event()):
            told += [kind for kind, _ in parsed(one.decode())]
            if len(told) == 1:
                with file.open("a") as more:
                    more.write("{}\n")
            elif len(told) == 2:
                file.unlink()
            elif len(told) == 3:
                return told
        return told

    assert anyio.run(grow) == ["ready", "grown", "grown"]


def test_streams_end_with_the_server(tmp_path: Path) -> None:
    ending = threading.Event()
    ending.set()

    async def all_of(stream: AsyncIterator[bytes]) -> list[str]:
        return [kind async for one in stream for kind, _ in parsed(one.decode())]

    left = threading.Event()

    def endless(on_progress: Any) -> Any:
        try:
            while True:
                on_progress("checking")
        finally:
            left.set()

    assert anyio.run(all_of, events.growing(list, ending)) == ["ready"]
    assert anyio.run(all_of, events.searching(views.search("none", "a"), ending)) == []
    assert anyio.run(all_of, events.checking(endless, ending)) == []
    assert left.wait(PATIENCE_S)
