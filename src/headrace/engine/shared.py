"""What the processes of a job share, on whatever hosts they are: a folder, or objects below a URL.

    created    small files that are created once, of several processes by one: receipts and claims
    notes      small files that are rewritten, and on which only waiting depends: which processes are at work
    results    files of an attempt, which a process makes in `Shared.here`, and shows to all when they are complete;
               those of the output itself are delivered to it by each task, and gathered at the end

All names are relative to the work folder of the job. `Shared` is a folder that all hosts see;
`headrace.engine.shared_objects` does the same with objects. Nothing else knows which of them it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from headrace.engine.work_folder import PLAN_NAME
from headrace.errors import OutputError
from headrace.io import create_once, output_errors, read_once, read_small, sync


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the output, whose task is done."""

    name: str
    """Its path in the output."""

    folder: str
    """The folder in which its task has made it."""

    size: int
    xxh3_128: str
    etag: str = ""
    """What `Shared.deliver` returned."""


class LostError(OutputError):
    """A file that a task has made for the output is gone, or is another one: going on would meet the same."""


class Shared:
    """What the processes of a job share: a work folder that all hosts see, or, as `SharedObjects`, objects at a URL.

    Args:
        here: the work folder on this host, in which this process makes its files. It holds the files of the plan.
    """

    is_folder: ClassVar[bool] = True
    """Whether ``here`` is what all processes share, so that the results of all are there."""

    beat_s: ClassVar[float] = 5.0
    """Seconds between two notes of a process that it is at work."""

    pause_s: ClassVar[float] = 0.0
    """The fewest seconds between two looks at what others have done."""

    def __init__(self, here: Path) -> None:
        self.here = here

    @property
    def address(self) -> str:
        """Where other hosts find it."""
        return str(self.here.absolute())

    def is_planned(self) -> bool:
        """Return whether the job is neither complete nor discarded."""
        return (self.here / PLAN_NAME).exists()

    def make(self, folders: Iterable[str]) -> None:
        """Make folders for files that are created; raises OutputError."""
        for folder in folders:
            path = self.here / folder
            with output_errors(path, "make the folder"):
                path.mkdir(parents=True, exist_ok=True)

    def create(self, name: str, data: bytes, *, lasts: bool = True) -> bool:
        """Create a file; return False if it is there already.

        Args:
            name: its name.
            data: its content.
            lasts: whether it has to be there also after a loss of power.

        Raises:
            OutputError: it cannot be created.
        """
        return create_once(self.here / name, data, lasts=lasts)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file that was created; None if there is none, or it was torn.

        Raises:
            OutputError, StoreError: it cannot be read.
        """
        return read_once(self.here / name)

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of files that were created, without those that are not there; raises as `read`."""
        found = ((name, self.read(name)) for name in names)
        return {name: data for name, data in found if data is not None}

    def names(self, folder: str) -> list[str]:
        """Return the names of the files right in a folder; raises OutputError or StoreError."""
        path = self.here / folder
        with output_errors(path, "list"):
            try:
                return os.listdir(path)  # noqa: PTH208 - names alone
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        """Remove a file that was created, or a note; raises OutputError."""
        path = self.here / name
        with output_errors(path, "remove"):
            path.unlink(missing_ok=True)

    def note(self, name: str, data: bytes) -> None:
        """Write a note, or rewrite it. Nothing depends on it, so a failure does not matter, nor is it synced."""
        path = self.here / name
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            temporary.write_bytes(data)
            temporary.rename(path)

    def notes(self, folder: str) -> dict[str, bytes]:
        """Return the notes in a folder, as far as they can be read."""
        found = {}
        for path in sorted((self.here / folder).glob("*.json")):
            with contextlib.suppress(OSError):
                found[path.name] = read_small(path)
        return found

    def versions(self, folder: str) -> Mapping[str, object]:
        """Return for each note in a folder something that changes when it is rewritten."""
        return self.notes(folder)

    def publish(self, folder: str, names: Sequence[str]) -> None:
        """Show complete results, which lie in a folder in ``here``, to all; they last then.

        Raises:
            OutputError: the system or the store refuses it.
        """
        sync_files(self.here / folder, names)

    def withdraw(self, folder: str, names: Sequence[str]) -> None:
        """Remove results of which another process has shown the same."""
        remove_files(self.here / folder, names)

    def place(self, name: str) -> Path | str:
        """Return where a result is that somebody has shown: its path, or its URL."""
        return self.here / name

    def fetch(self, name: str, path: Path) -> None:
        """Bring a result that somebody has shown to a path on this host, unless it is there.

        Raises:
            OutputError, StoreError: it is not there any more, or cannot be read or written.
        """
        # What a folder shows is there.

    def deliver(self, folder: str, names: Sequence[str]) -> dict[str, str]:
        """Bring files of the output, which lie in a folder in ``here`` by their names, towards it; they last then.

        Returns:
            For files that are in their place now, what another file there would not have: their ETags.

        Raises:
            OutputError: the system or the store refuses it.
        """
        # In a folder they stay where they are until they are gathered.
        self.publish(folder, names)
        return {}

    def gather(self, delivered: Iterable[Delivered], target: Path) -> None:
        """See that all files are in the output. If this is interrupted, the next call goes on with it.

        Args:
            delivered: the files, with their sums.
            target: the folder of the output on this host; of no use if that is at a URL.

        Raises:
            OutputError, StoreError: one is not there any more, or is another one.
        """
        for file in delivered:
            path = target / file.name
            with output_errors(path, "collect results in"):
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(FileNotFoundError):
                        (self.here / file.folder / file.name).rename(path)
                size = path.stat().st_size if path.exists() else None
            if size != file.size:
                raise lost(path, file, size, f"remove {self.here}")

    def sweep(self) -> None:
        """Remove what this process has written after the job was completed or discarded by another."""
        # Whoever completes the job removes a folder.


def lost(path: Path | str, file: Delivered, size: int | None, advice: str) -> LostError:
    """Return the error for a file that has not the size that its task has made."""
    found = "is not there any more" if size is None else f"has {size:,} bytes, and had {file.size:,}"
    return LostError(f"{path}: was written by a task, and {found}; {advice}, and run again")


def sync_files(folder: Path, names: Iterable[str]) -> None:
    """Bring files of a folder, and their names, to the disk.

    Raises:
        OutputError: the system reports an error.
    """
    inside = list(map(Path, names))
    folders = {folder, *(folder / above for name in inside for above in name.parents)}
    for path in [*map(folder.joinpath, inside), *sorted(folders, reverse=True)]:
        with output_errors(path, "sync"):
            sync(path)


def remove_files(folder: Path, names: Sequence[str]) -> None:
    """Remove the files of an attempt that came second; what is named may also be a folder."""
    for name in names:
        with contextlib.suppress(OSError):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink()
