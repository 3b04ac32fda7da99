"""What is read of a dataset, and by which tasks: the plan of the job.

`plan_of` compares the tars with what earlier runs recorded, to find those that must be read. A task reads about as
many bytes as are worth a worker process; at a URL it reads several files at the same time, since it waits for the
store. In a local folder, what a task of an earlier plan has read is not read again.

Where the job of a dataset lies: a folder in its ``.nv-meta``, or the same below a URL.

.nv-meta/.headrace/plan.json    what is read, and the options
                   scan-*/      what the tasks have read
                   new/         the new files of a local dataset
                   lock         held by the process that plans, or that puts new files into place, of a local dataset

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, the same
command makes them again: of what was read, or, once the new state is there, of the new index.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headrace.engine.job import PHASE_PREFIX, Do, Phase, TaskResult, Tell
from headrace.engine.planning import JobPlace, job_at
from headrace.engine.serving import load, save
from headrace.engine.work_folder import PLAN_NAME, ClaimedFolder, remove_work
from headrace.errors import ConfigError, InputError
from headrace.io import AnyPath, Reader, Storage, hash_bytes, output_errors, path_at, reader, reader_at
from headrace.io.finding import each
from headrace.preparing.energon.options import EnergonOptions, MediaFilter
from headrace.preparing.energon.scanning import (
    ShardScan,
    find_files,
    find_shards,
    found_file,
    read_medium,
    scan_tar,
)
from headrace.preparing.energon.state import DatasetState, is_indexed, read_state
from headrace.preparing.shards.listing import ListedFile
from headrace.stores.energon.config_file import INFO_NAME, META_FOLDER, META_WORK_NAME, UUID_NAME, folder_kind
from headrace.stores.energon.splits import Splits, find_splits
from headrace.stores.energon.sqlite_index import MediaRow

TASK_BYTES: Final = 128 << 20
"""Bytes of tars that are worth a worker process, since starting one takes as long as reading the headers of some."""

MEDIA_TASK_BYTES: Final = 8 << 20
"""The same, if media are read."""

TASK_FILES: Final = 500
"""Plain files of a task."""

TARS_AT_ONCE: Final = 16
"""Tars of a task at a URL, which are read at the same time."""


class ReadTask(msgspec.Struct, frozen=True):
    """Read these files."""

    task_index: int
    files: tuple[ListedFile, ...]

    @property
    def label(self) -> str:
        """What an error calls the task."""
        first = self.files[0].name
        return first if len(self.files) == 1 else f"{len(self.files):,} files from {first} on"


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and the options of the run."""

    options: EnergonOptions
    media: MediaFilter | None
    """The media whose metadata are gathered."""

    is_plain: bool
    """Whether the files are media, and not tars."""

    files: tuple[ListedFile, ...]
    """The files to read, in their order."""

    task_files: int
    """How many files a task reads."""

    unchanged: tuple[ListedFile, ...] = ()
    """Tars whose rows are copied from the index that is there."""

    is_new: bool = True
    """Whether an index is made: something has changed, or is missing."""

    state: str = ""
    """Hash of the state of the dataset, by which tars are unchanged."""

    root: str = ""
    """The dataset, as a process reaches it."""

    @property
    def skips_faults(self) -> bool:
        """Whether the samples before a fault are used."""
        return self.options.errors.on_error == "skip"

    @property
    def phase(self) -> Phase:
        """The phase of reading. Its name tells it from that of a plan whose tasks read something else."""
        decides = msgspec.json.encode((self.is_plain, self.media, self.skips_faults, self.files, self.task_files))
        return Phase(
            name=f"scan-{hash_bytes(decides)[:8]}",
            num_tasks=-(-len(self.files) // self.task_files),
            total_bytes=sum(file.size for file in self.files),
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of all tars."""
        return sum(file.size for file in (*self.files, *self.unchanged))

    @property
    def tasks(self) -> list[ReadTask]:
        """All tasks, see `TaskPlan`."""
        begins = range(0, len(self.files), self.task_files)
        return [ReadTask(index, self.files[begin:][: self.task_files]) for index, begin in enumerate(begins)]

    @property
    def described(self) -> tuple[EnergonOptions, set[ListedFile]]:
        """What a run is known by: its options, and what it has found."""
        return self.options, {*self.files, *self.unchanged}

    @contextmanager
    def doing(self, given: Storage | None) -> Iterator[Do]:
        """See `TaskPlan`. What is given is how the store of a URL is reached; None goes by the environment."""
        using = reader(reader_at(self.root, "pread", given))
        root = path_at(self.root, using)

        def read(file: ListedFile) -> ShardScan | MediaRow | None:
            if not isinstance(root, Path):
                root.objects.expect(str(root / file.name), file.status)
            return self.read(root, file, using)

        def do(task: ReadTask, results: Path, tell: Tell) -> TaskResult:
            found, counts = [], Counter[str]()
            kept = self.kept(task)
            known = None if kept is None else load(kept, list[ShardScan])
            for file, one in zip(task.files, known or each(read, task.files, [self.root]), strict=True):
                found += [] if one is None else [one]
                counts.update(_counts(file, one))
                tell(counts)
            name = self._name(task, is_faulty=any(isinstance(one, ShardScan) and one.faults for one in found))
            save(results / name, found)
            return TaskResult(files=(name,), counts=dict(counts))

        yield do

    def read(self, root: AnyPath, file: ListedFile, using: Reader) -> ShardScan | MediaRow | None:
        """Read a file; raises as `scan_tar` or `read_medium` does."""
        if not self.is_plain or self.media is None:
            return scan_tar(root, file, self.media, skips_faults=self.skips_faults, using=using)
        return read_medium(root, file.name, self.media, using)

    def kept(self, task: ReadTask) -> Path | None:
        """Return the result of a task in a local folder that has read the same tars by any plan; None if none has."""
        work = path_at(self.root) / META_FOLDER / META_WORK_NAME
        if not isinstance(work, Path) or self.is_plain:
            return None
        names = [self._name(task, is_faulty=False)]
        if self.skips_faults:
            names.append(self._name(task, is_faulty=True))
        return next((path for name in names for path in work.glob(f"{PHASE_PREFIX}*/*/{name}")), None)

    def _name(self, task: ReadTask, *, is_faulty: bool) -> str:
        """Return the name of the result of a task: a hash of what decides it."""
        return f"{hash_bytes(msgspec.json.encode((self.media, task.files)))}.{'faulty' if is_faulty else 'read'}"


def _counts(file: ListedFile, found: ShardScan | MediaRow | None) -> dict[str, int]:
    if isinstance(found, ShardScan):
        return {"bytes": file.size, "shards": 1, "samples": found.count}
    return {"samples": 1}


def _found_files(
    root: AnyPath, options: EnergonOptions, on_notice: Callable[[str], None], *, is_plain: bool
) -> list[ListedFile]:
    """Find the tars of a folder, or the files that may be media; of local ones of these only the names are known.

    Raises:
        ConfigError: the options do not choose media, or the folder is one of tars.
        InputError, StoreError: as `find_shards`; or there are no media.
    """
    if not is_plain:
        refuses = options.errors.on_error != "skip"
        return find_shards(root, options.exclude, refuse_compressed=refuses, on_notice=on_notice)
    if options.media is None:
        raise ConfigError("media_only needs a choice of files: by extension, by header or by glob")
    if any(file.name.endswith(".tar") for file in root.iterdir()) and folder_kind(root) is None:
        raise ConfigError(
            f"{root}: holds tars; leave out --media-only to prepare them with the metadata of their media"
        )
    names = find_files(root, options.media)
    if not names:
        raise InputError(f"{root}: no file is chosen as a medium")
    return [ListedFile(name, 0, 0) if isinstance(root, Path) else found_file(root, name) for name in names]


def plan_of(root: AnyPath, options: EnergonOptions, on_notice: Callable[[str], None], *, is_plain: bool) -> ReadPlan:
    """Plan to read the media of a folder, or those tars of a dataset that are new or have changed.

    Args:
        root: the dataset.
        options: options that `check_options` has accepted.
        on_notice: called with messages about what was decided.
        is_plain: whether the files are media, and not tars.

    Raises:
        ConfigError: there is no split file, and the options do not say how the shards are assigned; or they do not
            choose media, or the folder is one of tars.
        InputError, StoreError: as `find_shards`; or there are no media.
    """
    found = _found_files(root, options, on_notice, is_plain=is_plain)
    if is_plain:
        return ReadPlan(
            options=options.lasting, media=options.media, is_plain=True, files=tuple(found), task_files=TASK_FILES
        )
    splits_to_keep(root, options)
    before = state_before(root, options)
    media = options.media or (before.index.media if before.index is not None else None)
    if media is not None and options.media is None and not options.index_only:
        by = f"glob {','.join(media.patterns)}" if media.patterns else media.strategy.lower()
        on_notice(f"metadata of media are gathered as before: by {by}")
    to_read = _to_read(root, found, options, before, media)
    names = to_read or set()
    files = tuple(tar for tar in found if tar.name in names)
    task_bytes = TASK_BYTES if media is None else MEDIA_TASK_BYTES
    enough = task_bytes * len(files) // max(sum(file.size for file in files), 1)
    return ReadPlan(
        options=options.lasting,
        media=media,
        is_plain=False,
        files=files,
        # A power of two seldom changes if some tars change, so that most tasks are as they were.
        task_files=1 << enough.bit_length() if isinstance(root, Path) else TARS_AT_ONCE,
        unchanged=tuple(tar for tar in found if tar.name not in names),
        is_new=to_read is not None,
        state=hash_of(before),
    )


def hash_of(state: DatasetState) -> str:
    """Return a hash of a state as it was read: without an index if that has changed."""
    return hash_bytes(msgspec.json.encode(state))


def state_before(root: AnyPath, options: EnergonOptions) -> DatasetState:
    """Return the state of a dataset; an empty one if all is to be made anew."""
    return DatasetState() if options.overwrite else read_state(root)


def splits_to_keep(root: AnyPath, options: EnergonOptions) -> Splits | None:
    """Return the existing split file; None if a new one has to be made.

    Raises:
        ConfigError: there is none, and the options do not say how the shards are assigned.
    """
    has_choice = bool(options.split.ratio or options.split.parts)
    if options.overwrite and has_choice:
        return None
    splits = find_splits(root)
    if splits is None and not has_choice and not options.index_only:
        raise ConfigError(
            f"{root}: there is no split file yet: give --split-ratio 8,1,1 (train, val, test),"
            " --split-part NAME:REGEX for each part, or --tar-index-only"
        )
    return splits


def _to_read(
    root: AnyPath,
    found: Sequence[ListedFile],
    options: EnergonOptions,
    before: DatasetState,
    media: MediaFilter | None,
) -> set[str] | None:
    """Return the shards that must be read; None if nothing has changed and nothing is missing."""
    names = {tar.name for tar in found}
    needs_rows = not options.index_only
    if needs_rows and (before.index is None or before.index.media != media):
        return names

    def is_unchanged(tar: ListedFile) -> bool:
        known = before.shards.get(tar.name)
        return (
            known is not None
            and (known.size, known.mtime_ns, known.etag or "") == (tar.size, tar.mtime_ns, tar.etag)
            and (options.errors.on_error == "skip" or not known.faults)
            and is_indexed(root, tar.name, known)
        )

    changed = {tar.name for tar, is_same in zip(found, each(is_unchanged, found, [root]), strict=True) if not is_same}
    files = [INFO_NAME, UUID_NAME] if needs_rows else [INFO_NAME]
    is_same = (
        not changed and before.shards.keys() == names and all((root / META_FOLDER / name).exists() for name in files)
    )
    if not needs_rows:
        return None if is_same else changed
    # Which rows of these the index lacks depends on all shards before them.
    incomplete = {name for name in names - changed if before.shards[name].count and before.shards[name].digest is None}
    if is_same and (not incomplete or before.index is None or before.index.duplicates == options.duplicates):
        return None
    return changed | incomplete


KIND: Final = "energon"


def place_of(root: AnyPath) -> JobPlace:
    """Return where the job of a dataset lies."""
    return job_at(root / META_FOLDER / META_WORK_NAME)


def plan_in(place: JobPlace) -> ReadPlan | None:
    """Return the plan that is in a place."""
    found = place.planned()
    return None if found is None else msgspec.json.decode(found.plan, type=ReadPlan)


@contextlib.contextmanager
def claimed(root: AnyPath) -> Iterator[None]:
    """Let no other process plan a local dataset, or put its new files into place, meanwhile.

    Raises:
        BusyError: one does.
        OutputError: the system refuses it.
    """
    meta = root / META_FOLDER
    if not isinstance(meta, Path):
        yield
        return
    work = meta / META_WORK_NAME
    folder = ClaimedFolder(work, f"{root}: another headrace prepare is working in this folder")
    with output_errors(meta, "use"):
        meta.mkdir(exist_ok=True)
        folder.claim()
    try:
        yield
    finally:
        folder.leave(lambda: None if (work / PLAN_NAME).exists() else remove_work(work))
        with contextlib.suppress(OSError):
            meta.rmdir()  # if there is nothing in it
