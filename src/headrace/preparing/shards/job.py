"""Media shards as a `Job` of one phase, ``pack``: a task for each shard, or for some, and for the hashes of tables.

The end compares the shards with the plan, and writes the table of origins, the files of ``.nv-meta`` and the manifest.
`prepare_shards` plans a job and does it here; `plan_shards` leaves it to processes on any hosts.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.engine.job import Phase, Show, TaskProgress
from headrace.engine.planning import NewPlan, load_plan
from headrace.engine.processes import REPORT_S
from headrace.engine.receipts import Receipts
from headrace.engine.serving import load
from headrace.engine.shared import Shared
from headrace.engine.tasks import PlannedJob
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import (
    AnyPath,
    FileSum,
    Storage,
    as_read_back,
    atomic_write,
    check_storage,
    file_sum,
    output_errors,
    path_at,
    reader_of,
)
from headrace.preparing.ledger import check_tolerance, unbalanced
from headrace.preparing.options import SPLIT_NAMES
from headrace.preparing.outputs.folder import OutputFolder, do_here, output_at
from headrace.preparing.run_plan import OnProgress, shown
from headrace.preparing.shards.inputs import described_input, find_media
from headrace.preparing.shards.listing import ListedFile, digests
from headrace.preparing.shards.options import ShardOptions, check_options
from headrace.preparing.shards.packing import (
    BadSampleError,
    LeftOut,
    PackedShard,
    PackedTask,
    Packer,
    file_digest,
    in_hex,
    listed_here,
)
from headrace.preparing.shards.plan import MediaPlan, PackSetup, Planner, check_left, shard_name
from headrace.preparing.sources import check_all
from headrace.stores import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    ContentLedger,
    DocumentLedger,
    ErrorEntry,
    InputFile,
    InputOrder,
    Ledger,
    Manifest,
    ProvenanceWriter,
    ShuffledOrder,
    TokenLedger,
    save_manifest,
)
from headrace.stores.energon.config_file import (
    DATASET_NAME,
    ENERGON_VERSION,
    INDEX_NAME,
    INFO_NAME,
    META_FOLDER,
    SPLIT_NAME,
    UUID_NAME,
    write_info,
)
from headrace.stores.energon.dataset_yaml import dataset_yaml
from headrace.stores.energon.splits import write_splits
from headrace.stores.energon.sqlite_writer import SqliteWriter
from headrace.stores.tar.scan import ScannedShard

KIND: Final = "shards"
META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME, SPLIT_NAME, DATASET_NAME))
"""Files of ``.nv-meta`` in the order in which they are moved into place. Nothing opens without the last ones."""

VOUCHED_META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME))
"""Files that users do not edit; the manifest holds their hashes."""


_NOTHING = np.zeros(0, np.int64)
MADE_NAME = "made"
"""The folder of all files that no task has made, by their names in the output."""


class Finish:
    """Puts together what tasks have found.

    Args:
        plan: the plan.
        found: what each task has found, and where that is.

    Raises:
        InputError: more samples are bad than the options allow, or none is left.
        HeadraceError: the ledger does not balance.
    """

    def __init__(self, plan: MediaPlan, found: Iterable[tuple[Path, PackedTask]]) -> None:
        self._plan = plan
        self._found: dict[int, Path] = {}
        shards: list[PackedShard] = []
        left_out: list[LeftOut] = []
        self._file_bytes, self._file_sums = Counter[int](), Counter[int]()
        self._tables: dict[int, str] = {}
        for task, (path, packed) in zip(plan.tasks, found, strict=True):
            if task.table >= 0:
                self._tables[task.table] = packed.xxh3_128
            self._found |= dict.fromkeys((shard.number for shard in packed.shards), path)
            shards += packed.shards
            left_out += packed.left_out
            self._file_bytes.update(packed.file_bytes)
            self._file_sums.update({given: int(total, 16) for given, total in packed.file_hashes.items()})
        self._shards = sorted(shards, key=lambda shard: shard.number)
        self._samples = np.concatenate([_NOTHING, *(shard.samples for shard in self._shards)])
        self._left_out = {one.sample: one for one in sorted(left_out, key=lambda one: one.sample)}
        self._errors = tuple(one.error for one in self._left_out.values() if one.error is not None)
        self._check()

    @property
    def sums(self) -> dict[str, tuple[int, str]]:
        """Size and xxh3_128 of each file of the shards, by its name."""
        return {file.name: (file.size, file.xxh3_128) for shard in self._shards for file in shard.output.files}

    def _check(self) -> None:
        """Check that each sample is in one shard, or was left out."""
        num_read = sum(one.samples for one in self._plan.counted)
        samples = np.concatenate([self._samples, np.array(list(self._left_out), np.int64)])
        if not np.array_equal(np.sort(samples), np.arange(num_read)):
            raise unbalanced(f"{num_read:,} samples were listed, and {len(samples):,} are in shards or left out")
        check_tolerance(self._errors, self._plan.options.errors, noun="sample", num_read=num_read)
        check_left(num_read, Counter(one.reason for one in self._left_out.values()), self._errors)

    def write(self, work: Path) -> tuple[Manifest, dict[str, str]]:
        """Write the table of origins, ``.nv-meta`` and the manifest; return it, and the names of all in the output.

        With the ``.nv-meta`` Energon and `EnergonStore` can open the folder without further steps.
        """
        plan, root = self._plan, work / MADE_NAME
        names, output = [shard_name(shard.number) for shard in self._shards], plan.options.output
        parts = [shard.part for shard in self._shards]
        splits = {name: (bisect_left(parts, at), bisect_right(parts, at)) for at, name in enumerate(SPLIT_NAMES)}
        with output_errors(root, "create .nv-meta in"):
            (root / META_FOLDER).mkdir(parents=True, exist_ok=True)
        with SqliteWriter(root) as index:
            path, scanned = Path(), dict[int, ScannedShard]()
            for place, shard in enumerate(self._shards):
                if self._found[shard.number] != path:
                    path, packed = _packed(self._found[shard.number])
                    scanned = {one.number: found for one, found in zip(packed.shards, packed.scanned, strict=True)}
                index.add_shard(place, scanned[shard.number])
        counts = [shard.output.documents for shard in self._shards]
        write_info(root, dict(zip(names, counts, strict=True)), ENERGON_VERSION)
        write_splits(root, {part: names[begin:end] for part, (begin, end) in splits.items()})
        atomic_write(root / META_FOLDER / DATASET_NAME, dataset_yaml(output.sample_type, output.field_map))
        kept = sum(shard.output.tokens for shard in self._shards)
        dropped, dropped_bytes = Counter[str](), Counter[str]()
        for one in self._left_out.values():
            dropped[one.reason] += 1
            dropped_bytes[one.reason] += one.num_bytes
        manifest = Manifest(
            inputs=input_files(plan, self._file_bytes, self._file_sums, self._tables),
            options={
                **plan.asked,
                "splits": {name: list(shards) for name, shards in splits.items()},
                "meta_files": list(META_FILES),
            },
            order=InputOrder() if output.shuffle is None else ShuffledOrder(seed=output.shuffle),
            outputs=tuple(shard.output for shard in self._shards),
            ledger=Ledger(
                documents=DocumentLedger(
                    read=sum(one.samples for one in plan.counted),
                    kept=sum(counts),
                    dropped=dict(sorted(dropped.items())),
                    blank_lines=sum(len(one.blank) for one in plan.counted),
                ),
                tokens=TokenLedger(made=0, kept=0),
                contents=ContentLedger(
                    read=kept + dropped_bytes.total(), kept=kept, dropped=dict(sorted(dropped_bytes.items()))
                ),
            ),
            errors=self._errors,
            provenance=self._write_origins(root / PROVENANCE_NAME),
            # Users may edit the split file and dataset.yaml, so the manifest holds no hashes of them.
            beside=tuple(msgspec.structs.replace(file_sum(root / name), name=name) for name in VOUCHED_META_FILES),
        )
        made = [*(f"{PROVENANCE_NAME}/{file.name}" for file in manifest.provenance), *META_FILES, MANIFEST_NAME]
        return save_manifest(root, manifest), {f"{MADE_NAME}/{name}": name for name in made}

    def _write_origins(self, folder: Path) -> tuple[FileSum, ...]:
        samples, kept = self._samples, np.sort(self._samples)
        order = np.searchsorted(kept, samples)
        options, inputs = self._plan.options, self._plan.inputs
        is_shuffled = options.output.shuffle is not None or bool((np.diff(samples) < 0).any())
        is_named = options.source.key_field is not None or any(given.table is None for given in inputs)
        with ProvenanceWriter(folder, with_order=is_shuffled, with_ids=is_named) as writer:
            first = ordinal = 0
            for given, one in enumerate(self._plan.counted):
                own = kept[np.searchsorted(kept, first) : np.searchsorted(kept, first + one.samples)] - first
                lines = np.setdiff1d(np.arange(one.lines), np.array(one.blank, np.int64))
                skipped = [(line, "blank") for line in one.blank]
                left_out = np.setdiff1d(np.arange(one.samples), own)
                skipped += [(int(lines[at]), self._left_out[first + at].reason) for at in left_out.tolist()]
                skipped.sort()
                places = np.array([line for line, _ in skipped], np.int64)
                writer.add_span(ordinal, len(own), given, 0, one.lines, places, [reason for _, reason in skipped])
                first, ordinal = first + one.samples, ordinal + len(own)
            if is_named:
                ids = [name for shard in self._shards for name in shard.names]
                writer.add_ids([ids[at] for at in np.argsort(order).tolist()])
            if is_shuffled:
                writer.add_order(order)
            return writer.finish()


def input_files(
    plan: MediaPlan, file_bytes: Mapping[int, int], file_sums: Mapping[int, int], tables: Mapping[int, str]
) -> tuple[InputFile, ...]:
    """Return one entry for each input, as the table of origins counts them, then one for the files of each.

    Args:
        plan: the plan.
        file_bytes: for each input the number of bytes that came from files below its root.
        file_sums: for each input the sum of the digests of these files, see `file_digest`.
        tables: the hash of each table that planning has not hashed.
    """
    first, more = [], []
    for number, (given, counted) in enumerate(zip(plan.inputs, plan.counted, strict=True)):
        size, xxh3_128 = file_bytes.get(number, 0), in_hex(file_sums.get(number, 0))
        if given.table is not None:
            table, digest = given.table, counted.xxh3_128 or tables[number]
            first.append(InputFile(path=given.name, format=table.format, size=table.size_bytes, xxh3_128=digest))
            if number in file_sums:
                root = plan.options.source.root or str(path_at(given.name).parent)
                more.append(InputFile(path=root, format="files", size=size, xxh3_128=xxh3_128))
            continue
        first.append(InputFile(path=given.name, format="folder", size=size, xxh3_128=xxh3_128))
        if given.captions is not None:
            table, digest = given.captions, counted.xxh3_128
            more.append(InputFile(path=table.name, format=table.format, size=table.size_bytes, xxh3_128=digest))
    return (*first, *more)


def _packed(path: Path) -> tuple[Path, PackedTask]:
    if (found := _read(path)) is None:
        raise OutputError(f"{path}: cannot be read back; run the same command again")
    return found


def _read(path: Path) -> tuple[Path, PackedTask] | None:
    packed = load(path, PackedTask)
    return None if packed is None else (path, packed)


def is_made(manifest: Manifest, planner: Planner, asked: Mapping[str, Any], storage: Storage | None) -> bool:
    """Whether a run would write what this manifest lists. If everything else is equal, all inputs are read.

    Args:
        manifest: the manifest.
        planner: plans the run.
        asked: what its manifest would record of the options.
        storage: how the stores of URLs are reached; None goes by the environment.

    Returns:
        The answer; False also if samples were left out: only a run finds out which files are in the shards then.
    """
    planned = {name: manifest.options.get(name) for name in ("splits", "meta_files")}
    if manifest.options != {**asked, **planned} or manifest.ledger.documents.dropped:
        return False
    with ExitStack() as stack:
        try:
            plan, packer = stack.enter_context(listed_here(planner, storage))
        except (ConfigError, InputError):
            return False  # a run would not come to its end
        tables = {task.table: packer.table_hash(task.table) for task in plan.tasks if task.table >= 0}
        file_bytes, file_sums = Counter[int](), Counter[int]()
        found, again = tee(_files(plan, packer))
        wanted = ((plan.inputs[given].root, file) for given, file in again)
        try:
            for (given, file), digest in zip(found, digests(wanted, storage), strict=True):
                file_bytes[given] += file.size
                file_sums[given] += file_digest(file.name, digest)
        except BadSampleError:
            return False
        return not plan.duplicates and input_files(plan, file_bytes, file_sums, tables) == manifest.inputs


def _files(plan: MediaPlan, packer: Packer) -> Iterator[tuple[int, ListedFile]]:
    """Yield the files of all samples, each with its input; raises BadSampleError for a bad sample."""
    for task in plan.tasks:
        for sample in packer.found(packer.listed(task)) if task.table < 0 else ():
            if sample.bad:
                raise BadSampleError(sample.bad)
            yield from ((sample.input, part.file) for part in sample.parts if part.file is not None)


class ShardJob(PlannedJob):
    """See the module.

    Args:
        output: the output.
        shared: what the processes of the job share.
        plan: its plan, as JSON.
        storage: how the stores of URLs are reached; None goes by the environment.
    """

    kind = KIND
    plan_type = MediaPlan
    delivers = True
    num_results = 1
    final = (BadSampleError,)
    plan: MediaPlan
    given: PackSetup

    def __init__(self, output: AnyPath, shared: Shared, plan: msgspec.Raw, storage: Storage | None = None) -> None:
        super().__init__(output, shared, plan)
        listed = shared.place(self.plan.list_name)
        self.given = PackSetup(listed=str(listed.absolute() if isinstance(listed, Path) else listed), storage=storage)

    def check(self, phase: Phase, receipts: Receipts) -> None:
        """See `Job`: refuse more bad samples than the options allow.

        Raises:
            InputError: there are too many.
        """
        found = [receipt.value for receipt in receipts.done.values() if receipt.value is not None]
        if found:
            last = msgspec.convert(found[-1], ErrorEntry)
            check_tolerance([last] * receipts.counts["bad"], self.plan.options.errors, noun="sample")

    def finish(self, show: Show) -> Manifest:
        """See `Job`."""
        overwrite = self.plan.options.overwrite
        with output_at(self.output, overwrite=overwrite, restart=False) as folder:
            if (found := folder.resume()) is not None:
                return found[0]
            self.check_inputs()
            receipts = self.known_receipts()
            if receipts.failed:
                raise InputError(receipts.failed[min(receipts.failed)].error)
            end = Finish(self.plan, self.results(_read))
            manifest, made = end.write(folder.work)
            folder.put(partial(self.gather, [receipts], end.sums), end.sums, made)
        return manifest

    def check_inputs(self) -> None:
        """See `Job`."""
        found = [file for given in self.plan.inputs for file in (given.table, given.captions) if file is not None]
        check_all([msgspec.structs.replace(file, storage=self.given.storage) for file in found])


def prepare_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    storage: Storage | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest:
    """Write media files, or the rows of tables, into a folder of tar shards that `headrace.open` and Energon can open.

    The bytes depend only on inputs and options, never on the number of workers. Everything appears at the end at once,
    or nothing does. If a run ends early for any reason, the same call continues it, and other hosts may join it, see
    `plan_shards`. Tables are read once when the run is planned, which keeps some 60 bytes a sample in memory, and the
    names of a folder's files; those that hold the media are read again by the tasks, whose values go to a temporary
    file above 64 MiB. Media are read once.

    Args:
        inputs: folders of files, and tables: CSV, TSV, JSON Lines, Parquet, Arrow; see `inputs.find_media`. They, and
            the root and the captions of the options, may be URLs.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, to which each shard is
            uploaded when it is complete on this host.
        options: all options; None uses their defaults.
        storage: how the stores of URLs, of inputs and output, are reached; None goes by the environment.
        on_progress: called a few times a second. The phase is ``list`` while tables are read to plan the run, then
            ``pack-...``; both count bytes and samples.
        on_notice: called with messages that a user should see, such as which column became which part.

    Returns:
        The manifest of the output.

    Raises:
        ConfigError: inputs or options are invalid.
        InputError: a sample or file is bad; the message names file and row.
        OutputError: the folder is not empty, or a file cannot be written.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: an input needs a package that is not installed.
    """
    options, show = options or ShardOptions(), shown(on_progress, on_notice)
    folder, plan = _placed(inputs, output, options, storage, show)
    return do_here(folder, plan, partial(ShardJob, storage=storage), workers=options.workers, show=show)


def plan_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> None:
    """Plan a run of `prepare_shards` in its output folder, for processes on any hosts to do its tasks, see `open_job`.

    The output is the same, byte for byte. If the run is planned or complete already, this does nothing.

    Args:
        inputs: see `prepare_shards`; they must have the same paths on all hosts, which reach URLs by what their
            environment says.
        output: a folder that all hosts can write to, by the same path; or a URL, where they share nothing else.
        options: see `prepare_shards`.
        on_notice: see `prepare_shards`.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_shards`.

    Example:
        >>> headrace.preparing.plan_shards(["images"], "shared-shards")
        >>> headrace.kinds.open_job("shared-shards").phase().name.partition("-")[0]
        'pack'
    """
    _placed(inputs, output, options or ShardOptions(), None, shown(None, on_notice))


def _placed(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: ShardOptions,
    storage: Storage | None,
    show: Show,
) -> tuple[OutputFolder, MediaPlan | None]:
    """Check what a caller asked for; plan or continue a run in its output, see `_planned`."""
    check_storage(storage, list(inputs), output, options.source.root, options.source.captions)
    check_options(options)
    place = path_at(output, reader_of(storage))
    with output_at(place, overwrite=options.overwrite, restart=options.restart) as folder:
        return folder, _planned(inputs, folder, options, storage, show)


def _planned(
    inputs: Sequence[str | os.PathLike[str]],
    folder: OutputFolder,
    options: ShardOptions,
    storage: Storage | None,
    show: Show,
) -> MediaPlan | None:
    """Plan or continue a run in a folder that was claimed; return its plan, or None if its output is complete."""
    found = find_media(inputs, options.source, show.notice, storage)
    for given in found if not options.source.parts else ():
        if given.parts:
            show.notice(f"{given.name}: {', '.join(map(str, given.parts))}")
    groups = {name: as_read_back(getattr(options, name)) for name in ("source", "output", "errors")}
    # What the manifest records of the options.
    asked = {**groups, "kind": "shards", "parts": [list(map(str, given.parts)) for given in found]}
    # How errors are treated changes no sample.
    run = {**asked, "errors": None, "format": 1, "inputs": list(map(described_input, found))}

    def is_same(made: list[Manifest]) -> bool:
        return is_made(made[0], Planner(found, options, storage=storage), asked, storage)

    if complete := folder.begin(run, is_made=is_same):
        show.notice(complete)
        return None
    plan = _kept_plan(folder) if folder.is_continued else None
    made = []
    if plan is not None:
        plan = msgspec.structs.replace(plan, options=options, asked=asked)
    else:
        told_s = 0.0

        def on_read(num_bytes: int, samples: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s > REPORT_S:
                told_s = time.monotonic()
                counts = {"bytes": num_bytes, "samples": samples}
                total_bytes = sum(given.table.size_bytes for given in found if given.table is not None)
                show.tasks(TaskProgress(phase="list", done=0, num_tasks=1, counts=counts, total_bytes=total_bytes))

        planner = Planner(found, options, storage=storage, on_notice=show.notice, on_read=on_read)
        plan = planner.plan(folder.work, asked)
        made = [plan.list_name]
    folder.save_plan(NewPlan(KIND, plan, [plan.phase], made=made))
    return plan


def _kept_plan(folder: OutputFolder) -> MediaPlan | None:
    """Return the plan of an unfinished run; None if that was ended before it was planned.

    It is not made again, since it depends on the sizes of files, which may have changed.
    """
    try:
        shared = folder.shared()  # what it has on this host goes with it
        return msgspec.json.decode(load_plan(shared.here).plan, type=MediaPlan)
    except OutputError:
        return None
