"""Finds where a compressed file can be cut: at the frames of zstd, and at the blocks of gzip files that bgzip writes.

Nothing is decompressed. The sizes in the headers lead from one frame or block to the next, by reads of some bytes:

    zstd     frame header, then blocks with their size in 3 bytes, then perhaps 4 bytes of checksum (RFC 8878)
    bgzip    members of gzip with their size in an extra field ``BC`` (the SAM specification, section 4.1)

`plan_tasks` makes tasks of what lies between the borders. A file with a single frame, or of another writer of gzip, has
no borders and stays one task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Final

import msgspec

from headrace.preparing.sources.source_file import (
    COMPRESSION_RATIO,
    GZIP_MAGIC,
    ZSTD_MAGIC,
    SampleBy,
    SourceFile,
    input_errors,
    is_zstd,
)
from headrace.preparing.sources.streams import RLE_BLOCK, ZSTD_HEADER_BYTES, load_zstandard

MAX_PARTS: Final = 1024
"""A file with a smaller share of all text than one of so many is not cut: it makes no worker wait, and reading the
headers of all files would take long."""

_GZIP_HEAD_BYTES: Final = 64
_HAS_EXTRA: Final = 4
_LEAST_BGZIP_BYTES: Final = 26
"""Header and end of a block."""


def with_borders(files: Sequence[SourceFile], *, task_bytes: int, sample_by: SampleBy) -> tuple[SourceFile, ...]:
    """Return the files, those that are compressed and above ``task_bytes`` with the borders at which they are cut.

    Cost: a read for each block of the files that are cut: of each 64 KiB (bgzip) or 128 KiB (zstd) of text. Objects are
    not cut.

    Args:
        files: the files.
        task_bytes: the bytes of text between two borders, roughly; at least a frame lies between them.
        sample_by: what a record of a text file is; only lines can be cut.

    Raises:
        InputError: a file cannot be read.
        MissingExtraError: zstandard is not installed.
    """
    least = max(task_bytes, sum(file.text_bytes for file in files) // MAX_PARTS)
    found = []
    for file in files:
        is_lines = file.format.startswith("jsonl") or sample_by == "line"
        if is_lines and file.format.endswith((".gz", ".zst")) and not file.fault and file.text_bytes > least:
            borders = _chosen(file, -(-file.size_bytes * COMPRESSION_RATIO // least))
            file = msgspec.structs.replace(file, borders=borders)
        found.append(file)
    return tuple(found)


def _chosen(file: SourceFile, num_parts: int) -> tuple[int, ...]:
    """Choose borders that make at most so many parts, of nearly equal size as far as the frames allow it."""
    chosen: list[int] = []
    part = 1
    with input_errors(file.name), file.open() as raw:
        if not isinstance(raw, FileIO):  # all of an object would have to be fetched
            return ()
        frames = _bgzip_blocks if file.format.endswith(".gz") else _zstd_frames
        for begin in frames(file, raw.fileno()):
            if begin * num_parts >= file.size_bytes * part:
                chosen.append(begin)
                part = begin * num_parts // file.size_bytes + 1
            if part >= num_parts:
                break
    return tuple(chosen)


def _bgzip_blocks(file: SourceFile, descriptor: int) -> Iterator[int]:
    """Yield where each block begins, as far as the file consists of such blocks."""
    begin = 0
    while (size := _bgzip_size(os.pread(descriptor, _GZIP_HEAD_BYTES, begin))) >= _LEAST_BGZIP_BYTES:
        yield begin
        begin += size


def _bgzip_size(head: bytes) -> int:
    """The size of the block that begins with these bytes; 0 if they begin no such block."""
    if not head.startswith(GZIP_MAGIC + b"\x08") or len(head) < 18 or not head[3] & _HAS_EXTRA:
        return 0
    at, end = 12, min(12 + int.from_bytes(head[10:12], "little"), len(head))
    while at + 4 <= end:
        length = int.from_bytes(head[at + 2 : at + 4], "little")
        if head[at : at + 2] == b"BC" and length == 2 and at + 6 <= end:
            return int.from_bytes(head[at + 4 : at + 6], "little") + 1
        at += 4 + length
    return 0


def _zstd_frames(file: SourceFile, descriptor: int) -> Iterator[int]:
    """Yield where each frame begins; stop at damage."""
    zstandard = load_zstandard(file.name)
    begin = 0
    while is_zstd(head := os.pread(descriptor, ZSTD_HEADER_BYTES, begin)):
        yield begin
        if not head.startswith(ZSTD_MAGIC):
            begin += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            parameters = zstandard.get_frame_parameters(head)
            begin += zstandard.frame_header_size(head)
        except zstandard.ZstdError:
            return
        is_last = False
        while not is_last:
            header = os.pread(descriptor, 3, begin)
            value = int.from_bytes(header, "little")
            is_last = bool(value & 1) or len(header) < 3
            begin += 3 + (1 if value >> 1 & 3 == RLE_BLOCK else value >> 3)
        begin += 4 if parameters.has_checksum else 0
