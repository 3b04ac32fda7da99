"""Blocks of records, which the readers of all formats return, in the order of the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

SampleBy = Literal["document", "paragraph", "line"]


class RecordSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to read of each record."""

    fields: tuple[str, ...] = ("text",)
    """The fields that hold text, in the order of the output keys; empty if only whole records are needed."""

    id_field: str | None = None
    """The field that names a record: a string or an integer."""

    whole: bool = False
    """Return the whole records as well, for a filter of the user's or for a recipe."""

    sample_by: SampleBy = "document"
    """What a record of a ``.txt`` file is: the whole file, a paragraph, or a line."""

    lists: bool = False
    """Whether a ``.json`` file may hold one array of records; else every such file is JSON Lines."""


class BadRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that cannot be used."""

    line: int
    """Its line, counted from 0 in the span, see `Block.lines`."""

    place: int
    """Its place in the file, see `Block.places`."""

    message: str
    """What was found and what to do, without file and line."""

    fatal: bool = False
    """Whether the file cannot be read from here on, as with an incomplete archive or stream. A fatal record is the last
    one of its span."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Block:
    """Adjacent records of a file: about one MiB of them, or a single longer one.

    A *line* is what a person counts in a file: a line of JSON Lines, a row of Parquet, a paragraph of text (see
    `record_noun`). Every line is a record, or blank, or bad.
    """

    texts: list[list[str]]
    """For each field of the `RecordSpec` the texts of the n records."""

    lines: NDArray[np.int64]
    """(n,) line of each record, counted from 0 in the span, ascending."""

    places: NDArray[np.int64]
    """(n,) place of each record, ascending and unique within the file, however it is cut into spans: the byte where its
    line begins (JSON Lines and text, after decompression), or its row (Parquet, Arrow)."""

    num_lines: int
    """Lines of this block: records, blank lines and bad records."""

    num_blank: int
    """Lines that hold only white space, and therefore no record."""

    blank_lines: NDArray[np.int64]
    """(num_blank,) the blank lines, counted from 0 in the span."""

    bad: list[BadRecord]
    """Records that cannot be used, in order."""

    input_bytes: int
    """Bytes of the file that were read for this block, for the progress; compressed bytes if the file is compressed."""

    ids: list[str] | None = None
    """(n,) the value of each record's id field, if the spec names one; integers in decimal."""

    records: list[Mapping[str, Any]] | None = None
    """(n,) the whole records, if the spec asks for them."""


def bad_block(spec: RecordSpec, bad: list[BadRecord]) -> Block:
    """A block that holds only bad records."""
    return Block(
        texts=[[] for _ in spec.fields],
        lines=np.zeros(0, np.int64),
        places=np.zeros(0, np.int64),
        num_lines=len(bad),
        num_blank=0,
        blank_lines=np.zeros(0, np.int64),
        bad=bad,
        input_bytes=0,
        ids=None if spec.id_field is None else [],
        records=[] if spec.whole else None,
    )
