"""One call, two systems: the same path and the same arguments for the loaders of Energon and of Headrace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch.utils.data._utils as data_workers

from columned import get_savable_loader
from energon_made import write_shards
from headrace.compat.energon import EnergonLoader, WorkerConfig, get_train_dataset, get_val_dataset
from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon
from interop import energon_peer

Batches = list[list[str]]


def members(*keys: str, size: int = 1) -> list[tuple[str, bytes]]:
    """A text for each key, which is the key so many times."""
    return [(f"{key}.txt", f"{key} ".encode() * size) for key in keys]


def dataset(
    root: Path, shards: Mapping[str, Sequence[tuple[str, bytes]]], splits: Mapping[str, str] | None = None
) -> Path:
    """Samples of text, prepared by ours; of parts, the regular expression of the shards' names."""
    sample = DatasetChoice(sample_type="TextSample", field_map={"text": "txt"})
    split = SplitChoice(parts=tuple((splits or {"train": ".*"}).items()))
    prepare_energon(write_shards(root, dict(shards)), options=EnergonOptions(split=split, dataset=sample))
    return root


def texts(root: Path, counts: Sequence[int], *, val: int = 0) -> Path:
    """A dataset of shards with so many texts: ``a0``, ``a1``, ... in one of the name a. The last shards are val."""
    first = [sum(counts[:shard]) for shard in range(len(counts))]
    shards = {
        f"s{shard}.tar": [
            (f"{number:05d}.txt", f"{root.name}{number}".encode())
            for number in range(first[shard], first[shard] + count)
        ]
        for shard, count in enumerate(counts)
    }
    train = len(counts) - val
    parts = {"train": f"s[{','.join(map(str, range(train)))}]"} | ({"val": f"s[{train}-9]"} if val else {})
    return dataset(root, shards, parts)


def metadataset(path: Path, **splits: Any) -> Path:
    """A metadataset of the second version; ``datasets`` in a split make it one of the first."""
    kind = "Metadataset" if any("datasets" in split for split in splits.values()) else "MetadatasetV2"
    path.write_text(json.dumps({"__module__": "megatron.energon", "__class__": kind, "splits": splits}))
    return path


def their_loader(
    path: Path,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    *,
    val: bool = False,
    seed: int = 0,
    **given: Any,
) -> Any:
    """Energon's savable loader; of what it demands the least is filled in."""
    peer = energon_peer.energon()
    # Its workers do not end when they are told to: each would be waited for so many seconds, 5 without this.
    data_workers.MP_STATUS_CHECK_INTERVAL = 0.1
    config = peer.WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers, seed_offset=seed)
    if not val:
        given = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **given}
    make = peer.get_val_dataset if val else peer.get_train_dataset
    return energon_peer.quietly(lambda: peer.get_savable_loader(make(path, worker_config=config, **given)))


def our_loader(
    path: Path,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    *,
    val: bool = False,
    seed: int = 0,
    **given: Any,
) -> EnergonLoader:
    """Headrace's, of the same arguments."""
    config = WorkerConfig(rank, world_size, num_workers, seed_offset=seed)
    make: Any = get_val_dataset if val else get_train_dataset
    return get_savable_loader(make(path, worker_config=config, **given), start_method="fork", prefetch_factor=1)


def take(loader: Any, number: int | None = None) -> Batches:
    """The texts of the first batches, of either system; all of them without a number."""

    def read() -> Batches:
        return [texts_of(batch) for batch in islice(loader, number)]

    found: Batches = energon_peer.quietly(read)
    return found


def texts_of(batch: Any) -> list[str]:
    """The texts of a batch, or of a sample by itself."""
    found = batch["text"] if isinstance(batch, Mapping) else batch.text
    return [found] if isinstance(found, str) else list(found)


def steps(iterator: Iterator[Any]) -> Iterator[list[str]]:
    """As `take`, one batch after another."""
    while True:
        batch = energon_peer.quietly(next, iterator, None)
        if batch is None:
            return
        yield texts_of(batch)
