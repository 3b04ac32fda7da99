"""The functions that open a path to train on or to validate with, and those that make loaders, by Energon's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from headrace.compat.energon.batching import Batching, OpenedUnits, PathOrData, over, parts
from headrace.compat.energon.dataset import EnergonDataset, Tail, WorkerConfig
from headrace.compat.energon.framed import FramedLoader
from headrace.compat.energon.loader import EnergonLoader, OwnOrderLoader, StreamLoader
from headrace.compat.energon.passes import Kind, Training, Validation, over_passes, prepared
from headrace.datasets import Dataset
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.mix import Mix
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader.reading import Reading
from headrace.plan import BatchSchedule


def get_train_dataset(
    path: PathOrData,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    repeat: bool = True,
    order: Kind = "shards",
    global_batch_size: int | BatchSchedule | Sequence[tuple[int, int]] | None = None,
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> EnergonDataset:
    """What to train on: shuffled, for ever.

    Each epoch of each source has every sample once. What belongs to ranks and workers, ``order="energon"`` apart, is
    neither the order nor the state: a run goes on with others.

    Args:
        path: a dataset of Energon's, tar shards or a ``.jsonl``, a metadataset (``.yaml``), or data made before, as
            `Framed` are.
        split_part: of the dataset or metadataset.
        worker_config: rank, workers and seed.
        batch_size: samples a batch on this rank; None where ``batch_group_criterion`` says it.
        batch_drop_last: without ``repeat``, leave out a last batch that not all ranks can fill.
        shuffle_buffer_size: samples that are shuffled among at least; ``order="shards"`` opens as many slices.
        max_samples_per_sequence: neighbours of a shard that are read together; None: 100, in Energon's order no limit.
        parallel_shard_iters: slices that are open at once; None: 128, in Energon's order 16.
        virtual_epoch_length: batches of this rank in an iteration of the loader; 0: an iteration does not end.
        shuffle_over_epochs_multiplier: None does not shuffle. Numbers from 1 on matter in Energon's order alone, as
            each epoch has all samples here; and so does -1, by which it draws with replacement.
        repeat: False: an iteration is one pass; the next one is the next pass, and of a framed source the same again.
        order: ``"shards"``; ``"full"``, a permutation of all samples; ``"blocks"``; or ``"energon"``, its own order bit
            for bit, which is bound to ranks and workers. Without ``repeat`` its passes are all the same.
        global_batch_size: of a step, as of `headrace.Run`; None: a step is one batch of every rank, and is of another
            size on other ranks.
        task_encoder: cooks, encodes and batches the samples of every dataset. Random numbers in its hooks are of the
            seed of ``worker_config``. One that is a generator, groups or packs makes a framed source, whose state each
            rank has a part of, see `FramedLoader`. None: as ``DefaultTaskEncoder()``.
        packing_buffer_size: samples among which ``select_samples_to_pack`` chooses, of each lane; None: the encoder's
            hooks for packing are not used.
        errors: what is done about samples that cannot be made; None raises.
        framed: take an encoder of one output as a framed source too, so that `SkipSample` leaves samples out.
        num_lanes: of a framed source: a multiple of what all ranks take at a time, or with ``global_batch_size`` a
            divisor of that. Where both are left out there are as many as all ranks take at a time, and a state is for
            as many.
        options: those of `headrace.MediaDataset.open` and ``subset``, a range of the samples; of a metadataset those of
            `SourceOptions`.

    Raises:
        ConfigError: an option that is out of range, unknown here, or does not go with another.
        StoreError: nothing is there, or it is malformed.
    """
    passes = Training(
        order=order,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        parallel_shard_iters=parallel_shard_iters,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        repeat=repeat,
        drop_last=batch_drop_last,
        virtual_epoch_length=virtual_epoch_length,
        global_batch_size=global_batch_size,
    )
    batching = Batching(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
    )
    return prepared(path, split_part, passes, batching, worker_config, options)


def get_savable_loader(
    dataset: EnergonDataset,
    *,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    persistent_workers: bool = True,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
    worker_init: Callable[[], Any] | str | None = None,
    differing_globals: Sequence[str] = (),
    watchdog_timeout_seconds: float = 300.0,
    fault_report: str | os.PathLike[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> EnergonLoader:
    """The batches of this rank, as many worker processes reading ahead as its ``worker_config`` says.

    Args:
        dataset: of `get_train_dataset` or `get_val_dataset`.
        prefetch_factor: batches that each worker keeps ready.
        pin_memory, persistent_workers, start_method, worker_init, differing_globals: see `headrace.loader.Reading`.
        watchdog_timeout_seconds: how long a batch may take to come; then its worker is replaced.
        fault_report, journal: see `headrace.Loader`; a journal is of a framed source.

    Raises:
        ConfigError: a journal of another source; one file for several ranks.
    """
    reading = Reading(
        num_threads=0,
        num_workers=dataset.worker_config.num_workers,
        prefetch=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        start_method=start_method,
        worker_init=worker_init,
        differing_globals=tuple(differing_globals),
        timeout_s=watchdog_timeout_seconds,
    )
    report = None if fault_report is None else os.fspath(fault_report)
    if journal is not None and dataset.framed is None:
        raise ConfigError("a journal is of the frames of a framed source, and every sample has one output here")
    if dataset.own_order is not None:
        return OwnOrderLoader(dataset, dataset.own_order, reading, report)
    if dataset.framed is not None:
        return FramedLoader(dataset, dataset.framed, reading, report, None if journal is None else os.fspath(journal))
    return StreamLoader(dataset, reading, report)


get_loader = get_savable_loader
"""Every loader can be saved: it costs nothing."""


def get_val_dataset(
    path: PathOrData,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "spread",
    order: Literal["stride", "energon"] = "stride",
    task_encoder: Encoder | None = None,
    packing_buffer_size: int | None = None,
    errors: ErrorPolicy | None = None,
    framed: bool = False,
    num_lanes: int | None = None,
    **options: Any,
) -> EnergonDataset:
    """What to validate with: every sample once, in the order of the stores, in as many batches on every rank.

    Each iteration of its loader is the whole of it again. The batches of all ranks together are consecutive samples.

    Args:
        path, split_part, worker_config, batch_size, task_encoder, packing_buffer_size, errors, framed, num_lanes,
            options: see `get_train_dataset`; of a metadataset all datasets one after another.
        batch_drop_last: as ``tail="drop"``.
        limit: batches of this rank.
        tail: what not all ranks can fill: ``"spread"`` gives each as even a part of it as there is, maybe none;
            ``"pad"`` fills it with the first samples, which ``sample_mask`` tells apart; ``"drop"`` leaves it out. Of
            a framed source only ``"spread"``, and ranks have as many batches if they agree, see `WorkerConfig`.
        order: ``"stride"``; or ``"energon"``, where each rank and worker has a run of neighbours of its own, and maybe
            another number of batches.

    Raises:
        ConfigError, StoreError: as `get_train_dataset`.
    """
    passes = _validation(order, limit, tail, batch_drop_last)
    batching = Batching(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
    )
    return prepared(path, split_part, passes, batching, worker_config, options)


def get_val_datasets(
    path: PathOrData,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "spread",
    order: Literal["stride", "energon"] = "stride",
    **options: Any,
) -> list[tuple[EnergonDataset, Dataset | Mix]]:
    """`get_val_dataset` for each of the datasets by itself, with the dataset that it is of; the same arguments."""
    whole = get_val_dataset(
        path,
        split_part=split_part,
        worker_config=worker_config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        limit=limit,
        tail="spread",
        order=order,
        **options,
    )
    passes = _validation(order, limit, tail, batch_drop_last)
    # The encoder is around each part already: what is left to say are sizes.
    batching = Batching(
        None,
        seed=worker_config.seed_offset,
        batch_size=whole.batch_size,
        packing_buffer_size=None,
        errors=None,
        framed=False,
        num_lanes=options.get("num_lanes"),
    )
    units = None if whole.framed is None else whole.framed.data
    found = []
    for part in parts(whole.stream.data):
        data = OpenedUnits(part, None if units is None else over(units, part))
        found.append((over_passes(data, passes, batching, worker_config), part))
    return found


def _validation(order: Literal["stride", "energon"], limit: int | None, tail: Tail, drop_last: bool) -> Validation:
    if drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    return Validation(order=order, limit=limit, tail="drop" if drop_last else tail)
