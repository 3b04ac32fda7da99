"""Make the new files of ``.nv-meta`` of what was read: index, split file, ``dataset.yaml``, state and info.

`assign_parts` and `bring_up_to_date` are pure functions; `merge_shards` and `merge_media` write the files into a folder
of their own, from which they are put into place.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from headrace.engine.job import Tell
from headrace.errors import InputError, OutputError, StoreAwayError, StoreError, some
from headrace.io import AnyPath, atomic_write, file_sum, local_file, output_errors
from headrace.preparing.energon.options import MediaFilter, SplitChoice, part_patterns
from headrace.preparing.energon.plan import ReadPlan, hash_of, splits_to_keep, state_before
from headrace.preparing.energon.scanning import MAX_PARTS, ShardScan, path_key
from headrace.preparing.energon.state import (
    STATE_NAME,
    DatasetState,
    DuplicateKey,
    EnergonReport,
    IndexState,
    ShardState,
    encode_state,
    read_state,
    state_of_new_index,
    tar_index_hash,
)
from headrace.preparing.options import SPLIT_NAMES
from headrace.stores.energon.config_file import (
    ENERGON_VERSION,
    INDEX_NAME,
    INFO_NAME,
    META_FOLDER,
    OLD_INFO_NAME,
    SPLIT_NAME,
    UUID_NAME,
    read_info,
    write_info,
)
from headrace.stores.energon.dataset_yaml import dataset_yaml
from headrace.stores.energon.splits import DEFAULT_PART, Splits, repeated, write_splits
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.energon.sqlite_writer import EarlierShard, SqliteWriter, update_media

Parts = dict[str, list[str]]
SHUFFLE_SEED = 42


class Merged(msgspec.Struct, frozen=True):
    """New files, which are all there, and how they come into place.

    Attributes:
        report: what the run returns.
        remove: files of ``.nv-meta`` that are removed first: without them no reader opens the rest as a dataset.
        moves: new files of ``.nv-meta``, in the order in which they are put there.
    """

    report: EnergonReport
    remove: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()


def assign_parts(names: Sequence[str], choice: SplitChoice) -> Parts:
    """Assign all shards to parts as Energon does.

    A ratio cuts the list of shards at ``int(number * sum of the shares so far)``. With 8,1,1 three shards become two of
    train, none of val and one of test.
    """
    if choice.parts:
        return _by_patterns(names, choice)
    names = list(names)
    if choice.shuffle:
        random.Random(SHUFFLE_SEED).shuffle(names)
    shares = [*choice.ratio, *([0.0] * (len(SPLIT_NAMES) - len(choice.ratio)))]
    total, so_far, begin = sum(shares), 0.0, 0
    parts: Parts = {}
    for part, share in zip(SPLIT_NAMES, shares, strict=True):
        so_far += share / total
        end = int(len(names) * so_far)
        parts[part] = names[begin:end]
        begin = end
    return parts


def bring_up_to_date(
    parts: Mapping[str, Sequence[str]], names: Sequence[str], new: Sequence[str], choice: SplitChoice
) -> Parts:
    """Return the parts of a split file without the shards that no longer exist, and with new shards at the end.

    Args:
        parts: the parts of the split file, with braces expanded.
        names: all shards of the dataset.
        new: the shards that the dataset did not have before.
        choice: its patterns assign new shards. Without patterns they go to ``train``, or to the first part if there is
            no ``train``.
    """
    kept = set(names)
    found = {part: [name for name in listed if name in kept] for part, listed in parts.items()}
    if choice.parts:
        added = _by_patterns(new, choice)
    else:
        target = DEFAULT_PART if DEFAULT_PART in found or not found else next(iter(found))
        added = {target: list(new)}
    for part, shards in added.items():
        listed = found.setdefault(part, [])
        present = set(listed)
        listed += [name for name in shards if name not in present]
    return found


def _by_patterns(names: Sequence[str], choice: SplitChoice) -> Parts:
    parts: Parts = {}
    for part, pattern in choice.parts:
        patterns = part_patterns(part, pattern)
        listed = parts.setdefault(part, [])
        present = set(listed)
        listed += [name for name in names if name not in present and any(found.match(name) for found in patterns)]
    return parts


def merge_media(root: AnyPath, plan: ReadPlan, rows: Sequence[MediaRow], folder: Path) -> Merged:
    """Add the metadata of plain files to a copy of the index, if there is one.

    Args:
        root: the dataset.
        plan: what was read.
        rows: what was found.
        folder: where the new files go, as in the dataset.

    Raises:
        StoreError: the state is damaged, or the old index cannot be read.
        OutputError: a file cannot be written.
    """
    index, made = root / META_FOLDER / INDEX_NAME, folder / META_FOLDER / INDEX_NAME
    if index.is_file():
        with output_errors(made, "write"):
            shutil.copyfile(local_file(index), made)
    update_media(folder, rows, _chosen(plan.media))
    moves = [INDEX_NAME]
    if (state := state_of_new_index(root, made)) is not None:
        atomic_write(folder / META_FOLDER / STATE_NAME, state)
        moves.append(STATE_NAME)
    report = EnergonReport(
        kind="media", path=str(root), samples=len(plan.files), media=len(rows), written=(str(index),)
    )
    return Merged(report, moves=tuple(moves))


def _chosen(media: MediaFilter | None) -> list[tuple[str, str]]:
    return [] if media is None else [(media.strategy, ",".join(media.patterns))]


class ShardMerger:
    """Merges what was read of the tars of a dataset, and what is known of the others.

    Args:
        root: the dataset.
        plan: what was read.
        folder: where the new files go, as in the dataset.
        tell: called with what is done so far.
        on_notice: called with what was decided, left out or kept.

    Raises:
        OutputError: the dataset has changed since the run was planned.
    """

    def __init__(
        self, root: AnyPath, plan: ReadPlan, folder: Path, tell: Tell, on_notice: Callable[[str], None]
    ) -> None:
        self._root = root
        self._meta = root / META_FOLDER
        self._plan = plan
        self._options = plan.options
        self._folder = folder
        self._tell = tell
        self._on_notice = on_notice
        self._before = state_before(root, plan.options)
        self._numbers = self._before.numbers()
        self._tars = sorted((*plan.files, *plan.unchanged), key=lambda tar: path_key(tar.name))
        self._names: list[str] = []
        self._states: dict[str, ShardState] = {}
        self._duplicates: list[DuplicateKey] = []
        self._faulty: list[str] = []
        if plan.unchanged and hash_of(self._before) != plan.state:
            raise OutputError(f"{root}: another run has written to this dataset meanwhile; run again")

    def merge(self, scans: Iterator[ShardScan]) -> Merged:
        """Write the new files.

        Args:
            scans: what was read, in the order of the files of the plan.

        Raises:
            ConfigError: there is no split file any more, and the options do not say how the shards are assigned.
            InputError: a key comes twice, too many shards are malformed, or no shard holds a sample.
            OutputError: a file cannot be written.
        """
        splits = splits_to_keep(self._root, self._options)
        if self._plan.is_new:
            with nullcontext() if self._options.index_only else SqliteWriter(self._folder) as writer:
                self._add_all(scans, writer)
        else:
            self._states = {tar.name: self._before.shards[tar.name] for tar in self._tars}
        return self._written(splits, self._known(splits))

    def _add_all(self, scans: Iterator[ShardScan], writer: SqliteWriter | None) -> None:
        """Add all shards, whose rows the index gets if there is one: as they were read, or from the existing index."""
        read = {tar.name for tar in self._plan.files}
        samples = done_bytes = 0
        for tar in self._tars:
            scan = next(scans) if tar.name in read else None
            state = self._before.shards[tar.name] if scan is None else _state_of(scan)
            if state.count and writer is not None:
                state = self._indexed(tar.name, state, scan, writer)
            self._states[tar.name] = state
            self._check_faults(tar.name)
            samples += state.count
            done_bytes += tar.size
            self._tell({"samples": samples, "bytes": done_bytes})
        if writer is not None and self._plan.media is not None:
            writer.add_media((), _chosen(self._plan.media))

    def _indexed(self, name: str, state: ShardState, scan: ShardScan | None, writer: SqliteWriter) -> ShardState:
        """Write the rows of a shard, and return its state."""
        number = len(self._names)
        self._names.append(name)
        if scan is not None:
            added = writer.add_shard(number, scan.shard, skip_duplicates=True)
        else:
            has_media = self._before.index is not None and self._before.index.media is not None
            digest = bytes.fromhex(state.digest or "")
            place = local_file(self._meta / INDEX_NAME)
            added = writer.copy_shard(number, EarlierShard(place, self._numbers[name], digest, has_media))
        self._check(added.duplicates)
        if scan is not None:
            left_out = {found.key for found in added.duplicates}
            if media := [row for row in scan.media if row.entry.partition(".")[0] not in left_out]:
                writer.add_media(media)
            state = msgspec.structs.replace(state, media=len(media))
        return msgspec.structs.replace(state, digest=None if added.duplicates else added.digest.hex())

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
            self._duplicates.append(duplicate)

    def _check_faults(self, name: str) -> None:
        if not self._states[name].faults:
            return
        self._faulty.append(name)
        allowed = self._options.errors.max_errors
        limit = allowed if isinstance(allowed, int) else int(allowed * len(self._tars))
        if len(self._faulty) > limit:
            fault = self._states[name].faults[0]
            raise InputError(
                f"{len(self._faulty):,} shards are malformed and max_errors allows {limit:,}; the last one:"
                f" {self._root / name}: byte {fault.byte}: {fault.message}"
            )

    def _known(self, splits: Splits | None) -> set[str]:
        """Return the shards that the dataset had before."""
        known: set[str] = set()
        try:
            known.update(read_info(self._root).shard_counts)
        except StoreAwayError:
            raise
        except StoreError:
            pass  # there is none, or a damaged one, which is written anew
        if splits is not None:
            known.update(*splits.parts.values(), splits.exclude)
        return known

    def _written(self, splits: Splits | None, known: set[str]) -> Merged:
        """Write the files but the index, and return what is new."""
        names = [name for name, state in self._states.items() if state.count]
        if not names:
            raise InputError(
                f"{self._root}: none of its {len(self._states):,} tars holds a sample, so there is nothing to prepare"
            )
        empty = tuple(name for name, state in self._states.items() if not state.count)
        if empty:
            self._on_notice(f"{len(empty):,} tars hold no sample and are left out: {some(empty)}")
        is_new, has_rows = self._plan.is_new, not self._options.index_only
        written = [INDEX_NAME, UUID_NAME] if is_new and has_rows else []
        uuid = None
        if has_rows:
            with suppress(OSError):
                uuid = ((self._folder / META_FOLDER if written else self._meta) / UUID_NAME).read_text()
        new = [name for name in names if name not in known]
        excluded: tuple[str, ...] = ()
        if self._options.duplicates == "drop":
            excluded = tuple(sorted(f"{found.shard}/{found.key}" for found in self._duplicates))
        parts, split_name = self._write_split(splits, names, new, excluded)
        written += [split_name] if split_name else []
        for message in dict.fromkeys(said for part in parts for said in repeated(parts, part)):
            self._on_notice(message)
        written += self._write_dataset()
        remove: list[str] = []
        if is_new:
            written += self._write_state(excluded)
            remove = [INFO_NAME, OLD_INFO_NAME]
            if not has_rows:
                remove += [INDEX_NAME, UUID_NAME]
                if (self._meta / INDEX_NAME).exists():
                    self._on_notice(f"the old {INDEX_NAME} is removed: it does not match these shards any more")
        states = self._states
        report = EnergonReport(
            kind="shards",
            path=str(self._root),
            shards=len(names),
            samples=sum(states[name].count for name in names),
            parts=tuple(sorted({part for state in states.values() for part in state.parts})[:MAX_PARTS]),
            read=len(self._plan.files),
            unchanged=len(self._plan.unchanged),
            new=len(new),
            removed=len(self._before.shards.keys() - states.keys()),
            empty=empty,
            faults={name: state.faults for name, state in states.items() if state.faults},
            duplicates=tuple(self._duplicates),
            split={part: (len(listed), sum(states[name].count for name in listed)) for part, listed in parts.items()},
            media=sum(state.media for state in states.values()) if has_rows and self._plan.media is not None else None,
            uuid=uuid,
            written=tuple(written),
        )
        # Index and state belong together; the info comes last.
        moves = sorted(written, key=lambda name: (name in remove, name not in (INDEX_NAME, STATE_NAME)))
        return Merged(report, tuple(remove), tuple(moves))

    def _write_split(
        self, splits: Splits | None, names: Sequence[str], new: Sequence[str], excluded: Sequence[str]
    ) -> tuple[Parts, str | None]:
        """Return the parts, and the name of the new split file; None if the old one stays."""
        choice = self._options.split
        if splits is None:
            if not choice.ratio and not choice.parts:
                return {}, None
            parts, exclude, name = assign_parts(names, choice), list(excluded), SPLIT_NAME
            self._notice_unassigned(names, parts)
        else:
            parts = bring_up_to_date(splits.parts, names, new, choice)
            if choice.ratio and assign_parts(names, choice) != parts:
                self._on_notice(
                    f"{splits.path.name} is kept as it is; to assign all shards by the ratio, use --overwrite"
                )
            exclude, name = self._exclude_up_to_date(splits, names, excluded), splits.path.name
            old = {part: list(shards) for part, shards in splits.parts.items()}
            if parts == old and set(exclude) == set(splits.exclude):
                return parts, None
            self._notice_new(new, parts)
        write_splits(self._folder, parts, exclude=exclude, split_config=name)
        return parts, name

    def _exclude_up_to_date(self, splits: Splits, names: Sequence[str], excluded: Sequence[str]) -> list[str]:
        """Return what the split file excludes: the user's entries for shards that exist, and our own."""
        before = set(read_state(self._root).excluded)
        kept = set(names)
        ours = before.union(excluded)  # which a run that was discarded may have written, and not yet the state
        exclude = sorted(entry for entry in splits.exclude if entry not in ours and _shard_of(entry, kept))
        return [*exclude, *(excluded if self._plan.is_new else sorted(before))]

    def _notice_new(self, new: Sequence[str], parts: Parts) -> None:
        if new and not self._options.split.parts:
            target = next((part for part, shards in parts.items() if new[-1] in shards), "no part")
            self._on_notice(
                f"{len(new):,} new shards go to {target}: {some(new)}; --split-part NAME:REGEX can change that"
            )
        elif new:
            self._notice_unassigned(new, parts)

    def _notice_unassigned(self, names: Sequence[str], parts: Parts) -> None:
        assigned = {name for listed in parts.values() for name in listed}
        unassigned = [name for name in names if name not in assigned]
        if unassigned:
            self._on_notice(f"{len(unassigned):,} shards are in no part of the split: {some(unassigned)}")

    def _write_dataset(self) -> list[str]:
        choice = self._options.dataset
        if choice.skip or self._options.index_only:
            return []
        if (self._meta / choice.name).exists() and not (self._options.overwrite and choice.sample_type is not None):
            if choice.sample_type is not None:
                self._on_notice(f"{choice.name} is kept; to replace it, use --overwrite")
            return []
        if choice.sample_type is None:
            self._on_notice(f"{choice.name}: samples are crude and need a cooker; --sample-type chooses a type instead")
        data = dataset_yaml(choice.sample_type, choice.field_map, choice.part_filter)
        atomic_write(self._folder / META_FOLDER / choice.name, data)
        return [choice.name]

    def _write_state(self, excluded: tuple[str, ...]) -> list[str]:
        """Write state and info. The info is last, because a dataset without it does not open."""
        made, index = self._folder / META_FOLDER, None
        if not self._options.index_only:
            status = (made / INDEX_NAME).stat()
            index = IndexState(
                size=status.st_size,
                mtime_ns=status.st_mtime_ns if isinstance(self._root, Path) else 0,
                media=self._plan.media,
                duplicates=self._options.duplicates,
            )
        counts = {name: shard.count for name, shard in self._states.items() if shard.count}
        written = [STATE_NAME]
        if (self._meta / OLD_INFO_NAME).exists():
            content = {"energon_version": ENERGON_VERSION, "shard_counts": counts}
            atomic_write(made / OLD_INFO_NAME, yaml.safe_dump(content).encode())
            written.append(OLD_INFO_NAME)
        write_info(self._folder, counts, ENERGON_VERSION)
        hashed = [*([] if index is None else [INDEX_NAME, UUID_NAME]), *written[1:], INFO_NAME]
        files = tuple(file_sum(made / name) for name in hashed)
        state = DatasetState(shards=self._states, index=index, excluded=excluded, files=files)
        atomic_write(made / STATE_NAME, encode_state(state))
        return [*written, INFO_NAME]


def _state_of(scan: ShardScan) -> ShardState:
    """Return the state of a shard that was read, of which the index holds no rows yet."""
    return ShardState(
        size=scan.tar.size,
        mtime_ns=scan.tar.mtime_ns,
        etag=scan.tar.etag or msgspec.UNSET,
        count=scan.count,
        parts=scan.parts,
        tar_index=tar_index_hash(scan.offsets),
        media=len(scan.media),
        faults=scan.faults,
    )


def _shard_of(entry: str, names: set[str]) -> bool:
    """Whether an exclude entry names a shard of the dataset, or a sample in one."""
    if entry in names:
        return True
    return any(entry[:at] in names for at, letter in enumerate(entry) if letter == "/")


def _twice(root: AnyPath, found: DuplicateKey, number: int, *, is_same: bool) -> str:
    more = "" if number == 1 else f"; and {number - 1:,} more of this shard"
    where = (
        f"sample {found.first_sample} of {root / found.first_shard} and sample {found.sample} of {root / found.shard}"
    )
    drop = (
        "--duplicates drop does not help, since an exclude entry would name both samples"
        if is_same
        else "--duplicates drop excludes the later one"
    )
    return (
        f"key {found.key!r} comes twice: {where}{more}. A key must name one sample of a dataset: {drop}; with"
        " --duplicates keep both are trained on, and the key finds the first"
    )
