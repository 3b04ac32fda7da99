"""Every page that can be reached from the first one is there, and shows what the functions behind it return."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import corpora
import framed_made
import headrace
import media_stores_made
import media_texts
from counts import cases
from headrace import tracing
from headrace.cli import main
from headrace.inspect import views
from headrace.ui import drawing, places
from ui_pages import Pages, links

PAGES = {
    *("", "check", "diff", "documents", "fed", "find", "live", "mix"),
    *("part", "run", "sample", "samples", "search", "step", "store"),
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
            parts = urlsplit(link)
            assert (parts.scheme, parts.netloc, link[:1] == "/") == ("", "", False), f"{url}: {link} leads elsewhere"
            pending.append("" if link == "./" else link)
    assert {name for name in found if not name.startswith("static/")} == PAGES
    assert {name for name in found if name.startswith("static/")} >= {
        "static/ui.css",
        "static/ui.js",
        "static/theme.js",
    }


FIRST_PAGES = (
    *(
        "",
        "store?path=stores/web",
        "documents?path=stores/chats",
        "find?path=stores/web&id=docs-0004",
        "mix?path=mix.yaml",
    ),
    *("search?path=stores/web&q=order", "check?path=stores/web", "samples?path=stores/captions", "run?path=run.json"),
    *("sample?path=stores/captions&number=4", "step?path=chats.json&step=3", "fed?path=chats.json&position=25"),
    *("diff?one=other.json&other=run.json", "diff?one=state-100.json&other=state-200.json"),
    *("live?path=metrics-%7Brank%7D.jsonl", "store?path=stores/captions"),
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
    done = subprocess.run(
        [sys.executable, "-c", FRESH, *FIRST_PAGES],
        cwd=inside,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_first_page(pages: Pages) -> None:
    text = pages.get()
    for path in ("stores/web", "stores/captions", "mix.yaml", "run.json", "metrics-{rank}.jsonl", "state-100.json"):
        assert path in text
    assert text.count("as recorded") == 4
    assert "2 sources, 2 edits, 6,400 samples" in text
    assert "step 100, position 1,600" in text
    assert '1 <span class="soft">of 362' in text, "the record that was dropped"


def test_a_store(pages: Pages) -> None:
    text = pages.get("store?path=stores/web")
    found = views.outline("stores/web")
    assert isinstance(found, views.StoreOutline)
    assert f"{found.tokens:,}" in text
    assert "dropped: bad" in text
    assert "is not a string but a number" in text
    assert "data/docs-1.jsonl" in text
    assert "headrace info stores/web" in text
    assert text.count('<rect class="bar"') >= len(found.histogram)


def test_documents(pages: Pages) -> None:
    text = pages.get("documents?path=stores/chats&first=3&num=2")
    assert "document 3</a>" in text
    assert "document 5</a>" not in text
    assert 'class="on"' in text
    assert "<b>assistant</b>" in text
    assert "data/talks.jsonl, line 4" in text
    one = pages.get("documents?path=stores/web&number=122")
    assert "headrace where stores/web 122" in one
    assert "data/docs-1.jsonl, line 2" in one
    assert "There are no documents from number 9,999" in pages.get("documents?path=stores/web&first=9999")
    assert "has no document 361" in pages.get("documents?path=stores/web&number=361", 400)


def test_what_the_tokeniser_cannot_read_is_shown_as_ids(pages: Pages, inside: Path, tmp_path: Path) -> None:
    (inside / "model").rename(tmp_path / "model")
    try:
        text = pages.get("documents?path=stores/web&number=1")
        assert "ids are shown" in text
        assert "its tokeniser cannot be read" in text
    finally:
        (tmp_path / "model").rename(inside / "model")


def test_find(pages: Pages) -> None:
    assert "document 122</a>" in pages.get("find?path=stores/web&id=docs-0004")
    assert "document 123</a>" in pages.get("find?path=stores/web&input=docs-1.jsonl&line=3")
    assert "no document has the id" in pages.get("find?path=stores/web&id=none")
    assert "became no document" in pages.get("find?path=stores/web&input=docs-0.jsonl&line=121")
    assert "no input ends with" in pages.get("find?path=stores/web&input=other.jsonl&line=1", 400)
    assert "does not keep where" not in pages.get("find?path=stores/code")


def test_samples_and_parts(pages: Pages) -> None:
    assert pages.get("samples?path=stores/captions").count('class="tile"') == 24
    text = pages.get("sample?path=stores/captions&key=004")
    assert "a square on a field of colour, number 4" in text
    assert "has no sample" in pages.get("sample?path=stores/captions&key=none", 400)
    root = f"{pages.root}part?path=stores/captions&number=4&part="
    picture = pages.client.get(root + "jpg&as=picture&side=64")
    assert picture.headers["content-type"] in ("image/png", "image/jpeg")
    saved = pages.client.get(root + "txt")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"] == 'attachment; filename="4.txt"'
    assert saved.text == "a square on a field of colour, number 4"
    some = pages.client.get(root + "txt", headers={"range": "bytes=2-7"})
    assert (some.status_code, some.text, some.headers["content-range"]) == (206, "square", "bytes 2-7/39")
    assert pages.client.get(root + "txt", headers={"range": "bytes=90-"}).status_code == 416
    assert pages.client.get(root + "txt&as=play").status_code == 400
    assert pages.client.get(root + "txt&as=picture").status_code == 400
    assert pages.client.get(root + "none").status_code == 400


def test_parts_of_all_kinds(tmp_path: Path) -> None:
    """Pictures with their boxes, a video, sound, numbers, bytes, and parts that cannot be decoded."""
    place = media_stores_made.mixed(tmp_path / "mixed")
    mixed = Pages(str(place))
    grid = mixed.get(f"samples?path={place}")
    assert grid.count("<img ") == 5
    assert "broken" in grid
    keys = {
        "ocr/1": ['class="boxes"', "b-words"],
        "v/1": ["<video ", "as=play"],
        "v/2": ["<audio "],
        "b/1": ["17", "save"],
    }
    keys["b/2"] = ['class="bad"', "plain caption"]
    for key, marks in keys.items():
        text = mixed.get(f"sample?path={place}&key={key}")
        assert [mark for mark in marks if mark not in text] == [], key
    played = mixed.client.get(
        f"{mixed.root}part?path={place}&number=3&part=mp4&as=play", headers={"range": "bytes=0-99"}
    )
    assert (played.status_code, played.headers["content-type"], len(played.content)) == (206, "video/mp4", 100)
    first = mixed.client.get(f"{mixed.root}part?path={place}&number=3&part=mp4&as=picture")
    assert first.headers["content-type"] == "image/png"
    broken = mixed.client.get(f"{mixed.root}part?path={place}&number=6&part=jpg&as=picture")
    assert broken.status_code == 422


def test_a_mix_with_other_weights(pages: Pages) -> None:
    text = pages.get("mix?path=mix.yaml&budget=4000")
    assert "75.00 %" in text
    assert "was" not in text
    moved = pages.get("mix?path=mix.yaml&budget=4000&w.web=1&w.code=1")
    assert moved.count("50.00 %") == 2
    assert "was 75.00 %" in moved
    assert "weights={&#39;web&#39;: 1.0}" in moved, "what is as in the file is no change"
    assert "expected a number" in pages.get("mix?path=mix.yaml&w.web=much", 400)
    assert "no split" in pages.get("mix?path=mix.yaml&split=other", 400)
    assert "all 0" in pages.get("mix?path=mix.yaml&w.web=0&w.code=0", 400)


def test_a_run_and_its_account(pages: Pages) -> None:
    text = pages.get("run?path=run.json&step=220")
    account = tracing.account(tracing.filed_run("run.json", read_data=False), 220)
    for source in account.sources:
        assert f'title="{source.fed.samples:,}"' in text
    for reason in ("more code", "the loss of text went up"):
        assert reason in text
    assert text.count('class="mark"') == 2
    assert "web 50 % -&gt; 90 %" in text
    part = pages.get("run?path=run.json&first=100&last=199")
    assert part.count('class="mark"') == 1
    assert "expected a whole number" in pages.get("run?path=run.json&step=500", 400)


def test_a_step_and_its_samples(pages: Pages) -> None:
    text = pages.get("step?path=chats.json&step=3&ranks=4&micro=1&by=pairs&rank=2&at=1")
    assert text.count('class="cell') == 8
    assert "Rank 2, micro-step 1" in text
    sources = tracing.Sources(tracing.read_run_file("chats.json"))
    topology = tracing.Topology(ranks=4, micro_batch_size=1)
    [traced] = [one for one in sources.history().step(3, topology=topology, rank=2) if one.micro_step == 1]
    assert f">{traced.position}</a>" in text
    assert f"document {traced.origins[0].document}" in text
    assert "data/talks.jsonl, line" in text
    assert "there is no step 10" in pages.get("step?path=chats.json&step=10", 400)
    assert "expected one of" in pages.get("step?path=chats.json&by=colour", 400)


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
    assert "part?path=stores%2Fcaptions" in picture
    assert "there is no position 640" in pages.get("fed?path=chats.json&position=640", 400)


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


def test_differences(pages: Pages) -> None:
    text = pages.get("diff?one=other.json&other=run.json")
    assert "Step 300 is the first that differs" in text
    assert "<b>weights</b>" in text
    assert "the same from begin to end" in pages.get("diff?one=run.json&other=run.json")
    states = pages.get("diff?one=state-100.json&other=state-200.json")
    assert "both are of" in states
    assert "compare two runs, or two states" in pages.get("diff?one=run.json&other=state-100.json", 400)


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
    assert "the URL names no path" in pages.get("store", 400)
    assert "is a store of tokens" in pages.get("run?path=stores/web", 404)
    damaged = tmp_path / "here"
    damaged.mkdir()
    (damaged / "run.json").write_text('{"kind": "headrace.run", "version": 2, "digest": "0"}')
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
    assert f"<b>{store.num_documents}</b>" in grown.get(f"store?path={tmp_path}/one")


@settings(max_examples=cases(50, 500), deadline=None)
@given(st.floats(1e-9, 1.0))
def test_the_end_of_an_axis(share: float) -> None:
    end = drawing._round_up(share)
    assert share <= end <= min(1.0, 2.5 * share)
    assert round(end / 10 ** np.floor(np.log10(end)), 6) in (1, 2, 4)


def test_heat() -> None:
    assert [drawing.heat_class(value, 0, 8) for value in (0, 4, 8)] == ["q0", "q4", "q8"]
    assert drawing.heat_class(3, 3, 3) == "q3", "where all are alike, none stands out"
