"""An output in an object store: which run writes it, and what belongs to that run.

    URL/.headrace/run.json        what decides the bytes of the output; created once, and removed last
                  plan.json       the plan, and what its tasks have done, see `headrace.engine.shared_objects`
    URL/...                       the files; the manifest comes last

As long as there is a ``run.json`` and no manifest, the output is not complete, and nothing opens it as a store. Any
other run finds another ``run.json``, and writes nothing.
"""

from __future__ import annotations

from typing import Final

from headrace.engine.work_folder import WORK_NAME
from headrace.io import path_at
from headrace.io.objects.writer import ObjectWriter

RUN: Final = f"{WORK_NAME}/run.json"
PLAN: Final = f"{WORK_NAME}/plan.json"
"""The plan, if processes on any hosts do the tasks, see `headrace.engine.shared_objects`."""


class Upload:
    """The output at a URL.

    Args:
        url: the URL, without a slash at its end.
        writer: what reaches the store.
    """

    def __init__(self, url: str, writer: ObjectWriter) -> None:
        self.url = url
        self.writer = writer

    def others(self) -> list[str]:
        """Return the names of all objects below the URL, except those that belong to a run."""
        names = self._names()
        return [name for name in names if not name.startswith(f"{WORK_NAME}/")]

    def claim(self, run: bytes) -> bytes | None:
        """Say that this run writes the output: the first one does, and every other that is the same.

        Returns:
            None, or the description of another run that has not completed its output.

        Raises:
            OutputError: the store replaces what it must not, see `ObjectWriter.check_creation`.
        """
        other = self.writer.create(self._at(RUN), run)
        if other is None:
            self.writer.check_creation(self._at(RUN), run)
        return other

    def unfinished(self) -> bytes | None:
        """Return the description of a run that has not completed its output; None if there is none."""
        return self.writer.read(self._at(RUN))

    def clear(self) -> None:
        """Remove what belongs to runs that are over: plan, receipts, and results of tasks.

        The plan goes first, so that no other process begins a task any more.
        """
        self._remove(f"{WORK_NAME}/")

    def discard(self) -> None:
        """Remove everything that a run without a manifest has written; its description goes last."""
        self._remove("")

    def _remove(self, below: str) -> None:
        names = [name for name in self._names() if name.startswith(below) and name != RUN]
        if PLAN in names:
            self.writer.delete([self._at(PLAN)])
        self.writer.delete([self._at(name) for name in names])
        self.writer.delete([self._at(RUN)])

    def _names(self) -> list[str]:
        return list(self.writer.statuses(self.url))

    def _at(self, name: str) -> str:
        return f"{self.url}/{name}"


def upload_at(url: str) -> Upload:
    """Return what can be written below a URL, which is reached by what the environment says."""
    return Upload(str(path_at(url)), ObjectWriter())
