"""What a run did, and how far one is."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.prepare.energon.fitting import Misfit
from headrace.prepare.energon.state import ShardFault

Kind = Literal["shards", "jsonl", "media", "metadataset"]


class DuplicateKey(msgspec.Struct, frozen=True, kw_only=True):
    """A sample whose key an earlier one has."""

    key: str
    shard: str
    sample: int
    first_shard: str
    first_sample: int


class EnergonReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        kind: what was prepared.
        path: of the dataset.
        shards: of the dataset.
        samples: in them, or records of a JSONL file, or rows of joins.
        parts: names of parts, some at most.
        read: shards that were read, by this run or the unfinished one that it went on with.
        unchanged: shards that were not, because they are as they were.
        new: shards that the dataset did not have before.
        removed: shards that it has no more.
        empty: tars without samples, which are left out.
        faults: shard -> what is wrong with it: samples from there on are missing.
        duplicates: samples whose key was there before.
        split: part -> its shards and samples.
        media: media whose facts are in the index; None where none were asked for.
        uuid: of the index; None where there is none.
        written: files of ``.nv-meta`` that are new, or the files that were written.
        misfit: samples that the field map of ``dataset.yaml`` does not fit; None where all fit that were looked at.
    """

    kind: Kind
    path: str
    shards: int = 0
    samples: int = 0
    parts: tuple[str, ...] = ()
    read: int = 0
    unchanged: int = 0
    new: int = 0
    removed: int = 0
    empty: tuple[str, ...] = ()
    faults: dict[str, tuple[ShardFault, ...]] = {}
    duplicates: tuple[DuplicateKey, ...] = ()
    split: dict[str, tuple[int, int]] = {}
    media: int | None = None
    uuid: str | None = None
    written: tuple[str, ...] = ()
    misfit: Misfit | None = None


class EnergonProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        done: shards or files that are done.
        total: of them all.
        done_bytes: of the tars that are done.
        total_bytes: of all.
        samples: in what is done.
    """

    done: int
    total: int
    done_bytes: int
    total_bytes: int
    samples: int
