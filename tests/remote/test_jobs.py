"""Planned jobs whose output is a URL: hosts share nothing else, some die, and the objects are the local ones."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import servers
import slurm_cluster
from counts import FULL, PATIENCE_S, cases
from energon_made import write_shards
from energon_objects import made_of
from fault_proxy import FaultProxy
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions, plan, prepare
from headrace.preparing.energon import EnergonOptions, SplitChoice, plan_energon, prepare_energon
from headrace.stores.energon import EnergonStore
from stored import files, objects

pytestmark = pytest.mark.remote

OPTIONS = PrepareOptions(
    tokens=TokenOptions(backend="tokenizers"), workers=1, task_bytes=20_000, output=OutputOptions(shard_tokens=30_000)
)
VARIANTS = {
    "in order": OPTIONS,
    "deduplicated": msgspec.structs.replace(OPTIONS, deduplicate=True),
}
SCRIPT = """
import random
import sys

from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Show
from headrace.engine.shared_objects import SharedObjects
from headrace.kinds import finish_job, open_job
from headrace.preparing import run_plan

run_plan.RANGE_BYTES = 100_000  # several ranges

if __name__ == "__main__":
    SharedObjects.pause_s, SharedObjects.beat_s = 0.1, 1.0
    what, seed, url = sys.argv[1:]
    if what == "finish":
        finish_job(url, LocalExecutor(workers=1), Show())
    elif what == "take part":
        take_part(open_job(url), Limits(), Show(), workers=1)
    else:
        job = open_job(url)
        if (phase := job.phase()) is not None:
            order = random.Random(seed).sample(range(phase.num_tasks), phase.num_tasks // 2)
            Doer(
                job, phase, wanted=order, workers=1, claims=False, waits=False, limits=Limits(), on_progress=print
            ).run()
"""
"""What a host does: without turns it takes half of the tasks, which others may do at the same time."""


class Hosts:
    """Processes on hosts of their own: each has a scratch folder that no other sees."""

    def __init__(self, proxy: FaultProxy, folder: Path) -> None:
        self._proxy = proxy
        self._folder = folder
        self._script = folder / "host.py"
        self._script.write_text(SCRIPT)
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[str]] = {}
        self.num_killed = 0

    def start(self, host: int, what: str, url: str) -> None:
        environ = {
            **os.environ,
            **servers.environment(self._proxy.endpoint, url.partition(":")[0]),
            "HEADRACE_CACHE": str(self._folder / f"host-{host}"),
        }
        command = [sys.executable, str(self._script), what, str(host), url]
        with self._lock:
            self._running[host] = subprocess.Popen(
                command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    @contextlib.contextmanager
    def dying(self, moments: list[int], chooser: random.Random) -> Iterator[None]:
        """One host that works is killed at each of these writes, counted from now."""
        self._proxy.writes = 0

        def kill(number: int) -> None:
            if number in moments:
                with self._lock:
                    alive = [host for host, process in self._running.items() if process.poll() is None]
                    if alive:
                        process = self._running[chooser.choice(alive)]
                        process.kill()
                        process.wait()  # until then the system says that it exists
                        self.num_killed += 1

        self._proxy.on_write = kill
        try:
            yield
        finally:
            self._proxy.on_write = lambda number: None

    def wait(self) -> None:
        """Wait until all have ended, by themselves or by a kill."""
        for process in self._running.values():
            words, _ = process.communicate()
            assert process.returncode in (0, -9), words
            assert servers.SECRET not in words
        self._running.clear()

    def left(self, host: int) -> list[Path]:
        return list(self._folder.glob(f"host-{host}/outputs/*"))


def die_and_compare(
    bucket: servers.Bucket,
    proxy: FaultProxy,
    folder: Path,
    plan: Callable[[str], object],
    wanted: dict[str, bytes],
    chooser: random.Random,
) -> None:
    """Hosts do the tasks of a job, some taking turns, and some the same tasks at the same time; two finish it.

    One request in fifty fails, also after the store has done what was asked.
    """
    hosts = Hosts(proxy, folder)
    proxy.share = proxy.write_share = 0.02
    proxy.all_requests = True
    for number in range(cases(1, 20)):
        url = f"{bucket.url}/{folder.name}/{number}"
        plan(url)
        with hosts.dying(chooser.sample(range(5, 60), 3), chooser):
            for host, what in enumerate(("take part", "take part", "half", "half")):
                hosts.start(host, what, url)
            hosts.wait()
        found = objects(bucket, url)
        assert any("/phase-" in name for name in found)
        assert not any(servers.SECRET.encode() in data for data in found.values())
        with hosts.dying(chooser.sample(range(30), 1), chooser):
            for host in (3, 4):
                hosts.start(host, "finish", url)
            hosts.wait()
        hosts.start(4, "finish", url)
        hosts.wait()
        assert objects(bucket, url) == wanted
        assert not hosts.left(4)
    assert hosts.num_killed >= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("remote_bucket", "name"),
    [("weed", "in order"), ("gcs", "in order"), ("gcs", "deduplicated"), ("weed", "deduplicated")],
    indirect=["remote_bucket"],
)
def test_tasks_on_hosts_that_die(
    remote_bucket: servers.Bucket,
    proxy: FaultProxy,
    inputs: Path,
    tmp_path: Path,
    around: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    given = VARIANTS[name]
    prepare([inputs / "in"], tmp_path / "local", tokenizer=inputs / "model", options=given)
    monkeypatch.setattr("headrace.preparing.run_plan.RANGE_BYTES", 100_000)

    def plan_at(url: str) -> None:
        plan([inputs / "in"], url, tokenizer=inputs / "model", options=given)

    die_and_compare(remote_bucket, proxy, tmp_path, plan_at, files(tmp_path / "local"), random.Random(f"deaths {name}"))


def test_an_energon_dataset_on_hosts_that_die(
    weed: servers.Bucket, proxy: FaultProxy, tmp_path: Path, around: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts read the shards and die; two complete the dataset at the same time, in place."""
    names = [f"shards/{number:02d}.tar" for number in range(24)]
    write_shards(
        tmp_path / "ds", {name: [(f"{at}_{n}.txt", b"text") for n in range(9)] for at, name in enumerate(names)}
    )
    url = weed.upload(tmp_path / "ds", f"{tmp_path.name}/ds")
    options = EnergonOptions(split=SplitChoice(ratio=(2, 1)))
    prepare_energon(tmp_path / "ds", options=options)
    wanted = made_of(files(tmp_path / "ds"))
    hosts, chooser = Hosts(proxy, tmp_path), random.Random("deaths energon")
    monkeypatch.setattr("headrace.preparing.energon.plan.TARS_AT_ONCE", 1)  # as the plan says, for all hosts
    proxy.share = proxy.write_share = 0.02
    proxy.all_requests = True
    plan_energon(url, options=options)
    with hosts.dying(chooser.sample(range(3, 40), 2), chooser):
        for host, what in enumerate(("take part", "half", "half")):
            hosts.start(host, what, url)
        hosts.wait()
    with hosts.dying(chooser.sample(range(3, 20), 1), chooser):
        for host in (3, 4):
            hosts.start(host, "finish", url)
        hosts.wait()
    assert not prepare_energon(url, options=options).written, "it is complete"
    assert hosts.num_killed >= 2
    assert made_of(objects(weed, url)) == wanted
    with EnergonStore(url, split_part="train") as ours, EnergonStore(tmp_path / "ds", split_part="train") as theirs:
        assert len(ours) == len(theirs)


def test_slurm(weed: servers.Bucket, inputs: Path, tmp_path: Path, around: None) -> None:
    if missing := slurm_cluster.missing():
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    url = f"{weed.url}/{tmp_path.name}/out"
    options = msgspec.structs.replace(OPTIONS, task_bytes=None, deduplicate=True)
    prepare([inputs / "in"], tmp_path / "local", tokenizer=inputs / "model", options=options)
    command = [sys.executable, "-m", "headrace", "prepare", str(inputs / "in"), "-o", url, "--json", "--deduplicate"]
    command += ["--tokenizer", str(inputs / "model"), "--backend", "tokenizers", "--shard-tokens", "30000"]
    command += ["--executor", "slurm,time=00:10:00,tasks_per_job=4"]
    (tmp_path / "slurm").mkdir()
    before = set(Path("/tmp").glob("headrace-*-*-*.log"))
    with contextlib.ExitStack() as stack:
        try:
            slurm = stack.enter_context(slurm_cluster.cluster(tmp_path / "slurm", num_nodes=2))
        except Exception as error:  # as in some containers, but not in the full run
            if FULL:
                raise
            pytest.skip(f"Slurm does not start here: {error!r:.200}")
        environ = {**slurm.environment, "HEADRACE_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert servers.SECRET not in done.stdout + done.stderr
        assert len(json.loads(done.stdout)["jobs"]) == 2
        slurm.wait_until_empty(PATIENCE_S)
    for log in set(Path("/tmp").glob("headrace-*-*-*.log")) - before:
        log.unlink()
    assert objects(weed, url) == files(tmp_path / "local")
    assert not list((tmp_path / "cache" / "outputs").iterdir())
