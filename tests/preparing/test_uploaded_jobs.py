"""Text as jobs: the contract of kinds of work; at URLs hosts share nothing else, and the bytes are the local ones."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from click.testing import CliRunner

import faults
import jobs_by_hand
import recipe_runs
from counts import cases
from headrace import preparing
from headrace.cli import main
from headrace.engine import heartbeat
from headrace.engine.doing import FailedTaskError, Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Show
from headrace.engine.shared_objects import SharedObjects
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import cache_folder
from headrace.kinds import finish_job, open_job
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions, duplicates, prepare
from headrace.samples.recipe import parse_recipe
from headrace.testing.work import WorkContract, inline
from memory_stores import MemoryBucket, watched

PLAIN = PrepareOptions(tokens=TokenOptions(append_eod=True, backend="tokenizers"), workers=2, task_bytes=4000)
CASES = {
    "one shard": PLAIN,
    "shards": msgspec.structs.replace(PLAIN, output=OutputOptions(shard_tokens=2500)),
    "deduplicated": msgspec.structs.replace(PLAIN, deduplicate=True),
    "deduplicated, in shards": msgspec.structs.replace(
        PLAIN, deduplicate=True, output=OutputOptions(shard_tokens=2500)
    ),
}
LOCAL = LocalExecutor(workers=2)


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SharedObjects, "pause_s", 0.0)
    monkeypatch.setattr(SharedObjects, "beat_s", 0.0)
    monkeypatch.setattr("headrace.engine.executors.REFRESH_S", 0.0)
    monkeypatch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 8000)
    monkeypatch.setattr(duplicates, "BLOCK_PARTS", 4)
    with jobs_by_hand.small_jobs():
        yield


@pytest.fixture
def hosts(tmp_path: Path) -> jobs_by_hand.Hosts:
    return jobs_by_hand.Hosts(tmp_path / "hosts")


def plan(kit: Any, inputs: Path, url: str, given: PrepareOptions) -> None:
    assert preparing.plan([inputs], url, tokenizer=kit.tokenizer, options=given) is None


def local(kit: Any, inputs: Path, folder: Path, given: PrepareOptions) -> dict[str, bytes]:
    prepare([inputs], folder, tokenizer=kit.tokenizer, options=given)
    return faults.content(folder)


class Text(WorkContract):
    """Text, in several parts and shards."""

    case: ClassVar[str]

    @pytest.fixture(autouse=True)
    def given(self, kit: Any, inputs: Path) -> None:
        self._kit, self._inputs = kit, inputs

    @pytest.fixture(autouse=True)
    def workers_inside(self) -> Iterator[None]:
        with inline(), jobs_by_hand.small_jobs():
            yield

    @pytest.fixture
    def wanted(self, tmp_path: Path) -> dict[str, bytes]:
        return local(self._kit, self._inputs, tmp_path / "local", CASES[self.case])

    def plan(self, output: str) -> None:
        plan(self._kit, self._inputs, output, CASES[self.case])

    def plan_poisoned(self, output: str) -> str:
        (self._inputs / "z.jsonl").write_text("{\n")
        self.plan(output)
        return "z.jsonl"


class TestShards(Text):
    case = "shards"


class TestDeduplicated(Text):
    case = "deduplicated, in shards"


@pytest.mark.parametrize("name", ["shards", "deduplicated, in shards"])
def test_whatever_ends_processes(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts, tmp_path: Path, name: str
) -> None:
    """Planning, doing tasks and finishing are each ended at a change in the store, on one host, and go on on others."""
    given = CASES[name]
    wanted = local(kit, inputs, tmp_path / "local", given)
    chooser = random.Random(5)
    num_stopped = 0
    for number in range(cases(2, 100)):
        url = f"{bucket.url}/{number}"

        def task(url: str = url) -> None:
            job = open_job(url)
            phase = job.phase()
            if phase is not None:
                jobs_by_hand.do_here(job, chooser.choices(list(job.receipts(phase).tasks), k=4))

        steps: list[Callable[[], object]] = [
            lambda url=url: plan(kit, inputs, url, given),
            *[task] * 2,
            *[lambda url=url: take_part(open_job(url), Limits(most=9), Show(), workers=1)] * 4,
            lambda url=url: finish_job(url, LOCAL, Show()),
        ]
        num_stopped += hosts.end_anywhere(chooser, steps, changes=30)
        with hosts.on(0):
            finish_job(url, LOCAL, Show())
        assert bucket.content(str(number)) == wanted
    assert num_stopped > 2


def test_a_task_that_comes_late_leaves_nothing(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts
) -> None:
    """Another host does the same task, and the job is completed, before this one shows its results."""
    url = f"{bucket.url}/web"
    with hosts.on(0):
        plan(kit, inputs, url, CASES["shards"])
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
    assert is_met
    assert not any(".headrace" in name for name in bucket.content("web"))
    assert not hosts.left()


def test_an_unfinished_job_is_continued_discarded_or_refused(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts, tmp_path: Path
) -> None:
    url = f"{bucket.url}/web"
    given, other = CASES["shards"], CASES["one shard"]
    with hosts.on(0):
        plan(kit, inputs, url, given)
        late = open_job(url)
        jobs_by_hand.do_here(late, [1, 2])
    with hosts.on(1):
        with pytest.raises(OutputError, match=r"/web.*output\.shard_tokens.*2500"):
            plan(kit, inputs, url, other)
        plan(kit, inputs, url, msgspec.structs.replace(other, restart=True))
    with hosts.on(0):
        assert late.phase() is None
        jobs_by_hand.do_here(late, [3])
    del late
    with hosts.on(2):
        finish_job(url, LOCAL, Show())
    assert bucket.content("web") == local(kit, inputs, tmp_path / "local", other)
    assert not hosts.left()

    with hosts.on(0):
        plan(kit, inputs, f"{bucket.url}/taken", given)
        jobs_by_hand.do_here(open_job(f"{bucket.url}/taken"), [0])
        prepare([inputs], f"{bucket.url}/taken", tokenizer=kit.tokenizer, options=given)
        with pytest.raises(OutputError, match="/taken"):
            plan(kit, inputs, f"{bucket.url}/taken", other)
        manifest = preparing.plan([inputs], f"{bucket.url}/taken", tokenizer=kit.tokenizer, options=given)
    assert manifest is not None
    assert bucket.content("taken") == local(kit, inputs, tmp_path / "also", given)
    assert not hosts.left()


def test_bad_records_are_named_and_other_refusals(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts, tmp_path: Path
) -> None:
    (inputs / "z.jsonl").write_text(json.dumps({"text": "good"}) + "\n{\n")
    url = f"{bucket.url}/web"
    with hosts.on(0):
        plan(kit, inputs, url, PLAIN)
        with pytest.raises(FailedTaskError, match=r"z\.jsonl"):
            take_part(open_job(url), Limits(), Show(), workers=2)
        with pytest.raises(InputError, match=r"z\.jsonl.*2"):
            finish_job(url, LOCAL, Show())
        assert "web/headrace.json" not in bucket.content()
        (inputs / "z.jsonl").unlink()
        plan(kit, inputs, url, msgspec.structs.replace(PLAIN, restart=True))
        finish_job(url, LOCAL, Show())
        assert bucket.content("web") == local(kit, inputs, tmp_path / "local", PLAIN)
        for scheme, message in (("hdfs://x", "hdfs://"), (f"{url}/no", "/web/no")):
            with pytest.raises((ConfigError, OutputError), match=message):
                open_job(scheme)


def test_status_and_commands(kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts) -> None:
    url = f"{bucket.url}/web"

    def run(*args: str) -> dict[str, Any]:
        done = CliRunner().invoke(main, [*args, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with hosts.on(0):
        tokens = ["--tokenizer", str(kit.tokenizer), "--backend", "tokenizers"]
        assert run("job", "plan", "prepare", str(inputs), "-o", url, *tokens)["num_tasks"] > 0
    with hosts.on(1):
        assert run("job", "status", url)["done"] == 0
        assert run("job", "task", url, "--workers", "1")["open"] == 0
        assert run("job", "status", url)["phase"] == ""
    with hosts.on(2):
        assert run("job", "finish", url)["output"] == url
    assert not hosts.left()


def test_folders_of_killed_processes_are_removed(
    kit: Any, bucket: MemoryBucket, inputs: Path, hosts: jobs_by_hand.Hosts
) -> None:
    url = f"{bucket.url}/web"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with hosts.on(0):
        plan(kit, inputs, url, PLAIN)
        outputs = cache_folder("outputs")
        assert outputs is not None
        names = [f"task.{host}.{ended.pid}.0" for host in (platform.node(), "another")]
        names.append(f"task.{platform.node()}.{os.getpid()}.0")
        for name in names:
            (outputs / name).mkdir(parents=True)
        job = open_job(url)
        assert {path.name for path in outputs.iterdir()} == {*names[1:], job.work.name}
        del job
    assert {path.name for path in hosts.left()} == set(names[1:])


RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a limit": (
        recipe_runs.SFT + "mask: {unstable: last_turn}\nfilters: {max_records: 33, min_tokens: 20}\n"
        "output: {position_ids: continuous, shard_tokens: 900}\n",
        {"deduplicate": True},
    ),
    "domains": (
        recipe_runs.SFT + "mask: {unstable: split}\n"
        "output: {format: keyed, domain_key: source, position_ids: continuous, shard_tokens: 2500}\n",
        {"deduplicate": True, "id_field": "id"},
    ),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes(bucket: MemoryBucket, hosts: jobs_by_hand.Hosts, tmp_path: Path, case: str) -> None:
    text, options = RECIPES[case]
    options = {"task_bytes": 4000, **options}
    recipe_runs.make_model(tmp_path / "model", recipe_runs.THINKING)
    recipe_runs.write_lines(tmp_path / "data" / "a.jsonl", recipe_runs.conversations(70))
    recipe_runs.write_lines(tmp_path / "data" / "b.jsonl", recipe_runs.conversations(40))
    recipe_runs.prepare(text, tmp_path, tmp_path / "local", **options)
    url = f"{bucket.url}/web"
    with hosts.on(0):
        recipe = parse_recipe(recipe_runs.in_folder(text, tmp_path))
        preparing.plan([], url, recipe=recipe, options=recipe_runs.options_of(**options))
    with hosts.on(1):
        jobs_by_hand.do_here(open_job(url), [1, 3, 2])
    with hosts.on(2):
        finish_job(url, LOCAL, Show())
    assert bucket.content("web") == faults.content(tmp_path / "local")
    assert not hosts.left()
