"""Planned runs over media whose output is a URL, in a store in memory: hosts share nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import jobs_by_hand
import memory_stores
from counts import cases
from headrace.engine import doing, heartbeat
from headrace.engine.doing import Limits
from headrace.engine.executors import LocalExecutor, drive, take_part
from headrace.engine.job import Show
from headrace.engine.shared_objects import SharedObjects
from headrace.errors import InputError, OutputError, StoreError
from headrace.preparing import finish_job, open_job, plan_shards, prepare_shards
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource
from memory_stores import MemoryBucket, Stopped, sent_files, watched
from shards_made import image, inline, rows, write_pictures, write_table

PARTS = tuple(map(PartSpec.parse, ("jpg=path:file", "txt=column:caption", "raw=bytes:raw", "json=row")))
CASES = {
    "tables": ShardOptions(
        source=ShardSource(parts=PARTS, key_field="id"), output=ShardOutput(shard_bytes=20_000, split_ratio=(8, 1, 1))
    ),
    "shuffled": ShardOptions(
        source=ShardSource(parts=PARTS, key_field="id"), output=ShardOutput(samples_per_shard=9, shuffle=7)
    ),
    "folder": ShardOptions(source=ShardSource(captions="captions.csv"), output=ShardOutput(samples_per_shard=9)),
}
LOCAL = LocalExecutor(workers=2)


@pytest.fixture(autouse=True)
def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SharedObjects, "pause_s", 0.0)
    monkeypatch.setattr(SharedObjects, "beat_s", 0.0)
    monkeypatch.setattr("headrace.engine.executors.REFRESH_S", 0.0)
    monkeypatch.setattr(heartbeat, "STALE_S", 0.0)
    monkeypatch.setattr(doing, "REFRESH_S", 0.0)
    write_pictures(tmp_path, 40)
    records = [{**row, "raw": image(number)} for number, row in enumerate(rows(40))]
    write_table(Path("a.jsonl"), records[:25])
    write_table(Path("c.parquet"), records[25:])
    captions = [{"file_name": f"{number:03d}.jpg", "text": f"caption {number}"} for number in range(40)]
    write_table(Path("captions.csv"), captions)
    with inline(), jobs_by_hand.inline():
        yield


@pytest.fixture
def hosts(tmp_path: Path) -> jobs_by_hand.Hosts:
    return jobs_by_hand.Hosts(tmp_path / "hosts")


def inputs(case: str) -> list[str]:
    return ["pictures"] if case == "folder" else ["a.jsonl", "c.parquet"]


def local(case: str) -> dict[str, bytes]:
    prepare_shards(inputs(case), "local", options=CASES[case])
    return faults.content(Path("local"))


def some_tasks(url: str, chooser: random.Random) -> None:
    job = open_job(url)
    if (phase := job.phase()) is not None:
        jobs_by_hand.do_here(job, chooser.choices(job.receipts(phase).tasks, k=4))


@pytest.mark.parametrize("case", CASES)
def test_tasks_on_hosts_that_share_nothing(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = local(case)
    url = f"{bucket.url}/media"
    chooser = random.Random(1)
    with hosts.on(0):
        plan_shards(inputs(case), url, options=CASES[case])
        plan_shards(inputs(case), url, options=CASES[case])  # again changes nothing
    assert not hosts.left()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    phases = []
    for host in (1, 2, 3, 4):
        with hosts.on(host):
            job = open_job(url)
            phase = job.phase()
            assert phase is not None
            phases.append(phase.name.partition("-")[0])
            if host % 2:
                some_tasks(url, chooser)
            else:
                jobs_by_hand.do_here(job, list(job.receipts(phase).tasks))
                job.advance(phase, Show())
    assert phases == ["survey", "survey", "write", "write"]
    assert "media/headrace.json" not in bucket.content()
    with hosts.on(5), sent_files() as sent:
        manifest = finish_job(url, LOCAL, Show())
        assert not any(name.endswith(".tar") for name in sent), "the tasks have sent all shards"
        assert bucket.content("media") == wanted
        assert finish_job(url, LOCAL, Show()) == manifest
        with pytest.raises(OutputError, match=r"/media: nothing is planned at this URL, or it is complete"):
            open_job(url)
    del job
    if case == "folder":
        monkeypatch.chdir(tmp_path)
        plan_shards(inputs(case), url, options=CASES[case])  # it is complete
    assert bucket.content("media") == wanted
    assert not hosts.left()


@pytest.mark.parametrize("case", CASES)
def test_whatever_ends_processes(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, case: str) -> None:
    """Planning, doing tasks and finishing are each ended at a change in the store, on one host, and go on on others."""
    wanted = local(case)
    chooser = random.Random(5)
    num_stopped = 0
    for number in range(cases(2, 100)):
        url = f"{bucket.url}/{number}"
        steps: list[Callable[[], object]] = [
            lambda url=url: plan_shards(inputs(case), url, options=CASES[case]),
            *[lambda url=url: some_tasks(url, chooser)] * 3,
            *[lambda url=url: take_part(open_job(url), Limits(most=6), Show(), workers=1)] * 4,
            lambda url=url: finish_job(url, LOCAL, Show()),
        ]
        for step in steps:
            for _ in range(2):
                with hosts.on(chooser.randrange(3)), watched(memory_stores.stop_at(chooser.randrange(30))):
                    try:
                        step()
                        break
                    except Stopped:
                        num_stopped += 1
            else:
                with hosts.on(chooser.randrange(3)):
                    step()
        with hosts.on(0):
            finish_job(url, LOCAL, Show())
        assert bucket.content(str(number)) == wanted
    assert num_stopped > 2


@pytest.mark.parametrize("moment", [1, 12])
def test_two_hosts_finish_at_the_same_time(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, moment: int) -> None:
    wanted = local("tables")
    url = f"{bucket.url}/media"
    with hosts.on(0):
        plan_shards(inputs("tables"), url, options=CASES["tables"])
        take_part(open_job(url), Limits(), Show(), workers=2)
    found: list[Any] = []

    def meet(number: int, kind: str) -> None:
        if number >= moment and not found:
            found.append(None)
            with hosts.on(2):
                found[0] = finish_job(url, LOCAL, Show())

    with hosts.on(1), watched(meet):
        assert finish_job(url, LOCAL, Show()) == found[0]
    assert bucket.content("media") == wanted
    assert not hosts.left()


def test_two_hosts_plan_at_the_same_time(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    wanted = local("folder")
    url = f"{bucket.url}/media"
    jobs: list[Any] = []

    def meet(number: int, kind: str) -> None:
        names = bucket.content("media")
        if not jobs and any("/listings/" in name for name in names) and ".headrace/plan.json" not in names:
            jobs.append(None)
            with hosts.on(1):
                plan_shards(inputs("folder"), url, options=CASES["folder"])
                jobs[0] = open_job(url)

    with hosts.on(0), watched(meet):
        plan_shards(inputs("folder"), url, options=CASES["folder"])
    assert jobs[0].is_planned, "the plan that came first stays"
    with hosts.on(2):
        finish_job(url, LOCAL, Show())
    jobs.clear()
    assert bucket.content("media") == wanted
    assert not hosts.left()


def test_a_finisher_that_ended_after_the_manifest_was_there(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    wanted = local("folder")
    url = f"{bucket.url}/media"
    with hosts.on(0):
        plan_shards(inputs("folder"), url, options=CASES["folder"])
        take_part(open_job(url), Limits(), Show(), workers=2)

    def end(number: int, kind: str) -> None:
        if kind == "delete":
            raise Stopped

    with hosts.on(1), watched(end), pytest.raises(Stopped):
        finish_job(url, LOCAL, Show())
    assert {"headrace.json", ".headrace/plan.json"} <= bucket.content("media").keys()
    with hosts.on(2):
        finish_job(url, LOCAL, Show())
    assert bucket.content("media") == wanted


def test_a_finisher_waits_for_the_process_that_plans_the_shards(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts
) -> None:
    """The other process dies while it plans; it is taken for alive until its note has not changed for a while."""
    wanted = local("folder")
    url = f"{bucket.url}/media"
    with hosts.on(0):
        plan_shards(inputs("folder"), url, options=CASES["folder"])
        job = open_job(url)
        phase = job.phase()
        assert phase is not None
        jobs_by_hand.do_here(job, list(job.receipts(phase).tasks))

    def die(number: int, kind: str) -> None:
        if kind == "put_files":
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedObjects, "forget", lambda self, name: None)
        with hosts.on(1), watched(die), pytest.raises(Stopped):
            job.advance(phase, Show())
    notices: list[str] = []
    with hosts.on(2):
        drive(open_job(url), LOCAL, Show(notice=notices.append))
    assert [notice for notice in notices if "waiting" in notice] == [
        f"{url}: another process plans the shards: waiting for it"
    ]
    assert bucket.content("media") == wanted


def test_a_shard_that_comes_late_leaves_nothing(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    """Another host does the same shard, and the job is completed, before this one shows its results."""
    wanted = local("folder")
    url = f"{bucket.url}/media"
    with hosts.on(0):
        plan_shards(inputs("folder"), url, options=CASES["folder"])
        job = open_job(url)
        phase = job.phase()
        assert phase is not None
        jobs_by_hand.do_here(job, list(job.receipts(phase).tasks))
        job.advance(phase, Show())
    is_met = False

    def meet(number: int, kind: str) -> None:
        nonlocal is_met
        if kind == "put_files" and not is_met:
            is_met = True
            with hosts.on(1):
                finish_job(url, LOCAL, Show())

    with hosts.on(2), watched(meet), pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat, "process_exists", lambda process: False)  # the other host takes this one for dead
        jobs_by_hand.do_here(open_job(url), [2])
    del job
    assert is_met
    assert bucket.content("media") == wanted
    assert not hosts.left()


def test_inputs_at_urls(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path) -> None:
    for path in (*Path("pictures").iterdir(), Path("a.jsonl"), Path("captions.csv")):
        bucket.put(f"in/{path.as_posix()}", path.read_bytes())
    source = ShardSource(parts=PARTS, key_field="id")
    options = {
        "in/a.jsonl": ShardOptions(source=source, output=ShardOutput(samples_per_shard=7, shuffle=3)),
        "in/pictures": ShardOptions(
            source=ShardSource(captions=f"{bucket.url}/in/captions.csv"), output=ShardOutput(samples_per_shard=7)
        ),
    }
    for number, (name, given) in enumerate(options.items()):
        prepare_shards([f"{bucket.url}/{name}"], tmp_path / f"{number}", options=given)
        with hosts.on(0):
            plan_shards([f"{bucket.url}/{name}"], f"{bucket.url}/{number}", options=given)
        with hosts.on(1):
            some_tasks(f"{bucket.url}/{number}", random.Random(2))
        with hosts.on(2):
            finish_job(f"{bucket.url}/{number}", LOCAL, Show())
        assert bucket.content(f"{number}") == faults.content(tmp_path / f"{number}")
    assert not hosts.left()


def test_bad_samples_and_what_is_there_already(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    picture = Path("pictures/007.jpg").rename("away")
    url = f"{bucket.url}/media"
    options = CASES["tables"]
    with hosts.on(0):
        plan_shards(["a.jsonl"], url, options=options)
        for _ in range(2):
            with pytest.raises(InputError, match=r"a\.jsonl, line 8: the file 'pictures/007\.jpg' .* No such file"):
                finish_job(url, LOCAL, Show())
    assert not any(name.endswith(".tar") for name in bucket.content())
    picture.rename("pictures/007.jpg")
    restarted = msgspec.structs.replace(options, restart=True)
    with hosts.on(1):
        with pytest.raises(
            OutputError, match=r"/media: a run is planned for this place: complete it with headrace job"
        ):
            prepare_shards(["a.jsonl"], url, options=options)
        changed = msgspec.structs.replace(options, output=ShardOutput(shard_bytes=10_000, split_ratio=(8, 1, 1)))
        with pytest.raises(
            OutputError, match=r"with other options writes to this place: output\.shard_bytes was 20000, is 10000\."
        ):
            plan_shards(["a.jsonl"], url, options=changed)
        plan_shards(["a.jsonl"], url, options=restarted)
        manifest = finish_job(url, LOCAL, Show())
        assert finish_job(url, LOCAL, Show()) == manifest
        with pytest.raises(OutputError, match="holds the output of an earlier run"):
            plan_shards(["c.parquet"], url, options=options)
    prepare_shards(["a.jsonl"], "local", options=options)
    assert bucket.content("media") == faults.content(Path("local"))


def test_a_spool_that_is_lost_is_named(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    url = f"{bucket.url}/media"
    with hosts.on(0):
        plan_shards(inputs("tables"), url, options=CASES["tables"])
        job = open_job(url)
        phase = job.phase()
        assert phase is not None
        jobs_by_hand.do_here(job, list(job.receipts(phase).tasks))
        job.advance(phase, Show())
        lost = next(name for name in bucket.content() if name.endswith("/0.spool"))
        bucket.store.delete(lost)
        with pytest.raises(StoreError, match=r"/0\.spool: "):
            finish_job(url, LOCAL, Show())
