"""Copies from and to URLs, in a store in memory: the bytes of the local copy, whatever ends it on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import copies_made
import headrace
from counts import cases, spread
from headrace.copying import CopyOptions, CopyReport
from headrace.engine.work_folder import upload_scratch
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from memory_stores import MemoryBucket, Stopped, scratch, sent_files, watched

Tool = Callable[[list[str], str], CopyReport]
TOOLS: dict[str, Tool] = {
    "merge": lambda sources, output: headrace.merge(sources, output, options=CopyOptions(shards=40)),
    "merge, keyed": lambda sources, output: headrace.merge(sources, output, options=CopyOptions(format="keyed")),
    "convert": lambda sources, output: headrace.convert(
        sources[0], output, format="keyed", options=CopyOptions(shards=30)
    ),
    "split": lambda sources, output: headrace.split(sources[0], output, into=3),
}


def uploaded(bucket: MemoryBucket, sources: list[str]) -> list[str]:
    for source in sources:
        for suffix in (".bin", ".idx"):
            name = Path(source).parent.name
            bucket.put(f"sources/{name}/pair{suffix}", Path(source + suffix).read_bytes())
    return [f"{bucket.url}/sources/{Path(source).parent.name}/pair" for source in sources]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_the_bytes_of_the_local_copy(bucket: MemoryBucket, sources: list[str], tmp_path: Path, tool: Tool) -> None:
    report = tool(sources, str(tmp_path / "local"))
    wanted = copies_made.files(tmp_path / "local")
    found = tool(sources, f"{bucket.url}/out")
    assert bucket.content("out") == wanted
    assert not scratch()
    assert [store.shards for store in found.stores] == [store.shards for store in report.stores]
    assert (found.inputs, found.documents, found.tokens) == (report.inputs, report.documents, report.tokens)

    again = tool(sources, f"{bucket.url}/out")
    assert any("is already complete" in note and "--overwrite" not in note for note in again.warnings)
    assert bucket.content("out") == wanted


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_sources_at_urls(bucket: MemoryBucket, sources: list[str], tmp_path: Path, tool: Tool) -> None:
    report = tool(sources, str(tmp_path / "local"))
    remote = uploaded(bucket, sources)
    found = tool(remote, f"{bucket.url}/out")
    assert [store.shards for store in found.stores] == [store.shards for store in report.stores]
    known = [(Path(file.path).name, file.size, file.xxh3_128) for file in report.inputs]
    assert [(Path(file.path).name, file.size, file.xxh3_128) for file in found.inputs] == known
    assert all(file.path.startswith(bucket.url) for file in found.inputs)
    ours, wanted = bucket.content("out"), copies_made.files(tmp_path / "local")
    assert ours.keys() == wanted.keys()
    assert all(ours[name] == wanted[name] for name in wanted if not name.endswith("headrace.json"))


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

        def stop(number: int, kind: str, moment: int = moment) -> None:
            if number == moment:
                raise Stopped

        with watched(stop), pytest.raises(Stopped):
            tool(sources, url)
        num_made = len(bucket.content(f"{moment}/.headrace/receipts"))
        with sent_files() as sent:
            tool(sources, url)
        assert bucket.content(str(moment)) == wanted
        assert not scratch()
        num_sent = len({name.removesuffix(".bin").removesuffix(".idx") for name in sent})
        assert num_sent + num_made <= kinds.count("put_files"), "what has a receipt is not made again"


def test_one_shard_lies_on_the_disk(bucket: MemoryBucket, sources: list[str]) -> None:
    seen: list[int] = []

    def look(number: int, kind: str) -> None:
        [folder] = scratch()
        seen.append(len(list(folder.rglob("*.bin"))))

    with watched(look):
        report = TOOLS["merge"](sources, f"{bucket.url}/out")
    assert report.stores[0].num_shards > 2
    assert max(seen) == 1


def test_what_is_there_is_not_replaced(bucket: MemoryBucket, sources: list[str]) -> None:
    url = f"{bucket.url}/out"
    TOOLS["merge"](sources, url)
    before = bucket.content("out")
    with pytest.raises(OutputError, match=r"/out: the place exists and holds 'headrace.json'; name another one"):
        TOOLS["split"](sources, url)
    with pytest.raises(OutputError, match=r"/out: the place exists and holds 'headrace.json'; name another one"):
        headrace.merge(sources[:1], url, dry_run=True)
    with pytest.raises(ConfigError, match=r"/out: overwrite is for local outputs"):
        headrace.merge(sources, url, options=CopyOptions(overwrite=True))
    with pytest.raises(OutputError, match=r"/out: the place exists and holds 'headrace.json'; name another one"):
        headrace.merge(sources, url, plan_only=True)
    with pytest.raises(ConfigError, match=r"http://host/a: objects are written to s3://"):
        headrace.merge(sources, "http://host/a")
    assert bucket.content("out") == before


def test_another_copy_that_was_not_completed_is_named(bucket: MemoryBucket, sources: list[str]) -> None:
    def stop(number: int, kind: str) -> None:
        if number == 4:
            raise Stopped

    with watched(stop), pytest.raises(Stopped):
        TOOLS["merge"](sources, f"{bucket.url}/out")
    before = bucket.content("out")
    with pytest.raises(OutputError, match=r"/out: a copy of other sources, or with other options, was begun there"):
        headrace.merge(sources[:1], f"{bucket.url}/out")
    with pytest.raises(StoreError, match=r"/out: a run writes to this place, and has not completed its output"):
        headrace.open(f"{bucket.url}/out")
    assert bucket.content("out") == before


def test_a_value_that_does_not_fit_leaves_nothing(bucket: MemoryBucket, tmp_path: Path) -> None:
    copies_made.pair(tmp_path / "big" / "pair", [[[1, 2]], [[70_000]]], "int32")
    with pytest.raises(InputError, match="70000"):
        headrace.convert(
            tmp_path / "big" / "pair",
            f"{bucket.url}/out",
            format="indexed",
            options=CopyOptions(dtype="uint16", shards=2),
        )
    assert not bucket.content("out")
    assert not scratch()


def test_a_copy_that_is_complete_removes_what_a_kill_has_left(bucket: MemoryBucket, sources: list[str]) -> None:
    """It was killed between the last request and the removal of its scratch folder."""
    TOOLS["merge"](sources, f"{bucket.url}/out")
    left = upload_scratch(f"{bucket.url}/out")
    (left / "shard").mkdir(parents=True)
    TOOLS["merge"](sources, f"{bucket.url}/out")
    assert not left.exists()
