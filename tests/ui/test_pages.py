"""Every page that can be reached from the first one is there, shows what functions return, and has no size."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import corpora
import framed_made
import headrace
import media_stores_made
import media_texts
from counts import cases
from headrace import tracing
from headrace.cli import main
from headrace.inspect import Description, describe, token_preview, views
from headrace.io import FileSum
from headrace.stores import (
    DocumentLedger,
    KeyInfo,
    Ledger,
    Manifest,
    OutputShard,
    TokenLedger,
    open_tokens,
    save_manifest,
)
from headrace.tracing import save_run
from headrace.ui import drawing, places
from ui_pages import Pages, links

PAGES = {
    *("", "diff", "documents", "fed", "live", "mix"),
    *("run", "samples", "search", "step", "store"),
}


def test_all_pages_are_reached_and_stand_alone(pages: Pages) -> None:
    """Links are relative, so that any prefix will do, and lead to pages that are there."""
    found: dict[str, set[str]] = {}
    pending, seen = [""], set()
    while pending:
        url = pending.pop(0)
        name = urlsplit(url).path
        # Of each page some variants; of links to the first page one.
        if url in seen or len(found.setdefault(name, set())) >= 6:
            continue
        seen.add(url)
        found[name].add(url)
        answer = pages.client.get(pages.root + url)
        assert answer.status_code == 200, f"{url}: {answer.text}"
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        assert "<h1" in answer.text
        for link in links(answer.text):
            if link.startswith("data:image/"):
                continue
            parts = urlsplit(link)
            assert (parts.scheme, parts.netloc, link[:1] == "/") == ("", "", False), f"{url}: {link} leads elsewhere"
            pending.append("" if link == "./" else link)
    assert {name for name in found if not name.startswith("static/")} == PAGES
    assert found.keys() >= {"static/ui.css", "static/ui.js"}


FIRST_PAGES = (
    *("", "store?path=stores/web", "documents?path=stores/chats", "mix?path=mix.yaml", "run?path=run.json"),
    *("search?path=stores/web&id=docs-0004", "search?path=stores/web&q=order"),
    *("samples?path=stores/captions", "store?path=stores/captions"),
    *("samples?path=stores/captions&number=4", "step?path=chats.json&step=3", "fed?path=chats.json&position=25"),
    "diff?one=other.json&other=run.json",
    "live?path=metrics-%7Brank%7D.jsonl",
)
FRESH = """
import os, sys
from ui_pages import Pages
pages, wrong = Pages(), []
for url in sys.argv[1:]:
    if os.fork() == 0:
        os._exit(pages.client.get(pages.root + url).status_code != 200)
    wrong += [url] if os.wait()[1] else []
print(wrong)
"""


def test_every_page_may_be_the_first(inside: Path) -> None:
    """What a page imports is imported by it, and not by another page before: each is asked for in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", FRESH, *FIRST_PAGES]
    done = subprocess.run(program, cwd=inside, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_commands_of_pages_are_commands(pages: Pages) -> None:
    found = {
        html.unescape(text) for url in FIRST_PAGES for text in re.findall("<pre>headrace (.*?)</pre>", pages.get(url))
    }
    assert len(found) >= 10
    for words in sorted(found):
        done = CliRunner().invoke(main, shlex.split(words))
        assert done.exit_code == 0, f"{words}: {done.output}"


WEB, MIX = "path=stores/web", "path=mix.yaml"
SAID = [
    ("", ["stores/web", "stores/captions", "mix.yaml", "run.json", "metrics-{rank}.jsonl", "state-100.json"]),
    ("", ["2 sources, 2 edits, 6,400 samples", "step 100, position 1,600"]),
    ("", ['1 <span class="soft">of 362']),  # the record that was dropped
    ("documents?path=stores/chats&first=3&num=2", [">document 3: ", 'class="on"', "<b>assistant</b>"]),
    ("documents?path=stores/chats&first=3&num=2", ["data/talks.jsonl, line 4"]),
    (f"documents?{WEB}&number=122", ["headrace where stores/web 122", "data/docs-1.jsonl, line 2"]),
    (f"documents?{WEB}&first=9999", ["There are no documents from number 9,999"]),
    (f"search?{WEB}&id=docs-0004", ["document 122</a>"]),
    (f"search?{WEB}&input=docs-1.jsonl&line=3", ["document 123</a>"]),
    (f"search?{WEB}&id=none", ["no document has the id"]),
    (f"search?{WEB}&q=permutation", ["everything was searched; ", " hits in documents 0 to 360"]),
    (f"search?{WEB}&input=docs-0.jsonl&line=121", ["became no document"]),
    (f"mix?{MIX}", ["split train: blend", ">75.000%</td>"]),
    (f"mix?{MIX}&steps=500&batch=8", ["after 500 steps of 8: 4,000 samples", ">epochs</th>"]),
    ("diff?one=other.json&other=run.json", ["step 300: weights of "]),
    ("diff?one=run.json&other=run.json", ["the same from begin to end"]),
]
REFUSED = [
    (f"documents?{WEB}&number=361", "has no document 361"),
    (f"search?{WEB}&input=other.jsonl&line=1", "no input ends with"),
    (f"search?{WEB}&q=a&first=999", "there are 361 to search"),
    (f"search?{WEB}&q=a&first=x", "expected a whole number"),
    (f"mix?{MIX}&steps=much", "expected a whole number"),
    ("run?path=run.json&step=500", "expected a whole number"),
    ("step?path=chats.json&step=10", "there is no step 10"),
    ("fed?path=chats.json&position=640", "there is no position 640"),
    ("samples?path=stores/captions&key=none", "has no sample"),
    ("store", "the URL names no path"),
]
NOT_SAID = [
    ("documents?path=stores/chats&first=3&num=2", ">document 5: "),
    ("search?path=stores/code", "does not keep where"),
]


def test_what_pages_say(pages: Pages) -> None:
    for url, texts in SAID:
        page = pages.get(url)
        assert [text for text in texts if text not in page] == [], url
    for url, text in REFUSED:
        assert text in pages.get(url, 400), url
    for url, text in NOT_SAID:
        assert text not in pages.get(url), url
    assert pages.get().count("as recorded") == 4


def test_a_store(pages: Pages) -> None:
    text = pages.get("store?path=stores/web")
    found = describe("stores/web")
    assert isinstance(found, Description)
    assert f"{found.tokens:,}" in text
    assert "dropped: bad records" in text
    assert "is not a string but the number" in text
    assert "data/docs-1.jsonl" in text
    assert "headrace info stores/web" in text
    assert text.count('<rect class="bar"') >= len(found.keys[0].histogram)


def test_what_the_tokeniser_cannot_read_is_shown_as_ids(pages: Pages, inside: Path, tmp_path: Path) -> None:
    (inside / "model").rename(tmp_path / "model")
    try:
        text = pages.get("documents?path=stores/web&number=1")
        assert "ids are shown" in text
        assert "its tokeniser cannot be read" in text
    finally:
        (tmp_path / "model").rename(inside / "model")


@pytest.mark.parametrize("query", ["first=0", "number=3"])
def test_a_page_of_documents_opens_the_store_once(query: str, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of many files takes time to open; also where its tokeniser is missing, so that ids are shown."""
    opened: list[str] = []

    def counted(path: str, **options: Any) -> Any:
        opened.append(path)
        return open_tokens(path, **options)

    def missing(path: str, **_: object) -> None:
        raise headrace.StoreError(f"{path}: its tokeniser cannot be read")

    monkeypatch.setattr(token_preview, "open_store", counted)
    assert pages.get(f"documents?{WEB}&{query}")
    assert len(opened) == 1
    monkeypatch.setattr(token_preview, "find_texts", missing)
    opened.clear()
    assert "its tokeniser cannot be read" in pages.get(f"documents?{WEB}&{query}")
    assert len(opened) == 1


def test_a_search(pages: Pages) -> None:
    text = pages.get("search?path=stores/web&q=permutation")
    numbers = [str(hit.number) for hit in views.search("stores/web", "permutation").hits]
    assert re.findall(r"<a href=\"documents\?path=stores%2Fweb&amp;number=(\d+)\">", text) == numbers
    assert text.count("<mark>") == len(numbers) > 0
    text = pages.get("search?path=stores/web&q=a")
    assert "50 hits; 50 hits in documents 0 to" in text
    assert re.search(r'<a rel="next" href="search\?path=stores%2Fweb&amp;q=a&amp;first=\d+">Search on from', text)


def test_samples_and_parts(pages: Pages) -> None:
    assert pages.get("samples?path=stores/captions").count('<section class="card">') == 24
    text = pages.get("samples?path=stores/captions&key=004")
    assert "a square on a field of colour, number 4" in text
    assert text.count('<img loading="lazy" alt="" src="data:image/png;base64,') == 1


def test_parts_of_all_kinds(tmp_path: Path) -> None:
    """Pictures, a video, sound, numbers, bytes, and parts that cannot be decoded."""
    place = media_stores_made.mixed(tmp_path / "mixed")
    mixed = Pages(str(place))
    grid = mixed.get(f"samples?path={place}")
    assert (grid.count("<img "), grid.count("<video "), grid.count("<audio ")) == (5, 0, 0)
    assert grid.count("the page of the sample plays it") == 2
    assert "cannot be shown" in grid
    for key, marks in (
        ("ocr/1", ["words_boxes"]),
        ("v/1", ["<video ", "data:video/mp4;base64,"]),
        ("v/2", ["<audio ", "data:audio/"]),
        ("b/1", ["17"]),
        ("b/2", ['class="bad"', "plain caption"]),
    ):
        text = mixed.get(f"samples?path={place}&key={key}")
        assert [mark for mark in marks if mark not in text] == [], key


def test_a_run_and_its_account(pages: Pages) -> None:
    text = pages.get("run?path=run.json&step=220")
    account = tracing.account(tracing.filed_run("run.json", read_data=False), 220)
    for source in account.sources:
        assert f">{source.fed.samples:,}</td>" in text
    for reason in ("more code", "the loss of text went up"):
        assert reason in text
    assert text.count('class="mark"') == 2
    assert "web 50 % -&gt; 90 %" in text
    part = pages.get("run?path=run.json&first=100&last=199")
    assert part.count('class="mark"') == 1


def test_a_step_and_its_samples(pages: Pages) -> None:
    text = pages.get("step?path=chats.json&step=3&ranks=4&micro=1&rank=2&at=1")
    assert text.count('class="cell') == 8
    assert "Rank 2, micro-step 1" in text
    sources = tracing.Sources(tracing.read_run_file("chats.json"))
    topology = tracing.Topology(ranks=4, micro_batch_size=1)
    [traced] = [one for one in sources.history().step(3, topology=topology, rank=2) if one.micro_step == 1]
    assert f">{traced.position}</a>" in text
    assert f"document {traced.origins[0].document}" in text
    assert "data/talks.jsonl, line" in text


def test_a_sample_as_the_model_sees_it(pages: Pages) -> None:
    text = pages.get("fed?path=chats.json&position=25")
    run = tracing.filed_run("chats.json")
    found = views.fed_sample(run, 25)
    assert text.count('class="turn"') == sum(
        len({stretch.role for stretch in one.shown.stretches}) for one in found.segments
    )
    times = tracing.history_of(run).sample(found.source, found.index)
    assert f"{times.count} times before step {times.until_step}" in text
    picture = pages.get("fed?path=captions.json&position=3")
    assert 'src="data:image/png;base64,' in picture


def test_live(pages: Pages) -> None:
    text = pages.get("live?path=metrics-{rank}.jsonl")
    report = views.live_report("metrics-{rank}.jsonl")
    assert report.verdict in text
    assert '3 <span class="tag">waits most' in text
    assert "3 DecodeError in read" in text
    assert "stores/captions/shard-000000.tar" in text
    assert "ranks 2, 3" in text
    assert f"{report.ranks[0].reported[11:]}</td>" in text


def test_live_draws_the_ranks_that_wait_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rank in range(20):
        report = {"step": 1, "position": 16, "rank": rank, "seconds": 1.0, "samples": 4, "wait_read_s": 0.01 * rank}
        (tmp_path / f"metrics-{rank}.jsonl").write_text(json.dumps(report) + "\n")
    text = Pages().get("live?path=metrics-{rank}.jsonl")
    assert "<h2>Rank 19 " in text
    assert re.findall(r"<h3>rank (\d+)</h3>", text) == ["18", "17", "16", "15", "14", "13", "12"]
    assert "the ranks that wait most after it" in text


def test_the_first_page_as_json(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(main, ["ui", "stores", "run.json", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == views.overview(["stores", "run.json"]).to_dict()
    missing = CliRunner().invoke(main, ["ui", "none", "--json"])
    assert missing.exit_code == 2
    assert "there is no such file or folder" in json.loads(missing.stdout)["error"]["message"]
    monkeypatch.delitem(vars(headrace.ui), "serve", raising=False)
    monkeypatch.delitem(sys.modules, "headrace.ui.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(main, ["ui", "stores"])
    assert done.exit_code == 8
    assert "pip install 'headrace[ui]'" in done.output


def test_framed_runs_say_how_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = media_texts.shards(tmp_path / "texts", (12,))
    tracing.save_run(framed_made.framed_run("packs", [place]), tmp_path / "framed.json")
    framed = Pages(".")
    assert "headrace trace step N --run framed.json" in framed.get("run?path=framed.json")
    assert "headrace trace step N --run framed.json" in framed.get("step?path=framed.json&step=1")
    assert "the sample cannot be read" in framed.get("fed?path=framed.json&position=1", 400)


def test_what_is_wrong_says_so(pages: Pages, tmp_path: Path) -> None:
    assert "there is no such page" in pages.get("other", 404)
    assert "is a store of tokens" in pages.get("run?path=stores/web", 404)
    assert "is the state of a loader" in pages.get("diff?one=run.json&other=state-100.json", 404)
    damaged = tmp_path / "here"
    damaged.mkdir()
    (damaged / "run.json").write_text('{"kind": "headrace.run", "version": 3, "digest": "0"}')
    broken = Pages(str(damaged))
    assert "does not match its digest" in re.sub(r"\s+", " ", broken.get())
    assert "digest" in broken.get(f"run?path={damaged}/run.json", 422)


def test_a_store_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What appears, and what becomes longer, is on the next page."""
    monkeypatch.setattr(places, "KEPT_S", 0.0)
    grown = Pages(str(tmp_path))
    assert "Nothing that Headrace knows" in grown.get()
    corpora.make(tmp_path / "one", 1, 30)
    assert ">30</td>" in grown.get()
    corpora.write(tmp_path / "one" / "shard-1", [])
    store = headrace.open(str(tmp_path / "one"))
    assert f"<dd>{store.num_documents}" in grown.get(f"store?path={tmp_path}/one")


@settings(max_examples=cases(25, 500), deadline=None)
@given(st.floats(1e-9, 1.0))
def test_the_end_of_an_axis(share: float) -> None:
    end = drawing._round_up(share)
    assert share <= end <= min(1.0, 2.5 * share)
    assert round(end / 10 ** np.floor(np.log10(end)), 6) in (1, 2, 4)


def test_heat() -> None:
    assert [drawing.heat_class(value, 0, 8) for value in (0, 4, 8)] == ["q0", "q4", "q8"]
    assert drawing.heat_class(3, 3, 3) == "q3", "where all are alike, none stands out"


SHARDS, DOCUMENTS, TOKENS = 1000, 10**6, 64


def write_pair(prefix: Path, num_documents: int, length: int) -> None:
    """Documents of one length, whose tokens are holes that are read as zeros."""
    with Path(f"{prefix}.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, num_documents, num_documents + 1))
        index.write(np.full(num_documents, length, np.int32).tobytes())
        index.write((np.arange(num_documents, dtype=np.int64) * 2 * length).tobytes())
        index.write(np.arange(num_documents + 1, dtype=np.int64).tobytes())
    with Path(f"{prefix}.bin").open("wb") as data:
        data.truncate(2 * num_documents * length)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shard is the same two files: 20 MB in all."""
    root = tmp_path_factory.mktemp("large")
    store = root / "store"
    store.mkdir()
    first = store / "text_document_00000"
    write_pair(first, DOCUMENTS, TOKENS)
    sizes = {suffix: Path(f"{first}{suffix}").stat().st_size for suffix in (".bin", ".idx")}
    outputs = []
    for number in range(SHARDS):
        prefix = f"text_document_{number:05d}"
        for suffix in sizes:
            if number:
                os.link(f"{first}{suffix}", store / f"{prefix}{suffix}")
        files = tuple(
            FileSum(name=prefix + suffix, size=size, xxh3_128="0" * 32, block_bytes=1 << 40, xxh3_64=("0" * 16,))
            for suffix, size in sizes.items()
        )
        keys = {"text": KeyInfo(dtype="uint16", tokens=TOKENS * DOCUMENTS)}
        outputs.append(OutputShard(prefix=prefix, documents=DOCUMENTS, keys=keys, contiguous=True, files=files))
    documents, tokens = SHARDS * DOCUMENTS, SHARDS * DOCUMENTS * TOKENS
    ledger = Ledger(
        documents=DocumentLedger(read=documents, kept=documents), tokens=TokenLedger(made=tokens, kept=tokens)
    )
    save_manifest(store, Manifest(outputs=tuple(outputs), ledger=ledger))
    return root


def test_a_store_of_a_billion_documents(large: Path) -> None:
    found = describe(large / "store")
    assert isinstance(found, Description)
    [key] = found.keys
    assert (found.documents, found.tokens, key.histogram[0].documents) == (10**9, 64 * 10**9, 1 << 13)
    assert (key.looked_at, key.empty_documents, [bar.first for bar in key.histogram]) == (1 << 13, 0, [64])
    pages = Pages(str(large))
    path = f"path={large}/store"
    assert "1,000,000,000" in pages.get()
    assert "from 8,192 documents, evenly spread" in pages.get(f"store?{path}")
    assert ">document 500,000,000: " in pages.get(f"documents?{path}&first=500000000")
    assert "Document 999,999,999" in pages.get(f"documents?{path}&number=999999999")
    assert views.search(large / "store", "1", first=10**9 - 2000).until == 10**9


def test_a_run_of_ten_billion_samples(tmp_path: Path) -> None:
    """A hundred epochs of 10^8 windows, over one file of 12.8 GB that is a hole."""
    write_pair(tmp_path / "web", 400, 1 << 24)
    windows = headrace.WindowDataset(headrace.open(str(tmp_path / "web")), seq_len=TOKENS)
    run = headrace.Run(windows, global_batch_size=4096, samples=10**10)
    save_run(run.edit(10**6, global_batch_size=8192, reason="larger"), tmp_path / "run.json")
    pages = Pages(str(tmp_path))
    path = f"path={tmp_path}/run.json"
    assert "10,000,000,000 samples" in pages.get(f"run?{path}&step=1500000")
    step = pages.get(f"step?{path}&step=900000&ranks=512&micro=8")
    assert "4,096 samples on 512 ranks" in step
    text = pages.get(f"fed?{path}&position=9000000000")
    assert "The sample at position 9,000,000,000" in text
    whole = 10**10 // len(windows)
    assert f"{whole} times before step" in text or f"{whole + 1} times before step" in text, "once in each epoch"
