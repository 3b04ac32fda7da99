"""An input file: its format, how it was when the run began, and the face of all readers.

Which files hold text, told by their names and by their first bytes.

The one face of all readers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import msgspec

from headrace.errors import InputError
from headrace.prepare.sources.block import Block, SampleBy

Format = Literal["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet", "arrow", "txt", "txt.gz", "txt.zst", "csv", "tsv"]

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
}
FORMATS_IN_WORDS = ".jsonl or .ndjson (plain, .gz or .zst), .json.gz, .json.zst, .parquet, .arrow, .feather, .txt"

# In a folder these are data that would be lost unseen; all other names are passed over.
_UNREAD_ENDINGS = (
    *(".json", ".csv", ".tsv", ".avro", ".orc", ".tar", ".tgz", ".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip"),
    ".7z",
)
_DESCRIPTIONS = frozenset(
    (
        *("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "headrace.json"),
        *("index.json", "manifest.json", "meta.json", "metadata.json", "state.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
    )
)

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a frame that decoders pass over; byte 0 is 0x50 to 0x5f."""
PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
HEAD_BYTES = 8


def format_of(name: str) -> Format | None:
    """The format that a name promises, in any case of letters, or None."""
    lower = name.lower()
    return next((_ENDINGS[ending] for ending in _ENDINGS if lower.endswith(ending)), None)


def is_unread_data(name: str) -> bool:
    """Whether a file of this name, met in a folder, may be data that no reader here takes."""
    base = name.rpartition("/")[2].lower()
    return base not in _DESCRIPTIONS and format_of(base) is None and base.endswith(_UNREAD_ENDINGS)


def sniff(head: bytes) -> Format:
    """The format of a stream without a name, by its first `HEAD_BYTES`; what nothing betrays is JSON Lines."""
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
    """Hold what a file is called against its first `HEAD_BYTES`.

    Raises:
        InputError: an archive without content, or a file that holds something else than its name says.
    """
    if not head:
        if kind not in ("jsonl", "json", "txt"):
            raise InputError(f"{name}: the file is empty (0 bytes), and so no {kind} file. Was it written whole?")
        return
    is_gzip, is_compressed_zstd = head.startswith(GZIP_MAGIC), is_zstd(head)
    if kind in ("jsonl", "json", "txt"):
        if is_gzip or head.startswith(ZSTD_MAGIC):
            ending = "gz" if is_gzip else "zst"
            raise InputError(f"{name}: the file is compressed: give it a name that ends in .{kind}.{ending}")
        return
    good = {
        "gz": is_gzip,
        "zst": is_compressed_zstd,
        "parquet": head.startswith(PARQUET_MAGIC),
        "arrow": not head.startswith((b"FEA1", PARQUET_MAGIC, GZIP_MAGIC, ZSTD_MAGIC)),
    }
    if not good[kind.rpartition(".")[2]]:
        raise InputError(
            f"{name}: its name says {kind}, its first bytes do not: {head!r}. Give it the name of what it is, or "
            "write it again."
        )


def record_noun(kind: str, sample_by: SampleBy) -> str:
    """What one place of `Block.lines` is in a file of this `Format`: ``line``, ``row``, ``record``, ``paragraph``
    or ``document``.

    People count rows of Parquet and Arrow from 0, all others from 1.
    """
    if kind in ("parquet", "arrow"):
        return "row"
    if kind in ("json", "csv", "tsv"):
        return "record"
    return sample_by if kind.startswith("txt") else "line"


def counted_from(noun: str) -> int:
    """The number that people give to the first of these."""
    return 0 if noun == "row" else 1


COMPRESSION_RATIO = 4
"""Bytes of text that a compressed byte is taken for where tasks are planned."""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One input file as it was when the run began; it travels to the workers as msgpack."""

    name: str
    """As the user gave it, or the folder as given joined with the relative path; ``-`` for standard input."""

    path: str
    """Absolute, for the workers."""

    format: Format
    size_bytes: int
    mtime_ns: int

    extent: int
    """What spans count: row groups (Parquet), record batches (Arrow files), bytes (all others)."""

    unit_bytes: tuple[int, ...] = ()
    """For Parquet and Arrow files the bytes of each unit, near enough to plan with: the needed columns, uncompressed
    (Parquet), or all of a record batch as it is on disk (Arrow). Empty for all others. Readers do not look at it."""

    fault: str = ""
    """Why nothing of it can be read, where that was found at the start and does not stop the run."""

    can_split: bool = False
    """Whether a span may begin at any byte."""

    @property
    def text_bytes(self) -> int:
        """What the file holds uncompressed, estimated without reading it, to size tasks with."""
        if self.unit_bytes or not self.extent:
            return sum(self.unit_bytes)
        return self.size_bytes * (COMPRESSION_RATIO if self.format.endswith((".gz", ".zst")) else 1)

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


class SpanReader(ABC):
    """Reads one span of one file, once."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.begin = 0
        """What was really covered, in the unit of the file's extent; known when `blocks` is exhausted. It joins
        without a gap with the spans before and after. Both are 0 where the span owns nothing."""
        self.end = 0
        self.xxh3_128 = ""
        """Hash of the file, known when `blocks` is exhausted, if `is_hashed_while_read`; else empty."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All records of the span, in order. The blocks depend on file and span alone, and are never empty.

        A record that cannot be used is in `Block.bad`. After a fatal one nothing follows, and the rest of the file
        counts as covered.

        Raises:
            InputError: the file cannot be read, or has changed since the run began.
        """

    def _check_unchanged(self) -> None:
        try:
            self._file.check_unchanged(os.stat(self._file.path))  # noqa: PTH116
        except OSError as error:
            raise InputError(f"{self._file.name}: the file cannot be read: {error.strerror or error}") from error

    def _with_input_bytes(self, blocks: Iterator[Block], first_row: int, num_rows: int) -> Iterator[Block]:
        """Deal the bytes of a file to its rows evenly; over all spans the sum is exact."""
        row = first_row
        for block in blocks:
            end = row + block.num_lines
            size = self._file.size_bytes
            block.input_bytes = size * end // num_rows - size * row // num_rows
            row = end
            yield block
