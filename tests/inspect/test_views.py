"""What the pages show: against `describe`, against scans by hand, and at every bound."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import corpora
import headrace
import previews_made
import ui_made
from counts import cases
from headrace import inspect, tracing
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.waits import STAGES, RankWaits, verdict_of
from headrace.errors import ConfigError, InputError
from headrace.inspect import description, views
from headrace.inspect.views import finding, overviews
from headrace.preparing import PrepareOptions, prepare
from headrace.samples.recipe import parse_recipe
from headrace.tracing.curves import samples_of
from memory_stores import Away, MemoryBucket
from token_shards import write_keyed


def test_what_is_below(inside: Path) -> None:
    found = views.overview(["."])
    assert {entry.path: entry.kind for entry in found.entries} == {
        "stores/captions": "samples",
        "stores/chats": "tokens",
        "stores/code": "tokens",
        "stores/web": "tokens",
        "mix.yaml": "mix",
        **dict.fromkeys(("captions.json", "chats.json", "other.json", "run.json"), "run"),
        **dict.fromkeys(("state-100.json", "state-200.json"), "state"),
        "metrics-{rank}.jsonl": "metrics",
    }
    [web] = [entry for entry in found.entries if entry.path == "stores/web"]
    described = inspect.describe("stores/web")
    assert isinstance(described, inspect.Description)
    assert (web.documents, web.tokens, web.health) == (described.documents, described.tokens, "as recorded")
    assert web.ledger == described.ledger
    named = views.overview(["stores/web", "run.json", "data/web", "none"])
    assert [entry.path for entry in named.entries] == ["stores/web", "run.json"]
    assert named.notes == tuple(f"{path}: there is nothing that Headrace knows" for path in ("data/web", "none"))
    assert msgspec.json.encode(found.to_dict())


def test_a_store_that_is_away(demo: Path, bucket: MemoryBucket, away: Away) -> None:
    url = bucket.upload(demo / "stores" / "web", "web")
    away(0)
    entry = views.entry_at(url, "tokens")
    assert (entry.health, entry.problem) == ("not recorded", f"{url}: cannot be read: the store is away")


def test_health(demo: Path, tmp_path: Path) -> None:
    def entry(name: str) -> views.OverviewEntry:
        [found] = views.overview([tmp_path / name]).entries
        return found

    shutil.copytree(demo / "stores" / "web", tmp_path / "short")
    data = tmp_path / "short" / "text_document.bin"
    data.write_bytes(data.read_bytes()[:-1])
    assert entry("short").health == "damaged"
    assert "text_document.bin: has" in entry("short").problem
    data.unlink()
    assert "No such file" in entry("short").problem
    shutil.copytree(demo / "stores" / "web", tmp_path / "flipped")
    manifest = tmp_path / "flipped" / "headrace.json"
    manifest.write_text(manifest.read_text().replace('"kept": 361', '"kept": 362'))
    assert entry("flipped").health == "damaged"
    (tmp_path / "begun" / ".headrace").mkdir(parents=True)
    assert (entry("begun").is_unfinished, entry("begun").problem) == (True, "")
    corpora.make(tmp_path / "bare", 1, 9)
    assert (entry("bare").health, entry("bare").documents) == ("not recorded", 9)


def test_bounds_of_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpora.make(tmp_path / "a" / "b" / "c", 1, 5)
    corpora.make(tmp_path / ".hidden", 1, 5)
    assert [Path(entry.path).name for entry in views.overview([tmp_path]).entries] == ["c"]
    monkeypatch.setattr(overviews, "MAX_DEPTH", 2)
    cut = views.overview([tmp_path])
    assert not cut.entries
    assert "are not looked into" in cut.notes[0]
    monkeypatch.setattr(overviews, "OPENED_FILES", 1)
    [many] = views.overview([tmp_path / "a" / "b" / "c"]).entries
    assert many.documents is None, "a store of many files without a manifest is not opened"


def test_loose_files_beside_a_run_are_both_found(tmp_path: Path) -> None:
    corpora.make(tmp_path, 1, 5)
    corpora.make(tmp_path / "below", 1, 5)
    (tmp_path / "metrics-0.jsonl").write_text('{"step": 1, "position": 8, "rank": 0, "seconds": 1.0}\n')
    kinds = [entry.kind for entry in views.overview([tmp_path]).entries]
    assert sorted(kinds) == ["metrics", "tokens", "tokens"]


def test_tokens_by_input(inside: Path) -> None:
    for path in ("stores/web", "stores/chats", "stores/code"):
        found = described(path)
        assert found.keys[0].looked_at == found.documents
        assert sum(one.tokens for one in found.by_input) in (0, found.keys[0].tokens)


def described(path: str | Path) -> inspect.Description:
    found = inspect.describe(path)
    assert isinstance(found, inspect.Description)
    return found


def test_a_sample_of_the_documents_is_stated(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "LOOKED_AT", 128)
    monkeypatch.setattr(description, "EXACT_DOCUMENTS", 360)
    found = described("stores/web")
    [key] = found.keys
    assert (key.looked_at, found.documents, found.tokens) == (128, 361, headrace.open("stores/web").num_tokens)
    documents = description.spread_documents(361, 128)
    assert len(set(documents.tolist())) == 128
    lengths = headrace.open("stores/web").lengths[documents]
    assert sum(bar.documents for bar in key.histogram) == 128
    assert sum(bar.tokens for bar in key.histogram) == lengths.sum()
    assert sum(one.documents for one in found.by_input) == 128
    assert any(line.startswith("inputs (3), of 128 documents") for line in found.lines())


@pytest.mark.usefixtures("warm_workers")
def test_domains(inside: Path, tmp_path: Path) -> None:
    """The parts of a store that have folders of their own add up to the store."""
    rows = [{"text": f"text number {number}", "source": ("books", "news")[number % 3 == 0]} for number in range(30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"type": "seq", "inputs": str(tmp_path / "in.jsonl"), "tokenizer": "model"}
    parsed = parse_recipe(json.dumps({**recipe, "output": {"domain_key": "source"}}))
    prepare([], tmp_path / "out", recipe=parsed, options=PrepareOptions(workers=1))
    found = described(tmp_path / "out")
    assert {one.name: one.documents for one in found.domains} == {"books": 20, "news": 10}
    assert sum(one.tokens for one in found.domains) == found.tokens
    assert described("stores/web").domains == ()
    [entry] = views.overview([tmp_path / "out"]).entries
    assert entry.documents == 30


@settings(max_examples=cases(15, 300), deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 4))
def test_documents_are_spread_evenly(num_documents: int, power: int) -> None:
    most = 64 << power
    found = description.spread_documents(num_documents, most)
    assert len(found) == min(num_documents, most)
    assert (np.diff(found) > 0).all()
    assert 0 <= found[0] <= found[-1] < num_documents
    assert (int(found[0]), int(found[-1])) == (0, num_documents - 1)


@pytest.fixture
def texts(inside: Path) -> list[str]:
    lines = [line for number in range(3) for line in Path(f"data/docs-{number}.jsonl").read_text().splitlines()]
    found = [json.loads(line)["text"] for line in lines]
    return [text + "<|endoftext|>" for text in found if isinstance(text, str)]


@pytest.mark.parametrize("wanted", ["the order", "THE ORDER", "xyzzy", "e", "{{7*7}}", "\n- "])
def test_a_search_finds_what_is_there(texts: list[str], wanted: str) -> None:
    found = views.search("stores/web", wanted, max_hits=10_000)
    expected = [number for number, text in enumerate(texts) if wanted.casefold() in text.casefold()]
    assert [hit.number for hit in found.hits] == expected
    assert (found.until, found.total, found.why) == (361, 361, "everything was searched")
    for hit in found.hits:
        text = texts[hit.number].casefold()
        at = text.index(wanted.casefold())
        assert hit.match.casefold() == wanted.casefold()
        assert text[:at].endswith(hit.before.casefold())
        assert text[at + len(wanted) :].startswith(hit.after.casefold())


@pytest.mark.usefixtures("inside")
def test_a_search_goes_on_where_it_ended() -> None:
    whole = views.search("stores/web", "the", max_hits=10_000).hits
    parts: list[views.SearchHit] = []
    first, ends = 0, []
    while first < 361:
        found = views.search("stores/web", "the", first=first, max_tokens=3000, max_hits=7)
        parts += found.hits
        assert found.first == first < found.until
        first = found.until
        ends.append(found.why.split()[-1])
    assert parts == [*whole]
    assert {"hits", "read", "searched"} >= set(ends)
    assert len(ends) > 5


def test_a_search_reads_no_more_than_is_asked(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = finding._hit

    def counted(*given: object) -> object:
        nonlocal read
        read += 1
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(finding, "_hit", counted)
    found = views.search("stores/web", "xyzzy", max_tokens=1000)
    assert found.why.endswith(" tokens were read")
    assert read == found.until < 361


def test_searches_of_other_stores(inside: Path, tmp_path: Path) -> None:
    found = views.search("stores/captions", "A CIRCLE")
    assert [(hit.key, hit.part) for hit in found.hits] == [(f"{number:03d}", "txt") for number in range(0, 24, 3)]
    found = views.search("stores/captions", "hostile", max_samples=64)
    assert [(hit.key, hit.part, hit.match) for hit in found.hits] == [("hostile", "key", "hostile")]
    assert found.why == "everything was searched"
    write_keyed(tmp_path / "ids", tokens=("int32", [np.array([5, 17, 23]), np.array([17, 5])]))
    found = views.search(str(tmp_path / "ids"), "17 23")
    assert [hit.number for hit in found.hits] == [0], "without a tokeniser ids are searched"
    previews_made.store(tmp_path / "dpo", "dpo")
    found = views.search(str(tmp_path / "dpo"), " ")
    assert [hit.part for hit in found.hits] == ["chosen"], "of several keys the first that has it"
    with pytest.raises(ConfigError, match="empty"):
        views.search("stores/web", "")
    with pytest.raises(ConfigError, match="361"):
        views.search("stores/web", "a", first=362)


def test_find(inside: Path) -> None:
    where = inspect.where("stores/web", 200).to_dict()["documents"][0]
    assert views.find_document("stores/web", input=where["input"], line=where["number"]).number == 200
    assert views.find_document("stores/web", id=where["id"]).number == 200
    assert views.find_document("stores/web", id="none") == views.FoundDocument(
        number=None, why="no document has the id 'none'"
    )
    for wrong in ({}, {"id": "a", "input": "b", "line": 1}, {"input": "b"}):
        with pytest.raises(ConfigError, match="pass"):
            views.find_document("stores/web", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"3.*'\.jsonl'"):
        views.find_document("stores/web", input=".jsonl", line=1)
    with pytest.raises(ConfigError, match="where"):
        views.find_document("stores", id="a")


def test_live(tmp_path: Path) -> None:
    ui_made.metrics(tmp_path)
    path = f"{tmp_path}/metrics-{{rank}}.jsonl"
    report = views.live_report(path)
    waits = []
    for rank in range(4):
        total = RankWaits(rank=rank)
        for line in (tmp_path / f"metrics-{rank}.jsonl").read_text().splitlines():
            one = json.loads(line)
            stages = {stage: one[f"wait_{stage}_s"] for stage in STAGES}
            total.add(RankWaits(rank=rank, seconds=one["seconds"], samples=one["samples"], stages=stages))
        waits.append(total)
        assert report.ranks[rank].wait_share == pytest.approx(total.wait_share)
    assert report.verdict == verdict_of(waits)
    assert (report.slowest, report.files, report.skipped_lines) == (3, 4, 0)
    assert report.ranks[3].faults == {"DecodeError in read": 3}
    assert [(one.source, one.share, one.planned) for one in report.mix] == [("web", 0.76, 0.75), ("code", 0.24, 0.25)]
    ui_made.metrics(tmp_path, steps=1, first=60)
    with (tmp_path / "metrics-2.jsonl").open("a") as file:
        file.write('{"rank": 2, "verdict": "not data-bound"}\n{"step": 61, "pos')
    grown = views.live_report(path)
    assert [rank.step for rank in grown.ranks] == [60] * 4
    assert (grown.ranks[2].verdict, grown.skipped_lines) == ("not data-bound", 1)
    one_file = views.live_report(tmp_path / "metrics-1.jsonl")
    assert [rank.rank for rank in one_file.ranks] == [1]


def test_live_reads_the_end_of_long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.inspect.views import lives

    ui_made.metrics(tmp_path, steps=300)
    monkeypatch.setattr(lives, "TAIL_BYTES", 20_000)
    report = views.live_report(tmp_path / "metrics-0.jsonl")
    assert report.ranks[0].step == 299
    assert len(report.ranks[0].points) < lives.SHOWN_REPORTS
    assert report.skipped_lines == 0
    (tmp_path / "none.jsonl").write_text('not json\n[1]\n{"rank": "x"}\n')
    empty = views.live_report(tmp_path / "none.jsonl")
    assert (empty.ranks, empty.slowest, empty.verdict) == ((), None, "nothing was watched yet")
    for missing in ("gone.jsonl", "gone-{rank}.jsonl"):
        with pytest.raises(InputError):
            views.live_report(tmp_path / missing)


@pytest.mark.parametrize("steps", [1, 7, 4000, 10**9])
@pytest.mark.usefixtures("inside")
def test_the_numbers_of_a_mix(steps: int) -> None:
    """The counts are those of a run, to the sample."""
    found = inspect.describe("mix.yaml", steps=steps, global_batch_size=1)
    assert isinstance(found, inspect.MetadatasetDescription)
    root = found.splits["train"]
    run = headrace.Run(load_dataset("mix.yaml").train(), global_batch_size=1)
    assert sum(node.seen or 0 for node in root.children) == root.seen == steps
    assert sum(node.share for node in root.children) == pytest.approx(1)
    for node in root.children:
        assert node.epochs == pytest.approx((node.seen or 0) / (node.samples or 1))
    assert {node.name: node.seen for node in root.children if node.seen} == samples_of(run.plan, 0, steps)


@pytest.mark.parametrize("name", ["run.json", "chats.json"])
def test_a_fed_sample_is_what_training_gets(inside: Path, name: str) -> None:
    run = tracing.filed_run(name)
    for position in (0, 3, 20, 77):
        found = views.fed_sample(run, position)
        step = run.schedule.step_of(position)
        batch = run.step(step)
        row = batch["sample_positions"].tolist().index(position)
        ids, labels = batch["input_ids"][row], batch["labels"][row]
        shown = [number for one in found.segments for part in one.shown.stretches for number in part.ids]
        assert shown == ids[: found.places - found.pads].tolist()
        trained = [part.is_trained for one in found.segments for part in one.shown.stretches for _ in part.ids]
        # The label at a place is the token that comes next.
        assert trained == [False, *(labels[: len(shown) - 1] != -100).tolist()]
        for one in found.segments:
            assert one.origin is not None
            store = headrace.open(one.origin.store)
            begin = one.origin.begin or 0
            document = store.document(one.origin.document or 0)[begin : begin + one.shown.num_tokens]
            assert [number for part in one.shown.stretches for number in part.ids] == document.tolist()
        assert found.note == ""


def test_fed_records_and_media(inside: Path, tmp_path: Path) -> None:
    store = headrace.open("stores/chats")
    collation = headrace.datasets.Collation(max_length=40, over_long="truncate_right")
    run = headrace.Run(headrace.SFTDataset(store, collation), global_batch_size=4)
    found = views.fed_sample(run, 2)
    [segment] = found.segments
    assert (found.places, found.pads, segment.shown.num_tokens) == (40, 0, 40)
    previews_made.store(tmp_path / "dpo", "dpo")
    pairs = headrace.Run(headrace.PreferenceDataset(headrace.open(str(tmp_path / "dpo"))), global_batch_size=1)
    assert [one.shown.name for one in views.fed_sample(pairs, 0).segments] == ["chosen", "rejected"]
    captions = views.fed_sample(tracing.filed_run("captions.json"), 5)
    assert captions.parts is not None
    assert [part.kind for part in captions.parts.shown.parts] == ["image", "text"]
    ids = views.fed_sample(run, 2, may_open=lambda path: False)
    assert "is not below the paths that were named" in ids.note
    with pytest.raises(ConfigError, match="240"):
        views.fed_sample(tracing.filed_run("captions.json"), 240)
