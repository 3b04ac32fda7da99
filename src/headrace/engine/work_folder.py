"""A work folder, which one process claims at a time: what runs on one host, and the ends of jobs, work in one.

lock          held by the process that works
plan.json     if processes on any hosts do the tasks, see `job`
phase-*/      what they have done
...           what the kind of work keeps
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Final

from headrace.errors import ConfigError, OutputError
from headrace.io import AnyPath, cache_folder, claim_folder
from headrace.io.atomic import LOCK_NAME

WORK_NAME: Final = ".headrace"
"""The work folder that lies in an output, or below its URL."""

PLAN_NAME: Final = "plan.json"
RUN_NAME: Final = "run.json"
"""What decides the bytes of an output that a run writes."""

MAX_NAME_BYTES: Final = 255
"""The longest name of a file that file systems allow."""


def inside(name: str) -> Callable[[AnyPath], AnyPath]:
    """Return where a kind of work has its work folder that is in the output."""
    return lambda output: output / name


def beside(ending: str) -> Callable[[AnyPath], AnyPath]:
    """Return where a kind of work has its work folder that is beside the output: ``.NAME.ENDING``.

    The function that is returned raises OutputError if this name is too long.
    """

    def place(output: AnyPath) -> AnyPath:
        output = output.resolve()
        name = f".{output.name}.{ending}"
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise OutputError(
                f"{output}: the name is too long: the work folder beside it, .NAME.{ending}, would have a name of "
                f"{len(os.fsencode(name))} bytes, and file systems allow {MAX_NAME_BYTES}"
            )
        return output.with_name(name)

    return place


def outputs_folder(url: str) -> Path:
    """Return the folder on this host in which files are made before they are uploaded, in `cache_folder`.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = cache_folder("outputs")
    if folder is None:
        raise ConfigError(
            f"{url}: there is no home folder in which files are made before they are uploaded: set HEADRACE_CACHE to a"
            " folder with room for them"
        )
    return folder


class BusyError(OutputError):
    """Another process has claimed the folder."""


class ClaimedFolder:
    """A work folder, not claimed yet.

    Args:
        path: the folder.
        busy: what an error says if another process has claimed it.
    """

    def __init__(self, path: Path, busy: str) -> None:
        self.path = path
        self._busy = busy
        self._created: list[Path] = []
        self._lock: IO[bytes] | None = None

    def make(self, folder: Path) -> None:
        """Make a folder that is needed, and its parents. `leave` removes those that are empty then.

        Raises:
            OSError: the system refuses it.
        """
        for path in reversed([path for path in [folder, *folder.parents] if not path.exists()]):
            path.mkdir(exist_ok=True)
            self._created.append(path)

    def claim(self) -> None:
        """Make the work folder, and lock it.

        Raises:
            BusyError: another process has claimed it.
            OSError: the system refuses it.
        """
        try:
            self._lock = claim_folder(self.path)
        except BlockingIOError:
            raise BusyError(self._busy) from None

    def clear(self, keep: Collection[str] = ()) -> None:
        """Remove everything but the lock and these names. The plan goes first, before what its tasks have made.

        Raises:
            OSError: the system refuses it.
        """
        (self.path / PLAN_NAME).unlink(missing_ok=True)
        for path in list(self.path.iterdir()):
            if path.name not in (LOCK_NAME, *keep):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def leave(self, end: Callable[[], None]) -> None:
        """Release the folder.

        Args:
            end: called before that, if this process has claimed the folder, to remove what should not stay. Without the
                lock, the folder belongs to another process.
        """
        lock, self._lock = self._lock, None
        if lock is not None:
            with lock:
                end()
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created = [folder for folder in self._created if folder.exists()]

    def keep_created(self) -> None:
        """Let the folders stay that `make` has made."""
        self._created.clear()


def remove_work(work: Path) -> None:
    """Remove a work folder, if the system lets us. The plan goes first: it never stands there without its files."""
    with contextlib.suppress(OSError):
        (work / PLAN_NAME).unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)
