"""Write shards into ``index.sqlite`` in their order, and collect what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import InputError
from headrace.io import AnyPath, local_file
from headrace.preparing.energon.options import EnergonOptions, MediaFilter
from headrace.preparing.energon.report import DuplicateKey
from headrace.preparing.energon.scanning import ShardScan
from headrace.preparing.energon.state import DatasetState, ShardState
from headrace.stores.energon.config_file import INDEX_NAME, META_FOLDER
from headrace.stores.energon.sqlite_writer import EarlierShard, SqliteWriter


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the shards once all of them are read.

    Attributes:
        to_read: the shards that were read; the others are as they were before.
        before: the state of the dataset before this run.
        media: the media whose metadata are in the index.
        states: the state of each shard, in their order.
        duplicates: samples whose key an earlier sample has; None if nothing was read and the old index stays.
    """

    to_read: set[str]
    before: DatasetState
    media: MediaFilter | None
    states: dict[str, ShardState]
    duplicates: list[DuplicateKey] | None

    @property
    def is_new(self) -> bool:
        """Whether the index was made anew."""
        return self.duplicates is not None

    def excluded(self) -> tuple[str, ...]:
        """Return the entries of the split file that exclude duplicates."""
        return tuple(sorted(f"{found.shard}/{found.key}" for found in self.duplicates or ()))


class ShardCommitter:
    """Adds shards to the index in their order, and collects the state of each.

    Args:
        root: the folder of the dataset.
        options: what to do about duplicates.
        before: the state of the dataset before this run.
        writer: the index; None if only tar indices are written.
    """

    def __init__(
        self, root: AnyPath, options: EnergonOptions, before: DatasetState, writer: SqliteWriter | None
    ) -> None:
        self._root = root
        self._options = options
        self._before = before
        self._numbers = before.numbers()
        self._writer = writer
        self._names: list[str] = []
        self.states: dict[str, ShardState] = {}
        self.duplicates: list[DuplicateKey] = []
        self.faulty: list[str] = []
        self.samples = 0

    def take(self, scan: ShardScan) -> None:
        """Add a shard that was read in this run."""
        digest, media = None, scan.media
        if scan.count and self._writer is not None:
            self._names.append(scan.tar.name)
            added = self._writer.add_shard(len(self._names) - 1, scan.scanned(), skip_duplicates=True)
            self._check(added.duplicates)
            if added.duplicates:
                left_out = {found.key for found in added.duplicates}
                media = [row for row in media if row.entry.partition(".")[0] not in left_out]
            else:
                digest = added.digest.hex()
            if media:
                self._writer.add_media(media)
        self.samples += scan.count
        if scan.faults:
            self.faulty.append(scan.tar.name)
        self.states[scan.tar.name] = ShardState(
            size=scan.tar.size,
            mtime_ns=scan.tar.mtime_ns,
            etag=scan.tar.etag or msgspec.UNSET,
            count=scan.count,
            parts=scan.parts,
            tar_index=scan.tar_index,
            digest=digest,
            media=len(media),
            faults=scan.faults,
        )

    def keep(self, name: str, state: ShardState) -> None:
        """Add a shard that has not changed, by copying its rows from the existing index."""
        if state.count and self._writer is not None and self._before.index is not None:
            self._names.append(name)
            earlier = EarlierShard(
                local_file(self._root / META_FOLDER / INDEX_NAME),
                self._numbers[name],
                bytes.fromhex(state.digest or ""),
                self._before.index.media is not None,
            )
            added = self._writer.copy_shard(len(self._names) - 1, earlier, skip_duplicates=True)
            self._check(added.duplicates)
            if added.duplicates:
                state = msgspec.structs.replace(state, digest=None)
        self.samples += state.count
        if state.faults:
            self.faulty.append(name)
        self.states[name] = state

    def _check(self, duplicates: Sequence[Any]) -> None:
        for found in duplicates:
            duplicate = DuplicateKey(
                key=found.key,
                shard=self._names[found.shard],
                sample=found.sample,
                first_shard=self._names[found.first_shard],
                first_sample=found.first_sample,
            )
            is_same = found.shard == found.first_shard
            if self._options.duplicates == "error" or (self._options.duplicates == "drop" and is_same):
                raise InputError(_twice(self._root, duplicate, len(duplicates), is_same=is_same))
            self.duplicates.append(duplicate)


def _twice(root: AnyPath, found: DuplicateKey, number: int, *, is_same: bool) -> str:
    more = "" if number == 1 else f"; and {number - 1:,} more of this shard"
    where = (
        f"sample {found.first_sample} of {root / found.first_shard} and sample {found.sample} of {root / found.shard}"
    )
    drop = (
        "--on-duplicate drop does not help, since an exclude entry would name both samples"
        if is_same
        else "--on-duplicate drop excludes the later one"
    )
    return (
        f"key {found.key!r} comes twice: {where}{more}. A key must name one sample of a dataset: {drop}; with"
        " --on-duplicate keep both are trained on, and the key finds the first"
    )
