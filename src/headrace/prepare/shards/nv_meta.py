"""The ``.nv-meta`` of the shards that were written, so that Energon and `EnergonStore` open the folder at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headrace.io import atomic_write, output_errors
from headrace.prepare.shards.messages import FilledShard
from headrace.prepare.shards.options import ShardOutput
from headrace.prepare.shards.planning import ShardPlan
from headrace.stores.energon.config_file import DATASET_NAME, INDEX_NAME, INFO_NAME, META_FOLDER, SPLIT_NAME, UUID_NAME
from headrace.stores.energon.splits import write_info, write_splits
from headrace.stores.energon.sqlite_writer import SqliteWriter
from headrace.stores.tar.scan import ScannedShard

META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME, SPLIT_NAME, DATASET_NAME))
"""In the order in which they appear: without the last ones nothing opens."""

VOUCHED_META_FILES = tuple(f"{META_FOLDER}/{name}" for name in (INDEX_NAME, UUID_NAME, INFO_NAME))
"""Those that nobody edits, whose hashes are in the manifest."""

ENERGON_VERSION = "7.4.1"
"""Whose layout this is."""

_MODULE = "megatron.energon"


def write_nv_meta(
    root: Path, names: Sequence[str], filled: Iterable[FilledShard], plan: ShardPlan, output: ShardOutput
) -> None:
    """Write all files of ``.nv-meta``; the same shards give the same bytes.

    Args:
        root: the folder of the shards.
        names: of the shards, in order.
        filled: what each holds.
        plan: which of them belong to which part of the split.
        output: sample type and field map.

    Raises:
        OutputError: the system refuses.
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
    atomic_write(root / META_FOLDER / DATASET_NAME, yaml.safe_dump(dataset_yaml(output), sort_keys=False).encode())


def _as_scanned(shard: FilledShard) -> ScannedShard:
    """What a scan of the tar would find."""
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


def dataset_yaml(output: ShardOutput) -> dict[str, Any]:
    """The content of ``dataset.yaml``: a sample type with its fields, or crude samples."""
    if output.sample_type is None:
        return {"__module__": _MODULE, "__class__": "CrudeWebdataset"}
    return {
        "sample_type": {"__module__": _MODULE, "__class__": output.sample_type},
        "field_map": dict(output.field_map),
    }
