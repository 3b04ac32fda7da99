"""What one process does between two phases of a job at a URL, and shows to all.

In a shared folder such a step is done in the work folder, which one process claims at a time. At a URL it is a phase of
one task: the process that claims it makes files, publishes them, and creates the receipt that names them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.heartbeat import Heartbeat, Nodes
from headrace.engine.job import Job, Phase, Show
from headrace.engine.receipts import Receipt
from headrace.engine.work_folder import BusyError
from headrace.errors import OutputError, StoreError
from headrace.io import output_errors, unique_name


class OrderedStep:
    """A step of a job at a URL that one process does.

    Args:
        job: the job.
        name: the name of its phase, which is that of no other.
        what: what an error says that another process does, such as "numbers the documents before they are sorted".
    """

    def __init__(self, job: Job, name: str, what: str) -> None:
        self._shared = job.shared
        self._output = job.output
        self._phase = Phase(name=name, num_tasks=1)
        self._receipts = job.receipts(self._phase)
        self._what = what
        self._nodes = Nodes(job.shared)

    def files(self) -> Mapping[str, str]:
        """Return by which names its files are known, by their names in the step; empty if it is not done.

        Raises:
            OutputError, StoreError: the store cannot be reached.
        """
        self._receipts.refresh()
        return {
            name: self._receipts.away(receipt, name)
            for receipt in self._receipts.done.values()
            for name in receipt.files
        }

    def place(self, name: str) -> Path | str:
        """Return where a file of the step is, which is done, or a folder with some of its files."""
        return self._shared.place(self._receipts.away(self._receipts.done[0], name))

    def fetch(self, names: Sequence[str], folder: Path) -> None:
        """Bring files of the step to a folder on this host, in this order; raises as `Shared.fetch` does."""
        known = self.files()
        for name in names:
            path = folder / name
            with output_errors(path, "make the folder of"):
                path.parent.mkdir(parents=True, exist_ok=True)
            self._shared.fetch(known[name], path)

    def run(self, do: Callable[[Path, Show], Sequence[str]], show: Show) -> None:
        """Do the step, and show its files to all.

        Args:
            do: makes the files in a folder, and returns their names; none if the job has been completed meanwhile.
            show: what tells how far it is.

        Raises:
            BusyError: another process does it.
            Exception: see ``do``.
        """
        receipts, attempt = self._receipts, unique_name()
        claims = receipts.claims(0)
        if (
            receipts.done
            or (claims and claims[-1] in self._nodes.alive())
            or not receipts.claim(0, attempt, len(claims))
        ):
            raise BusyError(f"{self._output}: another process {self._what}")
        began_s = time.time()
        with Heartbeat(self._shared, attempt, self._phase.name) as heart:

            def progress(found: Any) -> None:
                heart.beat({0: time.time() - began_s})
                show.progress(found)

            folder = f"{receipts.name}/{attempt}"
            try:
                names = do(self._shared.here / folder, msgspec.structs.replace(show, progress=progress))
            except (OutputError, StoreError):
                if self._shared.is_planned():
                    raise
                return  # another process has completed the job, and removes what this one was reading
            if not names:
                return
            receipt = Receipt(
                task_index=0,
                attempt=attempt,
                host=platform.node(),
                finished_s=time.time(),
                seconds=time.time() - began_s,
                files=tuple(names),
            )
            self._shared.publish(folder, names)
            if not receipts.create(receipt):
                self._shared.withdraw(folder, names)


def moved(names: Sequence[str], source: Path, target: Path) -> Sequence[str]:
    """Move files from a folder to another on the same file system, and return their names; raises OutputError."""
    with output_errors(target, "move results to"):
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).rename(target / name)
    return names
