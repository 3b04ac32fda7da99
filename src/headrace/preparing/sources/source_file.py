"""An input file: its format, by its name and first bytes; its state when the run began; and the base of all readers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import msgspec

from headrace.errors import InputError
from headrace.preparing.sources.block import Block, SampleBy

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

# Files with these endings are data that would be lost silently if a folder is searched; other names are ignored.
_UNREAD_ENDINGS = (
    *(".json", ".csv", ".tsv", ".avro", ".orc", ".tar", ".tgz", ".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip"),
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
HEAD_BYTES = 8


def format_of(name: str) -> Format | None:
    """The format that the ending of a name says, ignoring case, or None."""
    lower = name.lower()
    return next((_ENDINGS[ending] for ending in _ENDINGS if lower.endswith(ending)), None)


def is_unread_data(name: str) -> bool:
    """Whether a file in a folder may, by its name, be data of a format that cannot be read."""
    base = name.rpartition("/")[2].lower()
    return base not in DESCRIPTIONS and format_of(base) is None and base.endswith(_UNREAD_ENDINGS)


def sniff(head: bytes) -> Format:
    """The format of a stream without a name, by its first `HEAD_BYTES`. If they are not known, it is JSON Lines."""
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
    """Compare the name of a file with its first `HEAD_BYTES`.

    Raises:
        InputError: the file is empty although its format cannot be, or it has another format than its name says.
    """
    if not head:
        if kind not in ("jsonl", "json", "txt"):
            raise InputError(f"{name}: the file is empty (0 bytes), so it cannot be {kind}. Was it written whole?")
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
            f"{name}: its name says {kind}, but its first bytes do not: {head!r}. Give it a name that fits its format, "
            "or write it again."
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
    """Absolute path, for the workers."""

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

    @property
    def text_bytes(self) -> int:
        """The uncompressed size of the file, estimated without reading it, to choose the size of tasks."""
        if self.unit_bytes or not self.extent:
            return sum(self.unit_bytes)
        return self.size_bytes * (COMPRESSION_RATIO if self.format.endswith((".gz", ".zst")) else 1)

    def check_unchanged(self, status: os.stat_result) -> None:
        """Raise InputError if size or modification time have changed since the run began."""
        if status.st_size != self.size_bytes or status.st_mtime_ns != self.mtime_ns:
            what = (
                f"its size went from {self.size_bytes:,} to {status.st_size:,} bytes"
                if status.st_size != self.size_bytes
                else "its modification time has changed"
            )
            raise InputError(
                f"{self.name}: the file changed during the run: {what}. Wait until it is written, and run again."
            )


class SpanReader(ABC):
    """Reads one span of one file, once."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.begin = 0
        """``[begin, end)`` was covered, in the unit of the file's extent; known when `blocks` is exhausted. It joins
        without a gap with the spans before and after. Both are 0 if no line begins in the span."""
        self.end = 0
        self.xxh3_128 = ""
        """Hash of the file, known when `blocks` is exhausted, if `is_hashed_while_read`; else empty."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield all records of the span, in order. The blocks depend only on file and span, and are never empty.

        A record that cannot be used is in `Block.bad`. Nothing follows after a fatal one, and the rest of the file
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
        """Divide the bytes of a file evenly among its rows; the sum over all spans is exact."""
        row = first_row
        for block in blocks:
            end = row + block.num_lines
            size = self._file.size_bytes
            block.input_bytes = size * end // num_rows - size * row // num_rows
            row = end
            yield block
