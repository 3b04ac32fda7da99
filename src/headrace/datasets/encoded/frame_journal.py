"""The journal of a framed run on disk, one file a rank: what ``headrace trace`` finds units by.

    8 bytes     HRFRAMES
    8 bytes     which run, of the hashes of its recipe
    records     as of `headrace.plan.framed.Journal`, 16 bytes a frame and what it carries on

A kill leaves a record that is cut off at the end; whoever goes on writes over it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from headrace.errors import ConfigError, OutputError, StateError
from headrace.plan.framed import Journal, Lanes, LaneState, journal_record, whole_bytes
from headrace.plan.recipe import PARTS

MAGIC = b"HRFRAMES"
_HEAD_BYTES = 16


def head_of(hashes: Mapping[str, str]) -> bytes:
    """(16,) bytes: the begin of a journal of a run with these hashes of its recipe."""
    return MAGIC + sha256("".join(hashes[part] for part in PARTS).encode()).digest()[:8]


class JournalFile:
    """Appends the frames that a rank begins. What stands in it already may come again, and changes nothing.

    Args:
        path: of this rank alone; a file of the same run is gone on with.
        hashes: of the run's recipe.
        lanes: of the run.

    Raises:
        ConfigError: the file is of another run, or something else.
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], hashes: Mapping[str, str], lanes: Lanes) -> None:
        self._path = Path(path)
        self._lanes = lanes
        head = head_of(hashes)
        try:
            with self._path.open("a+b") as file:
                file.seek(0)
                data = file.read()
                _check_head(self._path, data, [head])
                file.truncate(_HEAD_BYTES + whole_bytes(data[_HEAD_BYTES:]) if len(data) >= _HEAD_BYTES else 0)
                if len(data) < _HEAD_BYTES:
                    file.write(head)
        except OSError as error:
            raise _refused(self._path, error) from error

    def add(self, marks: Iterable[LaneState]) -> None:
        """Frames that were begun. Raises OutputError: they cannot be written."""
        data = b"".join(journal_record(mark, self._lanes) for mark in marks)
        if not data:
            return
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(data)
        except OSError as error:
            raise _refused(self._path, error) from error


def check_journal(path: str | os.PathLike[str], runs: Iterable[Mapping[str, str]]) -> None:
    """Look before a run begins whether its journal can be written; what stands in it stays as it is.

    Args:
        path: of one rank.
        runs: hashes of the recipes that it may be of.

    Raises:
        ConfigError, OutputError: as `JournalFile`.
    """
    try:
        with Path(path).open("a+b") as file:
            file.seek(0)
            _check_head(Path(path), file.read(_HEAD_BYTES), [head_of(hashes) for hashes in runs])
    except OSError as error:
        raise _refused(Path(path), error) from error


def _check_head(path: Path, data: bytes, heads: list[bytes]) -> None:
    if not any(data.startswith(head) or head.startswith(data) for head in heads):
        raise ConfigError(f"{path}: is the journal of another run, or none: give this run a file of its own")


def _refused(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: the journal cannot be written: {error.strerror}")


def are_journals_of(paths: Iterable[str | os.PathLike[str]], hashes: Mapping[str, str]) -> bool:
    """Whether all of some files that can be read are journals of a run with these hashes."""
    try:
        return all(Path(path).read_bytes()[:_HEAD_BYTES] == head_of(hashes) for path in paths)
    except OSError:
        return False


def read_journals(paths: Iterable[str | os.PathLike[str]], hashes: Mapping[str, str], lanes: Lanes) -> Journal:
    """The journals of all ranks of a run, and of all its starts, as one.

    Raises:
        StateError: one cannot be read, is of another run, or contradicts the others.
    """
    head = head_of(hashes)
    records = []
    for path in paths:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise StateError(f"{path}: the journal cannot be read: {error.strerror}") from error
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise StateError(f"{path}: this is no journal; expected a file that Loader(journal=...) wrote")
        if len(data) < _HEAD_BYTES:
            continue
        if data[:_HEAD_BYTES] != head:
            raise StateError(f"{path}: the journal is of another run than the one that is asked about")
        records.append(data[_HEAD_BYTES : _HEAD_BYTES + whole_bytes(data[_HEAD_BYTES:])])
    return Journal(b"".join(records), lanes)
