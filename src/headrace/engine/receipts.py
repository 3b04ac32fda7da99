"""Receipts: the result of a task counts once its receipt exists, and a receipt is created once.

    RESULTS/receipts/00012/12345.json     of task 12345
    RESULTS/claims/00012/12345.0          who begins it first; .1 who begins it again
    RESULTS/ATTEMPT/...                   the files of an attempt: all tasks of one process

A task may be done several times, at the same time, on several hosts. Each process writes its files into a folder of its
own, syncs them, and then creates the receipt, which names the folder. The second to come finds the receipt, and throws
its files away. Claims only spare work: they keep two processes from doing the same task, and they count the attempts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import OutputError
from headrace.io import create_once, output_errors, read_once

RECEIPTS_NAME: Final = "receipts"
CLAIMS_NAME: Final = "claims"
_A_FOLDER: Final = 1000
"""Receipts in a folder: listing a folder again tells of all that are new, and a full one need not be listed again."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a task."""

    task_index: int
    attempt: str
    """The folder of the files: host, process and a random number."""

    host: str
    finished_s: float
    """Seconds since 1970 by the clock of that host; only for people."""

    seconds: float
    """How long the task took."""

    files: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    """What the kind of work counts, such as documents and tokens."""

    value: Any = None
    """What the task found, if it is small: JSON."""

    error: str = ""
    """Why the task failed, if it fails on every host."""


class Receipts:
    """The receipts of a phase, as this process knows them. `refresh` looks for new ones."""

    def __init__(self, folder: Path, first_task: int, num_tasks: int) -> None:
        self.folder = folder
        self.tasks = range(first_task, num_tasks)
        self.done: dict[int, Receipt] = {}
        self.failed: dict[int, Receipt] = {}
        """Those of tasks that fail on every host."""

        self.counts: Counter[str] = Counter()
        """Sums over the receipts."""

        self._full: set[int] = set()

    @property
    def open_tasks(self) -> list[int]:
        """The tasks without a receipt, in their order."""
        return [task_index for task_index in self.tasks if task_index not in self.done]

    @property
    def _folders(self) -> range:
        return range(self.tasks.start // _A_FOLDER, -(-self.tasks.stop // _A_FOLDER))

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            OutputError: the system refuses one.
        """
        with output_errors(self.folder, "make the folders of"):
            for kind in (RECEIPTS_NAME, CLAIMS_NAME):
                for number in self._folders:
                    (self.folder / kind / f"{number:05d}").mkdir(parents=True, exist_ok=True)

    def create(self, receipt: Receipt) -> bool:
        """Create the receipt of a task, whose files are on the disk; return False if the task has one already.

        Raises:
            OutputError: the system refuses the write.
        """
        is_ours = create_once(self._path(RECEIPTS_NAME, receipt.task_index), msgspec.json.encode(receipt))
        if is_ours:
            self._add(receipt)
        return is_ours

    def refresh(self) -> None:
        """Look for new receipts.

        Raises:
            OutputError: a folder or a receipt cannot be read.
        """
        for number in self._folders:
            if number in self._full:
                continue
            for task_index in self._listed(RECEIPTS_NAME, number):
                receipt = None if task_index in self.done else self.read(task_index)
                if receipt is not None:
                    self._add(receipt)
            first, last = number * _A_FOLDER, (number + 1) * _A_FOLDER
            if all(index in self.done for index in range(max(first, self.tasks.start), min(last, self.tasks.stop))):
                self._full.add(number)

    def _add(self, receipt: Receipt) -> None:
        self.done[receipt.task_index] = receipt
        if receipt.error:
            self.failed[receipt.task_index] = receipt
        self.counts.update(receipt.counts)

    def read(self, task_index: int) -> Receipt | None:
        """Return the receipt of a task; None if there is none, or it was torn.

        Raises:
            OutputError: it cannot be read, or is of another version.
        """
        path = self._path(RECEIPTS_NAME, task_index)
        data = read_once(path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Receipt)
        except msgspec.DecodeError as error:
            raise OutputError(f"{path}: this receipt is of another version of Headrace: {error}") from error

    def forget_failed(self) -> None:
        """Remove the receipts of tasks that failed, so that they are done again.

        Raises:
            OutputError: the system refuses it.
        """
        for receipt in self.failed.values():
            path = self._path(RECEIPTS_NAME, receipt.task_index)
            with output_errors(path, "remove"):
                path.unlink(missing_ok=True)
            del self.done[receipt.task_index]
            self.counts.subtract(receipt.counts)
            self._full.discard(receipt.task_index // _A_FOLDER)
        self.failed.clear()

    def claim(self, task_index: int, attempt: str, number: int) -> bool:
        """Be the one that begins attempt ``number`` of a task, from 0; False if another process is.

        Raises:
            OutputError: the system refuses the write.
        """
        return create_once(self._path(CLAIMS_NAME, task_index, f".{number}"), attempt.encode())

    def claims(self, task_index: int) -> list[str]:
        """Return who has begun a task, in the order of the attempts."""
        found: list[str] = []
        while (data := read_once(self._path(CLAIMS_NAME, task_index, f".{len(found)}"))) is not None:
            found.append(data.decode())
        return found

    def claimed(self) -> set[int]:
        """Return the tasks that were begun, whether or not they have a receipt."""
        return {task_index for number in self._folders for task_index in self._listed(CLAIMS_NAME, number)}

    def adopt(self, target: Path, suffix: str = "") -> None:
        """Move the files of all tasks that are done into one folder, where they were not moved yet.

        Args:
            target: the folder.
            suffix: how the names end of the files to move.

        If this is interrupted, the next call goes on with it. A file that is at neither place was moved by an earlier
        call and used up since, or it was lost; the caller knows which it still needs, and does such a task again.

        Raises:
            OutputError: the system refuses a move.
        """
        if not self.done:
            return
        with output_errors(target, "collect results in"):
            target.mkdir(parents=True, exist_ok=True)
            there = set(os.listdir(target))  # noqa: PTH208 - names alone
            for receipt in self.done.values():
                for name in receipt.files:
                    if name.endswith(suffix) and name not in there:
                        with contextlib.suppress(FileNotFoundError):
                            (self.folder / receipt.attempt / name).rename(target / name)

    def _path(self, kind: str, task_index: int, suffix: str = ".json") -> Path:
        return self.folder / kind / f"{task_index // _A_FOLDER:05d}" / f"{task_index}{suffix}"

    def _listed(self, kind: str, number: int) -> Iterator[int]:
        folder = self.folder / kind / f"{number:05d}"
        with output_errors(folder, "list"):
            try:
                names = os.listdir(folder)  # noqa: PTH208 - names alone
            except FileNotFoundError:
                return
        for name in names:
            head = name.partition(".")[0]
            if head.isdecimal():
                yield int(head)


def sync_files(folder: Path, names: Iterable[str]) -> None:
    """Bring files of a folder, and their names, to the disk.

    Raises:
        OutputError: the system reports an error.
    """
    for path in [*(folder / name for name in names), folder]:
        with output_errors(path, "sync"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def remove_files(folder: Path, names: Sequence[str]) -> None:
    """Remove the files of an attempt that came second; what is named may also be a folder."""
    for name in names:
        with contextlib.suppress(OSError):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink()
