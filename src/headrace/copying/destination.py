"""The destination of a copy, which stays unchanged until one rename puts the whole output in place.

    .DST.headrace-copying/plan.json    what is copied
                          phase-*/     the shards that are written
                          lock         held by the process that puts them into place
                          output/      the output while it is put together
                          replaced/    the old content of DST, between the two renames of --overwrite

The hidden folder is beside the destination, so that a rename completes the copy. A copy that is killed leaves the
hidden folder, and nothing at DST; the same copy goes on with what is done, and another one is refused. If DST is
missing, the next copy first puts back what was replaced. A copy that is killed after the last rename has done its work,
and the same copy finds that the output is its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

import msgspec

from headrace.engine.job import NewPlan, Phase, load_plan, save_plan
from headrace.engine.shared import Shared, SharedFolder
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, beside, remove_work
from headrace.errors import OutputError, StoreError
from headrace.io import AnyPath, hash_bytes, output_errors, sync_folder
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest, save_manifest

WORK: Final = beside("headrace-copying")
OUTPUT_NAME = "output"
REPLACED_NAME = "replaced"


class CopyPlace(Protocol):
    """Where a copy goes: a `Destination`, or an `ObjectDestination` at a URL."""

    @property
    def path(self) -> AnyPath:
        """The folder, or the URL."""

    @property
    def was_committed(self) -> bool:
        """Whether the planned copy was put into place, in that of what is replaced."""

    def check(self) -> None:
        """Refuse a place that is not free, without changing anything; raises OutputError."""

    def plan(self, kind: str, plan: msgspec.Struct, phase: Phase) -> bool:
        """Write the plan of a copy, or find it there; tasks that failed before are to be tried again.

        Returns:
            Whether nobody has planned it before.

        Raises:
            OutputError: the place is not free, another copy is planned there, or the plan cannot be written.
        """

    def shared(self) -> Shared:
        """Return what the processes of the copy share that is planned there."""

    def finish(self, gather: Callable[[Path], None], manifests: Mapping[str, Manifest]) -> None:
        """Put the output into place.

        Args:
            gather: puts the files into the folder of the output, or sees that they are at the URL.
            manifests: the manifests of the stores, by the names of their folders.

        Raises:
            OutputError, StoreError: a file cannot be written or moved, or is not there.
        """

    def clear(self) -> None:
        """Remove what a copy that is complete has left; raises OutputError."""

    def discard(self) -> None:
        """Remove the plan and what was written; raises OutputError."""


class Destination:
    """A folder that one copy goes to. Without `commit` it stays unchanged.

    As a context manager it holds the lock of the hidden folder.

    Args:
        path: a new or empty folder, or with ``overwrite`` a folder that holds nothing but stores with a
            ``headrace.json``.
        overwrite: whether to replace these stores once the copy is complete.
        sources: files that are read, which must not be in the destination.

    Raises:
        OutputError: the destination is not empty, another copy is writing to it, or it cannot be written.

    Example:
        >>> with headrace.copying.Destination("copies", overwrite=False, sources=[]) as destination:
        ...     size = (destination.output / "notes.txt").write_text("copied")
        ...     destination.commit()
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, sources: Sequence[Path]) -> None:
        self.name = os.fspath(path)
        self.path = Path(path).resolve()
        self.work = WORK(self.path)
        self._overwrite = overwrite
        self._sources = sources
        self._claimed = ClaimedFolder(self.work, f"{self.name}: another copy is writing to this destination")
        self._stays = False

    @property
    def output(self) -> Path:
        """The folder to write to."""
        return self.work / OUTPUT_NAME

    @property
    def _replaced(self) -> Path:
        return self.work / REPLACED_NAME

    @property
    def was_committed(self) -> bool:
        """Whether the planned copy was put into place, in that of what is replaced."""
        return self._replaced.exists() and self.path.exists()

    @property
    def is_planned(self) -> bool:
        """Whether a copy is planned there."""
        return (self.work / PLAN_NAME).exists()

    def check(self) -> None:
        """Refuse a destination that is not free, without changing anything.

        Raises:
            OutputError: it is not empty, or holds files that may not be replaced.
        """
        with output_errors(self.path, "use as the destination"):
            self._check_content()

    def plan(self, kind: str, plan: msgspec.Struct, phase: Phase) -> bool:
        """See `CopyPlace`."""
        with self:
            is_first = not self.is_planned
            if not is_first:
                found = load_plan(self.work)
                if (found.kind, found.digest) != (kind, hash_bytes(msgspec.json.encode(plan))):
                    raise OutputError(
                        f"{self.name}: a copy of other sources, or with other options, was begun for this output:"
                        f" complete it with headrace job finish {self.name}, or remove {self.work}"
                    )
            save_plan(self.work, NewPlan(kind, plan, [phase]))  # again, since the software may be another one now
            self._stays = True
        return is_first

    def shared(self) -> Shared:
        """See `CopyPlace`."""
        return SharedFolder(self.work)

    def finish(self, gather: Callable[[Path], None], manifests: Mapping[str, Manifest]) -> None:
        """See `CopyPlace`."""
        with self:
            gather(self.output)
            for name, manifest in manifests.items():
                save_manifest(self.output / name, manifest)
            self.commit()

    def clear(self) -> None:
        """See `CopyPlace`; raises BusyError if another process works there."""
        if self.work.exists():
            self._claimed.claim()
            self._stays = False
            self._leave()

    def discard(self) -> None:
        """See `CopyPlace`."""
        with self:
            self._stays = False

    def commit(self) -> None:
        """Flush the output to the disk, and move it into place.

        Raises:
            OutputError: it cannot be moved; the destination is unchanged.
        """
        with output_errors(self.path, "move the output to"):
            for folder in [self.output, *(path for path in self.output.rglob("*") if path.is_dir())]:
                sync_folder(folder / MANIFEST_NAME)
            try:
                if self.path.exists() and any(self.path.iterdir()):
                    self.path.rename(self._replaced)
                self.output.rename(self.path)
            except BaseException:
                self._put_back()
                raise
            sync_folder(self.path)
        self._stays = False

    def __enter__(self) -> Destination:
        try:
            with output_errors(self.path, "use as the destination"):
                self._claimed.make(self.path.parent)
                self._claimed.claim()
                self._stays = self.is_planned
                self._put_back()
                if not self._stays:
                    self._claimed.clear()  # of a copy that was killed while it removed this, its plan first
                elif self._replaced.exists():
                    shutil.rmtree(self._replaced)
                self._check_content()
                self.output.mkdir(exist_ok=True)
                for path in self.output.rglob(".*.tmp"):  # of a run that was killed while it put shards together
                    path.unlink()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _put_back(self) -> None:
        """Move the replaced content back if the destination is missing."""
        if self._replaced.exists() and not self.path.exists():
            self._replaced.rename(self.path)
            sync_folder(self.path)

    def _check_content(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise OutputError(f"{self.name} is a file; name a new folder")
        names = sorted(entry.name for entry in os.scandir(self.path))
        if not names:
            return
        if not self._overwrite:
            is_ours = any((self.path / name / MANIFEST_NAME).exists() for name in ["", *names])
            advice = "--overwrite replaces it" if is_ours else "choose a new or an empty folder"
            raise OutputError(f"{self.name}: the folder exists and holds {names[0]!r}; {advice}")
        for source in self._sources:
            if self.path in source.resolve().parents:
                raise OutputError(f"{self.name} holds {source}, which is a source; choose another destination")
        listed = self._listed()
        for path in sorted(self.path.rglob("*")):
            if path not in listed and not (path.is_dir() and any(path in file.parents for file in listed)):
                raise OutputError(
                    f"{self.name} holds {path.relative_to(self.path)}, which no {MANIFEST_NAME} lists, so the folder"
                    " is not replaced; move the file away, or choose another destination"
                )

    def _listed(self) -> set[Path]:
        """Return all files of the stores at the destination, and in the folders directly below it."""
        listed: set[Path] = set()
        for folder in [self.path, *(path for path in self.path.iterdir() if path.is_dir())]:
            if not (folder / MANIFEST_NAME).exists():
                continue
            try:
                manifest = load_manifest(folder)
            except StoreError as error:
                raise OutputError(
                    f"{error}; the files that it lists cannot be replaced: remove them yourself"
                ) from error
            listed |= {folder / MANIFEST_NAME, *(folder / name for name in manifest.files())}
        return listed

    def _leave(self) -> None:
        def end() -> None:
            if not self._stays and (self.path.exists() or not self._replaced.exists()):
                remove_work(self.work)

        self._claimed.leave(end)
