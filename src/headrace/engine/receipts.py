"""Receipts: the result of a task counts once its receipt exists, and a receipt is created once.

    RESULTS/receipts/00012/12345.json     of task 12345
    RESULTS/claims/00012/12345.0          who begins it first; .1 who begins it again
    RESULTS/ATTEMPT/...                   the files of an attempt: all tasks of one process

A task may be done several times, at the same time, on several hosts. Each process writes its files into a folder of its
own, brings them to where all see them, and then creates the receipt, which names the folder. The second to come finds
the receipt, and throws its files away. Claims only spare work: they keep two processes from doing the same task, and
they count the attempts. What all see is a folder, or objects, see `shared`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headrace.engine.shared import Shared
from headrace.errors import OutputError, StoreError

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
    etags: dict[str, str] = {}
    """Of files of the output that are in their place, see `Shared.deliver`."""

    counts: dict[str, int] = {}
    """What the kind of work counts, such as documents and tokens."""

    value: Any = None
    """What the task found, if it is small: JSON."""

    error: str = ""
    """Why the task failed, if it fails on every host."""


class Receipts:
    """The receipts of a phase, as this process knows them. `refresh` looks for new ones.

    Args:
        shared: what the processes of the job share.
        name: the name of the folder of the results.
        first_task: the first task of the phase.
        num_tasks: the end of its tasks.
    """

    def __init__(self, shared: Shared, name: str, first_task: int, num_tasks: int) -> None:
        self.shared = shared
        self.name = name
        self.folder = shared.here / name
        """The results on this host: of all processes, or of this one."""
        self.tasks = range(first_task, num_tasks)
        self.done: dict[int, Receipt] = {}
        self.failed: dict[int, Receipt] = {}
        """Those of tasks that fail on every host."""

        self.counts: Counter[str] = Counter()
        """Sums over the receipts."""

        self._full: set[int] = set()
        self._begun: dict[int, list[str]] = {}

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
        kinds = (RECEIPTS_NAME, CLAIMS_NAME)
        self.shared.make(self._place(kind, number) for kind in kinds for number in self._folders)

    def create(self, receipt: Receipt) -> bool:
        """Create the receipt of a task, whose files are on the disk; return False if the task has one already.

        It is safe in threads; `add` then lets the process know of the receipt.

        Raises:
            OutputError: the system refuses the write.
        """
        return self.shared.create(self._path(RECEIPTS_NAME, receipt.task_index), msgspec.json.encode(receipt))

    def refresh(self) -> None:
        """Look for new receipts.

        Raises:
            OutputError, StoreError: a folder or a receipt cannot be read.
        """
        try:
            self._refresh()
        except StoreError:
            if self.shared.is_planned():
                raise
            # Another process has completed the job, and removes the receipts.

    def _refresh(self) -> None:
        for number in self._folders:
            if number in self._full:
                continue
            new = {index for index in self._listed(RECEIPTS_NAME, number) if index not in self.done}
            for name, data in self.shared.read_all([self._path(RECEIPTS_NAME, index) for index in sorted(new)]).items():
                self.add(self._decoded(name, data))
            first, last = number * _A_FOLDER, (number + 1) * _A_FOLDER
            if all(index in self.done for index in range(max(first, self.tasks.start), min(last, self.tasks.stop))):
                self._full.add(number)

    def add(self, receipt: Receipt) -> None:
        """Know of a receipt."""
        if receipt.task_index in self.done:
            return
        self.done[receipt.task_index] = receipt
        if receipt.error:
            self.failed[receipt.task_index] = receipt
        self.counts.update(receipt.counts)

    def read(self, task_index: int) -> Receipt | None:
        """Return the receipt of a task; None if there is none, or it was torn.

        Raises:
            OutputError: it cannot be read, or is of another version.
        """
        name = self._path(RECEIPTS_NAME, task_index)
        data = self.shared.read(name)
        return None if data is None else self._decoded(name, data)

    def _decoded(self, name: str, data: bytes) -> Receipt:
        try:
            return msgspec.json.decode(data, type=Receipt)
        except msgspec.DecodeError as error:
            raise OutputError(
                f"{self.shared.address}/{name}: this receipt is of another version of Headrace: {error}"
            ) from error

    def forget_failed(self) -> None:
        """Remove the receipts of tasks that failed and are there now, so that they are done again.

        Raises:
            OutputError, StoreError: a receipt cannot be read, or the system refuses it.
        """
        self.refresh()
        for receipt in self.failed.values():
            self.shared.remove(self._path(RECEIPTS_NAME, receipt.task_index))
            del self.done[receipt.task_index]
            self.counts.subtract(receipt.counts)
            self._full.discard(receipt.task_index // _A_FOLDER)
        self.failed.clear()

    def claim(self, task_index: int, attempt: str, number: int) -> bool:
        """Be the one that begins attempt ``number`` of a task, from 0; False if another process is.

        Raises:
            OutputError: the system refuses the write.
        """
        return self.shared.create(self._path(CLAIMS_NAME, task_index, f".{number}"), attempt.encode(), lasts=False)

    def give_back(self, task_index: int, number: int) -> None:
        """Take back the claim of attempt ``number``, which ends in order, unless another process has begun the next.

        Raises:
            OutputError, StoreError: the system or the store refuses it.
        """
        if self.shared.read(self._path(CLAIMS_NAME, task_index, f".{number + 1}")) is None:
            self.shared.remove(self._path(CLAIMS_NAME, task_index, f".{number}"))

    def claims(self, task_index: int) -> list[str]:
        """Return who has begun a task, in the order of the attempts."""
        found = self._begun.setdefault(task_index, [])  # a claim never changes
        while (data := self.shared.read(self._path(CLAIMS_NAME, task_index, f".{len(found)}"))) is not None:
            found.append(data.decode())
        return list(found)

    def claimed(self) -> set[int]:
        """Return the tasks that were begun, whether or not they have a receipt."""
        return {task_index for number in self._folders for task_index in self._listed(CLAIMS_NAME, number)}

    def away(self, receipt: Receipt, name: str) -> str:
        """Return the name of a result of a task, by which `Shared` knows it."""
        return f"{self.name}/{receipt.attempt}/{name}"

    def _place(self, kind: str, number: int) -> str:
        return f"{self.name}/{kind}/{number:05d}"

    def _path(self, kind: str, task_index: int, suffix: str = ".json") -> str:
        return f"{self._place(kind, task_index // _A_FOLDER)}/{task_index}{suffix}"

    def _listed(self, kind: str, number: int) -> Iterator[int]:
        for name in self.shared.names(self._place(kind, number)):
            head = name.partition(".")[0]
            if head.isdecimal():
                yield int(head)
