"""The messages between a run over media and its workers, and the results that workers leave on disk, as msgpack."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from headrace.io import FileSum, Storage
from headrace.preparing.shards.options import PartSpec
from headrace.preparing.sources import RecordSpec, SourceFile, Task, spans_in_words

SPEC = RecordSpec(fields=(), whole=True, lists=True)
"""How tables are read: as whole records."""


class ShardProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, including unfinished tasks."""

    phase: Literal["survey", "write"]
    done_bytes: int
    """Bytes of the inputs that are surveyed, or of the contents that are written."""
    total_bytes: int
    """Bytes of all inputs, or of all contents."""
    samples: int
    """Number of samples that are surveyed, or written."""


class SurveySetup(msgspec.Struct, frozen=True, kw_only=True):
    """How rows and files become samples."""

    parts: tuple[tuple[PartSpec, ...], ...]
    """The parts for each input."""
    key_field: str | None
    key_dots: Literal["error", "replace", "part"]
    verify: bool
    max_record_bytes: int
    roots: tuple[str, ...]
    """For each input the absolute path, or URL, of the folder of its files."""
    storage: Storage | None
    """How the stores of roots at URLs are reached; None goes by the environment."""
    listings: str
    """Folder of the listings, or the URL below which they lie."""
    folder: str
    """Folder of the surveys and spools."""


class SpoolObject(msgspec.Struct, frozen=True, array_like=True):
    """The spool of a task of the survey, if that is not on this host."""

    url: str
    size: int


class ShardSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: what is the same for all tasks."""

    parent: int
    survey: SurveySetup
    lists: str
    """Folder of the lists of the shards, or the URL below which they lie."""
    spools: dict[int, SpoolObject] = {}
    """The spools that are at URLs, by the numbers of their tasks."""
    shards: str


class TableTask(msgspec.Struct, frozen=True, tag=True):
    """A task: survey these spans of tables."""

    task: Task
    files: tuple[SourceFile, ...]

    @property
    def task_index(self) -> int:
        """Position of the result among all results."""
        return self.task.number

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return spans_in_words(self.task.spans, self.files)


class FolderTask(msgspec.Struct, frozen=True, tag=True):
    """A task: survey groups of files."""

    number: int
    input: int
    listing: str
    """Name of the file that lists the groups, see `SurveySetup.listings`."""

    @property
    def task_index(self) -> int:
        """Position of the result among all results."""
        return self.number

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"part {self.number:,} of the files of input {self.input + 1:,}"


class FillTask(msgspec.Struct, frozen=True, tag=True):
    """A task: write a shard."""

    shard: int
    name: str

    @property
    def task_index(self) -> int:
        """Position of the result among all results."""
        return self.shard

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return self.name


class SumTask(msgspec.Struct, frozen=True, tag=True):
    """A task: hash a table that no single task reads as a whole."""

    number: int
    file: SourceFile
    place: int = -1

    @property
    def task_index(self) -> int:
        """-1 if the result has no position, and is used as soon as it arrives."""
        return self.place

    @property
    def label(self) -> str:
        """See `AnyTask`."""
        return f"the hash of {self.file.name}"


ShardOrder = TableTask | FolderTask | FillTask | SumTask


class FoundPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of a sample: a range of the spool, or a file."""

    name: str
    size: int
    offset: int = 0
    """Position of its content in the spool."""
    path: str = ""
    """Path of the file, relative to the root of its input; empty if the content is in the spool."""
    mtime_ns: int = 0
    etag: str = ""
    """What an object store says stands for the content of the file."""


class FoundSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample that was found: a row of a table, or a group of files."""

    line: int
    """Number of the line within its span."""
    key: str
    """Key of the sample; empty if the key is its number."""
    parts: tuple[FoundPart, ...]
    bad: str = ""
    """Why the sample cannot be used; ``parts`` are then those that were found before the fault."""
    name: str = ""
    """Name of the sample in the input, if the key differs from it."""


class FoundSpan(msgspec.Struct, frozen=True, array_like=True):
    """The samples in a span of an input; every line is a sample or blank."""

    input: int
    lines: int
    samples: tuple[FoundSample, ...]
    blank: tuple[int, ...]
    input_bytes: int
    begin: int
    end: int
    xxh3_128: str = ""


class ShardSurvey(msgspec.Struct, frozen=True, array_like=True):
    """The result of a survey task."""

    spans: tuple[FoundSpan, ...]
    spool_bytes: int = 0


class ListedSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample in the list of a shard that will be written."""

    place: int
    """Its position in the shard."""
    key: str
    input: int
    spool: int
    """The task whose spool holds its parts."""
    parts: tuple[FoundPart, ...]


class FilledShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was written, with what the index needs to know of it."""

    files: tuple[FileSum, FileSum]
    keys: tuple[str, ...]
    offsets: tuple[int, ...]
    parts: tuple[tuple[int, str, int, int], ...]
    """For each part the number of its sample, its name, and offset and size of its content."""
    part_bytes: dict[str, int]
    file_bytes: dict[int, int]
    """For each input the number of bytes that came from files below its root."""
    file_hashes: dict[int, str]
    """For each input the sum of the hashes of these files, in hex; see `filling.FileHashes`."""


def survey_path(folder: str | Path, task_index: int) -> Path:
    """Return the path of the survey of a task."""
    return Path(folder) / f"{task_index}.survey"


def spool_path(folder: str | Path, task_index: int) -> Path:
    """Return the path of the spool of a task, which holds the values of columns."""
    return Path(folder) / f"{task_index}.spool"
