"""The end of a run: compare the shards with the plan, and write the manifest and the ``.nv-meta``.

With the ``.nv-meta`` Energon and `EnergonStore` can open the folder without further steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.errors import HeadraceError
from headrace.io import Storage, as_read_back, atomic_write, file_sum, output_errors, path_at
from headrace.preparing.shards.files import digests
from headrace.preparing.shards.filling import FileHashes
from headrace.preparing.shards.inputs import MediaInput, survey_setup, table_tasks
from headrace.preparing.shards.listing import ListedFile, group_files
from headrace.preparing.shards.messages import FilledShard
from headrace.preparing.shards.options import PartSpec, ShardOptions, ShardOutput
from headrace.preparing.shards.planning import Planned, ShardPlan
from headrace.preparing.shards.survey import Surveyor
from headrace.stores import (
    PROVENANCE_NAME,
    InputFile,
    InputOrder,
    KeyInfo,
    Ledger,
    Manifest,
    OutputShard,
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

META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME, SPLIT_NAME, DATASET_NAME))
"""Files of ``.nv-meta`` in the order in which they are moved into place. Nothing opens without the last ones."""

VOUCHED_META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME))
"""Files that users do not edit; the manifest holds their hashes."""


def write_nv_meta(
    root: Path, names: Sequence[str], filled: Iterable[FilledShard], plan: ShardPlan, output: ShardOutput
) -> None:
    """Write all files of ``.nv-meta``. The same shards always give the same bytes.

    Args:
        root: the folder of the shards.
        names: names of the shards, in order.
        filled: contents of the shards, in order.
        plan: the shards of each part of the split.
        output: sample type and field map.

    Raises:
        OutputError: a file cannot be written.
    """
    with output_errors(root, "create .nv-meta in"):
        (root / META_FOLDER).mkdir(exist_ok=True)
    counts = {}
    with SqliteWriter(root) as index:
        for number, (name, shard) in enumerate(zip(names, filled, strict=True)):
            index.add_shard(number, _as_scanned(shard))
            counts[name] = len(shard.keys)
    write_info(root, counts, ENERGON_VERSION)
    write_splits(root, {part: names[begin:end] for part, (begin, end) in plan.splits.items()})
    atomic_write(root / META_FOLDER / DATASET_NAME, dataset_yaml(output.sample_type, output.field_map))


def _as_scanned(shard: FilledShard) -> ScannedShard:
    """Return what a scan of the tar would find."""
    samples = [part[0] for part in shard.parts]
    return ScannedShard(
        offsets=np.array(shard.offsets, np.int64),
        keys=list(shard.keys),
        part_bounds=np.searchsorted(samples, np.arange(len(shard.keys) + 1)).astype(np.int64),
        part_names=[part[1] for part in shard.parts],
        part_offsets=np.array([part[2] for part in shard.parts], np.int64),
        part_sizes=np.array([part[3] for part in shard.parts], np.int64),
        size=shard.files[0].size,
        faults=(),
    )


ORIGINS_NAME = "origins"
SHARDS_NAME = "shards"


def shard_name(number: int) -> str:
    """Return the name of a shard, such as ``shard-000017.tar``."""
    return f"shard-{number:06d}.tar"


class Totals:
    """Collects what the manifest records about the shards, in their order."""

    def __init__(self) -> None:
        self.outputs: list[OutputShard] = []
        self._file_bytes: Counter[int] = Counter()
        self._hashes: dict[int, FileHashes] = {}

    def add(self, shard: FilledShard) -> None:
        """Add the next shard."""
        name = shard_name(len(self.outputs))
        sizes = sorted(shard.part_bytes.items())
        self.outputs.append(
            OutputShard(
                prefix=name.removesuffix(".tar"),
                format="tar",
                documents=len(shard.keys),
                keys={part: KeyInfo(dtype="uint8", tokens=size, ids=False) for part, size in sizes},
                contiguous=False,
                files=shard.files,
            )
        )
        self._file_bytes.update(shard.file_bytes)
        for given, total in shard.file_hashes.items():
            self._hashes.setdefault(given, FileHashes()).add_sum(total)

    def check(self, planned: Planned) -> None:
        """Raise HeadraceError if the shards do not hold what the plan says."""
        for what, wanted, found in (
            ("samples kept, and samples in the shards", planned.documents.kept, sum(s.documents for s in self.outputs)),
            ("bytes kept, and bytes in the shards", planned.contents.kept, sum(s.tokens for s in self.outputs)),
        ):
            if wanted != found:
                raise HeadraceError(
                    f"the ledger does not balance: {what}: {wanted:,} and {found:,}. Nothing was written. This is a "
                    "defect of Headrace or of this machine: please report it."
                )

    def files(self, given: int, name: str, kind: str) -> InputFile | None:
        """Return one entry for all files below the root of an input that are in the shards; None if there are none."""
        if given not in self._hashes:
            return None
        return InputFile(path=name, format=kind, size=self._file_bytes[given], xxh3_128=self._hashes[given].xxh3_128)


def build_manifest(
    work: Path,
    inputs: Sequence[MediaInput],
    options: ShardOptions,
    asked: Mapping[str, Any],
    planned: Planned,
    totals: Totals,
) -> Manifest:
    """Check that the ledger balances, and write the manifest into the work folder.

    Raises:
        HeadraceError: the shards hold more or less than the plan says.
    """
    totals.check(planned)
    seed = options.output.shuffle
    manifest = Manifest(
        inputs=_inputs(inputs, planned.hashes, totals, options),
        options=_options(asked, planned),
        order=InputOrder() if seed is None else ShuffledOrder(seed=seed),
        outputs=tuple(totals.outputs),
        ledger=Ledger(documents=planned.documents, tokens=TokenLedger(made=0, kept=0), contents=planned.contents),
        errors=planned.errors,
        provenance=planned.origins,
        # Users may edit the split file and dataset.yaml, so the manifest holds no hashes of them.
        beside=tuple(
            msgspec.structs.replace(file_sum(work / SHARDS_NAME / name), name=name) for name in VOUCHED_META_FILES
        ),
    )
    return save_manifest(work, manifest)


def moves(manifest: Manifest) -> dict[str, str]:
    """Map names in the work folder to names in the output folder; the files that make it open come last."""
    found = {f"{ORIGINS_NAME}/{file.name}": f"{PROVENANCE_NAME}/{file.name}" for file in manifest.provenance}
    for shard in manifest.outputs:
        found |= {f"{SHARDS_NAME}/{file.name}": file.name for file in shard.files}
    found |= {f"{SHARDS_NAME}/{name}": name for name in META_FILES}
    return {**found, "headrace.json": "headrace.json"}


def _inputs(
    inputs: Sequence[MediaInput], hashes: Mapping[int, str], totals: Totals, options: ShardOptions
) -> tuple[InputFile, ...]:
    """Return one entry for each input, as the table of origins counts them, then one for the files that each names."""
    first, more = [], []
    for number, given in enumerate(inputs):
        if given.table is not None:
            table = given.table
            first.append(
                InputFile(path=given.name, format=table.format, size=table.size_bytes, xxh3_128=hashes[number])
            )
            entry = totals.files(number, _files_root(given, options), "files")
            more += [entry] if entry is not None else []
            continue
        empty = InputFile(path=given.name, format="folder", size=0, xxh3_128=FileHashes().xxh3_128)
        first.append(totals.files(number, given.name, "folder") or empty)
        if given.captions is not None:
            table = given.captions
            digest = hashes[number + len(inputs)]
            more.append(InputFile(path=table.name, format=table.format, size=table.size_bytes, xxh3_128=digest))
    return (*first, *more)


def _files_root(given: MediaInput, options: ShardOptions) -> str:
    """Return the folder of the files that a table names, as the manifest lists it."""
    return options.source.root or str(path_at(given.name).parent)


def _options(asked: Mapping[str, Any], planned: Planned) -> dict[str, Any]:
    splits = {name: list(shards) for name, shards in planned.plan.splits.items()}
    return {**asked, "splits": splits, "meta_files": list(META_FILES)}


def asked_options(parts: Sequence[tuple[PartSpec, ...]], options: ShardOptions) -> dict[str, Any]:
    """Return what the manifest records of the options."""
    groups = {name: as_read_back(getattr(options, name)) for name in ("source", "output", "errors")}
    return {**groups, "kind": "shards", "parts": [[str(spec) for spec in specs] for specs in parts]}


def is_made(
    manifest: Manifest,
    inputs: Sequence[MediaInput],
    parts: Sequence[tuple[PartSpec, ...]],
    options: ShardOptions,
    storage: Storage | None = None,
) -> bool:
    """Whether a run would write what this manifest lists. If everything else is equal, all inputs are read.

    The answer is False if samples were left out, and for captions whose rows name more files: only a run finds out
    which of these are in the shards.
    """
    planned = {name: manifest.options.get(name) for name in ("splits", "meta_files")}
    if manifest.options != {**asked_options(parts, options), **planned} or manifest.ledger.documents.dropped:
        return False
    found = [
        entry
        for given, specs in zip(inputs, parts, strict=True)
        for entry in _read_again(given, specs, options, storage)
    ]
    return sorted(found) == sorted((file.path, file.xxh3_128) for file in manifest.inputs)


def _read_again(
    given: MediaInput, specs: tuple[PartSpec, ...], options: ShardOptions, storage: Storage | None
) -> Iterator[tuple[str, str]]:
    """Yield path and hash of each entry that a manifest has of an input, as its files are now."""
    if given.table is not None:
        yield given.name, given.table.digest()
        if any(spec.kind in ("path", "bytes") for spec in specs):
            named = _named_files(given, specs, options, storage)
            if named is None or named.total:
                yield _files_root(given, options), "" if named is None else named.xxh3_128
    if given.listing is not None:
        total = FileHashes()
        groups = group_files(given.listing, options.source.key_dots, None)[0]
        files = [file for group in groups for _, file in group.files]
        for file, digest in zip(files, digests(given.root, files, storage), strict=True):
            total.add(file.name, digest)
        yield given.name, total.xxh3_128
        if given.captions is not None:
            yield given.captions.name, given.captions.digest()


def _named_files(
    given: MediaInput, specs: tuple[PartSpec, ...], options: ShardOptions, storage: Storage | None
) -> FileHashes | None:
    """Read all files that the rows of a table name; None if a row is no sample any more, as without its file."""
    surveyor = Surveyor(survey_setup([given], [specs], options.source, storage), lambda *counts: None)
    total = FileHashes()
    for task in table_tasks(given):
        samples = [sample for span in surveyor.survey(task).spans for sample in span.samples]
        if any(sample.bad for sample in samples):
            return None
        parts = [part for sample in samples for part in sample.parts if part.path]
        files = [ListedFile(part.path, part.size, part.mtime_ns, part.etag) for part in parts]
        for file, digest in zip(files, digests(given.root, files, storage), strict=True):
            total.add(file.name, digest)
    return total
