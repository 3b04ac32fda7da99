"""Media as jobs: the contract of kinds of work, and what is theirs alone, in folders and in a store in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import faults
import jobs_by_hand
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Show
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import InputError, OutputError
from headrace.kinds import finish_job, open_job
from headrace.preparing import ErrorOptions, plan_shards, prepare_shards
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource
from headrace.preparing.shards.plan import Planner
from headrace.stores import load_manifest
from memory_stores import MemoryBucket, watched
from nfs import OnHosts
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
    write_pictures(tmp_path, 40)
    records = [{**row, "raw": image(number)} for number, row in enumerate(rows(40))]
    write_table(Path("a.jsonl"), records[:25])
    write_table(Path("c.parquet"), records[25:])
    captions = [{"file_name": f"{number:03d}.jpg", "text": f"caption {number}"} for number in range(40)]
    write_table(Path("captions.csv"), captions)
    with inline():
        yield


def inputs(case: str) -> list[str]:
    return ["pictures"] if case == "folder" else ["a.jsonl", "c.parquet"]


def local(case: str) -> dict[str, bytes]:
    prepare_shards(inputs(case), "local", options=CASES[case])
    return faults.content(Path("local"))


def some_tasks(url: str, chooser: random.Random) -> None:
    job = open_job(url)
    if (phase := job.phase()) is not None:
        jobs_by_hand.do_here(job, chooser.choices(job.receipts(phase).tasks, k=4))


class Media(OnHosts):
    """Shards of media."""

    case: ClassVar[str]

    @pytest.fixture
    def wanted(self) -> dict[str, bytes]:
        return local(self.case)

    def plan(self, output: str) -> None:
        plan_shards(inputs(self.case), output, options=CASES[self.case])

    def plan_poisoned(self, output: str) -> str:
        Path("broken").mkdir()
        write_table(Path("broken/b.jsonl"), [{**rows(1)[0], "raw": image(0), "file": "not-there.jpg"}])
        plan_shards(["broken/b.jsonl"], output, options=CASES["tables"])
        return "not-there.jpg"


class TestTables(Media):
    case = "tables"


@pytest.mark.soak
class TestFolder(Media):
    case = "folder"


def test_two_hosts_plan_at_the_same_time(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts) -> None:
    wanted = local("folder")
    url = f"{bucket.url}/media"
    jobs: list[Any] = []

    def meet(number: int, kind: str) -> None:
        names = bucket.content("media")
        if not jobs and any("/listed-" in name for name in names) and ".headrace/plan.json" not in names:
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
            with pytest.raises(InputError, match=r"a\.jsonl.*8.*'pictures/007\.jpg'"):
                finish_job(url, LOCAL, Show())
    assert not any(name.endswith("headrace.json") for name in bucket.content())
    picture.rename("pictures/007.jpg")
    restarted = msgspec.structs.replace(options, restart=True)
    with hosts.on(1):
        changed = msgspec.structs.replace(options, output=ShardOutput(shard_bytes=10_000, split_ratio=(8, 1, 1)))
        with pytest.raises(OutputError, match=r"output\.shard_bytes.*20000.*10000"):
            plan_shards(["a.jsonl"], url, options=changed)
        plan_shards(["a.jsonl"], url, options=restarted)
        manifest = finish_job(url, LOCAL, Show())
        assert finish_job(url, LOCAL, Show()) == manifest
        with pytest.raises(OutputError, match="earlier"):
            plan_shards(["c.parquet"], url, options=options)
    prepare_shards(["a.jsonl"], "local", options=options)
    assert bucket.content("media") == faults.content(Path("local"))


def test_bad_samples_are_told_once_they_are_found() -> None:
    Path("pictures/007.jpg").unlink()
    plan_shards(["a.jsonl"], "out", options=CASES["tables"])
    for _ in range(2):
        with pytest.raises(InputError, match=r"a\.jsonl.*8.*'pictures/007\.jpg'"):
            finish_job("out", LOCAL, Show())


@pytest.mark.parametrize("most", [1, 3])
def test_too_many_bad_samples_end_the_work(most: int) -> None:
    for number in range(0, 25, 3):
        Path(f"pictures/{number:03d}.jpg").unlink()
    skip = ErrorOptions(on_error="skip", max_errors=most)
    options = msgspec.structs.replace(CASES["shuffled"], errors=skip, workers=1)
    with pytest.raises(InputError, match=rf"bad samples, but max_errors allows {most}.*a\.jsonl, line"):
        prepare_shards(["a.jsonl"], "out", options=options)
    assert not Path("out/headrace.json").exists()
    more = msgspec.structs.replace(options, errors=ErrorOptions(on_error="skip", max_errors=0.5))
    assert len(prepare_shards(["a.jsonl"], "out", options=more).errors) == 9


def test_a_file_that_cannot_be_read_may_be_there_later(tmp_path: Path) -> None:
    prepare_shards(["pictures"], "local", options=CASES["folder"])
    plan_shards(["pictures"], "out", options=CASES["folder"])
    picture = Path("pictures/007.jpg").rename("away")
    with pytest.raises(InputError, match=r"007\.jpg"):
        finish_job("out", LOCAL, Show())
    picture.rename("pictures/007.jpg")
    drive(open_job("out"), LocalExecutor(workers=1), Show())
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "local")


@pytest.mark.parametrize("num_tasks", [0, 2, 5])
def test_a_plan_is_kept_and_a_local_run_goes_on_with_it(num_tasks: int, tmp_path: Path) -> None:
    options = CASES["folder"]
    prepare_shards(["pictures"], "local", options=options)
    plan_shards(["pictures"], "out", options=options)
    jobs_by_hand.do_here(open_job("out"), list(range(num_tasks)))
    plan_shards(["pictures"], "out", options=options)
    changed = msgspec.structs.replace(options, output=ShardOutput(samples_per_shard=10))
    with pytest.raises(OutputError, match=r"samples_per_shard.*9.*10"):
        plan_shards(["pictures"], "out", options=changed)
    late = open_job("out")
    prepare_shards(["pictures"], "out", options=options)
    assert faults.content(tmp_path / "out") == faults.content(tmp_path / "local")
    assert drive(late, LocalExecutor(workers=1), Show()) == load_manifest("out")
    assert not (tmp_path / "out" / WORK_NAME).exists()
    plan_shards(["pictures"], "out", options=options)
    assert not (tmp_path / "out" / WORK_NAME).exists()


@pytest.mark.parametrize("place", ["folder", "url"])
def test_a_plan_is_not_made_again(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its shards depend on the sizes of files, and some may be written already."""
    wanted = local("tables")
    bucket = request.getfixturevalue("bucket") if place == "url" else None
    output = "out" if bucket is None else f"{bucket.url}/out"
    plan_shards(inputs("tables"), output, options=CASES["tables"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "plan", None)
        prepare_shards(inputs("tables"), output, options=CASES["tables"])
    assert (faults.content(tmp_path / "out") if bucket is None else bucket.content("out")) == wanted
