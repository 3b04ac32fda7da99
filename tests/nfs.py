"""What kinds of work have to make of hosts: those that share a folder with the habits of NFS, or only a store."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jobs_by_hand
from counts import cases
from headrace.engine import heartbeat
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor, take_part
from headrace.engine.job import Show
from headrace.errors import OutputError
from headrace.io import once
from headrace.kinds import finish_job, open_job
from headrace.testing.work import WorkContract, ending
from memory_stores import MemoryBucket, watched


class Nfs:
    """A folder with the habits of NFS, as a seed decides: what others made is seen late, and replies are lost."""

    def __init__(self, seed: int, *, has_links: bool) -> None:
        self._chance = random.Random(seed)
        self._has_links = has_links
        self._listdir, self._link, self._read = os.listdir, os.link, Path.read_bytes

    def listdir(self, path: Any = ".") -> list[str]:
        names = self._listdir(path)
        late = "receipts" in str(path) or "claims" in str(path)
        return [name for name in names if not late or self._chance.random() < 0.7]

    def link(self, *args: Any, **options: Any) -> None:
        if not self._has_links:
            raise OSError(1, "no hard links")
        self._link(*args, **options)
        if self._chance.random() < 0.3:  # the reply is lost, and the client calls again
            self._link(*args, **options)

    @contextlib.contextmanager
    def mounted(self, host: str) -> Iterator[None]:
        """This process is on this host, whose clock is wrong by minutes."""
        wrong_s = self._chance.uniform(-600, 600)
        clock = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "listdir", self.listdir)
            patch.setattr(os, "link", self.link)
            patch.setattr(socket, "gethostname", lambda: host)
            patch.setattr(platform, "node", lambda: host)
            patch.setattr(time, "time", lambda: clock() + wrong_s)
            patch.setattr(once, "_WAIT_S", 0.0)
            yield


class OnNfs(WorkContract):
    """The contract of kinds of work, and hosts that share such a folder, of which some die."""

    def test_hosts_that_share_a_folder_like_nfs(self, tmp_path: Path, wanted: dict[str, bytes]) -> None:
        for seed in range(cases(2, 60)):
            chance = random.Random(seed)
            output = str(tmp_path / f"nfs-{seed}")
            nfs = Nfs(seed, has_links=chance.random() < 0.5)
            with nfs.mounted("login"):
                self.plan(output)
            for _ in range(chance.randint(1, 6)):
                ending(lambda: self.do_some(output, nfs, chance), apart=True)  # noqa: B023 - called at once
                chance.random()
            with nfs.mounted("node0"):
                finish_job(self.place(output), LocalExecutor(workers=2), Show())
            assert self.content(output) == wanted

    def do_some(self, output: str, nfs: Nfs, chance: random.Random) -> None:
        """A host does some tasks, and may die on the way."""
        with nfs.mounted(f"node{chance.randrange(3)}"):
            job = open_job(self.place(output))
            if (phase := job.phase()) is None:
                return
            tasks = list(job.receipts(phase).tasks)
            chance.shuffle(tasks)
            limits = Limits(chance.randint(1, 9))
            Doer(job, phase, wanted=tasks, workers=2, waits=False, limits=limits, on_progress=lambda _: None).run()
            if chance.random() < 0.5:
                os._exit(9)


class OnHosts(OnNfs):
    """The contract of kinds of work that may be at a URL, on hosts that share nothing else."""

    @pytest.fixture
    def hosts(self, hosts: jobs_by_hand.Hosts, bucket: MemoryBucket) -> jobs_by_hand.Hosts:
        self.bucket = bucket
        return hosts

    def do_tasks(self, url: str, chooser: random.Random) -> None:
        job = open_job(url)
        if (phase := job.phase()) is not None:
            jobs_by_hand.do_here(job, chooser.choices(job.receipts(phase).tasks, k=4))

    def run_plainly(self, url: str) -> None:
        """Do the work without a plan, if a kind of work needs that where a host died after it had removed its plan."""

    def complete(self, url: str) -> None:
        """Finish, also where another host has done so."""
        try:
            self.finish(url)
        except OutputError:
            self.run_plainly(url)

    def test_ended_at_any_change_of_a_store(self, hosts: jobs_by_hand.Hosts, wanted: dict[str, bytes]) -> None:
        """Planning, doing tasks and finishing are each ended on some host, and go on on another."""
        chooser = random.Random(5)
        num_stopped = 0
        for number in range(cases(3, 100)):
            url = f"{self.bucket.url}/{number}"
            steps: list[Callable[[], object]] = [
                partial(self.plan, url),
                *[partial(self.do_tasks, url, chooser)] * 2,
                *[lambda url=url: take_part(open_job(url), Limits(most=6), Show(), workers=1)] * 2,
                partial(self.complete, url),
            ]
            with contextlib.suppress(OutputError):  # there is no plan any more where all was done
                num_stopped += hosts.end_anywhere(chooser, steps, changes=20)
            with hosts.on(0):
                self.complete(url)
            assert self.made(url) == wanted
        assert num_stopped > 2

    def test_a_task_that_comes_late_leaves_nothing(self, hosts: jobs_by_hand.Hosts, wanted: dict[str, bytes]) -> None:
        """Another host does the same task, and the job is completed, before this one shows its results."""
        url = f"{self.bucket.url}/late"
        with hosts.on(0):
            self.plan(url)
        found: list[str] = []

        def meet(number: int, kind: str) -> None:
            if not found:
                found.append(kind)
                with hosts.on(1):
                    self.finish(url)

        # The other host takes this one for dead.
        with hosts.on(2), watched(meet), pytest.MonkeyPatch.context() as patch:
            patch.setattr(heartbeat, "process_exists", lambda process: False)
            self.do_tasks(url, random.Random(0))
        assert found
        assert self.made(url) == wanted
        assert not [name for name in self.bucket.content("late") if "/.headrace/" in f"/{name}"]
        assert not hosts.left()

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("moment", [0, 2, 5])
    def test_two_hosts_finish_at_the_same_time(
        self, hosts: jobs_by_hand.Hosts, wanted: dict[str, bytes], moment: int
    ) -> None:
        """The other one takes the first for dead, at whatever it is then, and completes the output."""
        url = f"{self.bucket.url}/both"
        with hosts.on(0):
            self.plan(url)
        is_met = False

        def meet(number: int, kind: str) -> None:
            nonlocal is_met
            if number >= moment and not is_met:
                is_met = True
                with hosts.on(2), pytest.MonkeyPatch.context() as patch:
                    patch.setattr(heartbeat, "process_exists", lambda process: False)
                    self.finish(url)

        with hosts.on(1), watched(meet):
            self.complete(url)
        assert is_met
        assert self.made(url) == wanted
        assert not hosts.left()
