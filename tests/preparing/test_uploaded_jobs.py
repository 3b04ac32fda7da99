"""Planned jobs whose output is a URL, in a store in memory: hosts share nothing else; the bytes are the local ones."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import jobs_by_hand
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Job, Show
from headrace.engine.shared_objects import SharedObjects
from headrace.errors import OutputError
from headrace.preparing import (
    OutputOptions,
    TextOptions,
    TokenOptions,
    finish_job,
    open_job,
    plan_text,
    prepare_text,
)
from memory_stores import MemoryBucket, memory_bucket

PLAIN = TextOptions(tokens=TokenOptions(append_eod=True, backend="tokenizers"), workers=2, task_bytes=4000)
CASES = {
    "one shard": PLAIN,
    "shards": msgspec.structs.replace(PLAIN, output=OutputOptions(shard_tokens=2500)),
    "shuffled": msgspec.structs.replace(PLAIN, output=OutputOptions(shard_tokens=2500, shuffle=3)),
    "deduplicated": msgspec.structs.replace(PLAIN, deduplicate=True),
}
LOCAL = LocalExecutor(workers=2)


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SharedObjects, "pause_s", 0.0)
    monkeypatch.setattr(SharedObjects, "beat_s", 0.0)
    with jobs_by_hand.small_jobs():
        yield


@pytest.fixture
def bucket() -> Iterator[MemoryBucket]:
    with memory_bucket() as made:
        yield made


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    faults.write_inputs(tmp_path / "in", with_bad=False)
    return tmp_path / "in"


class Hosts:
    """Hosts, each with a scratch folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(self._folder / f"host-{number}"))
            yield

    def left(self) -> list[Path]:
        """What lies in the scratch folders of all hosts, once nobody holds a job any more."""
        gc.collect()
        return list(self._folder.glob("host-*/outputs/*"))


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path / "hosts")


def plan(kit: Any, inputs: Path, url: str, given: TextOptions) -> None:
    assert plan_text([inputs], url, tokenizer=kit.tokenizer, options=given) is None


def local(kit: Any, inputs: Path, folder: Path, given: TextOptions) -> dict[str, bytes]:
    prepare_text([inputs], folder, tokenizer=kit.tokenizer, options=given)
    return faults.content(folder)


def do(job: Job, wanted: list[int]) -> int:
    phase = job.phase()
    if phase is None:
        return 0
    doer = Doer(job, phase, wanted=wanted, workers=1, waits=False, limits=Limits(), on_progress=lambda _: None)
    return doer.run()


@pytest.mark.parametrize("name", CASES)
def test_tasks_on_hosts_that_share_nothing(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: Hosts, tmp_path: Path, name: str
) -> None:
    given = CASES[name]
    wanted = local(kit, inputs, tmp_path / "local", given)
    url = f"{bucket.url}/web"
    with hosts.on(0):
        plan(kit, inputs, url, given)
        plan(kit, inputs, url, given)  # again changes nothing
    assert not hosts.left()
    with hosts.on(1):
        job = open_job(url)
    phase = job.phase()
    assert phase is not None
    assert phase.num_tasks > 5
    order = random.Random(3).sample(range(phase.num_tasks), phase.num_tasks)
    third = len(order) // 3
    for host, some in enumerate((order[:third], order[third // 2 : 2 * third])):  # some of them twice
        with hosts.on(host):
            do(open_job(url), some)
    with hosts.on(2):
        take_part(open_job(url), Limits(), Show(), workers=2)
        assert open_job(url).phase() is None
    assert "web/headrace.json" not in bucket.content()
    del job
    with hosts.on(3):
        manifest = finish_job(url, LOCAL, Show())
        assert bucket.content("web") == wanted
        assert finish_job(url, LOCAL, Show()) == manifest
        with pytest.raises(OutputError, match=r"/web: nothing is planned at this URL, or it is complete"):
            open_job(url)
    assert bucket.content("web") == wanted
    assert not hosts.left()


def test_finish_does_what_is_open(kit: Any, bucket: MemoryBucket, inputs: Path, hosts: Hosts, tmp_path: Path) -> None:
    given = CASES["shards"]
    wanted = local(kit, inputs, tmp_path / "local", given)
    with hosts.on(0):
        plan(kit, inputs, f"{bucket.url}/web", given)
        finish_job(f"{bucket.url}/web", LOCAL, Show())
    assert bucket.content("web") == wanted
    assert not hosts.left()
