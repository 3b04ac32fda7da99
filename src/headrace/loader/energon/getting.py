"""The functions that open a path to train on, and make loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from headrace.datasets import Run
from headrace.datasets.encoded.samples import Encoder
from headrace.datasets.mix import length_of
from headrace.encoders import ErrorPolicy
from headrace.errors import ConfigError
from headrace.loader.energon.dataset import EnergonDataset, in_own_order
from headrace.loader.energon.framed import FramedLoader, framed_dataset
from headrace.loader.energon.loader import EnergonLoader, StreamLoader
from headrace.loader.energon.making import Making
from headrace.loader.energon.opening import Given, opened
from headrace.loader.energon.own_order_loader import OwnOrderLoader
from headrace.loader.energon.worker_config import WorkerConfig
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
    making = Making(
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
        tail="drop" if batch_drop_last else "deal",
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
        pin_memory, persistent_workers, start_method, worker_init, differing_globals: see `headrace.Reading`.
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
