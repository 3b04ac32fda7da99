"""The functions that open a path to train on or to validate with, and make loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from headrace.datasets import Dataset, Run
from headrace.datasets.encoded.sources import Encoder, encoder_or_none
from headrace.datasets.mix import Mix, length_of
from headrace.errors import ConfigError
from headrace.loader.energon.dataset import EnergonDataset, Tail
from headrace.loader.energon.loader import EnergonLoader, OwnOrderLoader, StreamLoader
from headrace.loader.energon.opening import Given, opened, parts
from headrace.loader.energon.own_order import OwnOrder
from headrace.loader.energon.worker_config import WorkerConfig
from headrace.loader.reading import Reading
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonMixing, EnergonTopology

Kind = Literal["shards", "full", "blocks", "energon"]
_KINDS = ("shards", "full", "blocks", "energon")


def get_train_dataset(
    path: Given,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int,
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
    packing_buffer_size: None = None,
    **options: Any,
) -> EnergonDataset:
    """What to train on: shuffled, for ever.

    Each epoch of each source has every sample once. What belongs to ranks and workers, ``order="energon"`` apart, is
    neither the order nor the state: a run goes on with others.

    Args:
        path: a dataset of Energon's, tar shards or a ``.jsonl``, a metadataset (``.yaml``), or data made before.
        split_part: of the dataset or metadataset.
        worker_config: rank, workers and seed.
        batch_size: samples a batch on this rank.
        batch_drop_last: without ``repeat``, leave out a last batch that not all ranks can fill.
        shuffle_buffer_size: samples that are shuffled among at least; ``order="shards"`` opens as many slices.
        max_samples_per_sequence: neighbours of a shard that are read together; None: 100, in Energon's order no limit.
        parallel_shard_iters: slices that are open at once; None: 128, in Energon's order 16.
        virtual_epoch_length: batches of this rank in an iteration of the loader; 0: an iteration does not end.
        shuffle_over_epochs_multiplier: None does not shuffle. Numbers from 1 on matter in Energon's order alone, as
            each epoch has all samples here; and so does -1, by which it draws with replacement.
        repeat: False: an iteration is one pass; the next one is the next pass.
        order: ``"shards"``; ``"full"``, a permutation of all samples; ``"blocks"``; or ``"energon"``, its own order bit
            for bit, which is bound to ranks and workers. Without ``repeat`` its passes are all the same.
        global_batch_size: of a step, as of `headrace.Run`; None: a step is one batch of every rank, and is of another
            size on other ranks.
        task_encoder: cooks, encodes and batches the samples of every dataset, and gives one output for each. Random
            numbers in its hooks are of the seed of ``worker_config``. None: as ``DefaultTaskEncoder()``.
        packing_buffer_size: not here yet.
        options: those of `headrace.MediaDataset.open` and ``subset``, a range of the samples; of a metadataset those of
            `SourceOptions`.

    Raises:
        ConfigError: an option that is out of range, unknown here, or does not go with another.
        StoreError: nothing is there, or it is malformed.
    """
    _refuse(packing_buffer_size)
    if order not in _KINDS:
        raise ConfigError(f"order is {order!r}; allowed are {', '.join(map(repr, _KINDS))}")
    data = opened(
        path,
        split_part,
        training=True,
        global_batch_size=global_batch_size,
        options=options,
        encoder=encoder_or_none(task_encoder),
        seed=worker_config.seed_offset,
    )
    if order == "energon":
        if global_batch_size is not None:
            raise ConfigError("order='energon' knows batches of workers only; leave global_batch_size out")
        if shuffle_over_epochs_multiplier is None:
            raise ConfigError("shuffle_over_epochs_multiplier=None: Energon's training order is always shuffled")
        workers = max(1, worker_config.num_workers)
        if virtual_epoch_length % workers:
            raise ConfigError(
                f"virtual_epoch_length is {virtual_epoch_length:,} for {workers:,} workers; with order='energon' it is "
                "a multiple, so that an epoch ends where it began"
            )
        mixing = EnergonMixing(
            max_samples_per_sequence=max_samples_per_sequence,
            parallel_shard_iters=16 if parallel_shard_iters is None else parallel_shard_iters,
            shuffle_buffer_size=shuffle_buffer_size or 0,
            repeat=repeat,
        )
        return _in_own_order(
            data,
            worker_config,
            training=True,
            mixing=mixing,
            batch_size=batch_size,
            drop_last=batch_drop_last,
            shuffle_over_epochs=shuffle_over_epochs_multiplier,
            virtual_epoch_length=virtual_epoch_length,
        )
    shuffling = _order(
        order,
        worker_config.seed_offset,
        shuffle_buffer_size or 0,
        100 if max_samples_per_sequence is None else max_samples_per_sequence,
        parallel_shard_iters,
        shuffle_over_epochs_multiplier,
    )
    schedule = None if global_batch_size is None else BatchSchedule.of(global_batch_size)
    once = None if repeat else length_of(data)
    if not repeat and once is None:
        raise ConfigError(f"repeat=False: {data!r} has no end; give it one, or repeats in the place of weights")
    return EnergonDataset(
        stream=Run(data, global_batch_size=schedule or 1, order=shuffling),
        worker_config=worker_config,
        batch_size=batch_size,
        training=True,
        pass_samples=once,
        tail="drop" if batch_drop_last else "deal",
        virtual_epoch_length=virtual_epoch_length,
        global_batch_size=schedule,
    )


def get_val_dataset(
    path: Given,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "deal",
    order: Literal["stride", "energon"] = "stride",
    task_encoder: Encoder | None = None,
    packing_buffer_size: None = None,
    **options: Any,
) -> EnergonDataset:
    """What to validate with: every sample once, in the order of the stores, in as many batches on every rank.

    Each iteration of its loader is the whole of it again. The batches of all ranks together are consecutive samples.

    Args:
        path, split_part, worker_config, batch_size, task_encoder, packing_buffer_size, options: see
            `get_train_dataset`; of a metadataset all datasets one after another.
        batch_drop_last: as ``tail="drop"``.
        limit: batches of this rank.
        tail: what not all ranks can fill: ``"deal"`` gives each as even a part of it as there is, maybe none;
            ``"pad"`` fills it with the first samples, which ``sample_mask`` tells apart; ``"drop"`` leaves it out.
        order: ``"stride"``; or ``"energon"``, where each rank and worker has a run of neighbours of its own, and maybe
            another number of batches.

    Raises:
        ConfigError, StoreError: as `get_train_dataset`.
    """
    _refuse(packing_buffer_size)
    if order not in ("stride", "energon"):
        raise ConfigError(f"order is {order!r}; allowed are 'stride', 'energon'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is at least one batch, found {limit}; None is all")
    if batch_drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    data = opened(
        path,
        split_part,
        training=False,
        global_batch_size=None,
        options=options,
        encoder=encoder_or_none(task_encoder),
        seed=worker_config.seed_offset,
    )
    return _validation(data, worker_config, batch_size, limit, "drop" if batch_drop_last else tail, order)


def get_val_datasets(
    path: Given,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int,
    batch_drop_last: bool = False,
    limit: int | None = None,
    tail: Tail = "deal",
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
        tail="deal",
        order=order,
        **options,
    )
    tail = "drop" if batch_drop_last else tail
    return [
        (_validation(part, worker_config, batch_size, limit, tail, order), part) for part in parts(whole.stream.data)
    ]


def get_savable_loader(
    dataset: EnergonDataset,
    *,
    prefetch_factor: int = 2,
    pin_memory: bool | None = None,
    persistent_workers: bool = True,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
    watchdog_timeout_seconds: float = 300.0,
) -> EnergonLoader:
    """The batches of this rank, as many worker processes reading ahead as its ``worker_config`` says.

    Args:
        dataset: of `get_train_dataset` or `get_val_dataset`.
        prefetch_factor: batches that each worker keeps ready.
        pin_memory, persistent_workers, start_method: see `headrace.Reading`.
        watchdog_timeout_seconds: how long a batch may take to come from a worker; then it is a WorkerError.
    """
    reading = Reading(
        num_threads=0,
        num_workers=dataset.worker_config.num_workers,
        prefetch=prefetch_factor,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        start_method=start_method,
        timeout_s=watchdog_timeout_seconds,
    )
    if dataset.own_order is not None:
        return OwnOrderLoader(dataset, dataset.own_order, reading)
    return StreamLoader(dataset, reading)


get_loader = get_savable_loader
"""Every loader can be saved: it costs nothing."""


def _refuse(packing_buffer_size: object) -> None:
    if packing_buffer_size is not None:
        raise ConfigError("packing_buffer_size: media samples are not packed yet; leave it out")


def _order(
    kind: str, seed: int, buffer: int, slice_samples: int, open_slices: int | None, multiplier: int | None
) -> Order:
    if multiplier is None:
        return Order(kind="none")
    if multiplier < 1:
        raise ConfigError(
            f"shuffle_over_epochs_multiplier is {multiplier}: here each epoch has every sample once; allowed are 1 and "
            "more, None for no shuffling, and with order='energon' -1"
        )
    if kind != "shards":
        return Order(kind=kind, seed=seed)  # type: ignore[arg-type]
    if open_slices is None:
        open_slices = Order().parallel_shard_iters
    if slice_samples >= 1:
        open_slices = max(open_slices, -(-buffer // slice_samples))
    return Order(kind="shards", seed=seed, max_samples_per_sequence=slice_samples, parallel_shard_iters=open_slices)


def _in_own_order(
    data: Dataset | Mix,
    worker_config: WorkerConfig,
    *,
    training: bool,
    batch_size: int,
    virtual_epoch_length: int = 0,
    **own: Any,
) -> EnergonDataset:
    stream = Run(data, global_batch_size=1, order=Order(kind="none"))
    topology = EnergonTopology(
        world_size=worker_config.world_size,
        num_workers=worker_config.num_workers,
        seed_offset=worker_config.seed_offset,
    )
    return EnergonDataset(
        stream=stream,
        worker_config=worker_config,
        batch_size=batch_size,
        training=training,
        virtual_epoch_length=virtual_epoch_length,
        own_order=OwnOrder(stream, topology=topology, batch_size=batch_size, **own),
    )


def _validation(
    data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int, limit: int | None, tail: Tail, order: str
) -> EnergonDataset:
    if order == "energon":
        if tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")
        return _in_own_order(
            data,
            worker_config,
            training=False,
            mixing=None,
            batch_size=batch_size,
            drop_last=tail == "drop",
            limit=limit,
        )
    samples = length_of(data)
    if samples is None:
        raise ConfigError(f"{data!r} has no end, and validation has one; limit it with LimitDataset")
    if limit is not None:
        samples = min(samples, limit * batch_size * worker_config.world_size)
    return EnergonDataset(
        stream=Run(data, global_batch_size=1, order=Order(kind="none")),
        worker_config=worker_config,
        batch_size=batch_size,
        training=False,
        pass_samples=samples,
        tail=tail,
    )
