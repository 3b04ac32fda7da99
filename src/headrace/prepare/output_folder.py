"""The output folder during a run: nothing in it changes until everything is complete.

    DIR/.headrace-prepare/lock             held by the living run
                          tokenizer.json   the copy that all workers load
                          parts.1f0c/      parts on their way to the store, a folder a run
                          text_document.*  the store and its manifest, once complete
                          commit.json      the files are being moved up into DIR

A killed run leaves the hidden folder. The next run in DIR removes it, and what an interrupted move had put in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO

from headrace.errors import OutputError, StoreError
from headrace.io import atomic_write, safe_relative
from headrace.io.atomic import output_errors
from headrace.stores import MANIFEST_NAME, load_manifest

WORK_NAME = ".headrace-prepare"
PREFIX = "text_document"
"""Megatron's name: the key of its record, and the level."""

FILE_NAMES = (f"{PREFIX}.bin", f"{PREFIX}.idx", MANIFEST_NAME)
_COMMIT_NAME = "commit.json"


class OutputFolder:
    """Claims a folder for one run, as a context manager.

    Left without `commit`, it is as it was found; a folder that the run made is removed.

    Raises:
        OutputError: the folder holds something else, another run is writing to it, or the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool) -> None:
        self.path = Path(path)
        self.work = self.path / WORK_NAME
        self._overwrite = overwrite
        self._created: list[Path] = []
        self._lock: IO[bytes] | None = None
        self._replaced: list[str] = []

    def __enter__(self) -> OutputFolder:
        try:
            with output_errors(self.path, "use as the output folder"):
                self._make(self.path)
                self._claim()
                self._recover()
            self._check_content()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def commit(self) -> None:
        """Move the complete files from `work` up into the folder; the ``.idx``, without which no store opens, last.

        Raises:
            OutputError: the system refuses.
        """
        order = [MANIFEST_NAME, f"{PREFIX}.bin", f"{PREFIX}.idx"]
        atomic_write(self.work / _COMMIT_NAME, json.dumps({"files": order}).encode())
        try:
            with output_errors(self.path, "replace the output in"):
                # Old indices go first, so that no old index ever stands beside new tokens.
                for name in sorted(self._replaced, key=lambda name: not name.endswith(".idx")):
                    (self.path / name).unlink(missing_ok=True)
                _sync(self.path)
                for name in order:
                    (self.work / name).rename(self.path / name)
                _sync(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._undo_moves(order)
            raise
        self._created.clear()

    def _make(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            self._created.append(path)

    def _claim(self) -> None:
        self.work.mkdir(exist_ok=True)
        lock = (self.work / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OutputError(f"{self.path}: another headrace prepare is writing to this folder") from None
        except OSError as error:
            # Some network file systems have no locks: go on without.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                lock.close()
                raise
        self._lock = lock

    def _recover(self) -> None:
        """Remove what a killed run left."""
        if (self.work / _COMMIT_NAME).exists():
            files = json.loads((self.work / _COMMIT_NAME).read_bytes())["files"]
            if any((self.work / name).exists() for name in files):
                self._undo_moves(files)
        for entry in os.scandir(self.work):
            if entry.name != "lock":
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else Path(entry.path).unlink()

    def _undo_moves(self, names: list[str]) -> None:
        for name in names:
            if not (self.work / safe_relative(name)).exists():
                (self.path / name).unlink(missing_ok=True)

    def _check_content(self) -> None:
        with output_errors(self.path, "list"):
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.name != WORK_NAME)
        if not names:
            return
        is_ours = MANIFEST_NAME in names
        if not self._overwrite:
            what = "holds the output of an earlier run" if is_ours else f"is not empty: it holds {names[0]!r}"
            advice = "--overwrite replaces it" if is_ours else "choose a new or an empty folder"
            raise OutputError(f"{self.path}: the output folder {what}; {advice}")
        taken = sorted(set(names) & set(FILE_NAMES))
        if taken and not is_ours:
            raise OutputError(
                f"{self.path}: {taken[0]} was not written by headrace prepare (there is no {MANIFEST_NAME} beside it), "
                "so it is not overwritten; choose another folder"
            )
        if is_ours:
            self._replaced = [*taken, *(name for name in self._listed() if name not in taken)]

    def _listed(self) -> list[str]:
        """The files that the manifest there names, further shards included."""
        try:
            manifest = load_manifest(self.path)
        except StoreError:
            return []  # damaged: only the names that are certainly ours go
        folders = {shard.prefix: Path(shard.prefix).parent for shard in manifest.outputs}
        return [str(folders[shard.prefix] / file.name) for shard in manifest.outputs for file in shard.files]

    def _leave(self) -> None:
        if self._lock is None:
            # Not claimed: the hidden folder, if there is one, is another run's.
            self._remove_created()
            return
        shutil.rmtree(self.work, ignore_errors=True)
        self._lock.close()
        self._lock = None
        self._remove_created()

    def _remove_created(self) -> None:
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created.clear()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
