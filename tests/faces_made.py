"""Loaders and samplers under the names of others, over small fixed data, and what is kept of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import headrace
import media_texts
from columned import get_savable_loader
from headrace.compat.astrai import DatasetFactory, ResumableDistributedSampler
from headrace.compat.energon import EnergonLoader, WorkerConfig, get_train_dataset, get_val_dataset
from headrace.encoders import DefaultTaskEncoder
from headrace.stores import KeyedWriter

NUM_BATCHES = 16
BEFORE = 10
"""Batches that are given before a state is saved."""


def texts() -> Path:
    folder = Path("media/faces")
    return folder if folder.exists() else media_texts.shards(folder, (20, 11, 9), val=(7, 7, 7))


def mix() -> headrace.Blend:
    one = headrace.MediaDataset.open(texts(), **media_texts.TEXT)
    two = headrace.MediaDataset.open(texts(), "val", **media_texts.TEXT)
    return headrace.Blend({"one": one, "two": two}, weights={"one": 2.0, "two": 1.0})


def train(rank: int = 0, world_size: int = 1, **options: Any) -> EnergonLoader:
    config = WorkerConfig(rank, world_size, 0, seed_offset=3)
    given = {"batch_size": 3, "max_samples_per_sequence": 4, "parallel_shard_iters": 3, **options}
    return get_savable_loader(get_train_dataset(given.pop("path", None) or mix(), worker_config=config, **given))


def validation(rank: int = 0, world_size: int = 1, **options: Any) -> EnergonLoader:
    config = WorkerConfig(rank, world_size, 0, seed_offset=3)
    data = get_val_dataset(texts(), worker_config=config, batch_size=3, **media_texts.TEXT, **options)
    return get_savable_loader(data)


LOADERS: dict[str, Callable[[], EnergonLoader]] = {
    "training": train,
    "training, two ranks": lambda: train(1, 2),
    "training, in steps": lambda: train(global_batch_size=6),
    "training, once": lambda: train(path=texts(), repeat=False, **media_texts.TEXT),
    "training, virtual epochs": lambda: train(virtual_epoch_length=4),
    "training, task encoder": lambda: train(task_encoder=DefaultTaskEncoder()),
    "training, framed": lambda: train(task_encoder=DefaultTaskEncoder(), framed=True, num_lanes=6),
    "own order": lambda: train(order="energon"),
    "own order, two ranks": lambda: train(0, 2, order="energon", shuffle_buffer_size=5),
    "own order, virtual epochs": lambda: train(order="energon", virtual_epoch_length=4),
    "own order, validation": lambda: validation(0, 2, order="energon"),
    "validation": lambda: validation(1, 2),
    "validation, padded": lambda: validation(0, 2, tail="pad"),
    "validation, framed": lambda: validation(task_encoder=DefaultTaskEncoder(), framed=True, num_lanes=3),
}


def batches(loader: EnergonLoader) -> Iterator[dict[str, Any]]:
    """Of one iteration after another."""
    while True:
        yield from loader


def shown(batch: dict[str, Any]) -> list[Any]:
    """The texts of a batch and where they come from, without the folder of the data."""
    keys = [str(key) for key in batch["__key__"]]
    places = batch["sample_positions"].tolist() if "sample_positions" in batch else []
    return [list(batch["text"]), keys, places]


def of_loader(kind: str) -> dict[str, Any]:
    """The states at the begin and after some batches, and the batches that come next."""
    loader = LOADERS[kind]()
    first = loader.save_state_rank()
    given = batches(loader)
    for _ in islice(given, BEFORE):
        pass
    state = loader.save_state_rank()
    found = {"config": loader.config(), "first": first, "state": state, "next": coming(given)}
    loader.close()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def coming(given: Iterator[dict[str, Any]]) -> list[Any]:
    return [shown(batch) for batch in islice(given, NUM_BATCHES)]


def astrai() -> dict[str, Any]:
    """Indices of samplers, and hashes of the items of each training type."""
    samplers = {
        "shuffled": ResumableDistributedSampler(range(23), seed=7),
        "in the second epoch": ResumableDistributedSampler(range(23), seed=7, start_batch=7, batch_size=4),
        "by samples": ResumableDistributedSampler(range(23), seed=7, start_epoch=1, start_iter=9),
        "in order": ResumableDistributedSampler(range(23), shuffle=False, start_iter=20),
    }
    found: dict[str, Any] = {name: [[*sampler], [*sampler]] for name, sampler in samplers.items()}
    folder = Path("data/faces")
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        lengths = {"sequence": 3 + np.arange(20) % 7, "loss_mask": 3 + np.arange(20) % 7}
        ids = (np.arange(lengths["sequence"].sum()) * 7919 % 50_021).astype(np.uint16)
        with KeyedWriter(folder, dtypes={"sequence": "uint16", "loss_mask": "uint8"}) as writer:
            writer.add_documents({"sequence": ids, "loss_mask": (ids % 5 > 1).astype(np.uint8)}, lengths)
            writer.finish()
    for kind in ("seq", "sft"):
        data = DatasetFactory.load(kind, str(folder), 16)
        found[kind] = [digest(data[index]) for index in range(len(data))]
    return found


def digest(item: dict[str, torch.Tensor]) -> str:
    """A hash of names, dtypes, shapes and bytes."""
    hasher = xxhash.xxh3_128()
    for name in sorted(item):
        values = item[name].numpy()
        hasher.update(f"{name} {values.dtype.str}{values.shape} ".encode() + values.tobytes())
    return hasher.hexdigest()
