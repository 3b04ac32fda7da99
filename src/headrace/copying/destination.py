"""The destination during a copy: as it was, until one rename puts the whole output there.

    .DST.headrace-copying/lock         held by the living run
                          output/      what is being written
                          replaced/    what was at DST, between two renames of --overwrite

The hidden folder lies beside the destination, so that a rename is all that is left to do. A killed run leaves it, and
nothing at DST; the next copy to DST removes it, and first puts back what it had replaced, if DST is not there. One that
is killed behind that rename has done its work: the same copy finds that it made what is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from headrace.errors import OutputError, StoreError
from headrace.io import claim_folder, output_errors, sync_folder
from headrace.stores import MANIFEST_NAME, load_manifest

OUTPUT_NAME = "output"
REPLACED_NAME = "replaced"


class Destination:
    """Claims a place for one copy, as a context manager. Left without `commit`, nothing has changed.

    Args:
        path: new, an empty folder, or with ``overwrite`` a folder that holds stores with a ``headrace.json`` alone.
        overwrite: replace those once the copy is complete.
        sources: files that are read, which may not lie in it.

    Raises:
        OutputError: the place is taken, another copy is writing to it, or the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, sources: Sequence[Path]) -> None:
        self.name = os.fspath(path)
        self.path = Path(path).resolve()
        self.work = self.path.with_name(f".{self.path.name}.headrace-copying")
        self._overwrite = overwrite
        self._sources = sources
        self._created: list[Path] = []
        self._lock: IO[bytes] | None = None

    @property
    def output(self) -> Path:
        """Where to write."""
        return self.work / OUTPUT_NAME

    @property
    def _replaced(self) -> Path:
        return self.work / REPLACED_NAME

    def check(self) -> None:
        """Refuse a place that is taken. Nothing is changed."""
        with output_errors(self.path, "use as the destination"):
            self._check_content()

    def clear(self) -> None:
        """Remove what a copy left that was killed behind its last rename: the output is in its place.

        Raises:
            OutputError: another copy is writing to it.
        """
        if self.work.exists():
            self._claim()
            self._leave()

    def commit(self) -> None:
        """Bring the output to the disk, and put it in its place.

        Raises:
            OutputError: the system refuses; the destination is as it was.
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

    def __enter__(self) -> Destination:
        try:
            with output_errors(self.path, "use as the destination"):
                self._make(self.path.parent)
                self._claim()
                self._put_back()
                for left in (self.output, self._replaced):
                    if left.exists():
                        shutil.rmtree(left)
                self._check_content()
                self.output.mkdir()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _claim(self) -> None:
        try:
            self._lock = claim_folder(self.work)
        except BlockingIOError:
            raise OutputError(f"{self.name}: another copy is being written there") from None

    def _put_back(self) -> None:
        """What was moved away, where nothing came in its place."""
        if self._replaced.exists() and not self.path.exists():
            self._replaced.rename(self.path)
            sync_folder(self.path)

    def _check_content(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise OutputError(f"{self.name}: is a file; name a new folder")
        names = sorted(entry.name for entry in os.scandir(self.path))
        if not names:
            return
        if not self._overwrite:
            is_ours = any((self.path / name / MANIFEST_NAME).exists() for name in ["", *names])
            advice = "--overwrite replaces it" if is_ours else "choose a new or an empty folder"
            raise OutputError(f"{self.name}: is there already and holds {names[0]!r}; {advice}")
        for source in self._sources:
            if self.path in source.resolve().parents:
                raise OutputError(f"{self.name}: holds {source}, which is to be copied; choose another destination")
        listed = self._listed()
        for path in sorted(self.path.rglob("*")):
            if path not in listed and not (path.is_dir() and any(path in file.parents for file in listed)):
                raise OutputError(
                    f"{self.name}: holds {path.relative_to(self.path)}, which no {MANIFEST_NAME} lists, so it is not"
                    " replaced; move it away, or choose another destination"
                )

    def _listed(self) -> set[Path]:
        """All files of the stores at the destination, and in the folders right below."""
        listed: set[Path] = set()
        for folder in [self.path, *(path for path in self.path.iterdir() if path.is_dir())]:
            if not (folder / MANIFEST_NAME).exists():
                continue
            try:
                manifest = load_manifest(folder)
            except StoreError as error:
                raise OutputError(f"{error}; what it lists cannot be replaced: remove it yourself") from error
            listed |= {folder / MANIFEST_NAME, *(folder / name for name in manifest.file_sizes())}
        return listed

    def _make(self, folder: Path) -> None:
        missing = [path for path in [folder, *folder.parents] if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            self._created.append(path)

    def _leave(self) -> None:
        # Without the lock the hidden folder, if there is one, is another run's.
        lock, self._lock = self._lock, None
        if lock is not None:
            with lock:
                if self.path.exists() or not self._replaced.exists():
                    shutil.rmtree(self.work, ignore_errors=True)
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created.clear()
