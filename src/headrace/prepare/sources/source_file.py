"""An input file as it was when the run began."""

from __future__ import annotations

import os

import msgspec

from headrace.errors import InputError
from headrace.prepare.sources.formats import Format

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
