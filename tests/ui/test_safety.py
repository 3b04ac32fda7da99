"""Nobody without the token gets anything, nothing outside of the named paths is shown, and data never become markup."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import corpora
import ui_made
from counts import PATIENCE_S
from headrace.errors import ConfigError, OutputError
from headrace.ui import Places, serving
from headrace.ui.app import HEADERS, PAGES
from headrace.ui.places import NotNamedError
from ui_pages import TOKEN, Pages, links

URLS = [*PAGES, "static/ui.css", "none"]


@pytest.mark.parametrize("root", ["/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN.upper()}/", "//", "/%00/"])
def test_without_the_token_there_is_nothing(pages: Pages, root: str) -> None:
    for url in URLS:
        answer = pages.client.get(f"{root}{url}?path=stores/web&token={TOKEN}")
        assert answer.status_code == 403, url
        assert answer.text.startswith("The URL has no valid token")
        assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_every_answer_has_the_headers(pages: Pages) -> None:
    urls = ["", "store?path=stores/web", "store?path=/etc", "static/ui.js", "none", "step?path=run.json&step=x"]
    urls += ["samples?path=stores/captions&number=1", "search?path=stores/web&q=the&first=350"]
    for url in urls:
        answer = pages.client.get(pages.root + url)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, url
    policy = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_pages_are_only_read(pages: Pages, method: str) -> None:
    for url in ("", "store?path=stores/web", "static/ui.css"):
        assert pages.client.request(method, pages.root + url).status_code == 405


@pytest.mark.parametrize("prefix", ["", "/user/me/proxy/8421", "/" + "deep/" * 6 + "p"])
def test_any_prefix_will_do(inside: Path, prefix: str) -> None:
    behind = Pages(prefix=prefix)
    assert "What is here" in behind.get()
    assert "static/ui.css" in behind.get("store?path=stores/web")
    without_slash = behind.client.get(f"{prefix}/{TOKEN}", follow_redirects=False)
    assert (without_slash.status_code, without_slash.headers["location"]) == (307, f"{TOKEN}/")


OUTSIDE = (
    *("/etc/passwd", "/etc", "..", "stores/web/../code", "stores/web/", "./stores/web", "stores", "model"),
    *("data/docs-0.jsonl", "stores/web/headrace.json", "stores//web", ""),
)


@pytest.mark.parametrize("page", ["store", "documents", "search", "samples", "mix", "run", "live"])
def test_paths_that_were_not_found_are_refused(pages: Pages, page: str) -> None:
    """Only the very names that the walk has found are opened: nothing has to be made of a path."""
    for path in OUTSIDE:
        answer = pages.client.get(pages.root + page, params={"path": path, "one": path, "other": path})
        assert answer.status_code in (400, 404), path
        assert "root:" not in answer.text


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "ui.css/..", "theme.py", ""])
def test_only_the_static_files(pages: Pages, name: str) -> None:
    assert pages.client.get(f"{pages.root}static/{name}").status_code in (403, 404)


def test_links_that_lead_outside(tmp_path: Path) -> None:
    private = tmp_path / "private"
    corpora.make(private, 1, 20)
    here = tmp_path / "here"
    corpora.make(here / "own", 2, 20)
    (here / "linked").symlink_to(private)
    (here / "own" / "again.idx").symlink_to(private / "shard-0.idx")
    (here / "own" / "again.bin").symlink_to(private / "shard-0.bin")
    found = Pages(str(here))
    assert "linked" not in found.get()
    assert "not opened" in found.get()
    assert ">40</td>" not in found.get(), "nothing of what the link leads to is told"
    text = found.get(f"store?path={here}/own", 404)
    assert "is a link that leads outside of the named paths" in text
    both = Pages(str(here), str(private))
    assert "<dd>20" not in both.get(f"store?path={here}/own"), "named too, its target is shown: 40 documents"


def test_metrics_that_are_links(tmp_path: Path) -> None:
    ui_made.metrics(tmp_path, steps=1)
    here = tmp_path / "here"
    here.mkdir()
    (here / "metrics-0.jsonl").write_bytes((tmp_path / "metrics-0.jsonl").read_bytes())
    (here / "metrics-1.jsonl").symlink_to(tmp_path / "metrics-1.jsonl")
    path = f"{here}/metrics-{{rank}}.jsonl"
    assert "leads outside" in Pages(str(here)).get(f"live?path={path}", 404)
    assert "2 ranks" in Pages(str(here), path).get(f"live?path={path}"), "named by the user"
    to_come = Pages(str(here), f"{here}/later-{{rank}}.jsonl")
    assert "a loader writes it" in to_come.get(f"live?path={here}/later-{{rank}}.jsonl", 422)
    with pytest.raises(ConfigError, match="folder"):
        Places([f"{here}/none/later-{{rank}}.jsonl"])
    assert Places([path]).kinds() == {path: "metrics"}


def test_a_run_opens_only_stores_that_were_named(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that names stores is data: what it names is opened only below the named paths."""
    monkeypatch.chdir(demo)
    (tmp_path / "run.json").write_bytes((demo / "chats.json").read_bytes())
    alone = Pages(str(tmp_path))
    where = f"path={tmp_path}/run.json"
    assert "is not below the paths that were named" in alone.get(f"fed?{where}&position=3", 400)
    step = alone.get(f"step?{where}&step=1")
    assert "is not below the paths that were named" in step
    assert "talks.jsonl" not in step
    assert "the mix, as it came" in alone.get(f"run?{where}"), "the plan alone says that"
    named = Pages(str(tmp_path), str(demo / "stores"))
    assert "talks.jsonl" in named.get(f"step?{where}&step=1")


def test_a_mix_opens_only_datasets_that_were_named(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(ui_made.MIX.replace("stores/", f"{demo}/stores/"))
    assert "not below the paths" in Pages(str(tmp_path)).get(f"mix?path={tmp_path}/mix.yaml", 400)
    assert "75.000%" in Pages(str(tmp_path), str(demo)).get(f"mix?path={tmp_path}/mix.yaml")


def test_what_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="folder"):
        Places([str(tmp_path / "none")])
    monkeypatch.chdir(tmp_path)
    corpora.make(tmp_path / "pair", 1, 5)
    prefix = Places(["pair/shard-0"])
    assert prefix.check("pair/shard-0", "tokens") == "pair/shard-0"
    assert prefix.may_open("pair/shard-0.bin")
    assert prefix.may_open("pair/shard-0")
    assert not prefix.may_open("pair")
    with pytest.raises(NotNamedError):
        prefix.check("pair", "tokens")
    live = Places(["pair", "metrics-{rank}.jsonl"])
    assert live.check("metrics-{rank}.jsonl", "metrics")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """Markup in the names of files and folders, keys, texts, sources, reasons, metrics and errors."""
    monkeypatch.chdir(tmp_path)
    ui_made.hostile(tmp_path)
    return Pages(".")


def test_data_never_become_markup(hostile: Pages) -> None:
    pending, seen = [""], set()
    while pending and len(seen) < 80:
        url = pending.pop(0)
        if url in seen or url.startswith("static"):
            continue
        seen.add(url)
        answer = hostile.client.get(hostile.root + url)
        assert answer.headers["content-type"].startswith("text/html")
        for mark in ("<script>window", "<img src=x", "<svg onload", "49&amp;amp;", "\u202e"):
            assert mark not in answer.text, url
        # Styles and handlers in markup would not run, and must not be there.
        assert not re.search(r"<[^>]*\s(style|on\w+)=", re.sub(r'"[^"]*"', '""', answer.text)), url
        pending += [link for link in links(answer.text) if link != "./" and not link.startswith("data:image/")]
    pages = {url.partition("?")[0] for url in seen}
    assert pages >= {"store", "documents", "samples", "run", "step", "fed", "live"}


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 & co"))
    corpora.make(place, 1, 9)
    odd = Pages(str(tmp_path))
    [url] = [link for link in links(odd.get()) if link.startswith("store?")]
    assert "caf%E9%20%26%20co" in url
    text = odd.get(url)
    assert "<dd>9" in text
    assert "caf\\udce9" in text, "shown as the escape of the byte"


def test_only_this_machine_and_a_new_token_each_time(demo: Path) -> None:
    """The real command: its URL answers, another does not, and it ends with the signal."""
    program = [sys.executable, "-m", "headrace", "ui", "stores/code", "--port", "0"]
    server = subprocess.Popen(program, cwd=demo, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([A-Za-z0-9_-]{32})/", url)
        assert found is not None
        with urlopen(url) as answer:
            assert b"stores/code" in answer.read()
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{found[1]}/")
        assert refused.value.code == 403
        refused.value.close()
        taken = int(found[1])
        with pytest.raises(OutputError, match=rf"{taken}.*127.0.0.1"):
            serving.serve(Places(["."]), port=taken, on_ready=print)
    finally:
        server.send_signal(signal.SIGINT)
        said = server.communicate(timeout=PATIENCE_S)[1]
    assert said.strip() == "ended"
    assert server.returncode == 0
