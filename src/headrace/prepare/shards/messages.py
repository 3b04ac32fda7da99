"""What a run over media says to its workers, and what they leave on disk: msgpack."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import xxhash

from headrace.errors import OutputError
from headrace.io import FileSum, output_errors
from headrace.prepare.shards.options import PartSpec
from headrace.prepare.sources import RecordSpec, SourceFile, Task

T = TypeVar("T")
SPEC = RecordSpec(fields=(), whole=True, lists=True)
"""Tables are read as whole records."""

NO_FILE = -1


class ShardProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, tasks on their way included."""

    phase: Literal["survey", "write"]
    done_bytes: int
    """Of the inputs that are surveyed, or of the contents that are written."""
    total_bytes: int
    samples: int


class SurveySetup(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become samples."""

    parts: tuple[tuple[PartSpec, ...], ...]
    """For each input."""
    key_field: str | None
    key_dots: Literal["error", "replace", "part"]
    verify: bool
    max_record_bytes: int
    roots: tuple[str, ...]
    """For each input, the absolute path of the folder that its files lie in."""
    folder: str
    """Where surveys and spools go."""


class ShardSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: all that is the same for every task."""

    parent: int
    survey: SurveySetup
    lists: str
    shards: str
    done: str


class TableTask(msgspec.Struct, frozen=True, tag=True):
    """Survey these spans of tables."""

    task: Task
    files: tuple[SourceFile, ...]

    @property
    def task_index(self) -> int:
        """Place of its result among those of the others."""
        return self.task.number


class FolderTask(msgspec.Struct, frozen=True, tag=True):
    """Survey groups of files."""

    number: int
    input: int
    listing: str
    """The file with the groups."""

    @property
    def task_index(self) -> int:
        """Place of its result among those of the others."""
        return self.number


class FillTask(msgspec.Struct, frozen=True, tag=True):
    """Write a shard."""

    shard: int
    name: str

    @property
    def task_index(self) -> int:
        """Place of its result among those of the others."""
        return self.shard


class SumTask(msgspec.Struct, frozen=True, tag=True):
    """Hash a table that no single task reads whole."""

    number: int
    file: SourceFile

    @property
    def task_index(self) -> int:
        """It has none: the result is taken as it comes."""
        return -1


ShardOrder = TableTask | FolderTask | FillTask | SumTask


class FoundPart(msgspec.Struct, frozen=True, array_like=True):
    """A part: a range of the spool, or a file."""

    name: str
    size: int
    offset: int = 0
    """In the spool."""
    path: str = ""
    """Of a file, relative to the root of its input; empty: it is in the spool."""
    mtime_ns: int = 0


class FoundSample(msgspec.Struct, frozen=True, array_like=True):
    """A row of a table, or a group of files."""

    line: int
    """Within its span."""
    key: str
    """Empty: its number."""
    parts: tuple[FoundPart, ...]
    bad: str = ""
    """Why it cannot be used; its parts are then those found before that."""
    name: str = ""
    """How the input calls it, where the key is not that."""


class FoundSpan(msgspec.Struct, frozen=True, array_like=True):
    """What was found in a span of an input: every line is a sample, or blank."""

    input: int
    lines: int
    samples: tuple[FoundSample, ...]
    blank: tuple[int, ...]
    input_bytes: int
    begin: int
    end: int
    xxh3_128: str = ""


class ShardSurvey(msgspec.Struct, frozen=True, array_like=True):
    """What a task found."""

    spans: tuple[FoundSpan, ...]
    spool_bytes: int = 0


class ListedSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample of a shard that is to be written."""

    place: int
    """In the shard."""
    key: str
    input: int
    spool: int
    """The task whose spool its parts are in."""
    parts: tuple[FoundPart, ...]


class FilledShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that is on disk, with all that its row in the index needs."""

    files: tuple[FileSum, FileSum]
    keys: tuple[str, ...]
    offsets: tuple[int, ...]
    parts: tuple[tuple[int, str, int, int], ...]
    """Number of the sample, name of the part, offset and size of its content."""
    part_bytes: dict[str, int]
    file_bytes: dict[int, int]
    """By input: bytes that came from files of its root."""
    file_hashes: dict[int, str]
    """By input: sum of the hashes of these files, in hex; see `filling.FileHashes`."""


def survey_path(folder: str | Path, task_index: int) -> Path:
    """Where the survey of a task lies."""
    return Path(folder) / f"{task_index}.survey"


def spool_path(folder: str | Path, task_index: int) -> Path:
    """Where the values of columns lie that a task found."""
    return Path(folder) / f"{task_index}.spool"


def save(path: Path, value: Any, *, sync: bool = False) -> None:
    """Write a message with its hash behind it, whole or not at all.

    Raises:
        OutputError: the system refuses.
    """
    from headrace.io import atomic_write

    data = msgspec.msgpack.encode(value)
    data += xxhash.xxh3_64_digest(data)
    if sync:
        atomic_write(path, data)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with output_errors(path, "write"):
        temporary.write_bytes(data)
        temporary.rename(path)


def load(path: Path, kind: type[T]) -> T | None:
    """A message that `save` wrote; None where there is none, or it was half written when the power went.

    Raises:
        OutputError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if xxhash.xxh3_64_digest(data[:-8]) != data[-8:]:
        return None
    try:
        return msgspec.msgpack.decode(data[:-8], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
