"""The last step of a run: assign the shards to parts of the split, and write the files of ``.nv-meta``.

`assign_parts` and `bring_up_to_date` are pure functions; `Finisher` writes the files, which appear together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from headrace.errors import InputError, some
from headrace.io import AnyPath, atomic_write, file_sum
from headrace.preparing.energon.committer import Indexed
from headrace.preparing.energon.options import EnergonOptions, SplitChoice, part_patterns
from headrace.preparing.energon.report import EnergonReport, Misfit, tell_misfit
from headrace.preparing.energon.scanning import MAX_PARTS
from headrace.preparing.energon.state import STATE_NAME, DatasetState, IndexState, encode_state, read_state
from headrace.preparing.energon.work import WorkFolder
from headrace.preparing.options import SPLIT_NAMES
from headrace.stores.energon.config_file import (
    ENERGON_VERSION,
    INDEX_NAME,
    INFO_NAME,
    META_FOLDER,
    OLD_INFO_NAME,
    SPLIT_NAME,
    UUID_NAME,
    write_info,
)
from headrace.stores.energon.dataset_yaml import dataset_yaml
from headrace.stores.energon.splits import DEFAULT_PART, Splits, repeated, write_splits

Parts = dict[str, list[str]]
SHUFFLE_SEED = 42


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


class Finisher:
    """Stages split file, ``dataset.yaml``, state and info, and moves all new files into place.

    Args:
        root: the folder.
        options: options that `check_options` has accepted.
        on_notice: called with messages about what was decided, left out or kept.
    """

    def __init__(self, root: AnyPath, options: EnergonOptions, on_notice: Callable[[str], None]) -> None:
        self._root = root
        self._meta = root / META_FOLDER
        self._options = options
        self._on_notice = on_notice

    def finish(self, work: WorkFolder, indexed: Indexed, splits: Splits | None, known: set[str]) -> EnergonReport:
        """Stage the remaining files, move all into place, and return the report."""
        states = indexed.states
        names = [name for name, state in states.items() if state.count]
        if not names:
            raise InputError(
                f"{self._root}: none of its {len(states):,} tars holds a sample, so there is nothing to prepare"
            )
        empty = [name for name, state in states.items() if not state.count]
        if empty:
            self._on_notice(f"{len(empty):,} tars hold no sample and are left out: {some(empty)}")
        written: list[str] = []
        uuid = self._old_uuid() if not indexed.is_new else None
        if indexed.is_new and not self._options.index_only:
            written += [INDEX_NAME, UUID_NAME]
            uuid = (work.staged / META_FOLDER / UUID_NAME).read_text()
        new = [name for name in names if name not in known]
        excluded = indexed.excluded() if self._options.duplicates == "drop" else ()
        parts, split_name = self._stage_split(work, splits, names, new, indexed, excluded)
        written += [split_name] if split_name else []
        for message in dict.fromkeys(said for part in parts for said in repeated(parts, part)):
            self._on_notice(message)
        written += self._stage_dataset(work)
        remove: list[str] = []
        if indexed.is_new:
            written += self._stage_state(work, indexed, excluded)
            remove = [INFO_NAME, OLD_INFO_NAME]
            if self._options.index_only:
                remove += [INDEX_NAME, UUID_NAME]
                if (self._meta / INDEX_NAME).exists():
                    self._on_notice(f"the old {INDEX_NAME} is removed: it does not match these shards any more")
        read = [name for name in states if name in indexed.to_read]
        if written:
            work.commit(remove=remove, indexed=read, moves=written)
        work.finish()
        return self._report(indexed, names, new, parts, tuple(written), uuid, self._misfit(names))

    def _stage_split(
        self,
        work: WorkFolder,
        splits: Splits | None,
        names: Sequence[str],
        new: Sequence[str],
        indexed: Indexed,
        excluded: Sequence[str],
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
            exclude, name = self._exclude_up_to_date(splits, names, indexed, excluded), splits.path.name
            old = {part: list(shards) for part, shards in splits.parts.items()}
            if parts == old and set(exclude) == set(splits.exclude):
                return parts, None
            self._notice_new(new, parts)
        write_splits(work.staged, parts, exclude=exclude, split_config=name)
        return parts, name

    def _exclude_up_to_date(
        self, splits: Splits, names: Sequence[str], indexed: Indexed, excluded: Sequence[str]
    ) -> list[str]:
        """Return what the split file excludes: the user's entries for shards that exist, and our own."""
        before = set(read_state(self._root).excluded)
        kept = set(names)
        ours = before.union(excluded)  # which a run that was killed at a URL may have written, and not yet the state
        exclude = sorted(entry for entry in splits.exclude if entry not in ours and _shard_of(entry, kept))
        return [*exclude, *(excluded if indexed.is_new else sorted(before))]

    def _notice_new(self, new: Sequence[str], parts: Parts) -> None:
        if new and not self._options.split.parts:
            target = next((part for part, shards in parts.items() if new[-1] in shards), "no part")
            self._on_notice(
                f"{len(new):,} new shards go to {target}: {some(new)}; --split-parts NAME:REGEX can change that"
            )
        elif new:
            self._notice_unassigned(new, parts)

    def _notice_unassigned(self, names: Sequence[str], parts: Parts) -> None:
        assigned = {name for listed in parts.values() for name in listed}
        unassigned = [name for name in names if name not in assigned]
        if unassigned:
            self._on_notice(f"{len(unassigned):,} shards are in no part of the split: {some(unassigned)}")

    def _stage_dataset(self, work: WorkFolder) -> list[str]:
        choice = self._options.dataset
        if choice.skip or self._options.index_only:
            return []
        place = self._meta / choice.name
        if place.exists() and not (self._options.overwrite and choice.sample_type is not None):
            if choice.sample_type is not None:
                self._on_notice(f"{choice.name} is kept; to replace it, use --overwrite")
            return []
        if choice.sample_type is None:
            self._on_notice(f"{choice.name}: samples are crude and need a cooker; --sample-type chooses a type instead")
        data = dataset_yaml(choice.sample_type, choice.field_map, choice.part_filter)
        atomic_write(work.staged / META_FOLDER / choice.name, data)
        return [choice.name]

    def _stage_state(self, work: WorkFolder, indexed: Indexed, excluded: Sequence[str]) -> list[str]:
        """Stage state and info. The info is last, because a dataset without it does not open."""
        staged = work.staged / META_FOLDER
        index = None
        if not self._options.index_only:
            status = (staged / INDEX_NAME).stat()
            index = IndexState(
                size=status.st_size,
                mtime_ns=status.st_mtime_ns if isinstance(self._root, Path) else 0,
                media=indexed.media,
                duplicates=self._options.duplicates,
            )
        counts = {name: shard.count for name, shard in indexed.states.items() if shard.count}
        written = [STATE_NAME]
        if (self._meta / OLD_INFO_NAME).exists():
            content = {"energon_version": ENERGON_VERSION, "shard_counts": counts}
            atomic_write(staged / OLD_INFO_NAME, yaml.safe_dump(content).encode())
            written.append(OLD_INFO_NAME)
        write_info(work.staged, counts, ENERGON_VERSION)
        hashed = [*([] if self._options.index_only else [INDEX_NAME, UUID_NAME]), *written[1:], INFO_NAME]
        files = tuple(file_sum(staged / name) for name in hashed)
        state = DatasetState(shards=indexed.states, index=index, excluded=tuple(excluded), files=files)
        atomic_write(staged / STATE_NAME, encode_state(state))
        return [*written, INFO_NAME]

    def _misfit(self, names: Sequence[str]) -> Misfit | None:
        """Check the field map of a new or existing ``dataset.yaml``."""
        name = self._options.dataset.name
        if self._options.index_only or not (self._meta / name).exists():
            return None
        return tell_misfit(self._root, name, names, self._on_notice)

    def _old_uuid(self) -> str | None:
        try:
            return (self._meta / UUID_NAME).read_text()
        except OSError:
            return None

    def _report(
        self,
        indexed: Indexed,
        names: Sequence[str],
        new: Sequence[str],
        parts: Parts,
        written: tuple[str, ...],
        uuid: str | None,
        misfit: Misfit | None,
    ) -> EnergonReport:
        states = indexed.states
        part_names = sorted({part for state in states.values() for part in state.parts})
        return EnergonReport(
            kind="shards",
            path=str(self._root),
            shards=len(names),
            samples=sum(states[name].count for name in names),
            parts=tuple(part_names[:MAX_PARTS]),
            read=len(indexed.to_read),
            unchanged=len(states) - len(indexed.to_read),
            new=len(new),
            removed=len({name for name in indexed.before.shards if name not in states}),
            empty=tuple(name for name, state in states.items() if not state.count),
            faults={name: state.faults for name, state in states.items() if state.faults},
            duplicates=tuple(indexed.duplicates or ()),
            split={part: (len(listed), sum(states[name].count for name in listed)) for part, listed in parts.items()},
            media=None
            if indexed.media is None or self._options.index_only
            else sum(state.media for state in states.values()),
            uuid=None if self._options.index_only else uuid,
            written=written,
            misfit=misfit,
        )


def _shard_of(entry: str, names: set[str]) -> bool:
    """Whether an exclude entry names a shard of the dataset, or a sample in one."""
    if entry in names:
        return True
    return any(entry[:at] in names for at, letter in enumerate(entry) if letter == "/")
