"""Copies from and to URLs, planned and not, in a store in memory: the bytes of the local copy, whatever ends them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import copies_made
import headrace
import jobs_by_hand
from counts import cases, spread
from headrace.copying import CopyOptions, CopyReport
from headrace.copying.jobs import CopyJob
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.engine.shared import Shared
from headrace.engine.work_folder import outputs_folder
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io.objects.writer import ObjectWriter
from headrace.kinds import finish_job, open_job
from headrace.preparing.outputs.url import OutputUrl
from memory_stores import MemoryBucket, Stopped, scratch, sent_files, stop_at, watched

Tool = Callable[..., CopyReport]
TOOLS: dict[str, Tool] = {
    "merge": lambda sources, output, **how: headrace.merge(sources, output, options=CopyOptions(shards=40), **how),
    "merge, keyed": lambda sources, output, **how: headrace.merge(
        sources, output, options=CopyOptions(format="keyed"), **how
    ),
    "convert": lambda sources, output, **how: headrace.convert(
        sources[0], output, format="keyed", options=CopyOptions(shards=30), **how
    ),
    "split": lambda sources, output, **how: headrace.split(sources[0], output, into=3, **how),
}


@pytest.fixture
def inline() -> Iterator[None]:
    with jobs_by_hand.inline():
        yield


def do(url: str) -> None:
    job = open_job(url)
    phase = job.phase()
    assert phase is not None
    jobs_by_hand.do(job, phase)


def finish(url: str) -> Any:
    return finish_job(url, LocalExecutor(workers=1), Show())


@pytest.mark.usefixtures("inline")
def test_refusals(bucket: MemoryBucket, sources: list[str]) -> None:
    url = f"{bucket.url}/out"
    with pytest.raises(ConfigError, match="/out"):
        headrace.merge(sources, url, plan_only=True, storage=headrace.Storage())
    TOOLS["merge"](sources, url, plan_only=True)
    with pytest.raises(OutputError, match="/out"):
        TOOLS["split"](sources, url, plan_only=True)
    Path(sources[0] + ".bin").touch()
    with pytest.raises(StoreError, match=r"pair\.bin"):
        do(url)
    with pytest.raises(StoreError, match="planned"):
        finish(url)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_the_bytes_of_the_local_copy_without_a_plan(
    bucket: MemoryBucket, sources: list[str], tmp_path: Path, tool: Tool
) -> None:
    report = tool(sources, str(tmp_path / "local"))
    wanted = copies_made.files(tmp_path / "local")
    found = tool(sources, f"{bucket.url}/out")
    assert bucket.content("out") == wanted
    assert not scratch()
    assert [store.shards for store in found.stores] == [store.shards for store in report.stores]
    assert (found.inputs, found.documents, found.tokens) == (report.inputs, report.documents, report.tokens)

    again = tool(sources, f"{bucket.url}/out")
    assert any("is complete already" in note and "--overwrite" not in note for note in again.warnings)
    assert bucket.content("out") == wanted


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_sources_at_urls_without_a_plan(
    bucket: MemoryBucket, sources: list[str], remote_sources: list[str], tmp_path: Path, tool: Tool
) -> None:
    report = tool(sources, str(tmp_path / "local"))
    found = tool(remote_sources, f"{bucket.url}/out")
    assert [store.shards for store in found.stores] == [store.shards for store in report.stores]
    known = [(Path(file.path).name, file.size, file.xxh3_128) for file in report.inputs]
    assert [(Path(file.path).name, file.size, file.xxh3_128) for file in found.inputs] == known
    assert all(file.path.startswith(bucket.url) for file in found.inputs)
    ours, wanted = bucket.content("out"), copies_made.files(tmp_path / "local")
    assert ours.keys() == wanted.keys()
    assert all(ours[name] == wanted[name] for name in wanted if not name.endswith("headrace.json"))


@pytest.mark.usefixtures("inline")
def test_a_planned_copy_of_sources_at_urls(bucket: MemoryBucket, remote_sources: list[str], tmp_path: Path) -> None:
    TOOLS["merge"](remote_sources, f"{bucket.url}/whole")
    for output in (f"{bucket.url}/out", str(tmp_path / "out")):
        TOOLS["merge"](remote_sources, output, plan_only=True)
        do(output)
        finish(output)
    assert bucket.content("out") == bucket.content("whole") == copies_made.files(tmp_path / "out")


@pytest.mark.parametrize("name", ["merge", "split"])
def test_whatever_ends_a_copy(bucket: MemoryBucket, sources: list[str], tmp_path: Path, name: str) -> None:
    tool = TOOLS[name]
    tool(sources, str(tmp_path / "local"))
    wanted = copies_made.files(tmp_path / "local")
    kinds: list[str] = []
    with watched(lambda number, kind: kinds.append(kind)):
        tool(sources, f"{bucket.url}/counted")
    for moment in sorted(spread(len(kinds), cases(6, 10_000))):
        url = f"{bucket.url}/{moment}"
        with watched(stop_at(moment)), pytest.raises(Stopped):
            tool(sources, url)
        left = bucket.content(f"{moment}/.headrace")
        num_made = sum("/receipts/" in name and b'"files":["' in data for name, data in left.items())
        with sent_files() as sent:
            tool(sources, url)
        assert bucket.content(str(moment)) == wanted
        assert not scratch()
        num_sent = len({name.removesuffix(".bin").removesuffix(".idx") for name in sent})
        assert num_sent + num_made <= kinds.count("put_files"), "what has a receipt is not made again"


def test_one_shard_lies_on_the_disk(bucket: MemoryBucket, sources: list[str]) -> None:
    seen: list[int] = []

    def look(number: int, kind: str) -> None:
        seen.append(sum(len(list(folder.rglob("*.bin"))) for folder in scratch()))

    with watched(look):
        report = TOOLS["merge"](sources, f"{bucket.url}/out")
    assert report.stores[0].num_shards > 2
    assert max(seen) == 1


@pytest.mark.parametrize("name", ["merge", "split"])
def test_a_copy_that_another_process_completes_before_it_begins(
    bucket: MemoryBucket, sources: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url, num_calls, shared = f"{bucket.url}/out", 0, OutputUrl.shared

    def late(place: OutputUrl) -> Shared:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            TOOLS[name](sources, url)
        return shared(place)

    monkeypatch.setattr(OutputUrl, "shared", late)
    report = TOOLS[name](sources, url)
    assert report.warnings[-1] == "another process has completed the copy"
    assert report.stores == TOOLS[name](sources, url).stores
    assert not scratch()


@pytest.mark.parametrize("storage", [None, headrace.Storage()], ids=["environment", "storage"])
def test_a_source_that_changes_before_the_end(
    bucket: MemoryBucket,
    remote_sources: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    storage: headrace.Storage | None,
) -> None:
    """Also in a process that has looked it up before."""
    finish = CopyJob.finish

    def late(job: CopyJob, show: Show) -> CopyReport:
        bucket.put("sources/code/pair.bin", b"x")
        return finish(job, show)

    monkeypatch.setattr(CopyJob, "finish", late)
    with pytest.raises(StoreError, match=r"code/pair\.bin: the file changed"):
        headrace.merge(remote_sources, tmp_path / "out", storage=storage)
    assert not (tmp_path / "out" / "headrace.json").exists()


def test_what_is_there_is_not_replaced(bucket: MemoryBucket, sources: list[str]) -> None:
    url = f"{bucket.url}/out"
    TOOLS["merge"](sources, url)
    before = bucket.content("out")
    for again in (
        lambda: TOOLS["split"](sources, url),
        lambda: headrace.merge(sources[:1], url, dry_run=True),
        lambda: headrace.merge(sources, url, plan_only=True),
    ):
        with pytest.raises(OutputError, match=r"/out: the place (holds the output|is not empty)"):
            again()
    with pytest.raises(ConfigError, match="/out"):
        headrace.merge(sources, url, options=CopyOptions(overwrite=True))
    with pytest.raises(ConfigError, match=r"http://host/a.*s3://"):
        headrace.merge(sources, "http://host/a")
    assert bucket.content("out") == before


def test_another_copy_that_was_not_completed_is_named(bucket: MemoryBucket, sources: list[str]) -> None:
    with watched(stop_at(4)), pytest.raises(Stopped):
        TOOLS["merge"](sources, f"{bucket.url}/out")
    before = bucket.content("out")
    with pytest.raises(OutputError, match="/out"):
        headrace.merge(sources[:1], f"{bucket.url}/out")
    with pytest.raises(StoreError, match="/out"):
        headrace.open(f"{bucket.url}/out")
    assert bucket.content("out") == before


def test_a_value_that_does_not_fit_leaves_nothing(bucket: MemoryBucket, tmp_path: Path) -> None:
    big = copies_made.pair(tmp_path / "big" / "pair", [[[1, 2]], [[70_000]]], "int32")
    options = CopyOptions(dtype="uint16", shards=2)
    with pytest.raises(InputError, match="70000"):
        headrace.convert(big, f"{bucket.url}/out", format="indexed", options=options)
    assert not bucket.content("out")
    assert not scratch()


def test_a_copy_that_is_complete_removes_what_a_kill_has_left(bucket: MemoryBucket, sources: list[str]) -> None:
    """It was killed between the last request and the removal of its scratch folder."""
    TOOLS["merge"](sources, f"{bucket.url}/out")
    left = outputs_folder(f"{bucket.url}/out") / f"task.{platform.node()}.{2**22 + 1}.0"
    left.mkdir(parents=True)
    TOOLS["merge"](sources, f"{bucket.url}/out")
    assert not left.exists()


@pytest.mark.usefixtures("inline")
def test_a_straggler_of_a_discarded_copy_is_noticed(bucket: MemoryBucket, sources: list[str]) -> None:
    """It has begun to send a shard before its plan was removed, and sends it over that of the next plan."""
    url = f"{bucket.url}/out"
    headrace.merge(sources, url, options=CopyOptions(shards=40, format="keyed"), plan_only=True)
    do(url)
    name = next(name for name in bucket.content("out") if name.endswith(".bin"))
    whole = bucket.content("out")[name]
    ObjectWriter().put({f"{url}/{name}": bytes([whole[0] ^ 1]) + whole[1:]})
    with pytest.raises(OutputError, match=name):
        finish(url)
    ObjectWriter().put({f"{url}/{name}": whole})
    finish(url)
    assert bucket.content("out")[name] == whole
