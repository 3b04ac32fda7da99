"""The functions that open a path to train on, or to validate with, and make loaders.

The functions that open a path to validate with: every sample once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from headrace.compat.energon.dataset import EnergonDataset, Tail, WorkerConfig, in_own_order
from headrace.compat.energon.framed import FramedLoader, framed_dataset
from headrace.compat.energon.loader import EnergonLoader, OwnOrderLoader, StreamLoader
from headrace.compat.energon.making import BatchMaking, Given, opened, over, parts
from headrace.datasets import Dataset, Framed, Run
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.mix import Mix, length_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader.reading import Reading
from headrace.plan import BatchSchedule, Order
from headrace.plan.energon import EnergonMixing

Kind = Literal["shards", "full", "blocks", "energon"]
_KINDS = ("shards", "full", "blocks", "energon")


def get_train_dataset(
    path: Given,
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
    if order not in _KINDS:
        raise ConfigError(f"order is {order!r}; allowed are {', '.join(map(repr, _KINDS))}")
    making = BatchMaking(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
    )
    data, units = opened(path, split_part, making, training=True, global_batch_size=global_batch_size, options=options)
    if order == "energon":
        if units is not None:
            raise ConfigError(
                f"order='energon' is for one output of each sample, and here are units: {units.describe()}; choose "
                "another order"
            )
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
        return in_own_order(
            data,
            worker_config,
            training=True,
            mixing=mixing,
            batch_size=making.samples(data),
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
    if units is not None:
        if batch_drop_last and not repeat:
            raise ConfigError("batch_drop_last=True: which batch is the last shows after it was given; leave it out")
        return framed_dataset(
            units,
            worker_config,
            batch_size=batch_size,
            training=True,
            order=shuffling,
            repeat=repeat,
            virtual_epoch_length=virtual_epoch_length,
            schedule=schedule,
            num_lanes=num_lanes,
        )
    once = None if repeat else length_of(data)
    if not repeat and once is None:
        raise ConfigError(f"repeat=False: {data!r} has no end; give it one, or repeats in the place of weights")
    return EnergonDataset(
        stream=Run(data, global_batch_size=schedule or 1, order=shuffling),
        worker_config=worker_config,
        batch_size=making.samples(data),
        training=True,
        pass_samples=once,
        tail="drop" if batch_drop_last else "spread",
        virtual_epoch_length=virtual_epoch_length,
        global_batch_size=schedule,
    )


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


def get_val_dataset(
    path: Given,
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
    if order not in ("stride", "energon"):
        raise ConfigError(f"order is {order!r}; allowed are 'stride', 'energon'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is at least one batch, found {limit}; None is all")
    if batch_drop_last and tail == "pad":
        raise ConfigError("tail='pad' fills the last batch, which batch_drop_last=True leaves out: choose one")
    making = BatchMaking(
        task_encoder,
        seed=worker_config.seed_offset,
        batch_size=batch_size,
        packing_buffer_size=packing_buffer_size,
        errors=errors,
        framed=framed,
        num_lanes=num_lanes,
    )
    data, units = opened(path, split_part, making, training=False, global_batch_size=None, options=options)
    tail = "drop" if batch_drop_last else tail
    if units is not None:
        return _framed_validation(units, worker_config, batch_size, limit, tail, order, num_lanes)
    return _validation(data, worker_config, making.samples(data), limit, tail, order)


def get_val_datasets(
    path: Given,
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
    tail = "drop" if batch_drop_last else tail
    found = parts(whole.stream.data)
    if whole.framed is not None:
        units, lanes = whole.framed.data, options.get("num_lanes")
        return [
            (_framed_validation(over(units, part), worker_config, batch_size, limit, tail, order, lanes), part)
            for part in found
        ]
    return [(_validation(part, worker_config, whole.batch_size, limit, tail, order), part) for part in found]


def _validation(
    data: Dataset | Mix, worker_config: WorkerConfig, batch_size: int, limit: int | None, tail: Tail, order: str
) -> EnergonDataset:
    if order == "energon":
        if tail == "pad":
            raise ConfigError("tail='pad' goes with order='stride'; Energon's order has no padding")
        return in_own_order(
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
        raise ConfigError(f"{data!r} has no end, and validation has one; limit it with Limit")
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


def _framed_validation(
    data: Framed,
    worker_config: WorkerConfig,
    batch_size: int | None,
    limit: int | None,
    tail: Tail,
    order: str,
    num_lanes: int | None,
) -> EnergonDataset:
    if order == "energon":
        raise ConfigError(
            f"order='energon' is for one output of each sample, and here are units: {data.describe()}; leave it out"
        )
    if tail != "spread":
        raise ConfigError(
            f"tail is {tail!r}, and how many units a task encoder makes shows after they were given: the last ones are "
            "dealt; leave tail and batch_drop_last out"
        )
    return framed_dataset(
        data,
        worker_config,
        batch_size=batch_size,
        training=False,
        order=Order(kind="none"),
        limit=limit,
        num_lanes=num_lanes,
    )
