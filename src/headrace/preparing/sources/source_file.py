"""An input file: its format, by its name and first bytes, and its state when the run began; and the tasks of a run.

`plan_tasks` plans which parts of which files make a task, in pure integer arithmetic. A task is a list of *spans*,
ranges of input files. What a span counts depends on the file, see `SourceFile.extent`.

Files of lines are cut by bytes: a span owns every line whose **first byte** lies in it, so spans may be cut anywhere,
and the plan does not need to read the files. Two lines of 6 bytes, cut at byte 4:

    a a a a | a \\n b b b b b \\n        span [0, 4) owns the whole line a, and reads on to byte 6
    0       4      6                    span [4, 12) owns line b, which begins at byte 6

If a line is longer than a span, the spans in its middle own no lines. Row groups of Parquet and record batches of Arrow
are never cut, but several of them may share a span. All other files are one span, and so is each compressed one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from io import FileIO, RawIOBase
from typing import Literal

import msgspec
import xxhash

from headrace.errors import InputError
from headrace.io import Storage, local_file, path_at, reader_of
from headrace.io.finding import open_found, reader_among, status_of
from headrace.io.remote import Status

_READ_BYTES = 1 << 20

Format = Literal["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet", "arrow", "txt", "txt.gz", "txt.zst", "csv", "tsv"]

SampleBy = Literal["document", "paragraph", "line"]
"""What a record of a text file is."""

_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl.gz",
    ".ndjson.gz": "jsonl.gz",
    ".json.gz": "jsonl.gz",  # C4 and Dolma name JSON Lines so
    ".jsonl.zst": "jsonl.zst",
    ".ndjson.zst": "jsonl.zst",
    ".json.zst": "jsonl.zst",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".txt": "txt",
    ".txt.gz": "txt.gz",
    ".txt.zst": "txt.zst",
    ".csv": "csv",
    ".tsv": "tsv",
}
FORMATS_IN_WORDS = (
    ".jsonl or .ndjson (plain, .gz or .zst), .json.gz, .json.zst, .parquet, .arrow, .feather, .csv, .tsv, .txt"
)

# Files with these endings are data that would be lost silently if a folder is searched; other names are ignored.
_UNREAD_ENDINGS = (
    *(".json", ".avro", ".orc", ".tar", ".tgz", ".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip"),
    ".7z",
)
DESCRIPTIONS = frozenset(
    (
        *("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "headrace.json"),
        *("index.json", "manifest.json", "meta.json", "metadata.json", "state.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
    )
)
"""Names of files that describe other files, and hold no records."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a frame that decoders skip; byte 0 is 0x50 to 0x5f."""
PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"


@contextlib.contextmanager
def input_errors(name: str | None) -> Iterator[None]:
    """Turn an OSError of the block into an InputError that names the file or folder and the reason.

    Args:
        name: the file; None takes the name that the error has.
    """
    try:
        yield
    except OSError as error:
        place = name or error.filename
        raise InputError(f"{place}: cannot be read: {error.strerror or error}") from error


def is_utf8(text: str) -> bool:
    """Whether a text, which may come from the name of a file, can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_of(name: str) -> Format | None:
    """The format that the ending of a name says, ignoring case, or None."""
    lower = name.lower()
    return next((_ENDINGS[ending] for ending in _ENDINGS if lower.endswith(ending)), None)


def is_unread_data(name: str) -> bool:
    """Whether a file in a folder may, by its name, be data of a format that cannot be read."""
    base = name.rpartition("/")[2].lower()
    return base not in DESCRIPTIONS and format_of(base) is None and base.endswith(_UNREAD_ENDINGS)


def sniff(head: bytes) -> Format:
    """The format of a stream without a name, by its first bytes. If they are not known, it is JSON Lines."""
    if head.startswith(GZIP_MAGIC):
        return "jsonl.gz"
    if is_zstd(head):
        return "jsonl.zst"
    if head.startswith(PARQUET_MAGIC):
        return "parquet"
    if head.startswith((ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC)):
        return "arrow"
    return "jsonl"


def is_zstd(head: bytes) -> bool:
    """Whether a zstd frame begins here."""
    return head.startswith(ZSTD_MAGIC) or (head[1:4] == ZSTD_SKIPPABLE and head[0] >> 4 == 5)


def check_head(name: str, kind: Format, head: bytes) -> None:
    """Compare the name of a file with its first bytes, at least 8 of them.

    Raises:
        InputError: the file is empty although its format cannot be, or it has another format than its name says.
    """
    if not head:
        if kind not in ("jsonl", "json", "txt"):
            raise InputError(f"{name}: the file is empty (0 bytes), so it cannot be {kind}. Was it written whole?")
        return
    is_gzip, is_compressed_zstd = head.startswith(GZIP_MAGIC), is_zstd(head)
    if kind in ("jsonl", "json", "txt", "csv", "tsv"):
        if is_gzip or head.startswith(ZSTD_MAGIC):
            advice = f"give it a name that ends in .{kind}.{'gz' if is_gzip else 'zst'}"
            raise InputError(
                f"{name}: the file is compressed: {'decompress it first' if kind in ('csv', 'tsv') else advice}"
            )
        return
    good = {
        "gz": is_gzip,
        "zst": is_compressed_zstd,
        "parquet": head.startswith(PARQUET_MAGIC),
        "arrow": not head.startswith((b"FEA1", PARQUET_MAGIC, GZIP_MAGIC, ZSTD_MAGIC)),
    }
    if not good[kind.rpartition(".")[2]]:
        raise InputError(
            f"{name}: its name says {kind}, but its first bytes do not: {head[:8]!r}. Give it a name that fits its"
            " format, or write it again."
        )


def record_noun(kind: str, sample_by: SampleBy) -> str:
    """The word for one line of a `Block` in a file of this `Format`: ``line``, ``row``, ``record``, ``paragraph`` or
    ``document``.

    Rows of Parquet and Arrow are counted from 0, all others from 1, see `counted_from`.
    """
    if kind in ("parquet", "arrow"):
        return "row"
    if kind in ("json", "csv", "tsv"):
        return "record"
    return sample_by if kind.startswith("txt") else "line"


def counted_from(noun: str) -> int:
    """The number of the first line, row or record in messages: 0 for rows, else 1."""
    return 0 if noun == "row" else 1


COMPRESSION_RATIO = 4
"""Bytes of text that a byte of a compressed file is assumed to hold when tasks are planned."""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One input file as it was when the run began. It is sent to the workers as msgpack."""

    name: str
    """The name that the user gave, or the folder joined with the relative path; ``-`` for standard input."""

    path: str
    """Absolute path, or URL, for the workers."""

    format: Format
    size_bytes: int
    mtime_ns: int

    extent: int
    """The size of the file in the unit that spans count: row groups (Parquet), record batches (Arrow files) or bytes
    (all others)."""

    unit_bytes: tuple[int, ...] = ()
    """For Parquet and Arrow files the bytes of each unit, accurate enough to plan tasks: the needed columns,
    uncompressed (Parquet), or a whole record batch as it is on disk (Arrow). Empty for all others. Readers do not use
    it."""

    fault: str = ""
    """Why nothing of the file can be read, if that was found at the start and does not stop the run."""

    can_split: bool = False
    """Whether a span may begin at any byte."""

    etag: str = ""
    """What an object store says stands for the content; empty for local files."""

    storage: Storage | None = None
    """How the store of a URL is reached; None goes by the environment."""

    @property
    def status(self) -> Status:
        """What it was when the run began."""
        return Status(self.size_bytes, self.etag, self.mtime_ns)

    def open(self, *, end: int | None = None, in_order: bool = True) -> RawIOBase:
        """Open the file, unbuffered.

        Args:
            end: the byte up to which it is read, as far as that is known.
            in_order: whether it is read in order.

        Raises:
            InputError: it has changed since the run began; of an object, the reads say so.
            OSError: it cannot be opened.
        """
        file = open_found(self.path, self.status, self.storage, end=end, in_order=in_order)
        try:
            self.check_opened(file)
        except BaseException:
            file.close()
            raise
        return file

    def check_opened(self, file: RawIOBase) -> None:
        """Raise InputError if the open file has changed since the run began. Reads from an object check that itself."""
        if isinstance(file, FileIO):
            status = os.fstat(file.fileno())
            check_same(self.name, self.status, Status(status.st_size, "", status.st_mtime_ns))

    def local_path(self) -> str:
        """Return the path of a local file with the same content: a copy, which is kept, if this is an object.

        Raises:
            StoreError: the object cannot be read.
        """
        return str(local_file(path_at(self.path, reader_of(self.storage))))

    def digest(self, check: Callable[[], None] = lambda: None) -> str:
        """Return the xxh3_128 of the file, in hex. It is read once; ``check`` is called after each MiB.

        Raises:
            InputError: it cannot be read, or has changed since the run began.
            StoreError: the same of an object.
        """
        hasher = xxhash.xxh3_128()
        buffer = memoryview(bytearray(_READ_BYTES))
        with input_errors(self.name), self.open() as file:
            while count := file.readinto(buffer):
                hasher.update(buffer[:count])
                check()
            self.check_opened(file)
        return hasher.hexdigest()

    @property
    def text_bytes(self) -> int:
        """The uncompressed size of the file, estimated without reading it, to choose the size of tasks."""
        if self.unit_bytes or not self.extent:
            return sum(self.unit_bytes)
        return self.size_bytes * (COMPRESSION_RATIO if self.format.endswith((".gz", ".zst")) else 1)


def check_same(name: str, then: Status, now: Status, advice: str = "Wait until it is written, and run again.") -> None:
    """Raise InputError if a file is not as it was found."""
    if now != then:
        what = f"its {'ETag' if then.etag else 'modification time'} has changed"
        if now.size != then.size:
            what = f"its size went from {then.size:,} to {now.size:,} bytes"
        raise InputError(f"{name}: the file changed during the run: {what}. {advice}")


def check_all(files: Sequence[SourceFile]) -> None:
    """Raise InputError if one of the files has changed since the run began, or is not there any more."""
    storage = next((file.storage for file in files if file.storage is not None), None)
    using = reader_among([file.path for file in files], storage)
    for file in files:
        try:
            check_same(file.name, file.status, status_of(path_at(file.path, using)))
        except OSError as error:
            raise InputError(f"{file.name}: the file vanished during the run: {error.strerror}") from error


NUM_TASKS = 2048
MIN_TASK_BYTES = 1 << 20
MAX_TASK_BYTES = 256 << 20
MAX_TASK_SPANS = 4096


class Span(msgspec.Struct, frozen=True, array_like=True):
    """``[begin, end)`` of input number ``file``, in the unit of its extent; an empty file is the span ``[0, 0)``."""

    file: int
    begin: int
    end: int


def spans_in_words(spans: Sequence[Span], files: Sequence[SourceFile]) -> str:
    """What a task reads, in words: ``a.jsonl, bytes 0 to 4,096``; ``files`` are those of the spans."""
    file, span = files[0], spans[0]
    if len(spans) > 1:
        return f"{len(spans):,} files from {file.name} to {files[-1].name}"
    units = {"parquet": "row groups", "arrow": "record batches"}.get(file.format, "bytes")
    return f"{file.name}, {units} {span.begin:,} to {span.end:,}"


class Task(msgspec.Struct, frozen=True, array_like=True):
    """Spans that one worker reads one after another; ``number`` is the task's place in the output, from 0."""

    number: int
    spans: tuple[Span, ...]


def choose_task_bytes(total_bytes: int) -> int:
    """The bytes of a task: a 2048th of the input, from 1 to 256 MiB. So a kill costs little, and many workers are busy.

    It depends only on the input (the sum of `SourceFile.text_bytes`), never on the number of workers.
    """
    return min(max(total_bytes // NUM_TASKS, MIN_TASK_BYTES), MAX_TASK_BYTES)


def plan_tasks(files: Sequence[SourceFile], *, task_bytes: int, max_spans: int) -> list[Task]:
    """Cut files into tasks of about ``task_bytes`` of text, in order. Cost: O(files + units + tasks).

    A file above ``task_bytes`` is cut into spans, and each is a task. If the file can be cut at any byte, the spans are
    of nearly equal size; if it has units, a span has as many adjacent units as fit, at least one; else the span is the
    whole file. Adjacent smaller files share a task until it holds ``task_bytes`` or ``max_spans`` files.
    """
    tasks: list[Task] = []
    open_spans: list[Span] = []
    open_bytes = 0

    def close() -> None:
        nonlocal open_bytes
        if open_spans:
            tasks.append(Task(len(tasks), tuple(open_spans)))
            open_spans.clear()
            open_bytes = 0

    for number, file in enumerate(files):
        if file.text_bytes > task_bytes:
            close()
            for begin, end in itertools.pairwise(_cuts(file, task_bytes)):
                tasks.append(Task(len(tasks), (Span(number, begin, end),)))
            continue
        if open_bytes + file.text_bytes > task_bytes or len(open_spans) >= max_spans:
            close()
        open_spans.append(Span(number, 0, file.extent))
        open_bytes += file.text_bytes
    close()
    return tasks


def is_hashed_while_read(file: SourceFile, span: Span) -> bool:
    """Whether the reader of this span also computes the hash of the file, so that no other pass is needed."""
    return file.format not in ("parquet", "arrow") and (span.begin, span.end) == (0, file.extent)


def _cuts(file: SourceFile, task_bytes: int) -> Iterator[int]:
    """The begins of the spans of a file, and finally the end of the file."""
    if file.can_split:
        pieces = -(-file.extent // task_bytes)
        yield from (file.extent * piece // pieces for piece in range(pieces + 1))
        return
    yield 0
    span_bytes = 0
    for unit, unit_bytes in enumerate(file.unit_bytes):
        if unit and span_bytes + unit_bytes > task_bytes:
            yield unit
            span_bytes = 0
        span_bytes += unit_bytes
    yield file.extent
