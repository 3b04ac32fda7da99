"""Planned copies whose output is a URL, in a store in memory: shards go to their places from any host."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import copies_made
import headrace
import jobs_by_hand
from counts import cases
from headrace.copying import CopyOptions, CopyReport
from headrace.copying.uploaded import UploadedDestination
from headrace.engine import heartbeat
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.engine.shared_objects import SharedObjects
from headrace.errors import ConfigError, OutputError, StoreError
from headrace.kinds import finish_job, open_job
from memory_stores import MemoryBucket, Stopped, sent_files, watched

Tool = Callable[..., CopyReport]
TOOLS: dict[str, Tool] = {
    "merge": lambda sources, output, **how: headrace.merge(sources, output, options=CopyOptions(shards=40), **how),
    "convert": lambda sources, output, **how: headrace.convert(
        sources[0], output, format="keyed", options=CopyOptions(shards=30), **how
    ),
    "split": lambda sources, output, **how: headrace.split(sources[0], output, into=3, **how),
}


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SharedObjects, "pause_s", 0.0)
    monkeypatch.setattr(SharedObjects, "beat_s", 0.0)
    with jobs_by_hand.inline():
        yield


@pytest.fixture
def on(tmp_path: Path) -> Callable[[int], Any]:
    """Hosts by their numbers, each with a scratch folder of its own."""

    @contextmanager
    def host(number: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(tmp_path / "hosts" / f"{number}"))
            yield

    return host


def left(folder: Path) -> list[Path]:
    gc.collect()
    return list((folder / "hosts").glob("*/outputs/*"))


def do(url: str, chooser: random.Random, most: int | None = None) -> None:
    job = open_job(url)
    if (phase := job.phase()) is None:
        return
    wanted = chooser.sample(list(job.receipts(phase).tasks), phase.num_tasks)[:most]
    Doer(job, phase, wanted=wanted, workers=2, waits=False, limits=Limits(), on_progress=lambda _: None).run()


def finish(url: str) -> Any:
    return finish_job(url, LocalExecutor(workers=1), Show())


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_the_bytes_of_the_local_copy(
    bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any], tool: Tool
) -> None:
    wanted_report = tool(sources, str(tmp_path / "local"))
    wanted = copies_made.files(tmp_path / "local")
    url, chooser = f"{bucket.url}/out", random.Random(1)
    with on(0):
        assert tool(sources, url, plan_only=True).is_dry_run
        assert tool(sources, url, plan_only=True).is_dry_run
    for host in (1, 2):
        with on(host):
            do(url, chooser, 1 if host == 1 else None)
    with on(3), sent_files() as sent:
        report = finish(url)
    assert not sent, "the tasks have sent all shards"
    assert bucket.content("out") == wanted
    assert (report.inputs, report.documents) == (wanted_report.inputs, wanted_report.documents)
    assert any("is already complete" in note for note in tool(sources, url, plan_only=True).warnings)
    assert not left(tmp_path)


@pytest.mark.parametrize("name", ["merge", "split"])
def test_whatever_ends_processes(
    bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any], name: str
) -> None:
    """Each step is ended at a change in the store; two hosts finish at the same time, one of them not to the end."""
    tool = TOOLS[name]
    tool(sources, str(tmp_path / "local"))
    wanted = copies_made.files(tmp_path / "local")
    chooser = random.Random(3)
    num_stopped = 0
    for number in range(cases(4, 100)):
        url = f"{bucket.url}/{number}"
        steps: list[Callable[[], object]] = [
            lambda url=url: tool(sources, url, plan_only=True),
            *[lambda url=url: do(url, chooser, 2)] * 3,
            lambda url=url: finish(url),
        ]
        for step in steps:
            moment = chooser.randrange(12)

            def stop(number: int, kind: str, moment: int = moment) -> None:
                if number == moment:
                    raise Stopped

            with on(chooser.randrange(3)), watched(stop):
                try:
                    step()
                except Stopped:
                    num_stopped += 1
            if step is steps[0]:
                with on(0):
                    step()
        with on(0):
            tool(sources, url)  # the same command without a plan does what is left
        assert bucket.content(str(number)) == wanted
    assert num_stopped > 3


def test_a_shard_that_comes_late_leaves_nothing(
    bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any]
) -> None:
    url = f"{bucket.url}/out"
    with on(0):
        TOOLS["split"](sources, url, plan_only=True)
    is_met = False

    def meet(number: int, kind: str) -> None:
        nonlocal is_met
        if kind == "put_files" and not is_met:
            is_met = True
            with on(1):
                finish(url)

    with on(2), watched(meet), pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat, "process_exists", lambda process: False)
        do(url, random.Random(0))
    TOOLS["split"](sources, str(tmp_path / "local"))
    assert is_met
    assert bucket.content("out") == copies_made.files(tmp_path / "local")
    assert not left(tmp_path)


def test_what_a_killed_process_has_left(
    bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes when its host looks for a job again, also if another host has completed it."""
    url = f"{bucket.url}/out"
    with on(0):
        TOOLS["merge"](sources, url, plan_only=True)
        do(url, random.Random(0))

    def stop(number: int, kind: str) -> None:
        if list((tmp_path / "hosts").glob("1/outputs/*/job")):
            raise Stopped

    with on(1), watched(stop), monkeypatch.context() as patch:
        # A process that is killed removes nothing, but no longer holds its lock.
        patch.setattr(UploadedDestination, "_leave", lambda self: self._claimed.leave(lambda: None))
        with pytest.raises(Stopped):
            finish(url)
    assert len(left(tmp_path)) == 1
    with on(1):
        do(url, random.Random(0))
    assert len(left(tmp_path)) == 1, "the job is not over"
    with on(2):
        finish(url)
    with on(1), pytest.raises(OutputError, match="nothing is planned at this URL, or it is complete"):
        open_job(url)
    assert not left(tmp_path)


def test_refusals(bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any]) -> None:
    url = f"{bucket.url}/out"
    with pytest.raises(ConfigError, match=r"/out: storage is for this process alone, and others do what is planned"):
        headrace.merge(sources, url, plan_only=True, storage=headrace.Storage())
    TOOLS["merge"](sources, url, plan_only=True)
    with pytest.raises(OutputError, match=r"/out: a copy of other sources, or with other options, was begun there"):
        TOOLS["split"](sources, url, plan_only=True)
    Path(sources[0] + ".bin").touch()
    with pytest.raises(StoreError, match=r"pair\.bin: the file changed since the copy was planned; remove what is bel"):
        do(url, random.Random(0))
    with pytest.raises(StoreError, match=r"the file changed since the copy was planned"):
        finish(url)


def test_sources_at_urls(bucket: MemoryBucket, sources: list[str], tmp_path: Path, on: Callable[[int], Any]) -> None:
    remote = []
    for source in sources:
        name = Path(source).parent.name
        for suffix in (".bin", ".idx"):
            bucket.put(f"sources/{name}/pair{suffix}", Path(source + suffix).read_bytes())
        remote.append(f"{bucket.url}/sources/{name}/pair")
    headrace.merge(remote, f"{bucket.url}/whole", options=CopyOptions(shards=40))
    wanted = bucket.content("whole")
    for output in (f"{bucket.url}/out", str(tmp_path / "out")):
        with on(0):
            TOOLS["merge"](remote, output, plan_only=True)
        with on(1):
            do(output, random.Random(2))
        with on(2):
            finish(output)
    assert bucket.content("out") == wanted
    assert copies_made.files(tmp_path / "out") == wanted
