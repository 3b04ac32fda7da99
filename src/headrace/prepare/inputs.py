"""What the user named -> the ordered list of files to read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.io.paths import natural_key

SUFFIX = ".jsonl"
# Left out in silence, these would be data lost unseen.
OTHER_DATA_SUFFIXES = (".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.xz", ".ndjson", ".parquet", ".arrow")


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One input file as it was when the run began."""

    name: str
    """As the user gave it, or the folder as given joined with the relative path."""

    path: str
    """Absolute, for the workers."""

    size_bytes: int
    mtime_ns: int

    def check_unchanged(self, status: os.stat_result) -> None:
        """Raise InputError unless size and time of change are those of the start."""
        if status.st_size != self.size_bytes or status.st_mtime_ns != self.mtime_ns:
            what = (
                f"its size went from {self.size_bytes:,} to {status.st_size:,} bytes"
                if status.st_size != self.size_bytes
                else "its modification time is another"
            )
            raise InputError(
                f"{self.name}: the file changed during the run: {what}. Wait until it is written, then run again."
            )


def find_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[SourceFile]:
    """Resolve files, folders and globs; arguments keep their order, inside one it is that of `natural_key`.

    Folders are searched for ``*.jsonl`` at any depth; names that begin with a dot are passed over.

    Raises:
        ConfigError: nothing matched, a kind of file this version does not read, or the same file twice.
        InputError: a file or folder cannot be read.
    """
    if not inputs:
        raise ConfigError("no input: name at least one .jsonl file, folder or glob")
    files: list[SourceFile] = []
    seen: dict[str, str] = {}
    for argument in [os.fspath(given) for given in inputs]:
        try:
            names = _expand(argument)
        except OSError as error:
            raise InputError(f"input {argument!r} cannot be read: {error.strerror or error}") from error
        for name in names:
            if not _is_text(name):
                raise ConfigError(f"input {name!r}: the name of the file is not UTF-8: rename it")
            real = os.path.realpath(name)
            if real in seen:
                raise ConfigError(_twice(name, seen[real], argument))
            seen[real] = argument
            files.append(_stat(name))
    return files


def _expand(argument: str) -> list[str]:
    """The names of the files behind one argument, in order."""
    if Path(argument).is_dir():
        return _search(argument)
    if Path(argument).exists():
        return [_accept(argument)]
    if not glob.has_magic(argument):
        raise ConfigError(f"input {argument!r} does not exist")
    # Hidden names are what a glob passes over by default too.
    matches = sorted(glob.glob(argument, recursive=True), key=natural_key)  # noqa: PTH207 - keeps names as given
    if not matches:
        raise ConfigError(f"input {argument!r} matches no file")
    if "**" in argument:  # it yields the folders on the way besides the files in them
        matches = [match for match in matches if not Path(match).is_dir()] or matches
    return [name for match in matches for name in (_search(match) if Path(match).is_dir() else [_accept(match)])]


def _accept(name: str) -> str:
    if not Path(name).is_file():
        raise ConfigError(f"input {name!r} is neither a regular file nor a folder")
    if not name.endswith(SUFFIX):
        raise ConfigError(f"input {name!r}: this version reads {SUFFIX} files only, one JSON object a line")
    return name


def _search(folder: str) -> list[str]:
    found: list[str] = []
    others: list[str] = []
    tars: list[str] = []
    for relative in sorted(_walk(folder, "", frozenset()), key=natural_key):
        if relative.endswith(SUFFIX):
            found.append(relative)
        elif relative.endswith(OTHER_DATA_SUFFIXES):
            others.append(relative)
        elif relative.endswith(".tar"):
            tars.append(relative)
    if not found and tars:
        raise ConfigError(
            f"input {folder!r} is a folder of tar shards, which is indexed in place without --tokenizer; "
            f"this version prepares text only: {SUFFIX} files with --tokenizer"
        )
    if others:
        raise ConfigError(
            f"input {folder!r} holds data that this version does not read: {others[0]!r} "
            f"({len(others):,} such files). Convert it to {SUFFIX}, or name the {SUFFIX} files alone (a glob will do)."
        )
    if not found:
        raise ConfigError(f"input {folder!r}: no {SUFFIX} file in this folder")
    return [os.path.join(folder, relative) for relative in found]  # noqa: PTH118 - keeps "./" as the user gave it


def _walk(folder: str, relative: str, above: frozenset[str]) -> Iterator[str]:
    """Relative paths of all files, links followed; ``above`` are the real folders on the way, against loops."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, f"{relative}{entry.name}/", above | {real})
        elif entry.is_file() or entry.is_symlink():
            yield f"{relative}{entry.name}"


def _stat(name: str) -> SourceFile:
    try:
        # Opened here already, so that a file without permission stops the run before hours of work.
        with Path(name).open("rb") as file:
            status = os.fstat(file.fileno())
    except OSError as error:
        raise InputError(f"{name}: the file cannot be read: {error.strerror}") from error
    return SourceFile(
        name=name, path=str(Path(name).absolute()), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns
    )


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _twice(name: str, first: str, second: str) -> str:
    if first == second:
        return f"{name}: input {first!r} reaches the same file twice (through a link): name it once"
    return f"{name}: the same file comes from two inputs, {first!r} and {second!r}: name it once"
