"""What a reader of any format hands on: a block of records, in the order of the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

SampleBy = Literal["document", "paragraph", "line"]


class RecordSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to take of each record."""

    fields: tuple[str, ...] = ("text",)
    """The fields that hold text, in the order of the output keys; none where only whole records are asked for."""

    id_field: str | None = None
    """The field that names a record: a string or an integer."""

    whole: bool = False
    """Give the whole records as well, for a filter of the user's or for a recipe."""

    sample_by: SampleBy = "document"
    """What of a ``.txt`` file is a record."""

    lists: bool = False
    """A ``.json`` may hold one array of records; else every such file is JSON Lines."""


class BadRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that cannot be used."""

    line: int
    """Counted from 0 in the span, as in `Block.lines`."""

    place: int
    """As in `Block.places`."""

    message: str
    """What was found and what to do, without file and line."""

    fatal: bool = False
    """The file cannot be read from here on: an incomplete archive or stream. It is the last record of its span."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Block:
    """Records that lie one after another; about a mebibyte of them, or one that is longer.

    A *line* is one record's place as a person counts it: a line of JSON Lines, a row of Parquet, a paragraph of text
    (see `record_noun`). Every line is a record, or blank, or bad; nothing else exists.
    """

    texts: list[list[str]]
    """For each field of the `RecordSpec` the texts of the n records."""

    lines: NDArray[np.int64]
    """(n,) line of each record, counted from 0 in the span, ascending."""

    places: NDArray[np.int64]
    """(n,) where each record is, ascending and unique within the file however it is cut into spans: the byte where
    its line begins (JSON Lines and text, after decompression), the row (Parquet, Arrow)."""

    num_lines: int
    """Lines of this block: records, blank ones and bad ones."""

    num_blank: int
    """Lines that hold nothing but white space, and so no record."""

    blank_lines: NDArray[np.int64]
    """(num_blank,) these lines, counted from 0 in the span."""

    bad: list[BadRecord]
    """Records that cannot be used, in order."""

    input_bytes: int
    """Bytes of the file that this block took, for progress: compressed ones where the file is compressed."""

    ids: list[str] | None = None
    """(n,) the value of the id field of each record, where one is asked for; integers in decimal."""

    records: list[Mapping[str, Any]] | None = None
    """(n,) the whole records, where they are asked for."""


def bad_block(spec: RecordSpec, bad: list[BadRecord]) -> Block:
    """A block of bad records alone."""
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
