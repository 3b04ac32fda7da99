"""The end of a run: compare the shards with the plan, and write the manifest, the origins and the ``.nv-meta``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import tee
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.engine.serving import load
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError
from headrace.io import FileSum, Storage, as_read_back, atomic_write, file_sum, output_errors, path_at
from headrace.preparing.ledger import check_tolerance
from headrace.preparing.options import SPLIT_NAMES
from headrace.preparing.shards.listing import ListedFile, digests
from headrace.preparing.shards.options import PartSpec, ShardOptions
from headrace.preparing.shards.packing import (
    BadSampleError,
    FileHashes,
    LeftOut,
    PackedShard,
    PackedTask,
    Packer,
    listed_here,
)
from headrace.preparing.shards.plan import ADVICE, MediaPlan, Planner, check_left, shard_name
from headrace.stores import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    ContentLedger,
    DocumentLedger,
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
        self._file_bytes: Counter[int] = Counter()
        self._file_hashes: dict[int, FileHashes] = {}
        self._tables: dict[int, str] = {}
        for task, (path, packed) in zip(plan.tasks, found, strict=True):
            if task.table >= 0:
                self._tables[task.table] = packed.xxh3_128
            self._found |= dict.fromkeys((shard.number for shard in packed.shards), path)
            for shard in packed.shards:
                of_parts = dict.fromkeys(("part_bounds", "part_offsets", "part_sizes"), _NOTHING)
                light = msgspec.structs.replace(shard.scanned, offsets=_NOTHING, part_names=[], **of_parts)
                shards.append(msgspec.structs.replace(shard, scanned=light))
            left_out += packed.left_out
            self._file_bytes.update(packed.file_bytes)
            for given, total in packed.file_hashes.items():
                self._file_hashes.setdefault(given, FileHashes()).add_sum(total)
        self._shards = sorted(shards, key=lambda shard: shard.number)
        self._samples = np.concatenate([_NOTHING, *(shard.samples for shard in self._shards)])
        self._left_out = {one.sample: one for one in sorted(left_out, key=lambda one: one.sample)}
        self._errors = tuple(one.error for one in self._left_out.values() if one.error is not None)
        self._check()

    @property
    def _with_ids(self) -> bool:
        plan = self._plan
        return plan.options.source.key_field is not None or any(given.table is None for given in plan.inputs)

    @property
    def sums(self) -> dict[str, tuple[int, str]]:
        """Size and xxh3_128 of each file of the shards, by its name."""
        return {file.name: (file.size, file.xxh3_128) for shard in self._shards for file in shard.output.files}

    @property
    def names(self) -> list[str]:
        """The names of the shards, in their order."""
        return [shard_name(shard.number) for shard in self._shards]

    def _check(self) -> None:
        """Check that each sample is in one shard, or was left out."""
        num_read = sum(one.samples for one in self._plan.counted)
        samples = np.concatenate([self._samples, np.array(list(self._left_out), np.int64)])
        if not np.array_equal(np.sort(samples), np.arange(num_read)):
            raise HeadraceError(
                f"the ledger does not balance: {num_read:,} samples were listed, and {len(samples):,} are in shards or "
                "left out. Nothing was written. This is a defect of Headrace or of this machine: please report it."
            )
        check_tolerance(self._errors, self._plan.options.errors, noun="samples", advice=ADVICE, num_read=num_read)
        check_left(num_read, Counter(one.reason for one in self._left_out.values()), self._errors)

    def write(self, work: Path) -> tuple[Manifest, dict[str, str]]:
        """Write the table of origins, ``.nv-meta`` and the manifest; return it, and the names of all in the output.

        With the ``.nv-meta`` Energon and `EnergonStore` can open the folder without further steps.
        """
        plan, root, names = self._plan, work / MADE_NAME, self.names
        output = plan.options.output
        parts = [shard.part for shard in self._shards]
        splits = {name: (bisect_left(parts, at), bisect_right(parts, at)) for at, name in enumerate(SPLIT_NAMES)}
        with output_errors(root, "create .nv-meta in"):
            (root / META_FOLDER).mkdir(parents=True, exist_ok=True)
        with SqliteWriter(root) as index:
            path, of_task = Path(), dict[int, PackedShard]()
            for place, shard in enumerate(self._shards):
                if self._found[shard.number] != path:
                    path = self._found[shard.number]
                    of_task = {one.number: one for one in _packed(path).shards}
                index.add_shard(place, of_task[shard.number].scanned)
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
            inputs=input_files(plan, self._file_bytes, self._file_hashes, self._tables),
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
        is_shuffled = self._plan.options.output.shuffle is not None or bool((np.diff(samples) < 0).any())
        with ProvenanceWriter(folder, with_order=is_shuffled, with_ids=self._with_ids) as writer:
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
            if self._with_ids:
                named = (zip(shard.names, shard.scanned.keys, strict=True) for shard in self._shards)
                ids = [name or key for pairs in named for name, key in pairs]
                writer.add_ids([ids[at] for at in np.argsort(order).tolist()])
            if is_shuffled:
                writer.add_order(order)
            return writer.finish()


def input_files(
    plan: MediaPlan, file_bytes: Mapping[int, int], file_hashes: Mapping[int, FileHashes], tables: Mapping[int, str]
) -> tuple[InputFile, ...]:
    """Return one entry for each input, as the table of origins counts them, then one for the files of each.

    Args:
        plan: the plan.
        file_bytes: for each input the number of bytes that came from files below its root.
        file_hashes: for each input the hashes of these files.
        tables: the hash of each table that planning has not hashed.
    """
    first, more = [], []
    for number, (given, counted) in enumerate(zip(plan.inputs, plan.counted, strict=True)):
        size, hashes = file_bytes.get(number, 0), file_hashes.get(number, FileHashes())
        if given.table is not None:
            table, digest = given.table, counted.xxh3_128 or tables[number]
            first.append(InputFile(path=given.name, format=table.format, size=table.size_bytes, xxh3_128=digest))
            if number in file_hashes:
                root = plan.options.source.root or str(path_at(given.name).parent)
                more.append(InputFile(path=root, format="files", size=size, xxh3_128=hashes.xxh3_128))
            continue
        first.append(InputFile(path=given.name, format="folder", size=size, xxh3_128=hashes.xxh3_128))
        if given.captions is not None:
            table, digest = given.captions, counted.captions
            more.append(InputFile(path=table.name, format=table.format, size=table.size_bytes, xxh3_128=digest))
    return (*first, *more)


def _packed(path: Path) -> PackedTask:
    found = load(path, PackedTask)
    if found is None:
        raise OutputError(f"{path}: cannot be read back; run the same command again")
    return found


def asked_options(parts: Sequence[tuple[PartSpec, ...]], options: ShardOptions) -> dict[str, Any]:
    """Return what the manifest records of the options."""
    groups = {name: as_read_back(getattr(options, name)) for name in ("source", "output", "errors")}
    return {**groups, "kind": "shards", "parts": [[str(spec) for spec in specs] for specs in parts]}


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
        file_bytes, file_hashes = Counter[int](), defaultdict[int, FileHashes](FileHashes)
        found, again = tee(_files(plan, packer))
        wanted = ((plan.inputs[given].root, file) for given, file in again)
        try:
            for (given, file), digest in zip(found, digests(wanted, storage), strict=True):
                file_bytes[given] += file.size
                file_hashes[given].add(file.name, digest)
        except BadSampleError:
            return False
        return not plan.duplicates and input_files(plan, file_bytes, file_hashes, tables) == manifest.inputs


def _files(plan: MediaPlan, packer: Packer) -> Iterator[tuple[int, ListedFile]]:
    """Yield the files of all samples, each with its input; raises BadSampleError for a bad sample."""
    for task in plan.tasks:
        for sample in packer.found(packer.listed(task)) if task.table < 0 else ():
            if sample.bad:
                raise BadSampleError(sample.bad)
            yield from ((sample.input, part.file) for part in sample.parts if part.file is not None)
