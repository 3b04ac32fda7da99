"""``headrace measure`` and ``check --decode`` of datasets at URLs, here and planned, in a store in memory."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jobs_by_hand
import memory_stores
from copies_made import files
from counts import cases, spread
from energon_made import write_tar
from energon_prepared import prepared
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.errors import ConfigError, OutputError, StoreAwayError, StoreError
from headrace.inspect import check_quarantine, decoding, sample_checks
from headrace.kinds import finish_job, open_job
from headrace.stores.tar.store import TarStore
from measured_made import numbers
from memory_stores import MemoryBucket, Stopped, watched
from nfs import OnHosts

LOCAL = LocalExecutor(workers=1)


@pytest.fixture(autouse=True)
def small_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    monkeypatch.setattr(decoding, "TASK_SAMPLES", 3)
    with jobs_by_hand.inline():
        yield


def upload(bucket: MemoryBucket, folder: Path) -> str:
    return bucket.upload(folder, f"data/{folder.name}")


def test_measure(run: Any, of_json: Any, bucket: MemoryBucket) -> None:
    """The facts are those of the local dataset, but for the place that the faults name."""
    numbers(Path("ds"), 150, (3, 77))
    url = upload(bucket, Path("ds"))
    command = ("--encoder", "measured_made:Grouped", "--set", "draw=3", "--output")
    local = of_json("measure", "ds", *command, "local", "--workers", "1")
    here = of_json("measure", url, *command, "here", "--workers", "1")
    planned = of_json("job", "plan", "measure", url, *command, "shared")
    of_json("job", "task", planned["output"], "--num", "2")
    found = of_json("job", "finish", planned["output"])
    assert files(Path(found["path"])) == files(Path(here["path"]))
    known = {name: data for name, data in files(Path(local["path"])).items() if name not in ("faults.npy", "kept.json")}
    assert {name: data for name, data in files(Path(found["path"])).items() if name in known} == known
    assert found["facts"]["outputs"] == local["facts"]["outputs"]
    for name in ("xxh3_128", "faults"):
        found["facts"].pop(name), local["facts"].pop(name)
    assert found["facts"] == local["facts"]
    assert run("measure", "ds", *command, f"{bucket.url}/facts").exit_code == ConfigError.exit_code
    assert all(name.startswith("data/ds/") for name in bucket.content())


SOME = [(f"{number:02d}.json", b"{}" if number % 5 else b"{bad") for number in range(20)]
"""Twenty samples, of which four cannot be decoded."""


@pytest.fixture
def damaged(bucket: MemoryBucket) -> str:
    Path("ds").mkdir()
    write_tar(Path("ds/x.tar"), [*SOME, ("no unicode \udcff.json", b"{bad")])
    return upload(bucket, Path("ds"))


def verdict(found: Any, place: str) -> Any:
    """What was found, as of a dataset at any place; the index of a tar is in the cache of the host."""
    text = json.dumps({**found, "seconds": 0, "unvouched": []}).replace(place, "PLACE")
    return json.loads(text)


def some_tasks(url: str, chooser: random.Random) -> None:
    job = open_job(url)
    if (phase := job.phase()) is not None:
        jobs_by_hand.do_here(job, chooser.choices(job.receipts(phase).tasks, k=4))


def test_check_on_hosts_that_share_nothing(
    of_json: Any, bucket: MemoryBucket, damaged: str, hosts: jobs_by_hand.Hosts
) -> None:
    before = bucket.content()
    place = str(Path("ds").absolute())
    with hosts.on(0):
        local = of_json("check", place, "--decode", "--workers", "1", code=1)
        wanted = of_json("check", damaged, "--decode", "--workers", "1", code=1)
        assert wanted["decoded"]["faulty_samples"] == 5
        assert verdict(wanted, damaged) == verdict(local, place)
        assert of_json("job", "plan", "check", damaged, "--decode")["num_tasks"] == 7
    assert {name.split("/")[1] for name in bucket.content()} == {"ds", ".ds.checking"}
    with hosts.on(1):
        assert of_json("job", "task", damaged, "--tasks", "1-3,6")["done"] == 4
        assert of_json("job", "status", damaged)["counts"] == {"samples": 12, "faulty": 3}
        late = open_job(damaged)
    with hosts.on(2):
        for _ in range(2):  # for whom the process that finished could not tell
            assert verdict(of_json("job", "finish", damaged, code=1), damaged) == verdict(wanted, damaged)
        with pytest.raises(OutputError, match=r"/ds: nothing is planned"):
            open_job(damaged)
    late.shared.sweep()  # as a process does that was at work until then
    del late
    assert bucket.content().keys() - before.keys() == {"data/.ds.checking/verdict.json"}
    assert not hosts.left()


class TestDecoding(OnHosts):
    """A check of a dataset: its output is the verdict beside it."""

    def plan(self, output: str) -> None:
        if self.bucket and output.startswith("s3:"):
            self.bucket.upload(Path("some"), output.removeprefix(f"{self.bucket.url}/"))
        else:
            shutil.copytree("some", output, dirs_exist_ok=True)
        sample_checks.plan_check(output, {"decode": True})

    @pytest.fixture(autouse=True)
    def dataset(self, small_jobs: None) -> None:
        Path("some").mkdir()
        write_tar(Path("some/x.tar"), [*SOME, ("no unicode \udcff.json", b"{bad")])

    def made(self, output: str) -> dict[str, bytes]:
        report = sample_checks.last_report(output)
        return {} if report is None else {"verdict": json.dumps(verdict(report.verdict.to_dict(), output)).encode()}

    def content(self, output: str) -> dict[str, bytes]:
        return self.made(output)


def test_another_check_takes_the_place_of_one_that_was_planned(
    bucket: MemoryBucket, damaged: str, hosts: jobs_by_hand.Hosts
) -> None:
    with hosts.on(0):
        sample_checks.plan_check(damaged, {"decode": True})
        late = open_job(damaged)
        some_tasks(damaged, random.Random(1))
    write_tar(Path("ds/y.tar"), [("other.json", b"{}")])
    upload(bucket, Path("ds"))
    with hosts.on(1):
        with pytest.raises(StoreError, match=r"/data/ds"):
            finish_job(damaged, LOCAL, Show())
        sample_checks.plan_check(damaged, {"decode": True})
        assert late.phase() is None
        with pytest.raises(OutputError, match="/ds"):
            late.finish(Show())
        assert finish_job(damaged, LOCAL, Show()).verdict.samples == 22
    del late
    assert not hosts.left()


def test_a_store_that_is_away_is_not_the_fault_of_samples(
    run: Any, of_json: Any, bucket: MemoryBucket, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = of_json("check", damaged, "--decode", "--workers", "1", code=1)
    sample_checks.plan_check(damaged, {"decode": True})
    whole = TarStore.read

    def read(self: TarStore, numbers: Any, parts: Any = None) -> Any:
        if 7 in numbers:
            raise StoreAwayError("the store is away")
        return whole(self, numbers, parts)

    with monkeypatch.context() as patch:
        patch.setattr(TarStore, "read", read)
        here = run("check", damaged, "--decode", "--workers", "1")
        assert (here.exit_code, "the store is away" in here.output) == (StoreError.exit_code, True)
        for _ in range(2):
            with pytest.raises(StoreAwayError, match="store"):
                finish_job(damaged, LOCAL, Show())
    report = finish_job(damaged, LOCAL, Show())
    assert verdict(report.verdict.to_dict(), damaged) == verdict(wanted, damaged)


@pytest.mark.parametrize("kind", ["tars", "energon"])
def test_whatever_ends_the_leaving_out(
    bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, of_json: Any, kind: str
) -> None:
    """The list changes the dataset, and what was found is told nevertheless, once there is a verdict."""
    Path("some").mkdir()
    if kind == "tars":
        write_tar(Path("some/x.tar"), SOME)
    else:
        prepared(Path("some"), {"x.tar": SOME})

    def begun(key: str) -> str:
        url = bucket.upload(Path("some"), key)
        with hosts.on(0):
            sample_checks.plan_check(url, {"decode": True}, quarantine=True)
            some_tasks(url, random.Random(1))
        return url

    kinds: list[str] = []
    url = begun("data/counted")
    with hosts.on(1), watched(lambda number, kind: kinds.append(kind)):
        finish_job(url, LOCAL, Show())
    num_moments, num_stopped = len(kinds), 0
    # Samples are left out among the last changes, each of which is tried.
    for moment in sorted({*spread(num_moments, cases(3, num_moments)), *range(num_moments - 5, num_moments)}):
        url = begun(f"data/{moment}")
        with hosts.on(1), watched(memory_stores.stop_at(moment)):
            try:
                finish_job(url, LOCAL, Show())
            except Stopped:
                num_stopped += 1
        with hosts.on(moment % 2 + 1):
            report = finish_job(url, LOCAL, Show())
        assert report.verdict.decoded is not None
        assert report.verdict.decoded.faulty_samples == 4
        assert report.left_out == f"{url}: 4 samples left out from now on"
        with hosts.on(2):
            assert of_json("quarantine", url)["left_out"] == 4
            assert of_json("check", url, "--decode", "--workers", "1")["ok"]
        assert not any("/.headrace/" in name for name in bucket.content())
    assert num_stopped > 4


def test_refusals(run: Any, damaged: str) -> None:
    with pytest.raises(ConfigError, match=r"http://host/ds/.*`quarantine`"):
        check_quarantine("http://host/ds/", "samples", decodes=True)
    with pytest.raises(ConfigError, match="http://host/ds/"):
        sample_checks.plan_check("http://host/ds/", {"decode": True})
