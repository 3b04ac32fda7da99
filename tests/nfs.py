"""A folder with the habits of NFS, and what kinds of work have to make of it."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counts import cases
from headrace.engine.doing import Doer, Limits
from headrace.engine.executors import LocalExecutor
from headrace.engine.job import Show
from headrace.io import once
from headrace.kinds import finish_job, open_job
from headrace.testing.work import WorkContract, ending


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
        for seed in range(cases(4, 60)):
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
