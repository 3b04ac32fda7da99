"""Text as jobs: the contract of kinds of work; at URLs hosts share nothing else, and the bytes are the local ones."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from click.testing import CliRunner

import faults
import jobs_by_hand
import recipe_runs
from headrace import preparing
from headrace.cli import main
from headrace.engine.doing import FailedTaskError, Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Show
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import cache_folder
from headrace.kinds import finish_job, open_job
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions, duplicates, prepare
from headrace.samples.recipe import parse_recipe
from headrace.testing.work import inline
from memory_stores import MemoryBucket
from nfs import OnHosts

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
    monkeypatch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 8000)
    monkeypatch.setattr(duplicates, "BLOCK_PARTS", 4)
    with inline(), jobs_by_hand.small_jobs():
        yield


def plan(kit: Any, inputs: Path, url: str, given: PrepareOptions) -> None:
    assert preparing.plan([inputs], url, tokenizer=kit.tokenizer, options=given) is None


def local(kit: Any, inputs: Path, folder: Path, given: PrepareOptions) -> dict[str, bytes]:
    prepare([inputs], folder, tokenizer=kit.tokenizer, options=given)
    return faults.content(folder)


class Text(OnHosts):
    """Text, in several parts and shards."""

    case: ClassVar[str]

    @pytest.fixture(autouse=True)
    def given(self, kit: Any, inputs: Path) -> None:
        self._kit, self._inputs = kit, inputs

    @pytest.fixture(autouse=True)
    def workers_inside(self, small_jobs: None) -> None:
        """They are."""

    @pytest.fixture
    def wanted(self, tmp_path: Path) -> dict[str, bytes]:
        return local(self._kit, self._inputs, tmp_path / "local", CASES[self.case])

    def plan(self, output: str) -> None:
        plan(self._kit, self._inputs, output, CASES[self.case])

    def plan_poisoned(self, output: str) -> str:
        (self._inputs / "z.jsonl").write_text("{\n")
        self.plan(output)
        return "z.jsonl"


@pytest.mark.soak
class TestShards(Text):
    case = "shards"


class TestDeduplicated(Text):
    case = "deduplicated, in shards"


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


@pytest.mark.sampled(1)
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
