"""A folder of plain files: the metadata of its media, as `index.sqlite` of a filesystem dataset holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from headrace.errors import InputError
from headrace.prepare.energon.media import HEAD_BYTES, MediaFinder
from headrace.prepare.energon.options import MediaFilter
from headrace.prepare.shards.messages import load, save
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow

FILES_A_TASK: Final = 500


class MediaTask(msgspec.Struct, frozen=True, tag=True):
    """Look at these files."""

    turn: int
    names: tuple[str, ...]


def find_files(root: Path, wanted: MediaFilter) -> list[str]:
    """The files that may be media, by the parts of their names; those of ``.nv-meta`` are none.

    Raises:
        InputError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {error.strerror or error}") from error

    finder = MediaFinder(wanted)
    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name != META_FOLDER]
        below = os.path.relpath(folder, root)
        prefix = "" if below == "." else f"{below}/"
        found += [prefix + name for name in files if finder.may_be(prefix + name)]
    return sorted(found, key=lambda name: PurePosixPath(name).parts)


def media_tasks(names: list[str]) -> list[MediaTask]:
    """The files, some hundred a task."""
    begins = range(0, len(names), FILES_A_TASK)
    return [MediaTask(turn, tuple(names[begin : begin + FILES_A_TASK])) for turn, begin in enumerate(begins)]


def read_media(root: Path, folder: Path, task: MediaTask, wanted: MediaFilter) -> None:
    """Write the rows of a task.

    Raises:
        InputError: a file cannot be read.
        OutputError: the system refuses.
        MissingExtraError: what reads media is not installed.
    """
    finder = MediaFinder(wanted)
    rows = []
    for name in task.names:
        path = root / name
        try:
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
                kind = finder.kind(name, head)
                data = head + file.read() if kind is not None else b""
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        row = finder.row(name, kind, data) if kind is not None else None
        if row is not None:
            rows.append(row)
    save(folder / f"{task.turn}.media", rows)


def load_media(folder: Path, turn: int) -> Iterator[MediaRow]:
    """The rows of a task."""
    yield from load(folder / f"{turn}.media", list[MediaRow]) or ()
